"""Train on mixtures of two examples: mixup and cutmix, between neighbours in the batch.

The examples at positions 2k and 2k + 1 of a batch mix with each other, as decided by the key of the first. So the pairs
and their shares are the same on any number of devices, processes and microbatches, as long as each has an even number
of examples. The targets of a batch keep their sum.
"""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxnet.limits import Fraction, NotNegative

_STREAM = 0x6D6978  # folded into the key: augmentation and dropout use the example's key itself


class Mixed(NamedTuple):
    """Mixed examples.

    Attributes:
        images: the mixed images, in the order and shape of the originals.
        share: the share of its own label in each example's target, float32 [batch]; the rest is its neighbour's.
    """

    images: jax.Array
    share: jax.Array


@dataclass(frozen=True)
class Mixing:
    """How neighbours in a batch are mixed.

    Attributes:
        mixup: add images with a share drawn from Beta(a, a), where a is this number (Zhang et al., 2018); 0: never.
        cutmix: set a box of one image into the other, with a share drawn likewise (Yun et al., 2019); 0: never.
        probability: the probability that a pair is mixed at all.
        cutmix_share: the fraction of mixed pairs that use cutmix, if both ways are on.
    """

    mixup: NotNegative = 0.0
    cutmix: NotNegative = 0.0
    probability: Fraction = 1.0
    cutmix_share: Fraction = 0.5

    @property
    def on(self) -> bool:
        """Whether anything is mixed."""
        return max(self.mixup, self.cutmix) > 0

    def __call__(self, keys: jax.Array, images: jax.Array) -> Mixed:
        """Mix images [batch, height, width, channels], float, by keys [batch]; the batch is even."""
        pairs = images.reshape(-1, 2, *images.shape[1:])
        mixed, share = jax.vmap(self._pair)(keys.reshape(-1, 2)[:, 0], pairs)
        return Mixed(mixed.reshape(images.shape), jnp.repeat(share, 2))

    def _pair(self, key: jax.Array, pair: jax.Array) -> tuple[jax.Array, jax.Array]:
        whether, which, ratio, place = jax.random.split(jax.random.fold_in(key, _STREAM), 4)
        cuts = jax.random.bernoulli(which, self.cutmix_share) if self.mixup and self.cutmix else self.cutmix > 0
        share = _beta(ratio, jnp.where(cuts, self.cutmix, self.mixup))
        ways = ([_cut(place, pair, share)] if self.cutmix else []) + ([_added(pair, share)] if self.mixup else [])
        mixed, share = jax.tree.map(lambda *both: jnp.where(cuts, both[0], both[-1]), *ways)
        mixes = jax.random.bernoulli(whether, self.probability)
        return jnp.where(mixes, mixed, pair), jnp.where(mixes, share, 1.0)


def neighbours(values: jax.Array) -> jax.Array:
    """Return for each example the value of the one that it mixes with.

    >>> neighbours(jnp.array([1, 2, 3, 4])).tolist()
    [2, 1, 4, 3]
    """
    return values.reshape(-1, 2, *values.shape[1:])[:, ::-1].reshape(values.shape)


def _beta(key: jax.Array, alpha: jax.Array) -> jax.Array:
    """Draw from Beta(a, a): x / (x + y) for x and y from Gamma(a), which is the softmax of their logarithms."""
    # Drawing both in one call halves the compile time.
    part: jax.Array = jax.nn.softmax(jax.random.loggamma(key, alpha, (2,)))[0]
    return part


def _added(pair: jax.Array, share: jax.Array) -> tuple[jax.Array, jax.Array]:
    return share * pair + (1 - share) * pair[::-1], share


def _cut(key: jax.Array, pair: jax.Array, share: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Set a box of the neighbour into each image, at the same place in both.

    The border may cut off a part of the box, so the share is computed from the pixels that really changed.
    """
    keys, side = jax.random.split(key), jnp.sqrt(1 - share)
    rows, columns = (_span(of, side, size) for of, size in zip(keys, pair.shape[1:3], strict=True))
    box = rows[:, None] & columns[None, :]
    return jnp.where(box[:, :, None], pair[::-1], pair), 1 - box.mean(dtype=jnp.float32)


def _span(key: jax.Array, part: jax.Array, size: int) -> jax.Array:
    """Return a bool [size] that is true on a fraction `part` of it, around a random place."""
    length = (part * size).astype(jnp.int32)
    start = jax.random.randint(key, (), 0, size) - length // 2
    place = jnp.arange(size)
    return (place >= start) & (place < start + length)
