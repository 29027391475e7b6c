"""Training steps in JAX for throughput.py: the trainer's own, and a loop as one writes it by hand."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.peers import networks
from benchmarks.peers.rounds import serve_runs
from jaxnet.comm import make_mesh, split_by_example
from jaxnet.config.file import load_config
from jaxnet.config.run import Config
from jaxnet.data import Synthetic
from jaxnet.models import ZOO, Heads
from jaxnet.optimizer import Optimizer
from jaxnet.tasks.classification import ImageClassification, Pixels
from jaxnet.training.prepare import prepare

Run = Callable[[int], None]  # so many steps, and waits for the last
TEXT_CONFIG = Path(__file__).resolve().parents[2] / "configs/text_transformer.py"
PLAIN = {"alexnet": {"dropout": 0.0}, "vgg16": {"dropout": 0.0}, "googlenet_bn": {"dropout": 0.0}}
PLAIN["googlenet_bn"]["auxiliary_dropout"] = 0.0


class Subject(NamedTuple):
    """A network, without dropout, which those of PyTorch here do not have, and what it learns from.

    Attributes:
        network, data, task: as a config has them.
        batch: examples as the data set gives them.
        given: of a batch, what the network is called with, and the classes that it should name.
        auxiliary: weight of the losses of its auxiliary heads.
    """

    network: Any
    data: Any
    task: Any
    batch: dict[str, np.ndarray]
    given: Callable[[Any], tuple[jax.Array, jax.Array]]
    auxiliary: float = 0.0


def subject(name: str, batch: int, dtype: str) -> Subject:
    """One of `networks.MODELS`, with so many random examples."""
    return _text(batch, dtype) if name == networks.TEXT else _images(name, batch, dtype)


def _text(batch: int, dtype: str) -> Subject:
    config = load_config(str(TEXT_CONFIG), "model.dropout=0", f"model.dtype={dtype}")
    sizes = networks.Text()
    tokens = np.random.default_rng(0).integers(0, sizes.vocabulary, (batch, sizes.positions + 1), np.int16)

    def given(batch: Any) -> tuple[jax.Array, jax.Array]:
        tokens = batch["tokens"].astype(jnp.int32)
        return tokens[:, :-1], tokens[:, 1:]

    return Subject(config.model, config.data, config.task, {"tokens": tokens}, given)


def _images(name: str, batch: int, dtype: str) -> Subject:
    zoo, auxiliary = networks.NETWORKS[name]
    network = ZOO[zoo].build(num_classes=networks.CLASSES, dtype=dtype, **PLAIN.get(zoo, {}))
    data = Synthetic(networks.IMAGE, num_classes=networks.CLASSES, num_train=batch, num_test=batch)
    task = ImageClassification(pixels=Pixels(networks.MEAN, networks.DEVIATION))
    random = np.random.default_rng(0)
    image = random.integers(0, 256, (batch, *networks.IMAGE), np.uint8)
    label = random.integers(0, networks.CLASSES, batch, np.int32)

    def given(batch: Any) -> tuple[jax.Array, jax.Array]:
        mean, deviation = (jnp.array(of).reshape(1, 1, 1, -1) for of in (networks.MEAN, networks.DEVIATION))
        return (batch["image"].astype(jnp.float32) / 255 - mean) / deviation, batch["label"]

    return Subject(network, data, task, {"image": image, "label": label}, given, auxiliary)


def trainer(name: str, batch: int, dtype: str) -> Run:
    """The compiled step of train.py, with its own defaults."""
    mesh, trained = make_mesh(), subject(name, batch, dtype)
    config = Config(
        model=trained.network,
        data=trained.data,
        task=trained.task,
        epochs=1,
        batch_size=batch,
        optimizer=Optimizer("sgd", networks.LEARNING_RATE, schedule="constant", momentum=networks.MOMENTUM),
    )
    experiment = prepare(config, mesh, source=trained.data.load("train"))
    state = experiment.init()
    step = experiment.step.lower(state, experiment.batch_shapes).compile()
    ids = {"id": np.arange(batch, dtype=np.int32)}
    return repeated(step, state, jax.device_put(trained.batch | ids, split_by_example(mesh)))


def by_hand(name: str, batch: int, dtype: str) -> Run:
    """A function of the state and the batch, jitted and donated, and nothing else."""
    trained = subject(name, batch, dtype)
    module, optimizer = trained.network, optax.sgd(networks.LEARNING_RATE, networks.MOMENTUM)

    def loss_of(params: Any, stats: Any, batch: Any) -> tuple[jax.Array, Any]:
        inputs, targets = trained.given(batch)
        variables = {"params": params, **stats}
        outputs, stats = module.apply(variables, inputs, train=True, mutable=list(stats))
        heads = outputs if isinstance(outputs, Heads) else Heads(outputs)
        weighted = [(1.0, heads.logits), *((trained.auxiliary, logits) for _, logits in heads.auxiliary)]
        entropy = optax.softmax_cross_entropy_with_integer_labels
        return sum(weight * entropy(logits, targets).mean() for weight, logits in weighted), stats

    def step(state: Any, batch: Any) -> tuple[Any, jax.Array]:
        params, stats, momentum = state
        (loss, stats), gradient = jax.value_and_grad(loss_of, has_aux=True)(params, stats, batch)
        updates, momentum = optimizer.update(gradient, momentum)
        return (optax.apply_updates(params, updates), stats, momentum), loss

    def first(key: jax.Array) -> Any:
        inputs, _ = trained.given({of: examples[:1] for of, examples in trained.batch.items()})
        variables = dict(module.init(key, inputs, train=False))
        params = variables.pop("params")
        return params, variables, optimizer.init(params)

    state, examples = jax.jit(first)(jax.random.key(0)), jax.device_put(trained.batch)
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
