"""Traces and programs that cannot be written are told, and training goes on."""

import jax
import pytest

from jaxnet.config.run import Profile
from jaxnet.training.observer import Dispatched
from jaxnet.training.profiling import ProfileWindow, write_programs
from support.disks import files_no_longer_than


class Program:
    def as_text(self):
        return "program"


def test_programs_are_written(tmp_path):
    write_programs(tmp_path, Program(), Program())
    assert {path.read_text() for path in (tmp_path / "hlo").iterdir()} == {"program"}


def test_of_programs_on_a_full_disk_no_half_is_left(tmp_path, caplog):
    with files_no_longer_than(3):
        write_programs(tmp_path, Program(), Program())
    assert list((tmp_path / "hlo").iterdir()) == []
    [record] = caplog.records
    expected = f"{tmp_path}/hlo cannot be written: File too large; training goes on without"
    assert record.getMessage() == expected


def test_a_trace_goes_on_where_the_run_goes_back(tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(jax.profiler, "start_trace", lambda path: calls.append("start"))
    monkeypatch.setattr(jax.profiler, "stop_trace", lambda: calls.append("stop"))
    window = ProfileWindow(Profile(start=1, steps=3), tmp_path, 0)
    for step in (0, 1, 2, 0, 1, 2, 3, 4):
        window.before_step(step)
        window.after_step(Dispatched(step + 1, None, {}, 0.0, 0.0))
    window.close()
    assert calls == ["start", "stop"]


@pytest.mark.parametrize("failing", ["start_trace", "stop_trace"])
def test_a_trace_that_fails_is_told_once_and_is_over(failing, tmp_path, monkeypatch, caplog):
    def fail(*given):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: no space\nand where")

    calls = []
    monkeypatch.setattr(jax.profiler, "start_trace", lambda path: None)
    monkeypatch.setattr(jax.profiler, "stop_trace", lambda: calls.append("stopped"))
    monkeypatch.setattr(jax.profiler, failing, lambda *given: (calls.append(failing), fail()))
    window = ProfileWindow(Profile(start=1, steps=2), tmp_path, 0)
    for step in range(4):
        window.before_step(step)
        window.after_step(Dispatched(step + 1, None, {}, 0.0, 0.0))
    window.close()
    assert calls == [failing]
    [record] = caplog.records
    expected = f"no trace in {tmp_path}/profile/process_0: RESOURCE_EXHAUSTED: no space; training goes on without"
    assert record.getMessage() == expected
