"""Save and restore the state of a run: a checkpoint is either complete or not there.

    000200/manifest.json    what is in it (step, extra, best, leaves) and the digest of every file
    000200/state/           an ordinary Orbax checkpoint: nested dicts of arrays
    damaged/000300-1/       a step that differed from its manifest: kept, never read, never deleted

A save of step 200 has five phases. All processes take part; `jaxnet.checkpoints.consensus` makes a failure on one the
failure of all.

1. Process 0 calls the fence, deletes leftovers and makes `000200-NAME-1.saving/`.         (`save`, blocking)
2. All copy their arrays; from here on the buffers may be donated.                         (`save`, blocking)
3. Orbax writes the copies into `.saving/state/`.                                          (background)
4. Process 0 digests every file, writes and flushes `manifest.json`, calls the fence again
   and renames the directory to `000200/`.                                                 (background)
5. Process 0 deletes steps that are neither among the newest nor the best.                 (background)

What a kill leaves: in phases 1 to 3, and in 4 before the rename, a `.saving` directory, which no reader looks at and
the next save deletes; after the rename, a complete step, and perhaps an old step too many or a `.deleting` directory.
A reader needs no more than the name: a directory called by a step was complete and sealed when it got that name. It
still checks every digest, because disks change what was written.
"""

import itertools
import json
import logging
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from jaxnet.checkpoints import manifest
from jaxnet.checkpoints.consensus import LOST, Consensus, why_not
from jaxnet.checkpoints.files import CheckpointFiles, Survey
from jaxnet.checkpoints.leaves import NO_DEFAULTS, Replaceable, described, named_leaves
from jaxnet.checkpoints.lock import Lost
from jaxnet.checkpoints.reader import other_steps, read_state
from jaxnet.errors import InputError
from jaxnet.files import parse_json

_log = logging.getLogger("jaxnet")


class NotSaved(InputError):
    """A step could not be written, for a reason that may pass; the steps before it are unchanged."""


class Restored(NamedTuple):
    """The content of a checkpoint.

    Attributes:
        step: its number.
        state: the arrays in the structure and shardings of `like`.
        extra: the `extra` that was given to save.
        replaced: dtype and shape, by name, of the stored leaves that were not read but made anew; empty if none was.
    """

    step: int
    state: Any
    extra: dict[str, Any]
    replaced: Mapping[str, str] = MappingProxyType({})


class Checkpointer:
    """The checkpoints of one run, in a directory that all its processes share.

    All processes make the same calls in the same order. The newest `keep` steps stay, and the best. On a file system
    with atomic renames, also under kill -9:

    - When `wait` has returned, the step can be restored. It is deleted only while `keep` newer ones have a
      manifest and all their files at full length, the newest of them digested a moment before. The content of
      the others is not read again until a restore.
    - A changed, truncated or missing file is noticed before anything of its step is used.
    - A save that fails on any process fails on all, with the same reason, and deletes nothing but its own files.

    Raises InputError when the directory cannot be written or is not the same one on all processes.

    Args:
        directory: where the steps are; made if it is absent.
        keep: how many of the newest steps stay.
        fence: process 0 calls it before it publishes or deletes anything; it raises Lost when another run has
            taken over the directory.
        alone: this process reads and writes for all of a run, and the others have no such object; see `OneWriter`.
    """

    def __init__(
        self,
        directory: Path,
        *,
        keep: int = 3,
        fence: Callable[[], None] = lambda: None,
        alone: bool = False,
    ):
        if keep < 1:
            raise InputError(f"checkpoints: keep is {keep}; at least 1 must be kept")
        self._keep = keep
        self._files, self._fence = CheckpointFiles(Path(directory).absolute()), fence
        self._consensus, self._alone = Consensus(alone=alone), alone
        name = self._require_usable()
        self._newest = max(self._files.steps(), default=-1)
        self._current: int | None = None  # the step last saved or restored: its checkpoint equals the present state
        from jaxnet.checkpoints.storage import Storage  # brings Orbax, which takes a while to import

        self._storage = Storage(self._consensus.meet, alone=alone)
        self._committer = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._pending: tuple[int, Future[str]] | None = None
        self._attempts = (f"{name}-{number}" for number in itertools.count(1))

    def save(self, step: int, state: Any, *, extra: dict[str, Any], best: int | None = None) -> None:
        """Start to save; return when `state` has been copied and its buffers may be donated.

        Waits for the save before this one. Does nothing if `step` was the last one saved or restored.

        Args:
            step: its number, larger than that of any step in the directory.
            state: a pytree of jax.Arrays.
            extra: small JSON.
            best: the best step so far, which stays, if it is in the directory.

        Raises:
            NotSaved: the save before failed, or this one cannot begin.
            InputError: a newer step is in the directory, and a resume would take that one.
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
        about = _as_read({"step": step, "extra": extra, "best": best, "leaves": described(leaves)})
        staged = self._files.staging(step, next(self._attempts))
        if failure := self._consensus.begin(lambda: why_not(lambda: self._stage(staged))):
            raise self._raised(step, failure)
        failure = self._storage.save(staged / "state", leaves)
        self._current = step
        self._pending = (step, self._committer.submit(self._commit, staged, step, about, failure))

    def wait(self) -> None:
        """Return when the last save is on the disk; NotSaved, with the reason, on all processes if it failed."""
        if self._pending is None:
            return
        (step, done), self._pending = self._pending, None
        if failure := done.result():
            self._current = None
            raise self._raised(step, failure)

    def steps(self) -> list[int]:
        """Return the steps on the disk in ascending order, without a save that is still under way."""
        return self._files.steps()

    def restore_latest(
        self,
        like: Any,
        *,
        up_to: int | None = None,
        defaults: Mapping[str, Any] = NO_DEFAULTS,
        replaceable: Replaceable | None = None,
    ) -> Restored | None:
        """Restore the newest intact step, into the shardings of `like`; return None where no step is.

        A warning names newer steps that are damaged, and they are moved to `damaged/`. Raises InputError when all
        are damaged (and moves none), and when the leaves differ from those of `like`.

        Args:
            like: a pytree of jax.ShapeDtypeStruct, for any mesh and number of processes.
            up_to: only this step and those before it.
            defaults: values of leaves, by name, that a checkpoint may lack, or have although `like` does not.
            replaceable: leaves that may differ in any way; then they are made anew instead of read.
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
        """Restore `step` into the shardings of `like`; InputError when it is absent, damaged or differs from `like`."""
        self.wait()
        found = Survey(*self._consensus.decided(lambda: self._files.examine(step)))
        if found.step is None:
            others = other_steps(self.steps(), step)
            what = "".join(f"is damaged: {damage}" for _, damage in found.damaged) or "is not there"
            raise InputError(f"checkpoint step {step} in {self._files.root} {what} (other steps there: {others})")
        return self._restore(step, found.about, like)

    def close(self) -> None:
        """Wait, then end the background threads; raises as `wait` does."""
        try:
            self.wait()
        finally:
            self._committer.shutdown()
            self._storage.close()

    # ---- The phases of a save ------------------------------------------------------------------------------

    def _stage(self, staged: Path) -> None:
        """Phase 1, on process 0: make everything that Orbax needs, so that nothing can fail here alone later."""
        self._fence()
        self._files.stage(staged)
        self._storage.prepare(staged / "state")

    def _commit(self, staged: Path, step: int, about: dict[str, Any], failure: str) -> str:
        """Phases 3 to 5, in the background: return "", or why the save failed here or on another process."""
        failure = failure or why_not(lambda: self._finish(staged, step, about))
        failure = self._consensus.end(failure)
        if not failure:
            self._newest = step
        elif self._consensus.primary:
            self._files.discard(staged)  # frees space for logs and metrics on a full disk
        return failure

    def _finish(self, staged: Path, step: int, about: dict[str, Any]) -> None:
        self._storage.finish()
        if self._consensus.primary:
            manifest.write(staged, about)
            self._fence()  # as late as possible: another run may have taken over while the arrays were written
            self._publish(staged, step, about["best"])

    def _publish(self, staged: Path, step: int, best: int | None) -> None:
        self._files.publish(staged, step)
        try:
            self._files.retire(self._keep, best)
        except OSError as error:
            _log.warning("old checkpoints in %s could not be deleted: %s", self._files.root, error)

    # ---- Restore and refuse --------------------------------------------------------------------------------

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
        leaves, extra = about["leaves"], about["extra"]
        state, replaced = read_state(where, leaves, like, defaults, replaceable, extra, alone=self._alone)
        self._current = step
        return Restored(step, state, extra, replaced)

    def _require_usable(self) -> str:
        """Check that all processes see one writable directory; return a name that no other run in it has.

        Process 0's temporary file serves for both: every process looks for it, and its random name is unique.
        """
        root = self._files.root
        try:
            root.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=root, prefix=".probe-") as file:
                file.write(b"probe")
                file.flush()
                name = self._consensus.decided(lambda: Path(file.name).name)
                seen = self._consensus.gathered((root / name).exists())
        except OSError as error:
            raise InputError(f"checkpoints cannot be written to {root}: {error.strerror}") from error
        if blind := [process for process, sees in enumerate(seen) if not sees]:
            raise not_shared(root, blind)
        return str(name.rpartition("-")[2])

    def _raised(self, step: int, failure: str) -> InputError:
        if failure.startswith(LOST):
            return Lost(failure.removeprefix(LOST))
        return NotSaved(f"checkpoint step {step} could not be written to {self._files.root}: {failure}")


def _as_read(about: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of what a manifest will say, as it will be read: the caller may change it before it is written."""
    try:
        copied: dict[str, Any] = parse_json(json.dumps(about))
    except ValueError as error:
        raise InputError(f"extra of checkpoint step {about['step']} could not be read again: {error}") from error
    return copied


def not_shared(root: Path, blind: Sequence[int]) -> InputError:
    """Return the error for processes (`blind`) that do not see what process 0 writes."""
    return InputError(
        f"the checkpoint directory {root} is not shared: process {', '.join(map(str, blind))} does not see what "
        "process 0 writes there; use a directory on a file system that all hosts mount"
    )
