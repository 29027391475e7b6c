"""How many photos a second the input pipeline decodes, crops and resizes to 224x224, and who else does how many.

    python benchmarks/decode.py [--json] [--rounds 7] [--images 1024] [--source auto|wallpapers|sklearn|texture]
    python benchmarks/decode.py --folder 20000 [--json] [--rounds 7] [--images 1024]
    python benchmarks/decode.py --appetite 1000 2000 3000 [--json] [--rounds 7] [--images 1024]

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

With --folder N other photos are read: N pieces of 256x256 of generated texture in ten classes, by ImageFolder from
class folders and by ImageNet from ArrayRecord files of the same bytes. Then a fresh process for each reads three
epochs, and says how much memory it holds once it has begun and after each epoch.

With --appetite a consumer stands for an accelerator that trains so many images a second: it takes a batch, is busy as
long as its rate says, and comes for the next. The output has the share of its time for which it waits
(`data_wait_fraction`), beside one thread and two.
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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from PIL import Image

from jaxnet.data import ImageFolder, ImageNet, Shard, train_batches
from jaxnet.data.photos import decoding, views
from jaxnet.data.photos.crops import random_box

WALLPAPERS = Path("/usr/share/backgrounds")
HEIGHT, WIDTH, SIZE, BATCH = 400, 500, 224, 64
SIDE, CLASSES = 256, 10  # of the pictures of --folder
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
    """Photos, and what they are."""
    name, pictures = originals(source)
    files = list(pieces(pictures, count, WIDTH, HEIGHT))
    return f"{WIDTH}x{HEIGHT} of {name}, {statistics.mean(map(len, files)) / 1e3:.0f} KB each", files


def pieces(pictures: list[Image.Image], count: int, width: int, height: int) -> Iterator[bytes]:
    """Files of pieces that are cut at random places."""
    place = random.Random(0)
    for picture in itertools.islice(itertools.cycle(pictures), count):
        left, top = place.randint(0, picture.width - width), place.randint(0, picture.height - height)
        file = io.BytesIO()
        picture.crop((left, top, left + width, top + height)).save(file, "JPEG", quality=96)
        yield file.getvalue()


def write_record_files(root: Path, files: Iterable[bytes], per_shard: int = 100) -> None:
    """Write TFDS's ImageNet of these files; the label of the i-th is i % CLASSES."""
    import tensorflow_datasets as tfds

    info = tfds.builder("imagenet2012", data_dir=root, file_format="array_record").info
    Path(info.data_dir).mkdir(parents=True)
    writer = tfds.core.SequentialWriter(info, max_examples_per_shard=per_shard, file_format="array_record")
    writer.initialize_splits(["train"])
    for i, file in enumerate(files):
        writer.add_examples({"train": [{"image": file, "label": i % CLASSES, "file_name": f"{i}"}]})
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
    photos, files = make_photos(source, 200)
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        paths = [root / f"{i}.jpeg" for i in range(len(files))]
        for path, file in zip(paths, files, strict=True):
            path.write_bytes(file)
        write_record_files(root / "tfds", files)
        medians = in_turn(contestants(root / "tfds", paths, stack), rounds, images)
    one, two, apart = (medians[f"ours, {n}"]["images_per_second"] for n in ("1 thread", "2 threads", "2 processes"))
    return {
        "photos": photos,
        "decoder": decoding.best_decoder().name,
        "rates": medians,
        "two_threads_to_one": two / one,
        "two_processes_to_one": apart / one,
    }


def in_turn(contestants: Mapping[str, Callable[[int], Rates]], rounds: int, images: int) -> dict[str, dict[str, float]]:
    """The median rates of each."""
    found: dict[str, list[Rates]] = {}
    for _, (who, of) in itertools.product(range(rounds), contestants.items()):
        found.setdefault(who, []).append(of(images))
    return {
        who: {"images_per_second": statistics.median(r[0] for r in several),
              "images_per_core_second": statistics.median(r[1] for r in several)}
        for who, several in found.items()
    }  # fmt: skip


# ---- A consumer of a given appetite ---------------------------------------------------------------------


def waited(batches: Batches, appetite: float, images: int) -> float:
    """The share of its time for which a consumer of `appetite` images a second waits for its batch."""
    them, waits = ready(batches), 0.0
    begin = time.perf_counter()
    for _ in range(images // BATCH):
        asked = time.perf_counter()
        next(them)
        waits += time.perf_counter() - asked
        time.sleep(BATCH / appetite)
    return waits / (time.perf_counter() - begin)


def measure_appetites(appetites: Sequence[float], source: str, rounds: int, images: int) -> dict[str, Any]:
    photos, files = make_photos(source, 200)
    found: dict[tuple[float, int], list[float]] = {}
    with tempfile.TemporaryDirectory() as root:
        write_record_files(Path(root), files)
        for _, appetite, threads in itertools.product(range(rounds), appetites, (1, 2)):
            found.setdefault((appetite, threads), []).append(waited(ours(Path(root), threads), appetite, images))
    return {
        "photos": photos,
        "decoder": decoding.best_decoder().name,
        "data_wait_fraction": [
            {"images_per_second": appetite, "threads": threads, "waited": statistics.median(several)}
            for (appetite, threads), several in found.items()
        ],
    }


# ---- A folder of pictures -------------------------------------------------------------------------------

FORMS = ("folder", "records")


def write_folder(root: Path, files: Iterable[bytes]) -> None:
    for i, file in enumerate(files):
        path = root / f"train/{i % CLASSES}/{i:06}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(file)


def batches_of(form: str, root: Path, threads: int) -> Batches:
    if form == "records":
        return ours(root / "records", threads)
    source = ImageFolder(str(root / "folder"), size=SIZE, threads=threads).load("train")
    return lambda: train_batches(source, batch_size=BATCH, seed=0, shard=Shard(0, 1))


def resident_megabytes() -> float:
    [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS")]
    return int(line.split()[1]) / 1e3


def memory(form: str, root: Path, count: int) -> list[float]:
    """Megabytes that a process holds after four batches, and after each of three epochs; in a process of its own."""
    them = ready(batches_of(form, root, 2))
    held = [resident_megabytes()]
    for _ in range(3):
        for _ in range(count // BATCH):
            next(them)
        held.append(resident_megabytes())
    return held


def measure_folder(count: int, rounds: int, images: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        name, pictures = originals("texture")
        write_folder(root / "folder", pieces(pictures, count, SIDE, SIDE))
        write_record_files(root / "records", (path.read_bytes() for path in numbered(root / "folder")), per_shard=1000)
        size = statistics.mean(path.stat().st_size for path in numbered(root / "folder"))
        start = time.perf_counter()
        ImageFolder(str(root / "folder")).load("train")
        listed = time.perf_counter() - start
        several = {
            f"{form}, {n} thread{'s' * (n > 1)}": partial(rates, batches_of(form, root, n))
            for n in (1, 2)
            for form in FORMS
        }
        medians = in_turn(several, rounds, images)
        with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
            held = {form: pool.apply(memory, (form, root, count)) for form in FORMS}
    return {
        "photos": f"{count:,} of {SIDE}x{SIDE} of {name}, {size / 1e3:.0f} KB each, in {CLASSES} classes",
        "decoder": decoding.best_decoder().name,
        "seconds_to_list_the_folder": listed,
        "rates": medians,
        "megabytes": held,
    }


def numbered(folder: Path) -> list[Path]:
    """The files of a folder in the order in which they were written."""
    return sorted(folder.glob("train/*/*.jpg"), key=lambda path: path.name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--images", type=int, default=1024, help="that each gives in a round")
    parser.add_argument("--source", choices=["auto", "wallpapers", "sklearn", "texture"], default="auto")
    parser.add_argument("--folder", type=int, metavar="N", help="read N pictures from class folders, and from records")
    parser.add_argument("--appetite", type=float, nargs="+", metavar="RATE", help="images a second of a consumer")
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    arguments = parser.parse_args()
    if arguments.appetite:
        report = measure_appetites(arguments.appetite, arguments.source, arguments.rounds, arguments.images)
    elif arguments.folder:
        report = measure_folder(arguments.folder, arguments.rounds, arguments.images)
    else:
        report = measure(arguments.source, arguments.rounds, arguments.images)
    if arguments.json:
        print(json.dumps(report))
        return
    print(f"{report['photos']}; ours decodes with {report['decoder']}")
    if arguments.appetite:
        for row in report["data_wait_fraction"]:
            beside = f"{row['threads']} thread{'s' * (row['threads'] > 1)}"
            rate = f"{row['images_per_second']:6,.0f} images/s"
            print(f"a consumer of {rate} beside {beside}: waits {row['waited']:.3f} of its time")
        return
    for who, rate in report["rates"].items():
        print(f"{who:18} {rate['images_per_second']:7.0f} images/s {rate['images_per_core_second']:7.0f} a core-second")
    if arguments.folder:
        print(f"the folder is listed in {report['seconds_to_list_the_folder']:.2f} s")
        for form, held in report["megabytes"].items():
            print(f"{form:8} MB held at the start and after each epoch: {', '.join(f'{each:.0f}' for each in held)}")
        return
    print(f"two threads of ours give {report['two_threads_to_one']:.2f} times what one gives", end=", ")
    print(f"two processes {report['two_processes_to_one']:.2f} times")


if __name__ == "__main__":
    main()
