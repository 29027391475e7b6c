"""A config as somebody writes it who knows Flax and Optax: a reducer, an optimizer, a task and data of their own."""

import flax.linen as nn
import jax
import numpy as np
import optax

from jaxnet import Config, Log, Task, comm
from jaxnet.data import Arrays


@comm.expressed
def predivided(factor, inner):
    """`inner` on values divided by `factor`, so that a sum in half precision would not overflow."""

    def reduce(message, state):
        total, state = inner.reduce(message / factor, state)
        return total * factor, state

    return inner._replace(reduce=reduce)


class Net(nn.Module):
    """What is on a picture, and how bright it is."""

    @nn.compact
    def __call__(self, images, training):
        x = nn.relu(nn.Conv(8, (3, 3), strides=2)(images))
        x = nn.Dropout(0.25, deterministic=not training)(x.reshape(len(images), -1))
        return {"kind": nn.Dense(3)(x), "brightness": nn.Dense(1)(x)[:, 0]}


class KindAndBrightness(Task):
    best, best_mode = "accuracy", "max"

    def inputs(self, batch):
        return batch["picture"]

    def measures(self, outputs, batch):
        kind = optax.softmax_cross_entropy_with_integer_labels(outputs["kind"], batch["kind"])
        brightness = optax.huber_loss(outputs["brightness"], batch["brightness"])
        right = (outputs["kind"].argmax(-1) == batch["kind"]).astype("float32")
        return {"loss": kind + 0.5 * brightness, "kind": kind, "brightness": brightness, "accuracy": right}

    def augmented(self, batch, keys):
        noise = jax.vmap(lambda key: 0.1 * jax.random.normal(key, (8, 8, 1)))(keys)
        return {**batch, "picture": batch["picture"] + noise}


def pictures(count, seed):
    draw = np.random.RandomState(seed)
    kind = draw.randint(0, 3, count)
    picture = 0.3 * draw.standard_normal((count, 8, 8, 1))
    picture[np.arange(count), 2 * kind] += 1.5
    return {"picture": picture, "kind": kind, "brightness": picture.mean((1, 2, 3))}


def optimizer(total_steps):
    schedule = optax.warmup_cosine_decay_schedule(0.0, 0.01, 5, total_steps)
    return optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule, b2=0.99), optax.ema(0.5))


def get_config():
    whole = comm.scattered("device", comm.all_reduce("host"))
    return Config(
        model=Net(),
        data=Arrays(train=pictures(480, 0), test=pictures(100, 1)),
        task=KindAndBrightness(),
        epochs=4,
        batch_size=48,
        validation=0.1,
        optimizer=optimizer,
        strategy=comm.Strategy(comm.bucketed(predivided(8, whole), bucket_bytes=4096), schedule="during"),
        log=Log(every_steps=1, tensorboard=False),
    )
