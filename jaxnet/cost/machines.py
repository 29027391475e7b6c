"""Machines by name, with the rates of their links: those of ACCELERATORS, and older ones on which papers measured.

    v100-edr:4x8     four hosts of eight V100
    h100:128x8       also the GPUs that `jaxnet plan --on` compiles for
    v5e:16x16/4      and its TPUs: four slices of 16 x 16 chips

A link is what carries a message: `near` between the devices of a host or of a TPU slice, `far` between hosts or slices.
Rates are the makers'; what a collective reaches of them is `EFFICIENCY`, the same for all machines.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from jaxnet.cost.accelerators import ACCELERATORS, Cluster
from jaxnet.errors import InputError

Protocol = Literal["nvlink", "pcie", "rdma", "tcp", "ici", "dcn"]

EFFICIENCY: Mapping[Protocol, float] = {
    "nvlink": 0.85,  # assumed: what large all-reduces of NCCL reach
    "pcie": 0.75,  # assumed: packets, and devices that share a switch
    "rdma": 0.85,  # assumed
    "tcp": 0.57,  # Gloo's own benchmark: ring_chunked, 20 MB, 40 GbE, 4 nodes
    "ici": 0.85,  # assumed: between the chips of a TPU slice
    "dcn": 0.75,  # assumed: between slices, over the network of their hosts
}
LATENCY: Mapping[Protocol, float] = {
    "nvlink": 3.4e-6,  # NCCL's tuner: a hop of a ring, protocol Simple
    "pcie": 5.7e-6,  # likewise
    "rdma": 14e-6,  # likewise, over the network
    "tcp": 50e-6,  # assumed: the way through two kernels
    "ici": 1e-6,  # jax-ml/scaling-book
    "dcn": 20e-6,  # assumed
}
_MOST_DEVICES = 1 << 20


@dataclass(frozen=True)
class Link:
    """What carries messages.

    Attributes:
        protocol: of it, by which efficiency and latency are known.
        rate: bytes/s one way: of a device to those near it, or of a host to other hosts.
    """

    protocol: Protocol
    rate: float

    @property
    def reached(self) -> float:
        """Bytes/s that a large collective reaches."""
        return EFFICIENCY[self.protocol] * self.rate

    def seconds(self, bytes_: float, hops: float) -> float:
        """From the first of so many bytes that leaves to the last that arrives, over so many hops one after another.

        >>> round(1e3 * Link("rdma", 12.5e9).seconds(106.25e6, hops=2), 3)
        10.028
        """
        return hops * LATENCY[self.protocol] + bytes_ / self.reached


@dataclass(frozen=True)
class Machine:
    """Hosts of one kind.

    Attributes:
        name: as users write it.
        title: what it is.
        devices: of a host.
        near: between devices of a host.
        far: between hosts; all devices of a host share it.
        source: of the rates.
        dims: of the torus that near devices form; 1: a ring.
        computer: devices of a computer, which fails by itself, where a host is a TPU slice of several; 0: all.
    """

    name: str
    title: str
    devices: int
    near: Link
    far: Link
    source: str
    dims: int = 1
    computer: int = 0

    def hosts(self, devices: int) -> tuple[int, int]:
        """How many hosts have so many devices, and how many each: as few hosts as there can be.

        >>> MACHINES["h100"].hosts(64), MACHINES["h100"].hosts(4)
        ((8, 8), (1, 4))
        """
        inside = min(devices, self.devices)
        return devices // inside, inside

    def computers(self, hosts: int, devices: int) -> int:
        """Of how many computers so many hosts of so many devices are.

        >>> machine_named("v5e:16x16/4")[0].computers(4, 256), MACHINES["h100"].computers(4, 8)
        (256, 4)
        """
        return hosts * math.ceil(devices / (self.computer or self.devices))

    def near_hops(self, devices: int) -> float:
        """From one of so many near devices to all others, one after another: around a ring along each dim.

        >>> MACHINES["h100"].near_hops(8)
        7.0
        """
        return self.dims * (devices ** (1 / self.dims) - 1)


_GBIT = 1e9 / 8

# NVLink of a P100 has 4 links of 20 GB/s, of a V100 6 of 25; PCIe 3.0 x16 has 15.75 GB/s.
_OLDER = (
    Machine("k80-fdr", "8 K80 boards of two GPUs, FDR InfiniBand", 16, Link("pcie", 15.75e9), Link("rdma", 56 * _GBIT),
            "Cray CS-Storm, as S-Caffe (PPoPP 2017) had it"),
    Machine("k80-10g", "4 K80 boards of two GPUs, 10 Gbit/s", 8, Link("pcie", 15.75e9), Link("tcp", 10 * _GBIT),
            "EC2 p2.8xlarge"),
    Machine("phi-opa", "a Xeon Phi 7250, Omni-Path", 1, Link("pcie", 15.75e9), Link("rdma", 100 * _GBIT),
            "TACC Stampede2"),
    Machine("xeon-opa", "two Xeons of 20 or 24 cores, Omni-Path", 1, Link("pcie", 15.75e9), Link("rdma", 100 * _GBIT),
            "Dell Zenith, BSC MareNostrum 4"),
    Machine("xeon-fdr", "two Xeon E5-2697 v3, FDR InfiniBand", 1, Link("pcie", 15.75e9), Link("rdma", 56 * _GBIT),
            "an assumption"),
    Machine("p100-dgx1", "8 P100, NVLink, 4 x EDR InfiniBand", 8, Link("nvlink", 80e9), Link("rdma", 400 * _GBIT),
            "NVIDIA DGX-1"),
    Machine("p100-50g", "8 P100, NVLink, 50 Gbit/s Ethernet", 8, Link("nvlink", 80e9), Link("tcp", 50 * _GBIT),
            "Facebook Big Basin"),
    Machine("pascal-25g", "4 Pascal GPUs, 25 Gbit/s RoCE", 4, Link("pcie", 15.75e9), Link("rdma", 25 * _GBIT),
            "Horovod (2018)"),
    Machine("pascal-25g-tcp", "4 Pascal GPUs, 25 Gbit/s TCP", 4, Link("pcie", 15.75e9), Link("tcp", 25 * _GBIT),
            "Horovod (2018); that it is 25 Gbit/s is an assumption"),
    Machine("v100-25g", "8 V100, NVLink, 25 Gbit/s Ethernet", 8, Link("nvlink", 150e9), Link("tcp", 25 * _GBIT),
            "EC2 p3.16xlarge"),
    Machine("v100-edr", "8 V100, NVLink, EDR InfiniBand", 8, Link("nvlink", 150e9), Link("rdma", 100 * _GBIT),
            "DLPerf"),
    Machine("v100x4-edr", "4 V100, NVLink, EDR InfiniBand", 4, Link("nvlink", 150e9), Link("rdma", 100 * _GBIT),
            "Dell C4140"),
    Machine("v100-dgx1", "8 V100, NVLink, 4 x EDR InfiniBand", 8, Link("nvlink", 150e9), Link("rdma", 400 * _GBIT),
            "NVIDIA DGX-1V"),
    Machine("v100-dgx2", "16 V100, NVSwitch, 8 x EDR InfiniBand", 16, Link("nvlink", 150e9), Link("rdma", 800 * _GBIT),
            "NVIDIA DGX-2"),
    Machine("v100-pcie-40g", "8 V100, PCIe, 40 Gbit/s RoCE", 8, Link("pcie", 15.75e9), Link("rdma", 40 * _GBIT),
            "horovod#416"),
)  # fmt: skip

MACHINES: dict[str, Machine] = {
    **{each.name: each for each in _OLDER},
    **{
        each.name: Machine(
            each.name, f"8 {each.title}", 8, Link("nvlink", each.near), Link("rdma", 8 * each.far), "the maker's sheets"
        )
        for each in ACCELERATORS.values()
        if each.platform == "gpu"
    },
}


def machine_named(text: str) -> tuple[Machine, int, int]:
    """A machine, the number of hosts and that of the devices of each, from its name; of TPUs, slices and their chips.

    Raises:
        InputError: there is no such machine, or its hosts have fewer devices.

    >>> machine, hosts, devices = machine_named("v100-edr:4x8")
    >>> machine.far.rate, hosts, devices
    (12500000000.0, 4, 8)
    """
    kind = ACCELERATORS.get(text.partition(":")[0])
    if kind is not None and kind.platform == "tpu":
        cluster = Cluster.named(text)
        return _slices(cluster), cluster.slices, cluster.near_devices
    match = re.fullmatch(r"([a-z0-9-]+):([0-9]{1,7})x([0-9]{1,3})", text, re.ASCII)
    machine = MACHINES.get(match[1]) if match else None
    if match is None or machine is None:
        raise InputError(
            f"--on {text}: wanted MACHINE:HOSTSxDEVICES, such as v100-edr:4x8, or TPUs such as v5e:16x16/4; there are "
            f"{', '.join([*MACHINES, *_TPUS])}"
        )
    hosts, devices = int(match[2]), int(match[3])
    if not 1 <= devices <= machine.devices:
        raise InputError(f"--on {text}: a host of {machine.name} has 1 to {machine.devices} devices, got {devices}")
    if not 1 <= hosts * devices <= _MOST_DEVICES:
        raise InputError(f"--on {text}: wanted 1 to {_MOST_DEVICES:,} devices, got {hosts * devices:,}")
    return machine, hosts, devices


_TPUS = [each.name for each in ACCELERATORS.values() if each.platform == "tpu"]


def _slices(cluster: Cluster) -> Machine:
    """TPU slices, each as a host whose chips are near each other."""
    kind, chips = cluster.accelerator, cluster.near_devices
    title = f"slices of {'x'.join(map(str, cluster.sizes))} {kind.title}"
    near, far = Link("ici", cluster.near_rate), Link("dcn", kind.far * chips)
    computer = math.prod(cluster.host_bounds)
    return Machine(kind.name, title, chips, near, far, "jax-ml/scaling-book", kind.dims, computer)
