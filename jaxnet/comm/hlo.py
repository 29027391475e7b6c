"""Compiled programs, read from the optimized HLO text that XLA prints: computations of instructions, in schedule order.

>>> [program] = programs_in('''
... %double (x: f32[8]) -> f32[8] {
...   %x = f32[8]{0} parameter(0)
...   ROOT %sum = f32[8]{0} add(%x, %x)
... }
... ENTRY %main (a: f32[8]) -> f32[8] {
...   %a = f32[8]{0} parameter(0)
...   ROOT %twice = f32[8]{0} fusion(%a), kind=kLoop, calls=%double
... }''')
>>> [(each.name, each.op, each.operands, each.called) for each in program.entry]
[('a', 'parameter', (), ()), ('twice', 'fusion', ('a',), ('double',))]
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

DTYPES = {
    "f64": "float64", "f32": "float32", "f16": "float16", "bf16": "bfloat16",
    "s64": "int64", "s32": "int32", "s16": "int16", "s8": "int8",
    "u64": "uint64", "u32": "uint32", "u16": "uint16", "u8": "uint8", "pred": "bool",
    "c64": "complex64", "c128": "complex128", "f8e4m3fn": "float8_e4m3fn", "f8e5m2": "float8_e5m2",
}  # fmt: skip

# What takes no time of its own: names for other values, and the ends of copies that run beside all else.
FREE = frozenset({
    "parameter", "constant", "get-tuple-element", "tuple", "bitcast", "after-all", "add-dependency", "opt-barrier",
    "partition-id", "replica-id", "copy-start", "copy-done", "slice-start", "slice-done",
})  # fmt: skip

_INSTRUCTION = re.compile(r"^\s*(?:ROOT )?%?(?P<name>[\w.\-]+) = (?P<shape>\(.*?\)|\S+) (?P<op>[a-z][\w\-]*)\(")
_COMPUTATION = re.compile(r"^\s*(?P<entry>ENTRY )?%?(?P<name>[\w.\-]+) \(.*\{$")
_ARRAY = re.compile(r"\b([a-z][a-z0-9]*)\[([\d,]*)\]")
_ON_CHIP = re.compile(r"\b[a-z][a-z0-9]*\[[\d,]*\]\{[^}]*T\([^}]*S\(1\)[^}]*\}")
_NAME = re.compile(r"%([\w.\-]+)")
_CALLED = re.compile(r"(?:calls|to_apply|body|condition|true_computation|false_computation)=%?([\w.\-]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_OP_NAME = re.compile(r'op_name="([^"]*)"')
_PARTITIONS = re.compile(r"\bnum_partitions=(\d+)")


@dataclass(frozen=True)
class Instruction:
    """One line of a computation.

    Attributes:
        name: unique in its program.
        op: what it does, such as 'fusion' or 'all-reduce-start'.
        shape: of the result, as printed; a tuple's in parentheses.
        line: all of it.
    """

    name: str
    op: str
    shape: str
    line: str

    @cached_property
    def _split(self) -> tuple[str, str]:
        """The operands, and the attributes behind them."""
        begin = self.line.index(f" {self.op}(", self.line.index(" = ")) + len(self.op) + 2
        depth = 1
        for place in range(begin, len(self.line)):
            depth += {"(": 1, ")": -1}.get(self.line[place], 0)
            if depth == 0:
                return self.line[begin:place], self.line[place + 1 :]
        return self.line[begin:], ""

    @property
    def inside(self) -> str:
        """The text between its parentheses: operands, a constant's value, a parameter's number."""
        return self._split[0]

    @property
    def operands(self) -> tuple[str, ...]:
        """Names of the instructions whose results it takes."""
        return tuple(_NAME.findall(self.inside))

    @property
    def attributes(self) -> str:
        """The text behind the operands."""
        return self._split[1]

    @cached_property
    def called(self) -> tuple[str, ...]:
        """Names of the computations that it runs; of a conditional its branches, in order."""
        if "=" not in self.attributes:
            return ()
        names = _CALLED.findall(self.attributes)
        for branches in _BRANCHES.findall(self.attributes):
            names += [name.strip(" %") for name in branches.split(",")]
        return tuple(names)

    @property
    def arrays(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """NumPy dtype and dims of each array of the result."""
        return tuple(
            (DTYPES.get(dtype, dtype), tuple(int(n) for n in dims.split(",") if n))
            for dtype, dims in _ARRAY.findall(self.shape)
        )

    @property
    def far_arrays(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """Those of `arrays` that lie in the device's main memory; a TPU keeps some on the chip, which is faster."""
        kept = _ON_CHIP.sub("", self.shape)
        return replace(self, shape=kept).arrays

    @property
    def op_name(self) -> str:
        """The JAX operation that it came from, with its named scopes."""
        match = _OP_NAME.search(self.line)
        return match[1] if match else ""

    def attribute(self, pattern: str) -> str | None:
        """What the first group of a pattern finds in the attributes, or None."""
        match = re.search(pattern, self.attributes)
        return match[1] if match else None


Computation = tuple[Instruction, ...]


@dataclass(frozen=True)
class Program:
    """A compiled program.

    Attributes:
        computations: by name, each in the order in which its instructions run.
        entry: the computation that runs; others are called.
        partitions: devices that the program numbers. Of a program for several TPU slices, those of one slice.
    """

    computations: Mapping[str, Computation]
    entry: Computation
    partitions: int


def programs_in(hlo: str) -> Iterator[Program]:
    """The programs of a text, `jax.jit(f).lower(...).compile().as_text()` or several of them, one after the other.

    Lines that stand outside of any computation count as a program.
    """
    computations: dict[str, Computation] = {}
    entry, found, name = list[Instruction](), list[Instruction](), ""
    partitions = 1
    for line in hlo.splitlines():
        if line.startswith("HloModule"):
            if entry or found:
                yield Program(computations, tuple(entry or found), partitions)
            match = _PARTITIONS.search(line)
            computations, entry, found, partitions = {}, [], [], int(match[1]) if match else 1
        elif header := _COMPUTATION.match(line):
            found, name = [], header["name"]
            if header["entry"]:
                entry = found
        elif line.startswith("}") or line.strip() == "}":
            computations[name] = tuple(found)
            found = []
        elif match := _INSTRUCTION.match(line):
            found.append(Instruction(match["name"], match["op"], match["shape"], line))
    if entry or found:
        yield Program(computations, tuple(entry or found), partitions)
