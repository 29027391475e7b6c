"""W&B and MLflow, offline, with the real libraries: they hold the same curves as metrics.jsonl."""

import json
import struct
import time

import pytest

import jaxnet
from jaxnet.errors import InputError
from jaxnet.report.run_files import curve, read_metrics
from jaxnet.training.trackers import tracking

wandb = pytest.importorskip("wandb", reason="W&B is not installed: pip install 'jaxnet[wandb]'")
mlflow = pytest.importorskip("mlflow", reason="MLflow is not installed: pip install 'jaxnet[mlflow]'")


@pytest.fixture(autouse=True)
def offline(monkeypatch, tmp_path):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file://{tmp_path}/mlruns")
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "tests")


def wandb_history(workdir):
    """Every line of a run that W&B has written below a directory, as {name: value}."""
    from wandb.proto import wandb_internal_pb2

    [file] = workdir.glob("wandb/offline-run-*/*.wandb")
    kinds, lines = [], []
    for _ in range(100):  # W&B writes the end of its file after `finish` has returned
        found = [wandb_internal_pb2.Record.FromString(content) for content in records(file.read_bytes())]
        kinds = [record.WhichOneof("record_type") for record in found]
        if "exit" in kinds:
            break
        time.sleep(0.1)
    assert "exit" in kinds
    for record in (record for record, kind in zip(found, kinds, strict=True) if kind == "history"):
        lines.append(
            {each.key or ".".join(each.nested_key): json.loads(each.value_json) for each in record.history.item}
        )
    return lines


def records(content):
    """The records of a log in LevelDB's format: in blocks of 32 KiB, each whole (1) or in parts (2, 3..., 4)."""
    place, parts = 7, b""
    while place + 7 <= len(content):
        if (left := 32768 - place % 32768) < 7:
            place += left
            continue
        _, size, kind = struct.unpack_from("<IHB", content, place)
        parts += content[place + 7 : place + 7 + size]
        place += 7 + size
        if kind in (1, 4):
            yield parts
            parts = b""


def config(**changes):
    return jaxnet.Config(
        model=jaxnet.models.CNN(num_classes=10, widths=(4,), hidden=8),
        data=jaxnet.data.Digits(),
        task=jaxnet.ImageClassification(jaxnet.Pixels(mean=(0.305,), std=(0.376,))),
        epochs=1,
        batch_size=128,
        strategy="flat",
        log=jaxnet.Log(every_steps=4, tensorboard=False, trackers=("wandb", "mlflow")),
        **changes,
    )


def test_both_hold_the_curves_of_metrics_jsonl(tmp_path):
    run = jaxnet.train(config(), tmp_path / "run", quiet=True)
    known = json.loads((tmp_path / "run/trackers.json").read_text())
    lines = read_metrics(run.workdir)
    sent, client = wandb_history(run.workdir), mlflow.MlflowClient()
    for split, name in [("train", "loss"), ("train", "examples_per_second"), ("test", "accuracy")]:
        wanted = curve(lines, split, name)
        assert wanted
        assert [(line["step"], line[f"{split}/{name}"]) for line in sent if f"{split}/{name}" in line] == wanted
        found = client.get_metric_history(known["mlflow"], f"{split}/{name}")
        assert [(each.step, each.value) for each in found] == wanted
    tracked = client.get_run(known["mlflow"])
    assert (tracked.info.run_name, tracked.info.status) == ("run", "FINISHED")
    assert tracked.data.params["optimizer.name"] == "sgd"


def test_a_run_that_is_continued_goes_on_where_it_was(tmp_path):
    def send(step):
        with tracking(["mlflow"], tmp_path, "run", {"epochs": 1}, print) as [observer]:
            observer.on_metrics(step, "train", {"loss": 1 / step, "note": "a word"})
        return json.loads((tmp_path / "trackers.json").read_text())["mlflow"]

    first = send(1)
    assert send(2) == first
    history = mlflow.MlflowClient().get_metric_history(first, "train/loss")
    assert [(each.step, each.value) for each in history] == [(1, 1.0), (2, 0.5)]


def test_training_goes_on_where_a_tracker_fails_and_it_is_said_once(tmp_path):
    said = []
    with tracking(["mlflow"], tmp_path, "run", {}, said.append) as [observer]:
        for step in (1, 2):
            observer.on_metrics(step, "train", {"loss/ not a name $": 1.0})
    assert len(said) == 1
    assert said[0].startswith("mlflow cannot be reached: ")
    assert said[0].endswith("; training goes on without it")


def test_a_run_that_fails_has_failed_there_too(tmp_path):
    with pytest.raises(ZeroDivisionError), tracking(["wandb", "mlflow"], tmp_path, "run", {}, print):
        1 / 0  # noqa: B018
    known = json.loads((tmp_path / "trackers.json").read_text())
    assert mlflow.MlflowClient().get_run(known["mlflow"]).info.status == "FAILED"


def test_one_that_refuses_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "nowhere://x")
    with (
        pytest.raises(InputError, match=r"^log\.trackers=mlflow: it refuses the run: "),
        tracking(["mlflow"], tmp_path, "run", {}, print),
    ):
        pass


def test_one_that_is_not_installed_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "wandb", None)
    with (
        pytest.raises(InputError, match=r"^log.trackers=wandb: .*: pip install 'jaxnet\[wandb\]'"),
        tracking(["wandb"], tmp_path, "run", {}, print),
    ):
        pass
