"""Data sets made ready for TFDS without TensorFlow: once, before training.

tars      where each image lies in the official archives       shards    one file of the result, whole or not there
images    which are damaged, which have to be converted        imagenet  all of it: resumable, by many processes
verify    reads a prepared data set back                       watch     what is told on the way
"""

from jaxnet.data.prepare.imagenet import Prepared as Prepared
from jaxnet.data.prepare.imagenet import prepare_imagenet as prepare_imagenet
from jaxnet.data.prepare.verify import PrepareListener as PrepareListener
from jaxnet.data.prepare.verify import Verified as Verified
from jaxnet.data.prepare.verify import verify as verify
