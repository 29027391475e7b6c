"""The schedule 'local' across processes: resumed at the end of a round, a run has the bits of the unbroken one."""

import json
import shutil

import pytest

from support.checkpointing import assert_same_bits
from support.training_runs import TWO, arrays, finish

pytestmark = pytest.mark.processes

# Without momentum the optimizer keeps nothing of its own that would act on the next step.
BMUF = ("strategy=bmuf", "optimizer.name=sgd", "optimizer.momentum=0", "optimizer.nesterov=false", "batch_norm=local")


@pytest.mark.slow
def test_a_run_resumed_at_the_end_of_a_round_ends_with_the_bits_of_an_unbroken_one(run, tmp_path):
    unbroken = run(TWO, *BMUF)
    workdir = shutil.copytree(unbroken, tmp_path / "copy")
    shutil.rmtree(workdir / "checkpoints" / "000060")
    finish(workdir, TWO, *BMUF)
    assert_same_bits(arrays(workdir), arrays(unbroken))
    assert json.loads((workdir / "summary.json").read_text())["finished"]
