"""PyTorch DistributedDataParallel over Gloo on the CPU, on the workloads of `jaxnet bench step`.

One process a host, started with the variables that jaxnet's processes have (JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES,
JAX_PROCESS_ID): by `jaxnet launch local`, `jaxnet lab`, or by hand. Process 0 prints one JSON line a round and variant.

    jaxnet launch local --processes 2 -- .venv-torch/bin/python benchmarks/peers/ddp.py --model dense
"""

import argparse
import os
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

try:
    import torch
    import torch.distributed as dist
except ImportError:
    sys.exit("error: PyTorch is not installed here; benchmarks/peers/README.md says how to make its environment")

from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.peers.place import torch_place
from benchmarks.peers.rounds import in_turn, say, serve
from benchmarks.peers.torch_models import make_batch, make_workload
from jaxnet.cost.shapes import SIZES

_LEARNING_RATE = 1e-3
_WARMUP_STEPS = 5  # DDP arranges its buckets anew after the first, PowerSGD starts at the third


def _with_fp16(model: DistributedDataParallel) -> None:
    model.register_comm_hook(None, default_hooks.fp16_compress_hook)


def _with_powersgd(model: DistributedDataParallel) -> None:
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2)
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)


class Variant(NamedTuple):
    """Size of a bucket in MiB, what is done to a bucket, and whether DDP may rely on each step being like the first."""

    mebibytes: int
    hook: Callable[[DistributedDataParallel], None] | None = None
    static: bool = False


VARIANTS = {
    "ddp-1MiB": Variant(1),
    "ddp-4MiB": Variant(4),
    "ddp-25MiB": Variant(25),
    "ddp-1MiB-static": Variant(1, static=True),
    "ddp-4MiB-static": Variant(4, static=True),
    "ddp-fp16": Variant(25, _with_fp16),
    "ddp-powersgd": Variant(25, _with_powersgd),
}
COMPUTE = "torch-compute"  # the same step in one process by itself


class Step:
    """A whole training step: forward, backward with its reduction, SGD."""

    def __init__(self, variant: str, model: str, batch: int) -> None:
        workload = make_workload(model)
        self.batch = make_batch(workload, batch)
        self.model: torch.nn.Module = workload
        if variant != COMPUTE:
            mebibytes, hook, static = VARIANTS[variant]
            # Gradients as views of the buckets save a copy, which is DDP at its best.
            wrapped = DistributedDataParallel(
                workload, bucket_cap_mb=mebibytes, gradient_as_bucket_view=True, static_graph=static
            )
            if hook is not None:
                hook(wrapped)
            self.model = wrapped
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=_LEARNING_RATE)
        self.seconds_a_step(_WARMUP_STEPS)

    def seconds_a_step(self, steps: int) -> float:
        """From a common start to the end of the last process, behind a step that is not timed, as for jaxnet."""
        dist.barrier()
        self._step()
        started = time.perf_counter()
        for _ in range(steps):
            self._step()
        seconds = torch.tensor(time.perf_counter() - started)
        dist.all_reduce(seconds, dist.ReduceOp.MAX)
        return float(seconds) / steps

    def _step(self) -> None:
        self.optimizer.zero_grad()
        self.model(self.batch).backward()
        self.optimizer.step()


def main() -> None:
    args = _arguments()
    if args.threads:
        torch.set_num_threads(args.threads)
    os.environ.update(torch_place(os.environ))
    dist.init_process_group("gloo", timeout=timedelta(minutes=5))
    batch = args.batch or SIZES[args.model].batch
    variants = args.variant or [COMPUTE, *VARIANTS]
    steps = {variant: Step(variant, args.model, batch) for variant in variants}
    if args.serve:
        serve("torch", lambda variant, count: steps[variant].seconds_a_step(count))
    else:
        for number, variant in in_turn(variants, args.rounds):
            seconds = steps[variant].seconds_a_step(args.steps_per_round)
            if dist.get_rank() == 0:
                say(framework="torch", round=number, variant=variant, ms=seconds * 1e3)
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)  # taking PyTorch's Gloo threads down in order aborts one run in ten


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=list(SIZES), default="dense")
    parser.add_argument("--batch", type=int, help="examples a process; default: the model's")
    parser.add_argument("--variant", action="append", choices=[COMPUTE, *VARIANTS], help="default: all")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps-per-round", type=int, default=5)
    parser.add_argument("--threads", type=int, help="1 for one core a process; default: PyTorch's own choice")
    parser.add_argument("--serve", action="store_true", help="time rounds on request, for compare.py")
    return parser.parse_args()


if __name__ == "__main__":
    main()
