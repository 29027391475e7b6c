"""How gradients travel. Needs only JAX, and works in any training loop; docs/using_comm.md has whole programs.

    reducer = during(bucketed(scattered("device", all_reduce("host")), bucket_bytes=25 * MiB))

- Sums of one message over mesh axes: `all_reduce`, `ring`, `halving_doubling`, `rooted` (trees), `mpi_all_reduce`;
  with fewer bits: `cast`, `compressed`, `compressed_scattered`, with a codec from `codecs`.
- Brackets, one sum inside another: `scattered`, `ring(axis, inner)` and so on; `factored` makes levels of one axis;
  `bracket` takes `Halves` of your own.
- Pytrees as messages: `bucketed`, `grouped`, `powersgd`, in the order that `in_order` gives.
- Schedules: `during` backward, `after` it; `sharded` for sums in shards that the next step gathers (ZeRO-1).
- Strategies, whole ways by name: `STRATEGIES`, `named_strategy`, `Strategy`, `Averaging`.
- `reducer.plan` predicts what travels (`Plan`, `Collective`, `wire_bytes_per_axis`); `verify` finds it in the program
  that was compiled with `compiler_options`.
- The mesh: `make_mesh`, and shardings on it.
- For a reducer of your own: `Reducer`, `stateless`, `expressed`, `BOUND_AXES`, `axes_size`, `same_along`.
- A step as several programs that overlap: `messages_of`, `lower_launch`.
"""

from jaxnet.comm import codecs
from jaxnet.comm.bucketed import after, bucketed, during, grouped, in_order
from jaxnet.comm.buckets import Bucket, BucketPlan
from jaxnet.comm.by_name import STRATEGIES, has_bucket_size, named_strategy, settings_of, takes_all_reduce
from jaxnet.comm.codecs import Codec
from jaxnet.comm.compressed import cast, compressed, compressed_scattered
from jaxnet.comm.expression import KiB, MiB, expressed
from jaxnet.comm.guards import same_along, varying_axes
from jaxnet.comm.halves import AllReduce, Halves, HalvesPlan, all_reduce, bracket, scattered, xla_halves
from jaxnet.comm.hlo import FoundCollective, collectives_in
from jaxnet.comm.mesh import (
    AXES,
    DEVICE,
    HOST,
    make_mesh,
    mesh_size,
    one_per_device,
    replicated,
    split_by_example,
)
from jaxnet.comm.mpi import mpi_all_reduce, mpi_world
from jaxnet.comm.order import Grouping, backward_order, merged_by_cost, merged_up_to
from jaxnet.comm.pieces import (
    PIECE,
    SUM,
    UPDATE,
    HasText,
    Launch,
    LoweredLaunch,
    Message,
    Messages,
    local_shards,
    lower_here,
    lower_launch,
    messages_of,
    replicated_arrays,
)
from jaxnet.comm.powersgd import powersgd
from jaxnet.comm.reducer import (
    BOUND_AXES,
    AxisSizes,
    Collective,
    CollectiveKind,
    Plan,
    ReduceFn,
    Reducer,
    as_gradient_transformation,
    axes_size,
    stateless,
    wire_bytes_per_axis,
)
from jaxnet.comm.rings import halving_doubling, halving_doubling_halves, ring, ring_halves
from jaxnet.comm.sharded import (
    Sharded,
    as_reducer,
    rows_of,
    scatter_after,
    sharded,
    shards_in_order,
    stacked_filled,
    stacked_shards,
    whole_of,
)
from jaxnet.comm.strategy import Averaging, BlockFilter, Strategy, scheduled
from jaxnet.comm.topology import Factor, factored
from jaxnet.comm.trees import best_chunks, rooted, rooted_halves
from jaxnet.comm.verify import Check, compiler_options, verify

__all__ = [  # noqa: RUF022 - in the order of the docstring
    # Sums of one message
    "all_reduce",
    "ring",
    "halving_doubling",
    "rooted",
    "best_chunks",
    "cast",
    "compressed",
    "compressed_scattered",
    "codecs",
    "Codec",
    "AllReduce",
    "mpi_all_reduce",
    "mpi_world",
    # Brackets
    "scattered",
    "factored",
    "Factor",
    "bracket",
    "Halves",
    "HalvesPlan",
    "xla_halves",
    "ring_halves",
    "halving_doubling_halves",
    "rooted_halves",
    # Pytrees as messages
    "bucketed",
    "grouped",
    "Grouping",
    "merged_up_to",
    "merged_by_cost",
    "in_order",
    "backward_order",
    "powersgd",
    "KiB",
    "MiB",
    # Schedules
    "during",
    "after",
    "sharded",
    "Sharded",
    "scatter_after",
    "shards_in_order",
    "stacked_shards",
    "as_reducer",
    "rows_of",
    "whole_of",
    "stacked_filled",
    # Strategies
    "STRATEGIES",
    "Strategy",
    "Averaging",
    "BlockFilter",
    "named_strategy",
    "settings_of",
    "has_bucket_size",
    "takes_all_reduce",
    "scheduled",
    # Plans, and programs compared with them
    "Plan",
    "Collective",
    "CollectiveKind",
    "Bucket",
    "BucketPlan",
    "wire_bytes_per_axis",
    "compiler_options",
    "verify",
    "Check",
    "collectives_in",
    "FoundCollective",
    # The mesh
    "AXES",
    "HOST",
    "DEVICE",
    "make_mesh",
    "mesh_size",
    "replicated",
    "split_by_example",
    "one_per_device",
    # A reducer, and a loop, of your own
    "Reducer",
    "ReduceFn",
    "stateless",
    "expressed",
    "AxisSizes",
    "BOUND_AXES",
    "axes_size",
    "varying_axes",
    "same_along",
    "as_gradient_transformation",
    # A step as several programs
    "Message",
    "Messages",
    "messages_of",
    "Launch",
    "LoweredLaunch",
    "lower_launch",
    "lower_here",
    "local_shards",
    "replicated_arrays",
    "HasText",
    "PIECE",
    "SUM",
    "UPDATE",
]
