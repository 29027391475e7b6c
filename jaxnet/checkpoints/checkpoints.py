"""Checkpoints that are either whole or not there.

Orbax writes the arrays into `000200-NAME-1.saving/`; every file there is digested into a manifest; only then is
the directory renamed to `000200/`, and only then are older steps deleted. So whatever is called by a step was
complete and sealed when it got that name, whenever the processes are killed.

    000200/manifest.json    what is in it (step, extra, metrics, leaves) and the digest of every file
    000200/state/           an ordinary Orbax checkpoint: nested dicts of arrays
    damaged/000300-1/       a step that was not as it was written: kept, never read, never deleted
"""

import itertools
import json
import logging
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import numpy as np
from jax.experimental import multihost_utils

from jaxnet.checkpoints import files as manifest
from jaxnet.checkpoints.consensus import Consensus
from jaxnet.checkpoints.files import Best, CheckpointFiles, Survey, described, named_leaves, nested
from jaxnet.checkpoints.lock import Lost
from jaxnet.checkpoints.storage import LOST, NO_DEFAULTS, Replaceable, Storage, read_state, silence_orbax, why_not
from jaxnet.errors import InputError

_log = logging.getLogger("jaxnet")


class NotSaved(InputError):
    """A step is not on the disk, for a reason that may pass; those before it are as they were."""


class Restored(NamedTuple):
    """What a checkpoint held.

    Attributes:
        step: its number.
        state: the arrays as `like` asked for them.
        extra: as it was given to save.
        replaced: dtype and shape, by name, of what it holds of leaves that were made anew; empty if none was.
    """

    step: int
    state: Any
    extra: dict[str, Any]
    replaced: Mapping[str, str] = MappingProxyType({})


class Checkpointer:
    """The checkpoints of one run, in a directory that all its processes share.

    All processes make the same calls in the same order. The newest `keep` steps stay, and the one with the
    best `metrics[best]`. On a file system with atomic renames, also under kill -9:

    - When `wait` has returned, the step can be restored. It is deleted only while `keep` newer ones have a
      manifest and all their files at full length, the newest of them digested a moment before. The content of
      the others is not read again until a restore.
    - A changed, truncated or missing file is noticed before anything of its step is used.

    - A save that fails on any process fails on all, with the same reason, and deletes nothing but its own files.

    Before anything is published or deleted, process 0 calls `fence`, which raises Lost if this run may no more.

    Raises InputError when the directory cannot be written or is not the same one on all processes.
    """

    def __init__(
        self,
        directory: Path,
        *,
        keep: int = 3,
        best: str | None = None,
        best_mode: Literal["max", "min"] = "max",
        fence: Callable[[], None] = lambda: None,
    ):
        if keep < 1:
            raise InputError(f"checkpoints: keep is {keep}; at least 1 must be kept")
        if best_mode not in ("max", "min"):
            raise InputError(f"checkpoints: best_mode is {best_mode!r}; it is 'max' or 'min'")
        self._keep = keep
        self._best = None if best is None else Best(best, best_mode)
        self._files, self._fence = CheckpointFiles(Path(directory).absolute()), fence
        self._consensus = Consensus()
        name = self._require_usable()
        self._newest = max(self._files.steps(), default=-1)
        self._current: int | None = None  # the step whose checkpoint equals the present state
        silence_orbax()
        self._storage = Storage(self._consensus.meet)
        self._committer = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._pending: tuple[int, Future[str]] | None = None
        self._attempts = (f"{name}-{number}" for number in itertools.count(1))

    def save(self, step: int, state: Any, *, extra: dict[str, Any], metrics: Mapping[str, float] | None = None) -> None:
        """Start to save; return when `state` has been copied and its buffers may be donated.

        `state` is a pytree of jax.Arrays, `extra` small JSON. Waits for the save before this one. Saving the
        step that was last saved or restored does nothing: it is there. Raises NotSaved when the save before has
        failed or this one cannot begin, and InputError for a step that is not newer than all there, which a resume
        would not find again.
        """
        self.wait()
        if step == self._current:
            return
        if step <= self._newest:
            raise InputError(
                f"checkpoint step {step} is not newer than step {self._newest} in {self._files.root}, from "
                "which a resume would continue; train in another directory, or move the newer steps away"
            )
        leaves = named_leaves(state)
        about = self._about(step, extra, metrics or {}, described(leaves))
        arrays = nested({name: leaf for name, leaf in leaves.items() if leaf.size})
        staged = self._files.staging(step, next(self._attempts))
        if failure := self._consensus.begin(lambda: why_not(lambda: self._stage(staged))):
            raise self._raised(step, failure)
        failure = self._storage.save(staged / "state", arrays)
        self._current = step
        self._pending = (step, self._committer.submit(self._commit, staged, step, about, failure))

    def wait(self) -> None:
        """Return when what was saved is on the disk; raises NotSaved, on all processes, with what kept it from that."""
        if self._pending is None:
            return
        (step, done), self._pending = self._pending, None
        if failure := done.result():
            self._current = None
            raise self._raised(step, failure)

    def steps(self) -> list[int]:
        """The steps on the disk, in ascending order; a save still under way is not among them."""
        return self._files.steps()

    def restore_latest(
        self,
        like: Any,
        *,
        up_to: int | None = None,
        defaults: Mapping[str, Any] = NO_DEFAULTS,
        replaceable: Replaceable | None = None,
    ) -> Restored | None:
        """The newest step that is as it was written, in the shardings of `like`; None where no step is.

        `like` is a pytree of jax.ShapeDtypeStruct for any mesh and number of processes. Newer steps that are
        damaged are named in a warning and moved to `damaged/`. Raises InputError when all are damaged (and
        moves none), and when the leaves differ from those of `like`.

        Args:
            like: what to restore.
            up_to: only this step and those before it.
            defaults: values of leaves, by name, that a checkpoint may lack or have in excess.
            replaceable: leaves that may differ in any way, and are then not read but made.
        """
        self.wait()
        found = Survey(*self._consensus.decided(lambda: self._files.survey(up_to)))
        if found.step is None and not found.damaged:
            return None
        what = "; ".join(f"step {step}: {damage}" for step, damage in found.damaged)
        if found.step is None:
            raise InputError(
                f"no checkpoint in {self._files.root} can be used: {what}. Nothing was changed there; to "
                "start from the beginning, choose another directory or move this one away"
            )
        if self._consensus.primary:
            for step, damage in found.damaged:
                _log.warning(
                    "checkpoint step %d is damaged: %s; continuing from step %d; the damaged one %s",
                    *(step, damage, found.step, self._set_aside(step)),
                )
        if up_to is None:
            self._newest = found.step
        return self._restore(found.step, found.about, like, defaults, replaceable)

    def restore(self, step: int, like: Any) -> Restored:
        """That step in the shardings of `like`; raises InputError when it is absent, damaged or unlike."""
        self.wait()
        found = Survey(*self._consensus.decided(lambda: self._files.examine(step)))
        if found.step is None:
            others = ", ".join(str(other) for other in self.steps() if other != step) or "none"
            what = "".join(f"is damaged: {damage}" for _, damage in found.damaged) or "is not there"
            raise InputError(f"checkpoint step {step} in {self._files.root} {what} (other steps there: {others})")
        return self._restore(step, found.about, like)

    def close(self) -> None:
        """Wait, and end the background threads; raises as `wait` does."""
        try:
            self.wait()
        finally:
            self._committer.shutdown()
            self._storage.close()

    def _about(
        self, step: int, extra: dict[str, Any], metrics: Mapping[str, float], leaves: dict[str, str]
    ) -> dict[str, Any]:
        if self._best is not None and metrics and self._best.metric not in metrics:
            raise InputError(
                f"checkpoints are ranked by the metric {self._best.metric!r}, which is not among those "
                f"measured: {', '.join(sorted(metrics))}"
            )
        values = {name: float(value) for name, value in metrics.items()}
        about = {"step": step, "extra": extra, "metrics": values, "leaves": leaves}
        # A copy, because the caller may change `extra` before it is written.
        copied: dict[str, Any] = json.loads(json.dumps(about))
        return copied

    def _stage(self, staged: Path) -> None:
        self._fence()
        self._files.stage(staged)
        self._storage.prepare(staged / "state")

    def _commit(self, staged: Path, step: int, about: dict[str, Any], failure: str) -> str:
        """Finish a save in the background; "" or why it failed, here or on another process."""
        failure = failure or why_not(lambda: self._written(staged, step, about))
        failure = self._consensus.end(failure)
        if not failure:
            self._newest = step
        elif self._consensus.primary:
            shutil.rmtree(staged, ignore_errors=True)  # on a full disk, others need the place
        return failure

    def _written(self, staged: Path, step: int, about: dict[str, Any]) -> None:
        self._storage.finish()
        if self._consensus.primary:
            manifest.write(staged, about)
            self._fence()
            self._publish(staged, step)

    def _publish(self, staged: Path, step: int) -> None:
        self._files.publish(staged, step)
        try:
            self._files.retire(self._keep, self._best)
        except OSError as error:
            _log.warning("old checkpoints in %s could not be deleted: %s", self._files.root, error)

    def _set_aside(self, step: int) -> str:
        try:
            return f"is now {self._files.set_aside(step)}"
        except OSError as error:
            return f"stays there, because it cannot be moved: {error.strerror}"

    def _restore(
        self,
        step: int,
        about: Mapping[str, Any],
        like: Any,
        defaults: Mapping[str, Any] = NO_DEFAULTS,
        replaceable: Replaceable | None = None,
    ) -> Restored:
        where = self._files.path(step)
        state, replaced = read_state(where, about["leaves"], like, defaults, replaceable)
        self._current = step
        return Restored(step, state, about["extra"], replaced)

    def _require_usable(self) -> str:
        """Return a name that no other run in this directory has."""
        root = self._files.root
        try:
            root.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=root, prefix=".probe-") as file:
                file.write(b"probe")
                file.flush()
                name = self._consensus.decided(lambda: Path(file.name).name)
                seen = multihost_utils.process_allgather(np.array((root / name).exists()))
        except OSError as error:
            raise InputError(f"checkpoints cannot be written to {root}: {error.strerror}") from error
        if not np.all(seen):
            raise not_shared(root, np.flatnonzero(~np.atleast_1d(seen)).tolist())
        return str(name.rpartition("-")[2])

    def _raised(self, step: int, failure: str) -> InputError:
        if failure.startswith(LOST):
            return Lost(failure.removeprefix(LOST))
        return NotSaved(f"checkpoint step {step} could not be written to {self._files.root}: {failure}")


def not_shared(root: Path, blind: Sequence[int]) -> InputError:
    """Some processes do not see what process 0 writes."""
    return InputError(
        f"the checkpoint directory {root} is not shared: process {', '.join(map(str, blind))} does not see what "
        "process 0 writes there; use a directory on a file system that all hosts mount"
    )
