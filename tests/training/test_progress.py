"""What a person sees of a run, who may stop looking."""

import logging
import os
import sys

import pytest

from jaxnet.errors import show_warnings
from jaxnet.training.display import Display, say_warning
from jaxnet.training.observer import Dispatched

VALUES = {"loss": 0.5, "accuracy": 0.25, "examples_per_second": 1000.0, "data_wait_seconds": 0.0, "step_seconds": 0.01}


@pytest.mark.parametrize("bar", [False, True])
def test_a_reader_that_leaves_ends_nothing(bar, monkeypatch):
    reading, writing = os.pipe()
    monkeypatch.setenv("FORCE_COLOR" if bar else "NO_COLOR", "1")  # has Rich take a pipe for a terminal
    with os.fdopen(writing, "w") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        with Display(3, 0) as display:
            display.say("begun")
            assert b"begun" in os.read(reading, 1 << 16)
            os.close(reading)
            for step in range(1, 4):
                display.after_step(Dispatched(step, None, {}, 0.0, 0.0))
                display.on_metrics(step, "train", VALUES)
                display.say("a line")
            display.on_metrics(3, "test", VALUES)


def test_warnings_that_nobody_reads(monkeypatch):
    logger = logging.getLogger("jaxnet")
    before = logger.propagate, list(logger.handlers)
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        show_warnings()
        say_warning("a warning")
    logger.propagate, logger.handlers[:] = before
