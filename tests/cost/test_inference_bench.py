"""benchmarks/inference.py: its table by hand, and jaxnet's worker as it asks it."""

from benchmarks.inference import Turn, measure, text


def test_a_table_by_hand():
    times = {
        Turn("jaxnet", 1): [1.0, 2.0, 3.0],
        Turn("jaxnet", 32): [10.0, 20.0, 30.0],
        Turn("onnxruntime", 1): [4.0] * 3,
        Turn("onnxruntime", 32): [40.0] * 3,
    }
    assert list(text(times)) == [
        "| ms | 1: p50 | p99 | 32: p50 | p99 |",
        "| --- | --- | --- | --- | --- |",
        "| jaxnet | 2.0 | 3.0 | 20.0 | 29.8 |",
        "| onnxruntime | 4.0 | 4.0 | 40.0 | 40.0 |",
    ]


def test_a_worker_answers_for_each_batch():
    turns = [Turn("jaxnet", 1), Turn("jaxnet", 2)]
    times = measure("alexnet", turns, calls=2, torch_python="", cores=1)
    assert [len(times[turn]) for turn in turns] == [2, 2]
    assert min(map(min, times.values())) > 0
