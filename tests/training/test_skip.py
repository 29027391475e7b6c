"""A step that is not finite changes nothing; a loss scale finds its way by that."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxnet.comm.strategies import local_sgd
from jaxnet.models import network_options
from jaxnet.parallel.device_step import (
    NOT_FINITE,
    SKIPPED,
    Skip,
    non_finite,
    non_finite_in,
    not_finite_names,
    update_by_sum,
)
from jaxnet.parallel.priority import unless_bad
from jaxnet.parallel.state import LossScale, TrainState, first_scale
from jaxnet.tasks.task import LossOutput
from support import poison
from support.checkpointing import assert_same_bits

SUMS = ["ddp", "hierarchical", "halving_doubling", "parameter_server", "zero", "s_caffe_ob"]
CODED = ["fp16", "bf16", "int8", "cntk_1bit", "mxnet_2bit", "top_k", "powersgd"]
WAYS = {
    **{name: (name, {}) for name in SUMS + CODED},
    "jit": ("xla", {"mode": "jit"}),
    "pmap": ("ddp", {"mode": "pmap", "shape": (1, 4)}),
    "pmap, int8": ("int8", {"mode": "pmap", "shape": (1, 4)}),
    "pieces": ("ddp", {"mode": "pieces", "shape": (1, 1)}),
    "microbatches": ("mxnet_2bit", {"microbatches": 2}),
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_one_poisoned_example_leaves_every_bit_as_it_was(way):
    """What the reducer remembers too. No codec swallows it, and the next step goes on."""
    strategy, options = way
    made = poison.setup(strategy, **options)
    state, metrics = made.step(made.state, poison.batch(made, 0))
    before = poison.held(state)
    assert float(metrics[SKIPPED]) == 0
    state, metrics = made.step(state, poison.batch(made, 1, bad=[6]))
    after = poison.held(state)
    assert (float(metrics[SKIPPED]), int(after.step)) == (1, 2)
    loss, *grads = np.asarray(metrics[NOT_FINITE]).tolist()
    assert loss
    assert any(grads)  # top_k sends but a few of them
    assert_same_bits(after._replace(step=()), before._replace(step=()))
    state, metrics = made.step(state, poison.batch(made, 2))
    assert float(metrics[SKIPPED]) == 0
    assert np.isfinite(metrics["loss"])
    assert not np.array_equal(poison.held(state).params["kernel"], before.params["kernel"])


@pytest.mark.parametrize("strategy", ["hierarchical", "zero", "int8"])
def test_a_step_that_is_finite_is_what_it_would_be_without_the_guard(strategy):
    with_guard, without = (poison.setup(strategy, skip=skip) for skip in (True, False))
    for seed in range(3):
        states = [made.step(made.state, poison.batch(made, seed))[0] for made in (with_guard, without)]
        with_guard, without = with_guard._replace(state=states[0]), without._replace(state=states[1])
    for got, wanted in zip(*map(jax.tree.leaves, map(poison.held, states)), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)


def test_without_the_guard_it_would_be_lost():
    made = poison.setup(skip=False)
    state, metrics = made.step(made.state, poison.batch(made, 0, bad=[0]))
    assert SKIPPED not in metrics
    assert not np.isfinite(poison.held(state).params["kernel"]).any()


def test_under_local_training_each_device_skips_by_itself():
    made = poison.setup(local_sgd(2), (1, 4))
    before = poison.held(made.state)
    state, _ = made.step(made.state, poison.batch(made, 0, bad=[5]))  # of the second device
    after = poison.held(state)
    moved = [
        not np.array_equal(a, b) for a, b in zip(after.params["kernel"][0], before.params["kernel"][0], strict=True)
    ]
    assert moved == [True, False, True, True]
    state, metrics = made.step(state, poison.batch(made, 1, bad=[0, 5]))  # a round ends
    assert float(metrics[SKIPPED]) == 0.5
    kernels = poison.held(state).params["kernel"][0]
    assert np.isfinite(kernels).all()
    assert all(np.array_equal(kernel, kernels[0]) for kernel in kernels)


def test_an_infinity_anywhere_is_found_and_named():
    grads = {"a": jnp.ones((3, 2)), "b": jnp.ones(4).at[2].set(-jnp.inf), "c": jnp.float16([60000.0, 60000.0])}
    found = non_finite({"loss": jnp.float32(1), "accuracy": jnp.float32(0)}, grads)
    names = not_finite_names(grads)
    assert [name for name, bad in zip(names, found.tolist(), strict=True) if bad] == ["the gradient of b"]


@pytest.mark.parametrize(
    "way", [WAYS["ddp"], WAYS["zero"], WAYS["jit"], WAYS["pieces"], ("priority", {"mode": "pieces", "shape": (1, 1)})]
)
def test_a_metric_that_is_not_finite_skips_nothing(monkeypatch, way):
    """Such as a ratio of which some examples have none; it counts for no gradient."""
    plain = poison.loss_of

    def loss_of(model, size):
        def loss_fn(*given):
            loss, (stats, metrics) = plain(model, size)(*given)
            return loss, LossOutput(stats, {**metrics, "ratio": jnp.float32(jnp.nan)})

        return loss_fn

    monkeypatch.setattr(poison, "loss_of", loss_of)
    strategy, options = way
    made = poison.setup(strategy, **options)
    before = poison.held(made.state)
    state, metrics = made.step(made.state, poison.batch(made, 0))
    assert float(metrics[SKIPPED]) == 0
    assert not np.asarray(metrics[NOT_FINITE]).any()
    assert np.isnan(metrics["ratio"])
    moved = jax.tree.map(lambda new, old: not np.array_equal(new, old), poison.held(state).params, before.params)
    assert all(jax.tree.leaves(moved))


def test_where_messages_cross_the_end_of_a_step_a_metric_skips_nothing_either():
    state = TrainState(jnp.int32(0), jnp.zeros(2), (), (), (), jax.random.key(0), None, None)
    new = state._replace(step=jnp.int32(1), params=jnp.ones(2))
    for loss, skipped in ((1.0, 0), (jnp.nan, 1)):
        told = {"loss": jnp.float32(loss), "ratio": jnp.float32(jnp.nan)}
        made, metrics = unless_bad(state, new, told, jnp.zeros(1))
        assert (float(metrics[SKIPPED]), made.params.tolist()) == (skipped, [1 - skipped] * 2)


# ---- float16 ----------------------------------------------------------------------------------------------


def test_the_scale_halves_at_once_and_doubles_after_2000_good_steps():
    step = jax.jit(LossScale.next)
    scale, good = first_scale(), jnp.array(True)
    assert step(scale, ~good) == (2.0**14, 0)
    assert step(LossScale(jnp.float32(8), jnp.int32(1998)), good) == (8, 1999)
    assert step(LossScale(jnp.float32(8), jnp.int32(1999)), good) == (16, 0)
    assert step(LossScale(jnp.float32(1), jnp.int32(7)), ~good) == (1, 0)
    assert step(LossScale(jnp.float32(2**24), jnp.int32(1999)), good) == (2**24, 0)


SCALED = {
    **{name: (name, {}) for name in ("hierarchical", "zero", "fp16", "int8", "mxnet_2bit")},
    "xla": ("xla", {"mode": "jit"}),
    "pmap": ("flat", {"mode": "pmap", "shape": (1, 4)}),
    "pieces": ("ddp", {"mode": "pieces", "shape": (1, 1)}),
}


@pytest.mark.parametrize("way", SCALED.values(), ids=SCALED)
def test_float16_trains_as_float32_does(way):
    """Gradients so small that float16 alone would keep a bit or two of them."""
    strategy, options = way
    runs = []
    for dtype in ("float32", "float16"):
        made, losses = poison.setup(strategy, dtype=dtype, size=2.0**-18, **options), []
        state = made.state
        for seed in range(6):
            state, metrics = made.step(state, poison.batch(made, seed))
            losses.append(float(metrics["loss"]))
        runs.append((losses, poison.held(state), float(metrics[SKIPPED])))
    np.testing.assert_allclose(runs[1][0], runs[0][0], rtol=0.02)
    assert runs[1][2] == 0
    assert float(runs[1][1].scale.scale) == 2**15


def test_an_overflow_skips_the_step_and_halves_the_scale_and_what_was_not_sent_keeps_its_units():
    made = poison.setup("int8", dtype="float16")
    state = made.state._replace(scale=made.state.scale._replace(scale=made.state.scale.scale * 2**9))
    residuals = []
    for _ in range(14):
        state, _ = made.step(state, poison.batch(made, 0))
        residuals.append(max(float(np.abs(leaf).max()) for leaf in jax.tree.leaves(poison.held(state).comm)))
    assert float(state.scale.scale) < 2**20
    assert residuals[0] == 0  # nothing of the overflow is remembered
    assert 0 < residuals[-1] < 0.1


@pytest.mark.parametrize("weighted", [False, True])
def test_a_guarded_update_works_in_place_and_the_mean_gradient_is_not_written_to_memory(weighted):
    """As in pieces, from messages: parameters are donated, and nothing of the size of a leaf comes beside them."""
    optimizer, side = optax.sgd(0.5), 256
    params = [jnp.ones((side, side)), jnp.ones((side, side))]
    state = TrainState(jnp.int32(0), params, (), optimizer.init(params), (), None, (), None)
    messages = [jnp.full(side * side, 4.0), jnp.full(side * side, 8.0)]
    metrics = {"loss": jnp.float32(1.0), **({"weight": jnp.float32(2.0)} if weighted else {})}

    def step(state, messages):
        sums = [message.reshape(side, side) for message in messages]
        update, told = update_by_sum(state, sums, 2, LossOutput((), metrics), optimizer, None)
        return Skip()(update, state, (), sums, told)

    compiled = jax.jit(step, donate_argnums=0).lower(state, messages).compile(network_options("cpu"))
    assert compiled.memory_analysis().temp_size_in_bytes < 4 * side * side / 8
    new, told = compiled(state, messages)
    by = 2.0 if weighted else 1.0
    assert [float(leaf[0, 0]) for leaf in new.params] == [1 - 0.5 * 2 / by, 1 - 0.5 * 4 / by]
    assert float(told["loss"]) == 1 / by


@pytest.mark.parametrize("place", [None, 0, 2, 3, 5])
def test_messages_tell_the_same_as_leaves(place):
    """Three leaves of two elements in messages of four and two: whichever is bad, or none."""
    values = np.arange(6.0, dtype=np.float32)
    if place is not None:
        values[place] = np.inf
    messages = [jnp.array(values[:4]), jnp.array(values[4:])]
    metrics = {"loss": jnp.float32(1.0)}

    def unpack(messages):
        return [messages[0][:2], messages[0][2:], messages[1]]

    told = jax.jit(lambda messages: non_finite_in(metrics, messages, unpack))(messages)
    assert told.tolist() == non_finite(metrics, unpack(messages)).tolist()
    assert told.sum() == (place is not None)
