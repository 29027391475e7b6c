"""How gradients travel: reducers, schedules and strategies that sum a pytree over a mesh of devices.

Needs only JAX, and works in any training loop; docs/using_comm.md has whole programs. An expression reads from the
outside in, as the data moves: `during(bucketed(scattered("device", all_reduce("host")), 25 * MiB))`.

    sum one message         all_reduce, ring, halving_doubling, rooted (trees), mpi_all_reduce
    with fewer bits         cast; compressed and compressed_scattered, with codecs.int8(), codecs.top_k(0.01), ...
    a sum inside another    scattered(axis, inner), ring(axis, inner), ...; factored (levels in an axis); bracket
    a pytree as messages    bucketed, grouped, by_bucket, powersgd; in_order, backward_order
    when messages travel    during, after; sharded for sums in shards, which the next step gathers (ZeRO-1)
    whole strategies        STRATEGIES, installed_strategies, named_strategy, Strategy, Averaging
    what will travel        reducer.plan, Plan, Collective, wire_bytes_per_axis
    by platform             compiler_options, platform_options, chosen_options, as_sent, on_platform, tiled, pipelined
    what was compiled       verify, collectives_in, programs_in, schedule
    the mesh                make_mesh, AXES, replicated, split_by_example, one_per_device, own_device
    a reducer of your own   Reducer, ByMessage, stateless, expressed, BOUND_AXES, axes_size, same_along; judge: its laws
    a loop of your own      as_gradient_transformation; untracked, for models whose loops begin with zeros
    a step in pieces        messages_of, lower_launch: several programs, whose sums overlap the computation
"""

from jaxnet.comm import codecs
from jaxnet.comm.bucketed import after, bucketed, by_bucket, during, grouped, in_order
from jaxnet.comm.buckets import Bucket, BucketPlan
from jaxnet.comm.by_name import (
    AUTO,
    STRATEGIES,
    has_bucket_size,
    installed_strategies,
    named_strategy,
    settings_of,
    takes_all_reduce,
)
from jaxnet.comm.codecs import Codec
from jaxnet.comm.compressed import cast, compressed, compressed_scattered
from jaxnet.comm.cut import PieceProgram, cut, first_reads, result_turns
from jaxnet.comm.expression import GiB, KiB, MiB, expressed
from jaxnet.comm.found import FoundCollective, collectives_in, schedule
from jaxnet.comm.guards import same_along, varying_along, varying_axes
from jaxnet.comm.halves import AllReduce, Halves, HalvesPlan, all_reduce, bracket, scattered, xla_halves
from jaxnet.comm.hlo import Instruction, Program, programs_in
from jaxnet.comm.laws import Judgement, judge
from jaxnet.comm.mesh import (
    AXES,
    DEVICE,
    HOST,
    is_described,
    make_mesh,
    mesh_size,
    one_per_device,
    own_device,
    platform_of,
    replicated,
    split_by_example,
)
from jaxnet.comm.messages import Messages, messages_of
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
    local_shards,
    lower_here,
    lower_launch,
    replicated_arrays,
)
from jaxnet.comm.platforms import (
    OPTION_SETS,
    CompilerOption,
    as_options,
    as_sent,
    chosen_options,
    compiler_options,
    on_platform,
    platform_options,
)
from jaxnet.comm.powersgd import powersgd
from jaxnet.comm.reducer import (
    BOUND_AXES,
    AxisSizes,
    ByMessage,
    Collective,
    CollectiveKind,
    Plan,
    ReduceFn,
    Reducer,
    as_gradient_transformation,
    axes_size,
    sent_by_busiest,
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
from jaxnet.comm.traffic import pipelined, tiled
from jaxnet.comm.trees import best_chunks, rooted, rooted_halves
from jaxnet.comm.untracked import untracked
from jaxnet.comm.verify import Check, verify

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
    "by_bucket",
    "grouped",
    "Grouping",
    "merged_up_to",
    "merged_by_cost",
    "in_order",
    "backward_order",
    "powersgd",
    "KiB",
    "MiB",
    "GiB",
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
    "AUTO",
    "Strategy",
    "Averaging",
    "BlockFilter",
    "installed_strategies",
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
    "sent_by_busiest",
    "wire_bytes_per_axis",
    "compiler_options",
    "platform_options",
    "chosen_options",
    "as_options",
    "CompilerOption",
    "OPTION_SETS",
    "as_sent",
    "on_platform",
    "tiled",
    "pipelined",
    "judge",
    "Judgement",
    "verify",
    "Check",
    "collectives_in",
    "programs_in",
    "schedule",
    "Program",
    "Instruction",
    "FoundCollective",
    # The mesh
    "AXES",
    "HOST",
    "DEVICE",
    "make_mesh",
    "is_described",
    "platform_of",
    "mesh_size",
    "replicated",
    "split_by_example",
    "one_per_device",
    "own_device",
    # A reducer, and a loop, of your own
    "Reducer",
    "ByMessage",
    "ReduceFn",
    "stateless",
    "expressed",
    "AxisSizes",
    "BOUND_AXES",
    "axes_size",
    "varying_along",
    "varying_axes",
    "same_along",
    "untracked",
    "as_gradient_transformation",
    # A step as several programs
    "Message",
    "Messages",
    "messages_of",
    "Launch",
    "PieceProgram",
    "cut",
    "first_reads",
    "result_turns",
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
