"""What a step through jaxnet costs beside the same step in a hand-written loop.

Both train the same network on the same data with the same optimizer and augmentation, in turn, in one
process; the figure is the ratio of the medians of seconds a step, without start-up, compilation and evaluation.

    python benchmarks/framework_tax.py [--config configs/fashion_mnist.py] [--steps 200] [--rounds 5] [--json]
"""

import argparse
import functools
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from jaxnet.comm import compiler_options
from jaxnet.config.file import load_config
from jaxnet.config.run import Config
from jaxnet.models import network_options
from jaxnet.optimizer import make_optimizer
from jaxnet.tasks import ImageClassification
from jaxnet.training.trainer import train


def hand_written(config: Config, steps: int) -> float:
    """The loop that one would write for this one run; returns seconds a step."""
    data = config.data.load("train").rows(np.arange(config.data.load("train").num_examples))
    images, labels, model, task = data["image"], data["label"], config.model, config.task
    assert isinstance(task, ImageClassification)
    mean, std = task.pixels.mean[0], task.pixels.std[0]
    optimizer = make_optimizer(config.optimizer, steps)
    variables = model.init(jax.random.key(0), jnp.zeros((1, *images.shape[1:])), train=False)
    params, stats = variables["params"], variables["batch_stats"]
    state = (params, stats, optimizer.init(params))

    # Compiled as jaxnet's step is: the figure is what the trainer adds, not what XLA's options are worth.
    platform = jax.devices()[0].platform
    options = {**network_options(platform), **compiler_options(platform)}

    @functools.partial(jax.jit, donate_argnums=0, compiler_options=options)
    def step(state, key, image, label):
        params, stats, optimizer_state = state
        keys = jax.random.split(key, len(label))
        x = (task.augmentation(keys, image).astype(jnp.float32) / 255 - mean) / std

        def loss_fn(params):
            logits, new = model.apply(
                {"params": params, "batch_stats": stats}, x, train=True, keys=keys, mutable=["batch_stats"]
            )
            target = optax.smooth_labels(jax.nn.one_hot(label, logits.shape[-1]), task.label_smoothing)
            loss = optax.softmax_cross_entropy(logits, target).mean()
            return loss, (new["batch_stats"], (logits.argmax(-1) == label).mean())

        (loss, (stats, accuracy)), grads = jax.value_and_grad(loss_fn, has_aux=True)(params)
        updates, optimizer_state = optimizer.update(grads, optimizer_state, params)
        return (optax.apply_updates(params, updates), stats, optimizer_state), loss, accuracy

    draw, key, order = np.random.RandomState(0), jax.random.key(1), np.empty(0, int)
    for index in range(-1, steps):
        if len(order) < config.batch_size:
            order = np.concatenate([order, draw.permutation(len(images))])
        rows, order = order[: config.batch_size], order[config.batch_size :]
        state, loss, accuracy = step(state, jax.random.fold_in(key, index + 1), images[rows], labels[rows])
        if index % config.log.every_steps == 0 or index < 0:
            float(loss), float(accuracy)
        if index < 0:  # compiled
            started = time.perf_counter()
    jax.block_until_ready(state)
    return (time.perf_counter() - started) / steps


def through_jaxnet(config: Config) -> float:
    """Seconds a step of the same run through `train.py`."""
    with tempfile.TemporaryDirectory() as directory:
        summary = train(config, Path(directory), quiet=True).summary
    return summary["train_seconds"] / summary["steps"]


def main() -> None:
    """Run the rounds and print the ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", default="configs/fashion_mnist.py")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    plain = load_config(args.config)
    examples = plain.data.load("train").num_examples
    epochs = args.steps * plain.batch_size / examples
    config = load_config(
        args.config, f"epochs={epochs}", f"eval_every_epochs={2 * epochs}", "checkpoints.every_steps=1000000"
    )
    ours: list[float] = []
    theirs: list[float] = []
    for number in range(args.rounds):
        pair = [(theirs, lambda: hand_written(config, args.steps)), (ours, lambda: through_jaxnet(config))]
        for times, run in pair if number % 2 else reversed(pair):
            times.append(run())
    figures = {
        "config": args.config,
        "steps": args.steps,
        "hand_written_ms": [round(t * 1e3, 3) for t in theirs],
        "jaxnet_ms": [round(t * 1e3, 3) for t in ours],
        "ratio_of_medians": statistics.median(ours) / statistics.median(theirs),
        "ratios": [a / b for a, b in zip(ours, theirs, strict=True)],
    }
    print(json.dumps(figures, indent=2) if args.json else _text(figures))


def _text(figures: dict) -> str:
    lines = [f"{figures['config']}, {figures['steps']} steps a round, milliseconds a step"]
    lines += [f"{'hand-written':>14} {'jaxnet':>10} {'ratio':>8}"]
    rows = zip(figures["hand_written_ms"], figures["jaxnet_ms"], figures["ratios"], strict=True)
    lines += [f"{theirs:>14.2f} {ours:>10.2f} {ratio:>8.3f}" for theirs, ours, ratio in rows]
    return "\n".join([*lines, f"ratio of medians {figures['ratio_of_medians']:.3f}"])


if __name__ == "__main__":
    main()
