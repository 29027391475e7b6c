"""The law of `cut`: the pieces, run in turn, compute what the function does, each only what its group needs."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxnet.comm.cut import cut, first_reads, result_turns
from jaxnet.comm.order import backward_order


def shapes_of(tree):
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), tree)


def run(pieces, *arguments, compiled=True):
    """The results in the order of the groups; each value is dropped when it is said to be of no more use."""
    values = dict(enumerate(jax.tree.leaves(arguments)))
    results = []
    for program in pieces.programs:
        function = jax.jit(program.run) if compiled else program.run
        given = function(*(values[number] for number in program.reads))
        values.update(zip(program.gives, given, strict=True))
        results.append([values[number] for number in program.results])
        for number in program.drops:
            del values[number]
    for number, value in values.items():
        assert number < len(jax.tree.leaves(arguments)), f"value {number}, {value.shape}, was never dropped"
    return results


def assert_shapes(pieces, *arguments):
    values = dict(enumerate(jax.tree.leaves(arguments)))
    for program in pieces.programs:
        values |= zip(program.gives, program.run(*(values[number] for number in program.reads)), strict=True)
    assert [(v.shape, v.dtype) for _, v in sorted(values.items())] == [(s.shape, s.dtype) for s in pieces.shapes]


def network(widths, skip, integers):
    """A loss over a few layers of parameters, some of which are used twice."""
    draw = np.random.default_rng(len(widths))

    def loss(params, x):
        for index, (kernel, bias) in enumerate(params):
            y = x @ kernel + bias[None]
            y = y * (y > 0).astype(y.dtype)
            x = y + x if skip and y.shape == x.shape else y
            if index == 1:
                x = x * params[0][1].sum()
        return (x * x).sum()

    def number(shape):
        values = draw.integers(-2, 3, shape) if integers else draw.standard_normal(shape) / 3
        return jnp.asarray(values.astype(np.float32))

    params = [(number((a, b)), number((b,))) for a, b in itertools.pairwise(widths)]
    return loss, params, number((3, widths[0]))


@st.composite
def cases(draw):
    widths = draw(st.lists(st.sampled_from([1, 3]), min_size=2, max_size=5))  # few shapes: each is compiled anew
    leaves = 2 * (len(widths) - 1)
    order = draw(st.permutations(range(leaves)))
    cuts = sorted(draw(st.sets(st.integers(1, leaves - 1), max_size=4)))
    groups = [order[a:b] for a, b in zip([0, *cuts], [*cuts, leaves], strict=True)]
    turns = draw(st.none() | st.lists(st.integers(0, 3), min_size=leaves + 1, max_size=leaves + 1))
    return widths, draw(st.booleans()), draw(st.booleans()), groups, turns


@settings(max_examples=40)
@given(cases())
def test_the_pieces_in_turn_are_the_gradient(case):
    """In small integers to the last bit, whatever the groups and their order, and when the arguments are there."""
    widths, skip, integers, groups, turns = case
    loss, params, x = network(widths, skip, integers)
    pieces = cut(lambda p, x: jax.tree.leaves(jax.grad(loss)(p, x)), shapes_of((params, x)), groups, turns)
    wanted = jax.tree.leaves(jax.grad(loss)(params, x))
    got = [values for values in run(pieces, params, x, compiled=False) if values]
    for group, values in zip(groups, got, strict=True):
        for place, value in zip(group, values, strict=True):
            if integers:
                np.testing.assert_array_equal(value, wanted[place])
            np.testing.assert_allclose(value, wanted[place], rtol=1e-5, atol=1e-5)
    assert_shapes(pieces, params, x)


def products(program, shapes):
    jaxpr = jax.make_jaxpr(program.run)(*(shapes[number] for number in program.reads))
    return sum(eqn.primitive.name == "dot_general" for eqn in jaxpr.jaxpr.eqns)


@pytest.mark.parametrize("outer", [jax.jit, lambda function: function])
def test_what_a_compiled_function_does_is_cut_too(outer):
    """Two layers by one compiled function, in a loss that may be compiled: the second's gradient needs no more
    products than it does uncompiled, and comes first."""

    def loss_by(layer):
        return lambda params, x: layer(layer(x, params["b"]), params["a"]).sum()

    plain = loss_by(lambda x, w: jnp.tanh(x @ w))
    loss = outer(loss_by(jax.jit(lambda x, w: jnp.tanh(x @ w))))
    arguments = ({name: jnp.full((2, 2), value) for name, value in (("a", 0.5), ("b", -0.25))}, jnp.ones((3, 2)))
    shapes = shapes_of(arguments)
    assert backward_order(jax.grad(loss), *shapes) == backward_order(jax.grad(plain), *shapes) == (0, 1)
    found, wanted = (
        cut(lambda p, x, f=f: jax.tree.leaves(jax.grad(f)(p, x)), shapes, [[0], [1]]) for f in (loss, plain)
    )
    for pieces in (found, wanted):
        assert [products(each, pieces.shapes) for each in pieces.programs] == [3, 2]
    for got, want in zip(run(found, *arguments), run(wanted, *arguments), strict=True):
        np.testing.assert_array_equal(got, want)


def test_a_piece_computes_only_what_its_group_waits_for():
    """Three layers: forward and the last weights' product, then two products a layer; nothing twice."""
    loss, params, x = network([4, 4, 4, 4], skip=False, integers=False)
    kernels = lambda p, x: [kernel for kernel, _ in jax.grad(loss)(p, x)]  # noqa: E731
    pieces = cut(kernels, shapes_of((params, x)), [[2], [1], [0]])
    assert [products(program, pieces.shapes) for program in pieces.programs] == [4, 2, 2]
    got = run(pieces, params, x)
    for (value,), (kernel, _) in zip(reversed(got), jax.grad(loss)(params, x), strict=True):
        np.testing.assert_allclose(value, kernel, rtol=1e-5)


def test_no_piece_waits_for_a_kernel_that_only_later_layers_need():
    """Three kernels, which arrive one after the other: two products of forward by themselves, then all of the rest."""
    loss, params, x = network([4, 4, 4, 4], skip=False, integers=False)
    kernels = lambda p, x: [kernel for kernel, _ in jax.grad(loss)(p, x)]  # noqa: E731
    pieces = cut(kernels, shapes_of((params, x)), [[2], [1], [0]], turns=[1, 1, 2, 2, 3, 3, 0])
    programs = [program for program in pieces.programs if program.reads]  # one makes constants
    assert [[n for n in program.reads if n < 6] for program in programs[:3]] == [[0, 1], [2, 3], [4, 5]]
    assert [len(program.results) for program in programs] == [0, 0, 1, 1, 1]
    assert [products(program, pieces.shapes) for program in programs] == [1, 1, 2, 2, 2]
    kernels_read = first_reads(loss, shapes_of((params, x)))[:6:2]
    assert kernels_read == sorted(kernels_read)


def test_a_reshaped_value_passes_once():
    """The gradient of a leaf goes into messages flat, and into the guard as it is: XLA would copy one of the two."""

    def function(x):
        leaf = jnp.sin(x)
        flat = leaf.reshape(-1)
        return [flat[:3], leaf.sum(), flat[3:]]

    pieces = cut(function, [jax.ShapeDtypeStruct((2, 3), "float32")], [[0], [1], [2]])
    passed = [set(program.gives) - set(program.results) for program in pieces.programs]
    assert [len(numbers) for numbers in passed] == [1, 0, 0]
    assert pieces.shapes[passed[0].pop()].shape == (2, 3)


def test_a_reshape_is_made_in_the_turn_that_reads_it():
    """Otherwise the piece of the first turn would give the reshaped value twice, once for each reader."""

    def function(x, kernel):
        flat = jnp.sin(x).reshape(1, -1)
        return [(flat @ kernel).sum(), flat.T @ flat]

    shapes = [jax.ShapeDtypeStruct((2, 3), "float32"), jax.ShapeDtypeStruct((6, 4), "float32")]
    pieces = cut(function, shapes, [[0], [1]], turns=[0, 1])
    assert [len(program.gives) for program in pieces.programs] == [1, 1, 1]


def test_a_result_is_there_in_the_turn_of_the_last_argument_that_it_depends_on():
    function = lambda a, b, c: [a + 1, a * b, c, a, 2.0]  # noqa: E731
    assert result_turns(function, [jax.ShapeDtypeStruct((), "float32")] * 3, [1, 3, 2]) == [1, 3, 2, 1, 0]


def test_a_group_that_is_there_already_has_a_program_of_nothing():
    def function(x):
        y = jnp.sin(x)
        return [y, jnp.cos(y)]

    pieces = cut(function, [jax.ShapeDtypeStruct((2,), "float32")], [[1], [0]])
    assert [(program.reads, program.gives) for program in pieces.programs] == [((0,), (1, 2)), ((), ())]
    x = jnp.arange(2.0)
    np.testing.assert_allclose(run(pieces, x), [[jnp.cos(jnp.sin(x))], [jnp.sin(x)]], rtol=1e-6)


def test_results_that_no_operation_makes():
    """Arguments, constants and numbers, one of them wanted twice and read before."""
    constant = jnp.arange(3.0)
    function = lambda x: [x, constant + x, constant, 2.0, constant, x]  # noqa: E731
    pieces = cut(function, [jax.ShapeDtypeStruct((3,), "float32")], [[1], [0, 2], [3], [4, 5]])
    x = jnp.ones(3)
    got = run(pieces, x)
    for values, wanted in zip(got, [[constant + 1], [x, constant], [2.0], [constant, x]], strict=True):
        for value, want in zip(values, wanted, strict=True):
            np.testing.assert_array_equal(value, want)


def test_random_keys_pass_from_piece_to_piece():
    def function(data):
        keys = jax.random.split(jax.random.wrap_key_data(data))
        return [jax.random.normal(keys[0], (2,)), jax.random.normal(keys[1], (2,))]

    data = jax.random.key_data(jax.random.key(0))
    pieces = cut(function, shapes_of([data]), [[0], [1]])
    for (got,), wanted in zip(run(pieces, data), function(data), strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_what_prints_still_prints(capsys):
    def function(x):
        jax.debug.print("saw {}", x)
        return [x + 1]

    run(cut(function, [jax.ShapeDtypeStruct((), "int32")], [[0]]), jnp.int32(7))
    jax.effects_barrier()
    assert capsys.readouterr().out == "saw 7\n"


@pytest.mark.parametrize("groups", [[[0]], [[0, 1], [1]], [[0], [2]]])
def test_groups_that_do_not_hold_each_result_once(groups):
    with pytest.raises(ValueError, match="groups must hold each of the 2 results once"):
        cut(lambda x: [x, x + 1], [jax.ShapeDtypeStruct((), "float32")], groups)
