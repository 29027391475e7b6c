"""A run in this process, as its summary."""

from jaxnet.training import trainer


def train(config, workdir, **options):
    """What summary.json holds of a run of `config` in `workdir`."""
    return trainer.train(config, workdir, **options).summary
