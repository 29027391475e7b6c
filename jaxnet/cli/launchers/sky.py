"""`jaxnet launch sky`."""

import argparse
import os
from typing import TYPE_CHECKING

from jaxnet.cli.launchers.common import add_command, add_devices, command_of, new_kind, show
from jaxnet.cli.parser import positive

if TYPE_CHECKING:
    from jaxnet.cli.launchers.common import Kinds

_ABOUT = """\
Make a task for SkyPilot, which finds the machines and runs the command on each, and give it to `sky launch`.
Variables travel only if --env names them, and are written into the task.

examples:
  jaxnet launch sky --nodes 2 --accelerators A100:8 --setup 'pip install .[cuda]' -- train.py --config configs/digits.py
  jaxnet launch sky --nodes 2 --infra gcp/us-central1 --dry-run -- train.py --config configs/digits.py
"""


def add_kind(kinds: "Kinds") -> None:
    """Add `sky`."""
    parser = new_kind(kinds, "sky", "machines that SkyPilot finds", _ABOUT, run)
    parser.add_argument("--nodes", type=positive, required=True, metavar="N", help="how many hosts")
    parser.add_argument("--accelerators", metavar="NAME:COUNT", help="of each host, such as A100:8")
    parser.add_argument("--infra", metavar="WHERE", help="such as gcp/us-central1; default: the cheapest")
    parser.add_argument("--name", default="jaxnet", help="of the task and its cluster; default jaxnet")
    parser.add_argument("--upload", default=".", metavar="DIR", help="copied to the hosts, where it starts; default .")
    parser.add_argument("--setup", metavar="SHELL", help="a shell command that prepares a host")
    parser.add_argument("--python", default="python3", metavar="PATH", help="the hosts'; default python3")
    add_devices(parser)
    add_command(parser, "the task")


def run(args: argparse.Namespace) -> int:
    """Run `jaxnet launch sky`."""
    from jaxnet.cluster.launchers.job import passed_environment, whole_command
    from jaxnet.cluster.launchers.sky import SkyJob, launch, sky_task

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
    return show(text) if args.dry_run else launch(text, args.name)
