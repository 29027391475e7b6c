"""Prepare data sets for TFDS without TensorFlow: once, before training.

- `prepare_imagenet`: from the official archives to TFDS's `imagenet2012`; returns `Prepared`. It uses `tars` (where
  each image lies in the archives) and `shards` (one file of the result: whole, or not there).
- `verify`: reads a prepared data set back; returns `Verified`.
- `PrepareListener`: is told how far the work is.
"""

from jaxnet.data.prepare.imagenet import Prepared, prepare_imagenet
from jaxnet.data.prepare.shards import PrepareListener
from jaxnet.data.prepare.verify import Verified, verify

__all__ = ["PrepareListener", "Prepared", "Verified", "prepare_imagenet", "verify"]
