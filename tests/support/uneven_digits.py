"""A config: digits for three processes, of which one reads from a slow disk, and all meet damaged records."""

import os
from dataclasses import dataclass, replace

from jaxnet.data import Digits
from support import paced_digits

STEPS = 20
BATCH = 63
SLOW_RANK = 1


class Uneven(paced_digits.Slow):
    def __init__(self, source, rank):
        super().__init__(source, 0.1 if rank == SLOW_RANK else 0.0)
        self.damaged = {1000: "all meet this one", rank: "this process alone"}


@dataclass(frozen=True)
class UnevenDigits:
    def load(self, split):
        digits = Digits().load(split)
        return Uneven(digits, int(os.environ["JAX_PROCESS_ID"])) if split == "train" else digits


def get_config():
    config = replace(paced_digits.get_config(), data=UnevenDigits())
    return replace(config, batch_size=BATCH, eval_batch_size=BATCH, epochs=STEPS * BATCH / 1437)
