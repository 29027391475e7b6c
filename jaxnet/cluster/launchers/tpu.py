"""A script that runs one command on every host of a TPU VM slice, through gcloud; JAX finds the hosts itself."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from jaxnet.cluster.launchers.job import check_label, check_word
from jaxnet.cluster.launchers.shell import exports


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
    """The script; it becomes gcloud, which ends when every host has ended."""
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
