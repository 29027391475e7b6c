"""How many photos a second the input pipeline decodes, crops and resizes to 224x224, and who else does how many.

    python benchmarks/decode.py [--json] [--rounds 7] [--images 1024] [--source auto|wallpapers|sklearn|texture]

The photos are crops of 500x400 of real ones, encoded again at quality 96 (about 100 KB, as ImageNet's are): of
Debian's lomiri-wallpapers-16.04 if it is installed, else of scikit-learn's two, else texture made on the spot. The
output says which; they are not camera files. All contestants do a random-resized crop with the same ranges and a flip,
and give batches of 64. They take turns, so that a busy machine slows all of them; figures are medians of the rounds.
  ours, N threads        TFDS's ArrayRecord files through ImageNet(...).load("train") and train_batches
  ours, 2 processes      one thread in each, which share no lock: what two cores of this machine can give at all
  ours, Pillow           the same with Pillow in the place of simplejpeg and OpenCV, one thread
  torch-style            one file an image, Image.open, convert, resize(box=...), as torchvision's ImageFolder does it
  tf.data, N threads     decode_and_crop_jpeg and bilinear resize from files, if TensorFlow can be imported
Rates are by the clock, and by the processor time of all threads: images a core-second.
"""

from __future__ import annotations

import argparse
import io
import itertools
import json
import multiprocessing
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from PIL import Image

from jaxnet.data import ImageNet, Shard, train_batches
from jaxnet.data.photos import decoding, views
from jaxnet.data.photos.crops import random_box

WALLPAPERS = Path("/usr/share/backgrounds")
HEIGHT, WIDTH, SIZE, BATCH = 400, 500, 224, 64
AREA, RATIO = (0.08, 1.0), (3 / 4, 4 / 3)
Batches = Callable[[], Iterator[Any]]
Rates = tuple[float, float]  # images a second by the clock, and by processor time


def originals(source: str) -> tuple[str, list[Image.Image]]:
    """The photos to cut from, and what they are."""
    found = sorted(path for path in WALLPAPERS.rglob("*.jpg") if path.is_file())
    if found and source in ("auto", "wallpapers"):
        return f"{len(found)} photos in {WALLPAPERS}", [Image.open(path).convert("RGB") for path in found]
    if source in ("auto", "sklearn"):
        try:
            from sklearn.datasets import load_sample_images
        except ImportError:
            pass
        else:
            return "scikit-learn's two photos", [Image.fromarray(image) for image in load_sample_images().images]
    noise = np.random.RandomState(0)
    layers = [noise.randint(0, 64, (n, n, 3)).astype(np.uint8) for n in (6, 40, 200, 800)]
    big = [np.asarray(Image.fromarray(layer).resize((1200, 900), Image.Resampling.BICUBIC)) for layer in layers]
    return "generated texture", [Image.fromarray(np.sum(big, axis=0).astype(np.uint8))]


def make_photos(source: str, count: int) -> tuple[str, list[bytes]]:
    name, pictures = originals(source)
    place, files = random.Random(0), []
    for picture in itertools.islice(itertools.cycle(pictures), count):
        left, top = place.randint(0, picture.width - WIDTH), place.randint(0, picture.height - HEIGHT)
        file = io.BytesIO()
        picture.crop((left, top, left + WIDTH, top + HEIGHT)).save(file, "JPEG", quality=96)
        files.append(file.getvalue())
    return name, files


def write_record_files(root: Path, files: list[bytes]) -> None:
    import tensorflow_datasets as tfds

    info = tfds.builder("imagenet2012", data_dir=root, file_format="array_record").info
    Path(info.data_dir).mkdir(parents=True)
    writer = tfds.core.SequentialWriter(info, max_examples_per_shard=100, file_format="array_record")
    writer.initialize_splits(["train"])
    writer.add_examples({"train": [{"image": f, "label": 0, "file_name": f"{i}"} for i, f in enumerate(files)]})
    writer.close_all()


def ours(root: Path, threads: int) -> Batches:
    source = ImageNet(data_dir=str(root), size=SIZE, threads=threads).load("train")
    return lambda: train_batches(source, batch_size=BATCH, seed=0, shard=Shard(0, 1))


def ours_with_pillow(root: Path) -> Batches:
    def pillow() -> decoding.Decoder:
        return decoding.PILLOW

    def batches() -> Iterator[Any]:
        with mock.patch.object(views, "best_decoder", pillow):
            yield from ours(root, 1)()

    return batches


def torch_style(paths: list[Path]) -> Batches:
    def image(path: Path) -> np.ndarray:
        with path.open("rb") as file, Image.open(file) as opened:
            picture = opened.convert("RGB")
        box = random_box(random, picture.height, picture.width, AREA, RATIO)  # type: ignore[arg-type]
        edges = (box.left, box.top, box.left + box.width, box.top + box.height)
        small = picture.crop(edges).resize((SIZE, SIZE), Image.Resampling.BILINEAR)
        return np.asarray(small.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if random.random() < 0.5 else small)

    def batches() -> Iterator[Any]:
        while True:
            yield np.stack([image(path) for path in random.sample(paths, BATCH)])

    return batches


def tf_data(paths: list[Path], threads: int) -> Batches:
    import tensorflow as tf  # type: ignore[import-untyped,import-not-found,unused-ignore]

    def image(path: Any) -> Any:
        data = tf.io.read_file(path)
        begin, size, _ = tf.image.sample_distorted_bounding_box(
            tf.image.extract_jpeg_shape(data),
            tf.zeros([1, 0, 4]),
            area_range=AREA,
            aspect_ratio_range=RATIO,
            use_image_if_no_bounding_boxes=True,
        )
        window = tf.stack([begin[0], begin[1], size[0], size[1]])
        pixels = tf.image.resize(tf.image.decode_and_crop_jpeg(data, window, channels=3), [SIZE, SIZE])
        return tf.cast(tf.image.random_flip_left_right(pixels), tf.uint8)

    options = tf.data.Options()
    options.threading.private_threadpool_size = threads
    names = tf.data.Dataset.from_tensor_slices([str(path) for path in paths]).repeat().shuffle(len(paths))
    data = names.map(image, num_parallel_calls=threads).batch(BATCH).prefetch(1).with_options(options)
    return lambda: iter(data.as_numpy_iterator())


class Processes:
    """Processes that read the same files with one thread each, at the same time."""

    def __init__(self, root: Path, count: int) -> None:
        context = multiprocessing.get_context("spawn")
        pipes = [context.Pipe() for _ in range(count)]
        self._ours = [ours for ours, _ in pipes]
        for _, theirs in pipes:
            context.Process(target=_serve, args=(theirs, root), daemon=True).start()

    def rates(self, images: int) -> Rates:
        for word in ("get ready", images):
            for pipe in self._ours:
                pipe.send(word)
            answers = [pipe.recv() for pipe in self._ours]
        return sum(clock for clock, _ in answers), statistics.mean(cpu for _, cpu in answers)

    def close(self) -> None:
        for pipe in self._ours:
            pipe.close()


def _serve(pipe: Connection, root: Path) -> None:
    batches = ours(root, 1)
    while True:
        try:
            pipe.recv()
        except EOFError:
            return
        them = ready(batches)
        pipe.send("ready")
        pipe.send(timed(them, pipe.recv()))


def contestants(root: Path, paths: list[Path], stack: ExitStack) -> dict[str, Callable[[int], Rates]]:
    """`rates(images)` of each; `stack` ends what they started."""
    processes = Processes(root, 2)
    stack.callback(processes.close)
    alone = {
        "ours, 1 thread": ours(root, 1),
        "ours, 2 threads": ours(root, 2),
        "ours, Pillow": ours_with_pillow(root),
        "torch-style": torch_style(paths),
    }
    with suppress(ImportError):
        alone |= {f"tf.data, {n} thread{'s' * (n > 1)}": tf_data(paths, n) for n in (1, 2)}
    return {who: partial(rates, batches) for who, batches in alone.items()} | {"ours, 2 processes": processes.rates}


def rates(batches: Batches, images: int) -> Rates:
    return timed(ready(batches), images)


def ready(batches: Batches) -> Iterator[Any]:
    """Batches, once what is read ahead has been filled."""
    them = batches()
    for _ in range(4):
        next(them)
    return them


def timed(them: Iterator[Any], images: int) -> Rates:
    clock, cpu = time.perf_counter(), time.process_time()
    for _ in range(images // BATCH):
        next(them)
    spent = time.perf_counter() - clock, time.process_time() - cpu
    if hasattr(them, "close"):
        them.close()
    done = images // BATCH * BATCH
    return done / spent[0], done / spent[1]


def measure(source: str, rounds: int, images: int) -> dict[str, Any]:
    name, files = make_photos(source, 200)
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        paths = [root / f"{i}.jpeg" for i in range(len(files))]
        for path, file in zip(paths, files, strict=True):
            path.write_bytes(file)
        write_record_files(root / "tfds", files)
        found: dict[str, list[Rates]] = {}
        for _, (who, of) in itertools.product(range(rounds), contestants(root / "tfds", paths, stack).items()):
            found.setdefault(who, []).append(of(images))
    medians = {
        who: {"images_per_second": statistics.median(r[0] for r in several),
              "images_per_core_second": statistics.median(r[1] for r in several)}
        for who, several in found.items()
    }  # fmt: skip
    one, two, apart = (medians[f"ours, {n}"]["images_per_second"] for n in ("1 thread", "2 threads", "2 processes"))
    return {
        "photos": f"{WIDTH}x{HEIGHT} of {name}, {statistics.mean(map(len, files)) / 1e3:.0f} KB each",
        "decoder": decoding.best_decoder().name,
        "rates": medians,
        "two_threads_to_one": two / one,
        "two_processes_to_one": apart / one,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--images", type=int, default=1024, help="that each gives in a round")
    parser.add_argument("--source", choices=["auto", "wallpapers", "sklearn", "texture"], default="auto")
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    arguments = parser.parse_args()
    report = measure(arguments.source, arguments.rounds, arguments.images)
    if arguments.json:
        print(json.dumps(report))
        return
    print(f"{report['photos']}; ours decodes with {report['decoder']}")
    for who, rate in report["rates"].items():
        print(f"{who:18} {rate['images_per_second']:7.0f} images/s {rate['images_per_core_second']:7.0f} a core-second")
    print(f"two threads of ours give {report['two_threads_to_one']:.2f} times what one gives", end=", ")
    print(f"two processes {report['two_processes_to_one']:.2f} times")


if __name__ == "__main__":
    main()
