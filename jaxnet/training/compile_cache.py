"""Compiled programs kept in a directory, so that a restart compiles nothing.

What lies there is run as a program: so nobody else may be able to write to it.
"""

import contextlib
import fcntl
import hashlib
import inspect
import logging
import os
import platform
import re
import stat
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import jax
from jax._src import cache_key, compilation_cache, compiler, distributed
from jax._src.compilation_cache_interface import CacheInterface

from jaxnet.checkpoints.lock import Owner, try_lock
from jaxnet.errors import InputError
from jaxnet.files import expanded, is_unfinished, read_bounded, replace

# ---- Compiled programs as files: each whole and as it was written, or not there -----------------------
#
# JAX writes its cache files in place and never checks them: a file cut short by a full disk or a kill stays for ever,
# and a flipped bit is run as code. And on CPUs it compiles a program in every process: its key holds the process,
# although the program is the same in all, and only process 0 writes. Replacing this needs JAX's private functions; no
# other file of jaxnet does that.


_SEAL_BYTES = hashlib.sha256().digest_size
_KEY_CHARACTERS = 64  # of a key, behind the program's name: SHA-256
_LONGEST_WAIT_SECONDS, _LOOK_SECONDS = 300.0, 0.01
_READS_CALLBACKS = "host_callbacks" in inspect.signature(compiler._cache_read).parameters  # from JAX 0.12 on
_log = logging.getLogger("jaxnet")
_process_0_writes = compiler._cache_write
_compiles = compiler._compile_and_write_cache
_hash_topology = cache_key._hash_accelerator_config


class CompiledFiles(CacheInterface):
    """Programs by key in `directory`; the time of a file is that of its last use."""

    def __init__(self, directory: Path) -> None:
        self._path, self._told = directory, False

    def get(self, key: str) -> bytes | None:
        """The program, if it is there and as it was written; else it is deleted, where that is allowed."""
        path = self._file(key)
        try:
            content = read_bounded(path, MOST_BYTES)
        except OSError:
            return None
        seal, program = content[:_SEAL_BYTES], content[_SEAL_BYTES:]
        intact = seal == hashlib.sha256(program).digest()
        with contextlib.suppress(OSError):
            if intact:
                os.utime(path)
            else:
                path.unlink()
        return program if intact else None

    def put(self, key: str, value: bytes) -> None:
        """Keep a program, if the disk takes it; that it does not is told once."""
        try:
            replace(self._file(key), hashlib.sha256(value).digest() + value, flush=False)  # the digest will tell
        except OSError as error:
            if not self._told:
                _log.warning("%s cannot be written: %s; a restart compiles again", self._path, error.strerror)
            self._told = True

    @contextlib.contextmanager
    def turn(self, key: str) -> Iterator[None]:
        """Inside, no other process of this machine is inside for the same program.

        The kernel lets the next one in where a process ends. Nobody waits where files cannot be locked, nor longer than
        `_LONGEST_WAIT_SECONDS`: who holds it may have been stopped.
        """
        # Each machine has its own file, so that no file server keeps the lock of one that died.
        path = self._path / f"{key[-_KEY_CHARACTERS:]}-{Owner.this(locked=False).boot}-lock"
        try:
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError:
            yield
            return
        held = _locked_within(file, _LONGEST_WAIT_SECONDS)
        try:
            yield
        finally:
            if held:
                with contextlib.suppress(OSError):
                    path.unlink()  # whoever waits has it open; whoever comes later finds the program
                with contextlib.suppress(OSError):
                    fcntl.flock(file, fcntl.LOCK_UN)  # a child that was forked meanwhile has it open, too
            os.close(file)

    def _file(self, key: str) -> Path:
        return self._path / f"{key}-cache"


def _locked_within(file: int, seconds: float) -> bool:
    """Whether the lock of an open file could be had in so many seconds."""
    end = time.monotonic() + seconds
    while (held := try_lock(file, fcntl.LOCK_EX)) is False and time.monotonic() < end:
        time.sleep(_LOOK_SECONDS)
    return held is True


AWAITS_ITS_TURN = _locked_within.__code__


def is_program(name: str) -> bool:
    """Whether a file of this name is one of `CompiledFiles`, or what a kill has left of one."""
    return name.endswith(("-cache", "-lock")) or is_unfinished(name)


def use(store: CompiledFiles | None) -> None:
    """From now on JAX keeps its programs there; None: where its settings say."""
    compilation_cache.reset_cache()
    compiler._cache_write = _process_0_writes if store is None else _every_process_writes  # type: ignore[assignment]
    compiler._compile_and_write_cache = _compiles if store is None else partial(_one_compiles, store)
    cache_key._hash_accelerator_config = _hash_topology if store is None else _hash_devices  # type: ignore[assignment]
    if store is not None:
        compilation_cache._cache, compilation_cache._cache_initialized = store, True


def _hash_devices(digest: Any, devices: Any) -> None:
    """What a program is made for, the same in all processes; on CPUs JAX's own topology says which process asks."""
    if any(device.platform != "cpu" for device in devices.flat):
        _hash_topology(digest, devices)
    else:
        digest.update(repr([(device.device_kind, device.process_index) for device in devices.flat]).encode())


def _one_compiles(store: CompiledFiles, backend: Any, *given: Any) -> Any:
    """Compile a program that is not there, or wait until another process of this machine has, and take its.

    On CPUs alone: processes with GPUs share out the trials of a program's kernels, and so must compile together.
    """
    if backend.platform != "cpu":
        return _compiles(backend, *given)
    _, devices, options, callbacks, name, key = given
    with store.turn(key):
        kept = compiler._cache_read(name, key, options, backend, devices, *([callbacks] if _READS_CALLBACKS else []))[0]
        return _compiles(backend, *given) if kept is None else kept


def _every_process_writes(key: str, seconds: float, name: str, backend: Any, executable: Any, *callbacks: Any) -> None:
    if backend.platform != "cpu" or distributed.global_state.process_id == 0:
        _process_0_writes(key, seconds, name, backend, executable, *callbacks)
    elif not any(callbacks):  # a program that calls back holds addresses of this process
        with contextlib.suppress(jax.errors.JaxRuntimeError):  # it cannot be written down
            compilation_cache.put_executable_and_time(key, name, executable, backend, int(seconds))


MOST_BYTES = 2 << 30

_A_MACHINE = re.compile(r".+-[0-9a-f]{12}")  # see `_machine`
_DIRECTORY = "jax_compilation_cache_dir"
_SETTINGS: dict[str, object] = {
    "jax_persistent_cache_min_compile_time_secs": 0.0,
    "jax_persistent_cache_min_entry_size_bytes": -1,
}


@contextlib.contextmanager
def compile_cache(directory: Path) -> Iterator[None]:
    """Inside, JAX keeps what it compiles in `directory`, and takes from there what it compiled before.

    Where a user has given JAX a directory of their own, that stays. On CPUs one process of a machine compiles what its
    others run, too, and each what it runs alone; elsewhere each compiles, and process 0 writes. Hosts with other
    processors have places of their own, because the programs are made for one.

    Raises InputError for a directory that cannot be made, belongs to another user, or that others can write to.
    """
    if getattr(jax.config, _DIRECTORY):
        yield
        return
    place = private(directory) / _machine()
    with _making(place):
        place.mkdir(exist_ok=True)
        prune(directory, MOST_BYTES)
    settings = {_DIRECTORY: str(place), **_SETTINGS}
    before = {name: getattr(jax.config, name) for name in settings}
    try:
        _set(settings)
        use(CompiledFiles(place))
        yield
    finally:
        _set(before)
        use(None)


def beside(workdir: Path, given: str) -> Path:
    """The directory that `given` names from `workdir`; InputError if the run itself lies in it."""
    directory = workdir / expanded(given)
    there = Path(os.path.realpath(directory))  # Path.resolve raises RuntimeError for a loop of links
    if Path(os.path.realpath(workdir)).is_relative_to(there):
        raise InputError(
            f"compile_cache={given!r} is {there}, in which the run itself lies; wanted a directory of "
            "its own, such as compile_cache, or none"
        )
    return directory


def private(directory: Path) -> Path:
    """The directory, made if need be, if no other user can write to it; else InputError."""
    with _making(directory):
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = directory.stat()
    if found.st_uid != os.geteuid():
        raise InputError(
            f"compile_cache {directory} belongs to another user (uid {found.st_uid}), and what lies there would be run "
            "as a program; give another directory, or compile_cache=none"
        )
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise InputError(
            f"compile_cache {directory} can be written by other users (mode {stat.S_IMODE(found.st_mode):04o}), and "
            f"what lies there would be run as a program; `chmod 700 {directory}` if you trust what is in it, or give "
            "another directory"
        )
    return directory


def prune(directory: Path, most_bytes: int) -> None:
    """Delete the programs that were not used for longest, until the others have no more than so many bytes.

    Files that this cache did not write are not its own to delete, wherever `directory` is.
    """
    files = []
    for path in directory.glob("*/*"):
        if _A_MACHINE.fullmatch(path.parent.name) and is_program(path.name):
            with contextlib.suppress(FileNotFoundError):  # another run is pruning, too
                files.append((path.stat().st_mtime, path.stat().st_size, path))
    excess = sum(size for _, size, _ in files) - most_bytes
    for _, size, path in sorted(files):
        if excess <= 0:
            return
        path.unlink(missing_ok=True)
        excess -= size


@contextlib.contextmanager
def _making(directory: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(
            f"compile_cache {directory} cannot be used: {error.strerror}; give another, or compile_cache=none"
        ) from error


def _set(settings: dict[str, object]) -> None:
    for name, value in settings.items():
        jax.config.update(name, value)


def _machine() -> str:
    """A name for all hosts with the same processor: XLA's CPU programs use whatever that has."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = [platform.processor()]
    traits = sorted({line for line in lines if line.startswith(("flags", "Features", "model name"))} or set(lines[:1]))
    return f"{platform.machine()}-{hashlib.sha256(' '.join(traits).encode()).hexdigest()[:12]}"
