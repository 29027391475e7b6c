"""Parts of a config that are wrong in themselves: models, tasks, data sets, optimizers, strategies, whole files.

Each must be refused by one line that names what is wrong, with status 2: before anything is written where it can be
known by then, and else in the middle of a run.
"""

from typing import NamedTuple

_FILE = """\
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from dataclasses import dataclass

import jaxnet
from jaxnet import Classification, Config, ImageClassification, Log, Optimizer, Task
from jaxnet.data import Arrays, ArraySource, Items, Synthetic
from jaxnet.models import CNN, Model

{code}

def get_config():
    return Config(
        model={model},
        data={data},
        task={task},
        optimizer={optimizer},
        strategy={strategy},
        epochs=1,
        batch_size=16,
        eval_batch_size=16,
        log=Log(tensorboard=False),
    )
"""
_GOOD = {
    "model": "CNN(2, widths=(2,), hidden=4)",
    "data": "Synthetic((8, 8, 1), 2, 32, 16)",
    "task": "ImageClassification()",
    "optimizer": "Optimizer()",
    "strategy": "'hierarchical'",
}


class Wrong(NamedTuple):
    """A part that is wrong.

    Attributes:
        code: what the config file defines.
        fields: what it sets, as Python.
        words: what the message must say.
        whole: the whole file, in place of these.
    """

    code: str = ""
    fields: dict[str, str] = {}  # noqa: RUF012  it is never changed
    words: tuple[str, ...] = ()
    whole: str | bytes | None = None

    def file(self) -> bytes:
        """The config file."""
        if self.whole is not None:
            return self.whole if isinstance(self.whole, bytes) else self.whole.encode()
        return _FILE.format(code=self.code, **{**_GOOD, **self.fields}).encode()


def _model(body: str, *words: str, signature: str = "self, images, train") -> Wrong:
    """A Linen module whose `__call__` is this."""
    lines = "\n        ".join(body.strip().splitlines())
    code = f"class Mine(nn.Module):\n    @nn.compact\n    def __call__({signature}):\n        {lines}\n"
    return Wrong(code, {"model": "Mine()"}, words)


_FLAT = "x = images.reshape(images.shape[0], -1)\n"
_LOGITS = _FLAT + "x = nn.Dense(2)(x)\n"

MODELS = {
    "no parameters": _model(_FLAT + "return x[:, :2]", "no parameters"),
    "an output that depends on no parameter": _model(_LOGITS + "return jnp.zeros((x.shape[0], 2))"),
    "a tuple": _model(_LOGITS + "return x, x", "tuple"),
    "a dict": _model(_LOGITS + "return {'logits': x}", "dict"),
    "nothing": _model(_LOGITS + "return None", "NoneType"),
    "text": _model(_LOGITS + "return 'logits'"),
    "a number": _model(_LOGITS + "return x.sum()", "for 2 examples"),
    "a Python number": _model(_LOGITS + "return 3.0"),
    "integer logits": _model(_LOGITS + "return x.astype(jnp.int32)", "int32"),
    "bool logits": _model(_LOGITS + "return x > 0", "bool"),
    "complex logits": _model(_LOGITS + "return x.astype(jnp.complex64)", "complex64"),
    "random keys as logits": _model(_LOGITS + "return jax.random.split(jax.random.key(0), (x.shape[0], 2))"),
    "NumPy logits": _model(_LOGITS + "return np.asarray(x)", "Mine"),
    "logits of one dim": _model(_LOGITS + "return x[:, 0]"),
    "logits of three dims": _model(_LOGITS + "return x[:, None]"),
    "logits of one example": _model(_LOGITS + "return x[:1]"),
    "logits of another batch": _model(_LOGITS + "return jnp.concatenate([x, x])"),
    "logits of the whole batch": _model(_LOGITS + "return x.sum(0, keepdims=True)"),
    "logits that are the transpose": _model(_LOGITS + "return x.T"),
    "no classes": _model(_FLAT + "return nn.Dense(0)(x)"),
    "fewer classes": _model(_FLAT + "return nn.Dense(1)(x)"),
    "integer parameters": _model(
        _LOGITS + "n = self.param('n', lambda key: jnp.ones((), jnp.int32))\nreturn x * n", "int32", "n"
    ),
    "complex parameters": _model(
        _LOGITS + "n = self.param('n', lambda key: jnp.ones((), jnp.complex64))\nreturn (x * n).real", "complex64", "n"
    ),
    "a random key as a parameter": _model(_LOGITS + "n = self.param('n', lambda key: key)\nreturn x", "n"),
    "text as a parameter": _model(_LOGITS + "n = self.param('n', lambda key: 'text')\nreturn x", "n"),
    "a Python number as a parameter": _model(_LOGITS + "n = self.param('n', lambda key: 1.0)\nreturn x * n"),
    "empty parameters": _model(_LOGITS + "n = self.param('n', lambda key: jnp.ones((0, 3)))\nreturn x + n.sum()"),
    "parameters that depend on the batch": _model(
        _LOGITS + "n = self.param('n', nn.initializers.ones, (x.shape[0], 2))\nreturn x * n", "ScopeParamShapeError"
    ),
    "running averages that depend on the batch": _model(
        _LOGITS + "n = self.variable('stats', 'n', jnp.zeros, (x.shape[0],))\nn.value = x[:, 0]\nreturn x"
    ),
    "running averages that change shape": _model(
        _LOGITS + "n = self.variable('stats', 'n', jnp.zeros, (2,))\nif train: n.value = jnp.zeros(3)\nreturn x"
    ),
    "running averages that change dtype": _model(
        _LOGITS + "n = self.variable('stats', 'n', jnp.zeros, (2,))\nif train: n.value = jnp.zeros(2, int)\nreturn x"
    ),
    "running averages that are made later": _model(
        _LOGITS + "if train: self.variable('stats', 'n', jnp.zeros, (2,)).value = jnp.ones(2)\nreturn x"
    ),
    "parameters that are made later": _model(_LOGITS + "if train: x = nn.Dense(2)(x)\nreturn x"),
    "an exception": _model("raise ValueError('first\\nsecond')", "Mine", "ValueError: first second"),
    "an exception in training": _model(_LOGITS + "assert not train, 'only now'\nreturn x", "Mine", "only now"),
    "an exception in evaluation": _model(_LOGITS + "if not train: 1 / 0\nreturn x", "Mine", "ZeroDivisionError"),
    "an exception of its own kind": _model("class Own(BaseException): pass\nraise Own('why')", "Mine", "Own: why"),
    "an exception that cannot be shown": _model(
        "class Own(Exception):\n    def __str__(self): raise ValueError\nraise Own", "Mine", "Own"
    ),
    "an exit": _model("raise SystemExit(0)", "Mine", "SystemExit"),
    "a generator's exit": _model("raise GeneratorExit", "Mine", "GeneratorExit"),
    "no end of calls": _model("return self(images, train)", "Mine", "RecursionError"),
    "a generator": _model(_LOGITS + "yield x", "no parameters"),
    "a branch on a value": _model(_LOGITS + "return x if x.sum() > 0 else -x", "Mine"),
    "a callback without a gradient": _model(
        _LOGITS + "return jax.pure_callback(np.asarray, jax.ShapeDtypeStruct(x.shape, x.dtype), x)"
    ),
    "two arguments more": _model("return images", "temperature", signature="self, images, temperature, train"),
    "no arguments": _model("return 1", "Mine", signature="self"),
    "a coroutine": Wrong(
        "class Mine(nn.Module):\n    async def __call__(self, images): return images",
        {"model": "Mine()"},
        ("no parameters",),
    ),
    "a collective over no axis": _model(_LOGITS + "return jax.lax.psum(x, 'nothing')", "Mine"),
    "a class": Wrong("", {"model": "CNN"}, ("model is the class CNN",)),
    "a lambda": Wrong("", {"model": "lambda x: x"}, ("model is of type function",)),
    "none": Wrong("", {"model": "None"}, ("model is of type NoneType",)),
    "a setup that fails": Wrong(
        "class Mine(nn.Module):\n    def setup(self): 1 / 0\n    def __call__(self, x): return x",
        {"model": "Mine()"},
        ("Mine", "ZeroDivisionError"),
    ),
    "a failing repr": Wrong(
        "class Odd:\n    def __repr__(self): 1 / 0\n"
        "class Mine(nn.Module):\n    odd: object = Odd()\n    @nn.compact\n    def __call__(self, images):\n"
        "        return nn.Dense(2)(images.reshape(images.shape[0], -1))",
        {"model": "Mine()"},
        ("ZeroDivisionError",),
    ),
    "a failing repr of its own": Wrong(
        "class Mine(nn.Module):\n    @nn.compact\n    def __call__(self, images): return images.sum() > 'x'\n"
        "    def __repr__(self): 1 / 0",
        {"model": "Mine()"},
        ("Mine",),
    ),
    "an init that gives nothing": Wrong(
        "", {"model": "Model(lambda key, x: None, lambda p, s, x, train, keys: (x, s))"}, ("init",)
    ),
    "an init that gives other things": Wrong(
        "", {"model": "Model(lambda key, x: ({}, {}, {}), lambda p, s, x, train, keys: (x, s))"}, ("init",)
    ),
    "an init that takes nothing": Wrong("", {"model": "Model(lambda: 1, lambda: 1)"}, ("init",)),
    "an apply that gives one thing": Wrong(
        "from jaxnet.models import Variables\n"
        "init = lambda key, x: Variables({'w': jnp.ones((64, 2))}, {})\n"
        "apply = lambda p, s, x, train, keys: x.reshape(len(x), -1) @ p['w']",
        {"model": "Model(init, apply)"},
        ("apply",),
    ),
    "functions that are none": Wrong("", {"model": "Model(1, 2)"}, ("init",)),
}


def _task(body: str, *words: str) -> Wrong:
    return Wrong(f"class Mine(Task):\n    needs = ()\n    {body}\n", {"task": "Mine()"}, words)


_INPUTS = "def inputs(self, batch): return batch['image'] / 255.0\n    "
_LOSS = "optax.softmax_cross_entropy_with_integer_labels(outputs, batch['label'])"
_MEASURES = f"def measures(self, outputs, batch): return {{'loss': {_LOSS}}}\n    "


def _measures(body: str, *words: str) -> Wrong:
    return _task(_INPUTS + f"def measures(self, outputs, batch): {body}", *words)


TASKS = {
    "a class": Wrong("", {"task": "ImageClassification"}, ("task is the class ImageClassification",)),
    "none": Wrong("", {"task": "None"}, ("task is",)),
    "no inputs": _task("pass", "inputs"),
    "inputs that fail": _task("def inputs(self, batch): return batch['pictures']", "inputs", "pictures"),
    "inputs that are none": _task("def inputs(self, batch): return None"),
    "inputs that are text": _task("def inputs(self, batch): return 'x'"),
    "no measures": _task(_INPUTS, "measures"),
    "measures that fail": _measures("return 1 / 0", "measures", "ZeroDivisionError"),
    "measures that raise no Exception": _measures("raise SystemExit(3)", "measures", "SystemExit"),
    "measures that are none": _measures("pass", "measures"),
    "no loss": _measures("return {'error': outputs.sum(-1)}", "measures", "loss"),
    "a loss of the batch": _measures(f"return {{'loss': {_LOSS}.mean()}}", "measures", "loss"),
    "a loss for each class": _measures("return {'loss': outputs}", "measures", "loss"),
    "an integer loss": _measures(f"return {{'loss': {_LOSS}.astype(int)}}", "int32"),
    "a bool loss": _measures(f"return {{'loss': {_LOSS} > 0}}", "bool"),
    "a complex loss": _measures(f"return {{'loss': {_LOSS} * 1j}}", "complex64"),
    "a complex metric": _measures(f"return {{'loss': {_LOSS}, 'other': {_LOSS} * 1j}}", "complex64"),
    "a metric of text": _measures(f"return {{'loss': {_LOSS}, 'other': 'text'}}", "other"),
    "a metric whose name is none": _measures(f"return {{'loss': {_LOSS}, 3: {_LOSS}}}", "3"),
    "a metric with the name of a figure": _measures(f"return {{'loss': {_LOSS}, 'step': {_LOSS}}}", "step"),
    "a metric with a strange name": _measures(f"return {{'loss': {_LOSS}, 'a/../b\\n': {_LOSS}}}"),
    "a loss that changes its shape": _measures(f"return {{'loss': {_LOSS}[: max(1, len(outputs) // 2)]}}", "loss"),
    "a loss without a gradient": _measures(f"return {{'loss': jax.lax.stop_gradient({_LOSS})}}"),
    "a loss that is nan": _measures(f"return {{'loss': {_LOSS} * jnp.nan}}"),
    "weights that fail": _task(_INPUTS + _MEASURES + "def weights(self, batch): 1 / 0", "weights", "ZeroDivisionError"),
    "weights of another shape": _task(_INPUTS + _MEASURES + "def weights(self, batch): return jnp.ones(3)", "weights"),
    "weights that are a number": _task(_INPUTS + _MEASURES + "def weights(self, batch): return 2.0", "weights"),
    "complex weights": _task(
        _INPUTS + _MEASURES + "def weights(self, batch): return batch['label'] * 1j", "weights", "complex64"
    ),
    "weights that are all 0": _task(_INPUTS + _MEASURES + "def weights(self, batch): return batch['label'] * 0.0"),
    "augmentation that fails": _task(
        _INPUTS + _MEASURES + "def augmented(self, batch, keys): 1 / 0", "augmented", "ZeroDivisionError"
    ),
    "augmentation that gives nothing": _task(
        _INPUTS + _MEASURES + "def augmented(self, batch, keys): pass", "augmented"
    ),
    "augmentation to another batch": _task(
        _INPUTS + _MEASURES + "def augmented(self, batch, keys): return {k: v[:1] for k, v in batch.items()}"
    ),
    "a report that fails": _task(_INPUTS + _MEASURES + "def reported(self, means): 1 / 0", "reported"),
    "a report of nothing": _task(_INPUTS + _MEASURES + "def reported(self, means): pass", "reported"),
    "a report of text": _task(_INPUTS + _MEASURES + "def reported(self, means): return {'loss': 'low'}", "reported"),
    "a report of a list": _task(_INPUTS + _MEASURES + "def reported(self, means): return {'loss': [1]}", "reported"),
    "a report that fails later": _task(
        _INPUTS + _MEASURES + "def reported(self, means): return {'loss': 1 / (means['loss'] == 1)}", "reported"
    ),
    "a best that is not there": _task("best = 'f1'\n    " + _INPUTS + _MEASURES, "best", "f1"),
    "a best mode": _task("best_mode = 'largest'\n    " + _INPUTS + _MEASURES, "best_mode", "largest"),
    "a group of 0": _task("group = 0\n    " + _INPUTS + _MEASURES, "group"),
    "a group of text": _task("group = 'two'\n    " + _INPUTS + _MEASURES, "group"),
    "units that fail": _task(_INPUTS + _MEASURES + "def units(self, shapes): 1 / 0", "units"),
    "units of text": _task(_INPUTS + _MEASURES + "def units(self, shapes): return {'tokens': 'many'}", "units"),
    "units of nothing": _task(_INPUTS + _MEASURES + "def units(self, shapes): pass", "units"),
    "needs that are text": _task("needs = 3\n    " + _INPUTS + _MEASURES, "needs"),
    "asked that fails": _task(_INPUTS + _MEASURES + "def asked(self, batch): 1 / 0"),
    "a check that fails": _task(_INPUTS + _MEASURES + "def check_data(self, source): 1 / 0", "check_data"),
    "a check of the model that fails": _task(_INPUTS + _MEASURES + "def check_model(self, *a): 1 / 0", "check_model"),
    "warnings that fail": _task(_INPUTS + _MEASURES + "def warnings(self, source): 1 / 0", "warnings"),
    "warnings of nothing": _task(_INPUTS + _MEASURES + "def warnings(self, source): pass", "warnings"),
    "a loss of its own that fails": _task(_INPUTS + _MEASURES + "def loss(self, model): 1 / 0", "loss"),
    "a loss of its own that is none": _task(_INPUTS + _MEASURES + "def loss(self, model): pass", "loss"),
    "a loss of its own with one result": _task(
        _INPUTS + _MEASURES + "def loss(self, model): return lambda p, s, b, k: 0.0", "loss"
    ),
    "a loss of its own that is no scalar": _task(
        _INPUTS + _MEASURES + "def loss(self, model):\n"
        "        from jaxnet.tasks.task import LossOutput\n"
        "        return lambda p, s, b, k: (jnp.ones(3), LossOutput(s, {'loss': 1.0}))",
        "loss",
    ),
    "resolutions that are none": _task("resolutions = 'big'\n    " + _INPUTS + _MEASURES, "resolutions"),
    "a failing equality": Wrong(
        "@dataclass(frozen=True, eq=False)\nclass Mine(ImageClassification):\n"
        "    def __eq__(self, other): 1 / 0\n    def __hash__(self): 1 / 0\n    def __bool__(self): 1 / 0",
        {"task": "Mine()"},
    ),
    "a failing repr": Wrong(
        "class Mine(ImageClassification):\n    def __repr__(self): 1 / 0\n    def inputs(self, batch): 1 / 0",
        {"task": "Mine()"},
        ("inputs",),
    ),
    "a failing attribute": Wrong(
        "class Mine(ImageClassification):\n    @property\n    def group(self): 1 / 0", {"task": "Mine()"}, ("group",)
    ),
}


def _data(body: str, *words: str) -> Wrong:
    """A data set whose `load` is this, with arrays at hand."""
    lines = "\n        ".join(body.strip().splitlines())
    code = (
        "image, label = np.zeros((32, 8, 8, 1), np.uint8), (np.arange(32) % 2).astype(np.int32)\n"
        f"class Mine:\n    def load(self, split):\n        {lines}\n"
    )
    return Wrong(code, {"data": "Mine()"}, words)


def _source(body: str, *words: str, about: str = "num_examples, image_shape, num_classes = 32, (8, 8, 1), 2") -> Wrong:
    """A source whose `rows` is this."""
    lines = "\n                ".join(body.strip().splitlines())
    return _data(
        f"class Rows:\n    {about}\n    count = 0\n    def rows(self, indices):\n"
        f"        indices, n = np.asarray(indices), len(indices)\n        good = {{'image': image[indices], 'label': label[indices]}}\n"
        f"        {lines.replace(chr(10) + ' ' * 16, chr(10) + ' ' * 8)}\nreturn Rows()",
        *words,
    )


def _counts(number: str, *words: str) -> Wrong:
    return _source("return good", *words, about=f"num_examples, image_shape, num_classes = {number}, (8, 8, 1), 2")


DATA = {
    "a class": Wrong("", {"data": "Synthetic"}, ("data is the class Synthetic",)),
    "none": Wrong("", {"data": "None"}, ("data is of type NoneType",)),
    "a load that fails": _data("return 1 / 0", "ZeroDivisionError"),
    "a load that exits": _data("raise SystemExit(0)", "SystemExit"),
    "a load that raises something that cannot be shown": _data(
        "class Own(Exception):\n    def __str__(self): raise ValueError\nraise Own", "Own"
    ),
    "a load that gives nothing": _data("pass", "NoneType"),
    "a load that gives arrays": _data("return {'image': image, 'label': label}", "dict"),
    "a load without a split": Wrong("class Mine:\n    def load(self): pass", {"data": "Mine()"}, ("load",)),
    "a test split that fails": _data(
        "if split == 'test': 1 / 0\nreturn ArraySource(image, label, 2)", "test", "ZeroDivisionError"
    ),
    "a load that calls itself": _data("return self.load(split)", "RecursionError"),
    "data that hold themselves": Wrong(
        "class Mine(dict):\n    def load(self, split): return Items(train=[self], test=[self]).load(split)\n"
        "mine = Mine()\nmine['features'] = mine",
        {"data": "mine", "task": "Classification()"},
        ("data",),
    ),
    "a list that holds itself": Wrong(
        "loop = []\nloop.append(loop)",
        {"data": "Items(train=[{'features': loop}], test=[{'features': loop}])", "task": "Classification()"},
        ("data",),
    ),
    "a data class that holds itself": Wrong(
        "@dataclass\nclass Mine:\n    inner: object = None\n    def load(self, split): return Synthetic().load(split)\n"
        "mine = Mine()\nmine.inner = mine",
        {"data": "mine"},
        ("itself",),
    ),
    "a failing repr": Wrong(
        "class Odd:\n    def __repr__(self): 1 / 0\n@dataclass(frozen=True)\nclass Mine(Synthetic):\n    odd: object = Odd()",
        {"data": "Mine((8, 8, 1), 2, 32, 16)"},
        ("ZeroDivisionError",),
    ),
    "a failing repr of its own": Wrong(
        "class Mine:\n    def __repr__(self): 1 / 0\n    def load(self, split): return Synthetic((8, 8, 1), 2).load(split)",
        {"data": "Mine()"},
        ("data",),
    ),
    "a failing equality": Wrong(
        "@dataclass(frozen=True, eq=False)\nclass Mine(Synthetic):\n"
        "    def __eq__(self, other): 1 / 0\n    def __hash__(self): 1 / 0\n    def __bool__(self): 1 / 0",
        {"data": "Mine((8, 8, 1), 2, 32, 16)"},
    ),
    "fields that fail": Wrong(
        "class Mine:\n    def __getattr__(self, name): 1 / 0", {"data": "Mine()"}, ("data", "ZeroDivisionError")
    ),
    "no examples": _counts("0", "num_examples", "0"),
    "fewer than no examples": _counts("-3", "num_examples", "-3"),
    "half an example": _counts("0.5", "num_examples", "0.5"),
    "text for a number of examples": _counts("'many'", "num_examples", "many"),
    "no number of examples": _counts("None", "num_examples", "None"),
    "nan examples": _counts("float('nan')", "num_examples", "nan"),
    "a number of examples that is an array": _counts("np.ones(3)", "num_examples"),
    "more examples than there are": _counts("1000", "rows", "IndexError"),
    "more examples than can be counted": _counts("10**12", "num_examples"),
    "rows that fail": _source("1 / 0", "rows", "ZeroDivisionError"),
    "rows that exit": _source("raise SystemExit(0)", "rows", "SystemExit"),
    "rows that fail later": _source(
        "Rows.count += 1\nif Rows.count > 2: 1 / 0\nreturn good", "rows", "ZeroDivisionError"
    ),
    "rows that are none": _source("pass", "rows"),
    "rows that are a list": _source("return [good]", "rows", "list"),
    "rows without a label": _source("return {'image': image[indices]}", "rows", "label"),
    "rows with more": _source("return good | {'other': label[indices]}", "rows", "other"),
    "rows of other names each time": _source(
        "Rows.count += 1\nreturn good | {f'x{Rows.count}': label[indices]}", "rows", "x"
    ),
    "rows of another length": _source("return {k: v[:1] for k, v in good.items()}", "rows"),
    "rows of another shape": _source("return good | {'image': np.zeros((n, 9, 9, 1), np.uint8)}", "rows", "image"),
    "rows of another shape later": _source(
        "Rows.count += 1\nreturn good | ({'image': np.zeros((n, 9, 9, 1), np.uint8)} if Rows.count > 1 else {})",
        "rows",
        "image",
    ),
    "rows of another dtype": _source("return good | {'image': good['image'] * 1.0}", "rows", "image"),
    "rows of 64 bits": _source("return good | {'label': good['label'].astype(np.int64)}"),
    "rows of objects": _source("return good | {'image': np.array([object()] * n)}", "rows", "image"),
    "rows of text": _source("return good | {'label': np.array(['cat'] * n)}", "rows", "label"),
    "rows that are lists": _source("return {k: v.tolist() for k, v in good.items()}", "rows", "image"),
    "labels that are too large": _source("return good | {'label': good['label'] + 7}"),
    "labels below 0": _source("return good | {'label': good['label'] - 7}"),
    "a shape of two dims": _source(
        "return good", "image_shape", about="num_examples, image_shape, num_classes = 32, (8, 8), 2"
    ),
    "a height of 0": _source(
        "return good", "image_shape", about="num_examples, image_shape, num_classes = 32, (0, 8, 1), 2"
    ),
    "no channels": _source(
        "return good", "image_shape", about="num_examples, image_shape, num_classes = 32, (8, 8, 0), 2"
    ),
    "a shape of text": _source(
        "return good", "image_shape", about="num_examples, image_shape, num_classes = 32, 'big', 2"
    ),
    "a shape larger than memory": _source(
        "return good", "parameters", about="num_examples, image_shape, num_classes = 32, (10**6, 10**6, 1), 2"
    ),
    "classes below 0": _source(
        "return good", "num_classes", about="num_examples, image_shape, num_classes = 32, (8, 8, 1), -3"
    ),
    "no classes": _source(
        "return good", "num_classes", about="num_examples, image_shape, num_classes = 32, (8, 8, 1), 0"
    ),
    "half a class": _source(
        "return good", "num_classes", about="num_examples, image_shape, num_classes = 32, (8, 8, 1), 1.5"
    ),
    "no threads": _source(
        "return good", "threads", about="threads, num_examples, image_shape, num_classes = 0, 32, (8, 8, 1), 2"
    ),
    "threads without end": _source(
        "return good", "threads", about="threads, num_examples, image_shape, num_classes = 10**9, 32, (8, 8, 1), 2"
    ),
    "half a thread": _source(
        "return good", "threads", about="threads, num_examples, image_shape, num_classes = 1.5, 32, (8, 8, 1), 2"
    ),
    "random rows that fail": _source(
        "return good",
        "random_rows",
        "ZeroDivisionError",
        about="num_examples, image_shape, num_classes = 32, (8, 8, 1), 2\n"
        "    def random_rows(self, indices, draws): 1 / 0",
    ),
    "random rows of another length": _source(
        "return good",
        "random_rows",
        about="num_examples, image_shape, num_classes = 32, (8, 8, 1), 2\n"
        "    def random_rows(self, indices, draws): return self.rows(indices[:1])",
    ),
    "items that are none": Wrong("", {"data": "Items(train=None, test=None)"}, ("Items", "train")),
    "items that fail": Wrong(
        "class Bad:\n    def __len__(self): return 32\n    def __getitem__(self, index): 1 / 0",
        {"data": "Items(train=Bad(), test=Bad())", "task": "Classification()"},
        ("ZeroDivisionError",),
    ),
    "items without a length": Wrong("", {"data": "Items(train=iter([]), test=iter([]))"}, ("Items", "train")),
    "no items": Wrong("", {"data": "Items(train=[], test=[])"}, ("num_examples",)),
    "half a thread of items": Wrong(
        "", {"data": "Items(threads='x', train=[{'features': 1.0}], test=[{'features': 1.0}])"}, ("threads",)
    ),
    "arrays that are none": Wrong("", {"data": "Arrays(train=None)"}, ("Arrays(train=...)",)),
    "arrays without a test split": Wrong(
        "",
        {"data": "Arrays(train={'image': np.zeros((16, 8, 8, 1), np.uint8), 'label': np.zeros(16, int)})"},
        ("test",),
    ),
    "arrays that are ragged": Wrong("", {"data": "Arrays(train={'x': [[1], [1, 2]]})"}, ("x",)),
    "images that are empty": Wrong(
        "z = {'image': np.zeros((16, 0, 8, 1), np.uint8), 'label': np.zeros(16, int)}",
        {"data": "Arrays(train=z, test=z)"},
        ("image",),
    ),
    "features that are empty": Wrong(
        "z = {'features': np.zeros((16, 0), np.float32), 'label': np.zeros(16, int)}",
        {"data": "Arrays(train=z, test=z)", "task": "Classification()", "model": "nn.Dense(2)"},
    ),
    "features that are not finite": Wrong(
        "z = {'features': np.full((32, 3), np.nan, np.float32), 'label': np.zeros(32, int)}",
        {"data": "Arrays(train=z, test=z)", "task": "Classification()", "model": "nn.Dense(2)"},
    ),
    "classes in one's own model": Wrong("", {"model": "CNN(num_classes=-3)"}, ("num_classes",)),
    "classes below 0 in an own model": Wrong(
        "class Mine(nn.Module):\n    num_classes: int\n    @nn.compact\n    def __call__(self, images):\n"
        "        return nn.Dense(self.num_classes)(images.reshape(images.shape[0], -1))",
        {"model": "Mine(num_classes=-3)"},
        ("Mine", "-3"),
    ),
    "more classes than memory in an own model": Wrong(
        "class Mine(nn.Module):\n    num_classes: int\n    @nn.compact\n    def __call__(self, images):\n"
        "        return nn.Dense(self.num_classes)(images.reshape(images.shape[0], -1))",
        {"model": "Mine(num_classes=10**9)"},
        ("parameters",),
    ),
}


def _optimizer(value: str, *words: str, code: str = "") -> Wrong:
    return Wrong(code, {"optimizer": value}, words)


_TRANSFORMATION = "def init(params): return {{}}\ndef update(grads, state, params=None): {update}\n"


def _update(update: str, *words: str) -> Wrong:
    code = _TRANSFORMATION.format(update=update)
    return _optimizer("optax.GradientTransformation(init, update)", *words, code=code)


OPTIMIZERS = {
    "none": _optimizer("None", "optimizer is"),
    "text": _optimizer("'adam'", "optimizer is"),
    "a class": _optimizer("Optimizer", "optimizer is the class"),
    "a pair that is none": _optimizer("(1, 2)", "optimizer is"),
    "functions that are none": _optimizer("optax.GradientTransformation(1, 2)", "optimizer"),
    "a function that fails": _optimizer("lambda steps: 1 / 0", "optimizer", "ZeroDivisionError"),
    "a function that exits": _optimizer("lambda steps: exit(0)", "optimizer", "SystemExit"),
    "a function without arguments": _optimizer("lambda: 1", "optimizer", "TypeError"),
    "a function that gives nothing": _optimizer("lambda steps: None", "optimizer", "NoneType"),
    "a factory of Optax": _optimizer("optax.adam", "optimizer"),
    "an init that fails": _optimizer(
        "optax.GradientTransformation(lambda params: 1 / 0, lambda *a: 1)", "optimizer", "ZeroDivisionError"
    ),
    "an init that gives text": _optimizer(
        "optax.GradientTransformation(lambda params: 'x', lambda *a: 1)", "optimizer"
    ),
    "an update that fails": _update("1 / 0", "optimizer", "ZeroDivisionError"),
    "an update that gives nothing": _update("pass", "optimizer"),
    "an update of other parameters": _update("return {}, state", "optimizer"),
    "an update of other shapes": _update(
        "return jax.tree.map(lambda g: jnp.ones((*g.shape, 2)), grads), state", "optimizer"
    ),
    "an update of text": _update("return jax.tree.map(lambda g: 'x', grads), state", "optimizer"),
    "a state that changes": _update("return grads, {'n': jnp.zeros(3)}", "optimizer"),
    "a schedule that fails": _optimizer("optax.sgd(lambda step: 1 / 0)", "optimizer", "ZeroDivisionError"),
    "a rate of text": _optimizer("optax.sgd('fast')", "optimizer"),
    "a mask that fits nothing": _optimizer("optax.masked(optax.sgd(0.1), {'nothing': True})", "optimizer"),
    "pattern of nothing": _optimizer("Optimizer(groups=(('nothing', 1.0),))", "optimizer.groups", "nothing"),
}


def _strategy(value: str, *words: str, code: str = "") -> Wrong:
    code = "from jaxnet import comm\nplan = lambda shapes, sizes: comm.Plan(())\n" + code
    return Wrong(code, {"strategy": value}, words)


STRATEGIES = {
    "none": _strategy("None", "strategy"),
    "a number": _strategy("3", "strategy"),
    "a class": _strategy("comm.Strategy", "strategy"),
    "an unknown name": _strategy("'heirarchical'", "hierarchical"),
    "reduce that fails": _strategy(
        "comm.Strategy(comm.Reducer(lambda shapes, sizes: (), lambda grads, state: 1 / 0, plan))", "strategy", "ZeroDivisionError"
    ),
    "init that fails": _strategy(
        "comm.Strategy(comm.Reducer(lambda shapes, sizes: 1 / 0, lambda grads, state: (grads, state), plan))",
        "strategy",
        "ZeroDivisionError",
    ),
    "reduce that gives one thing": _strategy(
        "comm.Strategy(comm.Reducer(lambda shapes, sizes: (), lambda grads, state: grads, plan))", "strategy"
    ),
    "reduce that gives another structure": _strategy(
        "comm.Strategy(comm.Reducer(lambda shapes, sizes: (), lambda grads, state: ({}, state), plan))", "strategy"
    ),
    "reduce that gives other shapes": _strategy(
        "comm.Strategy(comm.Reducer(lambda shapes, sizes: (), lambda grads, state: "
        "(jax.tree.map(lambda g: jnp.ones(3), grads), state), plan))",
        "strategy",
    ),
    "reduce that gives another state": _strategy(
        "comm.Strategy(comm.Reducer(lambda shapes, sizes: (), lambda grads, state: (grads, {'n': 1}), plan))", "strategy"
    ),
    "reduce that sums nothing": _strategy(
        "comm.Strategy(comm.Reducer(lambda shapes, sizes: (), lambda grads, state: (grads, state), plan))"
    ),
    "a reducer that is none": _strategy("comm.Strategy(3)", "reducer is a int"),
    "an axis that is not there": _strategy("comm.Strategy(comm.all_reduce('rack'))", "rack"),
}


def _whole(text: str | bytes, *words: str) -> Wrong:
    return Wrong(whole=text, words=words)


_RETURNS = "from jaxnet import Config\ndef get_config():\n    {}\n"

FILES = {
    "empty": _whole("", "there is no function get_config()"),
    "blank": _whole("\n\n", "there is no function get_config()"),
    "binary": _whole(bytes(range(256)), "config "),
    "bytes of zero": _whole(bytes(100), "null bytes"),
    "another encoding": _whole("# é\n".encode("utf-16"), "config "),
    "a byte order mark alone": _whole(b"\xef\xbb\xbf", "there is no function get_config()"),
    "a syntax error": _whole("def get_config(:\n", "SyntaxError"),
    "an indentation error": _whole("def get_config():\nreturn 1\n", "IndentationError"),
    "brackets without end": _whole("(" * 5000, "config "),
    "sums without end": _whole("x = " + "+".join(["1"] * 100_000), "config "),
    "a number of many digits": _whole("x = " + "9" * 10_000, "SyntaxError"),
    "an import that is not there": _whole("import nothing_like_it\n", "ModuleNotFoundError"),
    "an exception without words": _whole("raise Exception\n", "line 1: Exception"),
    "an exception of two lines": _whole("raise ValueError('a\\nb')\n", "line 1: ValueError: a b"),
    "an exception that cannot be shown": _whole(
        "class Own(Exception):\n    def __str__(self): raise ValueError\nraise Own\n", "Own"
    ),
    "an exception whose repr fails": _whole(
        "class Own(Exception):\n    def __str__(self): return 3\n    __repr__ = __str__\nraise Own\n", "Own"
    ),
    "an exception with control characters": _whole("raise ValueError('\\x1b[2J\\r\\0')\n", "ValueError"),
    "an exception whose class is odd": _whole(
        "type('A\\nB', (Exception,), {})\nraise type('A\\nB', (Exception,), {})\n"
    ),
    "an exception of one's own kind": _whole("class Own(BaseException): pass\nraise Own('why')\n", "Own: why"),
    "an exit": _whole("import sys\nsys.exit(0)\n", "SystemExit"),
    "an exit in get_config": _whole(_RETURNS.format("raise SystemExit('bye')"), "SystemExit: bye"),
    "an exit of a generator": _whole("raise GeneratorExit\n", "GeneratorExit"),
    "an end of asyncio": _whole("import asyncio\nraise asyncio.CancelledError\n", "CancelledError"),
    "an exception group": _whole("raise BaseExceptionGroup('many', [SystemExit(1), ValueError(2)])\n", "many"),
    "no end of calls": _whole(_RETURNS.format("return get_config()"), "RecursionError"),
    "a coroutine": _whole("from jaxnet import Config\nasync def get_config():\n    return 1\n", "coroutine"),
    "a generator": _whole(_RETURNS.format("yield 1"), "generator"),
    "a class": _whole("class get_config: pass\n", "wanted a Config"),
    "the class Config": _whole(_RETURNS.format("return Config"), "wanted a Config"),
    "a number for get_config": _whole("get_config = 3\n", "TypeError"),
    "an argument": _whole("def get_config(size):\n    return size\n", "TypeError"),
    "an argument by name": _whole("def get_config(*, size):\n    return size\n", "TypeError"),
    "nothing": _whole(_RETURNS.format("pass"), "returned None"),
    "a string": _whole(_RETURNS.format("return 'x' * 1000"), "returned 'xxx"),
    "a value whose repr fails": _whole(
        "class Odd:\n    def __repr__(self): 1 / 0\ndef get_config():\n    return Odd()\n", "Odd"
    ),
    "a value whose class lies": _whole(
        "class Odd:\n    @property\n    def __class__(self): 1 / 0\ndef get_config():\n    return Odd()\n", "config "
    ),
    "get_config that is found by a failing function": _whole("def __getattr__(name): 1 / 0\n", "ZeroDivisionError"),
    "a config that is no more a dataclass": _whole(
        "from jaxnet import Config\nfrom jaxnet.data import Digits\nfrom jaxnet.models import CNN\n"
        "def get_config():\n    made = Config(CNN(10), Digits(), 1, 64)\n    object.__setattr__(made, 'epochs', None)\n"
        "    object.__delattr__(made, 'seed') \n    return made\n",
        "epochs",
    ),
    "a config without a field": _whole(
        "from jaxnet import Config\ndef get_config():\n    return object.__new__(Config)\n", "config "
    ),
}

WRONG: dict[str, dict[str, Wrong]] = {
    "model": MODELS,
    "task": TASKS,
    "data": DATA,
    "optimizer": OPTIMIZERS,
    "strategy": STRATEGIES,
    "file": FILES,
}
