"""Codecs: what one message of floats looks like on the wire.

compressed("host", codec=codecs.one_bit(), feedback=True)
"""

from jaxnet.comm.codecs.codec import Codec as Codec
from jaxnet.comm.codecs.codec import one_message as one_message
from jaxnet.comm.codecs.floats import bfloat16 as bfloat16
from jaxnet.comm.codecs.floats import float16 as float16
from jaxnet.comm.codecs.int8 import int8 as int8
from jaxnet.comm.codecs.one_bit import one_bit as one_bit
from jaxnet.comm.codecs.top_k import top_k as top_k
from jaxnet.comm.codecs.two_bit import two_bit as two_bit
