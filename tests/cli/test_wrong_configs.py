"""Config files that are wrong in themselves: the message names the file and the line or the key."""

import train
from support.refusals import TINY, every, refused, says


def tiny(old, new, imports=""):
    assert old in TINY
    return imports + TINY.replace(old, new)


# What a config file holds, and what the message has to say after its name.
CONFIGS = {
    "nothing": ("", ": there is no function get_config(): wanted one that returns a Config"),
    "not Python": ("epochs: 30\nbatch size: 64\n", ": SyntaxError: invalid syntax (wrong.py, line 2)"),
    "bytes": ("\0\1\2", ": ", "null bytes"),
    "an import that fails": ("import jaxnett\n", ", line 1: ModuleNotFoundError: No module named 'jaxnett'"),
    "an exception": ("def get_config():\n    return 1 / 0\n", ", line 2: ZeroDivisionError: division by zero"),
    "an exception of several lines": (
        "def get_config():\n    raise ValueError('first\\nsecond')\n",
        ", line 2: ValueError: first second",
    ),
    "an exit": ("import sys\nsys.exit(0)\n", ", line 2: SystemExit: 0"),
    "an attribute that is not there": (
        "import jaxnet.data\ndef get_config():\n    return jaxnet.data.Digit()\n",
        ", line 3: AttributeError: module 'jaxnet.data' has no attribute 'Digit'",
    ),
    "a dict": (
        "def get_config():\n    return {'epochs': 3}\n",
        ": get_config() returned {'epochs': 3}, wanted a Config",
    ),
    "no return": ("def get_config():\n    pass\n", ": get_config() returned None, wanted a Config"),
    "get_config is a value": ("get_config = 3\n", ": TypeError: 'int' object is not callable"),
    "a field that is not there": (
        tiny("epochs=1", "epoch=1"),
        ", line 7: TypeError: ",
        "'epoch'; did you mean 'epochs'?",
    ),
    "a field that is missing": (tiny("        epochs=1,\n", ""), ", line 7: TypeError: ", "'epochs'"),
    "text for a number": (tiny("epochs=1", "epochs='1'"), ": epochs is '1', wanted a number"),
    "a fraction for an integer": (tiny("size=16", "size=16.0"), ": batch_size is 16.0, wanted an integer"),
    "a bool for an integer": (tiny("batch_size=16", "batch_size=True"), ": batch_size is True, wanted an integer"),
    "nan": (tiny("epochs=1", "epochs=float('nan')"), ": epochs is nan, wanted a number"),
    "a choice": (
        tiny("epochs=1", "epochs=1, optimizer=Optimizer('adam')", "from jaxnet.optimizer import Optimizer\n"),
        ": optimizer.name is 'adam', wanted one of sgd, adamw",
    ),
    "warm-up of more steps than can be counted": (
        tiny(
            "epochs=1",
            "epochs=1, optimizer=Optimizer(warmup_epochs=1e30)",
            "from jaxnet.optimizer import Optimizer\n",
        ),
        "optimizer.warmup_epochs=1e+30: makes 2e+30 steps; wanted below 1073741824",
    ),
    "a list for a tuple": (tiny("(2,)", "[2]"), ": model.widths is [2], wanted a comma-separated tuple"),
    "a dtype": (tiny("hidden=4", "hidden=4, dtype='half'"), ": model.dtype is 'half', wanted one of float32, bfloat16"),
    "a wrong field of the data": (tiny("num_test=16", "num_test=0"), ", line 9: num_classes, num_train and num_test"),
    "none for a group": (tiny("Log(tensorboard=False)", "None"), ": log is None, wanted Log"),
    "another group": (tiny("Log(tensorboard=False)", "CNN(2)"), ": log is CNN(", ", wanted Log"),
    "a range": (tiny("epochs=1", "epochs=-1"), "epochs=-1: wanted a number above 0"),
    "text for a model": (tiny("CNN(2, widths=(2,), hidden=4)", "'CNN'"), "model is of type str: wanted a Flax Linen"),
    "a class for a model": (tiny("CNN(2, widths=(2,), hidden=4)", "CNN"), "model is the class CNN: wanted a Flax"),
    "text for data": (tiny("data=Synthetic(", "data=str("), ", line 9: TypeError"),
    "none for data": (
        tiny("data=Synthetic(", "data=None and Synthetic("),
        "data is of type NoneType: wanted a data set of jaxnet",
    ),
    "a class for data": (
        "from jaxnet.data import Digits\n"
        + TINY.replace("data=Synthetic((8, 8, 1), num_classes=2, num_train=32, num_test=16)", "data=Digits"),
        "data is the class Digits: wanted a data set such as Digits(...)",
    ),
    "a model that asks for more": (
        """
import flax.linen as nn
class Warm(nn.Module):
    @nn.compact
    def __call__(self, images, temperature, train):
        return nn.Dense(2)(images.reshape(images.shape[0], -1)) / temperature
"""
        + TINY.replace("CNN(2, widths=(2,), hidden=4)", "Warm()"),
        "the model Warm has __call__(images, temperature, train), and is called with (array, train=...):",
        "missing a required argument: 'temperature'",
    ),
    "a model that cannot be called": (
        tiny(
            "CNN(2, widths=(2,), hidden=4)", "Empty()", "import flax.linen as nn\nclass Empty(nn.Module):\n    pass\n"
        ),
        "the model Empty has no __call__",
    ),
    "a model whose BatchNorm cannot be told": (
        """
import flax.linen as nn
class Normed(nn.Module):
    @nn.compact
    def __call__(self, images, *, train, keys=None):
        x = images.reshape(images.shape[0], -1)
        return nn.Dense(2)(nn.BatchNorm(use_running_average=not train)(x))
"""
        + TINY.replace("CNN(2, widths=(2,), hidden=4)", "Normed()").replace("epochs=1", "epochs=1, batch_norm='host'"),
        "batch_norm=host: the model has no field norm_axes",
        "set batch_norm=local",
    ),
    "an NNX model": (
        tiny("CNN(2, widths=(2,), hidden=4)", "nnx.Linear(64, 2, rngs=nnx.Rngs(0))", "from flax import nnx\n"),
        "model is of type Linear: wanted a Flax Linen module; one of NNX as jaxnet.models.from_nnx(lambda rngs: ",
    ),
    "data that TFDS does not know": (
        tiny("data=Synthetic(", "data=TFDS('cifar11') or Synthetic(", "from jaxnet.data import TFDS\n"),
        "TFDS knows no data set 'cifar11'",
        "names near it: cifar10",
    ),
    "data that are not prepared": (
        tiny(
            "data=Synthetic(", "data=TFDS('mnist', data_dir='/nowhere') or Synthetic(", "from jaxnet.data import TFDS\n"
        ),
        "the data set mnist is not prepared in /nowhere/mnist/",
        "Set data_dir or TFDS_DATA_DIR",
        "download_and_prepare()",
    ),
}


@every(CONFIGS)
def test_a_wrong_config_file(given, words, tmp_path, new_workdir, capsys):
    path = tmp_path / "wrong.py"
    path.write_text(given)
    command = ["--config", str(path), "--workdir", new_workdir]
    message = refused(lambda: train.main(command), capsys)
    says(message, words)
    if words[0].startswith((":", ",")):
        assert message.startswith(f"config {path}{words[0]}")
