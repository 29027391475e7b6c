"""Which process of how many this is, and where the coordinator is: read from environment variables alone."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jaxnet.cluster.addresses import Address, is_loopback, parse_address
from jaxnet.errors import InputError

COORDINATOR = "JAX_COORDINATOR_ADDRESS"
COUNT = "JAX_NUM_PROCESSES"
INDEX = "JAX_PROCESS_ID"
BIND = "JAX_COORDINATOR_BIND_ADDRESS"
INTERFACE = "JAXNET_NETWORK_INTERFACE"
HEARTBEAT = "JAXNET_HEARTBEAT_SECONDS"

_CONTRACT = (COORDINATOR, COUNT, INDEX)
# srun sets these for a task. A batch script outside srun lacks SLURM_STEP_NODELIST, and is no task.
_SLURM = ("SLURM_JOB_ID", "SLURM_STEP_NODELIST", "SLURM_NTASKS", "SLURM_PROCID", "SLURM_LOCALID")
_TORCHRUN = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_SKYPILOT = ("SKYPILOT_NODE_RANK", "SKYPILOT_NODE_IPS", "SKYPILOT_NUM_NODES")
_HOSTS = ("SLURM_STEP_NUM_NODES", "GROUP_WORLD_SIZE", "SKYPILOT_NUM_NODES")  # how many hosts, by launcher
_SKYPILOT_PORT = 12321
_HIGHEST_PORT = 65535
_HEARTBEAT_SECONDS = 100  # JAX's own default
_FEWEST_HEARTBEAT_SECONDS = 5


@dataclass(frozen=True)
class Place:
    """Who this process is in the cluster, as far as the environment tells.

    Attributes:
        detected_by: what described the processes, see `detect`.
        process_index: the number of this process; None: only JAX's own detection finds it.
        process_count: how many processes there are; None likewise.
        coordinator: where process 0 is reached; None likewise, and for a single process.
        bind: where process 0 was told to listen; None: `listening_address` decides.
        interface: the network interface for collectives of the CPU; None: they use the address that others reach.
        local_device: the one device of its host that this process takes; None: all that it sees.
    """

    detected_by: str
    process_index: int | None = 0
    process_count: int | None = 1
    coordinator: Address | None = None
    bind: Address | None = None
    interface: str | None = None
    local_device: int | None = None


def find_place(environ: Mapping[str, str]) -> Place:
    """Read this process's place from `environ`.

    First come JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID, all three or none. Then come torchrun,
    Open MPI, srun, TPU pods, SkyPilot and indexed Kubernetes jobs. Without any, this is a single process.

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


def detect(environ: Mapping[str, str]) -> str:
    """What describes the processes: variables, torchrun, openmpi, slurm, tpu, skypilot, kubernetes or single.

    torchrun comes before whatever may have started it on each host. Open MPI comes before Slurm because mpirun, inside
    a Slurm job, passes on the Slurm variables of its own daemons.
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


def heartbeat_seconds(environ: Mapping[str, str]) -> int:
    """After how long without a sign of life JAX takes a process for dead and ends the others.

    The default is JAX's own 100 s, so that the watchdog, which names the missing rank, comes first.
    """
    if not environ.get(HEARTBEAT):
        return _HEARTBEAT_SECONDS
    if (seconds := _whole(environ, HEARTBEAT)) < _FEWEST_HEARTBEAT_SECONDS:
        raise InputError(f"{HEARTBEAT} is {seconds}; it must be at least {_FEWEST_HEARTBEAT_SECONDS}")
    return seconds


# ---- Each launcher's variables -------------------------------------------------------------------------


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
    """The place that torchrun, or a launcher with the same variables, gives."""
    _require(environ, _TORCHRUN)
    index, count = _index_of_count(environ, "RANK", "WORLD_SIZE")
    host = environ["MASTER_ADDR"]
    port = _port(environ, "MASTER_PORT", host)
    if environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        port += 1  # torchrun itself listens on MASTER_PORT
    own = _own_port(environ, host, port)
    if own > _HIGHEST_PORT:
        raise InputError(
            f"MASTER_PORT is {_HIGHEST_PORT}, where torchrun itself listens, and no port is left above it for JAX:"
            " give torchrun a lower one, or set JAX_COORDINATOR_PORT in every process"
        )
    return index, count, Address(host, own)


def _torchrun_device(environ: Mapping[str, str]) -> int | None:
    """The device of this process. torchrun shows every process all devices of its host, so each takes one."""
    if environ.get("LOCAL_WORLD_SIZE", "1") == "1":
        return None
    return _index_of_count(environ, "LOCAL_RANK", "LOCAL_WORLD_SIZE")[0]


def _skypilot(environ: Mapping[str, str]) -> tuple[int, int, Address]:
    """One process on each node; the first address is that of node 0."""
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
    """The first host of the step, with the port that jax.distributed would take for this job."""
    # A node list looks like `tux[03-05,7],other`: take the first name, with the first number in its brackets.
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


# ---- Names of ranks ------------------------------------------------------------------------------------


def name_ranks(indices: Sequence[int]) -> str:
    """Process indices, in ascending order, as messages name them.

    >>> name_ranks([1]), name_ranks([0, 1, 2, 5])
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
