"""Every named strategy that sends less than the sum trains nearly as `flat` does.

test_step.py has the exact ones, test_local.py those that send no gradients.
"""

import jax
import numpy as np
import pytest

from jaxnet import comm
from support import tiny

STEPS = 3
LOSSY = [name for name, make in comm.STRATEGIES.items() if not make().exact and make().averaging is None]


def run(strategy):
    return tiny.run(tiny.setup(tiny.cnn(), strategy, (2, 4)), steps=STEPS)


@pytest.fixture(scope="module")
def flat():
    return run("flat")


@pytest.mark.parametrize("name", LOSSY)
def test_three_steps_on_two_hosts_of_four(name, flat):
    losses, state = run(name)
    np.testing.assert_allclose(losses[0], flat[0][0], rtol=1e-5)
    np.testing.assert_allclose(losses, flat[0], rtol=0.1)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state.params))


def test_a_strategy_is_called_by_its_own_name():
    assert {name: make().name for name, make in comm.STRATEGIES.items()} == {name: name for name in comm.STRATEGIES}


@pytest.mark.parametrize("name", ["caffe2", "mg_wfbp", "parameter_server"])
def test_no_bucket_size_is_refused_where_there_is_none(name):
    with pytest.raises(ValueError, match=f"strategy '{name}' has no bucket size"):
        comm.named_strategy(name, bucket_bytes=1)
