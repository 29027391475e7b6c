"""A window of steps in the profiler, and the compiled programs as text."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import jax

from jaxnet.comm.pieces.launch import HasText
from jaxnet.training.config import Profile
from jaxnet.training.run.progress import say_warning


class ProfileWindow:
    """Traces steps `[start, start + steps)` into `<workdir>/profile/process_0`, and so on for each process.

    Each step is annotated with its number. Look with `jaxnet timeline`, TensorBoard's xprof or Perfetto. A trace that
    cannot be made or written is told in a warning: other processes would wait for one that ends over it.
    """

    def __init__(self, window: Profile, workdir: Path, process: int) -> None:
        self._first, self._last = window.start, window.start + window.steps - 1
        # A trace is named by its host: processes of one host would write into one file.
        self._directory = workdir / "profile" / f"process_{process}"
        self._running = False
        self._annotation: jax.profiler.StepTraceAnnotation | None = None

    def before(self, step: int) -> None:
        """Call before step number `step` is dispatched."""
        if step == self._first and self._last >= self._first:
            self._running = self._managed(lambda: jax.profiler.start_trace(str(self._directory)))
        if self._running:
            self._annotation = jax.profiler.StepTraceAnnotation("train", step_num=step)
            self._annotation.__enter__()

    def after(self, step: int, result: object) -> None:
        """Call after it; `result` is waited for at the end of the window, so that the trace holds whole steps."""
        if self._annotation is not None:
            self._annotation.__exit__(None, None, None)
            self._annotation = None
        if self._running and step == self._last:
            jax.block_until_ready(result)
            self.close()

    def close(self) -> None:
        """End a trace that is still running."""
        if self._running:
            self._running = False
            self._managed(jax.profiler.stop_trace)

    def _managed(self, act: Callable[[], None]) -> bool:
        try:
            act()
        except (OSError, RuntimeError) as error:  # JAX's own errors are RuntimeErrors
            reason = next(iter(str(error).splitlines()), type(error).__name__)
            say_warning(f"no trace in {self._directory}: {reason}; training goes on without")
            return False
        return True


def write_programs(workdir: Path, lowered: HasText, compiled: HasText) -> None:
    """Write the step as given to the compiler (StableHLO) and as optimized (HLO) to `<workdir>/hlo`, or warn."""
    directory = workdir / "hlo"
    texts = {"train_step.stablehlo.txt": lowered.as_text(), "train_step.optimized_hlo.txt": compiled.as_text()}
    try:
        directory.mkdir(exist_ok=True)
        for name, text in texts.items():
            (directory / name).write_text(text or "")
    except OSError as error:
        say_warning(f"{directory} cannot be written: {error.strerror}; training goes on without")
        with suppress(OSError):  # half a program would pass for a whole one
            for name in texts:
                (directory / name).unlink(missing_ok=True)
