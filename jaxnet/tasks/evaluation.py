"""Evaluate a model on a whole data set, each example counted once, on any number of devices and processes.

Batches are of one size, so the last is filled up with copies whose weight is 0. Values are summed times their weights
on the devices, batch by batch, and the sums of batches in float64 on the host: a count is exact.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping

import jax
from jax.sharding import Mesh

from jaxnet.comm import platform_of, replicated, split_by_example
from jaxnet.errors import InputError
from jaxnet.models import Model, inference_options
from jaxnet.tasks.task import WEIGHT, Batch, PyTree, Task, Values, measured, weights_of

Sums = dict[str, jax.Array]
EvalStepFn = Callable[[PyTree, PyTree, Batch], Sums]
Across = Callable[[dict[str, float]], dict[str, float]]

EXAMPLES = "examples"
ENSEMBLE = "ensemble"
OF_MEMBERS = ("member_", f"{ENSEMBLE}/")  # how names of an ensemble's metrics begin, and those of no task
_IN_FLIGHT = 2  # batches on the devices: enough that they never wait


def make_eval_step(model: Model, task: Task, mesh: Mesh, members: int | None = None) -> jax.stages.Wrapped:
    """Return `step(params, stats, batch) -> sums` over examples, weighted by `batch['weight']`, which is 0 for padding.

    With `members` the model is an ensemble: each metric has a sum 'member_0/loss' and so on for each member and, if the
    task can combine their outputs, 'ensemble/loss' for their common prediction.
    """

    def step(params: PyTree, stats: PyTree, batch: Batch) -> Sums:
        outputs, _ = model.apply(params, stats, task.inputs(batch), train=False, keys=None)
        counts = batch["weight"]
        own = weights_of(task, batch, len(counts))
        weights = counts if own is None else counts * own
        named = {"": outputs} if members is None else _of_members(task, outputs, members)
        sums = {
            f"{prefix}{name}": (values * weights).sum()
            for prefix, of in named.items()
            for name, values in measured(task, of, batch, len(counts)).items()
        }
        return {**sums, WEIGHT: weights.sum(), EXAMPLES: counts.sum()}

    everywhere = replicated(mesh)
    return jax.jit(
        step,
        in_shardings=(everywhere, everywhere, split_by_example(mesh)),
        out_shardings=everywhere,
        compiler_options=inference_options(platform_of(mesh)),
    )


def _of_members(task: Task, outputs: PyTree, members: int) -> dict[str, PyTree]:
    """The outputs of each member, and of all together, by the prefix of their metrics."""
    each = {f"member_{index}/": jax.tree.map(lambda leaf, at=index: leaf[at], outputs) for index in range(members)}
    together = task.combined(outputs)
    return each if together is None else {**each, f"{ENSEMBLE}/": together}


def evaluate(
    step: EvalStepFn,
    task: Task,
    params: PyTree,
    stats: PyTree,
    batches: Iterable[Batch],
    across: Across = lambda sums: sums,
) -> Values:
    """Return the metrics that `task` reports, means over all examples of `batches`, and the number of `examples`.

    Of an ensemble also those of each member and of their common prediction; the plain names are means over members.
    `across` sums over processes that the mesh does not span, as under MPI.
    """
    totals: defaultdict[str, float] = defaultdict(float)
    pending: deque[Sums] = deque()
    for batch in batches:
        pending.append(step(params, stats, batch))
        if len(pending) > _IN_FLIGHT:
            _add(totals, pending.popleft())
    for sums in pending:
        _add(totals, sums)
    found = across(dict(totals))
    weight, examples = found.pop(WEIGHT), found.pop(EXAMPLES)
    if weight == 0:
        raise InputError(f"task: {type(task).__name__}.weights is 0 for all {examples:g} examples: nothing is measured")
    return {**_reported(task, {name: total / weight for name, total in found.items()}), EXAMPLES: int(examples)}


def _add(totals: defaultdict[str, float], sums: Sums) -> None:
    for name, value in jax.device_get(sums).items():
        totals[name] += float(value)


def _reported(task: Task, means: Mapping[str, float]) -> Values:
    """What the task shows of the means; of members, for each by itself, and their means under the plain names."""
    groups: dict[str, dict[str, float]] = {}
    for name, mean in means.items():
        prefix, _, metric = name.partition("/") if name.startswith(OF_MEMBERS) else ("", "", name)
        groups.setdefault(prefix, {})[metric] = mean
    shown = {prefix: task.reported(group) for prefix, group in groups.items()}
    members = [group for prefix, group in shown.items() if prefix not in ("", ENSEMBLE)]
    plain = shown.pop("", {})
    for name in members[0] if members else ():
        plain[name] = sum(member[name] for member in members) / len(members)
    return plain | {f"{prefix}/{name}": value for prefix, group in shown.items() for name, value in group.items()}
