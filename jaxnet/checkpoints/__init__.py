"""Checkpoints: written whole or not at all, sealed with digests, verified, restored on any mesh.

Save and restore:

- `Checkpointer`: the checkpoints of one run; `save`, `wait`, `restore_latest`. `Restored`, `NotSaved`.
- `FaultTolerantCheckpoints`: the same, with storage failures logged instead of raised.
- `OneWriter`: the same, with process 0 alone reading and writing, for `MPIProcesses` or `JaxProcesses`.
- `Replaceable`: leaves of a state that are made anew where those of a checkpoint do not fit.

Read a trained model, changing nothing on the disk:

- `find_checkpoint`: the newest, the best or a given intact step, as a `FoundCheckpoint`.
- `read_leaves`: some of its leaves as arrays; `steps_at`: where the steps of a run are.

One run at a time in a directory:

- `Lock`, `Heartbeat`, `BEAT_SECONDS`: a lock whose dead owner is found, also on another host.
- `Consensus`: decisions of process 0 that all processes follow.

Modules, from the caller down to the disk: `checkpointer`, `files` (directories), `manifest` (digests), `leaves` (names
of a state's leaves), `storage` (Orbax), `reader`.
"""

from jaxnet.checkpoints.checkpointer import Checkpointer, NotSaved, Restored
from jaxnet.checkpoints.consensus import Consensus
from jaxnet.checkpoints.fault_tolerant import FaultTolerantCheckpoints
from jaxnet.checkpoints.leaves import Replaceable
from jaxnet.checkpoints.lock import BEAT_SECONDS, Heartbeat, Lock
from jaxnet.checkpoints.rank_zero import JaxProcesses, MPIProcesses, OneWriter
from jaxnet.checkpoints.reader import FoundCheckpoint, find_checkpoint, read_leaves, steps_at

__all__ = [
    "BEAT_SECONDS",
    "Checkpointer",
    "Consensus",
    "FaultTolerantCheckpoints",
    "FoundCheckpoint",
    "Heartbeat",
    "JaxProcesses",
    "Lock",
    "MPIProcesses",
    "NotSaved",
    "OneWriter",
    "Replaceable",
    "Restored",
    "find_checkpoint",
    "read_leaves",
    "steps_at",
]
