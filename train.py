"""Train a model: `python train.py --config configs/digits.py [--workdir DIR] [key.path=value ...]`.

The same as `jaxnet train`. What it does stands in jaxnet/training/trainer.py.
"""

from jaxnet.cluster.huge_pages import use_huge_pages

if __name__ == "__main__":
    use_huge_pages()  # it may start this program again: so before all that takes time to import

from jaxnet.cli.train import main as main
from jaxnet.cli.train import program

if __name__ == "__main__":
    program()
