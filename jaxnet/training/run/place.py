"""Where a run takes place: its processes, their mesh, and this process's part of every batch."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh

from jaxnet.checkpoints import Consensus
from jaxnet.cluster.agreement import check_agreement
from jaxnet.cluster.start import Cluster, start, start_by_mpi
from jaxnet.comm import make_mesh, mpi_world
from jaxnet.data import Shard
from jaxnet.errors import InputError
from jaxnet.training.config import Config
from jaxnet.training.settings.fingerprint import fingerprint


class Place(NamedTuple):
    """See above."""

    cluster: Cluster
    mesh: Mesh
    shard: Shard

    @property
    def primary(self) -> bool:
        """Whether this is process 0, which writes and speaks for all."""
        return self.shard.index == 0

    def told(self, make: Callable[[], Any]) -> Any:
        """What `make` returns on process 0, as JSON carries it; all processes call this, in the same order."""
        ranks = self.cluster.ranks
        return ranks.told(make) if ranks else Consensus().decided(make)


def meet(config: Config) -> Place:
    """Join the processes, see that they run the same, and lay the mesh over their devices."""
    cluster = start_by_mpi(mpi_world) if config.transport == "mpi" else start()
    check_agreement(cluster, fingerprint(config))
    return Place(cluster, mesh_of(config), Shard(cluster.process_index, cluster.process_count))


def mesh_of(config: Config) -> Mesh:
    """The mesh that the config asks for."""
    try:
        return make_mesh(1 if config.transport == "mpi" else config.hosts)
    except ValueError as error:
        count = jax.device_count()
        divisors = ", ".join(str(hosts) for hosts in range(1, count + 1) if count % hosts == 0)
        raise InputError(f"hosts={config.hosts}: {error}; wanted one of {divisors}") from error
