"""Parameters after three steps of a small network under every strategy: what `benchmarks/accelerator.py` compares.

    python -m benchmarks.accelerator_steps FILE STRATEGY ... [--hosts N] [--options OPTION ...]

Joins the processes that the environment describes, if it describes any. Process 0 writes FILE, an .npz with the arrays
NAME/0, NAME/1, ... of each strategy, or NAME/error, what kept it from running. Products are in full precision.
"""

import argparse
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import jax
import numpy as np
from jax.sharding import Mesh

from jaxnet import Config, Optimizer
from jaxnet.cluster.start import leave, start
from jaxnet.comm import STRATEGIES, make_mesh
from jaxnet.data import Synthetic
from jaxnet.errors import error_text, exit_cleanly
from jaxnet.models import CNN
from jaxnet.training.prepare import prepare

_STEPS = 3
_SMALL = CNN(10, widths=(8, 16), hidden=1024)  # 1 MB of gradients: a TPU's SparseCores take no small messages


def small_run(strategy: str, devices: int, options: Sequence[str] = ()) -> Config:
    """A run of a small network."""
    return Config(
        model=_SMALL,
        data=Synthetic((16, 16, 3), num_train=16 * devices, num_test=16),
        epochs=1,
        batch_size=16 * devices,
        optimizer=Optimizer("sgd", learning_rate=0.1, momentum=0.9),
        strategy=strategy,
        compiler_options=tuple(options),
    )


def params_after(config: Config, mesh: Mesh, steps: int) -> list[np.ndarray]:
    """Whole parameters after some steps."""
    experiment = prepare(config, mesh)
    state = experiment.init()
    with closing(experiment.batches()) as batches:
        for _, batch in zip(range(steps), batches, strict=False):
            state, _ = experiment.step(state, batch)
    whole = jax.tree.leaves(experiment.layout.whole(state).params)
    return [np.asarray(leaf.addressable_shards[0].data) for leaf in whole]  # each device has all


def found(names: Sequence[str], mesh: Mesh, options: Sequence[str]) -> Iterator[tuple[str, np.ndarray]]:
    """What FILE holds, name by name."""
    for name in names:
        try:
            with jax.default_matmul_precision("highest"):
                leaves = params_after(small_run(name, mesh.devices.size, options), mesh, _STEPS)
        except Exception as error:  # one strategy that fails is a row, not the end
            yield f"{name}/error", np.array(error_text(error))
            continue
        yield from ((f"{name}/{index}", leaf) for index, leaf in enumerate(leaves))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the steps, and write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, metavar="FILE")
    parser.add_argument("strategies", nargs="+", choices=list(STRATEGIES), metavar="STRATEGY")
    parser.add_argument("--hosts", type=int, metavar="N", help="rows of the mesh; default: as train.py makes it")
    parser.add_argument("--options", nargs="*", default=[], metavar="OPTION", help="NAME=VALUE, or sparse_cores")
    args = parser.parse_args(argv)
    start()
    arrays = dict(found(args.strategies, make_mesh(args.hosts), args.options))
    if jax.process_index() == 0:
        np.savez(args.file, **arrays)  # type: ignore[arg-type]  # it takes these for its flag
    return 0


if __name__ == "__main__":
    exit_cleanly(main, leave)
