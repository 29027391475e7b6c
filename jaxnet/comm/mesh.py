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
        hosts: number of rows. Default: one for each slice (NVLink domain, TPU slice) if there are several, else one
            for each process. A larger number splits these groups, a smaller one merges neighbours: 8 devices of one
            process can stand for 2 hosts of 4.
        devices: default all of `jax.devices()`.

    Raises:
        ValueError: the devices do not divide into `hosts` equal rows.

    >>> dict(make_mesh(hosts=2, devices=jax.devices()[:8]).shape)
    {'host': 2, 'device': 4}
    """
    devices = sorted(jax.devices() if devices is None else devices, key=_place)
    slices, processes = {_slice(d) for d in devices}, {d.process_index for d in devices}
    groups = len(slices) if len(slices) > 1 else len(processes)
    hosts = groups if hosts is None else hosts
    if hosts < 1 or len(devices) % hosts:
        raise ValueError(f"{len(devices)} devices do not divide into {hosts} hosts of equal size")
    shape = (hosts, len(devices) // hosts)
    grid = np.array(devices).reshape(shape)
    if devices[0].platform == "tpu" and hosts == groups:
        # On a torus, neighbours by number are not neighbours by wire.
        grid = _by_wire(shape, devices)
    # Not jax.make_mesh: it makes Explicit axes, and refuses several NVLink domains.
    return Mesh(grid, AXES)


def _by_wire(shape: tuple[int, int], devices: Sequence[jax.Device]) -> np.ndarray:
    if shape[0] == 1:
        return mesh_utils.create_device_mesh(shape, devices)
    by_slice = len({_slice(device) for device in devices}) > 1
    return mesh_utils.create_hybrid_device_mesh((1, shape[1]), (shape[0], 1), devices, process_is_granule=not by_slice)


def _slice(device: jax.Device) -> int:
    """Number of the NVLink domain or TPU slice; CPU devices have none."""
    return getattr(device, "slice_index", None) or 0


def _place(device: jax.Device) -> tuple[int, int, int]:
    return _slice(device), device.process_index, device.id


def mesh_size(mesh: Mesh) -> int:
    """Number of devices."""
    return math.prod(mesh.shape.values())


def replicated(mesh: Mesh) -> NamedSharding:
    """Every device holds the whole array: parameters, optimizer state."""
    return NamedSharding(mesh, PartitionSpec())


def split_by_example(mesh: Mesh) -> NamedSharding:
    """The leading dim is split over all devices, host by host: batches."""
    return NamedSharding(mesh, PartitionSpec(AXES))


def one_per_device(mesh: Mesh) -> NamedSharding:
    """Leading dims [hosts, devices]: state of each device, such as a compressor's residual."""
    return NamedSharding(mesh, PartitionSpec(HOST, DEVICE))
