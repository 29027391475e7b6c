"""A window of steps in the profiler, and the compiled programs as text."""

from pathlib import Path

import jax

from jaxnet.comm.pieces.launch import HasText
from jaxnet.training.config import Profile


class ProfileWindow:
    """Traces steps `[start, start + steps)` into `<workdir>/profile/process_0`, and so on for each process.

    Each step is annotated with its number. Look with `jaxnet timeline`, TensorBoard's xprof or Perfetto.
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
            jax.profiler.start_trace(str(self._directory))
            self._running = True
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
            jax.profiler.stop_trace()
            self._running = False


def write_programs(workdir: Path, lowered: HasText, compiled: HasText) -> Path:
    """Write the step as given to the compiler (StableHLO) and as optimized (HLO) to `<workdir>/hlo`."""
    directory = workdir / "hlo"
    directory.mkdir(exist_ok=True)
    (directory / "train_step.stablehlo.txt").write_text(lowered.as_text() or "")
    (directory / "train_step.optimized_hlo.txt").write_text(compiled.as_text() or "")
    return directory
