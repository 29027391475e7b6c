"""Tasks that are wrong."""

from benchmarks.fuzzing.wrong.part import Wrong


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
