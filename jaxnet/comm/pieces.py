"""A step as several programs: some compute messages, others sum them, and two threads launch them so that they overlap.

    this thread      piece 0 ------- piece 1 ------- piece 2 ------- update
    a helper                 sum 0 ---------- sum 1 ---------- sum 2

Two properties of PJRT's CPU client decide the form:

- A program compiled for several devices waits for the one such program before it. So what computes is compiled for
  this process's device alone, and only the sums span the mesh.
- A program waits for the one that the same thread launched before it. So a second thread launches the sums.

Where a process has one core, pieces are computed by threads that give way: see `jaxnet.comm.compute_device`.
"""

import ctypes
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec, SingleDeviceSharding

from jaxnet.comm.compute_device import compute_device, handed_over, lent
from jaxnet.comm.cut import PieceProgram, cut, programs_in_order
from jaxnet.comm.mesh import (
    AXES,
    DEVICE,
    HOST,
    mesh_size,
    one_per_device,
    own_device,
    platform_of,
    replicated,
    split_by_example,
)
from jaxnet.comm.platforms import compiler_options
from jaxnet.comm.reducer import PyTree, Reducer

PIECE, SUM, UPDATE = "step_piece", "step_sum", "step_update"
"""The names of the programs, in traces too: those that compute, those that sum, and the one that uses the sums."""


# XLA:CPU starts 32 programs at a time. Pieces that wait for others would take the places of sums.
_PIECES_UNDER_WAY = 3


class HasText(Protocol):
    """A program, lowered or compiled."""

    def as_text(self) -> str | None: ...


_Text = TypeVar("_Text", bound=HasText)


class Message(NamedTuple):
    """A message of one dim, the bucket reducer that sums it, and the scope in which it does."""

    reducer: Reducer
    spec: jax.ShapeDtypeStruct
    scope: str = "bucket"


class Piece(NamedTuple, Generic[_Text]):
    """A piece, its program, and its messages: places among the sums, and numbers among the values."""

    piece: PieceProgram
    program: _Text
    sends: tuple[tuple[int, int], ...]

    def launch(self, values: dict[int, jax.Array], device: jax.Device) -> list[jax.Array]:
        """Add to `values`, by number, what the compiled program gives; what it reads is lent to its device."""
        program: Any = self.program
        values.update({number: lent(values[number], device) for number in self.piece.reads})
        # A piece of a group whose results exist already has nothing to run.
        computes = self.piece.reads or self.piece.gives
        given = program(*(values[number] for number in self.piece.reads)) if computes else []
        values.update(zip(self.piece.gives, given, strict=True))
        return list(given)

    def free(self, values: dict[int, jax.Array]) -> None:
        """Take from `values` what no piece after this one reads."""
        for number in self.piece.drops:
            values.pop(number)


class Launch:
    """`launch(arguments, states) -> (sums, states)`: the messages of a function, summed over the mesh.

    Arguments and sums are on the one device of this process. The states of the reducers, one a message, are on the
    mesh, [hosts, devices, ...]; they are donated unless lowered with `keep`. All processes must make the same calls.

    The call raises an error of either thread; programs that were not launched by then are not launched.

    Attributes:
        pieces: in the order in which they are launched.
        order: of the messages: that in which they travel, the same in all processes.
    """

    def __init__(
        self,
        pieces: "Sequence[Piece[jax.stages.Compiled]]",
        sums: Sequence[jax.stages.Compiled],
        mesh: Mesh,
        device: jax.Device,
        order: Sequence[int] | None = None,
    ) -> None:
        self.pieces = pieces
        self.order = tuple(range(len(sums))) if order is None else tuple(order)
        self._sums = sums
        self._mesh = mesh
        self._device = device
        self._helper = ThreadPoolExecutor(1, "reductions")

    def in_order(self, pieces: Sequence[int], messages: Sequence[int]) -> "Launch":
        """The same programs, launched in another order: places of pieces, and of messages.

        Raises:
            ValueError: a piece comes before another whose values it reads.
        """
        chosen = [self.pieces[place] for place in pieces]
        programs = programs_in_order([each.piece for each in chosen])
        renewed = [each._replace(piece=piece) for each, piece in zip(chosen, programs, strict=True)]
        return Launch(renewed, self._sums, self._mesh, self._device, messages)

    def __call__(self, arguments: PyTree, states: Sequence[PyTree]) -> tuple[list[jax.Array], list[PyTree]]:
        # Wait until all sums have been launched; their values may still be under way.
        done = [future.result() for future in self.begin(arguments, states)]
        return [total for total, _ in done], [state for _, state in done]

    def begin(self, arguments: PyTree, states: Sequence[PyTree]) -> "list[Future[tuple[jax.Array, PyTree]]]":
        """Launch all pieces; each sum is there, with the state behind it, when the helper has launched it.

        Where the arguments are lent to a device apart, it returns when all pieces have been computed.
        """
        values = dict(enumerate(jax.tree.leaves(arguments)))
        stop = threading.Event()
        messages: list[Future[jax.Array]] = [Future() for _ in self._sums]
        sums: list[Future[tuple[jax.Array, PyTree]]] = [Future() for _ in self._sums]
        self._helper.submit(self._launch_sums, messages, states, sums, stop)
        under_way: deque[list[jax.Array]] = deque()
        try:
            for each in self.pieces:
                if len(under_way) == _PIECES_UNDER_WAY:
                    jax.block_until_ready(under_way.popleft())
                if stop.is_set():
                    break  # a sum failed: its future raises the error
                # 1. Compute. 2. Hand each message to the helper. 3. Free what no later piece reads.
                under_way.append(each.launch(values, self._device))
                for place, number in each.sends:
                    messages[place].set_result(values[number])
                each.free(values)
            if self._device != own_device(self._mesh):
                jax.block_until_ready(list(under_way))  # arguments are only lent, and the update may donate them now
        except BaseException as error:
            stop.set()
            for message in messages:
                if not message.done():
                    message.set_exception(error)
            raise
        return sums

    def timed(self, arguments: PyTree, states: Sequence[PyTree]) -> tuple[list[float], list[float], float]:
        """Run every piece alone, then every sum beside pieces; all processes call it, and the states are kept.

        Returns:
            Seconds of each piece in the order of launch, seconds of each sum by its place in the step (not in the order
            of launch), and the part of the processor's time that sums on their way take from pieces.
        """
        leaves = jax.block_until_ready(jax.tree.leaves(arguments))
        # 1. Pieces. Programs are slow the first time, and memory is new until the third: so the least of four.
        of_pieces = [math.inf] * len(self.pieces)
        messages = dict[int, jax.Array]()
        for _ in range(4):
            for number, seconds, sent in self._one_by_one(leaves):
                of_pieces[number] = min(of_pieces[number], seconds)
                messages |= sent
            self._wait_for_all(messages, states)  # one that still compiles would slow down those beside it
        # 2. Sums, in the helper thread, and pieces again and again until the last sum is there.
        sums = self._helper.submit(self._timed_sums, messages, states)
        beside = list[tuple[int, float]]()
        while not sums.done():
            for number, seconds, _sent in self._one_by_one(leaves):
                if sums.done():
                    break
                beside.append((number, seconds))
        return of_pieces, sums.result(), part_taken(of_pieces, beside)

    def _wait_for_all(self, messages: Mapping[int, jax.Array], states: Sequence[PyTree]) -> None:
        jax.block_until_ready(self._launch_sum(0, messages[0], jax.tree.map(jnp.copy, states[0])))

    def _one_by_one(self, leaves: Sequence[jax.Array]) -> Iterator[tuple[int, float, dict[int, jax.Array]]]:
        """Each piece in the order of launch: its number, its seconds, and its messages by their places."""
        values = dict(enumerate(leaves))
        for number, each in enumerate(self.pieces):
            begun = time.perf_counter()
            jax.block_until_ready(each.launch(values, self._device))
            seconds = time.perf_counter() - begun
            sent = {place: values[value] for place, value in each.sends}
            each.free(values)
            yield number, seconds, sent

    # Runs in the helper thread.
    def _timed_sums(self, messages: Mapping[int, jax.Array], states: Sequence[PyTree]) -> list[float]:
        seconds = [math.inf] * len(states)
        for _ in range(2):  # of 40 ms that one takes it may be held up for 300, once
            for place, state in enumerate(states):
                copied = jax.block_until_ready(jax.tree.map(jnp.copy, state))
                begun = time.perf_counter()
                jax.block_until_ready(self._launch_sum(place, messages[place], copied))
                seconds[place] = min(seconds[place], time.perf_counter() - begun)
        return seconds

    def as_text(self) -> str:
        """All programs, in the order in which they are launched."""
        return _text(self.pieces, self._sums)

    # Runs in the helper thread. The first error stops both threads: nothing more is launched.
    def _launch_sums(
        self,
        messages: "Sequence[Future[jax.Array]]",
        states: Sequence[PyTree],
        sums: "Sequence[Future[tuple[jax.Array, PyTree]]]",
        stop: threading.Event,
    ) -> None:
        try:
            for place in self.order:
                message = messages[place].result()
                if stop.is_set():
                    raise CancelledError
                sums[place].set_result(self._launch_sum(place, message, states[place]))
        except BaseException as error:
            stop.set()
            for future in sums:
                if not future.done():
                    future.set_exception(error)

    def _launch_sum(self, place: int, message: jax.Array, state: PyTree) -> tuple[jax.Array, PyTree]:
        shape = (mesh_size(self._mesh) * message.size,)
        own = handed_over(message, own_device(self._mesh))
        spread = jax.make_array_from_single_device_arrays(shape, split_by_example(self._mesh), [own])
        total, state = self._sums[place](spread, state)
        return total.addressable_data(0), state


def part_taken(alone: Sequence[float], beside: Sequence[tuple[int, float]]) -> float:
    """The part of the processor's time that something else takes from pieces, by the shortest time of each beside it.

    Args:
        alone: seconds of each piece.
        beside: pieces and their seconds beside the other, in any number. One may have been held up.

    >>> part_taken([1.0, 3.0], [(0, 1.5), (1, 6.5), (0, 900.0)])
    0.5
    """
    shortest = dict[int, float]()
    for number, seconds in beside:
        shortest[number] = min(seconds, shortest.get(number, seconds))
    both = sum(shortest.values())
    return max(0.0, 1 - sum(alone[number] for number in shortest) / both) if both else 0.0


_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # as glibc's malloc.h numbers them


def _keep_memory() -> None:
    """Have the C library keep what pieces give back, up to 1 GiB, for the pieces of the next step.

    Each has scratch memory and results of a few MiB. glibc would map them anew each step, and the kernel clear them,
    page by page. What is larger than 64 MiB is still given back: kept, it would be overlaid by something small, and the
    next of its kind would need new memory beside it. Another C library is left as it is.
    """
    with suppress(AttributeError, OSError):
        library = ctypes.CDLL(None)
        library.gnu_get_libc_version  # noqa: B018 (asks whether it is glibc)
        library.mallopt(_MMAP_THRESHOLD, 64 << 20)
        library.mallopt(_TRIM_THRESHOLD, 1 << 30)


class LoweredLaunch(NamedTuple):
    """A `Launch` before compilation. Equal messages share a program."""

    pieces: "list[Piece[jax.stages.Lowered]]"
    sums: list[jax.stages.Lowered]
    mesh: Mesh
    device: jax.Device

    def compile(self, compiler_options: Mapping[str, str | bool] | None = None) -> Launch:
        """Compile each program once; with `compiler_options`, as `jax.jit` takes them, each piece."""
        _keep_memory()
        sums = {id(lowered): lowered for lowered in self.sums}
        compiled = {key: lowered.compile() for key, lowered in sums.items()}
        options = None if compiler_options is None else dict(compiler_options)
        pieces = [
            Piece(piece, lowered.compile(compiler_options=options), sends) for piece, lowered, sends in self.pieces
        ]
        return Launch(pieces, [compiled[id(lowered)] for lowered in self.sums], self.mesh, self.device)

    def as_text(self) -> str:
        """All programs, in the order in which they are launched."""
        return _text(self.pieces, self.sums)


def lower_launch(
    function: Callable[..., Sequence[jax.Array]],
    shapes: Sequence[PyTree],
    summed: Sequence[Message],
    mesh: Mesh,
    *,
    groups: Sequence[Sequence[int]] | None = None,
    turns: Sequence[int] | None = None,
    apart: bool = False,
    keep: bool = False,
) -> LoweredLaunch:
    """Lower the programs of a `Launch`.

    Args:
        function: gives a message for each of `summed`, and behind them what else its pieces are to make.
        shapes: its arguments as `jax.ShapeDtypeStruct`.
        summed: the messages, in the order in which they are computed.
        mesh: axes ('host', 'device'), one device of each process.
        groups: places of results that are computed together; by default each message by itself.
        turns: of the arguments: see `cut`.
        apart: see `cut`.
        keep: do not donate the reducers' states.
    """
    groups = [[place] for place in range(len(summed))] if groups is None else groups
    pieces = cut(function, shapes, groups, turns, apart=apart)
    alike = {one: _lower_sum(one, mesh, keep) for one in summed}
    device = compute_device(mesh)
    programs, left = [], iter(groups)
    for piece in pieces.programs:
        group = next(left) if piece.results else []
        sends = tuple(pair for pair in zip(group, piece.results, strict=True) if pair[0] < len(summed))
        lowered = lower_here(PIECE, piece.run, [pieces.shapes[n] for n in piece.reads], device)
        programs.append(Piece(piece, lowered, sends))
    return LoweredLaunch(programs, [alike[one] for one in summed], mesh, device)


def lower_here(
    name: str,
    function: Callable[..., PyTree],
    shapes: Sequence[PyTree],
    device: jax.Device,
    donate: tuple[int, ...] = (),
) -> jax.stages.Lowered:
    """`function` of arguments of these shapes as the program `name` of this device of this process."""
    local_shards = SingleDeviceSharding(device)
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


def _text(pieces: Sequence[Piece[Any]], sums: Sequence[HasText]) -> str:
    """The texts in order of launch: each piece, then the sums of its messages."""
    programs: list[HasText] = []
    for _, program, sends in pieces:
        programs += [program, *(sums[place] for place, _ in sends)]
    return "\n".join(program.as_text() or "" for program in programs)
