"""PowerSGD: exact where the sum has a low rank; elsewhere nothing is lost over the steps; few bytes."""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax
from jax.sharding import PartitionSpec as P

from jaxnet import comm
from jaxnet.comm import AXES, MiB, all_reduce, bucketed, powersgd, scattered
from jaxnet.comm.powersgd import PowerSGDState
from support import laws
from support.laws import PER_DEVICE, Trees, run_reducer, trees

RANK, STEPS = 2, 3
TWO_LEVEL = scattered("device", all_reduce("host"))
REDUCERS = {
    "flat": powersgd(RANK, bucketed(all_reduce(*AXES), 100), factors=all_reduce(*AXES)),
    "hierarchical": powersgd(RANK, bucketed(TWO_LEVEL, 100), factors=TWO_LEVEL),
}
SHAPES = {"kernel": (3, 3, 4, 20), "bias": (20,), "dense": (24, 18), "small": (4, 4), "scalar": (), "empty": (0, 9)}
MATRICES = ("dense", "kernel")  # the others are too small to gain
MESHES = [(1, 8), (2, 4), (4, 2), (3, 2), (1, 1)]
every_mesh = pytest.mark.parametrize("shape", MESHES, ids=lambda shape: "x".join(map(str, shape)))
every_reducer = pytest.mark.parametrize("reducer", REDUCERS.values(), ids=REDUCERS)


def grid(shape):
    return comm.make_mesh(shape[0], jax.devices()[: shape[0] * shape[1]])


def gradients(shape, seed=0):
    draw = np.random.RandomState(seed)
    return {name: draw.standard_normal((*shape, *dims)).astype(np.float32) for name, dims in SHAPES.items()}


def total(values):
    return {name: value.sum((0, 1), dtype=np.float64) for name, value in values.items()}


class Trial(NamedTuple):
    """Three steps on one mesh."""

    given: list[dict[str, np.ndarray]]
    sums: list[dict[str, np.ndarray]]  # what each device got, [hosts, devices, ...]
    states: list[PowerSGDState]
    hlo: str


@functools.cache
def trial(reducer, shape):
    given = [gradients(shape, seed) for seed in range(STEPS)]
    compiled = laws.lowered(reducer, grid(shape), given[0], gather=True).compile()
    states, sums = [laws.stacked_state(reducer, grid(shape), given[0])], []
    for values in given:
        got, state = jax.device_get(compiled(values, states[-1]))
        sums.append(got)
        states.append(state)
    return Trial(given, sums, states, compiled.as_text())


def by_hand(given):
    """Plain reference in float64: [steps] of the devices' matrices to the sums' approximations."""
    left, guess = [0] * len(given[0]), None
    for index, messages in enumerate(given):
        shares = [message + residual for message, residual in zip(messages, left, strict=True)]
        if index == 0:
            guess = yield
        p, _ = np.linalg.qr(sum(share @ guess for share in shares))
        guess = sum(share.T @ p for share in shares)
        result = p @ guess.T
        left = [share - result / len(shares) for share in shares]
        yield result


@every_reducer
@pytest.mark.parametrize("name", MATRICES)
def test_equals_the_reference_in_plain_steps(reducer, name):
    run = trial(reducer, (2, 4))
    columns = SHAPES[name][-1]
    given = [values[name].reshape(8, -1, columns).astype(np.float64) for values in run.given]
    reference = by_hand(given)
    next(reference)
    wanted = [reference.send(run.states[0].guesses[MATRICES.index(name)][0, 0]), *reference]
    for got, want in zip(run.sums, wanted, strict=True):
        np.testing.assert_allclose(got[name][0, 0].reshape(-1, columns), want, atol=1e-3)


@every_mesh
@every_reducer
def test_every_device_ends_with_the_same_bits_and_the_same_guesses(reducer, shape):  # L3
    run = trial(reducer, shape)
    guesses = [state.guesses for state in run.states]
    for value in jax.tree.leaves((run.sums, guesses)):
        assert (value == value[:1, :1]).all()


@every_mesh
@every_reducer
def test_what_was_sent_and_what_is_left_is_what_was_given(reducer, shape):  # L7
    run = trial(reducer, shape)
    sent, given = ({name: sum(step[name] for step in steps) for name in SHAPES} for steps in (run.sums, run.given))
    for name in SHAPES:
        left = 0
        if name in MATRICES and shape != (1, 1):
            left = run.states[-1].residuals[MATRICES.index(name)].sum((0, 1)).reshape(SHAPES[name])
            assert np.abs(left).max() > 0.1
        np.testing.assert_allclose(sent[name][0, 0] + left, given[name].sum((0, 1)), atol=1e-4)


@every_mesh
@every_reducer
def test_the_compiled_program_sends_the_planned_factors_and_no_more(reducer, shape):  # L6
    shapes = {name: jax.ShapeDtypeStruct(dims, "float32") for name, dims in SHAPES.items()}
    planned = reducer.plan(shapes, grid(shape).shape).collectives
    check = comm.verify(trial(reducer, shape).hlo, planned, grid(shape).shape)
    assert check.ok, check.explain()
    assert not check.extra
    assert (len(planned) == 0) == (shape == (1, 1))


@every_mesh
@every_reducer
@settings(max_examples=3)
@given(rank=st.integers(0, RANK), seed=st.integers(0, 99))
def test_a_sum_of_low_rank_is_exact(reducer, shape, rank, seed):
    """Each device's own matrix has full rank; only their sum has not. Rank 0: all zeros."""
    draw = np.random.RandomState(seed)
    values = gradients(shape, seed)
    for name in MATRICES:
        whole = values[name].reshape(*shape, -1, SHAPES[name][-1])
        wanted = draw.standard_normal((whole.shape[2], rank)) @ draw.standard_normal((rank, whole.shape[3]))
        whole[-1, -1] += wanted - whole.sum((0, 1))
        values[name] = whole.reshape(*shape, *SHAPES[name])
    got, _ = run_reducer(reducer, grid(shape), values)
    for name, want in total(values).items():
        np.testing.assert_allclose(got[name], want, atol=2e-4)


@every_reducer
def test_one_device_alone_gets_its_own_gradients_and_keeps_no_residual(reducer):  # L4
    run = trial(reducer, (1, 1))
    assert comm.verify(run.hlo, (), {"host": 1, "device": 1}).found == ()
    for name in SHAPES:
        np.testing.assert_array_equal(run.sums[0][name], run.given[0][name])
    assert jax.tree.leaves(run.states) == []


@every_reducer
def test_the_state_keeps_its_type_and_init_needs_no_values(reducer):  # L8
    shapes = {name: jax.ShapeDtypeStruct(dims, "float32") for name, dims in SHAPES.items()}
    abstract = jax.eval_shape(lambda: reducer.init(shapes, grid((2, 4)).shape))
    for state in trial(reducer, (2, 4)).states:
        per_device = jax.tree.map(lambda s: jax.ShapeDtypeStruct(s.shape[2:], s.dtype), state)
        assert jax.tree.structure(per_device) == jax.tree.structure(abstract)
        assert jax.tree.leaves(per_device) == jax.tree.leaves(abstract)


@every_reducer
def test_same_run_twice_gives_the_same_bits(reducer):  # L9
    run, again = trial(reducer, (2, 4)), trial.__wrapped__(reducer, (2, 4))
    for a, b in zip(jax.tree.leaves(run[1:3]), jax.tree.leaves(again[1:3]), strict=True):
        np.testing.assert_array_equal(a, b)


def test_pmap_gives_the_same_sums():  # L10
    """As the step binds the axes: the devices by pmap, the host by vmap."""
    reducer, shape = REDUCERS["flat"], (1, 8)
    run = trial(reducer, shape)
    one_host = jax.vmap(reducer.reduce, axis_name="host", axis_size=1)
    step = jax.pmap(one_host, "device", in_axes=1, out_axes=1)
    sums, _ = jax.jit(step)(run.given[0], run.states[0])
    for name in SHAPES:
        np.testing.assert_allclose(sums[name], run.sums[0][name], atol=1e-4)


def too_small(tree):
    """Of matrices of at most 25 rows and 5 columns, those of 20 x 5 and more are worth two factors of rank 2."""
    return all(math.prod(shape) < 100 for shape in tree.shapes)


@settings(max_examples=10)
@given(tree=trees().filter(too_small))
def test_trees_without_a_matrix_worth_it_are_summed_as_they_are(tree: Trees):
    values = tree.values((2, 2))
    got, _ = run_reducer(REDUCERS["flat"], grid((2, 2)), values)
    for leaf, value in zip(jax.tree.leaves(got), jax.tree.leaves(values), strict=True):
        assert leaf.dtype == value.dtype
        np.testing.assert_array_equal(leaf, value.sum((0, 1)))


def test_narrow_matrices_keep_their_dtype():
    values = {"dense": np.ones((2, 2, 30, 30), np.float16)}
    got, _ = run_reducer(REDUCERS["flat"], grid((2, 2)), values)
    assert got["dense"].dtype == np.float16
    np.testing.assert_allclose(got["dense"], 4, rtol=1e-3)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_on_one_device_shows_on_all(bad):
    values = gradients((2, 2))
    values["dense"][1, 0, 3, 3] = bad
    got, _ = run_reducer(REDUCERS["flat"], grid((2, 2)), values)
    assert not np.isfinite(got["dense"]).any()
    assert np.isfinite(got["kernel"]).all()


def test_a_matrix_that_is_already_summed_is_refused_by_name():
    reducer, mesh = REDUCERS["flat"], grid((2, 4))
    state = jax.eval_shape(lambda: reducer.init({"w": jnp.ones((30, 30))}, mesh.shape))
    state = jax.tree.map(lambda s: np.zeros((2, 4, *s.shape), s.dtype), state)

    def step(grads, state):
        return reducer.reduce(grads, jax.tree.map(lambda s: s[0, 0], state))[0]

    wrong = jax.shard_map(step, mesh=mesh, in_specs=(P(), PER_DEVICE), out_specs=P())
    with pytest.raises(TypeError, match=r"leaf \['w'\] is already the same on every device.*pcast"):
        wrong({"w": jnp.ones((30, 30))}, state)


def test_a_rank_below_one_is_refused():
    with pytest.raises(ValueError, match="rank must be at least 1, got 0"):
        powersgd(0, bucketed(all_reduce("host"), None), all_reduce("host"))


def test_bytes_of_the_factors_not_of_the_matrix():
    shapes = {
        "kernel": jax.ShapeDtypeStruct((3, 3, 512, 512), "float32"),
        "bias": jax.ShapeDtypeStruct((512,), "float32"),
    }
    reducer = powersgd(4, bucketed(all_reduce(*AXES), 25 * MiB), factors=all_reduce(*AXES))
    sent = comm.wire_bytes_per_axis(reducer.plan(shapes, {"host": 2, "device": 1}).collectives)
    assert sent == {"host+device": 4 * (4 * (9 * 512 + 512) + 512)}


def distance_to_the_best(reducer, steps=400):
    """Least squares for a matrix of weights, whose gradient has full rank and differs by device."""
    draw = np.random.RandomState(0)
    x = draw.standard_normal((8, 40, 16)).astype(np.float32)
    y = (x @ draw.standard_normal((16, 16)) + 0.5 * draw.standard_normal((8, 40, 16))).astype(np.float32)
    best, *_ = np.linalg.lstsq(x.reshape(-1, 16), y.reshape(-1, 16), rcond=None)
    mesh = grid((2, 4))
    state = laws.stacked_state(reducer, mesh, np.zeros((2, 4, 16, 16), np.float32))

    def descend(x, y, state):
        def step(carry, index):
            weights, state = carry
            error = x[0] @ lax.pcast(weights, AXES, to="varying") - y[0]
            sums, state = reducer.reduce(x[0].T @ error / 40, state)
            return (weights - 0.2 * (1 - index / steps) * sums / 8, state), None

        start = jnp.zeros((16, 16)), jax.tree.map(lambda s: s[0, 0], state)
        return lax.scan(step, start, jnp.arange(steps))[0][0]

    mapped = jax.shard_map(descend, mesh=mesh, in_specs=(P(AXES), P(AXES), PER_DEVICE), out_specs=P())
    return float(np.linalg.norm(jax.jit(mapped)(x, y, state) - best))


def test_training_reaches_the_optimum():
    assert distance_to_the_best(REDUCERS["flat"]) < 1e-4


def test_training_stops_short_without_the_residual():
    """Why feedback is no option: the same with the residual dropped at every step."""
    whole = REDUCERS["flat"]

    def forgetful(grads, state):
        sums, after = whole.reduce(grads, state)
        return sums, after._replace(residuals=state.residuals)

    assert distance_to_the_best(whole._replace(reduce=forgetful)) > 1e-2
