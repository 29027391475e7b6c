"""Data sets of photos that TFDS has prepared: `Photos` of any kind, and `ImageNet`."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from jaxnet.data.photos.decoding import DamagedImage, best_decoder, quiet_pillow
from jaxnet.data.photos.source import DamageAccount, EncodedPhotos, EvaluationPhotos, PhotoRecords, TrainingPhotos
from jaxnet.data.photos.views import EvaluationView, TrainingView, usual_resize
from jaxnet.data.source import Blank, Source
from jaxnet.data.tfds import blank_of, data_directory, find_builder, open_examples, require_prepared
from jaxnet.errors import InputError, one_line
from jaxnet.limits import Side, Threads, Whole

if TYPE_CHECKING:
    import tensorflow_datasets as tfds


@dataclass(frozen=True, kw_only=True)
class PhotoDataset(ABC):
    """Photos of any sizes, decoded and cropped as they are read. A subclass says where from.

    Attributes:
        size: side of a training image in pixels.
        test_size: side of a test image. None: `size`.
        test_resize: the shorter side of a test photo is resized to this before its centre is cut out. None: 8/7 of
            `test_size`, as 256 is of 224.
        view: what training sees of a photo, see `TrainingView`. It flips, so `augmentation.flip` is not needed.
        max_damaged: how many damaged photos each process may replace by others; one more is an error.
        threads: how many threads read and decode; each holds a batch in memory. None: one for each core of this
            process.
    """

    size: Side = 224
    test_size: Side | None = None
    test_resize: Side | None = None
    view: TrainingView = field(default_factory=TrainingView)
    max_damaged: Whole = 100
    threads: Threads | None = None

    def __post_init__(self) -> None:
        for name, least in {"size": 1, "max_damaged": 0, "threads": 1}.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise InputError(f"{name} must be at least {least}, got {value}")
        _ = self.test_view  # checks the two sizes

    @property
    def test_view(self) -> EvaluationView:
        """What evaluation sees of a photo."""
        size = self.size if self.test_size is None else self.test_size
        return EvaluationView(size, usual_resize(size) if self.test_resize is None else self.test_resize)

    @property
    def decoder(self) -> str:
        """The decoder of training photos: it depends on the installed packages, and pixels depend on it a little."""
        return best_decoder().name

    def load(self, split: str) -> Source:
        """Open a split: 'train' as training sees it, any other as evaluation does.

        Raises:
            InputError: it is absent or has another form; the message says how to get it.
        """
        photos = self.encoded(split)
        _require_readable(photos)
        quiet_pillow()
        threads = self.threads or len(os.sched_getaffinity(0))
        if split == "train":
            return TrainingPhotos(
                photos, self.view, self.size, self.test_view, threads, DamageAccount(self.max_damaged)
            )
        return EvaluationPhotos(photos, self.test_view, threads)

    @abstractmethod
    def encoded(self, split: str) -> EncodedPhotos:
        """Open the encoded photos of a split; InputError, which says how to get it, if it cannot be opened."""


def _require_readable(photos: EncodedPhotos) -> None:
    """Read one photo, so that what cannot be read at all is found now and not in the middle of training."""
    try:
        photos.read(0)
    except DamagedImage as error:
        raise InputError(f"{photos.name(0)} cannot be read ({error}): {photos.remedy}") from error


@dataclass(frozen=True)
class Photos(PhotoDataset):
    """Any data set that TFDS has prepared as ArrayRecord, with encoded images of any sizes. Nothing is downloaded.

    Attributes, besides those of `PhotoDataset`:
        name: in TFDS's notation: 'imagenet2012', 'name/config' or 'name:1.2.3'.
        data_dir: where the prepared data sets are; None means $TFDS_DATA_DIR, or ~/tensorflow_datasets.
        train_split: the split that 'train' opens, in TFDS's notation: 'train', 'train[:90%]', 'train+validation', ...
        test_split: the split that 'test' opens.
        image_key: the feature that is the image.
        label_key: the feature that is the label: a ClassLabel.
    """

    name: str
    data_dir: str | None = None
    train_split: str = "train"
    test_split: str = "test"
    image_key: str = "image"
    label_key: str = "label"

    def encoded(self, split: str) -> EncodedPhotos:
        """Open the records of 'train', 'test', or a split in TFDS's notation such as 'validation' or 'train[90%:]'."""
        builder = find_builder(self.name, data_directory(self.data_dir))
        require_prepared(self.name, builder)
        return self._records(builder, {"train": self.train_split, "test": self.test_split}.get(split, split))

    def blank(self) -> Blank:
        """The shapes of the training examples, which need no data; see `open_for_plan`."""
        return blank_of(self.name, self.data_dir, self.image_key, self.label_key, self.size)

    def _records(self, builder: tfds.core.DatasetBuilder, split: str) -> PhotoRecords:
        import tensorflow_datasets as tfds

        features = dict(builder.info.features.items())
        image, label = features.get(self.image_key), features.get(self.label_key)
        if not isinstance(image, tfds.features.Image) or not isinstance(label, tfds.features.ClassLabel):
            raise InputError(
                f"{self.name}: {self.image_key!r} must be an Image and {self.label_key!r} a ClassLabel, but its "
                f"features are {', '.join(sorted(features))}: set image_key and label_key"
            )
        keys = self.image_key, self.label_key
        named = isinstance(features.get("file_name"), tfds.features.Text)
        try:
            records = open_examples(builder, split, (*keys, "file_name") if named else keys)
        except ValueError as error:
            reason = one_line(error)
            raise InputError(f"{self.name} has no split {split!r}: {reason} Set train_split and test_split") from error
        origin = f"the data set {self.name}, {split}, in {builder.data_dir}"
        _require_files(builder, origin)
        names = tuple(label.names)
        return PhotoRecords(records, label.num_classes, *keys, origin, class_names=names)


@dataclass(frozen=True, kw_only=True)
class ImageNet(Photos):
    """ImageNet of the ILSVRC challenge of 2012: 1,281,167 photos for training and 50,000 for testing, 1000 classes.

    Read from TFDS's `imagenet2012`; `jaxnet data prepare imagenet2012` makes it from the official archives.
    """

    name: str = "imagenet2012"
    test_split: str = "validation"


def _require_files(builder: tfds.core.DatasetBuilder, origin: str) -> None:
    paths = [Path(path) for split in builder.info.splits.values() for path in split.filepaths]
    missing = [path.name for path in paths if not path.exists()]
    if missing:
        raise InputError(
            f"{origin} is damaged: {len(missing)} of its {len(paths)} files are missing, {missing[0]} among them. "
            "Remove its directory and prepare it again"
        )
