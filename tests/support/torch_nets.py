"""Networks of torchvision and timm, built again for PyTorch with their names, and a `width`; needs no torchvision.

    python torch_nets.py FOLDER resnet18:0.125:64:10 ...

writes for each NAME:WIDTH:IMAGE:CLASSES the state dict of random values as NAME.pth and as NAME.safetensors, and
NAME.npz: images x [2, 3, IMAGE, IMAGE], what the network gives for them in evaluation (y), and in training without
dropout (trained, and auxiliary0, ... where it has such heads). Run by an interpreter that has PyTorch; it need not
have JAX.
"""

import json
import struct
import sys
import warnings
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch_inceptions import GoogLeNet, InceptionV3
from torch_layers import Scale, conv

warnings.simplefilter("ignore")  # of lazy layers, whose interface may change


class Classified(nn.Module):
    """AlexNet and VGG: features, a map of a given size, a classifier."""

    def __init__(self, features, places, classifier):
        super().__init__()
        self.features = nn.Sequential(*features)
        self.avgpool = nn.AdaptiveAvgPool2d(places)
        self.classifier = nn.Sequential(*classifier)

    def forward(self, x):
        return self.classifier(self.avgpool(self.features(x)).flatten(1))


def alexnet(of, classes):
    layers = [conv(of(64), 11, 4, 2), nn.ReLU(), nn.MaxPool2d(3, 2), conv(of(192), 5, padding=2), nn.ReLU()]
    layers += [nn.MaxPool2d(3, 2)]
    for channels in (384, 256, 256):
        layers += [conv(of(channels), 3, padding=1), nn.ReLU()]
    layers += [nn.MaxPool2d(3, 2)]
    hidden = [part for _ in range(2) for part in (nn.Dropout(0), nn.LazyLinear(of(4096)), nn.ReLU())]
    return Classified(layers, 6, [*hidden, nn.LazyLinear(classes)])


def vgg(of, classes, convs, norm):
    layers = []
    for count, channels in zip(convs, (64, 128, 256, 512, 512), strict=True):
        for _ in range(count):
            layers += [conv(of(channels), 3, padding=1), *([nn.LazyBatchNorm2d()] if norm else []), nn.ReLU()]
        layers += [nn.MaxPool2d(2, 2)]
    hidden = [part for _ in range(2) for part in (nn.LazyLinear(of(4096)), nn.ReLU(), nn.Dropout(0))]
    return Classified(layers, 7, [*hidden, nn.LazyLinear(classes)])


class Residual(nn.Module):
    def __init__(self, channels, stride, wide, projected):
        super().__init__()
        # name, channels, window, stride
        self.sizes = [(channels, 1, 1), (channels, 3, stride), (4 * channels, 1, 1)]
        if not wide:
            self.sizes = [(channels, 3, stride), (channels, 3, 1)]
        for index, (outputs, size, step) in enumerate(self.sizes, 1):
            setattr(self, f"conv{index}", conv(outputs, size, step, size // 2, bias=False))
            setattr(self, f"bn{index}", nn.LazyBatchNorm2d())
        if projected:
            outputs = self.sizes[-1][0]
            self.downsample = nn.Sequential(conv(outputs, 1, stride, bias=False), nn.LazyBatchNorm2d())

    def forward(self, x):
        y = x
        for index in range(1, len(self.sizes) + 1):
            y = F.relu(y) if index > 1 else y
            y = getattr(self, f"bn{index}")(getattr(self, f"conv{index}")(y))
        return F.relu(y + (self.downsample(x) if hasattr(self, "downsample") else x))


class ResNet(nn.Module):
    def __init__(self, of, classes, depths, wide):
        super().__init__()
        self.conv1, self.bn1 = conv(of(64), 7, 2, 3, bias=False), nn.LazyBatchNorm2d()
        for stage, depth in enumerate(depths):
            blocks = []
            for index in range(depth):
                stride = 2 if stage and not index else 1
                projected = not index and (stage > 0 or wide)
                blocks.append(Residual(of(64 * 2**stage), stride, wide, projected))
            setattr(self, f"layer{stage + 1}", nn.Sequential(*blocks))
        self.fc = nn.LazyLinear(classes)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 3, 2, 1)
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(x.mean((2, 3)))


BASIC, WIDE = (2, 2, 2, 2), (3, 4, 6, 3)
NETS = {
    "alexnet": alexnet,
    "vgg11": lambda of, classes: vgg(of, classes, (1, 1, 2, 2, 2), norm=False),
    "vgg11_bn": lambda of, classes: vgg(of, classes, (1, 1, 2, 2, 2), norm=True),
    "vgg16": lambda of, classes: vgg(of, classes, (2, 2, 3, 3, 3), norm=False),
    "googlenet_bn": GoogLeNet,
    "inception_v3": InceptionV3,
    "resnet18": lambda of, classes: ResNet(of, classes, BASIC, wide=False),
    "resnet50": lambda of, classes: ResNet(of, classes, WIDE, wide=True),
}


def randomize(net):
    """Values that no layer starts from, so that a forgotten one shows."""
    for layer in net.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.weight.data.uniform_(0.5, 1.5)
            layer.bias.data.normal_(0, 0.1)
            layer.running_mean.normal_(0, 0.1)
            layer.running_var.uniform_(0.5, 1.5)


def write_safetensors(path, tensors):
    """The format is a length, a header in JSON and the bytes: no package is needed to write it."""
    header, data = {}, b""
    for name, tensor in tensors.items():
        kind = "F32" if tensor.dtype == torch.float32 else "I64"
        raw = tensor.contiguous().numpy().tobytes()
        header[name] = {
            "dtype": kind,
            "shape": list(tensor.shape),
            "data_offsets": [len(data), len(data) + len(raw)],
        }
        data += raw
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


@torch.no_grad()
def generate(folder, name, width, image, classes):
    net = NETS[name](Scale(width), classes)
    x = torch.randn(2, 3, image, image)
    net.train()(x)  # which makes the lazy layers
    randomize(net)
    state = {key: tensor.clone() for key, tensor in net.state_dict().items()}
    torch.save(net.state_dict(), folder / f"{name}.pth")
    write_safetensors(folder / f"{name}.safetensors", state)
    y = net.eval()(x)
    trained = net.train()(x)
    trained, *heads = trained if isinstance(trained, tuple) else (trained,)
    auxiliary = {f"auxiliary{index}": head.numpy() for index, head in enumerate(heads)}
    np.savez(folder / f"{name}.npz", x=x.numpy(), y=y.numpy(), trained=trained.numpy(), **auxiliary)


if __name__ == "__main__":
    torch.manual_seed(0)
    torch.set_num_threads(1)
    for wanted in sys.argv[2:]:
        name, width, image, classes = wanted.split(":")
        generate(Path(sys.argv[1]), name, float(width), int(image), int(classes))
