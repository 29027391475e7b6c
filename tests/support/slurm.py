"""A real Slurm on the hosts of a lab: a controller on host0, and a node on each. It all ends with the lab."""

import os
import shutil
import subprocess
import time
from pathlib import Path

from support.programs import PATIENCE

_CONF = """
ClusterName=lab
SlurmctldHost=host0(10.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n/slurmd.log
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
MpiDefault=none
ReturnToService=2
KillWait=5
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
MailProg=/bin/true
SlurmdParameters=config_overrides
NodeName=host0 NodeAddr=10.0.0.1 CPUs=2 RealMemory=1000 State=UNKNOWN
NodeName=host1 NodeAddr=10.0.0.2 CPUs=2 RealMemory=1000 State=UNKNOWN
PartitionName=main Nodes=host[0-1] Default=YES MaxTime=1:00:00 State=UP
"""
_PROGRAMS = ("slurmctld", "slurmd", "sbatch", "munged")
_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"


def missing():
    """Why there can be no Slurm here, or an empty string."""
    absent = [name for name in _PROGRAMS if shutil.which(name, path=_PATH) is None]
    if absent:
        return f"there is no {' and no '.join(absent)} (Debian: apt-get install slurmctld slurmd slurm-client munge)"
    return "" if os.geteuid() == 0 else "a Slurm of the lab needs root"


def write_conf(folder):
    """The configuration of all parts; the result is the variable by which its programs find it."""
    for name in ("host0", "host1", "state"):
        (folder / name).mkdir()
    (folder / "slurm.conf").write_text(_CONF.format(folder=folder))
    # Nothing here uses cgroups, but slurmd does not start where it cannot tell which version there is.
    (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
    return {"SLURM_CONF": str(folder / "slurm.conf")}


def serve(rank):
    """Start what runs on this host of the lab; its mounts are the lab's own. On host0, wait for both nodes."""
    ready = Path(os.environ["SLURM_CONF"]).with_name("ready")
    if rank == 0:
        _start_munge()
        _run("slurmctld")
        ready.touch()
    _await(ready.exists)
    _run("slurmd")
    if rank == 0:
        _await(lambda: _states() == ["idle", "idle"])


def _start_munge():
    """Its socket is under /run, which is not ours to change: the lab gets one of its own."""
    subprocess.run(["mount", "-t", "tmpfs", "none", "/run"], check=True)
    subprocess.run(["install", "-d", "-o", "munge", "-g", "munge", "-m", "0755", "/run/munge"], check=True)
    key = Path("/run/munge/key")
    key.write_bytes(os.urandom(1024))
    shutil.chown(key, "munge", "munge")
    key.chmod(0o600)
    own = [f"--{kind}-file=/run/munge/{kind}" for kind in ("key", "log", "seed", "pid")]
    _run("runuser", "-u", "munge", "--", "/usr/sbin/munged", *own)


def _states():
    return _run("sinfo", "--noheader", "--Node", "--format=%T").split()


def _run(*words):
    done = subprocess.run(words, env=os.environ | {"PATH": _PATH}, capture_output=True, text=True)
    assert done.returncode == 0, (words, done.stderr)
    return done.stdout


def _await(condition):
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "Slurm does not come up"
        time.sleep(0.1)
