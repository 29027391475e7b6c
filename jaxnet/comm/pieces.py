"""A step as several programs: some compute messages, others sum them, and two threads launch them so that they overlap.

    this thread      piece 0 ------- piece 1 ------- piece 2 ------- update
    a helper                 sum 0 ---------- sum 1 ---------- sum 2

Two properties of PJRT's CPU client decide the form:

- A program compiled for several devices waits for the one such program before it. So what computes is compiled for
  this process's device alone, and only the sums span the mesh.
- A program waits for the one that the same thread launched before it. So a second thread launches the sums.
"""

import itertools
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import jax
from jax.sharding import Mesh, PartitionSpec, SingleDeviceSharding

from jaxnet.comm.buckets import BucketPlan, pack, unpack
from jaxnet.comm.cut import PieceProgram, cut
from jaxnet.comm.mesh import AXES, DEVICE, HOST, mesh_size, one_per_device, platform_of, replicated, split_by_example
from jaxnet.comm.order import in_place, reordered
from jaxnet.comm.platforms import compiler_options
from jaxnet.comm.reducer import AxisSizes, PyTree, Reducer

# ---- Messages ----


@dataclass(frozen=True, eq=False)
class Messages:
    """How a tree becomes messages, and sums of messages a tree, for programs that send each message by itself.

    Attributes:
        reducer: sums one message.
        buckets: how leaves, in `order`, map to messages.
        order: of the leaves.
        tree: the structure of the values.
    """

    reducer: Reducer
    buckets: BucketPlan
    order: tuple[int, ...]
    tree: jax.tree_util.PyTreeDef

    @property
    def specs(self) -> list[jax.ShapeDtypeStruct]:
        """Shape and dtype of each message."""
        return [bucket.spec for bucket in self.buckets.buckets]

    def pack(self, values: PyTree) -> list[jax.Array]:
        """The messages: arrays of one dim."""
        return pack(self.buckets, reordered(jax.tree.leaves(values), self.order))

    def unpack(self, sums: Sequence[jax.Array]) -> PyTree:
        """The tree again: `unpack(pack(values))` is `values`."""
        return jax.tree.unflatten(self.tree, in_place(unpack(self.buckets, sums), self.order))


def messages_of(
    reducer: Reducer, shapes: PyTree, axis_sizes: AxisSizes, order: Sequence[int] | None = None
) -> Messages:
    """The messages in which a tree reducer sums values of these shapes, taking leaves in `order`.

    Raises:
        ValueError: the messages of this reducer depend on each other, or it makes none.

    >>> from jaxnet.comm import all_reduce, bucketed
    >>> reducer, shapes = bucketed(all_reduce("host"), 16), {"w": jax.ShapeDtypeStruct((6,), "float32")}
    >>> messages = messages_of(reducer, shapes, {"host": 2})
    >>> [spec.shape for spec in messages.specs]
    [(3,), (3,)]
    """
    leaves, tree = jax.tree.flatten(shapes)
    order = tuple(range(len(leaves))) if order is None else tuple(order)
    buckets = reducer.plan(reordered(leaves, order), axis_sizes).buckets
    if reducer.message is None or buckets is None:
        raise ValueError("the reducer does not sum its messages one by one, as `bucketed` and `grouped` do")
    return Messages(reducer.message, buckets, order, tree)


# ---- Programs, launched ----


PIECE, SUM, UPDATE = "step_piece", "step_sum", "step_update"
"""The names of the programs, in traces too: those that compute, those that sum, and the one that uses the sums."""


class HasText(Protocol):
    """A program, lowered or compiled."""

    def as_text(self) -> str | None: ...


class Message(NamedTuple):
    """A message of one dim, the bucket reducer that sums it, and the scope in which it does."""

    reducer: Reducer
    spec: jax.ShapeDtypeStruct
    scope: str = "bucket"


class Launch:
    """`launch(arguments, states) -> (sums, states)`: the messages of a function, summed over the mesh.

    Arguments and sums are on the one device of this process. The states of the reducers, one a message, are on the
    mesh, [hosts, devices, ...]; they are donated unless lowered with `keep`. All processes must make the same calls.

    The call raises an error of either thread; programs that were not launched by then are not launched.
    """

    def __init__(
        self,
        pieces: Sequence[tuple[PieceProgram, jax.stages.Compiled]],
        sums: Sequence[jax.stages.Compiled],
        mesh: Mesh,
    ) -> None:
        self._pieces = pieces
        self._sums = sums
        self._mesh = mesh
        self._helper = ThreadPoolExecutor(1, "reductions")

    def __call__(self, arguments: PyTree, states: Sequence[PyTree]) -> tuple[list[jax.Array], list[PyTree]]:
        values = dict(enumerate(jax.tree.leaves(arguments)))
        stop = threading.Event()
        travelling: list[Future[tuple[jax.Array, PyTree]]] = []
        try:
            for piece, program in self._pieces:
                if stop.is_set():
                    break  # a sum failed: its future raises the error below
                # 1. Compute. A piece of a group whose results exist already has nothing to run.
                if piece.reads or piece.gives:
                    values.update(zip(piece.gives, program(*(values[number] for number in piece.reads)), strict=True))
                # 2. Hand each message to the helper, which launches the sums one after the other.
                for number in piece.results:
                    place = len(travelling)
                    travelling.append(self._helper.submit(self._sum, place, values[number], states[place], stop))
                # 3. Free what no later piece reads.
                for number in piece.drops:
                    values.pop(number)
            # 4. Wait until all sums have been launched; their values may still be under way.
            done = [future.result() for future in travelling]
        except BaseException:
            stop.set()
            raise
        return [total for total, _ in done], [state for _, state in done]

    def as_text(self) -> str:
        """All programs, in the order in which they are launched."""
        return _text(self._pieces, self._sums)

    # Runs in the helper thread. The first error stops both threads: nothing more is launched.
    def _sum(self, place: int, message: jax.Array, state: PyTree, stop: threading.Event) -> tuple[jax.Array, PyTree]:
        if stop.is_set():
            raise CancelledError
        try:
            shape = (mesh_size(self._mesh) * message.size,)
            spread = jax.make_array_from_single_device_arrays(shape, split_by_example(self._mesh), [message])
            total, state = self._sums[place](spread, state)
            return total.addressable_data(0), state
        except BaseException:
            stop.set()
            raise


class LoweredLaunch(NamedTuple):
    """A `Launch` before compilation. Equal messages share a program."""

    pieces: list[tuple[PieceProgram, jax.stages.Lowered]]
    sums: list[jax.stages.Lowered]
    mesh: Mesh

    def compile(self, compiler_options: Mapping[str, str | bool] | None = None) -> Launch:
        """Compile each program once; with `compiler_options`, as `jax.jit` takes them, each piece."""
        sums = {id(lowered): lowered for lowered in self.sums}
        compiled = {key: lowered.compile() for key, lowered in sums.items()}
        options = None if compiler_options is None else dict(compiler_options)
        pieces = [(piece, lowered.compile(compiler_options=options)) for piece, lowered in self.pieces]
        return Launch(pieces, [compiled[id(lowered)] for lowered in self.sums], self.mesh)

    def as_text(self) -> str:
        """All programs, in the order in which they are launched."""
        return _text(self.pieces, self.sums)


def lower_launch(
    function: Callable[..., Sequence[jax.Array]],
    shapes: Sequence[PyTree],
    summed: Sequence[Message],
    mesh: Mesh,
    *,
    at_once: bool = False,
    keep: bool = False,
) -> LoweredLaunch:
    """Lower the programs of a `Launch`.

    Args:
        function: gives a message for each of `summed`.
        shapes: its arguments as `jax.ShapeDtypeStruct`.
        summed: the messages, in the order in which they travel.
        mesh: axes ('host', 'device'), one device of each process.
        at_once: no message travels before all have been computed.
        keep: do not donate the reducers' states.
    """
    places = range(len(summed))
    pieces = cut(function, shapes, [places] if at_once else [[place] for place in places])
    alike = {one: _lower_sum(one, mesh, keep) for one in summed}
    programs = [
        (piece, lower_here(PIECE, piece.run, [pieces.shapes[n] for n in piece.reads], mesh))
        for piece in pieces.programs
    ]
    return LoweredLaunch(programs, [alike[one] for one in summed], mesh)


def lower_here(
    name: str, function: Callable[..., PyTree], shapes: Sequence[PyTree], mesh: Mesh, donate: tuple[int, ...] = ()
) -> jax.stages.Lowered:
    """`function` of arguments of these shapes as the program `name` of the one device of this process on the mesh.

    Raises:
        ValueError: this process has several devices on the mesh, or none.
    """
    if len(mesh.local_devices) != 1:
        raise ValueError(f"wanted one device of each process on the mesh, got {len(mesh.local_devices)}")
    local_shards = SingleDeviceSharding(mesh.local_devices[0])
    placed = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=local_shards), shapes)
    # keep_unused: JAX would drop an argument that the function does not read, and then not donate it.
    run = _named(name, function)
    return jax.jit(run, donate_argnums=donate, out_shardings=local_shards, keep_unused=True).lower(*placed)


def _named(name: str, function: Callable[..., PyTree]) -> Callable[..., PyTree]:
    """`function` under this name, which JAX gives to its program."""
    named = lambda *args: function(*args)  # noqa: E731
    named.__name__ = name
    return named


def local_shards(tree: PyTree) -> PyTree:
    """What this process's device holds of arrays on the mesh. Copies nothing."""
    return jax.tree.map(lambda leaf: leaf.addressable_data(0), tree)


def replicated_arrays(tree: PyTree, mesh: Mesh) -> PyTree:
    """Arrays of this process's device, which are the same on all, as arrays on the mesh. Copies nothing."""
    sharding = replicated(mesh)
    return jax.tree.map(lambda leaf: jax.make_array_from_single_device_arrays(leaf.shape, sharding, [leaf]), tree)


def _lower_sum(summed: Message, mesh: Mesh, keep: bool) -> jax.stages.Lowered:
    own = PartitionSpec(HOST, DEVICE)

    def on_device(message: jax.Array, state: PyTree) -> tuple[jax.Array, PyTree]:
        with jax.named_scope(summed.scope):
            total, state = summed.reducer.reduce(message, jax.tree.map(lambda leaf: leaf[0, 0], state))
        return total, jax.tree.map(lambda leaf: leaf[None, None], state)

    def on_mesh(leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        shape = (*mesh.shape.values(), *leaf.shape)
        return jax.ShapeDtypeStruct(shape, leaf.dtype, sharding=one_per_device(mesh))

    states = jax.tree.map(on_mesh, jax.eval_shape(lambda: summed.reducer.init(summed.spec, mesh.shape)))
    shape = (mesh_size(mesh) * summed.spec.size,)
    message = jax.ShapeDtypeStruct(shape, summed.spec.dtype, sharding=split_by_example(mesh))
    mapped = jax.shard_map(on_device, mesh=mesh, in_specs=(PartitionSpec(AXES), own), out_specs=(PartitionSpec(), own))
    options = compiler_options(platform_of(mesh))
    donated = () if keep else (1,)
    return jax.jit(_named(SUM, mapped), donate_argnums=donated, compiler_options=options).lower(message, states)


def _text(pieces: Sequence[tuple[PieceProgram, HasText]], sums: Sequence[HasText]) -> str:
    """The texts in order of launch: each piece, then the sums of its results."""
    waiting = iter(sums)
    programs = [program for piece, run in pieces for program in (run, *itertools.islice(waiting, len(piece.results)))]
    return "\n".join(program.as_text() or "" for program in programs)
