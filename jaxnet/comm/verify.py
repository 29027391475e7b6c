"""Check that a compiled program has the collectives that a plan asked for.

A compiler may merge, split, widen or move them; option names change between versions, and an option that no
longer exists is usually ignored in silence. So `verify` compares the plan with the optimized program itself.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from jaxnet.comm.hlo import FoundCollective, Groups, Pairs, collectives_in, groups_over, pairs_over
from jaxnet.comm.reducer import Collective

# ---- Compiler options ----


_CPU_PASSES = (
    # Merges every all-reduce of a step into one after the last backward operation. This gains nothing: the runtime
    # sends the merged operands one by one. (The name "all-reduce-combiner" would be ignored in silence.)
    "cpu-all-reduce-combiner",
    # Deletes optimization barriers before scheduling, and with them the schedule "after" (jaxlib 0.10).
    "cse_barrier_expander",
)


def compiler_options(platform: str) -> dict[str, str | int | bool]:
    """Options for `jax.jit(..., compiler_options=...)` under which explicit buckets stay buckets.

    Args:
        platform: 'cpu', 'gpu' or 'tpu', as `jax.default_backend()` names it.

    The CPU's are measured on jaxlib 0.10.2 and 0.12.0. The GPU's are read from XLA's source and have not been
    run: a combine threshold other than the default sentinel (30 MiB + 7) turns its heuristics off, and the
    latency-hiding scheduler, off by default, is what overlaps collectives with computation.
    """
    if platform == "cpu":
        return {"xla_disable_hlo_passes": ",".join(_CPU_PASSES)}
    if platform in ("gpu", "cuda", "rocm"):
        kinds = ("all_reduce", "all_gather", "reduce_scatter", "collective_permute")
        thresholds: dict[str, str | int | bool] = {f"xla_gpu_{kind}_combine_threshold_bytes": 1 for kind in kinds}
        return {**thresholds, "xla_gpu_enable_latency_hiding_scheduler": True}
    return {}


def as_sent(collectives: Iterable[Collective], platform: str) -> tuple[Collective, ...]:
    """The collectives of a plan as the compiler of `platform` sends them: XLA:CPU sends bfloat16 as float32.

    It does so in every kind of collective, because its float normalization knows no bfloat16. MPI's calls carry the
    16 bits themselves.

    >>> [sent] = as_sent([Collective("all-gather", ("host",), 2, 1000, "bfloat16")], "cpu")
    >>> sent.dtype, sent.wire_bytes
    ('float32', 2000)
    """
    widened = platform == "cpu"
    return tuple(
        replace(collective, dtype="float32")
        if widened and collective.dtype == "bfloat16" and collective.transport == "xla"
        else collective
        for collective in collectives
    )


# ---- The comparison ----


_Key = tuple[str, str, Groups | Pairs, str, int]


@dataclass(frozen=True)
class Check:
    """The collectives of a compiled program, compared with those planned.

    Attributes:
        planned: the collectives of the plan.
        missing: planned, and not in the program.
        found: all collectives of the program, in schedule order.
        extra: those of `found` that were not planned: BatchNorm's statistics if they are global, or one merged
            collective instead of several planned ones.
    """

    planned: tuple[Collective, ...]
    missing: tuple[Collective, ...]
    found: tuple[FoundCollective, ...]
    extra: tuple[FoundCollective, ...]

    @property
    def ok(self) -> bool:
        """Whether every planned collective is in the program, by itself."""
        return not self.missing

    def explain(self) -> str:
        """One line: what is missing, and what the program has instead."""
        if self.ok:
            return f"all {len(self.planned)} planned collectives are in the compiled program"
        got = ", ".join(_describe(found) for found in self.extra) or "nothing else"
        return (
            f"the compiled program lacks {len(self.missing)} of {len(self.planned)} planned collectives (first: "
            f"{self.missing[0].kind} of {self.missing[0].elements} {self.missing[0].dtype} over "
            f"{'+'.join(self.missing[0].axes)}); not planned but there: {got}"
        )


def _describe(found: FoundCollective) -> str:
    arrays = " + ".join(f"{elements} {dtype}" for dtype, elements in found.arrays[:4])
    more = f" + {len(found.arrays) - 4} more" if len(found.arrays) > 4 else ""
    return f"{found.kind} of {arrays}{more}"


def verify(hlo: str, planned: Iterable[Collective], axis_sizes: Mapping[str, int]) -> Check:
    """Compare a compiled program with a plan (law L6).

    Args:
        hlo: `jax.jit(f).lower(...).compile().as_text()`.
        planned: `as_sent(reducer.plan(shapes, axis_sizes).collectives, platform)`, and what else the step is known
            to send.
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
        # The program of one rank names only its own partners.
        return "mpi", collective.kind, frozenset(), collective.dtype, collective.elements
    members: Groups | Pairs = groups_over(collective.axes, axis_sizes, collective.groups)
    if collective.kind == "collective-permute":
        members = pairs_over(collective.axes, axis_sizes, collective.pairs)
    return "xla", collective.kind, members, collective.dtype, collective.elements


def _found_key(found: FoundCollective, everyone: Groups) -> _Key | None:
    if len(found.arrays) != 1:
        return None
    [(dtype, elements)] = found.arrays
    if found.transport == "mpi":
        return "mpi", found.kind, frozenset(), dtype, elements
    return "xla", found.kind, found.pairs or found.groups or everyone, dtype, elements
