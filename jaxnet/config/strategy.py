"""Which strategy, in which form of a step, a config asks for, and what does not go with it."""

from dataclasses import replace

from jax.sharding import Mesh

from jaxnet.comm import (
    STRATEGIES,
    AllReduce,
    Reducer,
    Strategy,
    named_strategy,
    platform_of,
    takes_all_reduce,
)
from jaxnet.config.run import Config
from jaxnet.cost.choice import Choice, with_buckets
from jaxnet.errors import InputError
from jaxnet.optimizer import Optimizer
from jaxnet.parallel import Mode
from jaxnet.parallel.pieces import crosses_steps, sums_by_message
from jaxnet.parallel.state import check_scale, needs_scale


def strategy_of(
    config: Config, all_reduce: AllReduce | None = None, mesh: Mesh | None = None, choice: Choice | None = None
) -> tuple[Strategy, Mode]:
    """The strategy and the mode of the step that a config asks for; InputError if they do not go together.

    Args:
        config: of the run.
        all_reduce: makes the sums across hosts of a named strategy, such as `mpi_all_reduce`; None: XLA's.
        mesh: by whose devices the buckets of a named strategy are sized; None: one that is not known yet, of CPUs.
        choice: what 'auto' is; None: what it mostly is on such devices.
    """
    if choice is not None:
        size = config.bucket_bytes or choice.bucket_bytes
        name = choice.strategy if size is None else with_buckets(choice.strategy)
        config = replace(config, strategy=name, bucket_bytes=size)
    strategy = _strategy(config, all_reduce, "cpu" if mesh is None else platform_of(mesh))
    pieces = choice is not None and choice.pieces
    mode: Mode = _auto_mode(config, strategy, mesh, pieces) if config.mode == "auto" else config.mode
    asked = f"strategy={strategy.label}"
    by_xla = strategy.kind == "xla"
    if (mode == "jit") != by_xla:
        raise InputError(
            f"mode={config.mode} does not go with {asked}: mode=jit goes with strategy=xla "
            "alone, where XLA reduces the gradients; leave mode=auto"
        )
    if mode == "pmap" and strategy.kind == "sharded":
        raise InputError(
            f"mode=pmap does not go with {asked}, which carries the state in shards; use "
            "mode=shard_map, which does the same on any mesh"
        )
    if mode in ("pmap", "pieces") and strategy.kind == "local":
        raise InputError(
            f"mode={mode} does not go with {asked}, which gives each device parameters of its own; use mode=shard_map"
        )
    if mode == "pieces":
        _check_pieces(config, strategy)
    check_scale(config.model, config.guard.skip, strategy.label, strategy.when)
    if by_xla and config.batch_norm == "host":
        raise InputError("batch_norm=host does not go with strategy=xla, which normalizes by the global batch")
    return strategy, mode


def _auto_mode(config: Config, strategy: Strategy, mesh: Mesh | None, pieces: bool) -> Mode:
    """'pieces' if that was chosen, or messages are to cross the end of a step, and nothing forbids it.

    'jit' if XLA reduces.
    """
    if strategy.kind == "xla":
        return "jit"
    if mesh is None or not _may_be_cut(config):
        return "shard_map"
    return "pieces" if pieces or crosses_steps(strategy, mesh) else "shard_map"


def _may_be_cut(config: Config) -> bool:
    """Whether a step of `config` may be several programs."""
    one_program = config.ensemble.on or config.shard_dense or config.compiler_options or config.transport == "mpi"
    return not one_program and config.batch_norm == "local"


def may_cross(config: Config) -> bool:
    """Whether 'auto' may be a strategy whose messages cross the end of a step.

    It must be several programs, of buckets of their own size. Where the gradient is clipped by the norm of all of it,
    no update begins before the last message, and the next forward pass waits for all of them.
    """
    clips = not isinstance(config.optimizer, Optimizer) or config.optimizer.clip_norm is not None
    return _may_be_cut(config) and config.mode in ("auto", "pieces") and config.bucket_bytes is None and not clips


def _strategy(config: Config, all_reduce: AllReduce | None, platform: str) -> Strategy:
    """The config's strategy: the value that it holds, or the one that it names."""
    if isinstance(config.strategy, Strategy):
        if config.bucket_bytes is not None:
            raise InputError(
                f"bucket_bytes={config.bucket_bytes} sets the buckets of a strategy's name, and strategy is "
                f"{config.strategy.expression}: give the size there, and leave bucket_bytes out"
            )
        if config.transport == "mpi":
            raise InputError(
                f"transport=mpi takes a strategy by its name, and strategy is {config.strategy.expression}; name one, "
                "such as hierarchical"
            )
        return config.strategy
    try:
        strategy = named_strategy(config.strategy, config.bucket_bytes, all_reduce, platform)
    except ValueError as error:
        raise InputError(str(error)) from error
    if config.transport == "mpi":
        _check_mpi(config, config.strategy)
    return strategy


def _check_pieces(config: Config, strategy: Strategy) -> None:
    """What computes in mode 'pieces' is a program of one device: refuse what sums elsewhere than in messages."""
    if not sums_by_message(strategy):
        raise InputError(
            f"mode=pieces does not go with strategy={strategy.label}, which does not sum message by message; "
            "use mode=shard_map"
        )
    if config.batch_norm != "local":
        raise InputError(
            f"batch_norm={config.batch_norm} does not go with mode=pieces, where a device knows its own batch alone; "
            "set batch_norm=local or mode=shard_map"
        )


def _check_mpi(config: Config, name: str) -> None:
    """With MPI the mesh has the devices of one rank alone: refuse what sums over the mesh by itself."""
    if not takes_all_reduce(name):
        able = ", ".join(filter(takes_all_reduce, STRATEGIES))
        raise InputError(
            f"strategy={name} does not go with transport=mpi, which carries an all-reduce across hosts and "
            f"nothing else; these strategies have one: {able}"
        )
    if config.mode not in ("auto", "shard_map"):
        raise InputError(
            f"mode={config.mode} does not go with transport=mpi, which takes mode=shard_map; leave mode=auto"
        )
    if config.batch_norm == "global":
        raise InputError(
            "batch_norm=global does not go with transport=mpi: the statistics would be those of one rank; set "
            "batch_norm=host, which is the batch of a rank, or local"
        )
    if config.hosts not in (None, 1):
        raise InputError(
            f"hosts={config.hosts} does not go with transport=mpi, where each rank is a host; leave it out"
        )


# ---- What goes with some strategies and modes alone ----


_WAYS = ("shard_map", "jit")


def check_ensemble(config: Config, strategy: Strategy, mode: str) -> None:
    """Refuse what does not go with several members, or with so many."""
    ensemble = config.ensemble
    for key in ("learning_rates", "weight_decays"):
        values: tuple[float, ...] = getattr(ensemble, key)
        if values and (len(values) != ensemble.members or min(values) < 0):
            raise InputError(
                f"ensemble.{key}={values}: wanted one a member, of which there are {ensemble.members} "
                "(ensemble.members), each at least 0; or leave it empty"
            )
    if not ensemble.on:
        return
    if not isinstance(config.optimizer, Optimizer):
        raise InputError(
            f"ensemble.members={ensemble.members} does not go with an Optax transformation of your own; give an "
            "Optimizer(...), or train the members one by one"
        )
    got = _not_of_members(config, strategy, mode)
    if got is not None:
        raise InputError(
            f"{got} does not go with ensemble.members={ensemble.members}: an ensemble takes mode=shard_map or jit, "
            "transport=xla, float32 or bfloat16, and a strategy that sums gradients in every step other than powersgd"
        )
    if config.seed + ensemble.members > 2**32:
        raise InputError(
            f"seed={config.seed}: {ensemble.members} members have this and the next ones; wanted at most "
            f"{2**32 - ensemble.members}"
        )


def _not_of_members(config: Config, strategy: Strategy, mode: str) -> str | None:
    """What stands against several members, as a person has written it."""
    if mode not in _WAYS:
        return f"mode={mode}"
    if config.transport != "xla":
        return f"transport={config.transport}"
    # A matrix of PowerSGD would be all members' kernels, one below the other, with one low rank for all.
    by_shape = isinstance(strategy.reducer, Reducer) and strategy.reducer.by_shape
    if strategy.kind == "local" or by_shape:
        return f"strategy={strategy.label}"
    if needs_scale(config.model):  # one scale for all would tie the members to each other
        return "model.dtype=float16"
    return None


def check_hybrid(config: Config, strategy: Strategy, mode: str) -> None:
    """Refuse what does not hold one whole state, or one program with its collectives, for cut layers to be part of."""
    if not config.shard_dense:
        return
    if mode != "shard_map" or strategy.kind != "replicated" or not strategy.exact:
        able = "a strategy that sums gradients exactly in every step, such as hierarchical, and mode=shard_map"
        raise InputError(
            f"shard_dense={','.join(config.shard_dense)} does not go with strategy={strategy.label}, mode={mode}; "
            f"use {able}"
        )
    if config.transport == "mpi":
        raise InputError("shard_dense does not go with transport=mpi; leave transport=xla")
    if config.ensemble.on:
        raise InputError("shard_dense does not go with ensemble.members; train the members one by one")


def require_whole_gradients(config: Config, what: str) -> None:
    """Refuse cut layers where strategies are compared or timed (`what`) by the gradients that they send."""
    if config.shard_dense:
        raise InputError(
            f"shard_dense={','.join(config.shard_dense)}: strategies are {what} as they send whole gradients, and "
            "those of cut kernels do not travel; leave shard_dense out, or see `jaxnet plan`"
        )
