"""Launchers give the processes of a start one secret, in the environment alone, and another one to the next start."""

import json
import sys

import pytest

from jaxnet.cluster.addresses import Address
from jaxnet.cluster.job_token import TOKEN, token_in
from jaxnet.errors import InputError
from jaxnet.operations.lab import network
from jaxnet.operations.lab import run as lab
from jaxnet.operations.lab.run import Lab
from jaxnet.operations.launchers import local
from jaxnet.operations.launchers.hosts import Host
from jaxnet.operations.launchers.mpi import MpiJob, mpi_script
from jaxnet.operations.launchers.slurm import SlurmJob, slurm_script
from jaxnet.operations.launchers.ssh import show_ssh
from jaxnet.operations.launchers.ssh_job import SshJob, connections
from support.stand_ins import make_stand_ins, run_script

COMMAND = [sys.executable, "-I", "-S", "-c", f"import json, os; print(json.dumps(os.environ.get({TOKEN!r})))"]


def local_ranks(monkeypatch):
    started = []
    monkeypatch.setattr(local, "supervise", lambda ranks, grace: started.extend(ranks) or 0)
    local.launch_local(COMMAND, 2)
    return started


def lab_ranks(monkeypatch):
    started = []
    monkeypatch.setattr(lab, "supervise", lambda ranks: started.extend(ranks) or 0)
    monkeypatch.setattr(network, "build", lambda hosts, rate: ["/a", "/b"])
    monkeypatch.setattr(network, "name_hosts", lambda hosts: None)
    lab._run(COMMAND, Lab(2), [[], []])
    return started


def ssh_ranks(monkeypatch):
    return connections(SshJob(["x"], "/", [Host("n1"), Host("n2", slots=2)]), Address("n1", 77), None)


def tokens_of(rank):
    if sent := rank.environment.get("JAXNET_SSH_ORDER"):
        return [own[TOKEN] for own in json.loads(json.loads(sent)["lines"][1])["own"]]
    return [rank.environment[TOKEN]]


@pytest.mark.parametrize("start", [local_ranks, lab_ranks, ssh_ranks])
def test_the_processes_of_a_start_share_a_secret(monkeypatch, start):
    monkeypatch.setenv(TOKEN, "the token of the launcher's own job")
    seen = []
    for _ in range(2):
        ranks = start(monkeypatch)
        [token] = {token for rank in ranks for token in tokens_of(rank)}
        assert token_in({TOKEN: token}) == token
        assert not any(token in word for rank in ranks for word in rank.command)
        seen.append(token)
    assert len({*seen, "the token of the launcher's own job"}) == 3


SCRIPTS = {
    "slurm": lambda folder: slurm_script(SlurmJob(COMMAND, folder, nodes=2)),
    "openmpi": lambda folder: mpi_script(MpiJob(COMMAND, folder, 2)),
    "mpich": lambda folder: mpi_script(MpiJob(COMMAND, folder, 2, starter="mpich")),
}


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)
def test_a_script_makes_a_secret_when_it_runs(tmp_path, script):
    stand_ins, text = make_stand_ins(tmp_path / "bin"), script(str(tmp_path))
    first, second = (run_script(text, stand_ins, tmp_path, **{TOKEN: "that of another job"}) for _ in range(2))
    assert first != second
    assert all(len(token) == 32 and set(token) <= set("0123456789abcdef") for token in (first, second))
    assert first not in text


def test_mpirun_passes_it_on_by_name():
    assert f"-x {TOKEN} " in SCRIPTS["openmpi"]("/")
    assert f",{TOKEN} " in SCRIPTS["mpich"]("/")


def test_what_is_shown_holds_no_secret():
    shown = [show_ssh(SshJob(["x"], "/", [Host("n1"), Host("n2")])) for _ in range(2)]
    assert shown[0] == shown[1]
    assert f'"{TOKEN}": "a secret, new in each start"' in shown[0]


def test_a_short_secret_is_refused_and_not_shown():
    with pytest.raises(InputError, match="JAXNET_JOB_TOKEN has 5 characters; it must have at least 16") as caught:
        token_in({TOKEN: "swift"})
    assert "swift" not in str(caught.value)
    assert token_in({TOKEN: ""}) is None
