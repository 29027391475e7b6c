"""How the networks are to be compiled to compute fast."""

_CPU_LIBRARY = "LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT,LIBRARY_FUSION_TYPE_REDUCE"


def network_options(platform: str) -> dict[str, str | bool]:
    """Options for `jax.jit(..., compiler_options=...)` of a program that contains a network.

    On CPUs, XLA hands products of matrices, sums and convolutions to a library (YNNPACK) by default. Its convolutions
    are slower than those that XLA has from Eigen: with these options a training step of ResNet-18 takes 0.76 times as
    long. Other platforms need none.

    Args:
        platform: 'cpu', 'gpu' or 'tpu', as `jax.default_backend()` names it.
    """
    return {"xla_cpu_experimental_ynn_fusion_type": _CPU_LIBRARY} if platform == "cpu" else {}
