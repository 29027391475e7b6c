"""The round structure: everything once a round, backwards every other, the same on every process."""

import jax
import numpy as np

from jaxnet.comm import make_mesh
from jaxnet.cost.rounds import gathered, interleave, seconds_a_step, wait_for_all
from jaxnet.cost.steps import TimedProgram
from support.ranks import Ranks


def recorder(name, calls):
    def program(state, batch):
        calls.append(name)
        return state + 1, ()

    return TimedProgram(program, np.zeros(()), np.zeros(()))


def test_rounds_are_interleaved_and_turned():
    calls = []
    tasks = {name: recorder(name, calls) for name in "abc"}
    times = interleave(tasks, 3, 1)
    assert "".join(calls) == "abc" + "aabbcc" + "ccbbaa" + "aabbcc"  # of two in a row, the second is timed
    assert {name: len(values) for name, values in times.items()} == {"a": 3, "b": 3, "c": 3}
    assert all(task.state == 1 + 2 * 3 for task in tasks.values())


def test_a_task_is_called_on_its_own_state(monkeypatch):
    clock = iter([10.0, 18.0])
    monkeypatch.setattr("time.perf_counter", lambda: next(clock))
    task = recorder("a", [])
    assert seconds_a_step(task, 4) == 2.0
    assert task.state == 1 + 4


def test_at_most_sixteen_calls_are_in_flight():
    """Of 32, XLA:CPU's threads wait for each other for ever."""
    calls = [0]

    class State:
        def block_until_ready(self):
            calls.append(0)

    def program(state, batch):
        calls[-1] += 1
        return state, ()

    TimedProgram(program, State(), None).run(100)
    assert (sum(calls), max(calls)) == (100, 16)


def test_where_messages_cross_the_end_of_a_step_a_round_begins_and_ends_beside_another(monkeypatch):
    events = []

    class Ready:
        def __init__(self, name):
            self.name = name

        def block_until_ready(self):
            events.append(self.name)

    def program(state, batch):
        events.append("call")
        count = events.count("call")
        return Ready(f"state {count}"), Ready(f"metrics {count}")

    monkeypatch.setattr("time.perf_counter", lambda: events.append("clock") or 0.0)
    TimedProgram(program, Ready("state"), None, crosses=True).seconds(3)
    assert events == ["call", "metrics 1", "clock", *["call"] * 3, "metrics 4", "clock", "state 4"]


def test_one_process_gathers_from_itself():
    np.testing.assert_array_equal(gathered(np.array([1.0, 2.0])), [[1, 2]])
    wait_for_all()


def slow_and_fast(rank):
    """Rank 1 is told to be a thousand times slower; both must report its time."""
    make_mesh()

    def program(state, batch):
        for _ in range(1 if rank == 0 else 1000):
            state = jax.block_until_ready(state + 1)
        return state, ()

    return seconds_a_step(TimedProgram(program, jax.numpy.zeros(()), None), 2), gathered(
        np.array([float(rank)])
    ).ravel().tolist()


def test_a_round_is_as_long_as_its_slowest_process():
    with Ranks(slow_and_fast, 2) as ranks:
        (first, seen), (second, also_seen) = ranks.results()
    assert first == second
    assert seen == also_seen == [0.0, 1.0]
