"""Checkpoints that are either whole or not there: written, sealed with digests, verified, restored on any mesh."""

from jaxnet.checkpoints.checkpoints import Checkpointer as Checkpointer
from jaxnet.checkpoints.checkpoints import NotSaved as NotSaved
from jaxnet.checkpoints.checkpoints import Restored as Restored
from jaxnet.checkpoints.consensus import Consensus as Consensus
from jaxnet.checkpoints.fault_tolerant import FaultTolerantCheckpoints as FaultTolerantCheckpoints
from jaxnet.checkpoints.fault_tolerant import OneWriter as OneWriter
from jaxnet.checkpoints.files import Best as Best
from jaxnet.checkpoints.lock import BEAT_SECONDS as BEAT_SECONDS
from jaxnet.checkpoints.lock import Heartbeat as Heartbeat
from jaxnet.checkpoints.lock import Lock as Lock
from jaxnet.checkpoints.reader import FoundCheckpoint as FoundCheckpoint
from jaxnet.checkpoints.reader import find_checkpoint as find_checkpoint
from jaxnet.checkpoints.reader import read_leaves as read_leaves
from jaxnet.checkpoints.storage import Replaceable as Replaceable
