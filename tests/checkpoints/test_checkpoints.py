"""Save, restore on other meshes, keep the newest and the best, and refuse what does not fit."""

import functools
import json
import shutil

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from jaxnet.checkpoints import Checkpointer, NotSaved, Replaceable, files
from jaxnet.checkpoints.consensus import why_not
from jaxnet.checkpoints.reader import find_checkpoint, read_leaves
from jaxnet.errors import InputError
from support.checkpointing import Run, assert_same_bits, host_state, like, mesh_of, on


@pytest.fixture
def run(tmp_path):
    run = Run(tmp_path / "run")
    yield run
    run.close()


def test_nothing_is_found_in_a_new_directory(run):
    assert run.open().restore_latest(run.like) is None
    assert run.open().steps() == []


@pytest.mark.parametrize("shape", [(2, 4), (1, 8), (4, 2), (1, 1), (2, 1)])
def test_every_bit_comes_back_on_any_mesh(run, shape):
    expected = host_state(5)
    first = run.open()
    first.save(5, on(run.mesh, expected), extra={"seed": 3, "data": {"next_step": 6}})
    first.wait()
    target = like(mesh_of(*shape), expected)
    restored = run.open().restore_latest(target)
    assert (restored.step, restored.extra) == (5, {"seed": 3, "data": {"next_step": 6}})
    assert_same_bits(restored.state, expected)
    assert jax.tree.map(lambda x: x.sharding, restored.state) == jax.tree.map(lambda x: x.sharding, target)


def test_random_keys_come_back(run):
    state = {"key": jax.device_put(jax.random.key(3), NamedSharding(run.mesh, P()))}
    checkpoints = run.open()
    checkpoints.save(1, state, extra={})
    restored = checkpoints.restore_latest(like(run.mesh, state))
    assert jax.random.key_data(restored.state["key"]).tolist() == [0, 3]


def test_the_state_is_an_ordinary_orbax_checkpoint(run):
    run.save(300)
    with ocp.StandardCheckpointer() as reader:
        tree = reader.restore(run.path / "000300/state")
    assert_same_bits(tree, run.value(300))


def test_leaves_are_read_by_name_also_those_without_elements(run):
    state = {"none": np.zeros((0, 3), np.float32), "pair": (np.float32(2), None)}
    checkpoints = run.open()
    checkpoints.save(1, on(run.mesh, state), extra={})
    checkpoints.wait()
    there = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    shapes = {"none": (0, 3), "pair/0": ()}
    wanted = {name: jax.ShapeDtypeStruct(shape, "float32", sharding=there) for name, shape in shapes.items()}
    read = read_leaves(find_checkpoint(run.path), wanted)
    assert {name: leaf.tolist() for name, leaf in read.items()} == {"none": [], "pair/0": 2}


def test_what_is_written_says_what_it_is(run):
    run.save(300)
    content = json.loads((run.path / "000300/manifest.json").read_text())
    leaves = {"w": "float32[4, 4]"}
    assert content["about"] == {"step": 300, "extra": {"next_step": 301}, "best": None, "leaves": leaves}


def test_buffers_may_be_donated_when_save_returns(run):
    overwrite = jax.jit(lambda tree: jax.tree.map(lambda x: x * 0 - 1, tree), donate_argnums=0)
    checkpoints = run.open(keep=5)
    expected = {
        "replicated": np.arange(500_000, dtype=np.float32),
        "residual": np.arange(800_000, dtype=np.float32).reshape(8, -1),
        "one": np.float32(7),
    }
    for step in range(1, 5):
        state = on(run.mesh, expected)
        checkpoints.save(step, state, extra={})
        for _ in range(4):
            state = overwrite(state)
        jax.block_until_ready(state)
    for step in range(1, 5):
        assert_same_bits(checkpoints.restore(step, like(run.mesh, expected)).state, expected)


def test_extra_is_taken_as_it_was_at_the_call(run):
    checkpoints, extra = run.open(), {"seen": [1]}
    checkpoints.save(1, run.state(1), extra=extra)
    extra["seen"].append(2)
    assert checkpoints.restore(1, run.like).extra == {"seen": [1]}


def test_a_step_that_is_there_already_is_not_saved_again(run):
    checkpoints = run.open()
    checkpoints.save(1, run.state(1), extra={"first": True})
    checkpoints.save(1, run.state(2), extra={"first": False})
    checkpoints.wait()
    resumed = run.open()
    assert resumed.restore_latest(run.like).extra == {"first": True}
    resumed.save(1, run.state(1), extra={"first": False})
    assert resumed.restore(1, run.like).extra == {"first": True}


@pytest.mark.parametrize("step", [300, 150])
def test_a_step_that_a_resume_would_not_find_is_refused(run, step):
    run.save(100, 200, 300)
    checkpoints = run.open()
    checkpoints.restore(100, run.like)
    with pytest.raises(InputError, match=f"step {step} is not newer than step 300"):
        checkpoints.save(step, run.state(step), extra={})
    checkpoints.save(301, run.state(301), extra={})


def test_the_newest_steps_and_the_best_are_kept(run):
    checkpoints, kept = run.open(keep=2), []
    for step, best in enumerate([None, 2, 2, 2, 5, 5], start=1):
        checkpoints.save(step, run.state(step), extra={}, best=best)
        checkpoints.wait()
        kept.append(checkpoints.steps())
    assert kept == [[1], [1, 2], [2, 3], [2, 3, 4], [4, 5], [5, 6]]
    assert find_checkpoint(run.path, best=True).step == 5


def test_the_best_may_be_known_only_after_it_was_saved(run):
    """A run that is stopped at an evaluation makes it when it goes on."""
    checkpoints = run.open(keep=1)
    checkpoints.save(1, run.state(1), extra={})
    checkpoints.save(2, run.state(2), extra={}, best=1)
    checkpoints.wait()
    assert checkpoints.steps() == [1, 2]
    assert find_checkpoint(run.path, best=True).step == 1


@pytest.mark.parametrize(
    ("wanted", "complaint"),
    [
        ({"w": np.zeros((4, 5), np.float32)}, r"w is float32\[4, 4\], not float32\[4, 5\]"),
        ({"w": np.zeros((4, 4), np.int32)}, r"w is float32\[4, 4\], not int32\[4, 4\]"),
        ({"v": np.zeros((4, 4), np.float32)}, r"w \(float32\[4, 4\]\) is not wanted; v \(.*\) is absent"),
    ],
)
def test_another_state_is_refused_leaf_by_leaf(run, wanted, complaint):
    run.save(300)
    with pytest.raises(InputError, match=complaint):
        run.open().restore_latest(like(run.mesh, wanted))


def test_an_absent_step_is_refused_with_those_that_are_there(run):
    run.save(100, 200)
    with pytest.raises(InputError, match=r"step 250 .* is not there \(other steps there: 100, 200\)"):
        run.open().restore(250, run.like)


def test_a_directory_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(InputError, match=f"checkpoints cannot be written to {place}: "):
            Checkpointer(place)


def test_at_least_one_is_kept(run):
    with pytest.raises(InputError, match="keep is 0; at least 1"):
        run.open(keep=0)


def test_leftovers_of_a_killed_process_are_ignored_and_removed(run):
    run.save(200, 300)
    shutil.copytree(run.path / "000300", run.path / "000400-1.saving")
    (run.path / "000050.deleting/state").mkdir(parents=True)
    (run.path / "notes").mkdir()
    checkpoints = run.open()
    assert checkpoints.restore_latest(run.like).step == 300
    checkpoints.save(400, run.state(400), extra={})
    checkpoints.wait()
    assert sorted(path.name for path in run.path.iterdir()) == ["000200", "000300", "000400", "notes"]


def test_leaves_that_can_be_made_anew_are_where_they_differ_and_only_they(run):
    """Residuals of eight devices, wanted for four: those of the checkpoint are not read."""
    saved = {"w": np.arange(6, dtype=np.float32), "comm": {"residual": np.ones((8, 2), np.float32), "n": np.int32(1)}}
    wanted = {"w": saved["w"], "comm": {"residual": np.zeros((4, 2), np.float32), "n": np.int32(0)}}
    checkpoints = run.open()
    checkpoints.save(1, on(run.mesh, saved), extra={})
    four = mesh_of(1, 4)
    replaceable = Replaceable("comm/", lambda: {"comm": on(four, wanted["comm"])})
    same = checkpoints.restore_latest(like(run.mesh, saved), replaceable=replaceable)
    assert_same_bits(same.state, saved)
    assert same.replaced == {}
    other = checkpoints.restore_latest(like(four, wanted), replaceable=replaceable)
    assert_same_bits(other.state, wanted)
    assert other.replaced == {"comm/residual": "float32[8, 2]", "comm/n": "int32[]"}
    none = checkpoints.restore_latest(like(four, {"w": saved["w"]}), replaceable=Replaceable("comm/", dict))
    assert_same_bits(none.state, {"w": saved["w"]})
    with pytest.raises(InputError, match=r"another state than .*: w is float32\[6\], not float32\[5\]\. "):
        checkpoints.restore_latest(like(four, {**wanted, "w": saved["w"][:5]}), replaceable=replaceable)
    with pytest.raises(InputError, match="comm/residual is"):
        checkpoints.restore_latest(like(four, wanted))


def test_a_failure_always_has_a_word():
    def fail(text):
        raise ValueError(text)

    assert why_not(lambda: fail("\n\nsomething broke")) == "something broke"
    assert why_not(lambda: fail("")) == "ValueError"


def test_what_could_not_be_read_again_is_not_saved(tmp_path):
    deep = functools.reduce(lambda inner, _: [inner], range(70), 1)
    checkpoints = Checkpointer(tmp_path)
    with pytest.raises(InputError, match=r"extra of checkpoint step 1 could not be read again: .* more than 64 deep"):
        checkpoints.save(1, {"w": np.zeros(2, np.float32)}, extra={"deep": deep})
    checkpoints.close()


def test_a_step_that_cannot_be_made_sure_of_is_none_and_may_be_saved_again(tmp_path, monkeypatch):
    checkpoints, broken = Checkpointer(tmp_path), [True]
    flush = files.flush_directory

    def fails_once(path):
        if broken and path == tmp_path:
            broken.clear()
            raise OSError(5, "Input/output error")
        flush(path)

    monkeypatch.setattr(files, "flush_directory", fails_once)
    checkpoints.save(1, {"w": np.ones(2, np.float32)}, extra={})
    with pytest.raises(NotSaved, match="Input/output error"):
        checkpoints.wait()
    assert checkpoints.steps() == []
    checkpoints.save(1, {"w": np.ones(2, np.float32)}, extra={})
    checkpoints.close()
    assert Checkpointer(tmp_path).steps() == [1]
