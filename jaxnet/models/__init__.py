"""The networks that are trained. No parallel code inside.

The boundary to training:

- `Model`: a pair of pure functions, init and apply; `Variables` is what a model holds, `Heads` what one with auxiliary
  classifiers gives in training. `abstract_variables`: the shapes alone.
- `from_linen`, `from_nnx`: a Flax module as a `Model`; `example_key`: one key that stands for one an example.
- `fast_keys`: JAX's random keys, with which CPUs draw the same numbers faster.
- `network_options`, `inference_options`, `once_options`: XLA compile options by the kind of program.

Networks:

- `CNN`, `Cifar10`, `AlexNet`, `AlexNet2012`, `NetworkInNetwork`, `VGG`, `GoogLeNet`, `InceptionV3`, `ResNet`, `LSTM`,
  `ViT`, of images, and `Transformer`, `TextLSTM`, of tokens: Flax Linen modules, one file each.
- `ZOO`: an `Entry` for each network that the command line knows by name.

`layers`, `attention`, `convolution`, `pooling` and `inception` hold what they share.
"""

from jaxnet.models.alexnet import AlexNet, AlexNet2012
from jaxnet.models.cnn import CNN, Cifar10
from jaxnet.models.compile_options import inference_options, network_options, once_options
from jaxnet.models.example_key import example_key
from jaxnet.models.fast_keys import fast_keys
from jaxnet.models.googlenet import GoogLeNet
from jaxnet.models.inception_v3 import InceptionV3
from jaxnet.models.lstm import LSTM, TextLSTM
from jaxnet.models.model import (
    Heads,
    Model,
    Variables,
    abstract_variables,
    from_linen,
    from_nnx,
    guarded,
    leaf_name,
    shapes_text,
)
from jaxnet.models.nin import NetworkInNetwork
from jaxnet.models.resnet import ResNet
from jaxnet.models.transformer import Transformer
from jaxnet.models.vgg import VGG
from jaxnet.models.vit import ViT
from jaxnet.models.zoo import ZOO, Entry

__all__ = [
    "CNN",
    "LSTM",
    "VGG",
    "ZOO",
    "AlexNet",
    "AlexNet2012",
    "Cifar10",
    "Entry",
    "GoogLeNet",
    "Heads",
    "InceptionV3",
    "Model",
    "NetworkInNetwork",
    "ResNet",
    "TextLSTM",
    "Transformer",
    "Variables",
    "ViT",
    "abstract_variables",
    "example_key",
    "fast_keys",
    "from_linen",
    "from_nnx",
    "guarded",
    "inference_options",
    "leaf_name",
    "network_options",
    "once_options",
    "shapes_text",
]
