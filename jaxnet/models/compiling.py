"""How the networks are to be compiled to compute fast."""

# Deletes optimization barriers, and with them what `layers.kept_relu` keeps. jaxnet.comm's options disable it too.
_CPU_PASS = "cse_barrier_expander"
_LIBRARY = "xla_cpu_experimental_ynn_fusion_type"
_PRODUCTS, _SUMS = "LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT", "LIBRARY_FUSION_TYPE_REDUCE"


def network_options(platform: str) -> dict[str, str | bool]:
    """Options for `jax.jit(..., compiler_options=...)` of a program that contains a network.

    On CPUs, XLA hands products of matrices, sums and convolutions to a library (YNNPACK) by default. Its convolutions
    are slower than those that XLA has from Eigen: with these options a training step of ResNet-18 takes 0.76 times as
    long. And what a network keeps for its gradient by a barrier stays kept. Other platforms need none.

    Args:
        platform: 'cpu', 'gpu' or 'tpu', as `jax.default_backend()` names it.
    """
    if platform != "cpu":
        return {}
    return {_LIBRARY: f"{_PRODUCTS},{_SUMS}", "xla_disable_hlo_passes": _CPU_PASS}


def inference_options(platform: str) -> dict[str, str | bool]:
    """Options as those of `network_options`, for a program that computes no gradients.

    The library takes a sum into one operation with the products that lead to it, unless something else wants these too:
    AlexNet's softmax takes three dense layers with it, which for 5 to 8 images costs 690 ms where the whole network
    takes 110. Sums in training are mostly those of BatchNorm, and products are kept for the gradient; there the library
    saves a quarter of the step of ResNet-18.
    """
    options = network_options(platform)
    return {**options, _LIBRARY: _PRODUCTS} if options else options


def once_options(platform: str) -> dict[str, str | int | bool]:
    """Options for `jax.jit(..., compiler_options=...)` of a program that runs once, such as the first state.

    On CPUs LLVM unrolls the loops that draw random numbers, a kernel for each shape: the first state of ResNet-50 takes
    17 s of processor time to compile, and 7.5 with these options, to the same bits and as fast (0.4 s).

    Args:
        platform: 'cpu', 'gpu' or 'tpu', as `jax.default_backend()` names it.
    """
    return {"xla_backend_optimization_level": 1} if platform == "cpu" else {}
