"""Reducers in a loop of the user's own, their orders and refusals, and the mesh."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

from jaxnet import comm
from jaxnet.comm import MiB, all_reduce, bucketed, cast, codecs, in_order, scattered


def test_as_the_first_link_of_an_optax_chain():
    mesh = comm.make_mesh(2, jax.devices()[:8])
    average = comm.as_gradient_transformation(bucketed(scattered("device", all_reduce("host")), MiB), mesh.shape)
    optimizer = optax.chain(average, optax.sgd(0.5, momentum=0.9))
    params = {"w": jnp.ones((3, 2)), "b": jnp.zeros(2)}
    x = np.random.RandomState(0).standard_normal((16, 3)).astype(np.float32)

    def loss(params, x):
        return ((x @ params["w"] + params["b"][None]) ** 2).mean()

    def step(params, state, x):
        varying = jax.tree.map(lambda p: lax.pcast(p, comm.AXES, to="varying"), params)
        updates, state = optimizer.update(jax.grad(loss)(varying, x), state, params)
        return optax.apply_updates(params, updates), state

    specs = (P(), P(), P(comm.AXES))
    mapped = jax.jit(jax.shard_map(step, mesh=mesh, in_specs=specs, out_specs=(P(), P())))
    ours, state = params, optimizer.init(params)
    plain = optax.sgd(0.5, momentum=0.9)
    wanted, plain_state = params, plain.init(params)
    for _ in range(3):
        ours, state = mapped(ours, state, x)
        updates, plain_state = plain.update(jax.grad(loss)(wanted, x), plain_state)
        wanted = optax.apply_updates(wanted, updates)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)


def test_on_axes_with_names_of_the_users_own():
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:4]), ("data",))
    reducer = bucketed(all_reduce("data"), 8)

    def sum_over_data(x):
        return reducer.reduce({"x": x[0]}, reducer.init({"x": x[0]}, mesh.shape))[0]["x"]

    mapped = jax.shard_map(sum_over_data, mesh=mesh, in_specs=P("data"), out_specs=P())
    np.testing.assert_array_equal(mapped(jnp.arange(12.0).reshape(4, 3)), [18, 22, 26])


def test_order_decides_which_leaves_travel_together_and_nothing_else():
    shapes = [jax.ShapeDtypeStruct((size,), "float32") for size in (1, 2, 3)]
    plan = in_order((2, 0, 1), bucketed(all_reduce("host"), 16)).plan(shapes, {"host": 2})
    assert [bucket.size for bucket in plan.buckets.buckets] == [4, 2]


def test_an_order_that_is_no_permutation_is_refused():
    with pytest.raises(ValueError, match="permutation of the 2 leaves"):
        in_order((0, 0), bucketed(all_reduce("host"), None)).plan([jnp.ones(1), jnp.ones(1)], {"host": 2})


def test_backward_order_follows_the_layers_not_the_names():
    def loss(params, x):
        for name in ("z", "a", "m"):
            x = jnp.tanh(x @ params[name])
        return x.sum()

    square = jax.ShapeDtypeStruct((4, 4), "float32")
    shapes = {"a": square, "m": square, "z": square}
    order = comm.backward_order(jax.grad(loss), shapes, jax.ShapeDtypeStruct((2, 4), "float32"))
    assert [sorted(shapes)[index] for index in order] == ["m", "a", "z"]


def test_a_message_that_does_not_divide_is_refused_with_the_way_out():
    mesh = comm.make_mesh(1, jax.devices()[:4])
    reducer = scattered("device", all_reduce("host"))
    mapped = jax.shard_map(lambda x: reducer.reduce(x, ())[0], mesh=mesh, in_specs=P(comm.AXES), out_specs=P())
    with pytest.raises(ValueError, match=r"length divides by 4.*bucketed"):
        mapped(jnp.ones(20))


@pytest.mark.parametrize(
    "reducer",
    [
        *(all_reduce("host"), scattered("device", all_reduce("host")), cast("float16", all_reduce("host"))),
        *(comm.ring("host"), comm.halving_doubling("host"), comm.rooted("host")),
        *(comm.compressed("host", codec=codecs.int8()), comm.compressed_scattered("host", codec=codecs.int8())),
    ],
)
def test_a_tree_is_no_message(reducer):
    mesh = comm.make_mesh(2, jax.devices()[:4])
    words = "the message is a dict, and a bucket reducer takes one array of one dim"
    with pytest.raises(TypeError, match=words):
        reducer.plan({"w": jax.ShapeDtypeStruct((4,), "float32")}, mesh.shape)
    mapped = jax.shard_map(lambda x: reducer.reduce({"w": x}, ())[0], mesh=mesh, in_specs=P(comm.AXES), out_specs=P())
    with pytest.raises(TypeError, match=words):
        mapped(jnp.ones(16))


@pytest.mark.parametrize("make", [all_reduce, comm.ring, comm.rooted, lambda axis: scattered(axis, all_reduce())])
def test_an_axis_that_is_not_there_is_named(make):
    with pytest.raises(ValueError, match="the mesh has no axis 'hosts', only 'host', 'device'"):
        bucketed(make("hosts"), None).plan([jax.ShapeDtypeStruct((8,), "float32")], {"host": 2, "device": 2})


PACKED = bucketed(all_reduce("host"), None)
MADE_WRONG = {
    "not called": (lambda: bucketed(all_reduce, MiB), "takes a reducer, .* got the function all_reduce: call it"),
    "no reducer": (lambda: scattered("device", "host"), "a sum over 'device' takes a reducer, .* got a str"),
    "half a MiB": (lambda: bucketed(all_reduce("host"), 0.5 * MiB), "bucket_bytes is 524288.0; wanted a whole number"),
    "as text": (lambda: bucketed(all_reduce("host"), None, first_bucket_bytes="1MiB"), "first_bucket_bytes is '1MiB'"),
    "nothing": (lambda: bucketed(all_reduce("host"), 0), "bucket_bytes must be at least 1, got 0"),
    "half a bucket in flight": (lambda: bucketed(all_reduce("host"), None, in_flight=1.5), "in_flight is 1.5; wanted"),
    "half a column": (
        lambda: comm.powersgd(2.5, PACKED, all_reduce("host")),
        "rank is 2.5; wanted a whole number from 1 on",
    ),
    "half a step": (lambda: comm.Averaging(every=2.5), "averaging: every is 2.5; wanted a whole number from 1 on"),
    "half an element": (lambda: codecs.int8(block=1.5), "block is 1.5; wanted a whole number from 1 on"),
    "codec by name": (lambda: comm.compressed("host", codec="int8"), "wanted a codec, .* got 'int8'"),
    "codec uncalled": (lambda: comm.compressed("host", codec=codecs.int8), "got the function int8: call it"),
    "axes in one": (lambda: all_reduce(comm.AXES), r"names of mesh axes, .* got \('host', 'device'\)"),
    "axes in a list": (lambda: all_reduce(["host"]), r"names of mesh axes, .* got \['host'\]"),
    "an axis twice": (lambda: comm.compressed_scattered("host", "host", codec=codecs.int8()), "each once"),
    "a factor": (lambda: comm.factored("device", (2,), lambda near, far: scattered(near, all_reduce(far))), "a factor"),
}


@pytest.mark.parametrize("case", MADE_WRONG)
def test_what_a_reducer_is_made_of_is_looked_at_where_it_is_made(case):
    make, said = MADE_WRONG[case]
    with pytest.raises((TypeError, ValueError), match=said):
        make()


@pytest.mark.parametrize("make", [comm.compressed, comm.compressed_scattered])
def test_the_state_of_another_plan_is_refused(make):
    mesh = comm.make_mesh(2, jax.devices()[:2])
    reducer, other = (bucketed(make("host", codec=codecs.int8()), size) for size in (None, 32))
    state = other.init([jax.ShapeDtypeStruct((8,), "float32")], mesh.shape)
    mapped = jax.shard_map(
        lambda x: reducer.reduce([x, x], state)[0], mesh=mesh, in_specs=P(comm.AXES), out_specs=[P(), P()]
    )
    with pytest.raises(ValueError, match="the message has 16 elements and its residual 8: the state is that of"):
        mapped(jnp.ones(16))


def test_a_loop_inside_shard_map_carries_the_state():
    mesh = comm.make_mesh(2, jax.devices()[:4])
    reducer = bucketed(comm.compressed_scattered(*comm.AXES, codec=codecs.int8()), None)

    def sums(x):
        def body(state, _):
            totals, state = reducer.reduce([x], state)
            return state, totals[0]

        state = lax.pcast(reducer.init([x], mesh.shape), comm.AXES, to="varying")
        return lax.scan(body, state, None, length=3)[1]

    mapped = jax.jit(jax.shard_map(sums, mesh=mesh, in_specs=P(comm.AXES), out_specs=P()))
    x = jnp.linspace(-1, 1, 64)
    np.testing.assert_allclose(mapped(x).sum(0), 3 * x.reshape(4, 16).sum(0), atol=0.1)


def test_cast_sends_half_the_bytes():
    spec = [jax.ShapeDtypeStruct((1000,), "float32")]
    wide, narrow = (bucketed(inner, None) for inner in (all_reduce("host"), cast("float16", all_reduce("host"))))
    sent = [comm.wire_bytes_per_axis(reducer.plan(spec, {"host": 4}).collectives)["host"] for reducer in (wide, narrow)]
    assert sent == [6000, 3000]


def test_hierarchy_sends_a_share_of_the_bytes_across_hosts():
    spec = [jax.ShapeDtypeStruct((8000,), "float32")]
    plan = bucketed(scattered("device", all_reduce("host")), None).plan(spec, {"host": 2, "device": 8})
    assert comm.wire_bytes_per_axis(plan.collectives) == {"device": 2 * 28_000, "host": 4_000}


def test_a_mesh_of_no_devices_is_refused():
    with pytest.raises(ValueError, match="devices is empty"):
        comm.make_mesh(devices=[])


def test_the_mesh_puts_neighbours_in_a_row():
    mesh = comm.make_mesh(2, jax.devices()[:6])
    assert [[device.id for device in row] for row in mesh.devices] == [[0, 1, 2], [3, 4, 5]]
    with pytest.raises(ValueError, match="6 devices do not divide into 4 hosts"):
        comm.make_mesh(4, jax.devices()[:6])


class FakeDevice:
    """A device of a cluster that is not here."""

    def __init__(self, platform, index, process, slice_index):
        self.platform, self.id, self.process_index, self.slice_index = platform, index, process, slice_index


@pytest.mark.parametrize(
    ("platform", "slices", "processes", "hosts"),
    [
        ("cpu", [None] * 8, [0] * 4 + [1] * 4, 2),  # two processes
        ("gpu", [0] * 4 + [1] * 4, [0] * 4 + [1] * 4, 2),  # two machines, a process each
        ("gpu", [0] * 4 + [1] * 4, range(8), 2),  # two machines, a process a GPU
        ("gpu", [0] * 8, range(8), 1),  # one machine, a process a GPU
        ("gpu", [0] * 8, [0] * 8, 1),
    ],
)
def test_hosts_are_what_the_fast_links_join(platform, slices, processes, hosts):
    devices = [FakeDevice(platform, *each) for each in zip(range(8), processes, slices, strict=True)]
    mesh = comm.make_mesh(devices=list(reversed(devices)))
    assert mesh.devices.shape == (hosts, 8 // hosts)
    assert [device.id for device in mesh.devices.flat] == list(range(8))


class FakeTPU(FakeDevice):
    """A chip of a slice, whose processes have blocks of 2 x 2."""

    core_on_chip = 0

    def __init__(self, index, *coords):
        super().__init__("tpu", index, coords[0] // 2 * 8 + coords[1] // 2 * 2 + coords[-1], 0)
        self.coords = coords


@pytest.mark.parametrize("sizes", [(4, 4, 1), (8, 8, 1), (2, 4, 1), (2, 2, 4), (4, 1, 1)], ids=str)
def test_a_row_of_tpus_is_a_line_of_their_torus(sizes):
    devices = [FakeTPU(index, *coords) for index, coords in enumerate(np.ndindex(sizes))]
    mesh = comm.make_mesh(devices=list(reversed(devices)))
    length = [size for size in sizes if size > 1][-1]
    assert mesh.devices.shape == (len(devices) // length, length)
    for row in mesh.devices:
        steps = np.diff([device.coords for device in row], axis=0)
        assert (np.abs(steps).sum(1) == 1).all()
    assert comm.make_mesh(2, devices).devices.shape == (2, len(devices) // 2)


def test_without_the_cast_jax_has_already_summed_and_one_more_sum_would_multiply():
    """Why the guard exists: the factor of 8 that it prevents, with the guard out of the way."""
    mesh = comm.make_mesh(1, jax.devices()[:8])

    def grads(w, x, cast_first):
        w = lax.pcast(w, comm.AXES, to="varying") if cast_first else w
        grad = jax.grad(lambda w: (w * x).sum())(w)
        return lax.psum(grad, comm.AXES)

    def run(cast_first):
        f = jax.shard_map(lambda w, x: grads(w, x, cast_first), mesh=mesh, in_specs=(P(), P(comm.AXES)), out_specs=P())
        return float(f(jnp.ones(()), jnp.arange(8.0)))

    assert run(cast_first=True) == 28
    assert run(cast_first=False) == 8 * 28
