"""A SkyPilot task: one command on every node; `jaxnet` reads each node's place from SkyPilot's variables."""

import shlex
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import run
from typing import Any

from jaxnet.cluster.launchers.job import check_label, check_word
from jaxnet.cluster.launchers.shell import FORGET, exports, need
from jaxnet.cluster.launchers.yaml import to_yaml
from jaxnet.errors import InputError


@dataclass(frozen=True)
class SkyJob:
    """What every node executes.

    Attributes:
        accelerators: of each node, as SkyPilot writes them: `A100:8`.
        workdir: a folder here that SkyPilot copies to every node, where commands start.
        setup: a shell command that prepares a node.
        infra: where, as SkyPilot writes it: `gcp/us-central1`, `kubernetes`; else the cheapest it finds.
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
    task["run"] = "\n".join([exports(job.environment), FORGET, f"exec {shlex.join(job.command)}"]) + "\n"
    return f"# Made by `jaxnet launch sky`; `sky launch -c {job.name} FILE` starts it.\n" + to_yaml(task)


def launch(text: str, name: str) -> int:
    """Give the task to `sky launch`; the result is its exit status."""
    found = need("sky", "install SkyPilot")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "task.yaml"
        path.write_text(text)
        try:
            return run([found, "launch", "-c", name, str(path)]).returncode
        except OSError as error:
            raise InputError(f"cannot run {found}: {error.strerror}") from None
