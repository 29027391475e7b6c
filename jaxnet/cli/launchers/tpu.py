"""`jaxnet launch tpu`."""

import argparse
import os
from typing import TYPE_CHECKING

from jaxnet.cli.launchers.common import add_command, command_of, new_kind, show

if TYPE_CHECKING:
    from jaxnet.cli.launchers.common import Kinds

_ABOUT = """\
Run the command on every host of a TPU VM slice, through gcloud. The code and its Python must be on the hosts, as
launch/tpu.sh puts them there. Variables travel only if --env names them.

examples:
  jaxnet launch tpu --name my-slice --zone us-central2-b -- train.py --config configs/digits.py
  jaxnet launch tpu --name my-slice --zone us-central2-b --directory jaxnet --python .venv/bin/python --dry-run \\
      -- train.py --config configs/digits.py
"""


def add_kind(kinds: "Kinds") -> None:
    """Add `tpu`."""
    parser = new_kind(kinds, "tpu", "the hosts of a TPU VM slice", _ABOUT, run)
    parser.add_argument("--name", required=True, help="of the slice")
    parser.add_argument("--zone", required=True, help="where it is")
    parser.add_argument("--project", help="default: gcloud's own")
    parser.add_argument("--directory", metavar="DIR", help="where the command starts; default the home directory")
    parser.add_argument("--python", default="python3", metavar="PATH", help="the hosts'; default python3")
    add_command(parser, "the script")


def run(args: argparse.Namespace) -> int:
    """Run `jaxnet launch tpu`."""
    from jaxnet.cluster.launchers.job import passed_environment, whole_command
    from jaxnet.cluster.launchers.shell import become, need
    from jaxnet.cluster.launchers.tpu import TpuJob, tpu_script

    script = tpu_script(
        TpuJob(
            whole_command(command_of(args), args.python),
            args.name,
            args.zone,
            project=args.project,
            directory=args.directory,
            environment=passed_environment(os.environ, args.env),
        )
    )
    if args.dry_run:
        return show(script)
    need("gcloud", "install the Google Cloud CLI")
    become(script)
