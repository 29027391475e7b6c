"""Inference by PyTorch, eager and compiled, and by ONNX Runtime, for inference.py."""

import io
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests/support"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from torch_nets import NETS, Scale  # type: ignore[import-not-found]  # is in tests/support

from benchmarks.peers.networks import CLASSES, DEVIATION, IMAGE, MEAN, NETWORKS, WARMUP_STEPS
from benchmarks.peers.rounds import serve_runs


class Predictor(nn.Module):
    """Bytes of images to probabilities."""

    def __init__(self, network: str) -> None:
        super().__init__()
        height, width, channels = IMAGE
        self.net = NETS[NETWORKS[network].zoo](Scale(1), CLASSES)
        self.net(torch.zeros(2, channels, height, width))  # which makes the lazy layers
        self.register_buffer("mean", torch.tensor(MEAN).reshape(1, -1, 1, 1))
        self.register_buffer("deviation", torch.tensor(DEVIATION).reshape(1, -1, 1, 1))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return torch.softmax(self.net((images.float() / 255 - self.mean) / self.deviation), -1)


def calls_of(network: str, engine: str, batch: int, cores: int) -> Callable[[int], None]:
    """So many calls."""
    height, width, channels = IMAGE
    images = torch.randint(0, 256, (batch, channels, height, width), dtype=torch.uint8)
    predictor = Predictor(network).eval()
    if engine == "onnxruntime":
        return _by_onnxruntime(predictor, images, cores)
    predictor, images = (each.to(memory_format=torch.channels_last) for each in (predictor, images))
    call = torch.compile(predictor) if engine == "torch compile" else predictor

    def run(calls: int) -> None:
        with torch.inference_mode():
            for _ in range(calls):
                call(images)

    return run


def _by_onnxruntime(predictor: Predictor, images: torch.Tensor, cores: int) -> Callable[[int], None]:
    import onnxruntime  # type: ignore[import-not-found]  # only in PyTorch's environment

    written = io.BytesIO()
    torch.onnx.export(predictor, (images,), written, dynamo=False, input_names=["images"])
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = cores
    session = onnxruntime.InferenceSession(written.getvalue(), options, providers=["CPUExecutionProvider"])
    given = {"images": images.numpy()}

    def run(calls: int) -> None:
        for _ in range(calls):
            session.run(None, given)

    return run


def main() -> None:
    network, cores, *variants = sys.argv[1:]
    torch.set_num_threads(int(cores))
    runs = {}
    for variant in variants:
        engine, _, batch = variant.rpartition(" ")
        runs[variant] = calls_of(network, engine, int(batch), int(cores))
    serve_runs("torch", runs, WARMUP_STEPS)


if __name__ == "__main__":
    main()
