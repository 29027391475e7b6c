"""Models that are wrong."""

from benchmarks.fuzzing.wrong.part import Wrong


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
    "a generator": _model(_LOGITS + "yield x", "with yield"),
    "a branch on a value": _model(_LOGITS + "return x if x.sum() > 0 else -x", "Mine"),
    "a callback without a gradient": _model(
        _LOGITS + "return jax.pure_callback(np.asarray, jax.ShapeDtypeStruct(x.shape, x.dtype), x)"
    ),
    "two arguments more": _model("return images", "temperature", signature="self, images, temperature, train"),
    "no arguments": _model("return 1", "Mine", signature="self"),
    "a coroutine": Wrong(
        "class Mine(nn.Module):\n    async def __call__(self, images): return images",
        {"model": "Mine()"},
        ("async def",),
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
