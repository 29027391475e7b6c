"""Which image stands in which shard: as TFDS itself orders and divides them, so the result is the same as its own."""

from __future__ import annotations

import hashlib

import numpy as np


def shuffled(entries: np.ndarray, split: str) -> np.ndarray:
    """Return the images in TFDS's order: that of the MD5 digest of the split's name and the image's."""
    salt = hashlib.md5(split.encode())
    digests = bytearray()
    for name in entries["name"].tolist():
        digest = salt.copy()
        digest.update(name)
        digests += digest.digest()
    high, low = np.frombuffer(digests, ">u8").reshape(-1, 2).T
    return entries[np.lexsort((low, high))]


def split_into_shards(entries: np.ndarray, num_shards: int | None = None) -> list[np.ndarray]:
    """Divide the images into as many shards as TFDS does for so many bytes, or into `num_shards`."""
    from tensorflow_datasets.core.utils.shard_utils import ShardConfig, get_shard_boundaries

    size, count = int(entries["size"].sum()), len(entries)
    shards = ShardConfig(num_shards=num_shards).get_number_shards(size, count)
    return np.split(entries, get_shard_boundaries(count, shards)[:-1])
