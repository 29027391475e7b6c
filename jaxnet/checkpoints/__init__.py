"""Checkpoints that are either whole or not there: written, sealed with digests, verified, restored on any mesh."""

from jaxnet.checkpoints.checkpoints import Checkpoints as Checkpoints
from jaxnet.checkpoints.checkpoints import NotSaved as NotSaved
from jaxnet.checkpoints.checkpoints import Restored as Restored
from jaxnet.checkpoints.consensus import Consensus as Consensus
from jaxnet.checkpoints.defaults import Replaceable as Replaceable
from jaxnet.checkpoints.enduring import Enduring as Enduring
from jaxnet.checkpoints.files import Best as Best
from jaxnet.checkpoints.heartbeat import Heartbeat as Heartbeat
from jaxnet.checkpoints.lock import BEAT_SECONDS as BEAT_SECONDS
from jaxnet.checkpoints.lock import Lock as Lock
from jaxnet.checkpoints.one_writer import OneWriter as OneWriter
from jaxnet.checkpoints.reader import Found as Found
from jaxnet.checkpoints.reader import find_checkpoint as find_checkpoint
from jaxnet.checkpoints.reader import read_leaves as read_leaves
