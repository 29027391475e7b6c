"""Weights that were trained elsewhere: read, converted, and kept as a file of variables.

From a file of PyTorch or safetensors to variables of a network in `jaxnet.models.ZOO`:

- `read_tensors`: the tensors of a file, read without PyTorch and without executing anything (`files`, `torch_file`).
- `target_of`: what a conversion must know of the Flax model, a `Target` (`target`).
- `convert`: tensors to variables by a rule for their names (`names`), with a `ConversionReport`.
- `to_tensors`, `write_tensors`: the way back, for PyTorch to load.
- `checked_pixels`, `HALVES`: how images are normalized for such weights. `is_auxiliary`: heads for training alone.

A file of variables, which `jaxnet import` writes and `initial_weights` reads:

- `write_variables`, `read_variables`, `read_names`, `WeightsMetadata`, `file_digest`.
"""

from jaxnet.weights.convert import HALVES, ConversionReport, checked_pixels, convert, to_tensors
from jaxnet.weights.files import (
    WeightsMetadata,
    file_digest,
    read_names,
    read_tensors,
    read_variables,
    write_tensors,
    write_variables,
)
from jaxnet.weights.names import is_auxiliary
from jaxnet.weights.target import Target, flattened_maps, target_of

__all__ = [
    "HALVES",
    "ConversionReport",
    "Target",
    "WeightsMetadata",
    "checked_pixels",
    "convert",
    "file_digest",
    "flattened_maps",
    "is_auxiliary",
    "read_names",
    "read_tensors",
    "read_variables",
    "target_of",
    "to_tensors",
    "write_tensors",
    "write_variables",
]
