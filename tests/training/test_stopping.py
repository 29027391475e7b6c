import signal
from concurrent.futures import ThreadPoolExecutor

import pytest

from jaxnet.training.stopping import StopSignal


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_from_that_step_on_and_is_named(number):
    with StopSignal() as stop:
        assert not stop.should_stop(1)
        assert stop.signal_name is None
        signal.raise_signal(number)
        assert stop.should_stop(2)
        assert stop.should_stop(3)
        assert stop.signal_name == number.name


def test_a_background_job_of_a_shell_does_not_stop_at_ctrl_c():
    """The shell has it ignore SIGINT, which reaches all that the shell has started."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with StopSignal() as stop:
            signal.raise_signal(signal.SIGINT)
            assert not stop.should_stop(1)
            signal.raise_signal(signal.SIGTERM)
            assert stop.should_stop(2)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_second_interrupt_does_not_wait():
    with StopSignal() as stop:
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        assert stop.should_stop(1)


def test_a_supervisor_may_repeat_itself_and_the_first_signal_names_the_stop():
    with StopSignal() as stop:
        for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGINT):
            signal.raise_signal(number)
        assert stop.signal_name == "SIGTERM"


def test_outside_the_main_thread_signals_are_left_to_the_program():
    """Python takes handlers in the main thread alone; a server may train in another."""

    def handlers():
        with StopSignal() as stop:
            return stop.should_stop(1), signal.getsignal(signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(handlers).result() == (False, before)


class Raised:
    """A flag that all ranks see at once."""

    def __init__(self, *others):
        self._others, self.own, self.closed = list(others), [], False

    def seen(self, raised):
        self.own.append(raised)
        return raised or self._others.pop(0)

    def close(self):
        self.closed = True


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_with_a_flag_a_signal_raises_it_and_the_flag_decides(number):
    flag = Raised(False)
    with StopSignal(flag) as stop:
        assert not stop.should_stop(1)
        signal.raise_signal(number)
        assert flag.own == [False]
        assert stop.should_stop(2)
        assert stop.should_stop(3)
        assert flag.own == [False, True]
        assert stop.signal_name == number.name
    assert flag.closed


def test_the_flag_of_another_stops_this_one():
    with StopSignal(Raised(False, True)) as stop:
        assert [stop.should_stop(step) for step in (1, 2)] == [False, True]
        assert stop.signal_name == "SIGTERM"


def test_after_an_error_nobody_is_waited_for():
    flag = Raised()
    with pytest.raises(ValueError, match="mine"), StopSignal(flag):
        raise ValueError("mine")
    assert not flag.closed


@pytest.mark.parametrize("error", [None, ValueError])
def test_the_handlers_before_are_restored(error):
    seen = []
    before = {number: signal.signal(number, lambda *_: seen.append(1)) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with pytest.raises(error) if error else StopSignal(), StopSignal() as stop:
            if error:
                raise error
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)
        assert seen == [1, 1]
        assert not stop.should_stop(1)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
