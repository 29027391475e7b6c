"""A run in object storage: what it promises on a disk holds there, or it is refused before the first step."""

import json
import shutil
import threading
import time
from dataclasses import replace

import jax
import numpy as np
import pytest

import jaxnet
from jaxnet.checkpoints.files import CheckpointFiles
from jaxnet.checkpoints.lock import Lost, Owner
from jaxnet.cli.main import run as command
from jaxnet.config.run import Checkpoints, Config, Log
from jaxnet.data import Synthetic
from jaxnet.errors import InputError
from jaxnet.models import CNN
from jaxnet.object_storage import mirror, reading, store, uploads
from jaxnet.object_storage.lock import StoreLock
from jaxnet.object_storage.mirror import _bring
from jaxnet.object_storage.steps import stored_steps
from jaxnet.object_storage.store import Store, StoreFailed, remote_url
from jaxnet.training import workdir
from jaxnet.training.observer import Observer
from jaxnet.training.trainer import train
from support.checkpointing import assert_same_bits
from support.fake_bucket import FakeBuckets, fake_buckets, objects, without_library
from support.odd_files import DEEP, ODD, deep
from support.refusals import DIGITS, refused, says
from support.runs import sharing

URL = "s3://bucket/run"
STEPS = 6
OWN_CACHE = Config(
    model=CNN(2, widths=(2,), hidden=4),
    data=Synthetic((8, 8, 1), num_classes=2, num_train=32, num_test=16),
    epochs=3,
    batch_size=16,
    eval_batch_size=16,
    checkpoints=Checkpoints(every_steps=2),
    log=Log(every_steps=1, tensorboard=False),
)
CONFIG = sharing(OWN_CACHE)  # most runs here are of one program


@pytest.fixture
def bucket(tmp_path, monkeypatch):
    """The directory of an empty object store, which s3:// is in this test."""
    folder = tmp_path / "buckets"
    folder.mkdir()
    fake_buckets(monkeypatch, folder)
    monkeypatch.setattr(uploads, "_LOOK_SECONDS", 0.01)
    monkeypatch.setattr(uploads, "_RETRY_SECONDS", 0.01)
    monkeypatch.setattr(uploads, "_PATIENCE_SECONDS", 0.3)
    return folder


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    """An unbroken run in a directory."""
    return train(CONFIG, tmp_path_factory.mktemp("local") / "run", quiet=True)


def another_machine():
    """From here on nothing is left of what this machine knew."""
    shutil.rmtree(mirror.mirror_of(URL).parent)
    reading._scratch.cache_clear()


class At(Observer):
    """Calls `act` before the step after `step`."""

    def __init__(self, step, act):
        self._step, self._act = step, act

    def before_step(self, step):
        if step == self._step:
            self._act()


class Killed(Exception):
    """Ends a run that still uploads what it has saved; tests/processes has kill -9."""


def kill():
    raise Killed


def steps():
    return list(stored_steps(Store(URL)))


# ---- The whole way ---------------------------------------------------------------------------------------


def test_a_run_leaves_there_what_it_leaves_on_a_disk(bucket, local):
    run = train(OWN_CACHE, URL, quiet=True)
    assert_same_bits(jax.device_get(run.state.params), jax.device_get(local.state.params))
    assert run.workdir == mirror.mirror_of(URL)
    there = objects(bucket, "bucket/run/")
    for name in ("config.json", "metrics.jsonl", "ledger.jsonl", "summary.json"):
        assert there[f"bucket/run/{name}"] == (run.workdir / name).read_bytes()
    assert steps() == [2, 4, 6]
    for step in (2, 4, 6):
        path = run.workdir / f"checkpoints/{step:06d}"
        files = {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}
        assert files == {name.split("/", 4)[4]: content for name, content in there.items() if f"/{step:06d}/" in name}
    assert not [name for name in there if "compile_cache" in name or "probe" in name]


def test_stopped_and_continued_on_another_machine_it_ends_as_unbroken(bucket, local, capfd):
    with pytest.raises(Killed):
        train(CONFIG, URL, quiet=True, observers=[At(5, kill)])
    assert steps() == [2, 4]
    another_machine()
    run = train(CONFIG, URL)
    assert f"continuing {URL} from step 4" in capfd.readouterr().out
    assert_same_bits(jax.device_get(run.state.params), jax.device_get(local.state.params))
    losses = [line["loss"] for line in run.metrics if line["split"] == "train"]
    assert losses == [line["loss"] for line in local.metrics if line["split"] == "train"]


def test_on_the_same_machine_nothing_is_fetched(bucket, monkeypatch):
    with pytest.raises(Killed):
        train(CONFIG, URL, quiet=True, observers=[At(5, kill)])
    monkeypatch.setattr(FakeBuckets, "get_file", None)
    assert train(CONFIG, URL, quiet=True).summary["steps"] == STEPS


def test_readers_fetch_what_they_need(bucket, local, capsys, tmp_path):
    train(CONFIG, URL, quiet=True)
    another_machine()
    images = CONFIG.data.load("test").rows(np.arange(16))["image"]
    expected = jaxnet.load(local.workdir)(images)
    for path in (URL, f"{URL}/checkpoints", f"{URL}/checkpoints/000006"):
        np.testing.assert_array_equal(jaxnet.load(path)(images), expected)
    assert not np.array_equal(jaxnet.load(URL, step=2)(images), expected)
    compared = jaxnet.compare({"remote": URL, "local": local})
    assert compared.summaries["remote"]["loss"] == compared.summaries["local"]["loss"]
    assert command(["report", URL]) == 0
    assert "1 attempt, 0 steps lost" in capsys.readouterr().out
    np.save(tmp_path / "x.npy", images)
    again = train(replace(CONFIG, initial_weights=URL, epochs=1), tmp_path / "again")
    assert f"begin as those of {URL}, step 6" in capsys.readouterr().out
    assert again.summary["steps"] == 2


def test_a_reader_sees_what_was_saved_since(bucket):
    with pytest.raises(Killed):
        train(CONFIG, URL, quiet=True, observers=[At(3, kill)])
    images = CONFIG.data.load("test").rows(np.arange(16))["image"]
    before = jaxnet.load(URL)(images)
    train(CONFIG, URL, quiet=True)
    assert not np.array_equal(jaxnet.load(URL)(images), before)


def test_old_checkpoints_are_deleted_there_too(bucket):
    train(replace(CONFIG, epochs=6, checkpoints=Checkpoints(every_steps=2, keep=2)), URL, quiet=True)
    assert steps()[-2:] == [10, 12]
    assert len(steps()) <= 3  # what was deleted while it was uploaded may stay until the next


# ---- A store that fails ----------------------------------------------------------------------------------


def test_an_upload_that_fails_for_a_while_is_made_up_for(bucket, caplog):
    fails = bucket / "fails"
    given = [At(1, lambda: fails.write_text("checkpoints/")), At(5, fails.unlink)]

    class Slow(Observer):
        def before_step(self, step):
            time.sleep(0.1)

    train(CONFIG, URL, quiet=True, observers=[*given, Slow()])
    said, later = [record.getMessage() for record in caplog.records]
    says(said, [f"{URL} cannot be brought up to date: 503 Slow Down; ", str(mirror.mirror_of(URL)), "keeps"])
    assert later == f"{URL} is up to date again"
    assert steps() == [2, 4, 6]


def test_what_a_person_looks_at_does_not_hold_checkpoints_back(bucket):
    (bucket / "fails").write_text("tensorboard")
    with pytest.raises(InputError, match="lacks some of this run: 503 Slow Down"):
        train(replace(CONFIG, log=Log(every_steps=1, tensorboard=True)), URL, quiet=True)
    assert steps() == [2, 4, 6]
    assert "bucket/run/summary.json" in objects(bucket)


def test_a_thread_that_fails_is_told(bucket, monkeypatch, caplog):
    monkeypatch.setattr(uploads, "send_step", lambda *_: 1 / 0)
    with pytest.raises(InputError, match="lacks some of this run: ZeroDivisionError: division by zero"):
        train(CONFIG, URL, quiet=True)
    assert [record.getMessage() for record in caplog.records] == [
        f"nothing more is uploaded to {URL}: ZeroDivisionError: division by zero"
    ]


def test_a_store_that_takes_a_file_and_never_answers_is_given_up(bucket, monkeypatch):
    answers, put = threading.Event(), FakeBuckets.put_file
    monkeypatch.setattr(uploads, "_SILENCE_SECONDS", 0.3)
    monkeypatch.setattr(FakeBuckets, "put_file", lambda *given, **named: (answers.wait(), put(*given, **named)))
    with pytest.raises(InputError, match=r"lacks some of this run: it does not answer; .* has all of it"):
        train(CONFIG, URL, quiet=True)
    answers.set()


@pytest.mark.slow
def test_a_long_download_and_a_long_upload_are_said_once(bucket, monkeypatch, caplog):
    train(CONFIG, URL, quiet=True)
    another_machine()
    fetched, put = FakeBuckets.get_file, FakeBuckets.put_file
    monkeypatch.setattr(workdir, "_LOOK_SECONDS", 0.02)
    monkeypatch.setattr(FakeBuckets, "get_file", lambda *given, **named: (time.sleep(0.1), fetched(*given, **named)))
    monkeypatch.setattr(FakeBuckets, "put_file", lambda *given, **named: (time.sleep(0.1), put(*given, **named)))
    train(replace(CONFIG, epochs=4), URL, quiet=True, allow_config_change=True)
    assert [record.getMessage() for record in caplog.records] == [
        f"fetching {URL} to {mirror.mirror_of(URL)}",
        f"uploading what is left to {URL}",
    ]


def test_a_mirror_that_cannot_be_made_is_named(bucket, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("JAXNET_MIRROR", str(tmp_path / "file"))
    with pytest.raises(InputError, match=f"the mirror of {URL}, .*, cannot be written: Not a directory; set"):
        train(CONFIG, URL, quiet=True)


def test_a_trace_of_another_process_that_cannot_be_sent_stays(bucket, monkeypatch):
    folder = mirror.mirror_of(URL) / "profile/process_1"
    folder.mkdir(parents=True)
    (folder / "trace").write_text("1")
    (bucket / "fails").touch()
    mirror.send_profile(URL, 1)
    assert objects(bucket) == {}
    (bucket / "fails").unlink()
    mirror.send_profile(URL, 1)
    assert list(objects(bucket)) == ["bucket/run/profile/process_1/trace"]
    without_library(monkeypatch, "s3")
    mirror.send_profile(URL, 1)


def test_what_could_not_be_uploaded_is_kept_named_and_uploaded_by_the_next_run(bucket, local):
    fails = bucket / "fails"
    with pytest.raises(InputError, match="lacks some of this run: 503 Slow Down") as error:
        train(CONFIG, URL, quiet=True, observers=[At(3, lambda: fails.write_text(""))])
    kept = mirror.mirror_of(URL)
    says(str(error.value), [str(kept), "the same command on this machine uploads it"])
    assert (kept / "checkpoints/000006").is_dir()
    fails.unlink()
    train(CONFIG, URL, quiet=True)
    another_machine()
    found = jaxnet.load(URL)
    images = CONFIG.data.load("test").rows(np.arange(16))["image"]
    np.testing.assert_array_equal(found(images), jaxnet.load(local.workdir)(images))


def test_a_store_that_takes_nothing_is_refused_before_the_first_step(bucket):
    (bucket / "fails").write_text("")
    with pytest.raises(InputError) as error:
        train(CONFIG, URL, quiet=True, observers=[At(0, lambda: pytest.fail("a step"))])
    says(str(error.value), [f"{URL} cannot be used: 503 Slow Down; check the name, your rights there", "--workdir"])
    assert not mirror.mirror_of(URL).exists()


def test_a_store_without_exclusive_creation_is_refused(bucket, monkeypatch):
    overwrite = FakeBuckets.pipe_file
    monkeypatch.setattr(FakeBuckets, "pipe_file", lambda self, path, value, **_: overwrite(self, path, value))
    with pytest.raises(InputError, match="two programs can create the same object, so no lock would hold"):
        train(CONFIG, URL, quiet=True)


def test_half_an_upload_is_no_checkpoint(bucket, local):
    (bucket / "fails").write_text("000006/manifest.json")
    with pytest.raises(InputError, match="lacks some"):
        train(CONFIG, URL, quiet=True)
    assert [name for name in objects(bucket) if "/000006/state/" in name]
    assert steps() == [2, 4]
    (bucket / "fails").unlink()
    another_machine()
    assert "/000004" in fetched_newest()
    run = train(CONFIG, URL, quiet=True)
    assert_same_bits(jax.device_get(run.state.params), jax.device_get(local.state.params))
    assert steps() == [2, 4, 6]


def fetched_newest():
    from jaxnet.inference.loading import load_network

    return load_network(URL).where


def test_a_checkpoint_that_the_store_has_damaged_is_named_and_the_one_before_used(bucket, local, caplog):
    train(CONFIG, URL, quiet=True)
    another_machine()
    (victim, content) = max(
        ((name, content) for name, content in objects(bucket, "bucket/run/checkpoints/000006/state").items()),
        key=lambda item: len(item[1]),
    )
    FakeBuckets().pipe_file(victim, bytes([content[0] ^ 1]) + content[1:])
    assert "/000004" in fetched_newest()
    run = train(CONFIG, URL, quiet=True)
    assert [record.getMessage().split(":")[0] for record in caplog.records] == ["checkpoint step 6 is damaged"] * 2
    assert_same_bits(jax.device_get(run.state.params), jax.device_get(local.state.params))
    assert (mirror.mirror_of(URL) / "checkpoints/damaged/000006-1").is_dir()
    assert "/000006" in fetched_newest()


# ---- One run at a time -----------------------------------------------------------------------------------


def test_a_second_run_is_refused_while_the_first_lives(bucket):
    seen = []

    def second():
        with pytest.raises(InputError) as error:
            train(CONFIG, URL, quiet=True)
        seen.append(str(error.value))

    train(CONFIG, URL, quiet=True, observers=[At(3, second)])
    says(seen[0], [f"{URL} is in use by process ", "stop that run, wait for its end, or give another place"])
    train(CONFIG, URL, quiet=True)


@pytest.fixture
def elsewhere(bucket, monkeypatch):
    """Owners of this process look as if on another machine."""
    monkeypatch.setattr(Owner, "runs", lambda self: None)


def test_an_owner_elsewhere_lives_while_its_object_changes(elsewhere):
    lock = StoreLock(Store(URL), patience=1)
    beats = lambda line: lock.beat()  # noqa: E731
    with pytest.raises(InputError, match="is in use by process"):
        StoreLock(Store(URL), patience=1, say=beats)
    lock.require()


def test_an_owner_elsewhere_that_is_silent_is_replaced_and_finds_out(elsewhere, bucket):
    lines = []
    lock = StoreLock(Store(URL), patience=0.1)
    later = StoreLock(Store(URL), patience=0.1, say=lines.append)
    assert "waiting for a sign of life" in lines[0]
    assert "which has ended; taking over" in lines[1]
    lock.remember()  # it has not looked
    with pytest.raises(Lost, match=f"{URL} was taken over by process"):
        lock.beat()
    with pytest.raises(Lost):
        lock.remember()
    later.require()
    lock.release()
    later.require()
    later.beat()
    assert [json.loads(content)["ended"] for content in objects(bucket).values()] == [False]
    later.release()
    assert [json.loads(content)["ended"] for content in objects(bucket).values()] == [True]


@pytest.mark.parametrize("sent", ["config.json", "checkpoints/"])
def test_a_run_that_is_replaced_during_an_upload_stops_and_sends_no_file_more(elsewhere, bucket, monkeypatch, sent):
    """Behind the first of several small files, and the first of a checkpoint's."""
    monkeypatch.setattr(mirror, "BEAT_SECONDS", 0.01)
    written = lambda: {name: each for name, each in objects(bucket).items() if "/lock/" not in name}  # noqa: E731
    taken = []
    send = Store.send

    def send_and_be_replaced(store, source, name, moved=lambda: None):
        send(store, source, name, moved)
        if name.startswith(sent) and not taken:
            taken.append(StoreLock(Store(URL), patience=0, say=lambda line: None))
            taken.append(written())

    class Slow(Observer):
        def before_step(self, step):
            time.sleep(0.1)

    monkeypatch.setattr(Store, "send", send_and_be_replaced)
    with pytest.raises(Lost, match="was taken over by process"):
        train(CONFIG, URL, quiet=True, observers=[Slow()])
    assert sum(name.startswith(f"bucket/run/{sent}") for name in taken[1]) == 1
    assert written() == taken[1]


def test_a_lock_is_released_and_numbers_grow(bucket):
    for number in (1, 2, 3):
        lock = StoreLock(Store(URL), say=pytest.fail)
        assert list(objects(bucket)) == [f"bucket/run/lock/{number:06d}.json"]
        lock.release()


def finish_elsewhere(monkeypatch, folder):
    with monkeypatch.context() as there:
        there.setenv("JAXNET_MIRROR", str(folder))
        train(CONFIG, URL, quiet=True)


def test_what_this_machine_has_of_a_run_that_another_continued_is_fetched_anew(bucket, tmp_path, monkeypatch, caplog):
    with pytest.raises(Killed):
        train(CONFIG, URL, quiet=True, observers=[At(3, kill)])
    finish_elsewhere(monkeypatch, tmp_path / "other machine")
    train(CONFIG, URL, quiet=True)
    assert caplog.records == []
    assert [path.name for path in mirror.mirror_of(URL).parent.iterdir()] == [mirror.mirror_of(URL).name]
    assert (mirror.mirror_of(URL) / "checkpoints/000006").is_dir()


def test_what_only_this_machine_has_of_such_a_run_is_set_aside(bucket, tmp_path, monkeypatch, caplog):
    fails = bucket / "fails"
    with pytest.raises(Killed):
        train(CONFIG, URL, quiet=True, observers=[At(3, lambda: fails.write_text("")), At(5, kill)])
    fails.unlink()
    monkeypatch.setattr(Owner, "runs", lambda self: False)  # its lock could not be given back
    finish_elsewhere(monkeypatch, tmp_path / "other machine")
    caplog.clear()
    kept = mirror.mirror_of(URL)
    train(CONFIG, URL, quiet=True)
    (line,) = [record.getMessage() for record in caplog.records]
    assert line == (
        f"going on from {URL}, not from what this machine wrote; {kept}.1 keeps that, some of which is nowhere else"
    )
    assert (kept.with_name(f"{kept.name}.1") / "checkpoints/000004").is_dir()
    assert (kept / "checkpoints/000006").is_dir()


@pytest.mark.parametrize(
    "lost",
    [
        "checkpoints",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("checkpoints/000006/state", "mirror.json")),
    ],
)
def test_a_mirror_that_has_lost_something_is_fetched_anew(lost, bucket):
    train(CONFIG, URL, quiet=True)
    path = mirror.mirror_of(URL) / lost
    path.unlink() if path.is_file() else shutil.rmtree(path)
    again = train(replace(CONFIG, epochs=4), URL, quiet=True, allow_config_change=True)
    assert again.summary["steps"] == 8
    assert {line["step"] for line in again.metrics} == set(range(1, 9))
    assert steps() == [4, 6, 8]


def test_a_checkpoint_that_is_deleted_after_the_last_upload_is_deleted_there_too(bucket, monkeypatch):
    uploaded = threading.Event()
    delete, retire = CheckpointFiles.retire, uploads.retire

    def deleted_late(files, *given):
        assert STEPS not in files.listed() or uploaded.wait(60)
        delete(files, *given)

    def told(store, kept, fence):
        retire(store, kept, fence)
        if STEPS in kept:
            uploaded.set()

    monkeypatch.setattr(CheckpointFiles, "retire", deleted_late)
    monkeypatch.setattr(uploads, "retire", told)
    train(replace(CONFIG, checkpoints=Checkpoints(every_steps=3, keep=1)), URL, quiet=True)
    assert uploaded.is_set()
    assert steps() == [STEPS]


def test_killed_before_it_has_noted_an_upload_it_goes_on_from_what_it_has(bucket, tmp_path, monkeypatch, caplog):
    """At that instant the run has deleted the checkpoint that was uploaded, because newer ones are there."""
    retire, taken, copied = uploads.retire, tmp_path / "taken", threading.Event()

    def wait_and_copy(*given):
        deadline = time.monotonic() + 60
        while list((mirror.mirror_of(URL) / "checkpoints").glob("000002*")) and time.monotonic() < deadline:
            time.sleep(0.01)
        if not taken.exists():
            shutil.copytree(bucket, taken)
            copied.set()
        retire(*given)

    monkeypatch.setattr(uploads, "retire", wait_and_copy)
    seldom = replace(CONFIG, checkpoints=Checkpoints(every_steps=2, keep=1))
    wait = At(5, lambda: copied.wait(60))  # nothing is written or deleted meanwhile
    train(seldom, URL, quiet=True, observers=[wait])
    assert copied.is_set()
    monkeypatch.setattr(uploads, "retire", retire)
    monkeypatch.setattr(Owner, "runs", lambda self: False)
    fake_buckets(monkeypatch, taken)
    assert steps() == [2]
    here = uploads.Record({}, {}).unsent(mirror.mirror_of(URL))
    assert min(here) > 2
    run = train(seldom, URL, quiet=True)
    assert run.summary["steps"] == STEPS
    said = [record.getMessage() for record in caplog.records]
    assert said[0].startswith(f"{URL} was left by")
    assert said[1].startswith(f"{mirror.mirror_of(URL)} was copied from")  # here, to stand for that instant
    assert len(said) == 2
    assert steps() == [6]


def test_a_run_whose_objects_were_deleted_begins_anew(bucket, caplog):
    train(CONFIG, URL, quiet=True)
    for name in objects(bucket):
        FakeBuckets().rm_file(name)
    assert train(replace(CONFIG, epochs=1), URL, quiet=True).summary["steps"] == 2
    assert caplog.records == []


# ---- What is refused -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("ftp://host/run", "ftp://host/run: runs are not kept at ftp://; wanted gs://BUCKET/NAME"),
        ("file:///tmp/run", "runs are not kept at file://"),
        ("s3://bucket", "s3://bucket: a bucket alone is no place for a run"),
        ("gs://bucket/", "gs://bucket: a bucket alone"),
        ("s3://bucket/checkpoints", "s3://bucket/checkpoints: what ends so is a run's checkpoints"),
    ],
)
def test_other_urls_are_refused(given, words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    line = refused(lambda: command(["train", "--config", DIGITS, "--workdir", given]), capsys)
    says(line, words if isinstance(words, list) else [words])
    assert list(tmp_path.iterdir()) == []


def test_a_store_whose_library_is_not_installed_is_refused(capsys, monkeypatch):
    without_library(monkeypatch, "gs")
    with pytest.raises(InputError) as error:
        Store("gs://bucket/run")
    assert str(error.value) == "gs://bucket/run needs gcsfs, which is not installed: pip install 'jaxnet[gcs]'"


@pytest.mark.parametrize("text", ["runs/a", "/tmp/a:b", "c:/a", "a:b", "."])
def test_other_paths_are_local(text):
    assert remote_url(text) is None


def test_what_is_not_there_is_named(bucket, capsys):
    with pytest.raises(InputError, match="there is no checkpoint in s3://bucket/none: wanted the workdir of a run"):
        jaxnet.load("s3://bucket/none")
    with pytest.raises(InputError, match=f"{URL} has no summary.json; wanted the workdir of a run"):
        jaxnet.compare({"a": URL})
    line = refused(lambda: command(["report", URL]), capsys)
    assert line == f"{URL} has no ledger.jsonl; wanted the workdir of a run"
    says(refused(lambda: command(["timeline", URL]), capsys), [f"copy {URL}/profile to one"])
    train(CONFIG, URL, quiet=True)
    with pytest.raises(InputError, match="checkpoint step 3 is not in s3://bucket/run; steps there: 2, 4, 6"):
        jaxnet.load(URL, step=3)


def test_an_object_with_a_wrong_name_is_not_fetched_to_another_place(bucket):
    FakeBuckets().pipe_file("bucket/run/checkpoints/000002/manifest.json", b"{}")
    FakeBuckets().pipe_file("bucket/run/checkpoints/000002/../../../x", b"x")
    with pytest.raises(InputError, match="which no run has written"):
        jaxnet.load(URL)


@pytest.mark.parametrize("name", ["a\0b", "x" * 256, "half \ud800"])
def test_an_object_whose_name_no_file_can_have_is_named(name):
    with pytest.raises(InputError, match=r"an object is called .*, which no run has written; delete it"):
        store._inside(f"state/{name}")


def test_an_object_that_is_too_large_to_be_read_is_not_read(bucket, monkeypatch):
    FakeBuckets().pipe_file("bucket/run/lock/000001.json", b"x" * 11)
    monkeypatch.setattr(store, "MOST_BYTES", 10)
    monkeypatch.setattr(FakeBuckets, "cat_file", lambda *_, **__: pytest.fail("it was read"))
    with pytest.raises(StoreFailed) as failed:
        Store(URL).read("lock/000001.json")
    assert failed.value.strerror == "lock/000001.json has 11 bytes, wanted 10 or less; delete it"


@pytest.mark.parametrize(
    "content",
    [DEEP, "[]", '{"owner": null, "beat": 1e999, "ended": false}', '{"owner": {"pid": "../x"}, "beat": 1, "ended": 0}'],
)
def test_a_lock_in_the_store_that_no_run_has_written_is_judged_by_its_changes(bucket, content):
    FakeBuckets().pipe_file("bucket/run/lock/000001.json", content.encode())
    said = []
    StoreLock(Store(URL), patience=0.05, say=said.append).release()
    assert [line.rpartition("; ")[2] for line in said] == ["waiting for a sign of life", "taking over"]


@pytest.mark.parametrize("make", [*ODD, deep, lambda path: path.write_text('{"steps": {"1e999": 1}, "files": []}')])
def test_a_record_that_no_run_has_written_is_none(tmp_path, make):
    make(tmp_path / "mirror.json")
    assert uploads.Record.read(tmp_path) is None


def test_a_store_that_cannot_be_read_is_named(bucket, monkeypatch):
    def away(*_, **__):
        raise RuntimeError("no\nroute")

    monkeypatch.setattr(FakeBuckets, "find", away)
    with pytest.raises(InputError, match=f"{URL} cannot be read: no route; check the name"):
        jaxnet.load(URL)
    with pytest.raises(StoreFailed):
        Store(URL).names("lock")


def test_a_full_disk_of_this_machine_is_no_fault_of_the_store(bucket, tmp_path, monkeypatch):
    store = Store(URL)
    store.write("metrics.jsonl", b"{}")

    def full(*_, **__):
        raise OSError(28, "No space left on device", str(tmp_path / "a"))

    monkeypatch.setattr(store._fs, "get_file", full)
    with pytest.raises(OSError, match="No space left on device") as raised:
        store.fetch("metrics.jsonl", tmp_path / "a")
    assert not isinstance(raised.value, StoreFailed)


def test_what_an_earlier_start_has_fetched_and_the_store_has_no_more_is_deleted(bucket, tmp_path):
    store, directory = Store(URL), tmp_path / "run"
    store.write("config.json", b"{}")
    begun = []

    def give_up():
        begun.append(True)
        if len(begun) > 1:
            raise OSError("the download was given up")

    with pytest.raises(OSError, match="given up"):
        _bring(store, directory, begun.append, give_up)
    assert (tmp_path / "run.fetching/config.json").exists()
    store.delete(["config.json"])
    _bring(store, directory, begun.append, lambda: None)
    assert not (directory / "config.json").exists()


def test_a_reader_whose_disk_is_full_is_told_so(bucket, monkeypatch):
    Store(URL).write("metrics.jsonl", b"{}")

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Store, "fetch", full)
    with pytest.raises(InputError, match=r"cannot be fetched to .*: No space left on device"):
        reading.fetched_files(URL, "metrics.jsonl")
