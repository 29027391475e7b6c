"""Refuses an ensemble that could not be trained as its members would be by themselves."""

from jaxnet.comm import Strategy
from jaxnet.errors import InputError
from jaxnet.training.config import Config
from jaxnet.training.steps.loss_scale import needs_scale

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
    if strategy.averaging is not None or strategy.name == "powersgd":
        return f"strategy={config.strategy}"
    if needs_scale(config.model):  # one scale for all would tie the members to each other
        return "model.dtype=float16"
    return None
