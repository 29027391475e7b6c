"""Several networks trained at once, as one whose leaves lead with [members].

Members are computed one after another, each as a network alone is, and stand stacked where they travel and are updated.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

from jaxnet.models import Model, Variables
from jaxnet.training.loss import Batch, LossFn, Result
from jaxnet.training.norms import Parts
from jaxnet.training.optimizer import Optimizer, make_optimizer

PyTree = Any


@dataclass(frozen=True)
class Ensemble:
    """Networks that are trained at once, on the same batches.

    Member i has the seed `seed + i`, of which are its first weights, its augmentation, mixing and dropout. The order
    of examples is that of `seed` for all.

    Attributes:
        members: how many; 1: a single network.
        learning_rates: one a member, instead of optimizer.learning_rate; empty: that one for all.
        weight_decays: the same for optimizer.weight_decay.
    """

    members: int = 1
    learning_rates: tuple[float, ...] = ()
    weight_decays: tuple[float, ...] = ()

    @property
    def on(self) -> bool:
        """Whether there is more than one network."""
        return self.members > 1

    def recipes(self, optimizer: Optimizer) -> list[Optimizer]:
        """The optimizer of each member.

        >>> [recipe.learning_rate for recipe in Ensemble(2, learning_rates=(0.1, 0.2)).recipes(Optimizer())]
        [0.1, 0.2]
        """
        rates = self.learning_rates or (optimizer.learning_rate,) * self.members
        decays = self.weight_decays or (optimizer.weight_decay,) * self.members
        given = zip(rates, decays, strict=True)
        return [replace(optimizer, learning_rate=rate, weight_decay=decay) for rate, decay in given]


def member_of(tree: PyTree, index: int) -> PyTree:
    """One member of what is stacked."""
    return jax.tree.map(lambda leaf: lax.index_in_dim(leaf, index, keepdims=False), tree)


def stacked(trees: Sequence[PyTree]) -> PyTree:
    """Members as one tree whose leaves lead with [members]."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


def member_keys(seed: int, members: int) -> jax.Array:
    """The key of each member's random numbers, [members]."""
    return jnp.stack([jax.random.key(seed + index) for index in range(members)])


def ensemble_model(model: Model, members: int) -> Model:
    """All members as one model: it is made from keys [members], and gives logits [members, batch, classes].

    Members are written out rather than mapped by `jax.vmap`, which makes grouped convolutions of theirs: on CPUs
    their gradient is up to a hundred times slower.
    """

    def init_fn(keys: jax.Array, images: jax.Array) -> Variables:
        variables: Variables = stacked([model.init(keys[index], images) for index in range(members)])
        return variables

    def apply_fn(
        params: PyTree, stats: PyTree, images: jax.Array, *, train: bool, keys: jax.Array | None
    ) -> tuple[jax.Array, PyTree]:
        """In training keys are [batch, members]."""
        each = [
            model.apply(
                *(member_of(params, index), member_of(stats, index), images),
                train=train,
                keys=None if keys is None else keys[:, index],
            )
            for index in range(members)
        ]
        logits, stats = stacked(each)
        return logits, stats

    return Model(init_fn, apply_fn)


def ensemble_loss(loss_fn: LossFn, members: int) -> LossFn:
    """The sum of the members' losses, whose gradient is each one's own; metrics are means over members.

    It takes keys [batch, members].
    """

    def summed(params: PyTree, stats: PyTree, batch: Batch, keys: jax.Array) -> tuple[jax.Array, Result]:
        each = [
            loss_fn(member_of(params, index), member_of(stats, index), batch, keys[:, index])
            for index in range(members)
        ]
        losses, result = stacked(each)
        return losses.sum(), Result(result.stats, {name: of.mean(0) for name, of in result.metrics.items()})

    return summed


def ensemble_optimizer(
    recipes: Sequence[Optimizer], total_steps: int, parts: Parts | None = None
) -> optax.GradientTransformation:
    """Each member's optimizer on its own gradient: norms, too, are those of one network.

    Recipes differ in learning rate and weight decay alone. With `parts`, those of one network, it updates parts
    [members, part].
    """
    first = recipes[0]
    values = {name: [getattr(recipe, name) for recipe in recipes] for name in ("learning_rate", "weight_decay")}
    # What is the same for all stays a constant of the program, as it is for a network alone.
    own = {name: np.array(each, np.float32) for name, each in values.items() if len(set(each)) > 1}

    def update(updates: PyTree, state: PyTree, params: PyTree | None = None) -> tuple[PyTree, PyTree]:
        def one(own: dict[str, Any], *given: PyTree) -> tuple[PyTree, PyTree]:
            return make_optimizer(replace(first, **own), total_steps, parts).update(*given)

        return jax.vmap(one)(own, updates, state, params)

    return optax.GradientTransformation(jax.vmap(make_optimizer(first, total_steps, parts).init), update)
