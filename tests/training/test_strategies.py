"""Every named strategy that sends less than the sum trains nearly as `flat` does.

test_step.py has the exact ones, test_local.py those that send no gradients.
"""

import re

import jax
import numpy as np
import pytest

from jaxnet import comm
from jaxnet.config.fit import check_axes, check_memory
from jaxnet.errors import InputError
from support import tiny

STEPS = 3
LOSSY = [name for name, make in comm.STRATEGIES.items() if not make().exact and make().kind != "local"]


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


@pytest.mark.parametrize("shape", [(2, 4), (8, 1), (1, 8)])
@pytest.mark.parametrize("name", [name for name in comm.STRATEGIES if name != "xla"])
def test_every_strategy_sums_over_all_axes(name, shape):
    params = {"kernel": jax.ShapeDtypeStruct((40, 30), "float32"), "bias": jax.ShapeDtypeStruct((3,), "float32")}
    check_axes(comm.named_strategy(name), comm.make_mesh(shape[0]), params)


@pytest.mark.parametrize("schedule", ["during", comm.Averaging(2)])
def test_sums_over_some_axes_are_refused(schedule):
    """Each host would train by itself."""
    strategy = comm.Strategy(comm.bucketed(comm.all_reduce("device"), None), schedule)
    params = jax.ShapeDtypeStruct((40,), "float32")
    check_axes(strategy, comm.make_mesh(1), params)
    with pytest.raises(InputError, match=r"nothing in it is summed over the axis 'host' of the mesh 2x4; wanted"):
        check_axes(strategy, comm.make_mesh(2), params)


def test_means_of_parameters_by_a_reducer_that_remembers_are_refused():
    """What it has not sent in one round would be missing in the next."""
    params = {"kernel": jax.ShapeDtypeStruct((40, 30), "float32")}
    eight, narrow = comm.codecs.int8(), comm.compressed(*comm.AXES, codec=comm.codecs.bfloat16, feedback=False)
    for reducer, schedule in [
        (comm.compressed(*comm.AXES, codec=eight), "during"),
        (comm.all_reduce(*comm.AXES), comm.Averaging(2)),
        (narrow, comm.Averaging(2)),
    ]:
        check_memory(comm.Strategy(comm.bucketed(reducer, None), schedule), comm.make_mesh(2), params)
    remembers = comm.Strategy(comm.bucketed(comm.compressed(*comm.AXES, codec=eight), None), comm.Averaging(2))
    check_memory(remembers, comm.make_mesh(1, jax.devices()[:1]), params)
    with pytest.raises(InputError, match="its reducer remembers what it has not sent"):
        check_memory(remembers, comm.make_mesh(2), params)


def test_a_strategy_is_called_by_its_own_name():
    assert {name: make().name for name, make in comm.STRATEGIES.items()} == {name: name for name in comm.STRATEGIES}


@pytest.mark.parametrize("name", ["caffe2", "mg_wfbp", "parameter_server"])
def test_no_bucket_size_is_refused_where_there_is_none(name):
    with pytest.raises(ValueError, match=f"strategy '{name}' has no bucket size"):
        comm.named_strategy(name, bucket_bytes=1)


@pytest.mark.parametrize(
    ("label", "said"),
    [
        ("topk", "no strategy 'topk'; did you mean 'top_k'"),
        ("top_k:fraction=2", "fraction must be above 0 and at most 0.5, got 2"),
        ("top_k:part=0.1", "no setting 'part=0.1'; wanted key=value of: fraction=0.01"),
        ("top_k:0.1", "no setting '0.1'; wanted key=value of: fraction=0.01"),
        ("top_k:fraction=much", "fraction=much: wanted a number"),
        ("mxnet_2bit:threshold=inf", "threshold=inf: wanted a number"),
        ("local_sgd:every=0", "every must be at least 1"),
        ("local_sgd:every=2.5", "every=2.5: wanted a whole number"),
        ("top_k:fraction=0.1:fraction=0.2", "fraction is set twice"),
        ("local_sgd:with_optimizer=1", "with_optimizer=1: wanted true or false"),
        ("per_leaf:before=true", "no setting 'before=true'; wanted key=value of: after=false"),
        ("torus:piece_bytes=0", "piece_bytes must be at least 1, got 0"),
        ("mg_wfbp:alpha=-1", "alpha, beta and seconds_per_byte must be at least 0 seconds; got alpha=-1.0"),
        ("flat:rank=2", "wanted key=value of: none"),
        ("ddp:bucket_bytes=4096", "no setting 'bucket_bytes=4096'"),  # a key of the config
    ],
)
def test_a_wrong_setting_says_what_there_is(label, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        comm.named_strategy(label)


def test_settings_stand_behind_the_name():
    strategy = comm.named_strategy("bmuf:every=4:block_momentum=0.5:with_optimizer=true")
    assert strategy.name == "bmuf:every=4:block_momentum=0.5:with_optimizer=true"
    assert strategy.schedule.every == 4
    assert strategy.schedule.block.momentum == 0.5
    assert strategy.schedule.with_optimizer
    shapes = [jax.ShapeDtypeStruct((64, 64), "float32")]
    sent = [
        sum(c.wire_bytes for c in comm.named_strategy(label).reducer.plan(shapes, {"host": 2, "device": 1}).collectives)
        for label in ("powersgd:rank=1", "powersgd:rank=4")
    ]
    assert sent[1] == 4 * sent[0]


@pytest.mark.parametrize(
    ("name", "bucket_bytes", "words", "settings"),
    [
        ("top_k:fraction=0.001", None, "the largest 0.1 % of each", {"fraction": 0.001}),
        ("powersgd:rank=8", None, "factors of rank 8", {"rank": 8}),
        ("ddp", 4 * comm.MiB, "1 MiB then 4 MiB", {"after": False}),
        ("per_leaf:after=true", None, "a leaf, after backward", {"after": True}),
        ("horovod", 64 * comm.MiB, "fit into 64 MiB", {}),
    ],
)
def test_a_summary_and_the_settings_are_those_in_force(name, bucket_bytes, words, settings):
    assert words in comm.named_strategy(name, bucket_bytes).summary
    assert comm.settings_of(name) == settings


@pytest.mark.parametrize("name", ["per_leaf", "ddp", "hierarchical"])
def test_the_same_messages_may_wait_for_the_end_of_backward(name):
    soon, late = comm.named_strategy(name), comm.named_strategy(f"{name}:after=true")
    assert (soon.schedule, late.schedule) == ("during", "after")
    assert repr(late.reducer) == repr(soon.reducer)


@pytest.mark.parametrize("name", comm.STRATEGIES)
def test_every_default_can_be_given(name):
    given = {key: value for key, value in comm.settings_of(name).items() if value is not None}
    label = ":".join([name, *(f"{key}={str(value).lower()}" for key, value in given.items())])
    assert comm.named_strategy(label).schedule == comm.named_strategy(name).schedule
