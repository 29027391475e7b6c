"""What differs between CPUs, GPUs and TPUs: options of the compiler, types and shapes of messages.

A platform is that of the mesh's devices, `platform_of(mesh)`: a machine with GPUs may compile for TPUs.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

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
    # Makes a function of a loop over small arrays, in which the compiler takes no barrier.
    "small-while-loop-hoisting",
)


Value = str | int | bool


class CompilerOption(NamedTuple):
    """An option of XLA's compiler.

    Attributes:
        name: as XLA has it.
        value: that it gets.
        why: in a few words.
    """

    name: str
    value: Value
    why: str

    def __str__(self) -> str:
        return f"{self.name}={str(self.value).lower()}"


# The CPU's are measured on jaxlib 0.10.2 and 0.12.0, those of GPUs and TPUs read off compiled programs.
_GPU = (
    *(
        CompilerOption(f"xla_gpu_{kind}_combine_threshold_bytes", 1, "buckets are not merged again")
        for kind in ("all_reduce", "all_gather", "reduce_scatter", "collective_permute")
    ),
    CompilerOption("xla_gpu_enable_latency_hiding_scheduler", True, "collectives beside operations"),
)
_OPTIONS: Mapping[str, tuple[CompilerOption, ...]] = {
    "cpu": (CompilerOption("xla_disable_hlo_passes", ",".join(_CPU_PASSES), "buckets and schedules stay"),),
    "gpu": _GPU,
    "cuda": _GPU,
    "rocm": _GPU,
    "tpu": (CompilerOption("xla_jf_crs_combiner_threshold_count", 1, "buckets are not merged again"),),
}

OPTION_SETS: Mapping[str, tuple[CompilerOption, ...]] = {
    "sparse_cores": (
        CompilerOption(
            "xla_tpu_enable_sparse_core_collective_offload_all_reduce", True, "all-reduces run beside operations"
        ),
        CompilerOption("xla_tpu_sparse_core_all_reduce_offload_max_num_operands", 1, "buckets are not merged again"),
        CompilerOption(
            "xla_tpu_sparse_core_all_reduce_latency_multiplier", 30, "enough operations are put beside each"
        ),
    ),
}
"""Options that belong together, by the name under which a config asks for them.

`sparse_cores`: all-reduces on the SparseCores of TPU v5p and v6e, which other TPUs lack. None is a default: such sums
were reported to be wrong in older versions (AXLearn's comments on v6e with JAX 0.6.2). `python -m
benchmarks.accelerator --options sparse_cores` checks them on the TPU at hand.
"""


def platform_options(platform: str) -> tuple[CompilerOption, ...]:
    """What jaxnet tells the compiler of a platform, 'cpu', 'gpu' or 'tpu', so that explicit buckets stay buckets."""
    return _OPTIONS.get(platform, ())


def compiler_options(platform: str) -> dict[str, Value]:
    """Options for `jax.jit(..., compiler_options=...)` under which explicit buckets stay buckets.

    Args:
        platform: 'cpu', 'gpu' or 'tpu', as a device names it.

    >>> compiler_options("tpu")
    {'xla_jf_crs_combiner_threshold_count': 1}
    """
    return as_options(platform_options(platform))


def as_options(options: Iterable[CompilerOption]) -> dict[str, Value]:
    """As `jax.jit(..., compiler_options=...)` takes them; of two of one name the later one."""
    return {option.name: option.value for option in options}


_BOOLS = {"true": True, "false": False}


def chosen_options(texts: Sequence[str]) -> tuple[CompilerOption, ...]:
    """Options as a config asks for them.

    Args:
        texts: each NAME=VALUE, or the name of one of `OPTION_SETS`. XLA reads numbers as text, but not booleans.

    Raises:
        ValueError: a text is neither.

    >>> [str(option) for option in chosen_options(["xla_cpu_enable_fast_math=true"])]
    ['xla_cpu_enable_fast_math=true']
    """
    chosen: list[CompilerOption] = []
    for text in texts:
        name, equals, value = text.partition("=")
        if text in OPTION_SETS:
            chosen += OPTION_SETS[text]
        elif name and equals:
            chosen.append(CompilerOption(name, _BOOLS.get(value.lower(), value), "asked for"))
        else:
            raise ValueError(f"{text!r}: wanted NAME=VALUE, or one of {', '.join(OPTION_SETS)}")
    return tuple(chosen)


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
