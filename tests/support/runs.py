"""A run in this process, as its summary."""

import os
from dataclasses import replace

from jaxnet.training import trainer


def train(config, workdir, **options):
    """What summary.json holds of a run of `config` in `workdir`."""
    return trainer.train(sharing(config), workdir, **options).summary


def sharing(config):
    """The same config with the compile cache that all tests share, unless it has another than the default."""
    by_default = config.compile_cache == type(config).compile_cache
    return replace(config, compile_cache=os.environ["TESTS_COMPILE_CACHE"]) if by_default else config
