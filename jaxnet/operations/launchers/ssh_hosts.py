"""The hosts of a job over ssh: which of them answer, which take part in an attempt, and which one has process 0."""

import json
import math
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import IO, NamedTuple

from jaxnet.cluster.addresses import Address, is_loopback
from jaxnet.errors import InputError
from jaxnet.operations.launchers.hosts import Host
from jaxnet.operations.launchers.ssh_job import CONNECT_SECONDS, HERE, SshJob, connections, processes, ssh_command
from jaxnet.operations.supervise import Ended, Rank, announce

# Before each attempt of a job that restarts, all its hosts are probed at once, with these limits.
_PROBE_CONNECT_SECONDS = 5
_PROBE_SECONDS = 10.0
_POLL_SECONDS = 0.05


class Reached(NamedTuple):
    """A host that answers: the address by which ssh reached it, and a port found free there."""

    address: str
    port: int


def probe(host: Host, job: SshJob) -> Reached | str:
    """Log in to a host and run its Python; return what it answers, or why it does not."""
    return probe_all([host], job, CONNECT_SECONDS, math.inf, threading.Event())[host]


def probe_all(
    hosts: Sequence[Host], job: SshJob, connect_seconds: int, seconds: float, over: threading.Event
) -> dict[Host, Reached | str]:
    """As `probe`, for all `hosts` at once. It ends after `seconds`, or when `over` is set, and leaves no connection."""
    probes = {host: _Probe(host, job, connect_seconds) for host in hosts}
    end = time.monotonic() + seconds
    try:
        while any(each.is_open() for each in probes.values()) and time.monotonic() < end:
            if over.wait(_POLL_SECONDS):
                break
    finally:
        answers = {host: each.close() for host, each in probes.items()}
    return {host: answer or f"no answer within {seconds:g} s" for host, answer in answers.items()}


class _Probe:
    """A login that executes `free_port.py`."""

    def __init__(self, host: Host, job: SshJob, connect_seconds: int) -> None:
        # Files, not pipes: nobody reads before the end, and a login may print more than a pipe holds.
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
            sink.write(json.dumps((HERE / "free_port.py").read_text()).encode() + b"\n")

    def is_open(self) -> bool:
        return self._process.poll() is None

    def close(self) -> Reached | str:
        """The answer, or why there is none; empty if it has not come yet."""
        late = self.is_open()
        self._process.kill()
        self._process.wait()
        said, complaints = _lines(self._out), _lines(self._err)
        if late:
            return ""
        found = [line.split() for line in said if line.startswith("jaxnet-first-host ")]
        if self._process.returncode == 0 and found:
            return Reached(found[0][1], int(found[0][2]))
        return complaints[-1].strip() if complaints else f"status {self._process.returncode}"


def _lines(file: IO[bytes]) -> list[str]:
    with file:
        file.seek(0)
        return file.read().decode(errors="replace").strip().splitlines()


def coordinator_of(job: SshJob, reached: Reached) -> tuple[Address, Address | None]:
    """Where others reach process 0 of `job`, and where it listens if that is known to be its host's own address."""
    here = Address(reached.address, job.port or reached.port)
    if job.coordinator is not None:
        return Address(job.coordinator, here.port), None
    if len(job.hosts) > 1 and is_loopback(reached.address):
        raise InputError(
            f"{job.hosts[0].name} is this machine, reached at the loopback address {reached.address}:"
            " give --coordinator with an address of it that the other hosts can reach"
        )
    return here, here


# ---- Hosts of each attempt --------------------------------------------------------------------------------


class SshMembers:
    """The hosts that take part in each attempt of a job that restarts.

    Left out are hosts that do not answer, a host that alone used up the restarts, and the last hosts when the number of
    all processes does not divide the global batch.
    """

    def __init__(self, job: SshJob) -> None:
        self._job = job
        self._fewest = len(job.hosts) if job.min_hosts is None else job.min_hosts
        self._present: list[Host] = list(job.hosts)
        self._failed: set[Host] = set()
        self._unfit: set[int] = set()
        self._had_fewer = False

    def gather(self, attempt: int) -> Sequence[Rank] | str:
        """The connections of an attempt, or why it cannot begin now."""
        answers = self._probe([host for host in self._job.hosts if host not in self._failed], threading.Event())
        there = {host: answer for host, answer in answers.items() if isinstance(answer, Reached)}
        missing = "; ".join(f"{host.name} ({answer})" for host, answer in answers.items() if isinstance(answer, str))
        chosen = self._fitting(list(there))
        if len(chosen) < self._fewest:
            return f"{len(there)} of {len(self._job.hosts)} hosts answer, wanted {self._fewest}: without {missing}"
        first = self._job.hosts[0]
        if self._job.coordinator is not None and chosen[0] != first:
            return (
                f"--coordinator {self._job.coordinator} is an address of {first.name}, which does not take part; leave"
                " it out, and the first host that answers takes its place"
            )
        self._present = chosen
        if len(chosen) < len(self._job.hosts):
            self._had_fewer = True
            announce(f"attempt {attempt} on {_names(chosen)}" + (f"; without {missing}" if missing else ""))
        job = replace(self._job, hosts=chosen)
        return connections(job, *coordinator_of(job, there[chosen[0]]), attempt)

    def without(self, failed: Ended, *, always: bool, began: bool) -> str | None:
        """Exclude the host that failed every time, or a number of processes with which no step was done."""
        if always and len(self._present) > self._fewest:
            host = self._present[failed.index]
            self._failed.add(host)
            return f"the others, without {host.name}"
        if began or not self._had_fewer:
            return None  # the number of processes is not to blame
        count = processes(self._present)
        self._unfit.add(count)
        return f"fewer than {count} processes" if len(self._fitting(self._present)) >= self._fewest else None

    def await_more(self, over: threading.Event) -> str:
        """Wait until the next attempt would have more processes, with hosts that answered twice in a row."""
        present, once = list(self._present), set[Host]()
        missing = [host for host in self._job.hosts if host not in present and host not in self._failed]
        while missing and not over.wait(self._job.look_seconds):
            answering = {host for host, answer in self._probe(missing, over).items() if isinstance(answer, Reached)}
            back, once = answering & once, answering
            next_time = self._fitting([host for host in self._job.hosts if host in present or host in back])
            if processes(next_time) > processes(present):
                return f"{_names([host for host in next_time if host not in present])} answers again"
        return ""

    def _probe(self, hosts: Sequence[Host], over: threading.Event) -> dict[Host, Reached | str]:
        return probe_all(hosts, self._job, _PROBE_CONNECT_SECONDS, _PROBE_SECONDS, over)

    def _fitting(self, hosts: Sequence[Host]) -> list[Host]:
        """The most of them, from the first on, whose number of processes is not known to be unfit."""
        chosen = list(hosts)
        while processes(chosen) in self._unfit:
            chosen.pop()
        return chosen


def _names(hosts: Sequence[Host]) -> str:
    return ", ".join(host.name for host in hosts)
