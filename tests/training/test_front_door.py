"""`import jaxnet`: a run from Python, its results, a loop of one's own, a strategy of one's own, and who watches."""

import importlib.metadata
import json
import subprocess
import sys
from dataclasses import replace

import jax
import numpy as np
import pytest

import jaxnet
from jaxnet import comm
from jaxnet.cli.main import run as run_jaxnet
from jaxnet.report.run_files import read_metrics
from jaxnet.training import summary
from jaxnet.training.observer import SUMMARY_FIGURES
from jaxnet.training.results import Table
from support.runs import sharing

CONFIG = sharing(
    jaxnet.Config(
        model=jaxnet.models.CNN(10, widths=(4, 8), hidden=16),
        data=jaxnet.data.Digits(),
        epochs=0.5,
        batch_size=64,
        eval_batch_size=64,
        log=jaxnet.Log(every_steps=4, tensorboard=False),
    )
)


def each_leaf():
    """Sums every leaf by itself: as short as a reducer can be."""

    def reduce(grads, state):
        return jax.tree.map(lambda leaf: jax.lax.psum(leaf, comm.AXES), grads), state

    def plan(shapes, sizes):
        devices = sizes["host"] * sizes["device"]
        leaves = jax.tree.leaves(shapes)
        return comm.Plan(
            tuple(comm.Collective("all-reduce", comm.AXES, devices, leaf.size, leaf.dtype.name) for leaf in leaves)
        )

    return comm.Reducer(lambda shapes, sizes: (), reduce, plan)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    strategies = {"ddp": "ddp", "mine": comm.Strategy(each_leaf())}
    return {
        label: jaxnet.train(replace(CONFIG, strategy=strategy), folder / label, quiet=True)
        for label, strategy in strategies.items()
    }


# ---- The package ----------------------------------------------------------------------------------------------


def test_importing_it_imports_no_jax():
    code = "import sys, jaxnet; assert not {'jax', 'flax', 'numpy'} & set(sys.modules); jaxnet.Config"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_everything_behind_the_door_is_there():
    assert all(getattr(jaxnet, name) is not None for name in jaxnet.__all__)
    assert set(jaxnet.__all__) <= set(dir(jaxnet))
    with pytest.raises(AttributeError, match=r"no attribute 'trian'; it has .*'?train"):
        jaxnet.trian  # noqa: B018


# ---- What a run gives back ------------------------------------------------------------------------------------


def test_a_run_knows_its_figures(runs):
    run = runs["ddp"]
    assert run.summary == json.loads((run.workdir / "summary.json").read_text())
    assert run.summary.keys() == {*SUMMARY_FIGURES, *run.summary["metrics"], "examples"} - {"members"}
    assert int(run.state.step) == run.summary["steps"] == 11
    assert run.plan.wire_bytes_per_step == run.summary["wire_bytes_per_step"]
    assert run.plan.check.ok
    assert "planned collectives are in the compiled program" in str(run.plan)
    assert run.experiment.evaluate(run.state)["accuracy"] == run.summary["accuracy"]
    assert "11 steps, ddp" in repr(run)


def test_metrics_are_a_table_of_the_lines(runs, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    table = runs["ddp"].metrics
    assert isinstance(table, Table)
    assert [row["step"] for row in table if row["split"] == "train"] == [4, 8, 11]
    assert table["loss"][0] == table[0]["loss"]
    assert "<th>loss</th>" in table._repr_html_()


def test_of_a_step_that_was_run_again_the_later_line_counts(tmp_path):
    lines = [{"step": 1, "split": "train", "loss": 2.0}, {"step": 2, "split": "train", "loss": 1.5}]
    again = {"step": 1, "split": "train", "loss": 1.0}
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in [*lines, again]) + '{"step": 3')
    assert [line["loss"] for line in read_metrics(tmp_path)] == [1.0, 1.5]


def test_runs_are_compared_by_label(runs, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    comparison = jaxnet.compare({"ddp": runs["ddp"], "mine": runs["mine"].workdir})
    first, second = comparison.table
    assert (first["run"], first["wire_bytes_per_step ratio"], first["loss difference"]) == ("ddp", 1.0, 0.0)
    assert second["loss difference"] == pytest.approx(runs["mine"].summary["loss"] - runs["ddp"].summary["loss"])
    assert comparison.differences.columns == ["step", "ddp", "mine", "mine - ddp"]
    assert "examples_per_second" in str(comparison)
    sent = runs["ddp"].summary["wire_bytes_per_axis"]
    assert {axis: first[f"wire_bytes over {axis}"] for axis in sent} == sent
    assert "<table>" in comparison._repr_html_()


def test_what_is_no_run_is_not_compared(tmp_path):
    with pytest.raises(jaxnet.InputError, match=r"summary.json cannot be read: .*wanted the workdir of a run"):
        jaxnet.compare({"none": tmp_path})
    (tmp_path / "config.json").touch()
    with pytest.raises(jaxnet.InputError, match=rf"{tmp_path} has no summary.json, so its run has not ended: continue"):
        jaxnet.compare({"unfinished": tmp_path})
    with pytest.raises(jaxnet.InputError, match="wanted at least one run"):
        jaxnet.compare({})


# ---- A strategy of one's own ----------------------------------------------------------------------------------


def test_a_reducer_of_ones_own_trains_as_the_sum_that_it_is(runs):
    mine, ddp = (jax.device_get(runs[label].state.params) for label in ("mine", "ddp"))
    for got, want in zip(jax.tree.leaves(mine), jax.tree.leaves(ddp), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6)
    assert len(runs["mine"].experiment.sends.collectives) == len(jax.tree.leaves(mine)) + 1  # and the metrics
    assert runs["mine"].plan.check.ok


def test_config_json_shows_the_expression(runs):
    settings = json.loads((runs["ddp"].workdir / "config.json").read_text())
    assert settings["strategy"] == "ddp"
    assert settings["strategy.expression"].startswith("during(bucketed(all_reduce('host', 'device'), 25 * MiB")
    assert "each_leaf" in json.loads((runs["mine"].workdir / "config.json").read_text())["strategy.expression"]


def test_it_continues_under_the_same_strategy_and_no_other(runs):
    config = replace(CONFIG, strategy=comm.Strategy(each_leaf()))
    assert jaxnet.train(config, runs["mine"].workdir, quiet=True).summary["steps"] == 11
    with pytest.raises(jaxnet.InputError, match=r"another config \(strategy: .* -> \"flat\"\)"):
        jaxnet.train(replace(CONFIG, strategy="flat"), runs["mine"].workdir, quiet=True)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"bucket_bytes": 4096}, "bucket_bytes=4096 sets the buckets of a strategy's name"),
        ({"transport": "mpi"}, "transport=mpi takes a strategy by its name"),
        ({"mode": "pieces"}, "which does not sum message by message; use mode=shard_map"),
        ({"mode": "jit"}, "mode=jit goes with strategy=xla alone"),
    ],
)
def test_what_does_not_go_with_it(changes, words):
    with pytest.raises(jaxnet.InputError, match=words):
        jaxnet.prepare(replace(CONFIG, strategy=comm.Strategy(each_leaf()), **changes), comm.make_mesh(1))


def test_a_strategy_that_contradicts_itself():
    shards = comm.sharded("device", "host", bucket_bytes=None)
    with pytest.raises(ValueError, match=r"'deferred' goes with sharded\(...\)"):
        comm.Strategy(shards)
    with pytest.raises(ValueError, match="no schedule 'sometimes'"):
        comm.Strategy(each_leaf(), "sometimes")
    with pytest.raises(ValueError, match="reducer is a str"):
        comm.Strategy("ddp")


# ---- A loop of one's own --------------------------------------------------------------------------------------


def test_a_loop_of_ones_own_takes_the_same_steps(runs):
    experiment = jaxnet.prepare(replace(CONFIG, strategy="ddp"))
    state, batches = experiment.init(), experiment.batches()
    for _ in range(experiment.total_steps):
        state, metrics = experiment.step(state, next(batches))
    batches.close()
    assert set(metrics) >= {"loss", "accuracy"}
    assert experiment.evaluate(state)["examples"] == 360
    for got, want in zip(jax.tree.leaves(state.params), jax.tree.leaves(runs["ddp"].state.params), strict=True):
        np.testing.assert_array_equal(got, want)


# ---- Who watches ----------------------------------------------------------------------------------------------


class Watching(jaxnet.Observer):
    """Notes what it sees, and stops the run at a step."""

    def __init__(self, stop_at=None):
        self.stop_at, self.steps, self.told, self.asides, self.ended = stop_at, [], [], [], None

    def after_step(self, dispatched):
        self.steps.append(dispatched.step)

    def on_metrics(self, step, split, values):
        self.told.append((step, split))
        return self.stop_at is not None and step >= self.stop_at

    def on_end(self, step):
        self.ended = step


def test_an_observer_sees_every_step_and_every_line(tmp_path):
    watching = Watching()
    jaxnet.train(CONFIG, tmp_path, observers=[watching], quiet=True)
    assert watching.steps == list(range(1, 12))
    assert watching.told == [(4, "train"), (8, "train"), (11, "test"), (11, "train")]
    assert watching.ended == 11


def test_an_observer_may_stop_the_run_which_then_goes_on(tmp_path, capsys):
    stopped = jaxnet.train(CONFIG, tmp_path, observers=[Watching(stop_at=4)])
    assert not stopped.summary["finished"]
    assert f"stopped by Watching after step {stopped.summary['steps']}" in capsys.readouterr().out
    whole = jaxnet.train(CONFIG, tmp_path, quiet=True)
    assert (whole.summary["steps"], whole.summary["finished"]) == (11, True)


# ---- The first and the last screen ----------------------------------------------------------------------------


def test_a_run_begins_and_ends_with_a_few_plain_lines(tmp_path, capsys):
    jaxnet.train(replace(CONFIG, strategy="hierarchical"), tmp_path / "run")
    lines = capsys.readouterr().out.splitlines()
    first = [line.split()[0] for line in lines[:11]]
    assert first == [
        *("jaxnet", "model", "data", "steps", "optimizer", "strategy"),
        "during(bucketed(scattered('device',",
        *("sends", "devices", "writes"),
        first[-1],
    ]
    assert "1,437 training and 360 test examples: images of 8x8x1, 10 classes" in lines[2]
    ends = [line.split()[0] for line in lines if line[:1] != " "][-6:]
    assert {"steps", "test", "speed", "sent", "written"} <= set(ends)


def test_a_file_is_no_config(tmp_path):
    with pytest.raises(jaxnet.InputError, match=r"train: got 'my\.py', wanted a Config; jaxnet\.load_config"):
        jaxnet.train("my.py", tmp_path / "run")


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        (
            {"image": np.zeros((8, 4, 4, 1), np.float32)},
            r"holds image float32\[4, 4, 1\], label int32\[\], .* image uint8",
        ),
        ({"features": np.zeros((8, 3), np.float32)}, r"set task=Classification\(\)"),
        ({"target": np.zeros(8, np.float32)}, r"set task=Regression\(\)"),
    ],
)
def test_data_for_another_task_name_it(arrays, words):
    part = {**arrays, "label": np.arange(8, dtype=np.int32) % 2}
    data = jaxnet.data.Arrays(train=part, test=part)
    with pytest.raises(jaxnet.InputError, match=words):
        jaxnet.prepare(jaxnet.Config(jaxnet.models.CNN(2, widths=(2,), hidden=4), data, epochs=1, batch_size=8))


def test_a_run_shows_its_figures_and_its_plan(runs):
    shown = runs["ddp"]._repr_html_()
    assert f"<th>{runs['ddp'].workdir.name}</th>" in shown
    assert "<summary>what a step sent</summary>" in shown
    assert "test accuracy" in shown


def test_runs_in_a_list_have_the_names_of_their_directories(runs, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    compared = jaxnet.compare([runs["ddp"], runs["mine"].workdir])
    assert list(compared.summaries) == [runs["ddp"].workdir.name, runs["mine"].workdir.name]
    assert "without curves: the picture needs matplotlib" in compared._repr_html_()


def test_runs_are_compared_in_a_terminal(runs, capsys):
    asked = ["report", str(runs["ddp"].workdir), str(runs["mine"].workdir)]
    assert run_jaxnet(asked) == 0
    head, strategy, *_ = capsys.readouterr().out.splitlines()
    assert head.split() == [runs["ddp"].workdir.name, runs["mine"].workdir.name]
    assert strategy.split()[:2] == ["strategy", "ddp"]
    assert run_jaxnet([*asked, "--json"]) == 0
    assert [row["loss"] for row in json.loads(capsys.readouterr().out)] == [
        runs[name].summary["loss"] for name in ("ddp", "mine")
    ]


def test_a_copy_that_is_not_installed_says_so(monkeypatch):
    def version(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(summary, "version", version)
    assert summary.own_version() == "not installed"
