"""Processes that show each other certificates join; one with a stranger's does not."""

import inspect
import json
import os
import shutil
import sys
from pathlib import Path

import jax
import pytest

from support.certificates import make_authority, make_certificate
from support.markdown import blocks
from support.programs import ROOT, Program, launch, write_program

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif("mtls_cert_file" not in inspect.signature(jax.distributed.initialize).parameters, reason="JAX"),
    pytest.mark.skipif(shutil.which("openssl") is None, reason="there is no program `openssl` to make certificates"),
]

# Each rank shows the certificate of the authority that it is given.
JOIN = """
import os, sys
name = sys.argv[1 + int(os.environ["JAX_PROCESS_ID"])]
os.environ |= {f"JAXNET_TLS_{kind}": f"{sys.argv[3]}/{file}" for kind, file in
               (("CERT", f"{name}-node.crt"), ("KEY", f"{name}-node.key"), ("CA", f"{name}.crt"))}
from jaxnet.cluster.start import start
start(timeout_seconds=float(sys.argv[4]))
import jax
print("joined", jax.process_count(), jax.device_count())
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    for authority in ("ours", "theirs"):
        make_authority(folder, authority)
        make_certificate(folder, f"{authority}-node", authority, "IP:127.0.0.1")
    return folder


def test_all_with_certificates_of_one_authority_join(made, tmp_path):
    with launch(write_program(tmp_path, JOIN), "ours", "ours", str(made), "60") as job:
        assert job.finish() == 0, job.err
    assert sorted(job.out) == ["[0] joined 2 2", "[1] joined 2 2"]


def test_a_stranger_does_not(made, tmp_path):
    with launch(write_program(tmp_path, JOIN), "ours", "theirs", str(made), "8") as job:
        assert job.finish() != 0
    assert "joined" not in "".join(job.out)


def test_the_page_makes_certificates_with_which_two_hosts_join(lab, tmp_path):
    """docs/guide/tls.md, every command as it stands."""
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    script = "set -e\n" + "".join(block.text for block in blocks("docs/guide/tls.md", "sh"))
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    with Program(["bash", "-c", f"cd {tmp_path}\n{script}"], PATH=path, PYTHONWARNINGS="default") as program:
        assert program.finish() == 0, program.err
    summary = json.loads((tmp_path / "runs/tls/summary.json").read_text())
    assert (summary["finished"], summary["processes"]) == (True, 2)
