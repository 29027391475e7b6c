"""Which process of how many this is, read from environment variables alone."""

import ipaddress
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from jaxnet.errors import InputError

# ---- How messages name processes ----------------------------------------------------------------------


def ranks(indices: Sequence[int]) -> str:
    """Ascending process indices in words.

    >>> ranks([1]), ranks([0, 1, 2, 5])
    ('rank 1', 'ranks 0-2, 5')
    """
    runs: list[list[int]] = []
    for index in indices:
        if runs and index == runs[-1][-1] + 1:
            runs[-1].append(index)
        else:
            runs.append([index])
    listed = ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
    return f"rank {listed}" if len(indices) == 1 else f"ranks {listed}"


# ---- Network addresses as users write them: `host:port`, names that resolve, interfaces ---------------


class Address(NamedTuple):
    """A host (a name, or an IP address without brackets) and a TCP port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str, variable: str) -> Address:
    """Split `host:port`; `variable` is named in the error when that is not what `text` is.

    >>> parse_address("node1:1234", "JAX_COORDINATOR_ADDRESS")
    Address(host='node1', port=1234)
    >>> str(parse_address("[fd00::1]:1234", "JAX_COORDINATOR_ADDRESS"))
    '[fd00::1]:1234'
    """
    host, colon, port = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if not colon or not host.strip("[]") or (":" in host and not bracketed):
        raise InputError(f"{variable} is {text!r}; give host:port, as in node1:1234 or [fd00::1]:1234")
    if not (port.isascii() and port.isdigit() and len(port) < 6 and 0 < int(port) < 65536):
        raise InputError(f"{variable} is {text!r}; its port {port!r} must be a number from 1 to 65535")
    return Address(host[1:-1] if bracketed else host, int(port))


def is_loopback(host: str) -> bool:
    """Whether `host` is written as this machine to itself: `localhost`, 127.x.x.x or ::1.

    >>> is_loopback("127.0.1.1"), is_loopback("localhost"), is_loopback("node1")
    (True, True, False)
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def resolves_to_loopback(host: str) -> bool:
    """Whether any address of `host` is a loopback one, as a stock Debian's own name is (127.0.1.1)."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return False
    return any(is_loopback(str(entry[4][0])) for entry in found)


def check_interface(name: str, variable: str) -> None:
    """Raise `InputError` listing the interfaces of this host when `name` is none of them."""
    present = [interface for _, interface in socket.if_nameindex()]
    if name not in present:
        raise InputError(
            f"{variable} is {name!r}, but {socket.gethostname()} has no such network interface;"
            f" it has {', '.join(present)}"
        )


COORDINATOR = "JAX_COORDINATOR_ADDRESS"
COUNT = "JAX_NUM_PROCESSES"
INDEX = "JAX_PROCESS_ID"
BIND = "JAX_COORDINATOR_BIND_ADDRESS"
INTERFACE = "JAXNET_NETWORK_INTERFACE"
HEARTBEAT = "JAXNET_HEARTBEAT_SECONDS"

_CONTRACT = (COORDINATOR, COUNT, INDEX)
# The five that srun sets for a task; a batch script outside srun lacks the second, and is not a task.
_SLURM = ("SLURM_JOB_ID", "SLURM_STEP_NODELIST", "SLURM_NTASKS", "SLURM_PROCID", "SLURM_LOCALID")
_TORCHRUN = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_SKYPILOT = ("SKYPILOT_NODE_RANK", "SKYPILOT_NODE_IPS", "SKYPILOT_NUM_NODES")
_HOSTS = ("SLURM_STEP_NUM_NODES", "GROUP_WORLD_SIZE", "SKYPILOT_NUM_NODES")  # how many, as each launcher says it
_SKYPILOT_PORT = 12321
_HEARTBEAT_SECONDS = 100
_FEWEST_HEARTBEAT_SECONDS = 5


@dataclass(frozen=True)
class Place:
    """What the environment says of this process; None stands for what only JAX's own detection can find.

    `local_device` is the one device of its host that this process takes; None means all that it sees.
    `bind` is where process 0 was told to listen; None leaves it to `listening_address`.
    """

    detected_by: str
    process_index: int | None = 0
    process_count: int | None = 1
    coordinator: Address | None = None
    bind: Address | None = None
    interface: str | None = None
    local_device: int | None = None


def find_place(environ: Mapping[str, str]) -> Place:
    """Read this process's place from `environ`, of which no variable is changed.

    First JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID, all three or none; then torchrun,
    Open MPI, Slurm under srun, TPU pods, SkyPilot and an indexed Kubernetes job; else a single process.

    >>> find_place({}).detected_by
    'single'
    >>> env = {"JAX_COORDINATOR_ADDRESS": "node1:1234", "JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "1"}
    >>> find_place(env).process_index
    1
    """
    method = detect(environ)
    interface = environ.get(INTERFACE) or None
    if method == "variables":
        index, count, coordinator = _contract(environ)
    elif method == "slurm":
        index, count = _index_of_count(environ, "SLURM_PROCID", "SLURM_NTASKS")
        coordinator = _slurm_coordinator(environ)
    elif method == "torchrun":
        index, count, coordinator = _torchrun(environ)
    elif method == "skypilot":
        index, count, coordinator = _skypilot(environ)
    elif method == "openmpi":
        index, count = _index_of_count(environ, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")
        return Place(method, index, count, interface=interface)
    elif method == "single":
        return Place(method, interface=interface)
    else:
        return Place(method, None, None, interface=interface)
    _refuse_loopback(coordinator, environ)
    device = _torchrun_device(environ) if method == "torchrun" else None
    return Place(method, index, count, coordinator, _bind_address(environ), interface, device)


def heartbeat_seconds(environ: Mapping[str, str]) -> int:
    """After how long without a sign of life JAX takes a process for dead, and ends the others.

    By default JAX's own 100 s: the watchdog, which names what it waits for, is to be first.
    """
    if not environ.get(HEARTBEAT):
        return _HEARTBEAT_SECONDS
    if (seconds := _whole(environ, HEARTBEAT)) < _FEWEST_HEARTBEAT_SECONDS:
        raise InputError(f"{HEARTBEAT} is {seconds}; it must be at least {_FEWEST_HEARTBEAT_SECONDS}")
    return seconds


def detect(environ: Mapping[str, str]) -> str:
    """Name what describes the processes: variables, torchrun, openmpi, slurm, tpu, skypilot, kubernetes or single.

    torchrun comes before what may have started it on each host. Open MPI comes before Slurm because mpirun
    inside a Slurm job passes on the variables of its own daemons.
    """
    if any(environ.get(name) for name in _CONTRACT):
        return "variables"
    if environ.get("RANK") and environ.get("WORLD_SIZE", "1") != "1":
        return "torchrun"
    if environ.get("OMPI_COMM_WORLD_SIZE", "1") != "1":
        return "openmpi"
    if all(environ.get(name) for name in _SLURM) and environ["SLURM_NTASKS"] != "1":
        return "slurm"
    if "," in environ.get("TPU_PROCESS_ADDRESSES", environ.get("TPU_WORKER_HOSTNAMES", "")):
        return "tpu"
    if environ.get("SKYPILOT_NUM_NODES", "1") != "1":
        return "skypilot"
    if environ.get("KUBERNETES_SERVICE_HOST") and environ.get("JOB_COMPLETION_INDEX"):
        return "kubernetes"
    return "single"


def _contract(environ: Mapping[str, str]) -> tuple[int, int, Address]:
    missing = [name for name in _CONTRACT if not environ.get(name)]
    if missing:
        given = [name for name in _CONTRACT if name not in missing]
        raise InputError(
            f"{', '.join(missing)} missing beside {', '.join(given)}:"
            " set all three in every process, or none of them for a single process"
        )
    coordinator = parse_address(environ[COORDINATOR], COORDINATOR)
    return *_index_of_count(environ, INDEX, COUNT), coordinator


def _index_of_count(environ: Mapping[str, str], index_name: str, count_name: str) -> tuple[int, int]:
    index, count = _whole(environ, index_name), _whole(environ, count_name)
    if count < 1:
        raise InputError(f"{count_name} is {count}; it must be at least 1")
    if index >= count:
        raise InputError(f"{index_name} is {index}, but with {count_name}={count} it must be from 0 to {count - 1}")
    return index, count


def _torchrun(environ: Mapping[str, str]) -> tuple[int, int, Address]:
    """As torchrun, and what imitates it, describe a process."""
    _require(environ, _TORCHRUN)
    index, count = _index_of_count(environ, "RANK", "WORLD_SIZE")
    host = environ["MASTER_ADDR"]
    port = _port(environ, "MASTER_PORT", host)
    if environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        port += 1  # torchrun itself listens at MASTER_PORT
    return index, count, Address(host, _own_port(environ, host, port))


def _torchrun_device(environ: Mapping[str, str]) -> int | None:
    """torchrun lets every process see all devices of its host; where they are several, each takes its own."""
    if environ.get("LOCAL_WORLD_SIZE", "1") == "1":
        return None
    return _index_of_count(environ, "LOCAL_RANK", "LOCAL_WORLD_SIZE")[0]


def _skypilot(environ: Mapping[str, str]) -> tuple[int, int, Address]:
    """A process on each node; the first of the addresses is that of node 0."""
    _require(environ, _SKYPILOT)
    index, count = _index_of_count(environ, "SKYPILOT_NODE_RANK", "SKYPILOT_NUM_NODES")
    addresses = environ["SKYPILOT_NODE_IPS"].split()
    if len(addresses) != count:
        raise InputError(f"SKYPILOT_NODE_IPS has {len(addresses)} addresses, but SKYPILOT_NUM_NODES is {count}")
    return index, count, Address(addresses[0], _own_port(environ, addresses[0], _SKYPILOT_PORT))


def _require(environ: Mapping[str, str], names: tuple[str, ...]) -> None:
    if missing := [name for name in names if not environ.get(name)]:
        given = [name for name in names if name not in missing]
        raise InputError(
            f"{', '.join(missing)} missing beside {', '.join(given)}: set them too, or {COORDINATOR}, {COUNT} and"
            f" {INDEX} in every process"
        )


def _whole(environ: Mapping[str, str], name: str, most: int = 2**31 - 1) -> int:
    text = environ.get(name, "")
    if not (text.isascii() and text.isdigit()):
        raise InputError(f"{name} is {text!r:.60}; it must be a whole number, 0 or more")
    if len(text) > len(str(most)) or int(text) > most:
        raise InputError(f"{name} is {text:.60}; it must be at most {most}")
    return int(text)


def _slurm_coordinator(environ: Mapping[str, str]) -> Address:
    """The first host of the step, at the port that jax.distributed would take for this job."""
    nodes = environ["SLURM_STEP_NODELIST"]
    first = re.match(r"([^,\[]*)(?:\[([^],-]+)[^]]*\])?([^,\[]*)", nodes)
    host = "".join(part or "" for part in first.groups()) if first else nodes
    return Address(host, _own_port(environ, host, 61440 + _whole(environ, "SLURM_JOB_ID", 2**63) % 4096))


def _own_port(environ: Mapping[str, str], host: str, usual: int) -> int:
    return _port(environ, "JAX_COORDINATOR_PORT", host) if environ.get("JAX_COORDINATOR_PORT") else usual


def _port(environ: Mapping[str, str], name: str, host: str) -> int:
    return parse_address(f"[{host}]:{environ[name]}", name).port


def _bind_address(environ: Mapping[str, str]) -> Address | None:
    return parse_address(environ[BIND], BIND) if environ.get(BIND) else None


def _refuse_loopback(coordinator: Address, environ: Mapping[str, str]) -> None:
    several = [f"{name}={environ[name]}" for name in _HOSTS if environ.get(name, "1") != "1"]
    if is_loopback(coordinator.host) and several:
        raise InputError(
            f"{COORDINATOR} is {coordinator}, a loopback address, but {several[0]}:"
            " give an address of process 0's host that the others can reach"
        )
