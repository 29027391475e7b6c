"""Odd values: as a user types them on the command line, and as a config file may hold them."""

WORDS = (
    *("", " ", "none", "true", "nan", "-nan", "inf", "-inf", "1e999", "many", "é", "\uff11\uff16", "\u202e8", "'", "="),
    *("0x10",),
)
NUMBERS = ("0", "-1", "-0.0", "1.5", "1e2", "1_0", " 8", "+8", "1e-320", "1e308", "2147483648", "4294967296")
HUGE = ("9223372036854775807", "9223372036854775808", "1" + "0" * 30, "9" * 5000)
TUPLES = (",", "1,", "(2,)", "[2,2]", "0:", ":", "0:0", "a:b:c", "0.5:8,0:4", "1," * 2000)
PATHS = ("/nowhere", "/", "/dev/null", "/dev/zero", "/etc/passwd", "a" * 5000, "nul\0byte", "é/ü", "~", "$HOME")
TEXTS = (*WORDS, *NUMBERS, *HUGE, *TUPLES, *PATHS)

LARGE = ("1000000", "999999999", "1000000000000000000", "1e18", "1e37", "-1e308", "-1000000", "-999999999")
"""What might be meant, and would train for ever or fill the memory: for cases that do not train."""

OBJECTS = (
    *("None", "True", "False", "()", "[]", "{}", "set()", "''", "'x'", "b'x'", "...", "range(3)", "int", "object()"),
    *("-1", "0", "1", "10**6", "10**9", "10**18", "-(10**18)", "10**5000", "1.5", "-0.0", "1e308", "-1e308", "1e-320"),
    *("float('nan')", "float('inf')", "1j", "(1, 'x')", "((1, 2), (3, 4))", "('*', 1.0)", "(None,)", "((),)"),
    *("np.float32(0.5)", "np.float16('nan')", "np.int64(3)", "np.bool_(True)", "np.array([1, 2])", "np.array('x')"),
    *("jnp.ones(3)", "lambda *given: 1", "lambda: 1 / 0", "Odd()", "Odd", "loop", "Count(3)", "Text_('16')", "dict"),
    *("Exception('x')", "NotImplemented", "iter(())", "Path('.')", "Config", "Optimizer()", "optax.adam(0.1)"),
)
"""Python expressions, for a file that begins with `MAKES`."""

MAKES = """\
import dataclasses
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from PIL import Image

from jaxnet import *
from jaxnet.data import *
from jaxnet.models import *


class Odd:
    def __repr__(self): raise ValueError("no repr")
    def __eq__(self, other): raise ValueError("no equality")
    def __hash__(self): raise ValueError("no hash")
    def __bool__(self): raise ValueError("no truth")


class Count(int):
    pass


class Text_(str):
    pass


loop = []
loop.append(loop)


def put(node, path, value):
    name, _, rest = path.partition(".")
    return dataclasses.replace(node, **{name: put(getattr(node, name), rest, value) if rest else value})

"""
