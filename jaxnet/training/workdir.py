"""Where a run writes while it runs: held by one run at a time, on behalf of all its processes."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from jaxnet.checkpoints import BEAT_SECONDS, Heartbeat, Lock
from jaxnet.cluster.agreement import all_gather_object
from jaxnet.comm import AUTO, named_strategy, platform_of
from jaxnet.config.keys import default_values, differences, flatten, in_todays_keys
from jaxnet.config.run import Config
from jaxnet.data.photos.datasets import PhotoDataset
from jaxnet.errors import InputError
from jaxnet.files import read_object
from jaxnet.object_storage.mirror import Mirror, mirror_of, send_profile
from jaxnet.object_storage.reading import fetched_files
from jaxnet.object_storage.store import remote_url
from jaxnet.training.compile_cache import beside, compile_cache
from jaxnet.training.display import say_warning
from jaxnet.training.ledger import Ledger
from jaxnet.training.processes import ProcessGroup
from jaxnet.training.records import make_workdir, read_settings, writing

Broadcast = Callable[[Callable[[], Any]], Any]
Fence = Callable[[], None]
EXPRESSION = "strategy.expression"  # in config.json beside the keys of the config
CHOICE = "strategy.choice"  # likewise: what strategy=auto is, and why
_LOOK_SECONDS = 10.0  # between two questions whether all is uploaded


class Workdir(NamedTuple):
    """Where a run writes.

    Attributes:
        path: the directory of this machine.
        name: what was asked for: the same, or the URL whose mirror it is.
        mirror: whether it is a mirror, which each machine has for itself; other directories are shared by all.
        fence: raises Lost once another run has taken over.
        sent: waits until all that is complete is uploaded; nothing may be written any more.
    """

    path: Path
    name: str
    mirror: bool
    fence: Fence
    sent: Callable[[], None]


@contextlib.contextmanager
def opened(
    given: str | Path,
    config: Config,
    processes: ProcessGroup,
    ledger: Ledger,
    begins: Callable[[str], None],
    *,
    allow_config_change: bool,
) -> Iterator[Workdir]:
    """Inside, the place is this run's, `ledger` is written there, and so are the programs that JAX compiles.

    What belongs in object storage is uploaded meanwhile, and at the end; `begins` takes what that waits for, in words.
    Raises InputError when another run holds the place, or has left it with another config.
    """
    url = remote_url(given)
    name, fences, sent = url or str(given), [], _nothing
    with contextlib.ExitStack() as during:
        if url:
            if mirror := during.enter_context(_uploaded(url, processes, begins)):
                fences.append(mirror.fence)
                sent = mirror.send
            workdir = _made_by_all(url, processes)
        else:
            workdir = Path(given)
            make_workdir(workdir)
        # With MPI a program holds addresses of its process. A trace holds the instructions of programs that its process
        # compiled, and of no others, so a run that is traced compiles for itself.
        keeps = not processes.cluster.mpi and not config.profile.steps
        if config.compile_cache is not None and keeps:
            during.enter_context(compile_cache(beside(workdir, config.compile_cache)))
        fences.append(during.enter_context(held(workdir, processes.broadcast_object, ledger.beat)))
        saved = workdir / "config.json"
        platform = platform_of(processes.mesh)
        processes.broadcast_object(lambda: refuse_changes(saved, config, name, platform, allowed=allow_config_change))

        def fence() -> None:
            for require in fences:
                require()

        if processes.primary:
            with writing(workdir / "ledger.jsonl"):
                ledger.open(workdir / "ledger.jsonl", fence=fence)
            during.callback(ledger.close)
        yield Workdir(workdir, name, url is not None, fence, sent)


@contextlib.contextmanager
def _uploaded(url: str, processes: ProcessGroup, begins: Callable[[str], None]) -> Iterator[Mirror | None]:
    """Inside, process 0 holds the mirror of `url`, and has it; at the end all wait until it has uploaded it."""
    with contextlib.ExitStack() as during:
        mirrors: list[Mirror] = []

        def take() -> None:
            mirrors.append(during.enter_context(Mirror(url, begins, say_warning)))

        processes.broadcast_object(take)
        while not processes.broadcast_object(lambda: mirrors[0].ready(_LOOK_SECONDS)):
            begins(f"process 0, which fetches {url}")
        yield mirrors[0] if mirrors else None
        if not mirrors:
            send_profile(url, processes.shard.index)
        while not processes.broadcast_object(lambda: mirrors[0].finished(_LOOK_SECONDS)):
            begins(f"process 0, which uploads to {url}")


def _made_by_all(url: str, processes: ProcessGroup) -> Path:
    """The mirror on this process's machine; InputError on all if it cannot be made on one, naming the process."""
    try:
        mirror_of(url).mkdir(parents=True, exist_ok=True)
        failure = ""
    except (OSError, InputError) as error:
        failure = str(error)
    said = all_gather_object(processes.cluster, failure, about="whether it can make a directory")
    if failures := [f"process {index}: {text}" for index, text in enumerate(said) if text]:
        raise InputError(f"{url} needs a mirror on each machine; {'; '.join(failures)}; set JAXNET_MIRROR there")
    return mirror_of(url)


def _nothing() -> None:
    """What is to be uploaded where nothing is."""


def refuse_changes(saved: Path, config: Config, workdir: str, platform: str, *, allowed: bool) -> None:
    """Stop if `saved` belongs to a run with another config, naming the keys; those it lacks had their defaults.

    `auto` is the strategy that it names on this platform, as it stands in runs from before there was `auto`. Runs also
    wrote down sizes of test photos that follow from others.
    """
    if allowed or not saved.exists():
        return
    settings = in_todays_keys(read_settings(saved))
    for key in (EXPRESSION, CHOICE):
        settings.pop(key, None)
    if config.strategy == AUTO and settings.get("strategy") == named_strategy(AUTO, platform=platform).name:
        settings["strategy"] = AUTO
    now = flatten(config)
    if isinstance(config.data, PhotoDataset):
        for key, size in (
            ("data.test_size", config.data.test_view.size),
            ("data.test_resize", config.data.test_view.resize),
        ):
            if now[key] is None and settings.get(key) == size:
                settings[key] = None
    changed = differences(settings, now, default_values(config))
    if changed:
        raise InputError(
            f"{workdir} holds a run with another config ({'; '.join(changed)}); use another --workdir, or "
            "--allow-config-change (in Python allow_config_change=True) to continue it with this one"
        )


def last_choice(workdir: str | Path) -> Any:
    """What strategy=auto was in the run's last attempt, as JSON; None if that is not known."""
    try:
        return read_object(fetched_files(workdir, "config.json") / "config.json").get(CHOICE)
    except (InputError, OSError, ValueError):  # there was none, or whatever is wrong is told when it is opened
        return None


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
