"""`jaxnet launch mpi`: a script in which mpirun or srun starts the processes.

With `transport="xla"` MPI only starts them. JAX joins them, and they learn their place from the starter's variables.
With `transport="mpi"` MPI also joins them and carries the gradients.
"""

import argparse
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from jaxnet.cluster.addresses import Address
from jaxnet.cluster.environment import COORDINATOR
from jaxnet.cluster.job_token import TOKEN
from jaxnet.command_line import Commands, given_path, hosts_in_all, port
from jaxnet.errors import InputError
from jaxnet.operations.launchers.hosts import Host, parse_list, read_file
from jaxnet.operations.launchers.job import (
    HOSTFILE,
    PASSED,
    PORT,
    add_devices,
    add_job_options,
    command_of,
    new_kind,
    passed_environment,
    show,
    whole_command,
)
from jaxnet.operations.launchers.script import define_task, exec_script, find_program, new_secret, setup

_STARTERS = {"openmpi": "mpirun", "mpich": "mpirun", "srun": "srun"}
_PLACE = {  # the variables in which a starter gives a process its number, and how many there are
    "openmpi": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    "mpich": ("PMI_RANK", "PMI_SIZE"),
}
_SAYS = {"openmpi": "Open MPI", "mpich": "HYDRA"}  # what `mpirun --version` contains


@dataclass(frozen=True)
class MpiJob:
    """A job for mpirun or srun.

    Attributes:
        command: what every process executes, in `directory` and with `environment`.
        processes: how many in all.
        hosts: where they run; none means this host.
        starter: `openmpi`, `mpich` or `srun`.
        transport: how gradients travel, `xla` or `mpi`.
        port: where process 0 listens with `transport="xla"`.
        options: further words for the starter.
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
    """The script, whose process turns into the starter."""
    _check(job)
    parts = [
        "#!/bin/bash\n# Made by `jaxnet launch mpi`.\nset -euo pipefail",
        *setup(job.directory, job.environment, job.command),
    ]
    run = '"${command[@]}"'
    if job.transport == "xla":
        first = job.hosts[0].name if job.hosts else "127.0.0.1"
        coordinator = f"export {COORDINATOR}={shlex.quote(str(Address(first, job.port)))}"
        parts.append("\n".join([coordinator, new_secret(), define_task(*_PLACE[job.starter])]))
        run = f'/bin/sh -c "$task" sh {run}'
    return "\n\n".join([*parts, f"exec {shlex.join(_starter(job))} \\\n  {run}"]) + "\n"


def _starter(job: MpiJob) -> list[str]:
    sent = [*job.environment, *([COORDINATOR, TOKEN] if job.transport == "xla" else [])]
    count = str(job.processes)
    if job.starter == "openmpi":
        hosts = ["--host", ",".join(f"{host.name}:{host.slots}" for host in job.hosts)] if job.hosts else []
        # -x NAME, not -x NAME=VALUE: in a value, some characters would separate further variables.
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


def _check_starter(starter: str) -> None:
    """Raise InputError when the starter's program is missing here, or is that of another MPI."""
    found = find_program(
        _STARTERS[starter], "install Open MPI or MPICH (on Debian and Ubuntu: apt-get install openmpi-bin)"
    )
    if starter in _SAYS:
        printed = subprocess.run([found, "--version"], stdin=subprocess.DEVNULL, capture_output=True, text=True).stdout
        if _SAYS[starter].lower() not in printed.lower():
            raise InputError(
                f"--starter {starter}: {found} says {printed.splitlines()[:1]} of itself; give the --starter that it is"
            )


# ---- Command line ---------------------------------------------------------------------------------------

_ABOUT = """\
Start the processes with mpirun, of Open MPI or MPICH, or with srun. By default MPI only starts them, and JAX joins
them. With --transport mpi the gradients travel by MPI; say transport=mpi in the config too. A .py file or jaxnet then
runs under `python -m mpi4py`, which ends all processes when one fails.

examples:
  jaxnet launch mpi --processes 2 --hosts node1,node2 -- jaxnet train --config configs/digits.py
  jaxnet launch mpi --processes 8 --hosts node1:4,node2:4 --transport mpi -- jaxnet train --config c.py transport=mpi
  jaxnet launch mpi --processes 2 --starter mpich --dry-run -- jaxnet train --config configs/digits.py
"""


def add_kind(kinds: Commands) -> None:
    """Add `mpi` to the kinds of `jaxnet launch`."""
    parser = new_kind(kinds, "mpi", "processes that mpirun or srun starts", _ABOUT, run)
    parser.add_argument("--processes", type=hosts_in_all, required=True, metavar="N", help="how many processes in all")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--hosts", metavar="HOST[:SLOTS],...", help="where they run; default: here")
    where.add_argument("--hostfile", type=given_path, metavar="FILE", help=HOSTFILE)
    parser.add_argument(
        "--starter", choices=tuple(_STARTERS), default="openmpi", help="openmpi, mpich or srun; default openmpi"
    )
    parser.add_argument(
        "--transport", choices=("xla", "mpi"), default="xla", help="as in the config: xla or mpi; default xla"
    )
    parser.add_argument("--port", type=port, metavar="P", help=f"where process 0 listens; default {PORT}")
    add_devices(parser)
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="WORD",
        help="another word for the starter, as in --option=--oversubscribe; may be repeated",
    )
    add_job_options(parser, "the script")


def run(args: argparse.Namespace) -> int:
    """Run `jaxnet launch mpi`."""
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
    _check_starter(args.starter)
    exec_script(script)
