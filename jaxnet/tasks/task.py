"""What a run minimizes, measures and reports: a `Task`, a value beside the model.

A task of your own is a small class in your config:

    class Ratings(Task):
        def inputs(self, batch):
            return batch["features"]

        def measures(self, outputs, batch):
            error = outputs[:, 0] - batch["rating"]
            return {"loss": error**2, "mean_absolute_error": abs(error)}

Everything is said of single examples: `measures` gives one value an example. So the trainer can take the mean over any
number of devices, processes and microbatches, and an evaluation can count every example once.
"""

import functools
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from jaxnet.errors import InputError, shown, users_code
from jaxnet.models import Model, shapes_text

PyTree = Any
Batch = dict[str, Any]  # arrays whose first dim is the example; 'id' is the row in the data set
Measures = dict[str, jax.Array]
Values = dict[str, float]

WEIGHT = "weight"
"""The metric in which a loss with weights gives their mean; the step divides by it, and it is not reported."""


class LossOutput(NamedTuple):
    """What a loss function returns beside the loss: new running averages, and metrics, means over the examples."""

    stats: PyTree
    metrics: dict[str, jax.Array]


class LossFn(Protocol):
    """`loss(params, stats, batch, keys) -> (loss, LossOutput)`: a mean over the examples of `batch`.

    `keys` holds one random key per example. Examples must not influence each other, except through BatchNorm and within
    the pairs of `Mixing`: then the mean of the devices' losses is the loss of the global batch.

    Where examples have weights, loss and metrics are means of weight times value, and the metric `WEIGHT` is the mean
    weight: the step divides by its mean over all devices and microbatches, so that every unit of weight counts alike
    wherever it lies.
    """

    def __call__(
        self, params: PyTree, stats: PyTree, batch: Batch, keys: jax.Array, /
    ) -> tuple[jax.Array, LossOutput]: ...


# ---- What a task answers, checked -----------------------------------------------------------------------


def _as_it_is(called: str, made: Any) -> Any:
    del called
    return made


def _numbers(called: str, made: Any) -> Values:
    """Numbers by name, Python's own, as they are written to a log."""
    if not isinstance(made, dict):
        raise InputError(f"{called} gave a {type(made).__name__}: wanted numbers by name")
    for name, value in made.items():
        if not isinstance(name, str):
            raise InputError(f"{called} gave the name {shown(name)}: wanted text")
        if not isinstance(value, int | float | np.number | np.ndarray | jax.Array) or np.size(value) != 1:
            raise InputError(f"{called} gave {name}={shown(value)}: wanted a number")
    return {name: value if isinstance(value, int | float) else np.asarray(value).item() for name, value in made.items()}


def _sizes(called: str, made: Any) -> dict[str, int]:
    """Whole numbers by name."""
    for name, value in _numbers(called, made).items():
        if not isinstance(value, int | np.integer) or value < 0:
            raise InputError(f"{called} gave {name}={shown(value)}: wanted a whole number")
    return made


def _batch(called: str, made: Any) -> Batch:
    if not isinstance(made, dict):
        raise InputError(f"{called} gave a {type(made).__name__}: wanted a batch, a dict of arrays")
    return made


def _function(called: str, made: Any) -> LossFn:
    if not callable(made):
        raise InputError(f"{called} gave a {type(made).__name__}: wanted a function (params, stats, batch, keys)")
    return made


def _lines(called: str, made: Any) -> Iterator[str]:
    """The lines of a generator, which runs as they are taken."""
    with users_code(called):
        return iter([str(line) for line in made])


# By the name of a method: what it gives is checked, and whatever it raises names it.
_ASKED: dict[str, Callable[[str, Any], Any]] = {
    **dict.fromkeys(("inputs", "measures", "weights", "asked", "asked_shapes", "predicted", "combined"), _as_it_is),
    **dict.fromkeys(("check_data", "check_model", "check_batch"), _as_it_is),
    "augmented": _batch,
    "reported": _numbers,
    "units": _sizes,
    "warnings": _lines,
    "loss": _function,
}


def _guarded(name: str, method: Callable[..., Any], check: Callable[[str, Any], Any]) -> Callable[..., Any]:
    """A method of a task whose mistakes are InputErrors that name it and the arrays that it was called with."""

    @functools.wraps(method)
    def guarded(self: Any, *given: Any, **named: Any) -> Any:
        called = f"task: {type(self).__name__}.{name}"
        try:
            made = method(self, *given, **named)
        except (InputError, KeyboardInterrupt):
            raise
        except BaseException:
            with users_code(f"{called}{_arrays(given)}"):
                raise
        return check(called, made)

    return guarded


def _arrays(given: tuple[Any, ...]) -> str:
    """The arrays and shapes that a method is called with, in words."""
    parts = [part for part in given if isinstance(part, dict | jax.Array | jax.ShapeDtypeStruct) or part is None]
    return f" of {' and of '.join(shapes_text(part) for part in parts)}" if parts else ""


# ---- The task -------------------------------------------------------------------------------------------


class Task:
    """What a run minimizes, measures and reports. A subclass says `inputs` and `measures`; the rest has defaults.

    The fields of a frozen dataclass are keys of the config: `task.label_smoothing=0.1`.

    Attributes:
        best: the metric by which the best state of a run is chosen.
        best_mode: 'min' if less of it is better, 'max' if more is.
        needs: names of the arrays that it reads of a batch, so that a data set without them is refused.
        resolutions: of images that grow during a run; see `ImageClassification`.
    """

    best: ClassVar[str] = "loss"
    best_mode: ClassVar[Literal["min", "max"]] = "min"
    needs: ClassVar[tuple[str, ...]] = ()
    resolutions: tuple[tuple[float, int], ...] = ()

    def __init_subclass__(cls, **options: Any) -> None:
        """What fails in a method of a task names it, wherever it is called."""
        super().__init_subclass__(**options)
        for name, check in _ASKED.items():
            if isinstance(method := vars(cls).get(name), types.FunctionType):
                setattr(cls, name, _guarded(name, method, check))

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    @property
    def group(self) -> int:
        """How many neighbours in a batch are taken together; each device gets a multiple of it."""
        return 1

    # ---- What a task has to say ----------------------------------------------------------------------------

    def inputs(self, batch: Batch) -> PyTree:
        """What the model is called with: an array, a tuple of positional arguments, or a dict of named ones."""
        raise NotImplementedError(f"{type(self).__name__} has no inputs(self, batch): what the model is called with")

    def measures(self, outputs: PyTree, batch: Batch) -> Measures:
        """One value an example, [batch], for each metric; the mean of 'loss' is minimized."""
        raise NotImplementedError(f"{type(self).__name__} has no measures(self, outputs, batch): values [batch]")

    # ---- What it may say -----------------------------------------------------------------------------------

    def weights(self, batch: Batch) -> jax.Array | None:
        """How much each example counts, [batch], such as its number of tokens; None: all the same."""
        del batch
        return None

    def augmented(self, batch: Batch, keys: jax.Array) -> Batch:
        """A training batch with random changes, by one key an example, [batch]."""
        del keys
        return batch

    def reported(self, means: Mapping[str, float]) -> Values:
        """The metrics that are shown, of means over examples: the place for those that are no means themselves."""
        return dict(means)

    def units(self, shapes: Mapping[str, Any]) -> dict[str, int]:
        """What an example consists of, such as {'tokens': 256}, to report as `tokens_per_second`; by its shapes."""
        del shapes
        return {}

    def asked(self, batch: Batch) -> PyTree:
        """What a trained model is called with to predict what is not known yet; by default the `inputs`."""
        return self.inputs(batch)

    def asked_shapes(self, example: Mapping[str, Any]) -> dict[str, Any]:
        """The shapes of what is asked about, of an example of these: without a label, which is to be predicted.

        >>> from jaxnet.tasks import Regression
        >>> row, number = jax.ShapeDtypeStruct((3,), "float32"), jax.ShapeDtypeStruct((), "float32")
        >>> sorted(Regression().asked_shapes({"features": row, "target": number}))
        ['features']
        """
        read: set[str] = set()

        class Watched(dict[str, Any]):
            def __getitem__(self, name: str) -> Any:
                read.add(name)
                return super().__getitem__(name)

            def get(self, name: str, default: Any = None) -> Any:
                read.update({name} & self.keys())
                return super().get(name, default)

            def items(self) -> Any:
                read.update(self)
                return super().items()

            def values(self) -> Any:
                read.update(self)
                return super().values()

        batch = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((1, *leaf.shape), leaf.dtype), dict(example))
        jax.eval_shape(lambda batch: self.asked(Watched(batch)), batch)
        return {name: example[name] for name in example if name in read} or dict(example)

    def predicted(self, outputs: PyTree) -> PyTree:
        """What is said of the examples then, such as probabilities, of what the model gives."""
        return outputs

    def combined(self, outputs: PyTree) -> PyTree | None:
        """What an ensemble gives, of outputs that lead with [members]; None: its members have no common prediction."""
        del outputs
        return None

    def check_data(self, source: Any) -> None:
        """Raise InputError if this task cannot be learned from this data set."""

    def check_model(self, model: Any, outputs: PyTree, source: Any) -> None:
        """Raise InputError if it cannot be learned by this model.

        `model` is the config's; `outputs` are the shapes of what it gives for one example.
        """

    def check_batch(self, batch: Mapping[str, Any], outputs: PyTree, split: str) -> None:
        """Raise InputError if a batch of a split, in NumPy arrays, is not to be learned; `outputs` as above."""

    def warnings(self, source: Any) -> Iterator[str]:
        """A line for each thing that was asked for and does nothing with this data set."""
        del source
        return iter(())

    # ---- What the trainer calls ----------------------------------------------------------------------------

    def loss(self, model: Model) -> LossFn:
        """The loss that training minimizes."""

        def loss_fn(params: PyTree, stats: PyTree, batch: Batch, keys: jax.Array) -> tuple[jax.Array, LossOutput]:
            batch = self.augmented(batch, keys)
            outputs, stats = model.apply(params, stats, self.inputs(batch), train=True, keys=keys)
            means = weighted_means(measured(self, outputs, batch, len(keys)), weights_of(self, batch, len(keys)))
            return means["loss"], LossOutput(stats, means)

        return loss_fn


def metric_text(name: str, value: float) -> str:
    """A metric's value as it is printed; an accuracy in percent.

    >>> metric_text("accuracy", 0.25), metric_text("loss", 0.5), metric_text("loss", 6e31)
    ('25.00%', '0.5000', '6.0000e+31')
    """
    if name.endswith("accuracy"):
        return f"{value:.2%}"
    return f"{value:.4f}" if abs(value) < 1e7 else f"{value:.4e}"


def measured(task: Task, outputs: PyTree, batch: Batch, examples: int) -> Measures:
    """What a task measures of a batch of so many examples; InputError where that is not one value an example."""
    called, wanted = f"task: {type(task).__name__}.measures", f"one value an example, [{examples}]"
    found = task.measures(outputs, batch)
    if not isinstance(found, dict) or "loss" not in found:
        raise InputError(f"{called} gave no 'loss': wanted a dict with 'loss', {wanted}")
    for name, values in found.items():
        if not isinstance(name, str):
            raise InputError(f"{called} gave the name {shown(name)}: wanted text")
        if name == WEIGHT:
            raise InputError(f"{called} gave {WEIGHT!r}, the name of the examples' weights: give it another name")
        kinds = (jnp.floating,) if name == "loss" else (jnp.floating, jnp.integer, jnp.bool_)
        _check_values(f"{called} gave {name}", values, examples, kinds, wanted)
    return found


def weights_of(task: Task, batch: Batch, examples: int) -> jax.Array | None:
    """How much each of so many examples counts, float32 [examples]; None: all the same."""
    found = task.weights(batch)
    if found is None:
        return None
    kinds = (jnp.floating, jnp.integer, jnp.bool_)
    wanted = f"one value an example, [{examples}], or None"
    _check_values(f"task: {type(task).__name__}.weights gave", found, examples, kinds, wanted)
    return found.astype(jnp.float32)


def _check_values(said: str, values: Any, examples: int, kinds: tuple[Any, ...], wanted: str) -> None:
    shape, dtype = getattr(values, "shape", None), getattr(values, "dtype", None)
    if shape is None or dtype is None:
        raise InputError(f"{said} {shown(values)}: wanted {wanted}")
    if shape != (examples,):
        raise InputError(f"{said} of the shape {list(shape)}: wanted {wanted}")
    if not any(jnp.issubdtype(dtype, kind) for kind in kinds):
        cure = ", a floating-point number, which has a gradient" if kinds == (jnp.floating,) else ", a real number"
        raise InputError(f"{said} as {dtype}: wanted {wanted}{cure}")


def in_float32(outputs: jax.Array) -> jax.Array:
    """What a model gives, in float32 at least: a loss that is computed in 16 bits is rounded to steps of a percent.

    >>> in_float32(jnp.ones(2, jnp.bfloat16)).dtype
    dtype('float32')
    """
    return outputs.astype(jnp.promote_types(outputs.dtype, jnp.float32))


def weighted_means(measures: Measures, weights: jax.Array | None) -> dict[str, jax.Array]:
    """The mean of each measure times the weights, and under `WEIGHT` the mean weight; see `LossFn`.

    >>> weighted_means({"loss": jnp.array([1.0, 3.0])}, jnp.array([3.0, 1.0]))
    {'loss': Array(3., dtype=float32), 'weight': Array(2., dtype=float32)}
    """
    if weights is None:
        return {name: values.mean() for name, values in measures.items()}
    return {name: (values * weights).mean() for name, values in measures.items()} | {WEIGHT: weights.mean()}
