"""Layers that the networks for PyTorch share; they learn from the first batch how many channels they are given."""

from torch import nn
from torch.nn import functional as F


class Scale:
    """Numbers of channels at a width, as the networks of jaxnet round them."""

    def __init__(self, width):
        self.width = width

    def __call__(self, channels):
        return max(8, 8 * int(channels * self.width / 8 + 0.5))


def conv(channels, size, stride=1, padding=0, bias=True):
    return nn.LazyConv2d(channels, size, stride, padding, bias=bias)


class ConvNorm(nn.Module):
    def __init__(self, channels, size=1, stride=1, padding=0):
        super().__init__()
        self.conv = conv(channels, size, stride, padding, bias=False)
        self.bn = nn.LazyBatchNorm2d(eps=0.001)

    def forward(self, x):
        return F.relu(self.bn(self.conv(x)))
