"""A few of the cases that `python -m benchmarks.fuzz` draws, and what it counts as a failure."""

import pytest

from benchmarks.fuzz import Worker
from benchmarks.fuzzing.draw import all_kinds, draw_case
from benchmarks.fuzzing.trial import verdict

SUMMARY = '{"steps": 2}\n'


@pytest.fixture(scope="module")
def worker():
    made = Worker(devices=4, limit=120)
    yield made
    made.close()


@pytest.mark.parametrize(
    ("seed", "wanted"),
    [
        (1, "trained"),
        (4, "taken"),
        *((seed, "") for seed in range(20000, 20012) if seed != 20008),  # which trains a residual network for a minute
    ],
)
def test_a_case_trains_or_is_refused(worker, seed, wanted):
    found = worker.verdict(seed, trains=wanted == "trained")
    assert found.startswith(("trained", "refused: "))


def test_a_case_is_a_function_of_its_seed():
    kinds = all_kinds()
    cases = [draw_case(seed, kinds) for seed in range(50)]
    assert cases == [draw_case(seed, kinds) for seed in range(50)]
    assert len({case.config for case in cases}) > 10
    assert len({override.partition("=")[0] for case in cases for override in case.overrides}) > 30


@pytest.mark.parametrize(
    ("ending", "found"),
    [
        ((0, f"a line\n{SUMMARY}", ""), "trained"),
        ((0, SUMMARY, "warning: that may be\n"), "trained"),
        ((2, "", "error: epochs=0\n"), "refused: epochs=0"),
        ((0, "a line\n", ""), "FAILED: the last line is no summary"),
        ((0, SUMMARY, "error: but it went on\n"), "FAILED"),
        (
            (1, "", "Traceback (most recent call last):\nValueError: why\n"),
            "FAILED: status 1, a traceback: ValueError: why",
        ),
        ((2, "", "error: one\nerror: two\n"), "FAILED: status 2, 2 error lines"),
        ((2, "", "error: one\nand more\n"), "FAILED"),
        ((2, "", "error: \n"), "FAILED"),
        ((-6, "", ""), "FAILED: status -6"),
    ],
)
def test_what_counts_as_a_failure(ending, found, tmp_path):
    assert verdict(*ending, tmp_path / "absent").startswith(found)


@pytest.mark.parametrize(
    ("name", "text", "found"),
    [
        ("config.json", '{"epochs": 1,', "config.json holds"),
        ("metrics.jsonl", '{"step": 1}\n{"step"', "metrics.jsonl holds '{\"step\"'"),
        (".summary.json.0123456789ab.fresh", "{", ".summary.json.0123456789ab.fresh is left"),
        ("checkpoints/000002/state", "", "checkpoints are damaged"),
    ],
)
def test_files_that_are_not_whole(name, text, found, tmp_path):
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text(text)
    assert verdict(2, "", "error: one\n", tmp_path).startswith(f"FAILED: status 2, {found}")
    assert verdict(0, SUMMARY, "", tmp_path).startswith(f"FAILED: status 0, {found}")
