"""What differs between CPUs, GPUs and TPUs: options of the compiler, types and shapes of messages.

A platform is that of the mesh's devices, `platform_of(mesh)`: a machine with GPUs may compile for TPUs.
"""

from collections.abc import Iterable
from dataclasses import replace

from jaxnet.comm.reducer import Collective
from jaxnet.comm.strategy import Strategy
from jaxnet.comm.traffic import pipelined, tiled

# ---- Options ------------------------------------------------------------------------------------------------------

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
        platform: 'cpu', 'gpu' or 'tpu', as a device names it.

    The CPU's are measured on jaxlib 0.10.2 and 0.12.0. Those of GPUs and TPUs are read off compiled programs: a combine
    threshold other than the GPU's default (30 MiB + 7) turns its heuristics off, and the latency-hiding scheduler, off
    by default, is what overlaps collectives with computation; a TPU merges up to 256 all-reduces into one.
    """
    if platform == "cpu":
        return {"xla_disable_hlo_passes": ",".join(_CPU_PASSES)}
    if platform in ("gpu", "cuda", "rocm"):
        kinds = ("all_reduce", "all_gather", "reduce_scatter", "collective_permute")
        thresholds: dict[str, str | int | bool] = {f"xla_gpu_{kind}_combine_threshold_bytes": 1 for kind in kinds}
        return {**thresholds, "xla_gpu_enable_latency_hiding_scheduler": True}
    return {"xla_jf_crs_combiner_threshold_count": 1} if platform == "tpu" else {}


# ---- Messages -----------------------------------------------------------------------------------------------------


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


def on_platform(strategy: Strategy, platform: str) -> Strategy:
    """The strategy with its traffic shaped for `platform`: whole tiles on TPUs, stages in a pipeline on GPUs.

    >>> from jaxnet.comm import named_strategy
    >>> on_platform(named_strategy("zero"), "tpu").reducer
    tiled(sharded('device', 'host', bucket_bytes=1 * MiB))
    """
    shape = {"tpu": tiled, "gpu": pipelined}.get(platform)
    if shape is None or strategy.reducer is None:
        return strategy
    return replace(strategy, reducer=shape(strategy.reducer))
