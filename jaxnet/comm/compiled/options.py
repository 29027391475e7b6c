"""Compiler options that let a plan survive compilation, by backend. `verify` checks that they did."""

_CPU_PASSES = (
    # Merges every all-reduce of a step into one after the last backward operation, and buys nothing: the
    # runtime sends the operands of the merged one by one. ("all-reduce-combiner" would be ignored in silence.)
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
