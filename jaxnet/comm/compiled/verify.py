"""Does the compiled program hold the collectives that the plan asked for?

A compiler may merge, split, widen or move them, option names change between versions, and an option that no
longer exists is usually ignored in silence. So the plan is compared with the optimized program itself.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from jaxnet.comm.collective import Collective
from jaxnet.comm.compiled.groups import Groups, Pairs, groups_over, pairs_over
from jaxnet.comm.compiled.hlo import Found, collectives_in

_Key = tuple[str, str, Groups | Pairs, str, int]


@dataclass(frozen=True)
class Check:
    """What a compiled program holds beside what was planned.

    Attributes:
        missing: planned, and not there.
        found: all collectives of the program, in schedule order.
        extra: those of `found` that were not planned: BatchNorm's statistics if they are global, or a merged
            collective in the place of several planned ones.
    """

    planned: tuple[Collective, ...]
    missing: tuple[Collective, ...]
    found: tuple[Found, ...]
    extra: tuple[Found, ...]

    @property
    def ok(self) -> bool:
        """Every planned collective is there, by itself."""
        return not self.missing

    def explain(self) -> str:
        """One line: what is missing and what stands there instead."""
        if self.ok:
            return f"all {len(self.planned)} planned collectives are in the compiled program"
        got = ", ".join(_describe(found) for found in self.extra) or "nothing else"
        return (
            f"the compiled program lacks {len(self.missing)} of {len(self.planned)} planned collectives (first: "
            f"{self.missing[0].kind} of {self.missing[0].elements} {self.missing[0].dtype} over "
            f"{'+'.join(self.missing[0].axes)}); not planned but there: {got}"
        )


def _describe(found: Found) -> str:
    arrays = " + ".join(f"{elements} {dtype}" for dtype, elements in found.arrays[:4])
    more = f" + {len(found.arrays) - 4} more" if len(found.arrays) > 4 else ""
    return f"{found.kind} of {arrays}{more}"


def verify(hlo: str, planned: Iterable[Collective], axis_sizes: Mapping[str, int]) -> Check:
    """Compare a compiled program with a plan (law L6).

    Args:
        hlo: `jax.jit(f).lower(...).compile().as_text()`.
        planned: `reducer.plan(shapes, axis_sizes).collectives`, and what else the step is known to send.
        axis_sizes: the mesh's `shape`, axes in the mesh's order.
    """
    planned = tuple(planned)
    found = tuple(collectives_in(hlo))
    everyone = groups_over(tuple(axis_sizes), axis_sizes)
    want = Counter(_planned_key(collective, axis_sizes) for collective in planned)
    extra = []
    for item in found:
        key = _found_key(item, everyone)
        if key is not None and want[key] > 0:
            want[key] -= 1
        else:
            extra.append(item)
    missing = []
    for collective in planned:
        key = _planned_key(collective, axis_sizes)
        if want[key] > 0:
            want[key] -= 1
            missing.append(collective)
    return Check(planned, tuple(missing), found, tuple(extra))


def _planned_key(collective: Collective, axis_sizes: Mapping[str, int]) -> _Key:
    if collective.transport == "mpi":
        # The program of one rank names no other but its own partners.
        return "mpi", collective.kind, frozenset(), collective.dtype, collective.elements
    members: Groups | Pairs = groups_over(collective.axes, axis_sizes, collective.groups)
    if collective.kind == "collective-permute":
        members = pairs_over(collective.axes, axis_sizes, collective.pairs)
    return "xla", collective.kind, members, collective.dtype, collective.elements


def _found_key(found: Found, everyone: Groups) -> _Key | None:
    if len(found.arrays) != 1:
        return None
    [(dtype, elements)] = found.arrays
    if found.transport == "mpi":
        return "mpi", found.kind, frozenset(), dtype, elements
    return "xla", found.kind, found.pairs or found.groups or everyone, dtype, elements
