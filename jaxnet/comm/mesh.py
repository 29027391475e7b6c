"""The mesh of devices, ('host', 'device'), and how arrays lie on it.

Either size may be 1, so one host and one device run the same code.
"""

import math
from collections.abc import Sequence

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

HOST, DEVICE = "host", "device"
AXES = (HOST, DEVICE)


def make_mesh(hosts: int | None = None, devices: Sequence[jax.Device] | None = None) -> Mesh:
    """Devices as a mesh of `hosts` rows; devices of a row share the fast links.

    Args:
        hosts: number of rows. Default: of GPUs one for each machine or NVLink domain, however many processes it has; of
            several TPU slices one for each; of a slice of several processes one for each line of its torus along the
            last dim; else one for each process. A larger number splits these groups, a smaller one merges neighbours:
            8 devices of one process can stand for 2 hosts of 4.
        devices: default all of `jax.devices()`.

    Raises:
        ValueError: the devices do not divide into `hosts` equal rows, or there are none.

    >>> dict(make_mesh(hosts=2, devices=jax.devices()[:8]).shape)
    {'host': 2, 'device': 4}
    """
    devices = list(jax.devices() if devices is None else devices)
    if not devices:
        raise ValueError("devices is empty; wanted at least one")
    slices, processes = {_slice(d) for d in devices}, {d.process_index for d in devices}
    platform, several = devices[0].platform, len(slices) > 1
    # XLA for TPUs sums along lines of the torus and over the whole slice, and refuses most other groups, such as the
    # chips at one place of each process, which are 2 x 2 blocks.
    lines = platform == "tpu" and not several and len(processes) > 1
    devices.sort(key=_place)
    if lines:
        devices, groups = _by_line(devices)
    else:
        # JAX gives all GPUs of a machine, or of an NVLink domain, one slice number; those of a single machine too.
        groups = len(slices) if several or platform == "gpu" else len(processes)
    hosts = groups if hosts is None else hosts
    if hosts < 1 or len(devices) % hosts:
        few = platform == "cpu" and len(devices) < hosts
        emulate = "; JAX_NUM_CPU_DEVICES=8 in the environment emulates eight" if few else ""
        raise ValueError(f"{len(devices)} devices do not divide into {hosts} hosts of equal size{emulate}")
    shape = (hosts, len(devices) // hosts)
    grid = np.array(devices).reshape(shape)
    if platform == "tpu" and not lines and hosts == groups:
        # Neighbours by number are not neighbours by wire.
        grid = _by_wire(shape, devices)
    # Not jax.make_mesh: it makes Explicit axes, and refuses several NVLink domains.
    return Mesh(grid, AXES)


def _by_wire(shape: tuple[int, int], devices: Sequence[jax.Device]) -> np.ndarray:
    if shape[0] == 1:
        return mesh_utils.create_device_mesh(shape, devices)
    return mesh_utils.create_hybrid_device_mesh((1, shape[1]), (shape[0], 1), devices)


def _by_line(devices: Sequence[jax.Device]) -> tuple[list[jax.Device], int]:
    """TPUs line by line along the last dim of their torus that has more than one chip, and how many lines there are."""
    places = [tuple(device.coords) for device in devices]
    dim = max(dim for dim in range(len(places[0])) if len({place[dim] for place in places}) > 1)

    def line(device: jax.Device) -> tuple[int, ...]:
        return tuple(device.coords[:dim]) + tuple(device.coords[dim + 1 :])

    ordered = sorted(devices, key=lambda device: (line(device), device.coords[dim], device.core_on_chip))
    return ordered, len({line(device) for device in devices})


def _slice(device: jax.Device) -> int:
    """Number of the NVLink domain or TPU slice; CPU devices have none."""
    return getattr(device, "slice_index", None) or 0


def _place(device: jax.Device) -> tuple[int, int, int]:
    return _slice(device), device.process_index, device.id


def mesh_size(mesh: Mesh) -> int:
    """Number of devices."""
    return math.prod(mesh.shape.values())


def platform_of(mesh: Mesh) -> str:
    """'cpu', 'gpu' or 'tpu': that of the devices, which need not be those of this machine."""
    platform: str = mesh.devices.flat[0].platform
    return platform


def own_device(mesh: Mesh) -> jax.Device:
    """The one device of this process on the mesh.

    Raises:
        ValueError: it has several, or none.

    >>> own_device(make_mesh(devices=jax.devices()[:1]))
    CpuDevice(id=0)
    """
    if len(mesh.local_devices) != 1:
        raise ValueError(f"wanted one device of each process on the mesh, got {len(mesh.local_devices)}")
    device: jax.Device = mesh.local_devices[0]
    return device


def is_described(mesh: Mesh) -> bool:
    """Whether its devices are descriptions: programs are compiled for them, and never run."""
    return mesh.devices.flat[0].client.runtime_type == "compile_only_runtime"


def replicated(mesh: Mesh) -> NamedSharding:
    """Every device holds the whole array: parameters, optimizer state."""
    return NamedSharding(mesh, PartitionSpec())


def split_by_example(mesh: Mesh) -> NamedSharding:
    """The leading dim is split over all devices, host by host: batches."""
    return NamedSharding(mesh, PartitionSpec(AXES))


def one_per_device(mesh: Mesh) -> NamedSharding:
    """Leading dims [hosts, devices]: state of each device, such as a compressor's residual."""
    return NamedSharding(mesh, PartitionSpec(HOST, DEVICE))
