"""GPUs and TPUs by name, with their published rates, and meshes of them on a machine that has none.

XLA's compilers for GPUs and TPUs need no device, only its description. `Cluster.named("h100:2x8").mesh()` is a mesh of
devices that are descriptions: any step is planned and compiled for it as for real ones, and cannot be run.

    h100:2x8       two hosts of eight GPUs
    v5e:4x4        a TPU slice of 4 x 4 chips; three sizes for v4 and v5p, such as v5p:2x2x4
    v6e:4x4/2      two such slices
    here           the devices of this machine, if they are of a kind that is known: `Cluster.of(jax.devices())`

Rates are those of the makers' data sheets, dense, at full clock: nothing runs faster, and most things run slower.
"""

import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from jaxnet.comm import GiB
from jaxnet.errors import InputError

if TYPE_CHECKING:
    import jax
    from jax.sharding import Mesh

_EXTRAS = {"gpu": "aot-gpu", "tpu": "aot-tpu"}
_MOST_DEVICES = 16_384  # the largest TPU pods have 8,960 chips


@dataclass(frozen=True)
class Accelerator:
    """One kind of device.

    Attributes:
        name: as users write it.
        platform: 'gpu' or 'tpu'.
        title: the maker's name.
        memory: bytes of a device.
        flops: FLOP/s of products, by the NumPy dtype of the factors. Products of float32 run as JAX's default precision
            has them: TF32 on GPUs that have it, one pass of bfloat16 on TPUs.
        memory_rate: bytes/s between a device and its memory.
        near: bytes/s that a device sends to those of its host, over NVLink; of its slice, over all links of the torus.
        far: bytes/s that a device sends to those of other hosts; of other slices.
        latency: seconds until the first byte arrives, near and far.
        dims: sizes in a mesh's name: 2 or 3.
        clock: cycles/s of a TPU's cores, in which its compiler says what operations take; 0 for GPUs.
        description: what the compiler is told: fields of a GPU, and how a TPU slice is named.
    """

    name: str
    platform: Literal["gpu", "tpu"]
    title: str
    memory: int
    flops: Mapping[str, float]
    memory_rate: float
    near: float
    far: float
    latency: tuple[float, float]
    dims: int
    clock: float
    description: Mapping[str, Any] = field(repr=False)

    @property
    def sparse_cores(self) -> bool:
        """Whether it has SparseCores that add up what others compute."""
        return self.name in ("v5p", "v6e")

    def rate(self, dtype: str) -> float:
        """FLOP/s of products of this dtype; of one that the table lacks, those of float32."""
        return self.flops.get(dtype, self.flops["float32"])


def _gpu(
    name: str, title: str, memory: int, flops: tuple[float, float], rates: tuple[float, float, float], **described: Any
) -> Accelerator:
    """FLOP/s are those of 16 bits and of float32; bytes/s those of memory, NVLink and the network."""
    by_dtype = {"bfloat16": flops[0], "float16": flops[0], "float32": flops[1]}
    return Accelerator(name, "gpu", title, memory, by_dtype, *rates, (3e-6, 10e-6), 2, 0.0, described)


def _tpu(
    name: str,
    title: str,
    memory: int,
    flops: float,
    rates: tuple[float, float, float],
    dims: int,
    clock: float,
    **described: Any,
) -> Accelerator:
    """FLOP/s are those of bfloat16; bytes/s those of memory, of one link one way, and of a host's network."""
    memory_rate, link, network = rates
    by_dtype = dict.fromkeys(("bfloat16", "float16", "float32"), flops)
    near, far = 2 * dims * link, network / 4
    return Accelerator(
        name, "tpu", title, memory, by_dtype, memory_rate, near, far, (1e-6, 20e-6), dims, clock, described
    )


# GPUs: data sheets of NVIDIA (A100 SXM4, H100 SXM5, H200, B200; NVLink one way; network as in DGX A100, H100 and B200),
# memory and cores as XLA's target configurations have them. For older ones JAX's compiler asks for an older ptxas.
# TPUs: jax-ml/scaling-book, "How to Think About TPUs"; network 25 GB/s for the four chips of a host; the clock is the
# rate of products over what the matrix units do in a cycle (4 of 128 x 128 a core; of v6e 4 of 256 x 256).
ACCELERATORS = {
    each.name: each
    for each in (
        _gpu("a100-40", "NVIDIA A100-SXM4-40GB", 42_331_013_120, (312e12, 156e12), (1_555e9, 300e9, 25e9),
             capability=8, cores=108, fpus=64, shared=167_936, optin=166_912, l2=41_943_040, clock=1.41),
        _gpu("a100", "NVIDIA A100-SXM4-80GB", 85_100_068_864, (312e12, 156e12), (2_039e9, 300e9, 25e9),
             capability=8, cores=108, fpus=64, shared=167_936, optin=166_912, l2=41_943_040, clock=1.41),
        _gpu("h100", "NVIDIA H100 80GB HBM3", 84_942_979_072, (989e12, 494e12), (3_352e9, 450e9, 50e9),
             capability=9, cores=132, fpus=128, shared=233_472, optin=232_448, l2=52_428_800, clock=1.98),
        _gpu("h200", "NVIDIA H200 141GB HBM3e", 151_397_597_184, (989e12, 494e12), (4_800e9, 450e9, 50e9),
             capability=9, cores=132, fpus=128, shared=233_472, optin=232_448, l2=52_428_800, clock=1.98),
        _gpu("b200", "NVIDIA B200", 191_514_411_008, (2_250e12, 1_125e12), (7_672e9, 900e9, 50e9),
             capability=10, cores=148, fpus=128, shared=233_472, optin=232_448, l2=132_644_864, clock=1.965),
        _tpu("v4", "TPU v4", 32 * GiB, 275e12, (1.2e12, 4.5e10, 2.5e10), 3, 1.05e9, named="v4", chip="megacore"),
        _tpu("v5e", "TPU v5e", 16 * GiB, 197e12, (8.1e11, 4.5e10, 2.5e10), 2, 1.5e9, named="v5e", chip="default"),
        _tpu("v5p", "TPU v5p", 95 * GiB, 459e12, (2.8e12, 9e10, 2.5e10), 3, 1.75e9, named="v5", chip="megacore"),
        _tpu("v6e", "TPU v6e", 32 * GiB, 920e12, (1.6e12, 9e10, 2.5e10), 2, 1.75e9, named="v6e", chip="default"),
    )
}  # fmt: skip


_TPU_KINDS = {"TPU v5 lite": "v5e", "TPU v5": "v5p", "TPU v6 lite": "v6e"}  # as JAX names them


def _accelerator(device_kind: str) -> Accelerator:
    """By what JAX says of a device: its title, or the first words of it."""
    if device_kind in _TPU_KINDS:
        return ACCELERATORS[_TPU_KINDS[device_kind]]
    for accelerator in ACCELERATORS.values():
        if accelerator.title.startswith(device_kind):
            return accelerator
    titles = ", ".join(each.title for each in ACCELERATORS.values())
    raise InputError(f"--on here: the devices of this machine are of the kind {device_kind!r}; known are {titles}")


# ---- Meshes by name -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cluster:
    """So many devices of a kind, by name.

    Attributes:
        accelerator: the kind.
        sizes: hosts and GPUs of each; of TPUs, the chips of a slice along each dim.
        slices: TPU slices; 1 for GPUs.
        real: the devices, if they are there.

    >>> cluster = Cluster.named("v6e:4x4/2")
    >>> cluster.accelerator.title, cluster.sizes, cluster.slices, cluster.devices
    ('TPU v6e', (4, 4), 2, 32)
    """

    accelerator: Accelerator
    sizes: tuple[int, ...]
    slices: int = 1
    real: "tuple[jax.Device, ...]" = field(default=(), compare=False, repr=False)

    @classmethod
    def of(cls, devices: "Sequence[jax.Device]") -> "Cluster":
        """What these devices are by name; InputError: of no kind in the table."""
        from jaxnet.comm import make_mesh

        first = devices[0]
        accelerator = _accelerator(first.device_kind)
        if accelerator.platform == "gpu":
            shape = make_mesh(devices=devices).shape
            return cls(accelerator, (shape["host"], shape["device"]), 1, tuple(devices))
        corner = [max(device.coords[dim] for device in devices) for dim in range(accelerator.dims)]
        slices = len({getattr(device, "slice_index", None) for device in devices})
        return cls(accelerator, tuple(last + 1 for last in corner), slices, tuple(devices))

    @classmethod
    def named(cls, text: str) -> "Cluster":
        """From its name; InputError: there is no such kind, or its mesh is named otherwise."""
        match = re.fullmatch(r"([a-z0-9-]+):([0-9]{1,6}(?:x[0-9]{1,6})*)(?:/([0-9]{1,4}))?", text, re.ASCII)
        accelerator = ACCELERATORS.get(match[1]) if match else None
        if match is None or accelerator is None:
            raise InputError(
                f"--on {text}: wanted KIND:SIZES, such as h100:2x8, v5e:4x4 or v6e:4x4/2 for two slices; "
                f"kinds are {', '.join(ACCELERATORS)}"
            )
        sizes, slices = tuple(int(size) for size in match[2].split("x")), int(match[3] or 1)
        if len(sizes) != accelerator.dims:
            wanted = "HOSTSxDEVICES" if accelerator.platform == "gpu" else "x".join("XYZ"[: accelerator.dims])
            raise InputError(f"--on {text}: wanted {accelerator.name}:{wanted}, got {len(sizes)} sizes")
        if match[3] and accelerator.platform == "gpu":
            raise InputError(f"--on {text}: GPUs have no slices; the first size is that of hosts")
        cluster = cls(accelerator, sizes, slices)
        if not 1 <= cluster.devices <= _MOST_DEVICES:
            raise InputError(f"--on {text}: wanted 1 to {_MOST_DEVICES} devices, got {cluster.devices}")
        return cluster

    @property
    def name(self) -> str:
        """As `named` takes it."""
        slices = f"/{self.slices}" if self.slices > 1 else ""
        return f"{self.accelerator.name}:{'x'.join(map(str, self.sizes))}{slices}"

    def __str__(self) -> str:
        slices = f" in {self.slices} slices" if self.slices > 1 else ""
        return f"{self.devices} x {self.accelerator.title}{slices}"

    def mesh(self, hosts: int | None = None) -> "Mesh":
        """The devices as a mesh, ('host', 'device'); see `comm.make_mesh` for `hosts`. Raises as `describe` does."""
        from jaxnet.comm import make_mesh

        if hosts is None and self.accelerator.platform == "gpu":
            hosts = self.sizes[0]
        return make_mesh(hosts, self.describe())

    @property
    def devices(self) -> int:
        """How many there are in all."""
        return math.prod(self.sizes) * self.slices

    @property
    def near_devices(self) -> int:
        """How many are near each other: those of a host of GPUs, or of a TPU slice."""
        return self.sizes[-1] if self.accelerator.platform == "gpu" else math.prod(self.sizes)

    @property
    def host_bounds(self) -> tuple[int, int]:
        """Chips of a TPU's host along the first two dims: 2 x 2, or what there is."""
        return min(2, self.sizes[0]), min(2, self.sizes[1])

    @property
    def near_rate(self) -> float:
        """Bytes/s that a device sends to those near; half of it in a TPU slice whose links close no rings."""
        open_torus = self.accelerator.platform == "tpu" and not all(self.closed)
        return self.accelerator.near / 2 if open_torus else self.accelerator.near

    @property
    def link_rate(self) -> float:
        """Bytes/s of one link of a TPU, one way."""
        return self.accelerator.near / (2 * self.accelerator.dims)

    @property
    def closed(self) -> list[bool]:
        """Of each dim of a TPU slice, whether its links close a ring."""
        if self.accelerator.dims == 3:
            return [all(size % 4 == 0 for size in self.sizes)] * 3
        return [size == 16 for size in self.sizes]

    def describe(self) -> Sequence[Any]:
        """The devices, as JAX's: descriptions, unless they are real. Call `prepare_compilers` first.

        Raises:
            InputError: the compiler is not installed, or knows no such devices.
        """
        if self.real:
            return list(self.real)
        from jax.experimental import topologies

        kind = self.accelerator
        if kind.platform == "tpu" and any(size % 2 and size > 1 for size in self.sizes[:2]):
            raise InputError(
                f"--on {self.name}: wanted 1 or even numbers for the first two sizes: a host has 2 x 2 chips"
            )
        named = (
            {"platform": "cuda", "topology": f"{self.sizes[0]}x1x{self.sizes[1]}", "target_config": _target(kind)}
            if kind.platform == "gpu"
            else {"platform": "tpu", "topology_name": self._slice_name, **self._slice_options}
        )
        try:
            return list(topologies.get_topology_desc(**named).devices)
        except Exception as error:  # of many types, by the plug-in
            cure = f"the compiler comes with pip install 'jaxnet[{_EXTRAS[kind.platform]}]'"
            raise InputError(f"--on {self.name}: {error}; {cure}") from error

    @property
    def _slice_name(self) -> str:
        return f"{self.accelerator.description['named']}:{'x'.join(map(str, self.sizes))}"

    @property
    def _slice_options(self) -> dict[str, Any]:
        """Chips of a host, links that close a ring, slices: as the makers' slices have them."""
        options: dict[str, Any] = {
            "chip_config_name": self.accelerator.description["chip"],
            "chips_per_host_bounds": [*self.host_bounds, 1],
            "wrap": [*self.closed, False][:3],
        }
        return {**options, "num_slices": self.slices} if self.slices > 1 else options


def _target(kind: Accelerator) -> str:
    """What XLA is told of a GPU: the text form of its GpuTargetConfigProto."""
    told = kind.description
    device = {
        "threads_per_block_limit": 1024,
        "threads_per_warp": 32,
        "shared_memory_per_block": 49_152,
        "shared_memory_per_core": told["shared"],
        "threads_per_core_limit": 2048,
        "core_count": told["cores"],
        "fpus_per_core": told["fpus"],
        "block_dim_limit_x": 2_147_483_647,
        "block_dim_limit_y": 65_535,
        "block_dim_limit_z": 65_535,
        "memory_bandwidth": int(kind.memory_rate),
        "l2_cache_size": told["l2"],
        "clock_rate_ghz": told["clock"],
        "device_memory_size": kind.memory,
        "shared_memory_per_block_optin": told["optin"],
        "registers_per_core_limit": 65_536,
        "registers_per_block_limit": 65_536,
    }
    lines = " ".join(f"{name}: {value}" for name, value in device.items())
    return (
        f"gpu_device_info {{ {lines} cuda_compute_capability {{ major: {told['capability']} }} }} "
        f'platform_name: "CUDA" dnn_version_info {{ major: 9 minor: 8 }} device_description_str: "{kind.title}"'
    )


_VARIABLES = {  # libtpu would ask the cloud's metadata which TPU this is, and complain of each thing that it lacks
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # one process at a time may use a TPU, but any number its compiler
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v5litepod-8",
}


def prepare_compilers() -> None:
    """Make this process one that compiles for described devices; call it before any device is used."""
    os.environ.update(_VARIABLES)

    import jax

    # Only where JAX is told to run on the CPU does it register the compiler of a device that is not there.
    jax.config.update("jax_platforms", "cpu")
