"""`jaxnet launch tpu`: one command on every host of a TPU VM slice, or of several slices that a queued resource made.

gcloud carries it there, and JAX finds the hosts itself: those of several slices by what Google's machines say of them.
"""

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
    """What every host of the slice `name` executes, in `directory` and with `environment`.

    With `queued`, `name` is that of a queued resource, and all hosts of all its slices do.
    """

    command: Sequence[str]
    name: str
    zone: str
    project: str | None = None
    queued: bool = False
    directory: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)


def tpu_script(job: TpuJob) -> str:
    """The script, whose process turns into gcloud; gcloud ends when every host has ended."""
    remote = [f"cd -- {shlex.quote(job.directory)} || exit"] if job.directory else []
    remote += [exports(job.environment), f"exec {shlex.join(job.command)}"]
    flag, kind = ("--queued-resource", "queued-resources") if job.queued else ("--name", "tpu-vm")
    words = ["gcloud", "compute", "tpus", kind, "ssh", check_label(flag, job.name)]
    words += [f"--zone={check_word('--zone', job.zone)}", "--worker=all", *(["--node=all"] if job.queued else [])]
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
Run the command on every host of a TPU VM slice, or of all slices of a queued resource, through gcloud. The hosts must
have the code and its Python already; launch/tpu.sh shows how to put them there. Variables are passed on only with
--env.

examples:
  jaxnet launch tpu --name my-slice --zone us-central2-b -- jaxnet train --config configs/digits.py
  jaxnet launch tpu --queued-resource two-slices --zone us-east5-b -- jaxnet train --config configs/digits.py
  jaxnet launch tpu --name my-slice --zone us-central2-b --directory jaxnet --python .venv/bin/python --dry-run \\
      -- jaxnet train --config configs/digits.py
"""


def add_kind(kinds: Commands) -> None:
    """Add `tpu` to the kinds of `jaxnet launch`."""
    parser = new_kind(kinds, "tpu", "the hosts of a TPU VM slice", _ABOUT, run)
    names = parser.add_mutually_exclusive_group(required=True)
    names.add_argument("--name", help="name of the slice")
    names.add_argument("--queued-resource", metavar="NAME", help="instead: all slices of this queued resource")
    parser.add_argument("--zone", required=True, help="where it is")
    parser.add_argument("--project", help="whose it is; default: gcloud's own")
    parser.add_argument("--directory", metavar="DIR", help="where the command starts; default: the home directory")
    parser.add_argument("--python", default="python3", metavar="PATH", help="the hosts' Python; default python3")
    add_job_options(parser, "the script")


def run(args: argparse.Namespace) -> int:
    """Run `jaxnet launch tpu`."""
    script = tpu_script(
        TpuJob(
            whole_command(command_of(args), args.python),
            args.queued_resource or args.name,
            args.zone,
            project=args.project,
            queued=args.queued_resource is not None,
            directory=args.directory,
            environment=passed_environment(os.environ, args.env),
        )
    )
    if args.dry_run:
        return show(script)
    find_program("gcloud", "install the Google Cloud CLI")
    exec_script(script)
