"""`jaxnet launch tpu`: one command on every host of a TPU VM slice, through gcloud. JAX finds the hosts itself."""

import argparse
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from jaxnet.command_line import Commands
from jaxnet.operations.launchers.job import (
    add_job_options,
    check_label,
    check_word,
    command_of,
    new_kind,
    passed_environment,
    show,
    whole_command,
)
from jaxnet.operations.launchers.script import exec_script, exports, find_program


@dataclass(frozen=True)
class TpuJob:
    """What every host of the slice `name` executes, in `directory` and with `environment`."""

    command: Sequence[str]
    name: str
    zone: str
    project: str | None = None
    directory: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)


def tpu_script(job: TpuJob) -> str:
    """The script, whose process turns into gcloud; gcloud ends when every host has ended."""
    remote = [f"cd -- {shlex.quote(job.directory)} || exit"] if job.directory else []
    remote += [exports(job.environment), f"exec {shlex.join(job.command)}"]
    words = ["gcloud", "compute", "tpus", "tpu-vm", "ssh", check_label("--name", job.name)]
    words += [f"--zone={check_word('--zone', job.zone)}", "--worker=all"]
    if job.project:
        words.append(f"--project={check_word('--project', job.project)}")
    text = "\n".join(line for line in remote if line)
    return f"""\
#!/bin/bash
# Made by `jaxnet launch tpu`.
set -euo pipefail

# On every host of the slice:
remote={shlex.quote(text)}

exec {shlex.join(words)} --command="$remote"
"""


# ---- Command line ---------------------------------------------------------------------------------------

_ABOUT = """\
Run the command on every host of a TPU VM slice, through gcloud. The hosts must have the code and its Python already;
launch/tpu.sh shows how to put them there. Variables are passed on only with --env.

examples:
  jaxnet launch tpu --name my-slice --zone us-central2-b -- jaxnet train --config configs/digits.py
  jaxnet launch tpu --name my-slice --zone us-central2-b --directory jaxnet --python .venv/bin/python --dry-run \
      -- jaxnet train --config configs/digits.py
"""


def add_kind(kinds: Commands) -> None:
    """Add `tpu` to the kinds of `jaxnet launch`."""
    parser = new_kind(kinds, "tpu", "the hosts of a TPU VM slice", _ABOUT, run)
    parser.add_argument("--name", required=True, help="name of the slice")
    parser.add_argument("--zone", required=True, help="zone of the slice")
    parser.add_argument("--project", help="project of the slice; default: gcloud's own")
    parser.add_argument("--directory", metavar="DIR", help="where the command starts; default: the home directory")
    parser.add_argument("--python", default="python3", metavar="PATH", help="the hosts' Python; default python3")
    add_job_options(parser, "the script")


def run(args: argparse.Namespace) -> int:
    """Run `jaxnet launch tpu`."""
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
    find_program("gcloud", "install the Google Cloud CLI")
    exec_script(script)
