"""The schedule 'local': every device trains by itself, and takes the mean of all at the end of each round."""

import contextlib
import functools
import re
from dataclasses import replace

import jax
import numpy as np
import optax
import pytest

from configs import digits
from jaxnet import comm
from jaxnet.checkpoints import Checkpointer
from jaxnet.comm.strategies import bmuf, local_sgd, post_local_sgd
from jaxnet.data import Digits
from jaxnet.errors import InputError
from jaxnet.models import CNN
from jaxnet.parallel.state import abstract_state
from jaxnet.training.prepare import prepare
from support import tiny
from support.checkpointing import assert_same_bits

LOCAL = [name for name, make in comm.STRATEGIES.items() if make().when == "local"]
SGD, MOMENTUM = optax.sgd(0.1), optax.sgd(0.1, 0.9)
ADAM = optax.chain(optax.clip_by_global_norm(0.5), optax.adamw(3e-3))
LOCAL3, POST3, BMUF3 = local_sgd(3), post_local_sgd(3, 3), bmuf(3)
BY_NAME = pytest.mark.parametrize("strategy", [LOCAL3, POST3, BMUF3], ids=lambda strategy: strategy.name)
SIX = (3, 2)


@functools.cache
def setup(strategy, shape=SIX, optimizer=SGD, average_decay=0.9):
    """The step, compiled once for all tests, and its first state on the host."""
    model = tiny.cnn(norm=True, smooth=True, dropout=0.0)
    made = tiny.setup(model, strategy, shape, optimizer=optimizer, average_decay=average_decay)
    return made._replace(state=jax.device_get(made.state))


def taken(made, batches, state=None):
    """The state after these batches, on the mesh, and the losses."""
    state, losses = jax.device_put(made.state, made.layout.shardings) if state is None else state, []
    for batch in batches:
        state, metrics = made.step(state, jax.device_put(batch, comm.split_by_example(made.mesh)))
        losses.append(float(metrics["loss"]))
    return state, losses


def batches(count, size=48, first=0):
    return [tiny.batch(step, size) for step in range(first, first + count)]


def whole(made, state):
    return jax.device_get(made.layout.whole(state))


def assert_close(got, wanted, atol=2e-5):
    for field in ("params", "stats"):
        leaves = (jax.tree.leaves(getattr(state, field)) for state in (got, wanted))
        for a, b in zip(*leaves, strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-4, atol=atol, err_msg=field)


def copies(tree):
    """Each device's own leaves: [devices, ...]."""
    return [np.asarray(leaf).reshape(-1, *leaf.shape[2:]) for leaf in jax.tree.leaves(tree)]


def all_equal(tree):
    return all((leaf == leaf[:1]).all() for leaf in copies(tree))


# ---- Laws -------------------------------------------------------------------------------------------------


def test_rounds_of_one_step_are_synchronous_training():
    """For any optimizer that is linear in the gradients, momentum and all."""
    ours, flat = (setup(strategy, SIX, MOMENTUM) for strategy in (local_sgd(every=1), "flat"))
    (got, losses), (wanted, reference) = (taken(made, batches(6)) for made in (ours, flat))
    np.testing.assert_allclose(losses, reference, rtol=2e-5)
    assert_close(whole(ours, got), jax.device_get(wanted))


def test_devices_that_see_the_same_train_as_one():
    """Whatever the optimizer, clipping included."""
    alone = batches(5, 4)
    alike = [{key: np.concatenate([value] * 6) for key, value in batch.items()} for batch in alone]
    ours, one = setup(LOCAL3, SIX, ADAM), setup("flat", (1, 1), ADAM)
    (got, losses), (wanted, reference) = taken(ours, alike), taken(one, alone)
    np.testing.assert_allclose(losses, reference, rtol=2e-5)
    assert_close(whole(ours, got), jax.device_get(wanted), atol=2e-4)


@BY_NAME
def test_all_devices_hold_the_same_bits_after_a_round_and_only_then(strategy):  # L3
    made, state = setup(strategy), None
    for step in range(9):
        state, _ = taken(made, batches(1, first=step), state)
        together = (step + 1) % 3 == 0 or step < strategy.schedule.synchronous_steps
        assert all_equal((state.params, state.stats)) == together
        assert all_equal(state.average)


def test_a_run_of_synchronous_steps_alone_is_synchronous_training():
    """Whatever the optimizer."""
    ours, flat = (setup(strategy, SIX, ADAM) for strategy in (post_local_sgd(4, 8), "flat"))
    (got, losses), (wanted, reference) = (taken(made, batches(6)) for made in (ours, flat))
    np.testing.assert_allclose(losses, reference, rtol=2e-5)
    got, wanted = whole(ours, got), jax.device_get(wanted)
    assert_close(got, wanted, atol=2e-4)
    assert_close(got._replace(params=got.average), wanted._replace(params=wanted.average), atol=2e-4)


def test_a_filter_begins_with_the_last_synchronous_step():
    """What the steps before have moved is no part of the first round's change."""
    strategy = comm.Strategy(bmuf(3).reducer, replace(bmuf(3).schedule, synchronous_steps=3))
    made = setup(strategy)
    state, _ = taken(made, batches(3))
    assert_same_bits(jax.device_get(state.optimizer.anchor), jax.device_get(state.params))
    plain, begun = setup(BMUF3), setup(BMUF3)
    first = whole(made, state)
    like = whole(plain, taken(plain, [])[0])
    fresh = like._replace(step=first.step, params=first.params, stats=first.stats, average=first.average)
    fresh = fresh._replace(optimizer=fresh.optimizer._replace(anchor=first.params))
    got = whole(made, taken(made, batches(3, first=3), state)[0])
    wanted = whole(begun, taken(begun, batches(3, first=3), begun.layout.cut(placed(fresh, begun)))[0])
    assert_close(got, wanted)


def placed(state, made):
    return tiny.placed(state, made.layout, made.mesh)


def test_a_filter_that_remembers_nothing_is_local_sgd():
    ours, plain = setup(bmuf(3, block_momentum=0.0, block_rate=1.0)), setup(LOCAL3)
    (got, losses), (wanted, reference) = (taken(made, batches(7)) for made in (ours, plain))
    np.testing.assert_allclose(losses, reference, rtol=2e-5)
    assert_close(whole(ours, got), whole(plain, wanted))


# ---- A plain, slow reference: one device after the other, means in NumPy -------------------------------------


def by_hand(optimizer, devices, rounds, every, block=None):
    """The state after `rounds` of each device alone on its share of every batch."""
    one = setup("flat", (1, 1), optimizer)
    first = one.state
    states, anchor, delta = [first] * devices, first.params, jax.tree.map(np.zeros_like, first.params)
    shares = [
        [{k: np.split(v, devices)[d] for k, v in b.items()} for b in batches(rounds * every)] for d in range(devices)
    ]
    for start in range(0, rounds * every, every):
        for device in range(devices):
            state = jax.device_put(states[device], one.layout.shardings)
            states[device] = jax.device_get(taken(one, shares[device][start : start + every], state)[0])
        mean = lambda *leaves: np.mean(leaves, 0, dtype=np.float64).astype(np.float32)  # noqa: E731
        params = jax.tree.map(mean, *(state.params for state in states))
        stats = jax.tree.map(mean, *(state.stats for state in states))
        if block is not None:
            delta = jax.tree.map(lambda d, p, a: block[0] * d + block[1] * (p - a), delta, params, anchor)
            params = anchor = jax.tree.map(np.add, anchor, delta)
        states = [state._replace(params=params, stats=stats) for state in states]
    return states[0]


@pytest.mark.parametrize(
    ("strategy", "optimizer", "block"),
    [
        (LOCAL3, SGD, None),
        (BMUF3, SGD, (1 - 1 / 6, 1.0)),
        (bmuf(3, block_momentum=0.5, block_rate=0.8), MOMENTUM, (0.5, 0.8)),
    ],
    ids=["local_sgd", "bmuf", "bmuf_of_other_rates_with_momentum"],
)
def test_three_rounds_are_those_of_devices_that_train_apart(strategy, optimizer, block):
    made = setup(strategy, SIX, optimizer)
    got, _ = taken(made, batches(9))
    assert_close(whole(made, got), by_hand(optimizer, 6, 3, 3, block), atol=5e-5)


def test_the_moving_average_follows_the_means_of_rounds():
    made = setup(LOCAL3)
    wanted, state = jax.tree.map(lambda leaf: leaf[0, 0], made.state.params), None
    for step in range(7):
        state, _ = taken(made, batches(1, first=step), state)
        if (step + 1) % 3 == 0:
            params = whole(made, state).params
            kept = ((1 + step) / (10 + step)) ** 3
            wanted = jax.tree.map(lambda a, p, kept=kept: kept * a + (1 - kept) * p, wanted, params)
        for a, b in zip(jax.tree.leaves(whole(made, state).average), jax.tree.leaves(wanted), strict=True):
            np.testing.assert_allclose(a, b, atol=1e-6)


# ---- What travels -------------------------------------------------------------------------------------------

COLLECTIVE = re.compile(r" (?:all-reduce|reduce-scatter|all-gather|all-to-all|collective-permute)(?:-start)?\(")


def outside_of_branches(hlo):
    """Collectives of a program that are in no branch of a conditional: which every step sends."""
    branches = {
        name.lstrip("%") for names in re.findall(r"branch_computations=\{([^}]*)\}", hlo) for name in names.split(", ")
    }
    computation, found = "", []
    for line in hlo.splitlines():
        if header := re.match(r"^\s*(?:ENTRY )?%?([\w.\-]+) \(.*\{$", line):
            computation = header[1]
        elif COLLECTIVE.search(line) and computation not in branches:
            found.append(line)
    return found


def prepared(config, shape=SIX):
    mesh = comm.make_mesh(shape[0], jax.devices()[: shape[0] * shape[1]])
    return prepare(config, mesh, source=Digits().load("train")), mesh


@functools.cache
def program(strategy, shape=SIX):
    """The experiment, its mesh and its compiled step."""
    experiment, mesh = prepared(config_of(strategy), shape)
    return (
        experiment,
        mesh,
        experiment.step.lower(experiment.layout.shapes, experiment.batch_shapes).compile().as_text(),
    )


def config_of(strategy, **changes):
    model = CNN(10, widths=(4, 8), hidden=16, norm=True)
    size = {"batch_size": 48, "eval_batch_size": 48, "average_decay": 0.9}
    return replace(digits.get_config(), model=model, strategy=strategy, **size, **changes)


@pytest.mark.parametrize("name", LOCAL)
def test_a_step_within_a_round_sends_nothing_at_all(name):
    _, _, hlo = program(name)
    assert COLLECTIVE.search(hlo)
    assert outside_of_branches(hlo) == []


def test_what_every_step_sends_would_be_noticed():
    assert outside_of_branches(program("flat")[2])


@pytest.mark.parametrize("name", LOCAL)
def test_the_step_holds_the_planned_collectives_and_no_others(name):  # L6
    experiment, mesh, hlo = program(name)
    check = comm.verify(hlo, experiment.sends.collectives, mesh.shape)
    assert check.ok, check.explain()
    assert not check.extra
    assert len(check.found) == (6 if name == "post_local_sgd" else 3)
    text = str(replace(experiment.plan, check=check))
    assert "the mean of the parameters every 8 steps" in text
    assert "bytes a step in the mean over host" in text


def test_one_device_sends_nothing():  # L4
    experiment, mesh, hlo = program("post_local_sgd", (1, 1))
    assert (experiment.sends.collectives, comm.verify(hlo, [], mesh.shape).found) == ((), ())
    assert experiment.plan.wire_bytes_per_step == 0


def test_bytes_are_means_over_the_steps_of_the_run():
    experiments = {name: prepared(config_of(name, epochs=20)) for name in ("hierarchical", *LOCAL)}
    sent = {name: given[0].plan.wire_bytes_per_step for name, given in experiments.items()}
    assert sent["local_sgd"] == sent["bmuf"] == pytest.approx(sent["hierarchical"] / 8, rel=0.01)
    early = 200 / experiments["post_local_sgd"][0].total_steps
    assert sent["post_local_sgd"] == pytest.approx(sent["hierarchical"] * (early + (1 - early) / 8), rel=0.01)


def test_the_report_names_what_travels():
    experiment, _ = prepared(config_of("local_sgd"))
    [bucket] = experiment.plan.as_json()["buckets"]
    assert bucket["leaves"][0].startswith("params/")
    assert bucket["leaves"][-1].startswith("metrics/")
    floats = sum(leaf.size for _, leaf in experiment.sends.leaves)
    assert bucket["elements"] == floats


def test_nothing_is_traced_twice_and_the_state_is_donated():  # L8
    made, state = setup(BMUF3), None
    state, _ = taken(made, batches(1))
    for index in range(1, 4):
        before = state
        state, _ = taken(made, batches(1, first=index), state)
        assert made.step._cache_size() == 1
        assert all(leaf.is_deleted() for leaf in jax.tree.leaves(before))


def test_the_same_run_twice_gives_the_same_bits():  # L9
    made = setup(BMUF3)
    assert_same_bits(*(whole(made, taken(made, batches(7))[0]) for _ in range(2)))


# ---- Checkpoints --------------------------------------------------------------------------------------------


def test_a_whole_state_is_each_copy_where_copies_are_equal_and_their_mean_elsewhere():
    made, state = setup(LOCAL3), None
    for step in range(4):
        state, _ = taken(made, batches(1, first=step), state)
        before = jax.device_get(state)
        got = whole(made, state)
        assert_same_bits(jax.device_get(state), before)
        for leaf, own in zip(
            jax.tree.leaves((got.params, got.stats)), copies((state.params, state.stats)), strict=True
        ):
            np.testing.assert_allclose(leaf, own.mean(0), atol=1e-6)
            assert step != 2 or (leaf == own[0]).all()
        evaluated = jax.device_get(made.layout.evaluated(state))
        assert_same_bits(evaluated, (got.average, got.stats))


def test_a_schedule_goes_on_from_the_copy_that_skipped_fewest_steps():
    made = setup(LOCAL3, optimizer=optax.chain(optax.sgd(0.1), optax.scale_by_schedule(lambda count: 1.0)))
    state, _ = taken(made, batches(1))
    leaves, tree = jax.tree.flatten(state.optimizer)
    assert [leaf.dtype for leaf in leaves] == ["int32"]
    behind = jax.device_put(leaves[0] - (np.arange(6, dtype=np.int32).reshape(3, 2) == 0), leaves[0].sharding)
    [count] = jax.tree.leaves(whole(made, state._replace(optimizer=tree.unflatten([behind]))).optimizer)
    assert count == 1


def resumed(tmp_path, saver, restorer, at, steps):
    """The last state of a run that is saved after `at` steps and continued from there."""
    state, _ = taken(saver, batches(at))
    with contextlib.closing(Checkpointer(tmp_path)) as checkpoints:
        checkpoints.save(at, saver.layout.whole(state), extra={})
        like = abstract_state(restorer.layout.whole_shapes, restorer.mesh)
        restored = restorer.layout.cut(checkpoints.restore(at, like).state)
    return jax.device_get(restorer.layout.whole(taken(restorer, batches(steps - at, first=at), restored)[0]))


@pytest.mark.parametrize(
    ("strategy", "optimizer"),
    [(LOCAL3, SGD), (POST3, SGD), (BMUF3, SGD), (local_sgd(3, with_optimizer=True), ADAM)],
    ids=["local_sgd", "post_local_sgd", "bmuf", "local_sgd_with_adam"],
)
def test_a_run_resumed_at_the_end_of_a_round_is_the_unbroken_one(tmp_path, strategy, optimizer):
    made = setup(strategy, SIX, optimizer)
    assert_same_bits(resumed(tmp_path, made, made, 6, 11), whole(made, taken(made, batches(11))[0]))


def test_a_run_resumed_within_a_round_continues_from_the_mean(tmp_path):
    made = setup(LOCAL3)
    got, wanted = resumed(tmp_path, made, made, 5, 6), whole(made, taken(made, batches(6))[0])
    leaves = zip(jax.tree.leaves(got.params), jax.tree.leaves(wanted.params), strict=True)
    gaps = [np.abs(a - b).max() for a, b in leaves]
    assert 0 < max(gaps) < 1e-2


@pytest.mark.parametrize("back", [False, True], ids=["from_local", "to_local"])
def test_a_checkpoint_restores_under_another_strategy_and_mesh(tmp_path, back):
    ours, theirs = setup(LOCAL3), setup("zero", (2, 2))
    saver, restorer = (theirs, ours) if back else (ours, theirs)
    assert resumed(tmp_path, saver, restorer, 2, 4).step == 4


# ---- Refusals -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LOCAL)
@pytest.mark.parametrize("mode", ["pmap", "pieces", "jit"])
def test_other_modes_are_refused_with_the_way_out(name, mode):
    with pytest.raises(InputError, match=rf"mode={mode} does not go with strategy={name}.*(mode=shard_map|mode=auto)"):
        prepare(config_of(name, mode=mode), comm.make_mesh(1), source=Digits().load("train"))


@pytest.mark.parametrize("given", [{"block_momentum": 2.0}, {"block_momentum": -0.1}, {"block_rate": 0.0}])
def test_a_filter_that_would_grow_without_end_is_refused(given):
    with pytest.raises(ValueError, match=r"block filtering: momentum must be at least 0 and below 1, or none"):
        bmuf(3, **given)


def test_a_step_in_another_mode_is_refused():
    with pytest.raises(ValueError, match="gives each device parameters of its own: it takes mode 'shard_map'"):
        tiny.setup(tiny.cnn(), "local_sgd", mode="pmap")


@pytest.mark.parametrize(
    ("every", "synchronous", "said"),
    [
        (0, 0, "every must be at least 1, got 0"),
        (8, 12, "synchronous_steps must be 0 or a multiple of every.*got every=8, synchronous_steps=12"),
        (8, -8, "synchronous_steps must be 0 or a multiple of every.*got every=8, synchronous_steps=-8"),
    ],
)
def test_rounds_end_at_multiples(every, synchronous, said):
    with pytest.raises(ValueError, match=said):
        post_local_sgd(every, synchronous)
