"""Which process of how many this is, read from environment variables alone."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from jaxnet.cluster.address import Address, is_loopback, parse_address
from jaxnet.errors import InputError

COORDINATOR = "JAX_COORDINATOR_ADDRESS"
COUNT = "JAX_NUM_PROCESSES"
INDEX = "JAX_PROCESS_ID"
BIND = "JAX_COORDINATOR_BIND_ADDRESS"
INTERFACE = "JAXNET_NETWORK_INTERFACE"

_CONTRACT = (COORDINATOR, COUNT, INDEX)
# The five that srun sets for a task; a batch script outside srun lacks the second, and is not a task.
_SLURM = ("SLURM_JOB_ID", "SLURM_STEP_NODELIST", "SLURM_NTASKS", "SLURM_PROCID", "SLURM_LOCALID")


@dataclass(frozen=True)
class Place:
    """What the environment says of this process; None stands for what only JAX's own detection can find."""

    detected_by: str
    process_index: int | None = 0
    process_count: int | None = 1
    coordinator: Address | None = None
    bind: Address | None = None
    interface: str | None = None


def find_place(environ: Mapping[str, str]) -> Place:
    """Read this process's place from `environ`, of which no variable is changed.

    First JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID, all three or none; then Open MPI,
    Slurm under srun, an indexed Kubernetes job and TPU pods; else a single process.

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
        index, count = _whole(environ, "SLURM_PROCID"), _whole(environ, "SLURM_NTASKS")
        coordinator = _slurm_coordinator(environ)
    elif method == "openmpi":
        index, count = _whole(environ, "OMPI_COMM_WORLD_RANK"), _whole(environ, "OMPI_COMM_WORLD_SIZE")
        return Place(method, index, count, interface=interface)
    elif method == "single":
        return Place(method, interface=interface)
    else:
        return Place(method, None, None, interface=interface)
    _refuse_loopback(coordinator, environ)
    return Place(method, index, count, coordinator, _bind_address(coordinator, environ), interface)


def detect(environ: Mapping[str, str]) -> str:
    """Name what describes the processes: variables, openmpi, slurm, kubernetes, tpu or single.

    Open MPI comes before Slurm because mpirun inside a Slurm job passes on the variables of its own daemons.
    """
    if any(environ.get(name) for name in _CONTRACT):
        return "variables"
    if environ.get("OMPI_COMM_WORLD_SIZE", "1") != "1":
        return "openmpi"
    if all(environ.get(name) for name in _SLURM) and environ["SLURM_NTASKS"] != "1":
        return "slurm"
    if "," in environ.get("TPU_PROCESS_ADDRESSES", environ.get("TPU_WORKER_HOSTNAMES", "")):
        return "tpu"
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
    index, count = _whole(environ, INDEX), _whole(environ, COUNT)
    if count < 1:
        raise InputError(f"{COUNT} is {count}; it must be at least 1")
    if index >= count:
        raise InputError(f"{INDEX} is {index}, but with {COUNT}={count} it must be from 0 to {count - 1}")
    return index, count, coordinator


def _whole(environ: Mapping[str, str], name: str) -> int:
    text = environ.get(name, "")
    if not (text.isascii() and text.isdigit()):
        raise InputError(f"{name} is {text!r}; it must be a whole number, 0 or more")
    return int(text)


def _slurm_coordinator(environ: Mapping[str, str]) -> Address:
    """The first host of the step, at the port that jax.distributed would take for this job."""
    nodes = environ["SLURM_STEP_NODELIST"]
    first = re.match(r"([^,\[]*)(?:\[([^],-]+)[^]]*\])?([^,\[]*)", nodes)
    host = "".join(part or "" for part in first.groups()) if first else nodes
    if port := environ.get("JAX_COORDINATOR_PORT"):
        return parse_address(f"{host}:{port}", "JAX_COORDINATOR_PORT")
    return Address(host, 61440 + _whole(environ, "SLURM_JOB_ID") % 4096)


def _bind_address(coordinator: Address, environ: Mapping[str, str]) -> Address:
    """Where process 0 listens: as told, else on loopback alone where that is the address, else everywhere."""
    if text := environ.get(BIND):
        return parse_address(text, BIND)
    return coordinator if is_loopback(coordinator.host) else Address("::", coordinator.port)


def _refuse_loopback(coordinator: Address, environ: Mapping[str, str]) -> None:
    hosts = environ.get("SLURM_STEP_NUM_NODES", "1")
    if is_loopback(coordinator.host) and hosts != "1":
        raise InputError(
            f"{COORDINATOR} is {coordinator}, a loopback address, but SLURM_STEP_NUM_NODES={hosts}:"
            " give an address of process 0's host that the others can reach"
        )
