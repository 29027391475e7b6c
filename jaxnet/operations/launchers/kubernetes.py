"""`jaxnet launch kubernetes`: a JobSet, that is, one indexed Job of N pods that restarts as a whole.

The JobSet controller makes the headless service by which pods have names. Pods run as an ordinary user on a read-only
root file system. /tmp, /dev/shm and the work directory are mounted.
"""

import argparse
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jaxnet.cluster.environment import COORDINATOR, COUNT, INDEX
from jaxnet.command_line import Commands, hosts_in_all, not_negative, positive
from jaxnet.errors import InputError
from jaxnet.operations.launchers.job import (
    PORT,
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
from jaxnet.operations.launchers.script import feed
from jaxnet.operations.launchers.yaml import to_yaml

_JOB = "host"
_LONGEST_NAME = 63 - len(f"-{_JOB}-0-99999-abcde")  # the pods' names are labels too
_USER = 1000
_INDEX_FIELD = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
_GPU = "nvidia.com/gpu"


@dataclass(frozen=True)
class KubernetesJob:
    """A job for Kubernetes.

    Attributes:
        command: what each of `pods` pods executes in the image, word for word: Kubernetes expands nothing in it.
        claim: a PersistentVolumeClaim that all pods can write, mounted at `mount`, where the command starts.
        restarts: how often the whole set starts again after a pod has failed.
        grace_seconds: from SIGTERM, as at an eviction, to SIGKILL.
        selector: labels that a node must have.
    """

    command: Sequence[str]
    image: str
    pods: int
    claim: str
    mount: str = "/work"
    name: str = "jaxnet"
    environment: Mapping[str, str] = field(default_factory=dict)
    namespace: str | None = None
    cpus: str = "4"
    memory: str = "16Gi"
    shared_memory: str = "2Gi"
    gpus: int = 0
    restarts: int = 3
    grace_seconds: int = 120
    selector: Mapping[str, str] = field(default_factory=dict)


def manifest(job: KubernetesJob) -> str:
    """The JobSet as YAML."""
    _check(job)
    metadata = {"name": job.name} | ({"namespace": job.namespace} if job.namespace else {})
    indexed = {
        "completionMode": "Indexed",
        "parallelism": job.pods,
        "completions": job.pods,
        "backoffLimit": 0,
        "template": {"spec": _pod(job)},
    }
    jobset = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": metadata,
        "spec": {
            "network": {"enableDNSHostnames": True, "subdomain": job.name},
            "failurePolicy": {"maxRestarts": job.restarts},
            "replicatedJobs": [{"name": _JOB, "replicas": 1, "template": {"spec": indexed}}],
        },
    }
    return "# Made by `jaxnet launch kubernetes`; `kubectl apply -f FILE` starts it.\n" + to_yaml(jobset)


def _check(job: KubernetesJob) -> None:
    check_label("--name", job.name, _LONGEST_NAME)
    if job.name[0].isdigit():
        raise InputError(f"--name {job.name}: a service's name cannot begin with a digit")
    if job.namespace is not None:
        check_label("--namespace", job.namespace)
    if not re.fullmatch("[a-z0-9]([a-z0-9.-]*[a-z0-9])?", job.claim):
        raise InputError(f"--claim {job.claim}: wanted the name of a PersistentVolumeClaim")
    if not re.fullmatch(r"(/[A-Za-z0-9_.-]+)+", job.mount):
        raise InputError(f"--mount {job.mount}: wanted an absolute path of letters, digits and _ . -")
    check_word("--image", job.image)
    for flag, text in (("--cpus", job.cpus), ("--memory", job.memory), ("--shared-memory", job.shared_memory)):
        if not re.fullmatch(r"[0-9]+(\.[0-9]+)?(m|[kKMGTPE]i?)?", text):
            raise InputError(f"{flag} {text}: wanted a quantity, such as 4, 500m or 16Gi")
    for key, value in job.selector.items():
        if not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9_./-]*[A-Za-z0-9])?", key) or not re.fullmatch(
            r"([A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?)?", value
        ):
            raise InputError(f"--node-selector {key}={value}: wanted LABEL=VALUE")


def _pod(job: KubernetesJob) -> dict[str, Any]:
    pod: dict[str, Any] = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": job.grace_seconds,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _USER,
            "runAsGroup": _USER,
            "fsGroup": _USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [_container(job)],
        "volumes": [
            {"name": "tmp", "emptyDir": {}},
            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": job.shared_memory}},
            {"name": "work", "persistentVolumeClaim": {"claimName": job.claim}},
        ],
    }
    return pod | ({"nodeSelector": dict(job.selector)} if job.selector else {})


def _container(job: KubernetesJob) -> dict[str, Any]:
    resources: dict[str, str] = {"cpu": job.cpus, "memory": job.memory}
    if job.gpus:
        resources[_GPU] = str(job.gpus)
    return {
        "name": "train",
        "image": job.image,
        "workingDir": job.mount,
        "command": [_literal(word) for word in job.command],
        "env": _environment(job),
        "ports": [{"name": "coordinator", "containerPort": PORT}],
        "resources": {"requests": dict(resources), "limits": dict(resources)},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [
            {"name": "tmp", "mountPath": "/tmp"},
            {"name": "shm", "mountPath": "/dev/shm"},
            {"name": "work", "mountPath": job.mount},
        ],
    }


def _environment(job: KubernetesJob) -> list[dict[str, Any]]:
    place: list[dict[str, Any]] = [
        {"name": COORDINATOR, "value": f"{job.name}-{_JOB}-0-0.{job.name}:{PORT}"},
        {"name": COUNT, "value": str(job.pods)},
        {"name": INDEX, "valueFrom": {"fieldRef": {"fieldPath": _INDEX_FIELD}}},
    ]
    # The root file system is read-only, and so is the image's home directory.
    own = {"HOME": "/tmp"} | dict(job.environment)
    return [*place, *({"name": name, "value": _literal(value)} for name, value in own.items())]


def _literal(text: str) -> str:
    """Protect $: Kubernetes replaces $(NAME) by a variable's value, and $$ by one $."""
    return text.replace("$", "$$")


# ---- Command line ---------------------------------------------------------------------------------------

_ABOUT = """\
Write a JobSet of N pods with one process each, and give it to kubectl. This needs the JobSet controller in the
cluster, an image (see launch/Dockerfile) and a PersistentVolumeClaim that all pods can write, where the command
starts. When a pod fails, the whole set starts again. Variables are passed on only with --env.

examples:
  jaxnet launch kubernetes --pods 2 --gpus 8 --image registry.example/jaxnet:1 --claim work \\
      -- jaxnet train --config configs/digits.py
  jaxnet launch kubernetes --pods 4 --image jaxnet:1 --claim work --dry-run -- jaxnet train --config configs/digits.py
"""


def add_kind(kinds: Commands) -> None:
    """Add `kubernetes` to the kinds of `jaxnet launch`."""
    parser = new_kind(kinds, "kubernetes", "a JobSet of Kubernetes", _ABOUT, run)
    parser.add_argument(
        "--pods", type=hosts_in_all, required=True, metavar="N", help="how many pods, each with one process"
    )
    parser.add_argument("--image", required=True, help="the container image")
    parser.add_argument(
        "--claim", required=True, metavar="NAME", help="a PersistentVolumeClaim that all pods can write"
    )
    parser.add_argument("--mount", default="/work", metavar="PATH", help="where the claim is mounted; default /work")
    parser.add_argument("--name", default="jaxnet", help="name of the set; default jaxnet")
    parser.add_argument("--namespace", metavar="NAME", help="default: kubectl's own")
    parser.add_argument("--cpus", default="4", metavar="Q", help="CPU cores of each pod; default 4")
    parser.add_argument("--memory", default="16Gi", metavar="Q", help="memory of each pod; default 16Gi")
    parser.add_argument("--shared-memory", default="2Gi", metavar="Q", help="/dev/shm of each pod; default 2Gi")
    parser.add_argument("--gpus", type=not_negative, default=0, metavar="G", help="GPUs of each pod; default 0")
    parser.add_argument(
        "--restarts",
        type=not_negative,
        default=3,
        metavar="R",
        help="start the whole set again after a failure, at most R times; default 3",
    )
    parser.add_argument(
        "--grace",
        type=positive,
        default=120,
        metavar="S",
        help="seconds from SIGTERM to SIGKILL, in which to save; default 120",
    )
    parser.add_argument(
        "--node-selector",
        action="append",
        default=[],
        metavar="LABEL=VALUE",
        help="a label that nodes must have; may be repeated",
    )
    parser.add_argument("--python", default="python3", metavar="PATH", help="the image's Python; default python3")
    add_devices(parser)
    add_job_options(parser, "the manifest")


def run(args: argparse.Namespace) -> int:
    """Run `jaxnet launch kubernetes`."""
    text = manifest(
        KubernetesJob(
            whole_command(command_of(args), args.python),
            args.image,
            args.pods,
            args.claim,
            mount=args.mount,
            name=args.name,
            environment=passed_environment(os.environ, args.env, devices=args.devices_per_process),
            namespace=args.namespace,
            cpus=args.cpus,
            memory=args.memory,
            shared_memory=args.shared_memory,
            gpus=args.gpus,
            restarts=args.restarts,
            grace_seconds=args.grace,
            selector={label: value for label, _, value in (text.partition("=") for text in args.node_selector)},
        )
    )
    return show(text) if args.dry_run else feed(text, "kubectl", "apply", "-f", "-", cure="install it")
