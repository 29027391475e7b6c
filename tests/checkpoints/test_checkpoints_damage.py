"""Files that changed after they were written, and disks that cannot be read or written."""

import errno
import hashlib
import logging
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from jaxnet.checkpoints import find_checkpoint, manifest
from jaxnet.errors import InputError
from support.checkpointing import Run, assert_same_bits, flip_a_bit, largest_file, on
from support.disks import files_no_longer_than
from support.odd_files import deep, directory, endless, loop, pipe


@pytest.fixture
def run(tmp_path):
    run = Run(tmp_path / "run")
    run.save(100, 200, 300)
    yield run
    run.close()


def test_a_flipped_bit_and_a_truncation_of_any_file_are_caught_and_the_file_named(run):
    files = [path for path in (run.path / "000300").rglob("*") if path.is_file()]
    assert len(files) > 5
    checkpoints = run.open()
    for path in files:
        whole = path.read_bytes()
        name = path.relative_to(run.path / "000300").as_posix()
        sealed = "is not as it was written"
        for harmed, fault in (
            (flipped(whole), sealed),
            (whole[:-1], sealed if name == manifest.NAME else f"has {len(whole) - 1} bytes, {len(whole)} were written"),
            (b"", sealed if name == manifest.NAME else f"has 0 bytes, {len(whole)} were written"),
        ):
            path.write_bytes(harmed)
            with pytest.raises(InputError, match=f"step 300 .* is damaged: {re.escape(name)} {fault}"):
                checkpoints.restore(300, run.like)
        path.write_bytes(whole)
    assert_same_bits(checkpoints.restore(300, run.like).state, run.value(300))


def flipped(content):
    return content[: len(content) // 2] + bytes([content[len(content) // 2] ^ 0x10]) + content[len(content) // 2 + 1 :]


OF_NOTHING = manifest.File(0, hashlib.sha256().hexdigest())


def replaced_by(make, name=None):
    def harm(step):
        path = largest_file(step) if name is None else step / name
        path.unlink()
        make(path)

    return harm


def sealed(names, **about):
    """The harm of a stranger who can seal a manifest."""
    whole = {"step": 300, "extra": {}, "best": None, "leaves": {}, **about}

    def harm(step):
        (step / manifest.NAME).write_text(manifest._render(manifest.Manifest(whole, names)))

    return harm


@pytest.mark.parametrize(
    ("harm", "complaint"),
    [
        (lambda step: flip_a_bit(largest_file(step)), r"state/\S+ is not as it was written"),
        (lambda step: largest_file(step).unlink(), r"state/\S+ is missing"),
        (lambda step: largest_file(step).write_bytes(b"short"), r"state/\S+ has 5 bytes, \d+ were written"),
        (lambda step: (step / "manifest.json").unlink(), r"manifest\.json is missing"),
        (lambda step: shutil.rmtree(step / "state"), r"state/\S+ is missing; .* files more"),
        (lambda step: shutil.copy(step.parent / "000200/manifest.json", step), r"state/\S+ is"),
        (replaced_by(pipe), r"state/\S+ cannot be read: it is a pipe, wanted a file"),
        (replaced_by(loop), r"state/\S+ cannot be read: Too many levels of symbolic links"),
        (replaced_by(pipe, manifest.NAME), r"manifest\.json cannot be read: it is a pipe, wanted a file"),
        (replaced_by(directory, manifest.NAME), r"manifest\.json cannot be read: it is a directory, wanted a file"),
        (replaced_by(loop, manifest.NAME), r"manifest\.json cannot be read: Too many levels of symbolic links"),
        (replaced_by(endless, manifest.NAME), r"manifest\.json cannot be read: it has more than 67,108,864 bytes"),
        (replaced_by(deep, manifest.NAME), r"manifest\.json is not as it was written"),
        (sealed({"../../outside": OF_NOTHING}), r"manifest\.json names \.\./\.\./outside, which is no file of a ch"),
        (sealed({"/etc/passwd": OF_NOTHING}), r"manifest\.json names /etc/passwd, which is no file of a ch"),
        (sealed({"a\0\x1b": OF_NOTHING}), r"a\\x00\\x1b cannot be read: no file can have this name"),
        (sealed({"\ud800": OF_NOTHING}), r"\\ud800 cannot be read: no file can have this name"),
        (sealed({"x" * 300: OF_NOTHING}), r"x{100}\.\.\. \(300 characters\) cannot be read: File name too long"),
        (sealed({}, step="300"), r"manifest\.json is no run's: its step is '300', wanted a whole number"),
        (sealed({}, extra=[]), r"manifest\.json is no run's: its extra is \[\], wanted an object"),
        (sealed({}, best="low"), r"manifest\.json is no run's: its best is 'low', wanted a whole number"),
        (sealed({}, leaves=None), r"manifest\.json is no run's: its leaves is None, wanted an object"),
    ],
)
def test_a_damaged_step_is_named_and_the_one_before_is_used(run, caplog, harm, complaint):
    harm(run.path / "000300")
    left = sorted(path.name for path in (run.path / "000300").iterdir())
    checkpoints = run.open()
    with caplog.at_level(logging.WARNING, "jaxnet"):
        restored = checkpoints.restore_latest(run.like)
    assert (restored.step, restored.extra) == (200, {"next_step": 201})
    assert_same_bits(restored.state, run.value(200))
    [record] = [record for record in caplog.records if record.name == "jaxnet"]
    aside = run.path / "damaged/000300-1"
    assert re.match(f"checkpoint step 300 is damaged: {complaint}.* {aside}$", record.getMessage())
    assert sorted(path.name for path in aside.iterdir()) == left

    checkpoints.save(300, run.state(301), extra={})
    checkpoints.wait()
    assert_same_bits(run.open().restore_latest(run.like).state, run.value(301))


@pytest.fixture
def unreadable(monkeypatch):
    """`unreadable(path, code)`: from now on the system refuses to read that file."""

    def refuse(wanted, code):
        opened = os.open

        def open_(path, *args, **options):
            if path == wanted:
                raise OSError(code, os.strerror(code), str(path))
            return opened(path, *args, **options)

        monkeypatch.setattr(os, "open", open_)

    return refuse


def a_file_of(step, name):
    return step / name if name == manifest.NAME else largest_file(step)


@pytest.mark.parametrize("name", [manifest.NAME, "data"])
@pytest.mark.parametrize("code", [errno.EIO, errno.ESTALE])
def test_a_step_that_the_disk_does_not_give_back_is_damaged(run, unreadable, caplog, code, name):
    unreadable(a_file_of(run.path / "000300", name), code)
    assert run.open().restore_latest(run.like).step == 200
    assert re.search(rf"step 300 is damaged: \S+ cannot be read: {os.strerror(code)}; continuing", caplog.text)
    assert (run.path / "damaged/000300-1").is_dir()


@pytest.mark.parametrize("name", [manifest.NAME, "data"])
def test_a_step_that_this_user_may_not_read_is_one_error_and_stays(run, unreadable, name):
    path = a_file_of(run.path / "000300", name)
    unreadable(path, errno.EACCES)
    with pytest.raises(InputError, match=rf"^{path} cannot be read: Permission denied; make it readable"):
        run.open().restore_latest(run.like)
    with pytest.raises(InputError, match=rf"^{path} cannot be read: Permission denied; make it readable"):
        find_checkpoint(run.path)
    assert run.open().steps() == [100, 200, 300]
    assert not (run.path / "damaged").exists()


@pytest.mark.parametrize("code", [errno.EIO, errno.EACCES])
def test_a_step_that_cannot_be_read_keeps_no_other_from_being_deleted(run, unreadable, code):
    unreadable(run.path / "000100/manifest.json", code)
    assert run.save(400, 500, keep=2).steps() == [100, 400, 500]


def test_a_damaged_step_that_cannot_be_moved_stays(run, caplog, monkeypatch):
    flip_a_bit(largest_file(run.path / "000300"))

    def refuse(*_):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(Path, "rename", refuse)
    assert run.open().restore_latest(run.like).step == 200
    assert "the damaged one stays there, because it cannot be moved: Input/output error" in caplog.text


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (loop, "cannot be read: Too many levels of symbolic links"),
        (pipe, "is missing"),
        (lambda path: path.symlink_to("/nowhere/at/all"), "is missing"),
        (lambda path: path.write_text("a file"), "is missing"),
    ],
    ids=["loop", "pipe", "link to nothing", "file"],
)
def test_what_is_no_directory_is_a_damaged_step(run, caplog, make, complaint):
    shutil.rmtree(run.path / "000300")
    make(run.path / "000300")
    assert find_checkpoint(run.path).step == 200
    (run.path / "damaged").mkdir()
    loop(run.path / "damaged/000300-1")
    checkpoints = run.open()
    assert checkpoints.restore_latest(run.like).step == 200
    said = f"step 300 is damaged: manifest.json {complaint}; continuing from step 200; the damaged one is now "
    assert f"{said}{run.path}/damaged/000300-2" in caplog.text
    assert sorted(path.name for path in (run.path / "damaged").iterdir()) == ["000300-1", "000300-2"]
    checkpoints.save(300, run.state(301), extra={})
    checkpoints.wait()
    assert_same_bits(run.open().restore_latest(run.like).state, run.value(301))


@pytest.mark.parametrize("odd", ["a file", "a loop", "refused"])
def test_a_root_that_cannot_be_listed_is_one_error(run, monkeypatch, odd):
    root = run.path
    if odd == "refused":

        def refuse(path):  # root, who runs many tests, may list everything
            raise PermissionError(errno.EACCES, "Permission denied", path)

        checkpoints = run.open()
        monkeypatch.setattr(os, "listdir", refuse)
        with pytest.raises(InputError, match=rf"^the checkpoints in {root} cannot be listed: Permission denied; make"):
            checkpoints.restore_latest(run.like)
        with pytest.raises(InputError, match=rf"^the checkpoints in {root} cannot be listed: Permission denied; make"):
            run.open()
    else:
        shutil.rmtree(root)
        root.write_text("") if odd == "a file" else loop(root)
    with pytest.raises(InputError, match=rf"^the checkpoints in {root} cannot be listed: .*; make that a directory"):
        find_checkpoint(root)


def test_steps_set_aside_never_replace_each_other(run):
    for number in (1, 2):
        flip_a_bit(largest_file(run.path / "000300"))
        checkpoints = run.open()
        assert checkpoints.restore_latest(run.like).step == 200
        assert sorted(path.name for path in (run.path / "damaged").iterdir())[-1] == f"000300-{number}"
        checkpoints.save(300, run.state(300), extra={})
        checkpoints.wait()


def test_a_directory_under_another_step_is_not_taken_for_it(run):
    shutil.copytree(run.path / "000100", run.path / "000400")
    with pytest.raises(InputError, match=r"step 400 .* manifest\.json is that of step 100"):
        run.open().restore(400, run.like)


def test_when_all_are_damaged_each_is_named_and_none_is_moved(run):
    for step in ("000100", "000200", "000300"):
        flip_a_bit(largest_file(run.path / step))
    for _ in range(2):  # a second start must not take the directory for an empty one
        with pytest.raises(InputError, match=r"step 300: state/.*step 200: state/.*step 100: state/") as error:
            run.open().restore_latest(run.like)
        assert "\n" not in str(error.value)
    assert run.open().steps() == [100, 200, 300]


def test_a_step_with_missing_files_neither_counts_nor_disappears(run):
    (run.path / "000300/manifest.json").unlink()
    largest_file(run.path / "000200").unlink()
    assert run.save(400, keep=2).steps() == [100, 200, 300, 400]
    assert run.save(500, keep=2).steps() == [200, 300, 400, 500]


def test_a_failed_seal_is_reported_and_the_next_save_works(run, monkeypatch):
    checkpoints = run.open()
    with monkeypatch.context() as patch:

        def full(*_):
            raise OSError(28, "No space left on device")

        patch.setattr(manifest, "write", full)
        checkpoints.save(400, run.state(400), extra={})
        with pytest.raises(InputError, match=r"step 400 could not be written to .*No space left on device"):
            checkpoints.wait()
    assert checkpoints.restore_latest(run.like).step == 300
    checkpoints.save(400, run.state(400), extra={})
    assert checkpoints.restore_latest(run.like).step == 400


# Tensorstore still reports the other parts of a failed write to the event loop that Orbax has closed.
@pytest.mark.filterwarnings("ignore:Exception ignored in:pytest.PytestUnraisableExceptionWarning")
def test_a_full_disk_is_reported_once_and_the_next_save_works(run, caplog):
    checkpoints = run.open()
    large = on(run.mesh, {"w": np.random.default_rng(0).normal(size=500_000).astype(np.float32)})
    with files_no_longer_than(100_000):
        checkpoints.save(400, large, extra={})
        with pytest.raises(InputError, match=r"step 400 could not be written to .*: File too large$"):
            checkpoints.wait()
    assert caplog.records == []
    assert checkpoints.steps() == [100, 200, 300]
    checkpoints.save(400, run.state(400), extra={})
    assert checkpoints.restore_latest(run.like).step == 400


def test_old_steps_that_cannot_be_deleted_are_only_a_warning(run, caplog, monkeypatch):
    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", refuse)
        assert run.save(400).steps() == [200, 300, 400]
    assert "could not be deleted" in caplog.text
    assert run.save(500).steps() == [300, 400, 500]
    assert not list(run.path.glob("*.deleting"))
