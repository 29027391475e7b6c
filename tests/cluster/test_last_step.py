"""All stop after the same step: processes stand here for threads, and a dictionary for JAX's service."""

import threading

import pytest

from jaxnet.cluster import last_step
from jaxnet.cluster.last_step import LastStep


class Service:
    """What `LastStep` uses of `jaxnet.cluster.coordination`."""

    def __init__(self):
        self.values, self.changed = {}, threading.Condition()

    def republish(self, key, value):
        with self.changed:
            self.values[key] = value
            self.changed.notify_all()

    def read_all(self, folder):
        with self.changed:
            return {key.rsplit("/", 1)[1]: value for key, value in self.values.items() if key.startswith(f"{folder}/")}

    def await_value(self, key, seconds):
        with self.changed:
            return self.values[key] if self.changed.wait_for(lambda: key in self.values, seconds) else None


@pytest.fixture
def processes(monkeypatch):
    """`processes(asked...)`: one for each, which has asked so often; `told[i]` tells it to stop."""
    monkeypatch.setattr(last_step, "coordination", Service())
    monkeypatch.setattr(last_step, "_LOOK_SECONDS", 0.01)
    made = []

    def make(*asked):
        told = [threading.Event() for _ in asked]
        monkeypatch.setattr(last_step, "_created", iter([0] * len(asked)))
        made.extend(LastStep(index, len(asked), told[index].is_set) for index in range(len(asked)))
        for each, times in zip(made, asked, strict=True):
            assert not any(each.ask() for _ in range(times))
            each.start()
        return made, told

    yield make
    for each in made:
        each.close(well=False)
        each._thread.join()


def asked_until_the_last(each):
    while not each.ask():
        pass
    return each._asked


@pytest.mark.parametrize("first", [0, 1, 2])
def test_the_last_step_is_one_behind_the_furthest(processes, first):
    made, told = processes(3, 5, 4)
    told[first].set()
    for each in made:
        each._thread.join()
    assert [asked_until_the_last(each) for each in made] == [6, 6, 6]


def test_who_has_come_to_the_end_holds_nobody_who_is_told_later(processes):
    (first, second), told = processes(5, 4)
    first.close(well=True)
    told[1].set()
    second._thread.join()
    assert not second.ask(), "that was the step which the other has done too"


def test_process_0_that_is_told_does_not_wait_for_who_has_come_to_the_end(processes):
    (first, second), told = processes(4, 5)
    second.close(well=True)
    told[0].set()
    first._thread.join()
    assert not first.ask(), "that was the step which the other has done too"
    assert first.ask()
