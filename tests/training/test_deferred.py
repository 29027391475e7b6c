"""The schedule 'deferred': the same training as any other, with the state in shards between steps."""

import contextlib
import functools
from dataclasses import replace

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec as P

from configs import digits
from jaxnet import comm
from jaxnet.checkpoints import Checkpointer
from jaxnet.data import Digits
from jaxnet.errors import InputError
from jaxnet.models import CNN, from_linen
from jaxnet.optimizer import Optimizer, ShardedParams, make_optimizer
from jaxnet.parallel import StepOptions, form_of
from jaxnet.parallel.state import abstract_state, first_state
from jaxnet.tasks.classification import Pixels, classification_loss
from jaxnet.training.prepare import prepare
from support import tiny
from support.checkpointing import assert_same_bits

DEFERRED = [name for name, make in comm.STRATEGIES.items() if make().kind == "sharded"]
MESHES = [(1, 8), (2, 4), (3, 2)]
EVERY_MESH = pytest.mark.parametrize("shape", MESHES, ids=str)
STEPS = 20
OPTIMIZERS = {
    "sgd": Optimizer("sgd", 0.05, warmup_steps=3, weight_decay=0.01, clip_norm=0.5),
    "adamw": Optimizer("adamw", 0.003, warmup_steps=3, weight_decay=0.1, clip_norm=0.5),
    "lars": Optimizer("lars", 2.0, warmup_steps=3, weight_decay=0.01, clip_norm=0.5, trust_coefficient=0.01),
}
EVERY_OPTIMIZER = pytest.mark.parametrize("name", OPTIMIZERS)
SMOOTH = {"smooth": True, "dropout": 0.0}


def grid(shape):
    return comm.make_mesh(shape[0], jax.devices()[: shape[0] * shape[1]])


def optimizer_for(name, model, strategy):
    params = jax.eval_shape(model.init, jax.random.key(0), np.zeros((1, *tiny.IMAGE), np.float32)).params
    parts = ShardedParams(params, comm.AXES) if comm.named_strategy(strategy).kind == "sharded" else None
    return make_optimizer(OPTIMIZERS[name], STEPS, parts)


def trained(name, strategy, shape, size=48, **options):
    model = tiny.cnn(norm=False, **SMOOTH)
    optimizer = optimizer_for(name, model, strategy)
    bucket = 2048 if strategy == "zero" else None
    setup = tiny.setup(model, strategy, shape, bucket, optimizer, average_decay=0.9, **options)
    return tiny.run(setup, STEPS, size)


@functools.cache
def reference(name):
    return trained(name, "flat", (1, 8))


def assert_same_training(got, wanted):
    np.testing.assert_allclose(got[0], wanted[0], rtol=1e-5)
    for field in ("params", "average"):
        leaves = (jax.tree.leaves(getattr(run[1], field)) for run in (got, wanted))
        for a, b in zip(*leaves, strict=True):
            np.testing.assert_allclose(a, b, atol=2e-4, err_msg=field)


# An update by each optimizer on each mesh: test_an_update_of_parts_is_that_of_the_whole.
ONCE_EACH = [("sgd", (2, 4)), ("adamw", (1, 8)), ("lars", (3, 2))]
ONE_MESH_AN_OPTIMIZER = pytest.mark.parametrize(
    ("name", "shape"),
    [
        pytest.param(name, shape, marks=() if (name, shape) in ONCE_EACH else pytest.mark.slow)
        for shape in MESHES
        for name in OPTIMIZERS
    ],
    ids=str,
)


@ONE_MESH_AN_OPTIMIZER
def test_every_optimizer_trains_as_with_flat(name, shape):
    """Clipping, decay, warm-up and the moving average included."""
    assert_same_training(trained(name, "zero", shape), reference(name))


@pytest.mark.parametrize(
    "name", ["adamw", pytest.param("sgd", marks=pytest.mark.slow), pytest.param("lars", marks=pytest.mark.slow)]
)
def test_microbatches_change_nothing(name):
    assert_same_training(trained(name, "zero", (2, 4), microbatches=3), reference(name))


@functools.cache
def twenty_losses(strategy):
    return tiny.run(tiny.setup(tiny.cnn(norm=True, norm_axes=comm.AXES, **SMOOTH), strategy, (2, 4)), STEPS)[0]


@pytest.mark.parametrize("strategy", DEFERRED)
def test_twenty_steps_of_every_deferred_strategy_follow_hierarchical(strategy):  # L10
    np.testing.assert_allclose(twenty_losses(strategy), twenty_losses("hierarchical"), rtol=1e-5)


@pytest.mark.parametrize("axes", [(), ("device",)], ids=["local", "host"])
def test_batch_norm_of_each_kind_follows_hierarchical(axes):
    model = tiny.cnn(norm=True, norm_axes=axes, **SMOOTH)
    got, wanted = (tiny.run(tiny.setup(model, name, (2, 4)), 8) for name in ("zero", "hierarchical"))
    np.testing.assert_allclose(got[0], wanted[0], rtol=1e-5)
    for a, b in zip(*(jax.tree.leaves(run[1].stats) for run in (got, wanted)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_the_same_run_twice_gives_the_same_bits():  # L9
    first, second = (tiny.run(tiny.setup(tiny.cnn(), "zero", (2, 4)))[1] for _ in range(2))
    assert_same_bits(first, second)


def test_nothing_is_traced_twice_and_the_state_is_donated():  # L8
    setup = tiny.setup(tiny.cnn(), "zero", (2, 4))
    state = setup.state
    for index in range(3):
        before = state
        state, _ = setup.step(state, jax.device_put(tiny.batch(index), comm.split_by_example(setup.mesh)))
        assert setup.step._cache_size() == 1
        assert all(leaf.is_deleted() for leaf in jax.tree.leaves(before))


# ---- Optimizers on parts ----------------------------------------------------------------------------------


@EVERY_OPTIMIZER
@EVERY_MESH
def test_an_update_of_parts_is_that_of_the_whole(name, shape):
    """The optimizer alone, over gradients that differ in size by layer; one is large enough to be clipped."""
    draw = np.random.RandomState(0)
    sizes = {"kernel": (7, 5), "bias": (5,), "scalar": (), "conv": (3, 3, 2, 4)}
    tree = lambda scale: {  # noqa: E731
        key: jnp.asarray(scale * draw.standard_normal(size), jnp.float32) for key, size in sizes.items()
    }
    params, mesh, way = tree(1.0), grid(shape), comm.sharded("device", "host", bucket_bytes=None)
    config = OPTIMIZERS[name]
    whole, of_parts = make_optimizer(config, STEPS), make_optimizer(config, STEPS, ShardedParams(params, comm.AXES))
    state = whole.init(params)
    specs = jax.tree.map(lambda leaf: P(way.axes) if leaf.ndim or leaf.dtype == np.float32 else P(), state)

    def cut(state):
        return jax.tree.map(lambda leaf: way.split(leaf) if leaf.ndim or leaf.dtype == np.float32 else leaf, state)

    def one(grads, state, params):
        grads, params = way.split(grads), way.split(params)
        updates, state = of_parts.update(grads, cut(state), params)
        return way.gather(updates, params_shapes), state

    params_shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), params)
    step = jax.jit(jax.shard_map(one, mesh=mesh, in_specs=P(), out_specs=(P(), specs)))
    for scale in (0.01, 10.0):
        grads = tree(scale)
        got, _ = step(grads, state, params)
        wanted, state = whole.update(grads, state, params)
        for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-9)


def test_lars_follows_its_formula():
    config = Optimizer("lars", 0.5, "constant", momentum=0.9, nesterov=False, weight_decay=0.1, trust_coefficient=0.02)
    optimizer = make_optimizer(config, 10)
    params = {"kernel": jnp.array([[3.0, 4.0]]), "bias": jnp.array([1.0, 1.0])}
    state, moved = optimizer.init(params), {"kernel": 0.0, "bias": 0.0}
    for grad in (np.array([[0.6, 0.8]]), np.array([[0.0, 2.0]])):
        updates, state = optimizer.update({"kernel": jnp.array(grad), "bias": jnp.array(grad[0])}, state, params)
        rate = 0.02 * 5 / (np.linalg.norm(grad) + 0.1 * 5)
        moved["kernel"] = 0.9 * moved["kernel"] + 0.5 * rate * (grad + 0.1 * np.array([[3.0, 4.0]]))
        moved["bias"] = 0.9 * moved["bias"] + 0.5 * grad[0]
        for key, value in moved.items():
            np.testing.assert_allclose(updates[key], -value, rtol=1e-5)


def test_lars_leaves_alone_what_has_no_norm():
    optimizer = make_optimizer(Optimizer("lars", 1.0, "constant", momentum=0.0, nesterov=False), 10)
    zeros = {"kernel": jnp.zeros((2, 2))}
    updates, _ = optimizer.update(zeros, optimizer.init(zeros), zeros)
    assert not updates["kernel"].any()


# ---- What is sent, and what is held -----------------------------------------------------------------------


def config_of(**changes):
    model = CNN(10, widths=(4, 8), hidden=16, norm=True)
    return replace(
        digits.get_config(),
        model=model,
        strategy="zero",
        bucket_bytes=4096,
        batch_size=48,
        eval_batch_size=48,
        **changes,
    )


def programme(config, shape):
    """The experiment on a mesh, and its compiled step beside the plan."""
    mesh = grid(shape)
    experiment = prepare(config, mesh, source=Digits().load("train"))
    compiled = experiment.step.lower(experiment.layout.shapes, experiment.batch_shapes).compile()
    return experiment, mesh, comm.verify(compiled.as_text(), experiment.sends.collectives, mesh.shape)


@ONE_MESH_AN_OPTIMIZER
def test_the_step_holds_the_planned_collectives_and_no_others(name, shape):  # L6
    experiment, _, check = programme(config_of(optimizer=OPTIMIZERS[name]), shape)
    assert check.ok, check.explain()
    assert not check.extra
    norms = [c.elements for c in experiment.sends.collectives if c.kind == "all-reduce"]
    guard = [len(experiment.form.options.order)]  # whether a leaf's gradient is finite
    assert norms[1:] == ([1, 2 * len(experiment.form.options.order)] if name == "lars" else [1]) + guard
    planned = len(experiment.sends.collectives)
    shown = str(replace(experiment.plan, check=check))
    assert shown.endswith(f"all {planned} planned collectives are in the compiled program")


AROUND_RINGS = comm.Strategy(
    comm.sharded(comm.ring_halves("device"), comm.halving_doubling_halves("host"), bucket_bytes=4096), "deferred"
)


@pytest.mark.parametrize(
    "strategy",
    [*(pytest.param(name, marks=[pytest.mark.slow] * (name != "zero")) for name in DEFERRED), AROUND_RINGS],
    ids=str,
)
def test_every_deferred_strategy_holds_its_plan(strategy):
    config = replace(config_of(microbatches=3), strategy=strategy, bucket_bytes=None, batch_norm="local")
    _, _, check = programme(config, (2, 4))
    assert check.ok, check.explain()
    assert not check.extra


def test_one_device_sends_nothing():  # L4
    experiment, _, check = programme(config_of(optimizer=OPTIMIZERS["lars"]), (1, 1))
    assert (experiment.sends.collectives, check.found) == ((), ())


def test_the_report_counts_every_element_once():
    experiment, _, _ = programme(config_of(), (3, 2))
    report = experiment.plan.as_json()
    assert sum(bucket["elements"] for bucket in report["buckets"]) * 4 == report["gradient_bytes"]
    scattered = [c["elements"] for c in report["planned"] if c["kind"] == "reduce-scatter" and c["axes"] == ["device"]]
    assert scattered == [bucket["bytes"] // 4 for bucket in report["buckets"]]
    assert all(bucket["padding"] == bucket["bytes"] // 4 - bucket["elements"] for bucket in report["buckets"])


class Deep(nn.Module):
    """Six layers of one kernel each."""

    @nn.compact
    def __call__(self, images, *, train, keys=None):
        x = images.reshape(images.shape[0], -1)
        for _ in range(5):
            x = jnp.tanh(nn.Dense(64, use_bias=False)(x))
        return nn.Dense(10, use_bias=False)(x)


def test_the_steps_gathers_spread_over_forward_and_its_scatters_over_backward():
    model, strategy, mesh = from_linen(Deep()), comm.named_strategy("s_caffe_obr"), grid((2, 4))
    optimizer = optax.sgd(0.1)
    whole = jax.eval_shape(functools.partial(first_state, model, optimizer, None, mesh, tiny.INPUTS, 0))
    options = StepOptions(order=tuple(reversed(range(6))))
    # Without augmentation, which takes long enough for all gathers to be issued before the first layer.
    form = form_of(strategy, mesh, options)
    layout = form.layout(whole, optimizer)
    step = form.step(classification_loss(model, Pixels()), optimizer, layout)
    hlo = step.lower(layout.shapes, tiny.batch(0)).compile().as_text()
    found = comm.verify(hlo, [], mesh.shape).found
    gathers = [item.compute_before > 0 for item in found if item.kind == "all-gather"]
    scatters = [item.compute_before > 0 for item in found if item.kind == "reduce-scatter"]
    assert gathers == [False] + 5 * [True]
    assert len(scatters) == 6
    assert sum(scatters) >= 4


def held(tree):
    """Bytes of `tree` on the first device."""
    return sum(leaf.addressable_shards[0].data.nbytes for leaf in jax.tree.leaves(tree))


def test_state_per_device_falls_as_one_over_the_devices():
    optimizer = optax.adam(1e-3)
    sizes = {}
    for shape in ((1, 1), (1, 2), (2, 2), (2, 4)):
        state = tiny.setup(tiny.cnn(), "zero", shape, optimizer=optimizer, average_decay=0.9).state
        sizes[shape[0] * shape[1]] = [held(tree) for tree in (state.params, state.optimizer, state.average)]
        leaves = len(jax.tree.leaves(state.params))
    for devices, (params, moments, average) in sizes.items():
        padding = 4 * leaves  # less than an element a leaf
        assert sizes[1][0] / devices <= params < sizes[1][0] / devices + padding
        assert sizes[1][1] / devices <= moments < sizes[1][1] / devices + 2 * padding + 8  # and the counts
        assert average == params


# ---- Checkpoints are whole --------------------------------------------------------------------------------


def place(setup, state):
    """A whole state on the mesh of `setup`, as its step takes it."""
    like = abstract_state(setup.layout.whole_shapes, setup.mesh)
    return setup.layout.cut(jax.tree.map(lambda leaf, spec: jax.device_put(leaf, spec.sharding), state, like))


def test_the_first_state_has_the_bits_of_any_other_strategy():
    ours, plain = (
        tiny.setup(tiny.cnn(), name, shape, draw_on_mesh=True) for name, shape in (("zero", (2, 4)), ("flat", (1, 1)))
    )
    assert_same_bits(
        jax.device_get(ours.layout.whole(ours.state))._replace(comm=()),
        jax.device_get(plain.state)._replace(comm=()),
    )


def test_whole_and_cut_keep_every_bit():
    setup = tiny.setup(tiny.cnn(), "zero", (3, 2), optimizer=optax.adam(1e-3), average_decay=0.9)
    _, whole = tiny.run(setup, 2, 48)
    again = setup.layout.whole(place(setup, whole))
    assert_same_bits(jax.device_get(again), whole)


OTHERS = [("ddp", (1, 8)), ("ddp", (1, 1)), ("s_caffe_obr", (3, 2))]


@functools.cache
def adam_setup(strategy, shape):
    """A setup that several tests use, and its first state, whole, on the host."""
    setup = tiny.setup(tiny.cnn(), strategy, shape, optimizer=optax.adam(1e-3), average_decay=0.9)
    return setup, jax.device_get(setup.layout.whole(setup.state))


@pytest.mark.parametrize(("other", "shape"), OTHERS, ids=str)
@pytest.mark.parametrize("back", [False, True], ids=["from_zero", "to_zero"])
def test_a_checkpoint_restores_under_another_strategy_and_mesh(tmp_path, other, shape, back):
    ours, theirs = adam_setup("zero", (2, 4)), adam_setup(other, shape)
    (saver, first), (restorer, _) = (theirs, ours) if back else (ours, theirs)
    with contextlib.closing(Checkpointer(tmp_path)) as checkpoints:
        state, _ = saver.step(place(saver, first), jax.device_put(tiny.batch(0, 48), comm.split_by_example(saver.mesh)))
        saved = saver.layout.whole(state)
        kept = jax.device_get(saved)
        checkpoints.save(1, saved, extra={})
        like = abstract_state(restorer.layout.whole_shapes, restorer.mesh)
        restored = checkpoints.restore(1, like).state
    carried = restorer.layout.cut(restored)
    for field in ("step", "params", "stats", "optimizer", "average", "key"):
        got = jax.device_get(getattr(restorer.layout.whole(carried), field))
        assert_same_bits(got, getattr(kept, field))
    restorer.step(carried, jax.device_put(tiny.batch(1, 48), comm.split_by_example(restorer.mesh)))


# ---- Refusals ---------------------------------------------------------------------------------------------


def test_pmap_is_refused_with_the_way_out():
    with pytest.raises(InputError, match=r"mode=pmap does not go with strategy=zero.*use mode=shard_map"):
        prepare(config_of(mode="pmap"), grid((1, 8)), source=Digits().load("train"))


def test_shards_are_refused_in_another_mode():
    with pytest.raises(ValueError, match="'zero' carries shards: it takes mode 'shard_map'"):
        tiny.setup(tiny.cnn(), "zero", mode="pmap")
