"""Prepare ImageNet 2012: from the official archives to TFDS's `imagenet2012`, as ArrayRecord, without TensorFlow.

All work happens in `incomplete.imagenet2012-FINGERPRINT/` beside the final directory, in four phases. Any number of
processes may be in any of them; a killed one starts again and goes on where files are missing.

    index/      1. where each image lies in the archives, in TFDS's order
    shards/     2. the ArrayRecord files, each complete or absent (see `shards`); reports/ has one report for each
                3. TFDS's description and `preparation.json`, put beside the shards
    scratch/    files that a process has not finished
                4. `shards/` is renamed to the final directory, and the rest is deleted
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from jaxnet.data.photos.decoding import quiet_pillow
from jaxnet.data.prepare.shards import (
    Encode,
    PrepareListener,
    ShardReport,
    ShardTask,
    is_written,
    move_into_place,
    read_report,
    scratch,
    write_shard,
)
from jaxnet.data.prepare.tars import TRAIN, VALIDATION, fingerprint, index_train, index_validation
from jaxnet.data.tfds import data_directory, find_builder, is_prepared
from jaxnet.errors import InputError
from jaxnet.files import read_object, record_of

if TYPE_CHECKING:
    import tensorflow_datasets as tfds

_NAME = "imagenet2012"
_EXAMPLES = {"train": 1_281_167, "validation": 50_000}
_CLASS_SIZES = range(732, 1301)  # of the training split
_NAMED = 10  # how many damaged images an error names
Tasks = dict[str, list[ShardTask]]  # of each split, in order
_SUMMARY = "preparation.json"


class Prepared(NamedTuple):
    """A prepared data set.

    Attributes:
        directory: where it is.
        examples: how many each split has.
        damaged: images left out because they cannot be decoded, with the reason.
        converted: images that were not RGB or grey JPEGs, with their original format.
    """

    directory: Path
    examples: dict[str, int]
    damaged: dict[str, str]
    converted: dict[str, str]


def prepare_imagenet(
    manual_dir: Path,
    data_dir: str | None = None,
    *,
    allow_partial: bool = False,
    num_shards: int | None = None,
    threads: int | None = None,
    watch: PrepareListener | None = None,
) -> Prepared:
    """Write ImageNet as TFDS does: the same examples in the same order in the same shards.

    A run that was killed goes on with the missing shards when it is started again, and the result is the same byte for
    byte. Any number of processes, on any hosts that share the directories, may run at the same time and share the
    work. Every image is decoded. The 22 CMYK images and the PNG of ImageNet become RGB JPEGs, see
    `jaxnet.data.prepare.shards`; the official archives hold no damaged image. The test split, which has no labels, is
    left out.

    Args:
        manual_dir: holds ILSVRC2012_img_train.tar and ILSVRC2012_img_val.tar; they are not unpacked.
        data_dir: where prepared data sets are; None means $TFDS_DATA_DIR, or ~/tensorflow_datasets. It needs
            as much space as the archives have: 150 GB.
        allow_partial: accept archives with fewer images, and leave out those that are damaged.
        num_shards: of each split, instead of TFDS's choice.
        threads: how many threads decode; None: one for each core.
        watch: is told how far the work is.

    Raises:
        InputError: an archive is absent, not the official one, or truncated; images are damaged; the result cannot be
            written; the message says what to do.
    """
    watch, root = watch or PrepareListener(), data_directory(data_dir)
    if is_prepared(builder := find_builder(_NAME, root)):
        done = read_prepared(builder.info)
        _require_all(done, allow_partial)
        watch.say(f"{done.directory} was prepared before; nothing is read from {manual_dir}")
        return done
    quiet_pillow()
    archives = {"train": manual_dir / TRAIN, "validation": manual_dir / VALIDATION}
    work = _make_work_directory(root, archives, num_shards, watch)
    info = _info(root)
    try:
        entries = _index(archives, info, work, watch)
        if not allow_partial:
            _require_counts(entries, archives)
        tasks = _tasks(entries, archives, info, num_shards)
        _write(tasks, work, _encoder(info), threads, watch)
        reports = {split: [read_report(work, task) for task in several] for split, several in tasks.items()}
        _require_undamaged(combine_reports(work, reports), allow_partial)
        return finish(info, work, reports)
    except (InputError, OSError) as error:
        # Another process may have finished first and removed the work directory: its result is the same.
        if is_prepared(builder := find_builder(_NAME, root)):
            shutil.rmtree(work, ignore_errors=True)  # what this process wrote after that
            return read_prepared(builder.info)
        if isinstance(error, InputError):
            raise
        raise InputError(f"ImageNet cannot be prepared in {root}: {error}. Fix that and start again") from error


def _make_work_directory(root: Path, archives: dict[str, Path], num_shards: int | None, watch: PrepareListener) -> Path:
    """Make the directory for these archives; mention directories that are left from other archives."""
    work = root / f"incomplete.{_NAME}-{fingerprint(list(archives.values()), num_shards)}"
    for other in sorted(set(root.glob(f"incomplete.{_NAME}-*")) - {work}):
        watch.say(f"{other} is left from other archives; it can be removed")
    try:
        for name in ("index", "reports", "scratch", "shards"):
            (work / name).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"{work} cannot be made: {error.strerror}. Give a directory that you may write to with --data-dir"
        ) from error
    return work


def _info(root: Path) -> tfds.core.DatasetInfo:
    """Return TFDS's own description of the data set, which needs neither TensorFlow nor a network."""
    import tensorflow_datasets as tfds

    return tfds.builder(_NAME, data_dir=root, file_format="array_record").info


def _index(
    archives: dict[str, Path], info: tfds.core.DatasetInfo, work: Path, watch: PrepareListener
) -> dict[str, np.ndarray]:
    """Find the images of each split; an index that was made before is read from `work/index`."""
    import tensorflow_datasets as tfds

    synsets = info.features["label"].names
    labels = tfds.core.tfds_path("datasets/imagenet2012/validation_labels.txt").read_text().split()
    numbers = [synsets.index(label) for label in labels]
    train = lambda: index_train(archives["train"], synsets, watch.advance)  # noqa: E731
    validation = lambda: index_validation(archives["validation"], numbers, watch.advance)  # noqa: E731
    return {
        "validation": _cached(work, "validation", validation, watch),  # the small one first: errors show early
        "train": _cached(work, "train", train, watch),
    }


def _cached(work: Path, split: str, find: Callable[[], np.ndarray], watch: PrepareListener) -> np.ndarray:
    path = work / "index" / f"{split}.npy"
    if not path.exists():
        watch.begin(f"finding {split} images", _EXAMPLES[split])
        found = shuffled(find(), split)
        with scratch(work) as own:
            with own.open("wb") as file:
                np.save(file, found)
            move_into_place(own, path)
    return np.load(path)


def _require_counts(entries: dict[str, np.ndarray], archives: dict[str, Path]) -> None:
    hint = "Get the archive again from image-net.org, or take what is there with --allow-partial"
    for split, wanted in _EXAMPLES.items():
        if len(entries[split]) != wanted:
            raise InputError(f"{archives[split]} holds {len(entries[split]):,} images, wanted {wanted:,}. {hint}")
    sizes = np.bincount(entries["train"]["label"], minlength=1000)
    for label, size in enumerate(sizes.tolist()):
        if size not in _CLASS_SIZES:
            wrong = f"{size:,} images of class {label}, wanted {_CLASS_SIZES[0]} to {_CLASS_SIZES[-1]}"
            raise InputError(f"{archives['train']} holds {wrong}. {hint}")


def _require_all(done: Prepared, allow_partial: bool) -> None:
    """Refuse a data set that was prepared before from a part of ImageNet, unless a part is allowed."""
    if not allow_partial and done.examples != _EXAMPLES:
        text = lambda counts: ", ".join(f"{split} {count:,}" for split, count in counts.items())  # noqa: E731
        raise InputError(
            f"{done.directory} was prepared before from a part of ImageNet: {text(done.examples)}, wanted "
            f"{text(_EXAMPLES)}. Remove it and start again, or keep it with --allow-partial"
        )


def _tasks(
    entries: dict[str, np.ndarray], archives: dict[str, Path], info: tfds.core.DatasetInfo, num_shards: int | None
) -> Tasks:
    tasks = {}
    for split in _EXAMPLES:
        pieces = split_into_shards(entries[split], num_shards)
        names = shard_names(info, split, len(pieces))
        tasks[split] = [ShardTask(name, archives[split], piece) for name, piece in zip(names, pieces, strict=True)]
    return tasks


def _write(tasks: Tasks, work: Path, encode: Encode, threads: int | None, watch: PrepareListener) -> None:
    every = [task for several in tasks.values() for task in several]
    missing = [task for task in every if not is_written(work, task)]
    _require_space(work, sum(int(task.entries["size"].sum()) for task in missing))
    total, left = (sum(len(task.entries) for task in several) for several in (every, missing))
    watch.begin("writing", total, total - left)
    # Each process takes the shards in a random order of its own, so two rarely write the same one.
    random.Random(os.urandom(8)).shuffle(missing)
    with ThreadPoolExecutor(threads or len(os.sched_getaffinity(0))) as pool:
        for task in missing:
            if is_written(work, task):
                watch.advance(len(task.entries))
            else:
                write_shard(task, work, encode, pool, watch.advance)


def _require_space(work: Path, needed: int) -> None:
    free = shutil.disk_usage(work).free
    if needed > free:
        raise InputError(
            f"{work} needs {needed / 1e9:.1f} GB more and has {free / 1e9:.1f} GB free. Make space, or give another "
            "directory with --data-dir"
        )


def _require_undamaged(found: Prepared, allow_partial: bool) -> None:
    for split, count in found.examples.items():
        if not count:
            raise InputError(f"no image of the split {split} can be decoded: get the archives again")
    if found.damaged and not allow_partial:
        names = [f"{name} ({reason})" for name, reason in found.damaged.items()]
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        raise InputError(
            f"{len(names)} images are damaged: {', '.join(names[:_NAMED])}{more}. Get the archives again, or leave "
            "these images out with --allow-partial; all others are done"
        )


def _encoder(info: tfds.core.DatasetInfo) -> Encode:
    from tensorflow_datasets.core.example_serializer import ExampleSerializer

    features = info.features
    serializer = ExampleSerializer(features.get_serialized_info())

    def encode(data: bytes, label: int, name: str) -> bytes:
        example = {"image": data, "label": label, "file_name": name}
        record: bytes = serializer.serialize_example(features.encode_example(example))
        return record

    return encode


# ---- Order and shards ----------------------------------------------------------------------------------


def shuffled(entries: np.ndarray, split: str) -> np.ndarray:
    """Return the images in TFDS's order: sorted by the MD5 digest of the split's name and the image's name."""
    salt = hashlib.md5(split.encode())
    digests = bytearray()
    for name in entries["name"].tolist():
        digest = salt.copy()
        digest.update(name)
        digests += digest.digest()
    high, low = np.frombuffer(digests, ">u8").reshape(-1, 2).T
    return entries[np.lexsort((low, high))]


def split_into_shards(entries: np.ndarray, num_shards: int | None = None) -> list[np.ndarray]:
    """Divide the images into as many shards as TFDS uses for so many bytes, or into `num_shards`."""
    from tensorflow_datasets.core.utils.shard_utils import ShardConfig, get_shard_boundaries

    size, count = int(entries["size"].sum()), len(entries)
    shards = ShardConfig(num_shards=num_shards).get_number_shards(size, count)
    return np.split(entries, get_shard_boundaries(count, shards)[:-1])


# ---- Description and final name ------------------------------------------------------------------------


def combine_reports(directory: Path, reports: dict[str, list[ShardReport]]) -> Prepared:
    """Combine the reports of all shards of all splits."""
    every = [report for split in reports.values() for report in split]
    return Prepared(
        directory,
        {split: sum(report.examples for report in several) for split, several in reports.items()},
        dict(sorted(item for report in every for item in report.damaged.items())),
        dict(sorted(item for report in every for item in report.converted.items())),
    )


def read_prepared(info: tfds.core.DatasetInfo) -> Prepared:
    """Describe a prepared data set, by this command or by TFDS."""
    directory = Path(info.data_dir)
    path = directory / _SUMMARY
    try:
        found = record_of(_Summary, read_object(path)) if path.exists() else _Summary({}, {})
    except (OSError, ValueError) as error:
        raise InputError(f"{path} does not say how it was prepared: {error}; remove it") from error
    return Prepared(directory, {name: split.num_examples for name, split in info.splits.items()}, *found)


class _Summary(NamedTuple):
    """What stands beside a prepared data set: the damaged and the converted images, with reasons."""

    damaged: dict[str, str]
    converted: dict[str, str]


def finish(info: tfds.core.DatasetInfo, work: Path, reports: dict[str, list[ShardReport]]) -> Prepared:
    """Phases 3 and 4: describe the shards in `work/shards`, and rename that directory to its final name.

    Several processes may do it at the same time: each file is renamed into place, and all write the same bytes.
    """
    prepared = combine_reports(Path(info.data_dir), reports)
    with tempfile.TemporaryDirectory(dir=work / "scratch") as own:
        _describe(info, Path(own), reports)
        summary = {"damaged": prepared.damaged, "converted": prepared.converted}
        Path(own, _SUMMARY).write_text(json.dumps(summary, indent=1) + "\n")
        for path in sorted(Path(own).iterdir()):
            move_into_place(path, work / "shards" / path.name)
    prepared.directory.parent.mkdir(parents=True, exist_ok=True)
    (work / "shards").rename(prepared.directory)
    shutil.rmtree(work, ignore_errors=True)
    return prepared


def shard_names(info: tfds.core.DatasetInfo, split: str, count: int) -> list[str]:
    """Return TFDS's names for the files of a split."""
    template = _template(info, split)
    return [Path(template.sharded_filepath(shard_index=i, num_shards=count)).name for i in range(count)]


def _describe(info: tfds.core.DatasetInfo, directory: Path, reports: dict[str, list[ShardReport]]) -> None:
    import tensorflow_datasets as tfds

    splits = [
        tfds.core.SplitInfo(
            name=split,
            shard_lengths=[report.examples for report in several],
            num_bytes=sum(report.bytes for report in several),
            filename_template=_template(info, split),
        )
        for split, several in reports.items()
    ]
    info.set_splits(tfds.core.splits.SplitDict(splits))
    info.write_to_directory(directory)


def _template(info: tfds.core.DatasetInfo, split: str) -> tfds.core.ShardedFileTemplate:
    import tensorflow_datasets as tfds

    return tfds.core.ShardedFileTemplate(
        dataset_name=info.name, data_dir=info.data_dir, split=split, filetype_suffix="array_record"
    )
