"""The directory of a run while it runs: held by one run at a time, on behalf of all its processes."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from jaxnet.checkpoints import BEAT_SECONDS, Heartbeat, Lock
from jaxnet.config.keys import default_values, differences, flatten, in_todays_keys
from jaxnet.config.run import Config
from jaxnet.errors import InputError
from jaxnet.training.compile_cache import beside, compile_cache
from jaxnet.training.ledger import Ledger
from jaxnet.training.processes import ProcessGroup
from jaxnet.training.records import make_workdir, read_settings, writing

Broadcast = Callable[[Callable[[], Any]], Any]
Fence = Callable[[], None]
EXPRESSION = "strategy.expression"  # in config.json beside the keys of the config


@contextlib.contextmanager
def opened(
    workdir: Path, config: Config, processes: ProcessGroup, ledger: Ledger, *, allow_config_change: bool
) -> Iterator[Fence]:
    """Inside, the directory is this run's, `ledger` is written there, and so are the programs that JAX compiles.

    Gives a fence, which raises Lost if another run has taken over. Raises InputError when another run holds the
    directory, or has left it with another config.
    """
    make_workdir(workdir)
    with contextlib.ExitStack() as during:
        # With MPI a program holds addresses of its process. A trace holds the instructions of programs that its process
        # compiled, and of no others, so a run that is traced compiles for itself.
        keeps = not processes.cluster.mpi and not config.profile.steps
        if config.compile_cache is not None and keeps:
            during.enter_context(compile_cache(beside(workdir, config.compile_cache)))
        fence = during.enter_context(held(workdir, processes.broadcast_object, ledger.beat))
        refuse_changes(workdir / "config.json", config, allowed=allow_config_change)
        if processes.primary:
            with writing(workdir / "ledger.jsonl"):
                ledger.open(workdir / "ledger.jsonl", fence=fence)
            during.callback(ledger.close)
        yield fence


def refuse_changes(saved: Path, config: Config, *, allowed: bool) -> None:
    """Stop if the workdir belongs to a run with another config, naming the keys; those it lacks had their defaults."""
    if allowed or not saved.exists():
        return
    settings = in_todays_keys(read_settings(saved))
    settings.pop(EXPRESSION, None)
    changed = differences(settings, flatten(config), default_values(config))
    if changed:
        raise InputError(
            f"{saved.parent} holds a run with another config ({'; '.join(changed)}); use another --workdir, or "
            "--allow-config-change to continue it with this one"
        )


@contextlib.contextmanager
def held(workdir: Path, broadcast: Broadcast, *beats: Callable[[], None]) -> Iterator[Fence]:
    """Inside, no other run writes in `workdir`; gives a fence, which raises Lost if another has taken over.

    `broadcast` gives every process what its argument returns on process 0, which alone holds the lock. The `beats` are
    called there every few seconds.

    Raises InputError, on all processes, when another run holds it.
    """
    taken: list[Lock] = []

    def take() -> str:
        try:
            taken.append(Lock(workdir))
        except InputError as error:
            return str(error)
        return ""

    if refusal := broadcast(take):
        raise InputError(refusal)
    if not taken:
        yield lambda: None
        return
    [lock] = taken
    try:
        with Heartbeat(BEAT_SECONDS, lock.beat, *beats):
            yield lock.require
    finally:
        lock.release()
