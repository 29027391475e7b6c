"""What models are trained on: data sets, the order of examples, batches, and their way to the devices.

    source = FashionMNIST().load("train")
    batches = train_batches(source, batch_size=256, seed=0, shard=Shard(0, 1), start_step=0)
    for batch in placed(batches, sharding): ...

A batch is a function of (seed, step) alone, so any number of processes sees the same global batches, and
the step is the whole state of the data.

Data sets that a config names:

- `Digits`, `Diabetes`, `Synthetic`: come with the package, no download.
- `FashionMNIST`: read from its IDX files, prepared once.
- `TFDS`: anything that TensorFlow Datasets has prepared, with images of one size.
- `ImageFolder`: class folders of JPEG and PNG pictures of any size, with the random crops of `TrainingView`.
- `Photos`, `ImageNet`: the same for photos that TFDS has prepared.
- `Text`, `PythonTopics`: text as bytes, in windows.
- `Arrays`, `Items`: your own, as NumPy arrays by name or as anything with a length and items.

Sources, which hold the examples of one split:

- `Dataset`, `Source`, `RandomSource`: the protocols; `open_split` and `example_shapes` check them.
- `ArraySource`: in memory; `RecordSource`: on disk; `hold_out`: some of the examples, and the others.
- `Inputs`, `inputs_of`: what a network trained on a source takes and gives, if it `has_classes`.

Batches:

- `train_batches`, `eval_batches`: this process's `Shard` of the global batches, as `Batch`.
- `permutation`, `example_ids`: the order of the examples.
- `placed`: batches as global arrays on the devices, `DeviceBatch`.

`jaxnet.data.prepare` makes ImageNet ready for TFDS without TensorFlow.
"""

from jaxnet.data.arrays import Arrays, Items
from jaxnet.data.batches import (
    Batch,
    DeviceBatch,
    Shard,
    eval_batches,
    example_ids,
    permutation,
    placed,
    train_batches,
)
from jaxnet.data.builtin import Diabetes, Digits, Synthetic
from jaxnet.data.fashion_mnist import FashionMNIST
from jaxnet.data.holdout import hold_out
from jaxnet.data.photos import ImageFolder, ImageNet, Photos, TrainingView
from jaxnet.data.source import (
    ArraySource,
    Dataset,
    Inputs,
    RandomSource,
    Source,
    check_rows,
    check_source,
    example_shapes,
    has_classes,
    inputs_of,
    open_for_plan,
    open_split,
)
from jaxnet.data.text import PythonTopics, Text, TextSource
from jaxnet.data.tfds import TFDS, RecordSource

__all__ = [
    "TFDS",
    "ArraySource",
    "Arrays",
    "Batch",
    "Dataset",
    "DeviceBatch",
    "Diabetes",
    "Digits",
    "FashionMNIST",
    "ImageFolder",
    "ImageNet",
    "Inputs",
    "Items",
    "Photos",
    "PythonTopics",
    "RandomSource",
    "RecordSource",
    "Shard",
    "Source",
    "Synthetic",
    "Text",
    "TextSource",
    "TrainingView",
    "check_rows",
    "check_source",
    "eval_batches",
    "example_ids",
    "example_shapes",
    "has_classes",
    "hold_out",
    "inputs_of",
    "open_for_plan",
    "open_split",
    "permutation",
    "placed",
    "train_batches",
]
