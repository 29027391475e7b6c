"""Optimizers and strategies that are wrong."""

from benchmarks.fuzzing.wrong.part import Wrong


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


def _reducer(reduce: str, *words: str, init: str = "()") -> Wrong:
    """A strategy with a reducer of one's own, which gives this for the gradients, and begins with this state."""
    return _strategy(
        f"comm.Strategy(comm.Reducer(lambda shapes, sizes: {init}, lambda grads, state: {reduce}, plan))", *words
    )


STRATEGIES = {
    "none": _strategy("None", "strategy"),
    "a number": _strategy("3", "strategy"),
    "a class": _strategy("comm.Strategy", "strategy"),
    "an unknown name": _strategy("'heirarchical'", "hierarchical"),
    "reduce that fails": _reducer("1 / 0", "strategy", "ZeroDivisionError"),
    "init that fails": _reducer("(grads, state)", "strategy", "ZeroDivisionError", init="1 / 0"),
    "reduce that gives one thing": _reducer("grads", "strategy"),
    "reduce that gives another structure": _reducer("({}, state)", "strategy"),
    "reduce that gives other shapes": _reducer("(jax.tree.map(lambda g: jnp.ones(3), grads), state)", "strategy"),
    "reduce that gives another state": _reducer("(grads, {'n': 1})", "strategy"),
    "reduce that sums nothing": _reducer("(grads, state)"),
    "a reducer that is none": _strategy("comm.Strategy(3)", "reducer is a int"),
    "an axis that is not there": _strategy("comm.Strategy(comm.all_reduce('rack'))", "strategy"),
}
