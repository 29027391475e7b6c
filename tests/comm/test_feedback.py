"""Error feedback: with it compressed training reaches the optimum of float32, without it it stops short.

Regression on data that differ by device: at the best weights every device's gradient is far from 0, and
only their sum vanishes. What a codec takes away from them must come back later.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

from jaxnet import comm
from jaxnet.comm import AXES, codecs, compressed, compressed_scattered
from support import laws
from support.laws import PER_DEVICE

FORMS = {"gathered": compressed, "scattered": compressed_scattered}
WIDTH, EXAMPLES = 24, 32


@functools.cache
def regression():
    draw = np.random.RandomState(0)
    x = draw.standard_normal((8, EXAMPLES, WIDTH))
    noise = 0.3 * np.arange(8)[:, None] * draw.standard_normal((8, EXAMPLES))
    y = x @ draw.standard_normal(WIDTH) + noise
    best, *_ = np.linalg.lstsq(x.reshape(-1, WIDTH), y.reshape(-1), rcond=None)
    return x.astype(np.float32), y.astype(np.float32), best


def distance_to_the_best(reducer, steps=800):
    """After gradient descent inside one loop, whose carry holds the reducer's state."""
    x, y, best = regression()
    mesh = comm.make_mesh(2, jax.devices()[:8])
    state = laws.stacked_state(reducer, mesh, np.zeros((2, 4, WIDTH), np.float32))

    def descend(x, y, state):
        def step(carry, index):
            weights, state = carry
            error = x[0] @ lax.pcast(weights, AXES, to="varying") - y[0]
            total, state = reducer.reduce(error @ x[0] / EXAMPLES, state)
            return (weights - 0.1 * (1 - index / steps) * total / 8, state), None

        start = jnp.zeros(WIDTH), jax.tree.map(lambda s: s[0, 0], state)
        return lax.scan(step, start, jnp.arange(steps))[0][0]

    mapped = jax.shard_map(descend, mesh=mesh, in_specs=(P(AXES), P(AXES), PER_DEVICE), out_specs=P())
    return float(np.linalg.norm(jax.jit(mapped)(x, y, state) - best))


LEARNED = {
    # codec, codec of the sums, reached with feedback, not reached without
    "float16": (codecs.float16, None, 1e-5, 3e-5),
    "bfloat16": (codecs.bfloat16, None, 1e-5, 1e-4),
    "int8": (codecs.int8(), None, 1e-5, 3e-4),
    "one_bit": (codecs.one_bit(), None, 2e-3, 0.1),
    "two_bit": (codecs.two_bit(2.0), codecs.float16, 1e-2, 1),
    "top_k": (codecs.top_k(0.1), None, 5e-3, 0.1),
}


# Every codec gathered; scattered, the two that lose most, of which one has another codec for the sums.
ONCE = [*(("gathered", name) for name in LEARNED), ("scattered", "one_bit"), ("scattered", "two_bit")]
MORE = [("scattered", name) for name in LEARNED if ("scattered", name) not in ONCE]


@pytest.mark.parametrize(("form", "name"), [*ONCE, *(pytest.param(*case, marks=pytest.mark.slow) for case in MORE)])
def test_with_feedback_training_reaches_the_optimum_and_without_it_stops_short(form, name):
    codec, sum_codec, reached, missed = LEARNED[name]
    more = {"sum_codec": sum_codec} if form == "scattered" else {}
    assert distance_to_the_best(FORMS[form](*AXES, codec=codec, **more)) < reached
    assert distance_to_the_best(FORMS[form](*AXES, codec=codec, feedback=False, **more)) > missed
