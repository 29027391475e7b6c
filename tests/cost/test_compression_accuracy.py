"""The benchmark of lossy strategies: its labels, its table by hand, and a tiny run that is made once."""

import json
import subprocess
import sys

import pytest

from benchmarks import compression_accuracy as benchmark
from support.programs import ROOT, clean_environment, write_program

TINY = """
    from jaxnet.data import Synthetic
    from jaxnet.models import CNN
    from jaxnet.config.run import Config

    def get_config():
        data = Synthetic((8, 8, 1), num_classes=2, num_train=32, num_test=16)
        return Config(model=CNN(2, widths=(4,), hidden=8), data=data, epochs=1, batch_size=16, eval_batch_size=16)
"""


def test_a_table_by_hand():
    accuracies = {"hierarchical": (0.90, 0.92), "fp16": (0.90, 0.91), "int8": (0.92, 0.88)}
    sent = {"hierarchical": 800, "fp16": 400, "int8": 200}
    finished = [
        {"strategy": name, "seed": seed, "accuracy": value, "wire_bytes_per_step": sent[name]}
        for name, values in accuracies.items()
        for seed, value in enumerate(values)
    ]
    exact, half, quarter = benchmark.rows(finished, list(accuracies))
    assert exact == ("hierarchical", 800, 1, pytest.approx(91), 90, 92, 0, True)
    assert half == ("fp16", 400, 2, pytest.approx(90.5), 90, 91, -0.5, True)  # half a point is still within
    assert quarter == ("int8", 200, 4, pytest.approx(90), 88, 92, -1, False)


def run(config, results, *arguments):
    options = ["--config", config, "--results", str(results), "--seeds", "1", "--devices-per-host", "1", *arguments]
    command = [sys.executable, str(ROOT / "benchmarks/compression_accuracy.py"), *options]
    return subprocess.run(command, env=clean_environment(), capture_output=True, text=True)


@pytest.mark.slow
@pytest.mark.processes
def test_finished_runs_are_kept_and_not_made_again(tmp_path):
    config, results = write_program(tmp_path, TINY), tmp_path / "runs.jsonl"
    chosen = ["--strategy", "hierarchical", "--strategy", "mxnet_2bit:threshold=0.01"]
    first = run(config, results, *chosen, "--json")
    assert first.returncode == 0, first.stderr
    assert first.stderr.splitlines() == ["1 of 2: hierarchical, seed 0", "2 of 2: mxnet_2bit:threshold=0.01, seed 0"]
    report = json.loads(first.stdout)
    assert report["runs"] == [json.loads(line) for line in results.read_text().splitlines()]
    exact, lossy = report["rows"]
    assert exact["ratio"] == 1 < lossy["ratio"]
    again = run(config, results, *chosen)
    assert (again.returncode, again.stderr) == (0, "")
    assert [line.split()[0] for line in again.stdout.splitlines()[3:]] == ["hierarchical", "mxnet_2bit:threshold=0.01"]


def test_a_wrong_strategy_is_one_line(tmp_path):
    done = run("configs/digits.py", tmp_path / "runs.jsonl", "--strategy", "int9")
    assert done.returncode == 2
    assert "error: argument --strategy: no strategy 'int9'; did you mean 'int8'?" in done.stderr
