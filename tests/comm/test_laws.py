"""`judge` finds the broken law, and finds none in a strategy of ours."""

import jax
import pytest
from jax import lax

from jaxnet import comm
from jaxnet.comm import all_reduce, bucketed
from support.laws import reducer_of

ALL = all_reduce(*comm.AXES)
ALL_LAWS = {"sum", "same", "linear", "state", "plan"}
LOSSY = {"fp16", "bf16", "int8", "cntk_1bit", "mxnet_2bit", "top_k", "powersgd"}


def broken(judgement):
    return {law for law in ALL_LAWS if not getattr(judgement, law)}


FEW = ("hierarchical", "s_caffe_hr", "zero", "int8", "powersgd")


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] * (n not in FEW)) for n in comm.STRATEGIES if n != "xla"]
)
def test_a_strategy_keeps_the_laws(name):
    found = comm.judge(reducer_of(name), comm.make_mesh(2, jax.devices()[:4]))
    allowed = {"sum", "linear"} if name in LOSSY - {"fp16", "bf16"} else set()
    assert broken(found) <= allowed, str(found)


def of(reduce=None, plan=None, init=None):
    return bucketed(
        ALL._replace(**{k: v for k, v in {"reduce": reduce, "plan": plan, "init": init}.items() if v}), 1024
    )


def forgets_hosts(message, state):
    return comm.same_along(lax.psum(message, "device"), ("host",)), state


def squares(message, state):
    total, state = ALL.reduce(message, state)
    return total * abs(total), state


def leaves_out(spec, axis_sizes):
    return comm.Plan(())


def grows(message, state):
    return ALL.reduce(message, ())[0], (message,)


WRONG = {
    "forgets the hosts": (of(forgets_hosts), {"sum", "same", "plan"}),
    "is not linear": (of(squares), {"sum", "linear"}),
    "another state": (of(grows), {"state"}),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_broken_law_is_found_and_no_other(case):
    reducer, laws = WRONG[case]
    found = comm.judge(reducer, comm.make_mesh(2, jax.devices()[:4]))
    assert broken(found) == laws
    assert all(f"{law} IS BROKEN" in str(found) for law in laws)


def test_what_forgets_the_hosts_is_right_on_one():
    assert broken(comm.judge(of(forgets_hosts), comm.make_mesh(1, jax.devices()[:4]))) == set()


def test_a_plan_that_leaves_something_out_is_found():
    reducer = comm.Reducer(lambda *_: (), lambda grads, state: (lax.psum(grads, comm.AXES), state), leaves_out)
    found = comm.judge(reducer, comm.make_mesh(2, jax.devices()[:4]))
    assert broken(found) == {"plan"}
    assert "nothing planned" in str(found)
