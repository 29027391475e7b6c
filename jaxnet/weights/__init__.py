"""Weights that were trained elsewhere: read, converted, and kept as a file of variables."""

from jaxnet.weights.convert import HALVES as HALVES
from jaxnet.weights.convert import ConversionReport as ConversionReport
from jaxnet.weights.convert import Target as Target
from jaxnet.weights.convert import checked_pixels as checked_pixels
from jaxnet.weights.convert import convert as convert
from jaxnet.weights.convert import is_auxiliary as is_auxiliary
from jaxnet.weights.convert import target_of as target_of
from jaxnet.weights.files import WeightsMetadata as WeightsMetadata
from jaxnet.weights.files import file_digest as file_digest
from jaxnet.weights.files import read_names as read_names
from jaxnet.weights.files import read_tensors as read_tensors
from jaxnet.weights.files import read_variables as read_variables
from jaxnet.weights.files import write_variables as write_variables
