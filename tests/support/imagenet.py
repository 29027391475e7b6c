"""The archives of ImageNet 2012, in miniature: a tar of tars and a tar, with photos of generated texture."""

import io
import tarfile
from pathlib import Path

import numpy as np
from PIL import Image

from jaxnet.data.prepare.tars import TRAIN, VALIDATION

SYNSETS = ("n01440764", "n01443537", "n01484850")  # the labels 0, 1 and 2
FIRST_VALIDATION_LABELS = ("n01751748", "n09193705", "n02105855", "n04263257", "n03125729", "n01735189")


def texture(seed: int, height: int = 40, width: int = 52) -> np.ndarray:
    """Smooth noise, uint8 [height, width, 3], so that JPEG does not change it much."""
    coarse = np.random.RandomState(seed).randint(0, 256, (5, 6, 3)).astype(np.uint8)
    return np.asarray(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC))


def image_file(pixels: np.ndarray, mode: str = "RGB", kind: str = "JPEG") -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(file, kind, **({"quality": 95} if kind == "JPEG" else {}))
    return file.getvalue()


def photo(seed: int, **size: int) -> bytes:
    return image_file(texture(seed, **size))


def write_tar(path: Path, members: dict[str, bytes]) -> None:
    path.write_bytes(tar_of(members))


def tar_of(members: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for name, data in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return file.getvalue()


def photos(per_class: int = 6) -> dict[str, dict[str, bytes]]:
    """Images of each class by their names: colour, but the second of each class is grey."""
    return {
        synset: {
            f"{synset}_{number}.JPEG": image_file(texture(100 * label + number), "L" if number == 1 else "RGB")
            for number in range(per_class)
        }
        for label, synset in enumerate(SYNSETS)
    }


def write_archives(directory: Path, train: dict[str, dict[str, bytes]], validation: int = 6) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    write_tar(directory / TRAIN, {f"{synset}.tar": tar_of(images) for synset, images in train.items()})
    names = [f"ILSVRC2012_val_{number:08d}.JPEG" for number in range(1, validation + 1)]
    # In the official archive they are in no order.
    write_tar(directory / VALIDATION, {name: photo(1000 + i) for i, name in reversed([*enumerate(names)])})


def damage_a_record(path: Path) -> None:
    """Change one byte of a file in ArrayRecord form, amid the data of a record."""
    content = bytearray(path.read_bytes())
    dense = [place for place in range(100, len(content) - 100, 50) if content[place - 50 : place + 50].count(0) < 4]
    content[dense[len(dense) // 2]] ^= 255
    path.write_bytes(content)
