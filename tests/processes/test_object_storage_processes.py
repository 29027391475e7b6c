"""Runs in object storage as a user starts them: s3fs, by HTTP, to a store that keeps Amazon's rules (moto)."""

import logging
import shutil
import sys
import time
import warnings
from urllib.request import Request, urlopen

import numpy as np
import pytest
from PIL import Image

from jaxnet.data import Digits
from jaxnet.object_storage.mirror import mirror_of
from jaxnet.object_storage.steps import stored_steps
from jaxnet.object_storage.store import Store
from support.checkpointing import assert_same_bits
from support.programs import PATIENCE, Program, jaxnet
from support.ranks import free_port
from support.training_runs import CONFIG, ONE, ROOT, TWO, arrays, losses

pytestmark = pytest.mark.processes
pytest.importorskip("s3fs", reason="s3fs is not installed")
pytest.importorskip("moto", reason="moto is not installed")

URL = "s3://bucket/runs/digits"


@pytest.fixture(scope="module")
def store():
    """The URL of the server."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # those of the packages that play the store
        from moto.server import ThreadedMotoServer
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    yield "http://{}:{}".format(*server.get_host_and_port())
    server.stop()


@pytest.fixture
def bucket(store, monkeypatch, tmp_path):
    """An empty bucket; what jaxnet needs to reach it is in the environment."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", store)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("JAXNET_MIRROR", str(tmp_path / "machine 0"))
    import s3fs

    urlopen(Request(f"{store}/moto-api/reset", method="POST")).close()
    s3fs.S3FileSystem.clear_instance_cache()  # one of another test would ask as that test's environment said
    s3fs.S3FileSystem(skip_instance_cache=True).mkdir("bucket")


def machines(folder, count, *overrides, **environment):
    """A process on each machine, of which each has a disk of its own."""
    port = free_port()
    arguments = [sys.executable, str(ROOT / "train.py"), "--config", str(CONFIG), "--workdir", URL]

    def place(rank):
        own = {"JAXNET_MIRROR": str(folder / f"machine {rank}"), "JAX_NUM_CPU_DEVICES": "1"}
        if count == 1:
            return own
        joined = {"JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{port}", "JAX_NUM_PROCESSES": str(count)}
        return own | joined | {"JAX_PROCESS_ID": str(rank)}

    return [Program([*arguments, *overrides], **place(rank), **environment) for rank in range(count)]


def finish(programs):
    ends = [program.finish() for program in programs]
    for program in programs:
        program.__exit__()
    assert ends == [0] * len(programs), [program.err for program in programs]


def kill_once_uploaded(programs):
    """SIGKILL to all once a checkpoint is in the store; the step of that."""
    deadline = time.monotonic() + PATIENCE
    while not (there := stored_steps(Store(URL))):
        assert time.monotonic() < deadline, [program.err for program in programs]
        time.sleep(0.1)
    for program in programs:
        program.__exit__()
    return max(there)


@pytest.mark.slow
def test_killed_continued_on_another_machine_reported_and_predicted_from(bucket, run, tmp_path):
    step = kill_once_uploaded(machines(tmp_path, 1, PACE_SECONDS="0.1"))
    shutil.rmtree(tmp_path / "machine 0")
    (again,) = programs = machines(tmp_path, 1)
    finish(programs)
    assert f"continuing {URL} from step {step}" in again.out
    assert any(line.startswith(f"warning: {URL} was left by process") for line in again.err)
    local = run(ONE)
    np.testing.assert_array_equal(losses(mirror_of(URL)), losses(local))
    assert_same_bits(arrays(mirror_of(URL)), arrays(local))

    shutil.rmtree(tmp_path / "machine 0")
    with jaxnet("report", URL) as report:
        assert report.finish() == 0, report.err
    assert any("2 attempts" in line for line in report.out), report.out
    image = tmp_path / "digit.png"
    Image.fromarray(Digits().load("test").rows(np.array([0]))["image"][0, ..., 0]).save(image)
    answers = []
    for trained in (URL, str(local)):
        with jaxnet("predict", trained, str(image), "--json", "--config", str(CONFIG)) as predict:
            assert predict.finish() == 0, predict.err
        answers.append(predict.out)
    assert answers[0] == answers[1] != []


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["zero", "top_k"])
def test_machines_that_share_no_disk_save_and_continue_all_of_a_state(strategy, bucket, run, tmp_path):
    """The state of zero is in parts on both machines, and so are the residuals of top_k."""
    way = f"strategy={strategy}"
    step = kill_once_uploaded(machines(tmp_path, 2, way, PACE_SECONDS="0.1"))
    shutil.rmtree(tmp_path / "machine 0")
    programs = machines(tmp_path, 2, way)
    finish(programs)
    assert f"continuing {URL} from step {step}" in programs[0].out
    local = run(TWO, way)
    np.testing.assert_array_equal(losses(mirror_of(URL)), losses(local))
    assert_same_bits(arrays(mirror_of(URL)), arrays(local))
    others = mirror_of(URL).relative_to(tmp_path / "machine 0")
    assert not (tmp_path / "machine 1" / others / "checkpoints").exists()
