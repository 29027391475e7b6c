"""Models and tasks whose loops begin with zeros, as those of `flax.linen.RNN` do, train under every strategy."""

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax import lax

from jaxnet import Classification, Config, Ensemble, Optimizer, Task, prepare
from jaxnet.data import Arrays
from jaxnet.errors import InputError
from jaxnet.models import from_nnx

DRAW = np.random.RandomState(0)
X = DRAW.standard_normal((96, 5)).astype(np.float32)
Y = (X[:, 0] > 0).astype(np.int32)
DATA = Arrays(train={"features": X[:64], "label": Y[:64]}, test={"features": X[64:], "label": Y[64:]})


class Recurrent(nn.Module):
    @nn.compact
    def __call__(self, rows, train):
        carried = nn.RNN(nn.LSTMCell(4))(rows[..., None])[:, -1]
        return nn.Dense(2)(nn.Dropout(0.1, deterministic=not train)(carried))


class Normalized(nn.Module):
    """With running averages beside the loop."""

    @nn.compact
    def __call__(self, rows, train):
        rows = nn.BatchNorm(use_running_average=not train, momentum=0.5)(nn.Dense(4)(rows))
        return nn.Dense(2)(lax.fori_loop(0, 2, lambda _, carry: nn.relu(carry + rows), jnp.zeros(rows.shape)))


class RecurrentNNX(nnx.Module):
    def __init__(self, rngs):
        self.rnn = nnx.RNN(nnx.GRUCell(1, 4, rngs=rngs))
        self.dense = nnx.Linear(4, 2, rngs=rngs)

    def __call__(self, rows):
        return self.dense(self.rnn(rows[..., None])[:, -1])


class ByLoop(Task):
    """A loss that a loop adds up, with weights."""

    def inputs(self, batch):
        return batch["features"]

    def weights(self, batch):
        return 1.0 + batch["label"]

    def measures(self, outputs, batch):
        wrong = -nn.log_softmax(outputs) * nn.one_hot(batch["label"], 2)
        return {"loss": lax.fori_loop(0, 2, lambda at, total: total + wrong[:, at], jnp.zeros(len(wrong)))}


def losses(model, task, steps=4, **options):
    """The losses of some steps and of an evaluation, on eight devices."""
    optimizer = Optimizer("adamw", learning_rate=0.05)
    config = Config(model=model, data=DATA, task=task, epochs=1, batch_size=32, optimizer=optimizer, **options)
    experiment = prepare(config)
    state, batches, found = experiment.init(), experiment.batches(), []
    for _ in range(steps):
        state, metrics = experiment.step(state, next(batches))
        found.append(float(metrics["loss"]))
    batches.close()
    return [*found, experiment.evaluate(state)["loss"]]


MODELS = {
    "linen": (Recurrent(), Classification()),
    "nnx": (from_nnx(lambda rngs: RecurrentNNX(rngs)), Classification()),
    "task": (nn.Dense(2), ByLoop()),
}
WAYS = {
    "ddp": {"strategy": "ddp", "hosts": 2},
    "zero": {"strategy": "zero", "hosts": 2},
    "microbatches": {"strategy": "hierarchical", "hosts": 2, "microbatches": 4},
}


@pytest.mark.parametrize("model", MODELS)
def test_they_train_as_where_jax_tracks_no_types(model):
    wanted = losses(*MODELS[model], strategy="xla")
    for name, options in WAYS.items():
        np.testing.assert_allclose(losses(*MODELS[model], **options), wanted, rtol=1e-5, err_msg=name)


def test_running_averages_and_copies_of_the_parameters_too():
    task = Classification()
    wanted = losses(Normalized(), task, mode="pmap")
    np.testing.assert_allclose(losses(Normalized(), task, strategy="ddp"), wanted, rtol=1e-5)
    by_copies = {"strategy": "local_sgd:every=2", "hosts": 2}
    assert np.isfinite(losses(Normalized(), task, **by_copies)).all()
    assert np.isfinite(losses(Normalized(), task, ensemble=Ensemble(members=2))).all()


def test_a_mistake_in_a_model_is_told_as_it_was():
    class Wrong(nn.Module):
        @nn.compact
        def __call__(self, rows, train):
            return nn.Dense(2)(rows) + (jnp.zeros(3) if train else 0.0)

    with pytest.raises(InputError, match=r"the model Wrong, called with .* in training, failed in line \d+ of"):
        losses(Wrong(), Classification())
