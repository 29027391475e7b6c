"""A step whose compiler refuses the options of a config by their key, instead of with a traceback."""

import contextlib
from collections.abc import Iterator
from typing import Any

import jax

from jaxnet.errors import InputError, error_text
from jaxnet.parallel import Step
from jaxnet.parallel.state import TrainState

_REFUSALS = ("No such compile option", "While setting option", "Failed to parse")  # XLA's, and a TPU's


class OptionsChecked:
    """A step as it is, but for an InputError wherever it is compiled with an option that the compiler does not take."""

    def __init__(self, step: Step) -> None:
        self._step = step

    def __call__(self, state: TrainState, batch: Any, /) -> tuple[TrainState, dict[str, jax.Array]]:
        """One step; the first is compiled."""
        with _refused():
            return self._step(state, batch)

    def lower(self, state: TrainState, batch: Any, /) -> Any:
        """The program, to be compiled or read."""
        return _Lowered(self._step.lower(state, batch))

    @property
    def trace(self) -> Any:
        """Traces the program; AttributeError of a step in pieces, which is no single one."""
        step: Any = self._step
        return step.trace


class _Lowered:
    """As `jax.stages.Lowered`."""

    def __init__(self, lowered: Any) -> None:
        self._lowered = lowered

    def compile(self, *args: Any, **named: Any) -> Any:
        with _refused():
            return self._lowered.compile(*args, **named)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lowered, name)


@contextlib.contextmanager
def _refused() -> Iterator[None]:
    try:
        yield
    except Exception as error:  # of several types, by the platform
        if not any(words in str(error) for words in _REFUSALS):
            raise
        raise InputError(f"compiler_options: XLA: {error_text(error)}") from error
