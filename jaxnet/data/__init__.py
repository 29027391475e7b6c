"""What models are trained on: data sets, the order of examples, batches, and their way to the devices.

    source = FashionMNIST().load("train")
    batches = train_batches(source, batch_size=256, seed=0, shard=Shard(0, 1), start_step=0)
    for batch in placed(batches, sharding): ...

A batch is a function of (seed, step) alone, so any number of processes sees the same global batches, and
the step is the whole state of the data.
"""

from jaxnet.data.batches import Batch as Batch
from jaxnet.data.batches import DeviceBatch as DeviceBatch
from jaxnet.data.batches import Shard as Shard
from jaxnet.data.batches import eval_batches as eval_batches
from jaxnet.data.batches import example_ids as example_ids
from jaxnet.data.batches import permutation as permutation
from jaxnet.data.batches import placed as placed
from jaxnet.data.batches import train_batches as train_batches
from jaxnet.data.builtin import Digits as Digits
from jaxnet.data.builtin import Synthetic as Synthetic
from jaxnet.data.fashion_mnist import FashionMNIST as FashionMNIST
from jaxnet.data.photos import ImageNet as ImageNet
from jaxnet.data.photos import Photos as Photos
from jaxnet.data.photos import TrainingView as TrainingView
from jaxnet.data.source import ArraySource as ArraySource
from jaxnet.data.source import Dataset as Dataset
from jaxnet.data.source import Inputs as Inputs
from jaxnet.data.source import RandomSource as RandomSource
from jaxnet.data.source import RecordSource as RecordSource
from jaxnet.data.source import Source as Source
from jaxnet.data.source import inputs_of as inputs_of
from jaxnet.data.source import open_split as open_split
from jaxnet.data.tfds import TFDS as TFDS
