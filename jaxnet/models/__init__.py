"""What is trained. No parallel code inside."""

from jaxnet.models.cnn import CNN as CNN
from jaxnet.models.linen import from_linen as from_linen
from jaxnet.models.model import Model as Model
from jaxnet.models.model import Variables as Variables
from jaxnet.models.nnx import from_nnx as from_nnx
from jaxnet.models.resnet import ResNet as ResNet
