"""Compiled programs as files: each whole and as it was written, or not there.

JAX's own files are written in place and not checked: one that a full disk or a kill has cut short stays for ever, and a
flipped bit is run. And process 0 alone writes, but on the CPU a program's key is that of one process: the others would
find nothing. This file is the only one that puts functions of ours into the place of JAX's, which have no public names.
"""

import contextlib
import hashlib
import logging
import os
import re
from pathlib import Path
from typing import Any

import jax
from jax._src import compilation_cache, compiler, distributed
from jax._src.compilation_cache_interface import CacheInterface

_SEAL_BYTES = hashlib.sha256().digest_size
_log = logging.getLogger("jaxnet")
_process_0_writes = compiler._cache_write


class CompiledFiles(CacheInterface):
    """Programs by key in `directory`; the time of a file is that of its last use."""

    def __init__(self, directory: Path) -> None:
        self._path, self._told = directory, False

    def get(self, key: str) -> bytes | None:
        """The program, if it is there and as it was written; else it is deleted, where that is allowed."""
        path = self._file(key)
        try:
            content = path.read_bytes()
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
        path = self._file(key)
        scratch = path.with_name(f".{os.getpid()}-{path.name}"[:200])
        try:
            scratch.write_bytes(hashlib.sha256(value).digest() + value)
            scratch.replace(path)
        except OSError as error:
            with contextlib.suppress(OSError):
                scratch.unlink()
            if not self._told:
                _log.warning("%s cannot be written: %s; a restart compiles again", self._path, error.strerror)
            self._told = True

    def _file(self, key: str) -> Path:
        return self._path / f"{key}-cache"


def is_program(name: str) -> bool:
    """Whether a file of this name is one of `CompiledFiles`, or what a kill has left of one."""
    return name.endswith("-cache") or bool(re.match(r"\.\d+-", name))


def use(store: CacheInterface | None) -> None:
    """From now on JAX keeps its programs there; None: where its settings say."""
    compilation_cache.reset_cache()
    compiler._cache_write = _process_0_writes if store is None else _every_process_writes  # type: ignore[assignment]
    if store is not None:
        compilation_cache._cache, compilation_cache._cache_initialized = store, True


def _every_process_writes(key: str, seconds: float, name: str, backend: Any, executable: Any, *callbacks: Any) -> None:
    if backend.platform != "cpu" or distributed.global_state.process_id == 0:
        _process_0_writes(key, seconds, name, backend, executable, *callbacks)
    elif not any(callbacks):  # a program that calls back holds addresses of this process
        with contextlib.suppress(jax.errors.JaxRuntimeError):  # it cannot be written down
            compilation_cache.put_executable_and_time(key, name, executable, backend, int(seconds))
