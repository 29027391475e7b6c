"""Photos as training input: decoding, random crops, and the sources that do both when an example is asked for.

crops     which part of a photo            views    that part as pixels, for training and for evaluation
decoding  bytes to pixels                  records  the photos on disk, and which of them are damaged
distort   RandAugment, colour jitter       source   all of it behind the protocol of `jaxnet.data.source`
"""

from jaxnet.data.photos.datasets import ImageNet as ImageNet
from jaxnet.data.photos.datasets import Photos as Photos
from jaxnet.data.photos.distort import ColourJitter as ColourJitter
from jaxnet.data.photos.distort import RandAugment as RandAugment
from jaxnet.data.photos.source import EvaluationPhotos as EvaluationPhotos
from jaxnet.data.photos.source import TrainingPhotos as TrainingPhotos
from jaxnet.data.photos.views import EvaluationView as EvaluationView
from jaxnet.data.photos.views import TrainingView as TrainingView
