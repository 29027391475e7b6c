"""Dense layers cut over the devices of a host train as whole ones do, and send what their plan says."""

import contextlib
import functools
from dataclasses import replace
from types import SimpleNamespace

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import PartitionSpec as P

from jaxnet import comm
from jaxnet.checkpoints import Checkpointer
from jaxnet.config.run import Config, Guard
from jaxnet.data import Synthetic
from jaxnet.errors import InputError
from jaxnet.models import VGG, AlexNet
from jaxnet.models.layers import ExampleDropout
from jaxnet.optimizer import Optimizer
from jaxnet.parallel.device_step import non_finite
from jaxnet.parallel.hybrid import fewest_bytes
from jaxnet.parallel.replicas import Replicas
from jaxnet.parallel.state import abstract_state
from jaxnet.training.prepare import prepare
from support.checkpointing import assert_same_bits

IMAGE, CLASSES, SIZE, STEPS = (8, 8, 1), 8, 48, 8


class Net(nn.Module):
    """AlexNet's classifier, on top of a small whole layer."""

    @nn.compact
    def __call__(self, images, *, train, keys=None):
        x = jnp.tanh(nn.Dense(32, name="features")(images.reshape(images.shape[0], -1)))
        for name in ("classifier_1", "classifier_4"):
            x = jnp.tanh(nn.Dense(16, name=name)(ExampleDropout(0.3)(x, train=train, keys=keys)))
        return nn.Dense(CLASSES, name="classifier_6")(x)


OPTIMIZERS = {
    "adamw": Optimizer("adamw", 0.01, weight_decay=0.1, clip_norm=0.5),
    "lars": Optimizer(
        "lars", 2.0, weight_decay=0.01, clip_norm=0.5, trust_coefficient=0.01, groups=(("features", 0.5),)
    ),
}
RUNS = [
    ("adamw", (2, 4)),
    ("adamw", (1, 1)),
    ("lars", (2, 4)),
    *(pytest.param("adamw", shape, marks=pytest.mark.slow) for shape in [(1, 8), (1, 2)]),
]
CUT = ("classifier_*",)


def config_of(name="adamw", **changes):
    data = Synthetic(IMAGE, num_classes=CLASSES, num_train=SIZE * STEPS, num_test=SIZE)
    base = Config(Net(), data, 1, SIZE, eval_batch_size=SIZE, optimizer=OPTIMIZERS[name], average_decay=0.9)
    return replace(base, **changes)


def hybrid(name="adamw", **changes):
    return config_of(name, **{"shard_dense": CUT, **changes})


class Run:
    """A config on a mesh: its compiled step is both checked and run."""

    def __init__(self, config, shape):
        self.mesh = comm.make_mesh(shape[0], jax.devices()[: shape[0] * shape[1]])
        self.experiment = prepare(config, self.mesh, source=config.data.load("train"))
        self.layout = self.experiment.layout
        first = self.experiment.init()
        lowered = self.experiment.step.lower(first, self.batch(0))
        self.step, self.first = lowered.compile(), first
        self.check = comm.verify(self.step.as_text(), self.experiment.sends.collectives, self.mesh.shape)

    def batch(self, index):
        draw = np.random.RandomState(index)
        batch = {
            "image": draw.randint(0, 256, (SIZE, *IMAGE)).astype(np.uint8),
            "label": draw.randint(0, CLASSES, SIZE).astype(np.int32),
            "id": draw.permutation(1000)[:SIZE].astype(np.int32),
        }
        return jax.device_put(batch, comm.split_by_example(self.mesh))

    def trained(self):
        state, losses = self.first, []
        for index in range(STEPS):
            state, metrics = self.step(state, self.batch(index))
            losses.append(float(metrics["loss"]))
        return losses, state


@functools.cache
def reference(name):
    run = Run(config_of(name), (1, 2))
    losses, state = run.trained()
    return losses, jax.device_get(run.layout.whole(state))


def assert_follows(run, wanted):
    losses, state = run.trained()
    np.testing.assert_allclose(losses, wanted[0], rtol=1e-5)
    got = jax.device_get(run.layout.whole(state))
    for field in ("params", "average"):
        for a, b in zip(*(jax.tree.leaves(getattr(one, field)) for one in (got, wanted[1])), strict=True):
            np.testing.assert_allclose(a, b, atol=2e-4, err_msg=field)
    return state


def assert_as_planned(run):
    assert run.check.ok, run.check.explain()
    assert not run.check.extra


@pytest.mark.parametrize(("name", "shape"), RUNS, ids=str)
def test_training_follows_plain_data_parallelism_and_sends_what_is_planned(name, shape):
    """Dropout, clipping, norms by layer and the moving average included."""
    run = Run(hybrid(name), shape)
    assert_as_planned(run)
    state = assert_follows(run, reference(name))
    share = state.params["classifier_1"]["kernel"].addressable_shards[0].data.shape
    assert share == (32 // shape[1], 16)
    moments = [leaf.sharding.spec for leaf in jax.tree.leaves(state.optimizer) if leaf.shape == (32, 16)]
    assert moments
    assert all(spec == (P("device") if shape[1] > 1 else P()) for spec in moments)


def test_microbatches_send_the_same_bytes_in_more_messages():
    shape = (1, 2)
    run, whole = Run(hybrid(microbatches=4), shape), prepared(hybrid(), shape)
    assert_as_planned(run)
    assert_follows(run, reference("adamw"))
    assert run.experiment.plan.wire_bytes_per_step == whole.plan.wire_bytes_per_step


class Wide(nn.Module):
    """A layer fed by images, one cut by columns, one on rows of activations, and one that is cut by nothing."""

    @nn.compact
    def __call__(self, images, *, train, keys=None):
        x = jnp.tanh(nn.Dense(8, name="first")(images.reshape(images.shape[0], -1)))
        x = jnp.tanh(nn.Dense(24, name="wide")(x))
        x = jnp.tanh(nn.Dense(16, name="rows", use_bias=False)(x.reshape(x.shape[0], 3, 8)))
        x = nn.Dense(CLASSES, name="last")(x.reshape(x.shape[0], -1))
        return nn.Dense(CLASSES, name="odd")(x[:, :7])


def test_every_kind_of_layer_follows_the_whole_one():
    names = ("first", "wide", "rows", "last")
    plain, cut = (Run(config_of(model=Wide(), shard_dense=chosen), (2, 4)) for chosen in ((), names))
    assert [(layer.cut, layer.inputs, layer.units, layer.backward) for layer in cut.experiment.layers] == [
        ("rows", 64, 8, False), ("columns", 8, 24, True), ("columns", 24, 48, True), ("rows", 48, 8, True)
    ]  # fmt: skip
    assert_as_planned(cut)
    losses, state = plain.trained()
    assert_follows(cut, (losses, jax.device_get(state)))


@given(st.integers(1, 64), st.integers(1, 64), st.sampled_from([2, 4, 8]))
def test_the_cut_is_the_one_that_sends_less(inputs, units, devices):
    cut = fewest_bytes(inputs, units, devices)
    able = [name for name, size in (("rows", inputs), ("columns", units)) if size % devices == 0]
    assert (cut is None) == (not able)
    if len(able) == 2 and inputs != units:
        assert cut == ("rows" if inputs > units else "columns")


# ---- What is sent: full-width networks, as shapes ------------------------------------------------------------


def prepared(config, shape):
    mesh = comm.make_mesh(shape[0], jax.devices()[: shape[0] * shape[1]])
    return prepare(config, mesh, source=config.data.load("train"))


@pytest.mark.parametrize(
    ("model", "size", "plain", "cut"),
    [(AlexNet(1000), 128, 427_705_894, 54_855_325), (VGG(1000, depth=16), 128, 968_502_822, 142_348_045)],
    ids=["alexnet", "vgg16"],
)
def test_cut_classifiers_send_fewer_bytes(model, size, plain, cut):
    source = SimpleNamespace(num_examples=10**6, image_shape=(224, 224, 3), num_classes=1000)
    mesh = comm.make_mesh(1, jax.devices()[:8])
    names = ("classifier_0", "classifier_3") if isinstance(model, VGG) else ("classifier_1", "classifier_4")
    base = config_of(model=model, batch_size=size, eval_batch_size=size)
    sent = []
    for chosen in ((), names):
        experiment = prepare(replace(base, shard_dense=chosen), mesh, source=source)
        sent.append(experiment.plan.wire_bytes_per_step)
    assert [layer.cut for layer in experiment.layers] == ["rows", "rows"]
    assert sent == [plain, cut]


def test_the_report_names_what_is_cut_and_numbers_leaves_as_the_model_does():
    experiment = prepared(hybrid(strategy="hierarchical", bucket_bytes=1024), (2, 4))
    report = experiment.plan.as_json()
    kernels = [f"classifier_{layer}/kernel" for layer in (6, 4, 1)]
    assert report["cut"] == dict.fromkeys(kernels, "rows")
    leaves = [name for bucket in report["buckets"] for name in bucket["leaves"]]
    assert leaves[:3] == kernels
    assert len(set(leaves)) == report["leaves"]
    across = sum(c["elements"] for c in report["planned"] if c["axes"] == ["host"])
    kept, cut = 64 * 32 + 32 + 16 + 16 + 8, 32 * 16 + 16 * 16 + 16 * 8
    assert across == (kept + cut) // 4
    assert "classifier_1/kernel is cut by rows" in str(experiment.plan)


# ---- Checkpoints, guards, replicas ----------------------------------------------------------------------------


@pytest.mark.parametrize(("names", "shape"), [((), (1, 8)), (("classifier_1",), (1, 2)), (CUT, (2, 4))], ids=str)
def test_a_checkpoint_is_whole_and_restores_on_any_mesh(tmp_path, names, shape):
    first = prepared(hybrid(), (1, 8))
    other = prepared(config_of(shard_dense=names), shape)
    saved = first.layout.whole(first.init())
    kept = jax.device_get(saved)
    with contextlib.closing(Checkpointer(tmp_path)) as checkpoints:
        checkpoints.save(1, saved, extra={})
        like = abstract_state(other.layout.whole_shapes, other.layout.mesh)
        restored = checkpoints.restore(1, like).state
    carried = other.layout.cut(restored)
    again = jax.device_get(other.layout.whole(carried))
    for field in ("step", "params", "stats", "optimizer", "average", "key"):
        assert_same_bits(getattr(again, field), getattr(kept, field))
    params, _ = other.layout.evaluated(carried)
    assert all(leaf.is_fully_replicated for leaf in jax.tree.leaves(params))


def test_all_devices_agree_that_a_part_is_not_finite():
    mesh = comm.make_mesh(2, jax.devices()[:8])
    cut = jnp.zeros((8, 2)).at[5, 0].set(jnp.nan)

    def found(cut):
        return non_finite({"loss": jnp.ones(())}, {"cut": cut, "whole": jnp.ones(3)}, ("device",))

    # Without a sum over devices this type, the same everywhere, is refused.
    mapped = jax.shard_map(found, mesh=mesh, in_specs=P("device"), out_specs=P())
    assert jax.jit(mapped)(cut).tolist() == [False, True, False]


def test_hosts_that_hold_other_parts_are_found():
    experiment = prepared(hybrid(), (2, 4))
    state = experiment.init()
    kernel = state.params["classifier_1"]["kernel"]
    copies = [np.array(shard.data) for shard in kernel.addressable_shards]
    copies[6][0, 0] += 1
    parts = [jax.device_put(copy, shard.device) for copy, shard in zip(copies, kernel.addressable_shards, strict=True)]
    wrong = jax.make_array_from_single_device_arrays(kernel.shape, kernel.sharding, parts)
    params = {**state.params, "classifier_1": {**state.params["classifier_1"], "kernel": wrong}}
    replicas = Replicas(experiment.layout)
    assert replicas.difference(state) is None
    assert "in params/classifier_1/kernel" in replicas.difference(state._replace(params=params))


def test_a_step_without_guard_has_the_planned_collectives():
    assert_as_planned(Run(hybrid(guard=Guard(skip=False)), (1, 2)))


def test_an_optimizer_that_treats_kernels_by_their_dims_goes_along():
    masked = optax.masked(optax.adam(1e-3), lambda params: jax.tree.map(lambda leaf: leaf.ndim > 1, params))
    layout = prepared(hybrid(optimizer=masked), (1, 2)).layout
    kinds = jax.tree.leaves(layout.kinds.optimizer)
    assert sum(kind in ("rows", "columns") for kind in kinds) == 2 * sum(
        kind in ("rows", "columns") for kind in jax.tree.leaves(layout.kinds.params)
    )  # two moments


class Halved(nn.Module):
    """A dense layer that multiplies in its own way."""

    @nn.compact
    def __call__(self, images, train=False):
        def half(*given, **named):
            return jax.lax.dot_general(*given, **named) / 2

        return nn.Dense(CLASSES, dot_general=half, name="own")(images.reshape(len(images), -1) / 255)


# ---- Refusals -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"strategy": "xla"}, "does not go with strategy=xla, mode=jit; use a strategy that sums gradients exactly"),
        ({"strategy": "zero"}, "does not go with strategy=zero, mode=shard_map; use"),
        ({"strategy": "local_sgd"}, "does not go with strategy=local_sgd"),
        ({"strategy": "int8"}, "does not go with strategy=int8"),
        ({"mode": "pmap"}, "does not go with strategy=hierarchical, mode=pmap"),
        ({"mode": "pieces", "strategy": "flat"}, "does not go with strategy=flat, mode=pieces"),
        ({"shard_dense": ("fc*",)}, r"no dense layer matches 'fc\*'; there are: features, classifier_1"),
        ({"model": Halved(), "shard_dense": ("own",)}, r"own has a dot_general of its own; leave the layer out"),
        ({"model": Wide(), "shard_dense": ("odd",)}, r"the kernel of odd, \[7, 8\], does not divide by 3 devices"),
    ],
    ids=str,
)
def test_what_cannot_be_cut_is_refused(changes, message):
    with pytest.raises(InputError, match=message):
        prepared(hybrid(**changes), (1, 3))
