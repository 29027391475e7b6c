"""Killed at any instant and started again, or started many times at once: the result is the same byte for byte."""

import json
import subprocess
import sys

import pytest

from support.imagenet import photos, write_archives
from support.programs import ROOT, clean_environment

# Every run is a fork of a process that has imported everything and has not started a thread.
SCRIPT = """
import hashlib, json, os, signal, sys
from pathlib import Path

sys.path[:0] = [ROOT, ROOT + "/tests"]
import tensorflow_datasets
from array_record.python import array_record_module
from tensorflow_datasets.core import example_serializer
from jaxnet.data.prepare import imagenet, prepare_imagenet, shards

base = Path(sys.argv[1])
check_image = shards.check_image

def watched(data):
    sys.audit("jaxnet.image", str(base))
    return check_image(data)

shards.check_image = watched
CHANGES = {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "jaxnet.image"}

def prepare(name, stop_at=None, count_to=None):
    seen = 0
    def hook(event, args):
        nonlocal seen
        if event in CHANGES and str(base) in str(args[0]) and "archives" not in str(args[0]):
            seen += 1
            if seen == stop_at:
                os.kill(os.getpid(), signal.SIGKILL)
    sys.addaudithook(hook)
    prepare_imagenet(base / "archives", str(base / name), allow_partial=True, num_shards=2, threads=1)
    if count_to:
        count_to.write_text(str(seen))

def start(*arguments, **options):
    child = os.fork()
    if child:
        return child
    try:
        prepare(*arguments, **options)
    except BaseException as error:
        print(repr(error), file=sys.stderr, flush=True)
        os._exit(1)
    os._exit(0)

def end(child):
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

def digests(name):
    files = sorted(path for path in (base / name).rglob("*") if path.is_file())
    return {str(p.relative_to(base / name)): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}

"""

KILLED = """
count = base / "count"
assert end(start("whole", count_to=count)) == 0
events = int(count.read_text())
results = []
for stop_at in range(1, events + 1, events // 6):
    name = f"killed-{stop_at}"
    again = events // 3  # the second run is killed too, if it comes so far
    statuses = [end(start(name, stop_at)), end(start(name, again)), end(start(name))]
    results.append([stop_at, statuses, digests(name) == digests("whole"), len(digests(name))])
print(json.dumps([events, results]))
"""

TOGETHER = """
assert end(start("whole")) == 0
statuses = [end(child) for child in [start("together") for _ in range(4)]]
print(json.dumps([statuses, digests("together") == digests("whole"), os.listdir(base / "together")]))
"""


@pytest.fixture
def run(tmp_path):
    write_archives(tmp_path / "archives", photos(3), validation=3)

    def run(script):
        code = f"ROOT = {str(ROOT)!r}\n{SCRIPT}{script}"
        done = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path)], env=clean_environment(), capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return run


@pytest.mark.slow
def test_killed_at_any_file_operation_it_goes_on_to_the_same_bytes(run):
    events, results = run(KILLED)
    assert events > 40
    assert len(results) >= 6
    for stop_at, (first, second, last), same, files in results:
        assert first == -9, stop_at
        assert second in (-9, 0), stop_at
        assert last == 0, stop_at
        assert same, stop_at
        assert files == 2 * 2 + 4, stop_at  # the shards, TFDS's three files and ours


def test_several_at_once_do_no_harm(run):
    statuses, same, left = run(TOGETHER)
    assert statuses == [0, 0, 0, 0]
    assert same
    assert left == ["imagenet2012"]
