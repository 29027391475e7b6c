"""A window of steps in the profiler, and the compiled programs as text."""

from collections.abc import Callable
from concurrent.futures import Executor
from pathlib import Path
from typing import Any, NamedTuple

import jax

from jaxnet.comm import Check, HasText
from jaxnet.config.fit import check_step_memory
from jaxnet.config.run import Profile
from jaxnet.files import replace
from jaxnet.parallel.state import TrainState
from jaxnet.training.display import say_warning
from jaxnet.training.experiment import Experiment
from jaxnet.training.ledger import Ledger
from jaxnet.training.observer import Dispatched, Observer
from jaxnet.training.resolutions import step_by_size

# ---- The training step, compiled once for each size of images, and checked against its plan -----------


class CompiledStep(NamedTuple):
    """The step.

    Attributes:
        run: `(state, batch) -> (state, metrics)`.
        check: what was found beside what was planned.
        given: to the compiler.
        made: by the compiler.
    """

    run: Callable[[TrainState, Any], Any]
    check: Check
    given: HasText
    made: HasText


def compiling(experiment: Experiment, pool: Executor) -> Callable[[TrainState, Ledger], CompiledStep]:
    """Begin to compile the step in the `pool`. The function that is returned waits for it, for a state of its shapes.

    That function books the wait as 'compile', looks up the plan in the program, and compiles the other sizes of images.
    It raises InputError where the step needs more memory than there is.
    """
    given = experiment.lowered
    making = pool.submit(given.compile)

    def compiled(state: TrainState, ledger: Ledger) -> CompiledStep:
        with ledger.during("compile"):
            made = making.result()
        check_step_memory(experiment.mesh, _needed(made))
        check = experiment.checked(made.as_text() or "")
        by_size = step_by_size(experiment.step, state, experiment.batch_shapes, experiment.phases, made)
        # From its second call on, JAX runs a `Compiled` without the tokens that keep MPI's calls in order.
        return CompiledStep(experiment.step if experiment.processes.cluster.mpi else by_size, check, given, made)

    return compiled


def _needed(made: Any) -> int:
    """Bytes that a compiled program takes for what it computes in between; 0 where the compiler does not say."""
    analysis = getattr(made, "memory_analysis", lambda: None)()
    return int(getattr(analysis, "temp_size_in_bytes", 0))


class ProfileWindow(Observer):
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

    def before_step(self, step: int) -> None:
        """Begin the trace where the window begins; one that runs goes on if the run has gone back to before."""
        if step == self._first <= self._last and not self._running:
            self._running = self._managed(lambda: jax.profiler.start_trace(str(self._directory)))
        if self._running:
            self._annotation = jax.profiler.StepTraceAnnotation("train", step_num=step)
            self._annotation.__enter__()

    def after_step(self, dispatched: Dispatched) -> None:
        """End the trace where the window ends; the last state is waited for, so that the trace holds whole steps."""
        if self._annotation is not None:
            self._annotation.__exit__(None, None, None)
            self._annotation = None
        if self._running and dispatched.step - 1 == self._last:
            jax.block_until_ready(dispatched.state)
            self.close()

    def on_end(self, step: int) -> None:
        """End a trace that is still running."""
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
            replace(directory / name, text or "")
    except OSError as error:
        say_warning(f"{directory} cannot be written: {error.strerror}; training goes on without")
