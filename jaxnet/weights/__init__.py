"""Weights that were trained elsewhere: read, converted, and kept as a file of variables."""

from jaxnet.weights.convert import convert as convert
from jaxnet.weights.files import file_digest as file_digest
from jaxnet.weights.files import read_tensors as read_tensors
from jaxnet.weights.names import is_auxiliary as is_auxiliary
from jaxnet.weights.pixels import HALVES as HALVES
from jaxnet.weights.pixels import checked_pixels as checked_pixels
from jaxnet.weights.report import Report as Report
from jaxnet.weights.target import Target as Target
from jaxnet.weights.target import target_of as target_of
from jaxnet.weights.variables_file import About as About
from jaxnet.weights.variables_file import read_names as read_names
from jaxnet.weights.variables_file import read_variables as read_variables
from jaxnet.weights.variables_file import write_variables as write_variables
