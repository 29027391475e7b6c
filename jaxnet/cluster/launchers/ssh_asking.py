"""Hosts that are asked whether they answer, and where a job that begins on the first of them has its process 0."""

import json
import math
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import IO, NamedTuple

from jaxnet.cluster.address import Address, is_loopback
from jaxnet.cluster.launchers.hosts import Host
from jaxnet.cluster.launchers.ssh_job import CONNECT_SECONDS, HERE, SshJob, ssh_command
from jaxnet.errors import InputError

_ANSWER = "jaxnet-first-host"
_LOOK_SECONDS = 0.05


class There(NamedTuple):
    """A host that answers: the address by which ssh reached it, and a port that is free there."""

    address: str
    port: int


def ask(host: Host, job: SshJob) -> There | str:
    """Log in to a host and try its Python; why it failed, if it does not answer."""
    return ask_all([host], job, CONNECT_SECONDS, math.inf, threading.Event())[host]


def ask_all(
    hosts: Sequence[Host], job: SshJob, connect_seconds: int, seconds: float, over: threading.Event
) -> dict[Host, There | str]:
    """As `ask`, all at the same time, for so many seconds, or until it is `over`; then no connection is left."""
    questions = {host: _Question(host, job, connect_seconds) for host in hosts}
    end = time.monotonic() + seconds
    try:
        while any(each.is_open() for each in questions.values()) and time.monotonic() < end:
            if over.wait(_LOOK_SECONDS):
                break
    finally:
        answers = {host: each.close() for host, each in questions.items()}
    return {host: answer or f"no answer within {seconds:g} s" for host, answer in answers.items()}


class _Question:
    """A login that executes `ssh_probe.py`."""

    def __init__(self, host: Host, job: SshJob, connect_seconds: int) -> None:
        # Files, which never fill up; open until the question is closed.
        self._out = tempfile.TemporaryFile()  # noqa: SIM115
        self._err = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            ssh_command(host, job.python, job.config, job.silence, connect_seconds),
            stdin=subprocess.PIPE,
            stdout=self._out,
            stderr=self._err,
        )
        assert self._process.stdin is not None
        with suppress(BrokenPipeError), self._process.stdin as sink:
            sink.write(json.dumps((HERE / "ssh_probe.py").read_text()).encode() + b"\n")

    def is_open(self) -> bool:
        return self._process.poll() is None

    def close(self) -> There | str:
        """The answer, or why there is none; empty where it has not come yet."""
        late = self.is_open()
        self._process.kill()
        self._process.wait()
        said, complaints = _lines(self._out), _lines(self._err)
        if late:
            return ""
        found = [line.split() for line in said if line.startswith(_ANSWER + " ")]
        if self._process.returncode == 0 and found:
            return There(found[0][1], int(found[0][2]))
        return complaints[-1].strip() if complaints else f"status {self._process.returncode}"


def _lines(file: IO[bytes]) -> list[str]:
    with file:
        file.seek(0)
        return file.read().decode(errors="replace").strip().splitlines()


def coordinator_of(job: SshJob, there: There) -> tuple[Address, Address | None]:
    """Where process 0 of `job` is reached, and where it listens if that is known to be an address of its host."""
    here = Address(there.address, job.port or there.port)
    if job.coordinator is not None:
        return Address(job.coordinator, here.port), None
    if len(job.hosts) > 1 and is_loopback(there.address):
        raise InputError(
            f"{job.hosts[0].name} is this machine, reached at the loopback address {there.address}: give --coordinator"
            " with an address of it that the other hosts can reach"
        )
    return here, here
