"""The step gives the same training however it is mapped, cut and reduced."""

import functools

import jax
import numpy as np
import optax
import pytest

from jaxnet import comm
from jaxnet.models import network_options
from support import tiny

EXACT = [name for name, make in comm.STRATEGIES.items() if make().reducer and make().exact]
GLOBAL = {"norm_axes": ("host", "device")}


@pytest.fixture(scope="module")
def reference():
    """One device, the whole batch, XLA's own way."""
    return tiny.run(tiny.setup(tiny.cnn(norm=True), "xla", (1, 1), mode="jit"))


def assert_same(run, reference, tolerance=2e-5):
    losses, state = run
    np.testing.assert_allclose(losses, reference[0], rtol=tolerance)
    for path, leaf in jax.tree.leaves_with_path((state.params, state.stats)):
        wanted = dict(jax.tree.leaves_with_path((reference[1].params, reference[1].stats)))[path]
        np.testing.assert_allclose(leaf, wanted, atol=50 * tolerance, err_msg=str(path))


@pytest.mark.parametrize("strategy", EXACT)
def test_every_exact_strategy_trains_as_one_device_does(strategy, reference):
    assert_same(tiny.run(tiny.setup(tiny.cnn(norm=True, **GLOBAL), strategy, (2, 4))), reference)


@pytest.mark.parametrize(
    ("strategy", "shape"),
    [
        *(("hierarchical", (1, 8)), ("hierarchical", (8, 1)), ("ddp", (8, 1)), ("zero", (1, 8))),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in [("ddp", (1, 8)), ("zero", (8, 1))]),
    ],
    ids=str,
)
def test_one_host_or_one_device_a_host_changes_nothing(strategy, shape, reference):
    assert_same(tiny.run(tiny.setup(tiny.cnn(norm=True, **GLOBAL), strategy, shape)), reference)


def test_jit_mode_agrees(reference):
    assert_same(tiny.run(tiny.setup(tiny.cnn(norm=True), "xla", (2, 4), mode="jit")), reference)


@pytest.mark.parametrize("strategy", ["ddp", "hierarchical"])
def test_pmap_mode_agrees(strategy, reference):
    assert_same(tiny.run(tiny.setup(tiny.cnn(norm=True, **GLOBAL), strategy, mode="pmap")), reference)


def test_pmap_and_shard_map_agree_with_local_batch_norm():
    mapped = tiny.run(tiny.setup(tiny.cnn(norm=True)))
    assert_same(tiny.run(tiny.setup(tiny.cnn(norm=True), mode="pmap")), mapped)


@functools.cache
def residual(**fields):
    """Losses of a network in residual blocks."""
    return tiny.run(tiny.setup(tiny.resnet(**fields)))[0]


def test_local_batch_norm_differs_from_global():
    local, shared = residual(), residual(**GLOBAL)
    per_host = tiny.run(tiny.setup(tiny.resnet(norm_axes=("device",)), shape=(2, 4)))[0]
    assert abs(local[-1] - shared[-1]) > 1e-3
    assert abs(per_host[-1] - shared[-1]) > 1e-4
    assert abs(per_host[-1] - local[-1]) > 1e-4


@pytest.mark.parametrize("microbatches", [4, pytest.param(2, marks=pytest.mark.slow)])
def test_microbatches_change_nothing_but_memory(microbatches):
    whole = tiny.run(tiny.setup(tiny.cnn(), shape=(2, 2)))
    parts = tiny.run(tiny.setup(tiny.cnn(), shape=(2, 2), microbatches=microbatches))
    assert_same(parts, whole)


def test_microbatches_agree_between_modes_under_global_batch_norm():
    ours = tiny.run(tiny.setup(tiny.cnn(norm=True, **GLOBAL), shape=(2, 2), microbatches=2))
    xla = tiny.run(tiny.setup(tiny.cnn(norm=True), "xla", (2, 2), mode="jit", microbatches=2))
    assert_same(ours, xla)


def test_gradients_travel_once_a_step_whatever_the_microbatches():
    counts = []
    for microbatches in (1, 4):
        setup = tiny.setup(tiny.cnn(), "flat", (2, 2), microbatches=microbatches)
        hlo = setup.step.lower(setup.state, tiny.batch(0)).compile().as_text()
        counts.append(len(comm.verify(hlo, [], setup.mesh.shape).found))
    assert counts == [2, 2]  # the gradients, and the metrics


def test_moving_average_follows_its_formula():
    setup = tiny.setup(tiny.cnn(), average_decay=0.15)
    average = jax.device_get(setup.state.params)
    state = setup.state
    for index in range(3):
        state, _ = setup.step(state, jax.device_put(tiny.batch(index), comm.split_by_example(setup.mesh)))
        decay = (0.1, 0.15, 0.15)[index]  # of 1/10, 2/11, 3/12, and at most 0.15
        average = jax.tree.map(lambda a, p, d=decay: d * a + (1 - d) * np.asarray(p), average, state.params)
    for ours, wanted in zip(jax.tree.leaves(state.average), jax.tree.leaves(average), strict=True):
        np.testing.assert_allclose(ours, wanted, atol=1e-6)


def test_clipping_sees_the_gradient_of_the_global_batch(reference):
    def clipped(shape):
        return tiny.setup(
            tiny.cnn(norm=True, **GLOBAL),
            shape=shape,
            optimizer=optax.chain(optax.clip_by_global_norm(0.05), optax.sgd(1.0)),
        )

    one, many = tiny.run(clipped((1, 1))), tiny.run(clipped((2, 4)))
    assert_same(many, one)
    assert abs(one[0][-1] - reference[0][-1]) > 1e-3


def test_the_same_run_twice_gives_the_same_bits():
    first, second = (tiny.run(tiny.setup(tiny.resnet(), shape=(2, 4)))[1] for _ in range(2))
    for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
        np.testing.assert_array_equal(a, b)


def test_nothing_is_traced_twice_and_the_state_is_donated():
    setup = tiny.setup(tiny.cnn())
    state = setup.state
    cache = []
    for index in range(3):
        before = state
        state, _ = setup.step(state, jax.device_put(tiny.batch(index), comm.split_by_example(setup.mesh)))
        cache.append(setup.step._cache_size())
        assert all(leaf.is_deleted() for leaf in jax.tree.leaves(before))
    assert cache == [1, 1, 1]


def test_bf16_computes_in_bf16_and_keeps_float32_parameters():
    setup = tiny.setup(tiny.resnet(dtype="bfloat16"))
    assert "bf16" in setup.step.lower(setup.state, tiny.batch(0)).as_text()
    losses, state = tiny.run(setup)
    assert all(leaf.dtype == np.float32 for leaf in jax.tree.leaves((state.params, state.stats)))
    np.testing.assert_allclose(losses, residual(), rtol=0.05)


@pytest.mark.parametrize(("strategy", "mode"), [("xla", "shard_map"), ("ddp", "jit")])
def test_a_strategy_that_does_not_go_with_the_mode_is_refused(strategy, mode):
    with pytest.raises(ValueError, match=f"mode {mode!r} does not go with strategy {strategy!r}"):
        tiny.setup(tiny.cnn(), strategy, mode=mode)


@pytest.mark.parametrize("platform", ["cpu", "gpu", "tpu"])
def test_options_of_plans_disable_the_passes_that_those_of_networks_do(platform):
    """A step has the options of both, and one list of passes."""
    of_networks, of_plans = network_options(platform), comm.compiler_options(platform)
    passes = "xla_disable_hlo_passes"
    assert set(of_networks) & set(of_plans) <= {passes}
    assert set(of_networks.get(passes, "").split(",")) <= set(of_plans.get(passes, "").split(","))
