"""GoogLeNet and Inception v3 as torchvision has them, for PyTorch: its names, and a `width`."""

import torch
from torch import nn
from torch.nn import functional as F
from torch_layers import ConvNorm


class Inception(nn.Module):
    def __init__(self, of, one, reduce3, three, reduce5, five, pooled):
        super().__init__()
        self.branch1 = ConvNorm(of(one))
        self.branch2 = nn.Sequential(ConvNorm(of(reduce3)), ConvNorm(of(three), 3, padding=1))
        self.branch3 = nn.Sequential(ConvNorm(of(reduce5)), ConvNorm(of(five), 3, padding=1))
        self.branch4 = nn.Sequential(nn.MaxPool2d(3, 1, 1, ceil_mode=True), ConvNorm(of(pooled)))

    def forward(self, x):
        return torch.cat([self.branch1(x), self.branch2(x), self.branch3(x), self.branch4(x)], 1)


class GoogLeNetHead(nn.Module):
    def __init__(self, of, classes):
        super().__init__()
        self.conv, self.fc1, self.fc2 = ConvNorm(of(128)), nn.LazyLinear(of(1024)), nn.LazyLinear(classes)

    def forward(self, x):
        return self.fc2(F.relu(self.fc1(self.conv(F.adaptive_avg_pool2d(x, 4)).flatten(1))))


class GoogLeNet(nn.Module):
    MODULES = (
        ("3a", 64, 96, 128, 16, 32, 32),
        ("3b", 128, 128, 192, 32, 96, 64),
        ("4a", 192, 96, 208, 16, 48, 64),
        ("4b", 160, 112, 224, 24, 64, 64),
        ("4c", 128, 128, 256, 24, 64, 64),
        ("4d", 112, 144, 288, 32, 64, 64),
        ("4e", 256, 160, 320, 32, 128, 128),
        ("5a", 256, 160, 320, 32, 128, 128),
        ("5b", 384, 192, 384, 48, 128, 128),
    )

    def __init__(self, of, classes):
        super().__init__()
        self.conv1 = ConvNorm(of(64), 7, 2, 3)
        self.conv2, self.conv3 = ConvNorm(of(64)), ConvNorm(of(192), 3, padding=1)
        for name, *channels in self.MODULES:
            setattr(self, f"inception{name}", Inception(of, *channels))
        self.aux1, self.aux2 = GoogLeNetHead(of, classes), GoogLeNetHead(of, classes)
        self.fc = nn.LazyLinear(classes)

    def forward(self, x):
        x = F.max_pool2d(self.conv1(x), 3, 2, ceil_mode=True)
        x = F.max_pool2d(self.conv3(self.conv2(x)), 3, 2, ceil_mode=True)
        heads = []
        for name, *_ in self.MODULES:
            if name in ("4a", "5a"):
                x = F.max_pool2d(x, 3 if name == "4a" else 2, 2, ceil_mode=True)
            x = getattr(self, f"inception{name}")(x)
            if self.training and name in ("4a", "4d"):
                heads.append((self.aux1 if name == "4a" else self.aux2)(x))
        logits = self.fc(x.mean((2, 3)))
        return (logits, *heads) if heads else logits


def _mean(x):
    return F.avg_pool2d(x, 3, 1, 1)


def _halve(x):
    return F.max_pool2d(x, 3, 2)


class Mixed(nn.Module):
    """A module of Inception v3: branches of named convolutions; a tuple of convolutions is a fork."""

    def __init__(self, of, branches):
        super().__init__()
        self.branches = branches
        for part in [part for branch in branches for parts in branch for part in _forked(parts)]:
            if not callable(part):
                name, channels, size, stride, padding = part
                setattr(self, name, ConvNorm(of(channels), size, stride, padding))

    def forward(self, x):
        outputs = []
        for branch in self.branches:
            y = x
            for parts in branch:
                given = [part(y) if callable(part) else getattr(self, part[0])(y) for part in _forked(parts)]
                y = torch.cat(given, 1)
            outputs.append(y)
        return torch.cat(outputs, 1)


def _forked(parts):
    return parts if isinstance(parts, tuple) and isinstance(parts[0], tuple) else (parts,)


def _c(name, channels, size=1, stride=1):
    """A convolution, padded to keep the size unless it strides."""
    height, width = (size, size) if isinstance(size, int) else size
    padding = (height // 2, width // 2) if stride == 1 else 0
    return name, channels, size, stride, padding


def _a(pooled):
    return (
        [_c("branch1x1", 64)],
        [_c("branch5x5_1", 48), _c("branch5x5_2", 64, 5)],
        [_c("branch3x3dbl_1", 64), _c("branch3x3dbl_2", 96, 3), _c("branch3x3dbl_3", 96, 3)],
        [_mean, _c("branch_pool", pooled)],
    )


def _b():
    double = [_c("branch3x3dbl_1", 64), _c("branch3x3dbl_2", 96, 3), _c("branch3x3dbl_3", 96, 3, 2)]
    return ([_c("branch3x3", 384, 3, 2)], double, [_halve])


def _seven(name, channels, first):
    """1x1, then windows of 1x7 and 7x1 in turn; the last has 192 channels."""
    row, column = (1, 7), (7, 1)
    sizes = [1, row, column] if first == row else [1, column, row, column, row]
    last = len(sizes)
    return [_c(f"{name}_{i}", 192 if i == last else channels, size) for i, size in enumerate(sizes, 1)]


def _seven_block(channels):
    return (
        [_c("branch1x1", 192)],
        _seven("branch7x7", channels, (1, 7)),
        _seven("branch7x7dbl", channels, (7, 1)),
        [_mean, _c("branch_pool", 192)],
    )


def _d():
    seven = [*_seven("branch7x7x3", 192, (1, 7)), _c("branch7x7x3_4", 192, 3, 2)]
    return ([_c("branch3x3_1", 192), _c("branch3x3_2", 320, 3, 2)], seven, [_halve])


def _e():
    fork = lambda name: (_c(f"{name}a", 384, (1, 3)), _c(f"{name}b", 384, (3, 1)))  # noqa: E731
    return (
        [_c("branch1x1", 320)],
        [_c("branch3x3_1", 384), fork("branch3x3_2")],
        [_c("branch3x3dbl_1", 448), _c("branch3x3dbl_2", 384, 3), fork("branch3x3dbl_3")],
        [_mean, _c("branch_pool", 192)],
    )


class InceptionHead(nn.Module):
    def __init__(self, of, classes):
        super().__init__()
        self.conv0, self.conv1, self.fc = ConvNorm(of(128)), ConvNorm(of(768), 5), nn.LazyLinear(classes)

    def forward(self, x):
        return self.fc(self.conv1(self.conv0(F.avg_pool2d(x, 5, 3))).mean((2, 3)))


class InceptionV3(nn.Module):
    BEFORE = (
        ("Mixed_5b", _a(32)),
        ("Mixed_5c", _a(64)),
        ("Mixed_5d", _a(64)),
        ("Mixed_6a", _b()),
        ("Mixed_6b", _seven_block(128)),
        ("Mixed_6c", _seven_block(160)),
        ("Mixed_6d", _seven_block(160)),
        ("Mixed_6e", _seven_block(192)),
    )
    AFTER = (("Mixed_7a", _d()), ("Mixed_7b", _e()), ("Mixed_7c", _e()))

    def __init__(self, of, classes):
        super().__init__()
        self.Conv2d_1a_3x3, self.Conv2d_2a_3x3 = ConvNorm(of(32), 3, 2), ConvNorm(of(32), 3)
        self.Conv2d_2b_3x3 = ConvNorm(of(64), 3, padding=1)
        self.Conv2d_3b_1x1, self.Conv2d_4a_3x3 = ConvNorm(of(80)), ConvNorm(of(192), 3)
        for name, branches in self.BEFORE + self.AFTER:
            setattr(self, name, Mixed(of, branches))
        self.AuxLogits, self.fc = InceptionHead(of, classes), nn.LazyLinear(classes)

    def forward(self, x):
        x = _halve(self.Conv2d_2b_3x3(self.Conv2d_2a_3x3(self.Conv2d_1a_3x3(x))))
        x = _halve(self.Conv2d_4a_3x3(self.Conv2d_3b_1x1(x)))
        for name, _ in self.BEFORE:
            x = getattr(self, name)(x)
        heads = [self.AuxLogits(x)] if self.training else []
        for name, _ in self.AFTER:
            x = getattr(self, name)(x)
        logits = self.fc(x.mean((2, 3)))
        return (logits, *heads) if heads else logits
