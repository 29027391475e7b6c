"""A strategy that remembers what it has not sent goes on with another number of devices, and says what is lost."""

import logging

import jax
import numpy as np
import pytest

from jaxnet import comm, inference
from jaxnet.models import CNN
from jaxnet.optimizer import Optimizer
from support.checkpointing import assert_same_bits
from support.dark_digits import config_of
from support.runs import train
from support.training_runs import arrays, metrics


def trained(workdir, monkeypatch, strategy, steps, devices, **changes):
    """Train as far as `steps` on so many devices of one host."""
    monkeypatch.setattr(
        "jaxnet.training.processes.make_mesh", lambda hosts: comm.make_mesh(hosts, jax.devices()[:devices])
    )
    config = config_of(
        steps,
        model=CNN(10, widths=(4,), hidden=16),
        strategy=strategy,
        optimizer=Optimizer("sgd", learning_rate=0.1, schedule="constant"),
        **changes,
    )
    summary = train(config, workdir, allow_config_change=True, quiet=True)
    assert (summary["steps"], summary["mesh"]) == (steps, {"host": 1, "device": devices})


def remembered(workdir, step):
    leaves = jax.tree.leaves(arrays(workdir, step).get("comm", {}))
    return {leaf.shape[:2] for leaf in leaves}, any(np.any(leaf) for leaf in leaves)


def lost(step, strategy, before, after):
    return (
        f"the residuals of step {step}, gradients that were not sent yet, are lost: they are those of "
        f"strategy={strategy} on {before} devices (mesh 1x{before}), and the run goes on with strategy={strategy} on "
        f"{after} device{'s' * (after > 1)} (mesh 1x{after})"
    )


def warnings(caplog):
    said = [record.getMessage() for record in caplog.records if record.name == "jaxnet"]
    caplog.clear()
    return said


@pytest.mark.parametrize("strategy", ["int8", pytest.param("powersgd", marks=pytest.mark.slow)])
def test_it_goes_on_with_more_devices_and_with_one(tmp_path, monkeypatch, caplog, strategy):
    lines = []
    for steps, devices in ((10, 2), (20, 4), (30, 1), (40, 2)):
        with caplog.at_level(logging.WARNING, "jaxnet"):
            trained(tmp_path, monkeypatch, strategy, steps, devices)
        lines.append(warnings(caplog))
        assert remembered(tmp_path, steps) == ((set(), False) if devices == 1 else ({(1, devices)}, True))
    assert lines == [[], [lost(10, strategy, 2, 4)], [lost(20, strategy, 4, 1)], []]  # one device remembers nothing
    losses = [line["loss"] for line in metrics(tmp_path).values()]
    assert len(losses) == 8
    assert losses[-1] < losses[0]
    assert inference.load(tmp_path, step=20)(np.zeros((3, 8, 8, 1), np.uint8)).shape == (3, 10)


def test_on_the_same_devices_it_goes_on_to_the_bit(tmp_path, monkeypatch, caplog):
    trained(tmp_path / "unbroken", monkeypatch, "int8", 20, 2)
    for steps in (10, 20):
        trained(tmp_path / "resumed", monkeypatch, "int8", steps, 2)
    assert_same_bits(arrays(tmp_path / "resumed", 20), arrays(tmp_path / "unbroken", 20))
    assert warnings(caplog) == []


def test_where_messages_are_of_another_size_it_says_so(tmp_path, monkeypatch, caplog):
    trained(tmp_path, monkeypatch, "int8", 10, 2)
    trained(tmp_path, monkeypatch, "int8", 20, 2, bucket_bytes=1024)
    [said] = warnings(caplog)
    assert said == (
        "the residuals of step 10, gradients that were not sent yet, are lost: they are those of strategy=int8, "
        "bucket_bytes=none on 2 devices (mesh 1x2), and the run goes on with strategy=int8, bucket_bytes=1024 on "
        "2 devices (mesh 1x2)"
    )


def test_what_another_strategy_remembers_is_lost_where_it_has_the_same_shapes_too(tmp_path, monkeypatch, caplog):
    """Of which leaves, and of which part of them, shapes do not tell."""
    trained(tmp_path, monkeypatch, "top_k", 10, 2)
    trained(tmp_path, monkeypatch, "mxnet_2bit", 20, 2)
    [said] = warnings(caplog)
    assert said.endswith(
        "are lost: they are those of strategy=top_k on 2 devices (mesh 1x2), and the run goes on with "
        "strategy=mxnet_2bit on 2 devices (mesh 1x2)"
    )
