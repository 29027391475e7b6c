"""A rank that holds the others up is named, and what the ranks have met is counted over all of them."""

import pytest

from jaxnet.cli.main import run
from support.programs import ROOT, launch
from support.training_runs import metrics, summary
from support.uneven_digits import SLOW_RANK, STEPS

pytestmark = [pytest.mark.processes, pytest.mark.slow]  # tests/training/test_peers.py has its parts


def test_a_slow_rank_is_named_and_damaged_records_are_counted_once(tmp_path, capsys):
    config = str(ROOT / "tests/support/uneven_digits.py")
    train, path = str(ROOT / "train.py"), f"{ROOT}:{ROOT}/tests"
    with launch(train, "--config", config, "--workdir", str(tmp_path), processes=3, PYTHONPATH=path) as program:
        assert program.finish() == 0, program.err
    final = summary(tmp_path)
    [worst, *others] = final["stragglers"]
    assert (worst["rank"], worst["part"], worst["ranks"]) == (SLOW_RANK, "host", 3)
    assert worst["seconds"] > 0.1 > worst["limit"]
    assert {each["part"] for each in others} <= {"device"}
    named = f"rank {SLOW_RANK} is a straggler: its host needs "
    assert [line for line in program.out if line.startswith(f"[0] {named}")]
    assert run(["report", str(tmp_path)]) == 0
    assert f"attempt 1: {named}" in capsys.readouterr().out
    assert final["damaged_records"] == 4
    assert metrics(tmp_path, "test")[STEPS]["damaged_records"] == 4
    assert all("damaged_records" not in line for line in metrics(tmp_path).values())
