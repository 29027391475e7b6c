"""XLA compile options with which the networks compute fast, by the kind of program."""

# The first pass deletes optimization barriers, so `layers.kept` would keep nothing. The second makes a function of a
# loop over small arrays, in which the compiler takes no barrier. jaxnet.comm disables them too.
_CPU_PASSES = "cse_barrier_expander,small-while-loop-hoisting"
_LIBRARY = "xla_cpu_experimental_ynn_fusion_type"
_PRODUCTS, _SUMS = "LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT", "LIBRARY_FUSION_TYPE_REDUCE"


def network_options(platform: str) -> dict[str, str | bool]:
    """Return options for `jax.jit(..., compiler_options=...)` of a program that contains a network.

    By default XLA:CPU gives matrix products, sums and convolutions to a library (YNNPACK). Its convolutions are slower
    than Eigen's, which XLA has too: with these options a training step of ResNet-18 takes 0.76 times as long. The
    options also keep the barriers by which a network saves values for its gradient. Other platforms need no options.

    Args:
        platform: 'cpu', 'gpu' or 'tpu', as `jax.default_backend()` names it.
    """
    if platform != "cpu":
        return {}
    return {_LIBRARY: f"{_PRODUCTS},{_SUMS}", "xla_disable_hlo_passes": _CPU_PASSES}


def inference_options(platform: str) -> dict[str, str | bool]:
    """Return the options of `network_options` for a program that computes no gradients: the library gets no sums.

    The library fuses a sum with the products before it, unless something else needs these. In inference AlexNet's
    softmax is fused with three dense layers, which takes 690 ms for 5 to 8 images; the whole network takes 110 ms
    otherwise. In training, sums are mostly those of BatchNorm and products are kept for the gradient; there the
    library saves a quarter of the step of ResNet-18.
    """
    options = network_options(platform)
    return {**options, _LIBRARY: _PRODUCTS} if options else options


def once_options(platform: str) -> dict[str, str | int | bool]:
    """Return options for `jax.jit(..., compiler_options=...)` of a program that runs once, such as the first state.

    On CPUs LLVM's first level of optimization is enough. Of networks with many small parameters it takes up to a sixth
    less processor time than the third. Bits are the same from this level on; without any, which XLA_FLAGS may ask for,
    they differ between meshes.

    Args:
        platform: 'cpu', 'gpu' or 'tpu', as `jax.default_backend()` names it.
    """
    return {"xla_backend_optimization_level": 1} if platform == "cpu" else {}
