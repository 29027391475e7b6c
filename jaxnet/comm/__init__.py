"""How gradients travel. Needs jax alone; usable in any training loop.

reducer = bucketed(scattered("device", all_reduce("host")), bucket_bytes=25 * MiB)
"""

from jaxnet.comm.algorithms import all_reduce as all_reduce
from jaxnet.comm.algorithms import cast as cast
from jaxnet.comm.algorithms import scattered as scattered
from jaxnet.comm.bucketed import after as after
from jaxnet.comm.bucketed import bucketed as bucketed
from jaxnet.comm.bucketed import in_order as in_order
from jaxnet.comm.buckets import Bucket as Bucket
from jaxnet.comm.buckets import BucketPlan as BucketPlan
from jaxnet.comm.buckets import Piece as Piece
from jaxnet.comm.buckets import plan_buckets as plan_buckets
from jaxnet.comm.collective import Collective as Collective
from jaxnet.comm.collective import wire_bytes_per_axis as wire_bytes_per_axis
from jaxnet.comm.compiler import compiler_options as compiler_options
from jaxnet.comm.mesh import AXES as AXES
from jaxnet.comm.mesh import DEVICE as DEVICE
from jaxnet.comm.mesh import HOST as HOST
from jaxnet.comm.mesh import make_mesh as make_mesh
from jaxnet.comm.mesh import mesh_size as mesh_size
from jaxnet.comm.mesh import one_per_device as one_per_device
from jaxnet.comm.mesh import replicated as replicated
from jaxnet.comm.mesh import split_by_example as split_by_example
from jaxnet.comm.order import backward_order as backward_order
from jaxnet.comm.reducer import KiB as KiB
from jaxnet.comm.reducer import MiB as MiB
from jaxnet.comm.reducer import Plan as Plan
from jaxnet.comm.reducer import Reducer as Reducer
from jaxnet.comm.strategies import STRATEGIES as STRATEGIES
from jaxnet.comm.strategies import Strategy as Strategy
from jaxnet.comm.strategies import named_strategy as named_strategy
from jaxnet.comm.transform import as_gradient_transformation as as_gradient_transformation
from jaxnet.comm.verify import Check as Check
from jaxnet.comm.verify import verify as verify
