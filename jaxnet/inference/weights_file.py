"""A network of the zoo with weights that `jaxnet import` converted."""

from pathlib import Path

import jax

from jaxnet.checkpoints.leaves import described, differences
from jaxnet.data import Inputs
from jaxnet.errors import InputError
from jaxnet.inference.network import Architecture, Network
from jaxnet.models.zoo import ZOO, nearest
from jaxnet.training.loss import Pixels
from jaxnet.weights import HALVES, About, checked_pixels, is_auxiliary, read_variables

_PIXELS = Pixels(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))  # torchvision's, and DeiT's in timm
_MARGIN = 8 / 7  # 224 is cut out of 256, and the same in other sizes
_PHOTO = 224  # smaller images are resized as a whole


def network_of_weights(path: Path, model: str | None = None) -> Network:
    """The network that the file names, or `model`.

    Images are prepared as torchvision does for its own weights, but for a mean and std that the import was told.

    Raises:
        InputError: the file is not one of `jaxnet import`, or its weights are not those of this network.
    """
    variables, about = read_variables(path)
    name = model or about.model
    if name not in ZOO:
        raise InputError(f"{path}: there is no network {name!r}; {nearest(name)}")
    if lacking := [leaf for leaf in about.left_out if not is_auxiliary(leaf)]:
        raise InputError(
            f"{path} lacks {', '.join(lacking[:3])}, which the import left out: train it first, with "
            f"initial_weights={path}"
        )
    entry = ZOO[name]
    height, _, channels = entry.image
    inputs = Inputs(entry.image, about.num_classes, resize=round(height * _MARGIN) if height >= _PHOTO else None)
    module = entry.build(num_classes=about.num_classes)
    if about.left_out and hasattr(module, "auxiliary"):  # heads that serve in training alone
        module = module.clone(auxiliary=False)
    architecture = Architecture(module, _pixels(about, name, channels, path), inputs)
    architecture.check(str(path))
    # What a network has for training alone, such as auxiliary heads, is there and not wanted.
    there = {leaf: variables[leaf] for leaf in architecture.shapes if leaf in variables}
    wrong = differences(described(there), described(architecture.shapes))
    if wrong:
        raise InputError(f"{path} does not hold the weights of {name}: {'; '.join(wrong[:5])}")
    return Network(architecture, jax.device_put(there, jax.devices()[0]), str(path))


def _pixels(about: About, name: str, channels: int, path: Path) -> Pixels:
    """As the file says, or as is usual for the network."""
    if about.mean is not None or about.std is not None:
        return Pixels(*checked_pixels(about.mean, about.std, channels, str(path)))
    return Pixels(mean=(0.5,), std=(0.5,)) if name in HALVES or channels != 3 else _PIXELS
