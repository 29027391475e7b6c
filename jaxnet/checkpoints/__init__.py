"""Checkpoints that are either whole or not there: written, sealed with digests, verified, restored on any mesh."""

from jaxnet.checkpoints.checkpoints import Checkpoints as Checkpoints
from jaxnet.checkpoints.checkpoints import Restored as Restored
from jaxnet.checkpoints.one_writer import OneWriter as OneWriter
