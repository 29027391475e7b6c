"""Training steps in PyTorch for throughput.py: eager, with channels last, and compiled."""

import sys
from collections.abc import Callable
from pathlib import Path

try:
    import torch
except ImportError:
    sys.exit("error: PyTorch is not installed here; benchmarks/peers/README.md says how to make its environment")

from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests/support"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from torch_nets import NETS, Scale  # type: ignore[import-not-found]  # is in tests/support

from benchmarks.peers import networks
from benchmarks.peers.rounds import serve_runs

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
Run = Callable[[int], None]  # so many steps, and waits for the last


class Variant:
    """A training step: normalize, forward, backward, SGD."""

    def __init__(self, name: str, batch: int, dtype: str, *, last: bool = False, compiled: bool = False) -> None:
        torch.manual_seed(0)
        self.layout = torch.channels_last if last else torch.contiguous_format
        height, width, channels = networks.IMAGE
        self.auxiliary, self.dtype = networks.NETWORKS[name].auxiliary, getattr(torch, dtype)
        net = NETS[networks.NETWORKS[name].zoo](Scale(1), networks.CLASSES).train()
        net(torch.zeros(2, channels, height, width))  # which makes the lazy layers
        net = net.to(DEVICE, memory_format=self.layout)
        self.optimizer = torch.optim.SGD(net.parameters(), networks.LEARNING_RATE, networks.MOMENTUM)
        self.images = torch.randint(0, 256, (batch, channels, height, width), dtype=torch.uint8, device=DEVICE)
        self.labels = torch.randint(0, networks.CLASSES, (batch,), device=DEVICE)
        self.mean, self.deviation = (
            torch.tensor(values, device=DEVICE).reshape(1, -1, 1, 1) for values in (networks.MEAN, networks.DEVIATION)
        )
        self.net = torch.compile(net) if compiled else net

    def __call__(self, steps: int) -> None:
        for _ in range(steps):
            self.optimizer.zero_grad()
            self.loss().backward()
            self.optimizer.step()
        wait()

    def loss(self) -> torch.Tensor:
        images = ((self.images.float() / 255 - self.mean) / self.deviation).contiguous(memory_format=self.layout)
        with torch.autocast(DEVICE.type, self.dtype, enabled=self.dtype != torch.float32):
            outputs = self.net(images)
        logits, *heads = outputs if isinstance(outputs, tuple) else (outputs,)
        total = F.cross_entropy(logits.float(), self.labels)
        for head in heads:
            total = total + self.auxiliary * F.cross_entropy(head.float(), self.labels)
        return total


def products(side: int, dtype: str) -> Run:
    """Square matrix products, one of the other's result."""
    matrix = (torch.randn(side, side, device=DEVICE) / side**0.5).to(getattr(torch, dtype))
    held = [matrix]

    def run(steps: int) -> None:
        for _ in range(steps):
            held[0] = matrix @ held[0]
        wait()

    return run


def wait() -> None:
    """For the device."""
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()


VARIANTS: dict[str, dict[str, bool]] = {
    "torch eager": {},
    "torch channels_last": {"last": True},
    "torch compile": {"last": True, "compiled": True},
}


def main() -> None:
    args = networks.worker_arguments(__doc__, list(VARIANTS))
    if args.threads:
        torch.set_num_threads(args.threads)
    torch.backends.cudnn.benchmark = True
    torch.set_float32_matmul_precision("high")  # TF32 where there is one, as JAX multiplies float32 there
    runs: dict[str, Run] = {networks.MATMUL: products(args.side, args.dtype)}
    runs |= {name: Variant(args.model, args.batch, args.dtype, **VARIANTS[name]) for name in args.variant}
    serve_runs("torch", runs, networks.WARMUP_STEPS)


if __name__ == "__main__":
    main()
