"""Training steps in JAX for throughput.py: the trainer's own, and a loop as one writes it by hand."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.peers import networks
from benchmarks.peers.rounds import serve_runs
from jaxnet.comm import make_mesh, split_by_example
from jaxnet.config.run import Config
from jaxnet.data import PythonTopics, Synthetic
from jaxnet.models import ZOO, Heads, Transformer
from jaxnet.optimizer import Optimizer
from jaxnet.tasks.classification import ImageClassification, Pixels
from jaxnet.tasks.text import LanguageModel
from jaxnet.training.prepare import prepare

Run = Callable[[int], None]  # so many steps, and waits for the last
PLAIN = {"alexnet": {"dropout": 0.0}, "vgg16": {"dropout": 0.0}, "googlenet_bn": {"dropout": 0.0}}
PLAIN["googlenet_bn"]["auxiliary_dropout"] = 0.0


def network(name: str, dtype: str) -> Any:
    """The network without dropout, which those of PyTorch here do not have."""
    if name == networks.TEXT:
        sizes: dict[str, Any] = networks.Text()._asdict()
        return Transformer(**sizes | {"dtype": dtype})
    zoo = networks.NETWORKS[name].zoo
    return ZOO[zoo].build(num_classes=networks.CLASSES, dtype=dtype, **PLAIN.get(zoo, {}))


def random_batch(name: str, batch: int) -> dict[str, np.ndarray]:
    """Images and labels, or tokens, as a data set gives them."""
    random = np.random.default_rng(0)
    if name == networks.TEXT:
        return {"tokens": random.integers(0, 256, (batch, networks.Text().positions + 1), np.int16)}
    image = random.integers(0, 256, (batch, *networks.IMAGE), np.uint8)
    return {"image": image, "label": random.integers(0, networks.CLASSES, batch, np.int32)}


def trainer(name: str, batch: int, dtype: str) -> Run:
    """The compiled step of train.py, with its own defaults."""
    mesh = make_mesh()
    images = Synthetic(networks.IMAGE, num_classes=networks.CLASSES, num_train=batch, num_test=batch)
    data = PythonTopics(length=networks.Text().positions) if name == networks.TEXT else images
    pixels = Pixels(networks.MEAN, networks.DEVIATION)
    config = Config(
        model=network(name, dtype),
        data=data,
        task=LanguageModel() if name == networks.TEXT else ImageClassification(pixels=pixels),
        epochs=1,
        batch_size=batch,
        optimizer=Optimizer("sgd", networks.LEARNING_RATE, schedule="constant", momentum=networks.MOMENTUM),
    )
    experiment = prepare(config, mesh, source=data.load("train"))
    state = experiment.init()
    step = experiment.step.lower(state, experiment.batch_shapes).compile()
    ids = {"id": np.arange(batch, dtype=np.int32)}
    return repeated(step, state, jax.device_put(random_batch(name, batch) | ids, split_by_example(mesh)))


def by_hand(name: str, batch: int, dtype: str) -> Run:
    """A function of the state and the batch, jitted and donated, and nothing else."""
    module = network(name, dtype)
    auxiliary = 0.0 if name == networks.TEXT else networks.NETWORKS[name].auxiliary
    optimizer = optax.sgd(networks.LEARNING_RATE, networks.MOMENTUM)
    mean, deviation = jnp.array(networks.MEAN), jnp.array(networks.DEVIATION)

    def given(batch: Any) -> tuple[jax.Array, jax.Array]:
        if name == networks.TEXT:
            tokens = batch["tokens"].astype(jnp.int32)
            return tokens[:, :-1], tokens[:, 1:]
        return (batch["image"].astype(jnp.float32) / 255 - mean) / deviation, batch["label"]

    def loss_of(params: Any, stats: Any, batch: Any) -> tuple[jax.Array, Any]:
        inputs, targets = given(batch)
        variables = {"params": params, **stats}
        outputs, stats = module.apply(variables, inputs, train=True, mutable=list(stats))
        heads = outputs if isinstance(outputs, Heads) else Heads(outputs)
        weighted = [(1.0, heads.logits), *((auxiliary, logits) for _, logits in heads.auxiliary)]
        entropy = optax.softmax_cross_entropy_with_integer_labels
        return sum(weight * entropy(logits, targets).mean() for weight, logits in weighted), stats

    def step(state: Any, batch: Any) -> tuple[Any, jax.Array]:
        params, stats, momentum = state
        (loss, stats), gradient = jax.value_and_grad(loss_of, has_aux=True)(params, stats, batch)
        updates, momentum = optimizer.update(gradient, momentum)
        return (optax.apply_updates(params, updates), stats, momentum), loss

    def first(key: jax.Array) -> Any:
        variables = dict(module.init(key, given(random_batch(name, 1))[0], train=False))
        params = variables.pop("params")
        return params, variables, optimizer.init(params)

    state, examples = jax.jit(first)(jax.random.key(0)), jax.device_put(random_batch(name, batch))
    return repeated(jax.jit(step, donate_argnums=0).lower(state, examples).compile(), state, examples)


def repeated(step: Callable[..., Any], state: Any, batch: Any) -> Run:
    """A step that goes on from its own state."""
    held = [state]

    def run(steps: int) -> None:
        for _ in range(steps):
            held[0], _ = step(held[0], batch)
        jax.block_until_ready(held[0])

    return run


def products(side: int, dtype: str) -> Run:
    """Square matrix products, one of the other's result."""
    matrix = jax.random.normal(jax.random.key(0), (side, side), dtype) / side**0.5
    return repeated(jax.jit(lambda x, y: (y @ x, 0)), matrix, matrix)


VARIANTS = {"jaxnet": trainer, "jax by hand": by_hand}


def main() -> None:
    args = networks.worker_arguments(__doc__, list(VARIANTS))
    runs = {networks.MATMUL: products(args.side, args.dtype)}
    runs |= {name: VARIANTS[name](args.model, args.batch, args.dtype) for name in args.variant}
    serve_runs("jax", runs, networks.WARMUP_STEPS)


if __name__ == "__main__":
    main()
