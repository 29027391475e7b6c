"""The least work of a compiled operation: floating-point operations of its products, and bytes that it must move.

Counted from the program's text, since no compiler says it for all platforms. Elementwise arithmetic counts as the
bytes that it reads and writes: on accelerators nothing else bounds it.
"""

import itertools
import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import jax.numpy as jnp

from jaxnet.comm import Instruction, Program
from jaxnet.comm.hlo import FREE

_Dims = tuple[int, ...]
_Array = tuple[str, _Dims]

_CYCLES = r'"estimated_cycles":"(\d+)"'
_UPDATE = "dynamic-update-slice"
_SLICES = frozenset({"slice", "dynamic-slice", "gather"})
_TO_INPUT, _TO_FILTER = "__cudnn$convBackwardInput", "__cudnn$convBackwardFilter"


@dataclass(frozen=True)
class Work:
    """What an operation has to do.

    Attributes:
        flops: of products, by the dtype of their factors.
        bytes: read from and written to memory.
        cycles: that the compiler of a TPU says it takes; 0 where none says.
    """

    flops: Mapping[str, float] = field(default_factory=dict)
    bytes: float = 0.0
    cycles: float = 0.0

    def __add__(self, other: "Work") -> "Work":
        sums = defaultdict[str, float](float, self.flops)
        for dtype, count in other.flops.items():
            sums[dtype] += count
        return Work(dict(sums), self.bytes + other.bytes, self.cycles + other.cycles)

    def times(self, count: int) -> "Work":
        """Of so many such operations."""
        flops = {dtype: count * each for dtype, each in self.flops.items()}
        return Work(flops, count * self.bytes, count * self.cycles)


class Counter:
    """Counts the work of a program's instructions."""

    def __init__(self, program: Program) -> None:
        self._program = program
        steps = list(itertools.chain(program.entry, *program.computations.values()))
        self._shapes = {each.name: each.arrays for each in steps}
        self._stored = {each.name: _bytes_of(each.far_arrays) for each in steps}

    def work(self, step: Instruction) -> Work:
        """Of an instruction with all that it calls; of a loop, of all its rounds."""
        if step.op in FREE:
            return Work()
        if step.op == "while":
            rounds = int(step.attribute(r'"known_trip_count":\{"n":"(\d+)"') or 1)
            return self._of_all(step.called).times(rounds)
        if step.op in ("call", "conditional"):
            branches = [self._of_all([name]) for name in step.called]
            return max(branches, key=lambda work: work.bytes, default=Work())
        cycles = float(step.attribute(_CYCLES) or 0)
        return Work(self._flops(step), self._bytes(step), cycles)

    def _of_all(self, names: Sequence[str]) -> Work:
        steps = (each for name in names for each in self._program.computations.get(name, ()))
        return sum((self.work(each) for each in steps), Work())

    # ---- Bytes ----

    def _bytes(self, step: Instruction) -> float:
        """Operands and results once, as far as they lie in main memory; of an operand that is sliced, the slices.

        Of an operand into which a part is written, and which is the result, that part.
        """
        inner = self._program.computations.get(step.called[0], ()) if step.op == "fusion" and step.called else ()
        stored = [self._stored.get(name, 0) for name in step.operands]
        taken = _sliced(inner)
        into, part = (0, _bytes_of(self._shapes[step.operands[1]])) if step.op == _UPDATE else _updated(inner)
        read = sum(min(size, taken.get(place, size)) for place, size in enumerate(stored) if place != into)
        written = self._stored[step.name]
        return float(read + (written if into is None else min(part, written)))

    # ---- FLOPs ----

    def _flops(self, step: Instruction) -> dict[str, float]:
        counted = defaultdict[str, float](float)
        for dtype, count in self._products(step):
            counted[dtype] += count
        return dict(counted)

    def _products(self, step: Instruction) -> Iterator[tuple[str, float]]:
        if step.op == "dot":
            yield self._dot(step, r"lhs_contracting_dims=\{([\d,]*)\}")
        elif step.op == "convolution":
            yield self._convolution(step)
        elif step.op == "custom-call":
            yield from self._library_call(step)
        else:
            for name in step.called:
                for each in self._program.computations.get(name, ()):
                    yield from self._products(each)

    def _arrays(self, step: Instruction) -> list[_Array]:
        """The first array of each operand."""
        return [arrays[0] for name in step.operands if (arrays := self._shapes.get(name, ()))]

    def _dot(self, step: Instruction, contracting: str) -> tuple[str, float]:
        dtype, dims = self._arrays(step)[0]
        summed = math.prod(dims[int(place)] for place in (step.attribute(contracting) or "").split(",") if place)
        return dtype, 2.0 * math.prod(step.arrays[0][1]) * summed

    def _convolution(self, step: Instruction) -> tuple[str, float]:
        """Each element of the result sums over the kernel, without what falls between dilated inputs."""
        (dtype, _), (_, kernel) = self._arrays(step)[:2]
        dilated = math.prod(int(size) for size in (step.attribute(r"lhs_dilate=([\dx]+)") or "1").split("x"))
        return dtype, 2.0 * math.prod(step.arrays[0][1]) * _summed(step, kernel) / dilated

    def _library_call(self, step: Instruction) -> Iterator[tuple[str, float]]:
        target, arrays = step.attribute(r'custom_call_target="([^"]+)"') or "", self._arrays(step)
        if len(arrays) < 2:
            return
        (dtype, first), (_, second) = arrays[:2]
        result = step.arrays[0][1]
        if target.startswith("__cublas$"):
            places = re.findall(r"\d+", step.attribute(r'"lhs_contracting_dimensions":\[([^\]]*)\]') or "")
            summed = math.prod(first[int(place)] for place in places if int(place) < len(first))
            yield dtype, 2.0 * math.prod(result) * summed
        elif target.startswith("__cudnn$conv"):
            # Forward's result and filter, whichever direction this is: b01f_o01i->b01f names forward's.
            made, kernel = {_TO_INPUT: (first, second), _TO_FILTER: (second, result)}.get(target, (result, second))
            yield dtype, 2.0 * math.prod(made) * _summed(step, kernel)


def _summed(step: Instruction, kernel: _Dims) -> int:
    """How many products an element of a convolution's result sums: all dims of the kernel but that of the results."""
    labels = step.attribute(r"dim_labels=\w+?_(\w+)->") or ""
    return math.prod(size for label, size in zip(labels, kernel, strict=False) if label != "o")


def _bytes_of(arrays: Sequence[_Array]) -> int:
    return sum(math.prod(dims) * _itemsize(dtype) for dtype, dims in arrays)


def _itemsize(dtype: str) -> int:
    try:
        return int(jnp.dtype(dtype).itemsize)
    except TypeError:  # a token, or a type that this version lacks
        return 0 if dtype == "token" else 1


def _updated(computation: Sequence[Instruction]) -> tuple[int | None, int]:
    """The operand that a fusion gives back with a part of it overwritten, by its place, and the bytes of the part.

    (None, 0) where it does something else. Compilers write the part in place.
    """
    makes = {each.name: each for each in computation}

    def behind_bitcasts(name: str) -> Instruction:
        return behind_bitcasts(makes[name].operands[0]) if makes[name].op == "bitcast" else makes[name]

    last = behind_bitcasts(computation[-1].name) if computation else None
    if last is None or last.op != _UPDATE:
        return None, 0
    buffer, part = (behind_bitcasts(name) for name in last.operands[:2])
    users = [each for each in computation if buffer.name in each.operands]
    if buffer.op != "parameter" or len(users) > 1:
        return None, 0
    return int(buffer.inside), _bytes_of(part.arrays)


def _sliced(computation: Sequence[Instruction]) -> dict[int, int]:
    """Of a fusion's operands, by their places: the bytes taken, if all that is done with them is to take slices."""
    users = defaultdict[str, list[Instruction]](list)
    for each in computation:
        for name in each.operands:
            users[name].append(each)
    return {
        int(each.inside): sum(_bytes_of(user.arrays) for user in users[each.name])
        for each in computation
        if each.op == "parameter" and users[each.name]
        if all(user.op in _SLICES and user.operands[0] == each.name for user in users[each.name])
    }
