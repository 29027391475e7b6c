"""A job on the hosts of the lab."""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from jaxnet.cluster.environment import COORDINATOR, INTERFACE
from jaxnet.cluster.lab import network
from jaxnet.cluster.lab.isolated import kernel_refusals, run_isolated
from jaxnet.cluster.lab.kernel import on_host
from jaxnet.cluster.local import find_command, rank_environment
from jaxnet.cluster.supervise import Rank, supervise
from jaxnet.errors import InputError

_MOST_HOSTS = 64
_PORT = 12321  # every lab has its own network: nothing else can have taken it


@dataclass(frozen=True)
class Lab:
    """Hosts joined by links of `rate` bits a second, or as fast as the machine goes; what runs on each.

    Process i of all runs on host i // processes_per_host. With `cpus_per_host`, each host has that many
    CPU cores for itself; else they share all.
    """

    hosts: int
    rate: int | None = None
    processes_per_host: int = 1
    devices_per_process: int | None = None
    cpus_per_host: int | None = None


def run_lab(command: Sequence[str], lab: Lab) -> int:
    """Run `command` as every process of `lab` and return the job's exit status, see `supervise`.

    Raises InputError where there can be no lab: not Linux, not root, programs missing, too many hosts.
    """
    if sys.platform != "linux":
        raise InputError(f"a lab is made of Linux namespaces, which {sys.platform} does not have; run it on Linux")
    if not 1 <= lab.hosts <= _MOST_HOSTS:
        raise InputError(f"--hosts {lab.hosts}: wanted 1 to {_MOST_HOSTS}")
    whole = find_command(command)
    cores = share_cores(sorted(os.sched_getaffinity(0)), lab.hosts, lab.cpus_per_host)
    network.check_tools()
    return run_isolated(lambda: _run(whole, lab, cores))


def share_cores(cores: Sequence[int], hosts: int, cpus_per_host: int | None) -> list[list[int]]:
    """The cores of each host; none listed means all.

    >>> share_cores([0, 1, 4, 5], 2, 2), share_cores([0, 1], 2, None)
    ([[0, 1], [4, 5]], [[], []])
    """
    if cpus_per_host is None:
        return [[] for _ in range(hosts)]
    if hosts * cpus_per_host > len(cores):
        raise InputError(
            f"--cpus-per-host {cpus_per_host} for {hosts} hosts takes {hosts * cpus_per_host} CPU cores,"
            f" and there are {len(cores)}; give fewer, or leave it out to share them"
        )
    return [list(cores[host * cpus_per_host :][:cpus_per_host]) for host in range(hosts)]


def rank_on_host(
    index: int, command: Sequence[str], lab: Lab, networks: Sequence[str], cores: Sequence[Sequence[int]]
) -> Rank:
    """Process `index` of `lab`, on its host: the one of `networks` and of `cores` that is its own."""
    host = index // lab.processes_per_host
    there = on_host(network.host_name(host), networks[host], ",".join(map(str, cores[host])), command)
    count = lab.hosts * lab.processes_per_host
    own = rank_environment(os.environ, index, count, _PORT, lab.devices_per_process)
    own.pop(INTERFACE, None)  # one of the machine's own, which no host of the lab has
    return Rank(index, there, own | {COORDINATOR: f"{network.host_address(0)}:{_PORT}"})


def _run(command: Sequence[str], lab: Lab, cores: Sequence[Sequence[int]]) -> int:
    with kernel_refusals():
        networks = network.build(lab.hosts, lab.rate)
        network.name_hosts(lab.hosts)
    count = lab.hosts * lab.processes_per_host
    return supervise([rank_on_host(index, command, lab, networks, cores) for index in range(count)])
