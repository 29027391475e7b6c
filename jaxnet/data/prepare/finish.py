"""The end of a preparation: TFDS's description beside the shards, then the whole directory gets its name."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from jaxnet.data.prepare.shards import Report, place

if TYPE_CHECKING:
    import tensorflow_datasets as tfds

_SUMMARY = "preparation.json"


class Prepared(NamedTuple):
    """A data set that is ready.

    Attributes:
        directory: where it is.
        examples: of each split.
        damaged: images left out because they cannot be decoded, and why.
        converted: images that were not RGB or grey JPEGs, and what they were.
    """

    directory: Path
    examples: dict[str, int]
    damaged: dict[str, str]
    converted: dict[str, str]


def summed(directory: Path, reports: dict[str, list[Report]]) -> Prepared:
    """Put the reports of all shards of all splits together."""
    every = [report for split in reports.values() for report in split]
    return Prepared(
        directory,
        {split: sum(report.examples for report in several) for split, several in reports.items()},
        dict(sorted(item for report in every for item in report.damaged.items())),
        dict(sorted(item for report in every for item in report.converted.items())),
    )


def read_prepared(info: tfds.core.DatasetInfo) -> Prepared:
    """Describe a data set that is ready, whoever has prepared it."""
    directory = Path(info.data_dir)
    path = directory / _SUMMARY
    found = json.loads(path.read_text()) if path.exists() else {"damaged": {}, "converted": {}}
    return Prepared(directory, {name: split.num_examples for name, split in info.splits.items()}, **found)


def finish(info: tfds.core.DatasetInfo, work: Path, reports: dict[str, list[Report]]) -> Prepared:
    """Describe the shards in `work/shards`, and give that directory its final name.

    Several processes may do it at the same time: each file is put in its place whole, and all write the same.
    """
    prepared = summed(Path(info.data_dir), reports)
    with tempfile.TemporaryDirectory(dir=work / "scratch") as own:
        _describe(info, Path(own), reports)
        summary = {"damaged": prepared.damaged, "converted": prepared.converted}
        Path(own, _SUMMARY).write_text(json.dumps(summary, indent=1) + "\n")
        for path in sorted(Path(own).iterdir()):
            place(path, work / "shards" / path.name)
    prepared.directory.parent.mkdir(parents=True, exist_ok=True)
    (work / "shards").rename(prepared.directory)
    shutil.rmtree(work, ignore_errors=True)
    return prepared


def shard_names(info: tfds.core.DatasetInfo, split: str, count: int) -> list[str]:
    """Return how TFDS calls the files of a split."""
    template = _template(info, split)
    return [Path(template.sharded_filepath(shard_index=i, num_shards=count)).name for i in range(count)]


def _describe(info: tfds.core.DatasetInfo, directory: Path, reports: dict[str, list[Report]]) -> None:
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
