"""`jaxnet launch mpi`."""

import argparse
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from jaxnet.cluster.environment import COORDINATOR, Address
from jaxnet.command_line import HOSTFILE, Commands, add_command, add_devices, command_of, new_kind, positive, show
from jaxnet.errors import InputError
from jaxnet.operations.launchers.hosts import Host
from jaxnet.operations.launchers.job import FORGET, PORT, array, exports, need, task

# ---- A script in which mpirun, or srun, starts the processes: Open MPI, MPICH, or Slurm's own support of MPI
#
# With `transport="xla"` MPI does no more than that: JAX joins the processes, which get their place from the
# starter's variables. With `transport="mpi"` the gradients too travel by MPI, which joins the ranks.


STARTERS = {"openmpi": "mpirun", "mpich": "mpirun", "srun": "srun"}
"""What each starter's program is called."""

_PLACE = {
    "openmpi": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    "mpich": ("PMI_RANK", "PMI_SIZE"),
}
_SAYS = {"openmpi": "Open MPI", "mpich": "HYDRA"}


@dataclass(frozen=True)
class MpiJob:
    """What every rank executes, in `directory` and with `environment`; no `hosts` means this one.

    `options` go to the starter as they are. `port` is where process 0 waits with `transport="xla"`.
    """

    command: Sequence[str]
    directory: str
    processes: int
    environment: Mapping[str, str] = field(default_factory=dict)
    hosts: Sequence[Host] = ()
    starter: str = "openmpi"
    transport: str = "xla"
    port: int = PORT
    options: Sequence[str] = ()


def mpi_script(job: MpiJob) -> str:
    """The script; it becomes the starter."""
    _check(job)
    parts = [
        "#!/bin/bash\n# Made by `jaxnet launch mpi`.\nset -euo pipefail",
        f"cd -- {shlex.quote(job.directory)}\n{exports(job.environment)}\n{FORGET}",
        array("command", job.command),
    ]
    run = '"${command[@]}"'
    if job.transport == "xla":
        first = job.hosts[0].name if job.hosts else "127.0.0.1"
        parts.append(f"export {COORDINATOR}={shlex.quote(str(Address(first, job.port)))}\n{task(*_PLACE[job.starter])}")
        run = f'/bin/sh -c "$task" sh {run}'
    return "\n\n".join([*parts, f"exec {shlex.join(_starter(job))} \\\n  {run}"]) + "\n"


def check_starter(starter: str) -> None:
    """Raise InputError when the `mpirun` on the PATH is missing, or another MPI's."""
    found = need(STARTERS[starter], "install Open MPI or MPICH (on Debian and Ubuntu: apt-get install openmpi-bin)")
    if starter in _SAYS:
        printed = subprocess.run([found, "--version"], stdin=subprocess.DEVNULL, capture_output=True, text=True).stdout
        if _SAYS[starter].lower() not in printed.lower():
            raise InputError(
                f"--starter {starter}: {found} says {printed.splitlines()[:1]} of itself; give the --starter that it is"
            )


def _starter(job: MpiJob) -> list[str]:
    sent = [*job.environment, *([COORDINATOR] if job.transport == "xla" else [])]
    count = str(job.processes)
    if job.starter == "openmpi":
        hosts = ["--host", ",".join(f"{host.name}:{host.slots}" for host in job.hosts)] if job.hosts else []
        # By name: in -x NAME=VALUE some characters would separate further variables.
        return ["mpirun", "-n", count, *hosts, *(word for name in sent for word in ("-x", name)), *job.options]
    if job.starter == "mpich":
        hosts = ["-hosts", ",".join(f"{host.name}:{host.slots}" for host in job.hosts)] if job.hosts else []
        return ["mpirun", "-n", count, *hosts, "-genvlist", ",".join(sent), *job.options]
    hosts = ["--nodelist", ",".join(host.name for host in job.hosts)] if job.hosts else []
    return ["srun", "--mpi=pmix", "--kill-on-bad-exit=1", "--ntasks", count, *hosts, *job.options]


def _check(job: MpiJob) -> None:
    slots = sum(host.slots for host in job.hosts)
    if job.hosts and slots < job.processes:
        raise InputError(
            f"--processes {job.processes}, but the hosts have {slots} slots together: give host:slots, or fewer"
        )
    for host in job.hosts:
        if host.user or host.port:
            raise InputError(f"--hosts {host.name}: MPI takes no user and no port; put them into your ~/.ssh/config")
    if job.transport == "xla" and job.starter == "srun":
        raise InputError("--starter srun is for --transport mpi; with transport=xla use jaxnet launch slurm")
    if job.transport == "xla" and "transport=mpi" in job.command:
        raise InputError("the command says transport=mpi: give --transport mpi before the --")


_ABOUT = """\
Start the processes with mpirun, of Open MPI or MPICH, or with srun. By default MPI does no more than that, and
JAX joins the processes; with --transport mpi their gradients travel by MPI, as transport=mpi in the config says
(a .py file then runs under `python -m mpi4py`, which ends all ranks when one fails).

examples:
  jaxnet launch mpi --processes 2 --hosts node1,node2 -- train.py --config configs/digits.py
  jaxnet launch mpi --processes 8 --hosts node1:4,node2:4 --transport mpi -- train.py --config c.py transport=mpi
  jaxnet launch mpi --processes 2 --starter mpich --dry-run -- train.py --config configs/digits.py
"""


def add_kind(kinds: Commands) -> None:
    """Add `mpi`."""
    parser = new_kind(kinds, "mpi", "ranks of mpirun", _ABOUT, run)
    parser.add_argument("--processes", type=positive, required=True, metavar="N", help="how many in all")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--hosts", metavar="HOST[:SLOTS],...", help="where they run; default here")
    where.add_argument("--hostfile", type=Path, metavar="FILE", help=HOSTFILE)
    parser.add_argument(
        "--starter", choices=("openmpi", "mpich", "srun"), default="openmpi", help="whose mpirun; default openmpi"
    )
    parser.add_argument("--transport", choices=("xla", "mpi"), default="xla", help="as in the config; default xla")
    parser.add_argument("--port", type=positive, metavar="P", help="where process 0 waits for the others")
    add_devices(parser)
    parser.add_argument(
        "--option", action="append", default=[], metavar="WORD", help="for the starter, as in --option=--oversubscribe"
    )
    add_command(parser, "the script")


def run(args: argparse.Namespace) -> int:
    """Run `jaxnet launch mpi`."""
    from jaxnet.operations.launchers.hosts import parse_list, read_file
    from jaxnet.operations.launchers.job import PASSED, PORT, passed_environment, whole_command

    pass
    from jaxnet.operations.launchers.job import become

    hosts = read_file(args.hostfile) if args.hostfile else parse_list(args.hosts, "slots") if args.hosts else []
    command = whole_command(command_of(args), sys.executable)
    if args.transport == "mpi" and command[0] == sys.executable:
        command[1:1] = ["-m", "mpi4py"]
    script = mpi_script(
        MpiJob(
            command,
            str(Path.cwd()),
            args.processes,
            passed_environment(os.environ, args.env, PASSED, args.devices_per_process),
            hosts=hosts,
            starter=args.starter,
            transport=args.transport,
            port=args.port or PORT,
            options=args.option,
        )
    )
    if args.dry_run:
        return show(script)
    check_starter(args.starter)
    become(script)
