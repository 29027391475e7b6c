"""A clean stop: a signal to any process ends training on all of them after the same step."""

import signal
import threading
from types import FrameType, TracebackType
from typing import Self

import jax

from jaxnet.cluster.last_step import LastStep
from jaxnet.cluster.mpi import Flag
from jaxnet.cluster.told import told


class StopSignal:
    """SIGTERM or SIGINT on any process makes all processes stop after the same step.

    A context manager. Ask `should_stop` once for every step, on all processes. A second SIGINT (Ctrl-C twice) raises
    KeyboardInterrupt at once. SIGINT that was ignored before stays ignored. The handlers before it come back on exit.
    Outside the main thread, to which Python gives all signals, it catches none.

    In one process the handlers set a flag. In several, `LastStep` agrees on a step that none has passed, which takes
    up to a second. With a `flag` of MPI's ranks the handlers raise that; then SIGUSR1 stops as well, which mpirun hands
    on to all ranks, and goes on waiting.

    >>> with StopSignal() as stop:
    ...     signal.raise_signal(signal.SIGTERM)
    ...     stop.should_stop(step=1), stop.signal_name
    (True, 'SIGTERM')
    """

    def __init__(self, flag: Flag | None = None) -> None:
        self.signal_name: str | None = None
        self._flag = flag
        self._interrupted = False
        self._stopping = False

    def __enter__(self) -> Self:
        self._several = jax.process_count() > 1
        if self._several:
            self._last_step = LastStep(jax.process_index(), jax.process_count(), self._is_told)
            self._last_step.start()
        self._before = {number: signal.signal(number, self._on_signal) for number in self._caught()}
        return self

    def _caught(self) -> list[signal.Signals]:
        if threading.current_thread() is not threading.main_thread():
            return []
        # A shell starts background jobs with SIGINT ignored: Ctrl-C, which reaches them, is then meant for others.
        caught = [] if signal.getsignal(signal.SIGINT) is signal.SIG_IGN else [signal.SIGINT]
        return [*caught, signal.SIGTERM, *([] if self._flag is None else [signal.SIGUSR1])]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            # None stands for a handler that was not installed from Python, which Python cannot restore.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        if self._flag is not None and error is None:
            self._flag.close()
        if self._several:
            self._last_step.close(well=error is None)

    @property
    def reason(self) -> str | None:
        """The signal that stopped all; None if it came too late for that, or did not come."""
        return self.signal_name if self._stopping else None

    def should_stop(self, step: int) -> bool:
        """Whether `step` is the last; True from then on. `signal_name` says why.

        On a process that was not itself interrupted the name is that of the notice that all share, SIGTERM.
        """
        if self._several and not self._stopping:
            self._stopping = self._last_step.ask()
        if self._flag is not None and not self._stopping:
            self._stopping = self._flag.seen(self.signal_name is not None)
        if self._stopping and self.signal_name is None:
            self.signal_name = signal.SIGTERM.name
        return self._stopping

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT:
            if self._interrupted:
                raise KeyboardInterrupt
            self._interrupted = True
        self.signal_name = self.signal_name or signal.Signals(number).name
        if not self._several and self._flag is None:
            self._stopping = True

    def _is_told(self) -> bool:
        return self.signal_name is not None or told.is_set()
