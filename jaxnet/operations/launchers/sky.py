"""`jaxnet launch sky`: a SkyPilot task that runs one command on every host.

A process reads its place from SkyPilot's variables, see `jaxnet.cluster.environment`.
"""

import argparse
import os
import shlex
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jaxnet.command_line import Commands, hosts_in_all
from jaxnet.errors import InputError
from jaxnet.files import expanded, is_directory
from jaxnet.operations.launchers.job import (
    add_devices,
    add_job_options,
    check_label,
    check_word,
    command_of,
    new_kind,
    passed_environment,
    show,
    whole_command,
)
from jaxnet.operations.launchers.script import UNSET, exports, find_program
from jaxnet.operations.launchers.yaml import to_yaml


@dataclass(frozen=True)
class SkyJob:
    """A job for SkyPilot.

    Attributes:
        command: what every host executes, with `environment`.
        nodes: how many hosts.
        accelerators: of each host, in SkyPilot's form: `A100:8`.
        workdir: a folder here that SkyPilot copies to every host, where the command starts.
        setup: a shell command that prepares a host.
        infra: where, in SkyPilot's form: `gcp/us-central1`, `kubernetes`; None: the cheapest that SkyPilot finds.
    """

    command: Sequence[str]
    nodes: int = 1
    name: str = "jaxnet"
    accelerators: str | None = None
    workdir: str = "."
    setup: str | None = None
    infra: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)


def sky_task(job: SkyJob) -> str:
    """The task as YAML."""
    resources: dict[str, str] = {}
    if job.infra is not None:
        resources["infra"] = check_word("--infra", job.infra)
    if job.accelerators is not None:
        resources["accelerators"] = check_word("--accelerators", job.accelerators)
    task: dict[str, Any] = {"name": check_label("--name", job.name), "num_nodes": job.nodes}
    task |= {"resources": resources} if resources else {}
    task |= {"workdir": job.workdir} | ({"setup": job.setup} if job.setup else {})
    task["run"] = "\n".join([exports(job.environment), UNSET, f"exec {shlex.join(job.command)}"]) + "\n"
    return f"# Made by `jaxnet launch sky`; `sky launch -c {job.name} FILE` starts it.\n" + to_yaml(task)


def _launch(text: str, name: str) -> int:
    """Give the task to `sky launch`, which reads files only; return its exit status."""
    found = find_program("sky", "install SkyPilot")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "task.yaml"
        path.write_text(text)
        try:
            return subprocess.run([found, "launch", "-c", name, str(path)]).returncode
        except OSError as error:
            raise InputError(f"cannot run {found}: {error.strerror}") from None


# ---- Command line ---------------------------------------------------------------------------------------

_ABOUT = """\
Write a task for SkyPilot and give it to `sky launch`. SkyPilot finds the machines and runs the command on each.
Variables are passed on only with --env, and their values stand in the task.

examples:
  jaxnet launch sky --nodes 2 --accelerators A100:8 --setup 'pip install .[cuda]' \\
      -- jaxnet train --config configs/digits.py
  jaxnet launch sky --nodes 2 --infra gcp/us-central1 --dry-run -- jaxnet train --config configs/digits.py
"""


def add_kind(kinds: Commands) -> None:
    """Add `sky` to the kinds of `jaxnet launch`."""
    parser = new_kind(kinds, "sky", "machines that SkyPilot finds", _ABOUT, run)
    parser.add_argument("--nodes", type=hosts_in_all, required=True, metavar="N", help="how many hosts")
    parser.add_argument("--accelerators", metavar="NAME:COUNT", help="of each host, such as A100:8")
    parser.add_argument(
        "--infra", metavar="WHERE", help="such as gcp/us-central1; default: the cheapest that SkyPilot finds"
    )
    parser.add_argument("--name", default="jaxnet", help="name of the task and its cluster; default jaxnet")
    parser.add_argument(
        "--upload", default=".", metavar="DIR", help="folder to copy to the hosts, where the command starts; default ."
    )
    parser.add_argument("--setup", metavar="SHELL", help="a shell command that prepares a host")
    parser.add_argument("--python", default="python3", metavar="PATH", help="the hosts' Python; default python3")
    add_devices(parser)
    add_job_options(parser, "the task")


def run(args: argparse.Namespace) -> int:
    """Run `jaxnet launch sky`."""
    if not is_directory(expanded(args.upload)):
        raise InputError(f"--upload {args.upload}: there is no such folder here")
    text = sky_task(
        SkyJob(
            whole_command(command_of(args), args.python),
            args.nodes,
            name=args.name,
            accelerators=args.accelerators,
            workdir=args.upload,
            setup=args.setup,
            infra=args.infra,
            environment=passed_environment(os.environ, args.env, devices=args.devices_per_process),
        )
    )
    return show(text) if args.dry_run else _launch(text, args.name)
