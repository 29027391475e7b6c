"""A package of someone else adds a strategy by name, and models that are loaded without their config."""

import importlib
import sys

import jax
import numpy as np
import pytest

import jaxnet
from jaxnet import comm
from jaxnet.cli.main import run
from support.other_package import install


@pytest.fixture
def theirs(tmp_path, monkeypatch):
    name = f"theirs_{tmp_path.name}"
    install(tmp_path, name, monkeypatch)
    yield name
    sys.modules.pop(name, None)


def test_a_strategy_is_called_by_its_name(theirs):
    assert {"halves", "nothing", "absent"} <= set(comm.installed_strategies())
    made = comm.named_strategy("halves:scale=0.25", bucket_bytes=1024)
    assert (made.name, made.schedule) == ("halves:scale=0.25", "during")
    assert comm.settings_of("halves:scale=0.25") == {"scale": 0.25}
    assert comm.has_bucket_size("halves")
    grads = {"w": jax.numpy.arange(300.0)}
    assert len(made.reducer.plan(grads, {"host": 2, "device": 4}).collectives) == 2


def test_a_name_of_ours_stays_ours(theirs):
    assert "ddp" not in comm.installed_strategies()
    assert comm.named_strategy("ddp").reducer is not None


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nothing", r"strategy 'nothing': \w+:nothing returned None, no Strategy"),
        ("absent", r"strategy 'absent': \w+\.absent:strategy cannot be imported: No module named"),
        ("halve", r"did you mean 'halves'\?"),
        ("halves:scale=x", r"strategy 'halves': scale=x: wanted a number"),
    ],
)
def test_what_is_wrong_with_it_is_said(theirs, name, words):
    with pytest.raises(ValueError, match=words):
        comm.named_strategy(name)


def test_it_is_listed(tmp_path, monkeypatch, capsys):
    name = f"theirs_{tmp_path.name}"
    install(tmp_path, name, monkeypatch)
    points = tmp_path / f"{name}-1.0.dist-info/entry_points.txt"
    points.write_text(f"[jaxnet.strategies]\nhalves = {name}:halves\n")
    assert run(["strategies"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].split()[:2] == ["halves", "during"]


def test_one_that_cannot_be_made_is_a_warning_beside_the_list(theirs, capsys):
    assert run(["strategies"]) == 0
    said = capsys.readouterr()
    assert {"ddp", "halves"} <= {line.split()[0] for line in said.out.splitlines()}
    assert "warning: strategy 'absent': " in said.err
    assert "warning: strategy 'nothing': " in said.err


def test_it_trains_and_its_model_is_loaded_without_the_config(theirs, tmp_path):
    module = importlib.import_module(theirs)
    config = jaxnet.Config(
        module.Wide(2), module.Sides(), strategy="halves:scale=0.25", batch_size=32, epochs=1, seed=3
    )
    workdir = tmp_path / "run"
    made = jaxnet.train(config, workdir=workdir, quiet=True)
    assert made.summary["strategy"] == "halves:scale=0.25"
    images = module.Sides().load("test").image[:5]
    loaded = jaxnet.load(workdir)(images)
    np.testing.assert_allclose(loaded.sum(axis=1), 1, rtol=1e-5)


@pytest.mark.slow
def test_without_the_package_the_config_is_asked_for(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        install(tmp_path, "gone", patch)
        module = importlib.import_module("gone")
        jaxnet.train(
            jaxnet.Config(module.Wide(2), module.Sides(), batch_size=32, epochs=1), workdir=tmp_path / "run", quiet=True
        )
    (tmp_path / "gone-1.0.dist-info/entry_points.txt").write_text("")
    with pytest.raises(jaxnet.InputError, match=r"its model is 'gone\.Wide', which is not of jaxnet"):
        jaxnet.load(tmp_path / "run")
