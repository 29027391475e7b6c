"""Traces made for tests: of a small step on real devices, and of events that never happened."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

from jaxnet import comm
from jaxnet.report import Event, Trace
from jaxnet.report.programs import read_program

WIDTH, LAYERS = 16, 3
STEPS = 3
LAYER_BYTES = WIDTH * WIDTH * 4

# Two buckets over two devices, and a loop that holds a third collective.
HLO = """HloModule jit_step, is_scheduled=true

%body (x: f32[8]) -> f32[8] {
  ROOT %psum.9 = f32[8]{0} all-reduce(%x), replica_groups={{0,1}}, metadata={op_name="jit(step)/while/body/psum"}
}

ENTRY %main (p: f32[8]) -> f32[8] {
  %dot.1 = f32[8]{0} dot(%p, %p)
  %psum.0 = f32[100]{0} all-reduce(%dot.1), replica_groups={{0,1}}, metadata={op_name="jit(step)/bucket_0/psum"}
  %dot.2 = f32[8]{0} dot(%p, %p)
  %psum.1 = f32[50]{0} all-reduce(%dot.2), replica_groups={{0,1}}, metadata={op_name="jit(step)/bucket_1/psum"}
  ROOT %while.1 = f32[8]{0} while(%p), condition=%cond, body=%body
}
"""


def made_up(process, runs, steps=(), hlo=HLO):
    """A trace of one device; `runs` holds for each run (instruction, start, end) in milliseconds."""
    events = [
        Event("jit_step(1)", 70 + number, process * 2048, op, round(start * 1e6), round(end * 1e6))
        for number, run in enumerate(runs)
        for op, start, end in run
    ]
    return Trace(process, {"jit_step(1)": read_program(hlo)}, events, list(steps))


def record(directory, mesh, strategy="ddp", annotated=True):
    """Trace a few steps of a small network, each layer in a bucket of its own."""
    step, params, x = _step(mesh, strategy)
    params = jax.block_until_ready(step(params, x))
    with jax.profiler.trace(str(directory)):
        for number in range(STEPS):
            if annotated:
                with jax.profiler.StepTraceAnnotation("train", step_num=100 + number):
                    params = step(params, x)
            else:
                params = step(params, x)
        jax.block_until_ready(params)


def _step(mesh, strategy):
    reducer = comm.named_strategy(strategy, LAYER_BYTES).reducer

    def step(params, x):
        local = jax.tree.map(lambda p: jax.lax.pcast(p, comm.AXES, to="varying"), params)
        grads = jax.grad(lambda p: _loss(p, x))(local)
        sums, _ = reducer.reduce(grads, reducer.init(grads, mesh.shape))
        return jax.tree.map(lambda p, total: p - 0.1 * total / mesh.size, params, sums)

    mapped = jax.shard_map(step, mesh=mesh, in_specs=(P(), P(comm.AXES)), out_specs=P())
    params = [np.eye(WIDTH, dtype=np.float32)] * LAYERS
    x = np.ones((4 * mesh.size, WIDTH), np.float32)
    placed = jax.make_array_from_callback(x.shape, comm.split_by_example(mesh), lambda index: x[index])
    compiled = jax.jit(mapped, compiler_options=comm.compiler_options("cpu"))
    return compiled, jax.device_put(params, comm.replicated(mesh)), placed


def _loss(params, x):
    for weights in params:
        x = jnp.tanh(x @ weights)
    return jnp.mean(x**2)
