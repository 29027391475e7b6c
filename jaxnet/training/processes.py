"""Where a run takes place: its processes, their mesh, and this process's part of every batch."""

import hashlib
import sys
from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh

from jaxnet.checkpoints import Consensus
from jaxnet.cluster.agreement import check_agreement, code_digests
from jaxnet.cluster.devices import local_device_count
from jaxnet.cluster.start import Cluster, start, start_by_mpi
from jaxnet.comm import HOST, make_mesh, mpi_world
from jaxnet.config.keys import to_json
from jaxnet.config.run import Config
from jaxnet.data import Shard
from jaxnet.errors import InputError
from jaxnet.training.initial import weights_digest

# ---- What must be the same on all processes of a run, and what a run that is continued should find as it was


_DECODER = "decoder"


def fingerprint(config: Config) -> dict[str, str]:
    """What must be the same on all processes."""
    packages = ("jax", "jaxlib", "flax", "optax", "numpy", *(("mpi4jax", "mpi4py") * (config.transport == "mpi")))
    return {
        "config": hashlib.sha256(to_json(config).encode()).hexdigest()[:16],
        "python": ".".join(map(str, sys.version_info[:2])),
        "devices per process": str(local_device_count()),
        **({} if config.initial_weights is None else {"initial weights": weights_digest(config.initial_weights)}),
        **{package: version(package) for package in packages},
        **decoder(config),
        **code_digests(),
    }


def decoder(config: Config) -> dict[str, str]:
    """What decodes the images of a data set that says so; checkpoints hold it, too."""
    name = getattr(config.data, _DECODER, None)
    return {} if name is None else {_DECODER: str(name)}


def other_decoder(config: Config, extra: Mapping[str, Any]) -> str | None:
    """The line that says that a run goes on with another decoder than the checkpoint with this `extra`; or None.

    No reason to refuse: pixels differ by little, and what was learned holds. But the bits are not an unbroken run's.
    """
    now, before = decoder(config).get(_DECODER), extra.get(_DECODER)
    if now is None or before is None or now == before:
        return None
    return (
        f"images are decoded by {now} from now on, and were by {before} until this checkpoint: pixels differ a little; "
        "install the same packages to continue as before"
    )


class ProcessGroup(NamedTuple):
    """The processes of a run as one of them sees them.

    Attributes:
        cluster: how many there are, which one this is, and how they were joined.
        mesh: axes ('host', 'device'), over the devices of all; with MPI over those of this process.
        shard: which part of every batch this process reads.
    """

    cluster: Cluster
    mesh: Mesh
    shard: Shard

    @property
    def primary(self) -> bool:
        """Whether this is process 0, which writes and speaks for all."""
        return self.shard.index == 0

    def broadcast_object(self, make: Callable[[], Any]) -> Any:
        """What `make` returns on process 0, as JSON carries it; all processes call this, in the same order."""
        ranks = self.cluster.mpi
        return ranks.broadcast_object(make) if ranks else Consensus().decided(make)


def join(config: Config, mesh: Mesh | None = None) -> ProcessGroup:
    """Join the processes, check that all run the same, and lay the mesh over their devices.

    With a `mesh`, of devices that exist or that are only compiled for, the group is what JAX knows, or MPI.
    """
    if config.transport == "mpi":
        if mesh is not None and mesh.shape[HOST] != 1:
            raise InputError(f"transport=mpi takes a mesh of one host in each process, and this has {mesh.shape[HOST]}")
        cluster = start_by_mpi(mpi_world)
    else:
        cluster = start() if mesh is None else Cluster(jax.process_index(), jax.process_count())
    if mesh is None:
        check_agreement(cluster, fingerprint(config))
        mesh = mesh_of(config)
    return ProcessGroup(cluster, mesh, Shard(cluster.process_index, cluster.process_count))


def mesh_of(config: Config) -> Mesh:
    """The mesh that the config asks for."""
    try:
        return make_mesh(1 if config.transport == "mpi" else config.hosts)
    except ValueError as error:
        count = jax.device_count()
        divisors = ", ".join(str(hosts) for hosts in range(1, count + 1) if count % hosts == 0)
        raise InputError(f"hosts={config.hosts}: {error}; wanted one of {divisors}") from error
