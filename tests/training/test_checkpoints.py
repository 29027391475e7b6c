import json
import logging
import re
import resource
import shutil
from typing import NamedTuple

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxnet.errors import InputError
from jaxnet.training import manifest
from jaxnet.training.checkpoints import Checkpoints

DTYPES = ["float32", "float16", "bfloat16", "uint8", "int32", "uint32", "bool", "float8_e4m3fn"]


class State(NamedTuple):
    step: object
    params: object
    comm: object
    key: object


def mesh_of(hosts, devices):
    grid = np.array(jax.devices()[: hosts * devices]).reshape(hosts, devices)
    return jax.sharding.Mesh(grid, ("host", "device"), axis_types=(AxisType.Auto,) * 2)


def host_state(seed):
    """Every bit pattern that a draw of bytes gives, NaNs among them; one leaf has no elements."""
    draw = np.random.default_rng(seed)
    params = {
        name: (draw.bytes(24 * np.dtype(name).itemsize), np.dtype(name)) for name in DTYPES if name != "bool"
    }
    params = {name: np.frombuffer(raw, dtype).reshape(4, 6) for name, (raw, dtype) in params.items()}
    params["bool"] = draw.integers(0, 2, (3,)).astype(bool)
    params["conv.1/kernel"] = {"none": np.zeros((0, 5), np.float32), "scale": np.float32(seed)}
    comm = {"residual": draw.normal(size=(8, 16)).astype(np.float32)}
    return State(np.int32(seed), params, (comm, ()), np.array([seed, 7], np.uint32))


def shardings(mesh):
    everywhere, split = NamedSharding(mesh, P()), NamedSharding(mesh, P(("host", "device")))
    return lambda path, _: split if "residual" in jax.tree_util.keystr(path) else everywhere


def on(mesh, tree):
    where = shardings(mesh)
    return jax.tree_util.tree_map_with_path(lambda path, x: jax.device_put(x, where(path, x)), tree)


def like(mesh, tree):
    where = shardings(mesh)
    return jax.tree_util.tree_map_with_path(
        lambda path, x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where(path, x)), tree
    )


def assert_same_bits(got, expected):
    assert jax.tree.structure(got) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


@pytest.fixture(scope="module")
def mesh():
    return mesh_of(2, 4)


@pytest.fixture
def opened(tmp_path):
    """Opens the run's directory, as often as wanted; all are closed at the end."""
    all_opened = []

    def open_run(**options):
        all_opened.append(Checkpoints(tmp_path / "run", **options))
        return all_opened[-1]

    yield open_run
    for checkpoints in all_opened:
        checkpoints.close()


@pytest.fixture
def small(mesh):
    return lambda seed: on(mesh, {"w": np.full((4, 4), seed, np.float32)})


@pytest.fixture
def saved(opened, small):
    """A directory with steps 100, 200 and 300."""
    checkpoints = opened()
    for step in (100, 200, 300):
        checkpoints.save(step, small(step), extra={"next_step": step + 1})
    checkpoints.wait()
    return checkpoints._files.root


def damage(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x10
    path.write_bytes(content)


def a_data_file(step_directory):
    return max((step_directory / "state").rglob("*"), key=lambda path: path.stat().st_size * path.is_file())


def test_nothing_is_found_in_a_new_directory(opened, mesh):
    assert opened().restore_latest(like(mesh, host_state(0))) is None
    assert opened().steps() == []


@pytest.mark.parametrize("shape", [(2, 4), (1, 8), (4, 2), (1, 1), (2, 1)])
def test_every_bit_comes_back_on_any_mesh(opened, mesh, shape):
    expected = host_state(5)
    first = opened()
    first.save(5, on(mesh, expected), extra={"seed": 3, "data": {"next_step": 6}})
    first.wait()
    target = like(mesh_of(*shape), expected)
    restored = opened().restore_latest(target)
    assert (restored.step, restored.extra) == (5, {"seed": 3, "data": {"next_step": 6}})
    assert_same_bits(restored.state, expected)
    jax.tree.map(lambda x, want: x.sharding == want.sharding or pytest.fail("sharding"), restored.state, target)


def test_random_keys_come_back(opened, mesh):
    state = {"key": jax.device_put(jax.random.key(3), NamedSharding(mesh, P()))}
    checkpoints = opened()
    checkpoints.save(1, state, extra={})
    restored = checkpoints.restore_latest(like(mesh, state))
    assert jax.random.key_data(restored.state["key"]).tolist() == [0, 3]


def test_the_state_is_an_ordinary_orbax_checkpoint(saved):
    with ocp.StandardCheckpointer() as reader:
        tree = reader.restore(saved / "000300" / "state")
    assert np.all(np.asarray(tree["w"]) == 300)


def test_buffers_may_be_donated_when_save_returns(opened, mesh):
    overwrite = jax.jit(lambda tree: jax.tree.map(lambda x: x * 0 - 1, tree), donate_argnums=0)
    checkpoints = opened(keep=5)
    expected = {
        "replicated": np.arange(500_000, dtype=np.float32),
        "residual": np.arange(800_000, dtype=np.float32).reshape(8, -1),
        "one": np.float32(7),
    }
    for step in range(1, 5):
        state = on(mesh, expected)
        checkpoints.save(step, state, extra={})
        for _ in range(4):
            state = overwrite(state)
        jax.block_until_ready(state)
    for step in range(1, 5):
        assert_same_bits(checkpoints.restore(step, like(mesh, expected)).state, expected)


def test_extra_is_taken_as_it_was_at_the_call(opened, small):
    checkpoints, extra = opened(), {"seen": [1]}
    checkpoints.save(1, small(1), extra=extra)
    extra["seen"].append(2)
    assert checkpoints.restore(1, small(1)).extra == {"seen": [1]}


def test_a_step_that_is_there_already_is_not_saved_again(opened, small):
    checkpoints = opened()
    checkpoints.save(1, small(1), extra={"first": True})
    checkpoints.save(1, small(2), extra={"first": False})
    checkpoints.wait()
    resumed = opened()
    assert resumed.restore_latest(small(0)).extra == {"first": True}
    resumed.save(1, small(1), extra={"first": False})
    assert resumed.restore(1, small(0)).extra == {"first": True}


@pytest.mark.parametrize("step", [300, 150])
def test_a_step_that_a_resume_would_not_find_is_refused(saved, opened, small, step):
    checkpoints = opened()
    checkpoints.restore(100, small(0))
    with pytest.raises(InputError, match=f"step {step} is not newer than step 300"):
        checkpoints.save(step, small(step), extra={})
    checkpoints.save(301, small(301), extra={})


def test_the_newest_steps_and_the_best_are_kept(opened, small):
    checkpoints = opened(keep=2, best="accuracy")
    for step, accuracy in enumerate([0.5, 0.9, 0.7, 0.9, 0.6, float("nan"), None], start=1):
        metrics = None if accuracy is None else {"accuracy": accuracy, "loss": 1.0}
        checkpoints.save(step, small(step), extra={}, metrics=metrics)
    checkpoints.wait()
    assert checkpoints.steps() == [4, 6, 7]


def test_the_best_may_be_the_smallest(opened, small):
    checkpoints = opened(keep=1, best="loss", best_mode="min")
    for step, loss in enumerate([3.0, 1.0, 2.0], start=1):
        checkpoints.save(step, small(step), extra={}, metrics={"loss": np.float32(loss)})
    checkpoints.wait()
    assert checkpoints.steps() == [2, 3]


def test_a_metric_that_is_not_measured_is_named(opened, small):
    with pytest.raises(InputError, match="'accuracy'.*not among those measured: loss, top5"):
        opened(best="accuracy").save(1, small(1), extra={}, metrics={"loss": 1.0, "top5": 0.5})


def test_a_flipped_bit_in_any_file_is_caught_and_the_file_named(saved, opened, small):
    files = [path for path in (saved / "000300").rglob("*") if path.is_file()]
    assert len(files) > 5
    checkpoints = opened()
    for path in files:
        whole = path.read_bytes()
        damage(path)
        name = path.relative_to(saved / "000300").as_posix()
        with pytest.raises(InputError, match=f"step 300 .* is damaged: {name} is not as it was written"):
            checkpoints.restore(300, small(0))
        path.write_bytes(whole)
    assert_same_bits(checkpoints.restore(300, small(0)).state, small(300))


@pytest.mark.parametrize(
    ("harm", "complaint"),
    [
        (lambda step: damage(a_data_file(step)), "state/.* is not as it was written"),
        (lambda step: a_data_file(step).unlink(), "state/.* is missing"),
        (lambda step: a_data_file(step).write_bytes(b"short"), "state/.* has 5 bytes, .* were written"),
        (lambda step: (step / "manifest.json").unlink(), r"manifest\.json is missing"),
        (lambda step: shutil.rmtree(step / "state"), "state/.* is missing; .* files more"),
        (lambda step: shutil.copy(step.parent / "000200/manifest.json", step), "state/.* is missing|is not as"),
    ],
)
def test_a_damaged_step_is_named_and_the_one_before_is_used(saved, opened, small, caplog, harm, complaint):
    harm(saved / "000300")
    left = sorted(path.name for path in (saved / "000300").iterdir())
    checkpoints = opened()
    with caplog.at_level(logging.WARNING, "jaxnet"):
        restored = checkpoints.restore_latest(small(0))
    assert (restored.step, restored.extra) == (200, {"next_step": 201})
    assert_same_bits(restored.state, small(200))
    [record] = [record for record in caplog.records if record.name == "jaxnet"]
    assert record.getMessage().startswith("checkpoint step 300 is damaged: ")
    assert re.search(complaint, record.getMessage())
    aside = saved / "damaged/000300-1"
    assert str(aside) in record.getMessage()
    assert sorted(path.name for path in aside.iterdir()) == left

    checkpoints.save(300, small(301), extra={})
    checkpoints.wait()
    assert_same_bits(opened().restore_latest(small(0)).state, small(301))


def test_steps_set_aside_never_replace_each_other(saved, opened, small):
    for number in (1, 2):
        damage(a_data_file(saved / "000300"))
        checkpoints = opened()
        assert checkpoints.restore_latest(small(0)).step == 200
        assert sorted(path.name for path in (saved / "damaged").iterdir())[-1] == f"000300-{number}"
        checkpoints.save(300, small(300), extra={})
        checkpoints.wait()


def test_a_directory_under_another_step_is_not_taken_for_it(saved, opened, small):
    shutil.copytree(saved / "000100", saved / "000400")
    with pytest.raises(InputError, match=r"step 400 .* manifest\.json is that of step 100"):
        opened().restore(400, small(0))


def test_when_all_are_damaged_each_is_named_and_none_is_moved(saved, opened, small):
    for step in ("000100", "000200", "000300"):
        damage(a_data_file(saved / step))
    for _ in range(2):    # a second start must not take the directory for an empty one
        with pytest.raises(InputError, match="step 300: state/.*step 200: state/.*step 100: state/") as error:
            opened().restore_latest(small(0))
        assert "\n" not in str(error.value)
    assert opened().steps() == [100, 200, 300]


def test_a_step_with_missing_files_neither_counts_nor_disappears(saved, opened, small):
    (saved / "000300/manifest.json").unlink()
    a_data_file(saved / "000200").unlink()
    checkpoints = opened(keep=2)
    checkpoints.save(400, small(400), extra={})
    checkpoints.wait()
    assert checkpoints.steps() == [100, 200, 300, 400]
    checkpoints.save(500, small(500), extra={})
    checkpoints.wait()
    assert checkpoints.steps() == [200, 300, 400, 500]


def test_leftovers_of_a_killed_process_are_ignored_and_removed(saved, opened, small):
    shutil.copytree(saved / "000300", saved / "000400.saving")
    (saved / "000050.deleting/state").mkdir(parents=True)
    (saved / "notes").mkdir()
    checkpoints = opened()
    assert checkpoints.restore_latest(small(0)).step == 300
    checkpoints.save(400, small(400), extra={})
    checkpoints.wait()
    assert sorted(path.name for path in saved.iterdir()) == ["000200", "000300", "000400", "notes"]


@pytest.mark.parametrize(
    ("wanted", "complaint"),
    [
        ({"w": np.zeros((4, 5), np.float32)}, r"w is float32\[4, 4\], not float32\[4, 5\]"),
        ({"w": np.zeros((4, 4), np.int32)}, r"w is float32\[4, 4\], not int32\[4, 4\]"),
        ({"v": np.zeros((4, 4), np.float32)}, r"w \(float32\[4, 4\]\) is not wanted; v \(.*\) is absent"),
    ],
)
def test_another_state_is_refused_leaf_by_leaf(saved, opened, mesh, wanted, complaint):
    with pytest.raises(InputError, match=complaint):
        opened().restore_latest(like(mesh, wanted))


def test_an_absent_step_is_refused_with_those_that_are_there(saved, opened, small):
    with pytest.raises(InputError, match=r"step 250 .* is not there \(other steps there: 100, 200, 300\)"):
        opened().restore(250, small(0))


def test_a_directory_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(InputError, match=f"checkpoints cannot be written to {place}: "):
            Checkpoints(place)


@pytest.mark.parametrize("options", [{"keep": 0}, {"best_mode": "largest"}])
def test_options_are_checked(opened, options):
    with pytest.raises(InputError, match=next(iter(options))):
        opened(**options)


def test_a_failed_seal_is_reported_and_the_next_save_works(saved, opened, small, monkeypatch):
    checkpoints = opened()
    with monkeypatch.context() as patch:

        def full(*_):
            raise OSError(28, "No space left on device")

        patch.setattr(manifest, "write", full)
        checkpoints.save(400, small(400), extra={})
        with pytest.raises(InputError, match="step 400 could not be written to .*No space left on device"):
            checkpoints.wait()
    assert checkpoints.restore_latest(small(0)).step == 300
    checkpoints.save(400, small(400), extra={})
    assert checkpoints.restore_latest(small(0)).step == 400


# Tensorstore still reports the other parts of a failed write to the event loop that Orbax has closed.
@pytest.mark.filterwarnings("ignore:Exception ignored in:pytest.PytestUnraisableExceptionWarning")
def test_a_full_disk_is_reported_once_and_the_next_save_works(saved, opened, small, mesh, caplog):
    """A limit on the size of files stands for the disk that is full."""
    checkpoints = opened()
    large = on(mesh, {"w": np.random.default_rng(0).normal(size=500_000).astype(np.float32)})
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
        checkpoints.save(400, large, extra={})
        with pytest.raises(InputError, match="step 400 could not be written to") as error:
            checkpoints.wait()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert str(error.value).endswith("File too large")
    assert caplog.records == []
    assert checkpoints.steps() == [100, 200, 300]
    checkpoints.save(400, small(400), extra={})
    assert checkpoints.restore_latest(small(0)).step == 400


def test_what_is_written_says_what_it_is(saved):
    content = json.loads((saved / "000300/manifest.json").read_text())
    assert content["about"] == {
        "step": 300,
        "extra": {"next_step": 301},
        "metrics": {},
        "leaves": {"w": "float32[4, 4]"},
    }
