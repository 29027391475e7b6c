"""What the watchdog measures, and whom it names."""

import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import pytest

from jaxnet.training.compile_cache import compile_cache
from jaxnet.training.watchdog import Watchdog, WatchdogLimits, _is_compiling, named_missing


def seconds(monkeypatch, *times):
    clock = iter(times)
    monkeypatch.setattr("jaxnet.training.watchdog.time.monotonic", lambda: next(clock))


def test_the_limit_is_a_multiple_of_the_median_of_steps_without_what_came_between(monkeypatch):
    watchdog = Watchdog(WatchdogLimits(factor=3, floor_seconds=2, other_seconds=50))
    assert watchdog._stand == ("start-up", 0, 50, False)
    seconds(monkeypatch, *range(10), 10, 110, 111)
    for step in range(5):
        watchdog.stepped(step)
        assert watchdog._stand.limit == 50  # too few to know
    for step in range(5, 10):
        watchdog.stepped(step)
        assert watchdog._stand == (f"step {step + 1}", step, 3, False)
    before = watchdog._stand
    with watchdog.pause("an evaluation"):
        assert watchdog._stand == ("an evaluation", 9, 50, False)
    assert watchdog._stand == before
    assert watchdog._stand is not before
    watchdog.stepped(10)
    assert max(watchdog._seconds) == 2  # 9 to 111, less the 100 of the evaluation


def test_the_limit_is_at_least_the_floor(monkeypatch):
    watchdog = Watchdog(WatchdogLimits(factor=3, floor_seconds=20))
    seconds(monkeypatch, *range(10))
    for step in range(10):
        watchdog.stepped(step)
    assert watchdog._stand.limit == 20


def test_steps_are_noted_once_they_are_done():
    noted = []
    watchdog = Watchdog(WatchdogLimits(), noted.append)
    for step in range(21, 26):
        watchdog.stepped(step)
    watchdog.on_end(25)
    assert noted == [21, 22, 23, 25]


def test_no_step_no_note():
    noted = []
    Watchdog(WatchdogLimits(), noted.append).on_end(60)
    assert noted == []


def test_jax_compiles_where_the_watchdog_looks():
    found = []

    def compiles():
        sys.setprofile(lambda *_: found.append(_is_compiling()))
        try:
            jax.jit(lambda x: x * 3 + 1)(jnp.ones(3))
        finally:
            sys.setprofile(None)

    compiles()
    assert any(found)
    found.clear()
    with ThreadPoolExecutor(1) as pool:  # as a run compiles its step
        pool.submit(compiles).result()
    assert any(found)
    assert not _is_compiling()


def test_who_waits_for_a_program_of_another_process_does_not_compile(tmp_path, monkeypatch):
    begins, goes_on = threading.Event(), threading.Event()

    def wait(*_):
        begins.set()
        assert goes_on.wait(60)

    monkeypatch.setattr("fcntl.flock", wait)
    with compile_cache(tmp_path), ThreadPoolExecutor(1) as pool:
        done = pool.submit(lambda: jax.jit(lambda x: x * 5 + 1).lower(1.0).compile())
        assert begins.wait(60)
        assert not _is_compiling()
        goes_on.set()
        done.result()


@pytest.mark.parametrize(
    ("before", "after", "named"),
    [
        ({}, {}, "rank 1 has not been heard of; rank 2 has not been heard of"),
        ({"1": "3 9 step 10", "2": "3 9 step 10"}, {"1": "5 9 step 10", "2": "3 9 step 10"}, "rank 2 is silent"),
        ({"1": "3 7 step 8", "2": "3 9 step 10"}, {"1": "5 7 step 8", "2": "5 9 step 10"}, "rank 1 is still in step 8"),
        ({"1": "3 9 step 10", "2": "3 9 step 10"}, {"1": "5 9 step 10", "2": "5 9 step 10"}, "all ranks are alive"),
        ({"1": "3 9 compiling", "2": "3 9 step 10"}, {"1": "5 9 compiling", "2": "5 9 step 10"}, None),
        ({"1": "3 9 left", "2": "3 9 step 10"}, {"1": "3 9 left", "2": "5 9 step 10"}, "rank 1 has left"),
        ({"1": "3 9 compiling", "2": "3 9 step 10"}, {"1": "3 9 compiling", "2": "5 9 step 10"}, "rank 1 is silent"),
    ],
)
def test_who_is_missing(before, after, named):
    got = named_missing(before, after, 0, 3, 9)
    assert (got is None) if named is None else got.startswith(named)
