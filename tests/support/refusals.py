"""What every refusal has to be: one line on stderr, status 2, and no more."""

import pytest

from jaxnet.errors import exit_cleanly
from support.programs import ROOT

DIGITS = str(ROOT / "configs/digits.py")

# A config that trains in no time.
TINY = """
from jaxnet.data import Synthetic
from jaxnet.models import CNN
from jaxnet.config.run import Config, Log

def get_config():
    return Config(
        model=CNN(2, widths=(2,), hidden=4),
        data=Synthetic((8, 8, 1), num_classes=2, num_train=32, num_test=16),
        epochs=1,
        batch_size=16,
        eval_batch_size=16,
        log=Log(tensorboard=False),
    )
"""


def refused(run, capsys):
    """The message with which `run` ends; all that it prints is that line."""
    with pytest.raises(SystemExit) as ended:
        exit_cleanly(run)
    printed = capsys.readouterr()
    assert ended.value.code == 2, printed
    return one_line(printed.out, printed.err)


def one_line(out, err):
    assert out == ""
    assert err.startswith("error: ")
    assert err.endswith("\n")
    assert err.count("\n") == 1
    return err.removeprefix("error: ").removesuffix("\n")


def says(message, words):
    missing = [part for part in words if part not in message]
    assert not missing, f"{missing} not in: {message}"


def every(cases):
    return pytest.mark.parametrize(("given", "words"), [(case[0], case[1:]) for case in cases.values()], ids=cases)
