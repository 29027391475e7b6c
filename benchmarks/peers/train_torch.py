"""Training steps in PyTorch for throughput.py: eager, with channels last, and compiled."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

try:
    import torch
except ImportError:
    sys.exit("error: PyTorch is not installed here; benchmarks/peers/README.md says how to make its environment")

from torch import nn
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests/support"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from torch_nets import NETS, Scale  # type: ignore[import-not-found]  # is in tests/support

from benchmarks.peers import networks
from benchmarks.peers.rounds import serve_runs

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
Run = Callable[[int], None]  # so many steps, and waits for the last


class Transformer(nn.Module):
    """The form of `jaxnet.models.Transformer`: pre-norm, causal, learned positions."""

    def __init__(self, sizes: networks.Text) -> None:
        super().__init__()
        self.embed = nn.Embedding(sizes.vocabulary, sizes.dim)
        self.positions = nn.Parameter(torch.zeros(sizes.positions, sizes.dim))
        self.blocks = nn.ModuleList(Block(sizes.dim, sizes.heads) for _ in range(sizes.depth))
        self.norm, self.head = nn.LayerNorm(sizes.dim, 1e-6), nn.Linear(sizes.dim, sizes.vocabulary)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens) + self.positions
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)).transpose(1, 2)  # classes in the second dim, as the loss wants them


class Block(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(dim, 1e-6), nn.LayerNorm(dim, 1e-6)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        qkv = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(*qkv, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


class Subject(NamedTuple):
    """A network, what it is called with, the classes that it should name, and the weight of its auxiliary heads."""

    net: nn.Module
    inputs: Callable[[], torch.Tensor]
    labels: torch.Tensor
    auxiliary: float = 0.0


def text(batch: int) -> Subject:
    """The transformer, and random tokens."""
    sizes = networks.Text()
    tokens = torch.randint(0, sizes.vocabulary, (batch, sizes.positions + 1), device=DEVICE)
    return Subject(Transformer(sizes), lambda: tokens[:, :-1], tokens[:, 1:])


def images(name: str, batch: int, layout: torch.memory_format) -> Subject:
    """A network of the zoo, and random images, which each step normalizes."""
    zoo, auxiliary = networks.NETWORKS[name]
    height, width, channels = networks.IMAGE
    net: nn.Module = NETS[zoo](Scale(1), networks.CLASSES).train()
    net(torch.zeros(2, channels, height, width))  # which makes the lazy layers
    pixels = torch.randint(0, 256, (batch, channels, height, width), dtype=torch.uint8, device=DEVICE)
    labels = torch.randint(0, networks.CLASSES, (batch,), device=DEVICE)
    mean, deviation = (
        torch.tensor(values, device=DEVICE).reshape(1, -1, 1, 1) for values in (networks.MEAN, networks.DEVIATION)
    )

    def inputs() -> torch.Tensor:
        return ((pixels.float() / 255 - mean) / deviation).contiguous(memory_format=layout)

    return Subject(net, inputs, labels, auxiliary)


class Variant:
    """A training step: normalize, forward, backward, SGD."""

    def __init__(self, name: str, batch: int, dtype: str, *, last: bool = False, compiled: bool = False) -> None:
        torch.manual_seed(0)
        layout = torch.channels_last if last else torch.contiguous_format
        self.dtype = getattr(torch, dtype)
        self.trained = text(batch) if name == networks.TEXT else images(name, batch, layout)
        net = self.trained.net.to(DEVICE, memory_format=layout)
        self.optimizer = torch.optim.SGD(net.parameters(), networks.LEARNING_RATE, networks.MOMENTUM)
        self.net = torch.compile(net) if compiled else net

    def __call__(self, steps: int) -> None:
        for _ in range(steps):
            self.optimizer.zero_grad()
            self.loss().backward()
            self.optimizer.step()
        wait()

    def loss(self) -> torch.Tensor:
        _, inputs, labels, auxiliary = self.trained
        given = inputs()
        with torch.autocast(DEVICE.type, self.dtype, enabled=self.dtype != torch.float32):
            outputs = self.net(given)
        logits, *heads = outputs if isinstance(outputs, tuple) else (outputs,)
        total = F.cross_entropy(logits.float(), labels)
        for head in heads:
            total = total + auxiliary * F.cross_entropy(head.float(), labels)
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
