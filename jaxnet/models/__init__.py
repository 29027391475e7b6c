"""What is trained. No parallel code inside."""

from jaxnet.models.alexnet import AlexNet as AlexNet
from jaxnet.models.alexnet import AlexNet2012 as AlexNet2012
from jaxnet.models.cnn import CNN as CNN
from jaxnet.models.cnn import Cifar10 as Cifar10
from jaxnet.models.googlenet import GoogLeNet as GoogLeNet
from jaxnet.models.inception_v3 import InceptionV3 as InceptionV3
from jaxnet.models.lstm import LSTM as LSTM
from jaxnet.models.model import Heads as Heads
from jaxnet.models.model import Model as Model
from jaxnet.models.model import Variables as Variables
from jaxnet.models.model import abstract_variables as abstract_variables
from jaxnet.models.model import from_linen as from_linen
from jaxnet.models.model import from_nnx as from_nnx
from jaxnet.models.model import inference_options as inference_options
from jaxnet.models.model import network_options as network_options
from jaxnet.models.model import once_options as once_options
from jaxnet.models.nin import NetworkInNetwork as NetworkInNetwork
from jaxnet.models.resnet import ResNet as ResNet
from jaxnet.models.vgg import VGG as VGG
from jaxnet.models.vit import ViT as ViT
from jaxnet.models.zoo import ZOO as ZOO
from jaxnet.models.zoo import Entry as Entry
