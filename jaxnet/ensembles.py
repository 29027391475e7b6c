"""Train several networks at once, as one network whose leaves lead with a dim [members].

Members see the same batches and are computed one after another, each as a single network is. Their gradients and
parameters are stacked, so they travel in the same messages.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

from jaxnet.limits import Limit
from jaxnet.models import Model, Variables
from jaxnet.optimizer import AnyOptimizer, Optimizer, ShardedParams, make_optimizer
from jaxnet.tasks.task import Batch, LossFn, LossOutput, metric_text

PyTree = Any


# Each is traced and compiled by itself.
_Members = Annotated[int, Limit("1 to 100: one program computes them all", lambda value: 1 <= value <= 100)]


@dataclass(frozen=True)
class Ensemble:
    """Networks that are trained at once, on the same batches.

    Member i has the seed `seed + i`, which decides its first weights, augmentation, mixing and dropout. The order of
    examples follows `seed` for all.

    Attributes:
        members: how many; 1: a single network.
        learning_rates: one per member, instead of optimizer.learning_rate; empty: that one for all.
        weight_decays: one per member, instead of optimizer.weight_decay; empty: that one for all.
    """

    members: _Members = 1
    learning_rates: tuple[float, ...] = ()
    weight_decays: tuple[float, ...] = ()

    @property
    def on(self) -> bool:
        """True if there is more than one network."""
        return self.members > 1

    def recipes(self, optimizer: Optimizer) -> list[Optimizer]:
        """Return the optimizer of each member.

        >>> [recipe.learning_rate for recipe in Ensemble(2, learning_rates=(0.1, 0.2)).recipes(Optimizer())]
        [0.1, 0.2]
        """
        rates = self.learning_rates or (optimizer.learning_rate,) * self.members
        decays = self.weight_decays or (optimizer.weight_decay,) * self.members
        given = zip(rates, decays, strict=True)
        return [replace(optimizer, learning_rate=rate, weight_decay=decay) for rate, decay in given]


# ---- Members as one network ----------------------------------------------------------------------------


def member_of(tree: PyTree, index: int) -> PyTree:
    """Return one member of a stacked tree."""
    return jax.tree.map(lambda leaf: lax.index_in_dim(leaf, index, keepdims=False), tree)


def stacked(trees: Sequence[PyTree]) -> PyTree:
    """Stack members into one tree whose leaves lead with [members]."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


def member_keys(seed: int, members: int) -> jax.Array:
    """Return the random key of each member, [members]."""
    return jnp.stack([jax.random.key(seed + index) for index in range(members)])


def ensemble_model(model: Model, members: int) -> Model:
    """Return all members as one model: `init` takes keys [members], and logits are [members, batch, classes].

    Members are computed in a Python loop. `jax.vmap` would turn their convolutions into grouped ones, whose gradient is
    up to a hundred times slower on CPUs.
    """

    def init_fn(keys: jax.Array, inputs: Any) -> Variables:
        variables: Variables = stacked([model.init(keys[index], inputs) for index in range(members)])
        return variables

    def apply_fn(
        params: PyTree, stats: PyTree, inputs: Any, *, train: bool, keys: jax.Array | None
    ) -> tuple[jax.Array, PyTree]:
        # In training, keys are [batch, members].
        each = [
            model.apply(
                *(member_of(params, index), member_of(stats, index), inputs),
                train=train,
                keys=None if keys is None else keys[:, index],
            )
            for index in range(members)
        ]
        logits, stats = stacked(each)
        return logits, stats

    return Model(init_fn, apply_fn)


def ensemble_loss(loss_fn: LossFn, members: int) -> LossFn:
    """Return the sum of the members' losses; metrics are means over members, and keys are [batch, members].

    The gradient of the sum is each member's own gradient, because a member's parameters occur in its loss alone.
    """

    def summed(params: PyTree, stats: PyTree, batch: Batch, keys: jax.Array) -> tuple[jax.Array, LossOutput]:
        each = [
            loss_fn(member_of(params, index), member_of(stats, index), batch, keys[:, index])
            for index in range(members)
        ]
        losses, result = stacked(each)
        return losses.sum(), LossOutput(result.stats, {name: of.mean(0) for name, of in result.metrics.items()})

    return summed


def ensemble_optimizer(
    recipes: Sequence[Optimizer], total_steps: int, parts: ShardedParams | None = None
) -> optax.GradientTransformation:
    """Return an optimizer that applies each member's recipe to its own gradient; norms are those of one member.

    Recipes differ only in learning rate and weight decay. With `parts`, those of one network, it updates parts
    [members, part].
    """
    first = recipes[0]
    values = {name: [getattr(recipe, name) for recipe in recipes] for name in ("learning_rate", "weight_decay")}
    # Values that all members share stay constants of the program, as for a single network.
    own = {name: np.array(each, np.float32) for name, each in values.items() if len(set(each)) > 1}

    def update(updates: PyTree, state: PyTree, params: PyTree | None = None) -> tuple[PyTree, PyTree]:
        def one(own: dict[str, Any], *given: PyTree) -> tuple[PyTree, PyTree]:
            return make_optimizer(replace(first, **own), total_steps, parts).update(*given)

        return jax.vmap(one)(own, updates, state, params)

    return optax.GradientTransformation(jax.vmap(make_optimizer(first, total_steps, parts).init), update)


# ---- Summary and table ---------------------------------------------------------------------------------

MEMBER_FIGURES = ("member", "seed", "learning_rate", "weight_decay")
"""What the summary says of a member besides its metrics."""


def ensemble_summary(
    ensemble: Ensemble, optimizer: AnyOptimizer, seed: int, evaluation: Mapping[str, float]
) -> dict[str, Any]:
    """Return an evaluation for the summary of a run, with the members of an ensemble in a list `members`.

    Each entry has the seed, learning rate and weight decay that the member was trained with, and its metrics.
    """
    common = {name: value for name, value in evaluation.items() if not name.startswith("member_")}
    if not ensemble.on or not isinstance(optimizer, Optimizer):
        return common
    members = [
        {
            "member": index,
            "seed": seed + index,
            "learning_rate": recipe.learning_rate,
            "weight_decay": recipe.weight_decay,
            **_under(f"member_{index}/", evaluation),
        }
        for index, recipe in enumerate(ensemble.recipes(optimizer))
    ]
    return {**common, "members": members}


def _under(prefix: str, values: Mapping[str, float]) -> dict[str, float]:
    """The values whose names begin with a prefix, without it."""
    return {name.removeprefix(prefix): value for name, value in values.items() if name.startswith(prefix)}


def ensemble_table(summary: Mapping[str, Any]) -> str:
    """Return a table of the members of a summary, their mean, and their common prediction; "" for a single network."""
    rows, metrics = summary.get("members", []), summary.get("metrics", [])
    if not rows or not metrics:
        return ""
    widths = [max(len(name), 8) for name in metrics]
    head = [f"{'member':>8}  {'seed':>6}  {'learning rate':>13}  {'weight decay':>12}"]
    lines = ["  ".join([*head, *(f"{name:>{width}}" for name, width in zip(metrics, widths, strict=True))])]

    def line(name: Any, settings: str, values: Mapping[str, Any]) -> str:
        cells = (
            f"{metric_text(metric, values[metric]):>{width}}" for metric, width in zip(metrics, widths, strict=True)
        )
        return "  ".join([f"{name:>8}  {settings:>35}", *cells])

    for row in rows:
        settings = f"{row['seed']:>6}  {row['learning_rate']:>13g}  {row['weight_decay']:>12g}"
        lines.append(line(row["member"], settings, row))
    lines.append(line("mean", "", summary))
    if together := _under("ensemble/", summary):
        lines.append(line("ensemble", "", together))
    return "\n".join(lines)
