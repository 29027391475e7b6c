"""The sum across hosts by MPI: its laws on real ranks, its plan and its errors."""

import functools
import hashlib
import re
import sys
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from jaxnet import comm
from jaxnet.comm import KiB, bucketed, mpi_all_reduce, scattered
from jaxnet.comm.mpi import ALGORITHMS
from support import laws
from support.mpirun import MpiRun, missing
from support.programs import Program, await_gone, write_program

needs_mpi = pytest.mark.skipif(missing() is not None, reason=missing() or "")
PLACES = [(1, 1), (2, 3), (3, 1)]
CASES = [*ALGORITHMS, "by_size"]
MORE_PLACES = [pytest.param(place, marks=pytest.mark.slow) for place in ((1, 2), (2, 1), (4, 2))]
every_place = pytest.mark.parametrize("place", [*PLACES, *MORE_PLACES], ids=lambda place: f"{place[0]}x{place[1]}")
every_case = pytest.mark.parametrize("case", CASES)


def reducer_of(case):
    """Buckets of a few hundred bytes, and one large enough for the ring where the size decides."""
    algorithm = None if case == "by_size" else case
    return bucketed(scattered("device", mpi_all_reduce(algorithm=algorithm)), 300 * KiB if algorithm is None else 300)


def example(rank, devices, case, integers):
    """Values [1, devices, ...] of one rank; half types where the case and XLA:CPU can send them."""
    draw = np.random.RandomState(rank)
    shapes = {"kernel": (7, 5), "bias": (5,), "scalar": (), "empty": (0, 3)}
    if case == "by_size":
        shapes |= {"large": (300, 256)}
    make = (lambda s: draw.randint(-8, 9, s)) if integers else draw.standard_normal
    values = {name: np.asarray(make((1, devices, *shape)), np.float32) for name, shape in shapes.items()}
    if case in ("tree", "ring"):
        values |= {"half": np.asarray(make((1, devices, 9)), np.float16)}
        if devices == 1:
            values |= {"brain": np.asarray(make((1, devices, 9))).astype(jnp.bfloat16)}
    return values


def digest(tree):
    return hashlib.sha256(b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(tree))).hexdigest()


def run_laws(devices):
    """On one rank: every case, measured against a plain sum of what all ranks hold."""
    from mpi4py import MPI

    world, devices = MPI.COMM_WORLD, int(devices)
    results = {}
    for case in CASES:
        reducer, mesh = reducer_of(case), comm.make_mesh(1)
        integers = example(world.rank, devices, case, integers=True)
        sums, _ = laws.run_reducer(reducer, mesh, integers)
        want = [example(rank, devices, case, integers=True) for rank in range(world.size)]
        exact = {
            k: np.array_equal(np.asarray(v, float), sum(w[k].astype(float).sum((0, 1)) for w in want))
            for k, v in sums.items()
        }
        floats = example(world.rank, devices, case, integers=False)
        once, again = (laws.run_reducer(reducer, mesh, floats, gather=True)[0] for _ in range(2))
        per_device = [jax.tree.map(lambda v, d=d: v[0, d], once) for d in range(devices)]
        shapes = jax.tree.map(lambda v: jax.ShapeDtypeStruct(v.shape[2:], v.dtype), floats)
        plan = reducer.plan(shapes, mesh.shape).collectives
        text = laws.lowered(reducer, mesh, floats).compile().as_text()
        check = comm.verify(text, plan, mesh.shape)
        results[case] = {
            "exact": exact,
            "bits": sorted({digest(values) for values in per_device}),
            "repeats": digest(once) == digest(again),
            "check": check.explain(),
            "found": check.ok and not check.extra,
            "calls": len([c for c in plan if c.transport == "mpi"]),
            "partners": partners(text) if devices == 1 else None,
            "planned_partners": planned_partners(plan, world.rank) if devices == 1 else None,
            "chained": chained(text),
            "wire_bytes": comm.wire_bytes_per_axis(plan).get("host", 0),
            "types": {name: str(value.dtype) for name, value in sums.items()},
        }
    return results


def partners(text):
    """(to, from) of each exchange of a compiled program in the order of its schedule; -2 is nobody."""
    calls = [line for line in text.splitlines() if "mpi_sendrecv_ffi" in line]
    return [[int(re.search(rf"\b{end} = (-?\d+)", call)[1]) for end in ("dest", "source")] for call in calls]


def planned_partners(plan, rank):
    from mpi4py import MPI

    hops = [c.pairs for c in plan if c.transport == "mpi" and c.kind == "collective-permute"]
    to = [dict(pairs).get(rank, MPI.PROC_NULL) for pairs in hops]
    source = [{b: a for a, b in pairs}.get(rank, MPI.PROC_NULL) for pairs in hops]
    return [list(pair) for pair in zip(to, source, strict=True)]


def chained(text):
    """Whether each MPI call of a computation takes the token of the one before, so that no rank can reorder them."""
    origin, last, good = {}, None, True
    for line in text.splitlines():
        if re.match(r"^\s*(ENTRY )?%?[\w.\-]+ \(.*\{$", line):
            last = None
        elif match := re.match(r"\s*(?:ROOT )?(%[\w.\-]+) = token\[\] get-tuple-element\((%[\w.\-]+)\), index=1", line):
            origin[match[1]] = match[2]
        elif match := re.match(r'\s*(%[\w.\-]+) = .* custom-call\((.*?)\), custom_call_target="mpi_', line):
            token = match[2].split(", ")[-1]
            good = good and (last is None or origin.get(token) == last)
            last = match[1]
    return good


@functools.cache
def results_on(place):
    ranks, devices = place
    with MpiRun(run_laws, ranks, str(devices), devices=devices) as run:
        return run.results()


@needs_mpi
@pytest.mark.processes
@every_place
@every_case
def test_laws_on_real_ranks(case, place):
    results = [result[case] for result in results_on(place)]
    assert len(results) == place[0]
    for result in results:
        assert all(result["exact"].values()), result["exact"]  # L1
        assert result["repeats"]  # L9
        assert result["found"], result["check"]  # L6
        assert result["chained"]
        assert result["partners"] == result["planned_partners"]
        assert bool(result["calls"]) == (place[0] > 1)  # L4
    assert len({bits for result in results for bits in result["bits"]}) == 1  # L3


def contract():
    """On one rank: what does not depend on the algorithm."""
    reducer, mesh = bucketed(scattered("device", mpi_all_reduce(algorithm="ring")), 64), comm.make_mesh(1)
    shapes = {"w": jax.ShapeDtypeStruct((33,), "float32")}
    traces = []

    def body(values, state):
        traces.append(1)
        return laws.body(reducer)(values, state)

    specs = (laws.PER_DEVICE, laws.PER_DEVICE)
    step = jax.jit(jax.shard_map(body, mesh=mesh, in_specs=specs, out_specs=(P(), laws.PER_DEVICE)))
    values = {"w": np.ones((1, mesh.size, 33), np.float32)}
    state = laws.stacked_state(reducer, mesh, values)
    for _ in range(3):
        sums, state = step(values, state)

    def summed_already(params, x):
        grads = jax.grad(lambda p: (p["w"] * x.sum()).sum())(params)
        return reducer.reduce(grads, reducer.init(grads, mesh.shape))[0]

    wrong = jax.jit(jax.shard_map(summed_already, mesh=mesh, in_specs=(P(), P(comm.AXES)), out_specs=P()))
    return {
        "traces": len(traces),
        "sum": float(sums["w"][0]),
        "state": str(reducer.init(shapes, mesh.shape)) == str(jax.tree.map(np.asarray, state)),
        "summed_already": said(TypeError, wrong, {"w": jnp.ones(3)}, jnp.ones(mesh.size)),
        "derivative": said(TypeError, derivative, mesh),
        "two_hosts": said(ValueError, reducer.plan, shapes, {"host": 2, "device": 1}),
        "odd_length": said(ValueError, mpi_all_reduce().plan, jax.ShapeDtypeStruct((3,), "float32"), mesh.shape),
        "unknown": said(ValueError, functools.partial(mpi_all_reduce, algorithm="star")),
        "half_in_library": said(ValueError, half_in_library, mesh),
        "in_a_branch": [c.ok and not c.extra for c in (in_a_branch(mesh, first) for first in (True, False))],
    }


def in_a_branch(mesh, first):
    """The check of a program that sums in a branch of a condition, in a loop."""
    reducer = mpi_all_reduce(algorithm="library")

    def travel(x):
        return jax.lax.pcast(reducer.reduce(x, ())[0], "host", to="varying")

    def once(x, _):
        branches = (travel, jnp.tanh) if first else (jnp.tanh, travel)
        return jax.lax.cond(x[0] > 0, *branches, x), None

    mapped = jax.shard_map(
        lambda x: jax.lax.scan(once, x, None, length=3)[0], mesh=mesh, in_specs=P(comm.AXES), out_specs=P(comm.AXES)
    )
    text = jax.jit(mapped).lower(jnp.ones(4 * mesh.size)).compile().as_text()
    planned = reducer.plan(jax.ShapeDtypeStruct((4,), "float32"), mesh.shape).collectives
    return comm.verify(text, planned, mesh.shape)


def half_in_library(mesh):
    values = {"w": np.ones((1, mesh.size, 4), np.float16)}
    laws.lowered(bucketed(scattered("device", mpi_all_reduce(algorithm="library")), None), mesh, values)


def derivative(mesh):
    square = lambda x: jnp.vdot(*[mpi_all_reduce().reduce(x, ())[0]] * 2)  # noqa: E731
    mapped = jax.shard_map(jax.grad(square), mesh=mesh, in_specs=P(comm.AXES), out_specs=P(comm.AXES))
    jax.eval_shape(mapped, jnp.ones(4 * mesh.size))


def said(kind, call, *arguments):
    try:
        call(*arguments)
    except kind as error:
        return str(error)
    return ""


@needs_mpi
@pytest.mark.processes
def test_contract_of_a_reducer():
    with MpiRun(contract, 2, devices=2) as run:
        for result in run.results():
            assert result["traces"] == 1  # L8
            assert result["state"]
            assert result["sum"] == 4
            assert "already the same on every device" in result["summed_already"]
            assert "mpi_all_reduce(...) has no derivative" in result["derivative"]
            assert "make_mesh(1)" in result["two_hosts"]
            assert "bucketed" in result["odd_length"]
            assert "library, tree, ring" in result["unknown"]
            assert "algorithm='ring' or 'tree'" in result["half_in_library"]
            assert result["in_a_branch"] == [True, True]  # L6


def run_strategies():
    """On one rank: every named strategy that takes another all-reduce, on whole numbers that float16 holds too."""
    from mpi4py import MPI

    world, mesh, results = MPI.COMM_WORLD, comm.make_mesh(1), {}
    held = [example(rank, mesh.size, "library", integers=True) for rank in range(world.size)]
    for name in filter(comm.takes_all_reduce, comm.STRATEGIES):
        reducer = comm.named_strategy(name, all_reduce=mpi_all_reduce).reducer
        sums, _ = laws.run_reducer(reducer, mesh, held[world.rank])
        shapes = jax.tree.map(lambda v: jax.ShapeDtypeStruct(v.shape[2:], v.dtype), held[0])
        text = laws.lowered(reducer, mesh, held[world.rank]).compile().as_text()
        check = comm.verify(text, reducer.plan(shapes, mesh.shape).collectives, mesh.shape)
        exact = [np.array_equal(np.asarray(v, float), sum(w[k].sum((0, 1)) for w in held)) for k, v in sums.items()]
        results[name] = [all(exact), check.ok, check.explain()]
    return results


@needs_mpi
@pytest.mark.processes
def test_named_strategies_sum_over_the_ranks():
    with MpiRun(run_strategies, 2, devices=2) as run:
        for results in run.results():
            assert len(results) == 9
            assert all(exact and ok for exact, ok, _ in results.values()), results


def many_programs():
    """On one rank: two programs in flight, many buckets, devices of one process at different speeds."""
    from mpi4py import MPI

    mesh, rank = comm.make_mesh(1), MPI.COMM_WORLD.rank
    reducers = [bucketed(scattered("device", mpi_all_reduce(algorithm=a)), 1 * KiB) for a in ("ring", "library")]

    def work(reducer, x):
        slow = jax.lax.fori_loop(0, jax.lax.axis_index("device") * 50, lambda _, v: jnp.tanh(v @ v), jnp.ones((64, 64)))
        return reducer.reduce(x[0] + 0 * slow[0, 0], reducer.init(x[0], mesh.shape))[0]

    steps = [
        jax.jit(jax.shard_map(functools.partial(work, r), mesh=mesh, in_specs=P(comm.AXES), out_specs=P()))
        for r in reducers
    ]
    x = np.arange(mesh.size * 4096, dtype=np.float32).reshape(mesh.size, 4096) % 17 * (rank + 1)
    outcomes = [step(x) for _ in range(10) for step in steps]
    want = sum(x.sum(0) / (rank + 1) * (r + 1) for r in range(MPI.COMM_WORLD.size))
    return [bool((np.asarray(outcome) == want).all()) for outcome in outcomes]


@needs_mpi
@pytest.mark.processes
def test_devices_and_programs_do_not_take_each_others_messages():
    with MpiRun(many_programs, 2, devices=4) as run:
        assert all(all(outcomes) for outcomes in run.results())


def hang():
    from mpi4py import MPI

    sys.stdout.write(f"rank {MPI.COMM_WORLD.rank} is up\n")  # in one piece: mpirun mixes what ranks write
    sys.stdout.flush()
    threading.Event().wait()


@needs_mpi
@pytest.mark.processes
def test_nothing_is_left_of_ranks_that_hang():
    with MpiRun(hang, 2) as run:
        run.wait_for("rank 0", "rank 1")
        processes = run.processes()
    assert len(processes) >= 3
    await_gone(*processes)


@needs_mpi
@pytest.mark.processes
def test_several_processes_without_mpirun_are_refused(tmp_path):
    program = write_program(tmp_path, "from jaxnet.comm.mpi import mpi_all_reduce\nmpi_all_reduce()")
    with Program([sys.executable, program], JAX_NUM_PROCESSES="2") as run:
        assert run.finish() == 1
        assert "JAX_NUM_PROCESSES=2 says" in run.err[-1]
        assert "start them with mpirun" in run.err[-1]
