"""`jaxnet launch kubernetes`: a JobSet, that is, one indexed Job of N pods that restarts as a whole.

The JobSet controller makes the headless service by which pods have names. Pods run as an ordinary user on a read-only
root file system. /tmp, /dev/shm and the work directory are mounted.

On TPUs of Google's GKE there is one such Job for each slice. GKE tells each pod its place there, and JAX reads it.
"""

import argparse
import math
import os
import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from jaxnet.cluster.environment import COORDINATOR, COUNT, INDEX
from jaxnet.cluster.progress import ALIVE, STOPPED
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
_TPU = "google.com/tpu"
_CHIPS_OF_A_HOST = 4  # of slices of several hosts
_TPU_PORTS = {"tpu": 8471, "megascale": 8080}  # between the hosts of a slice, and between slices
# The labels that GKE gives to the nodes of each kind, and the sizes that name a slice.
_TPU_NODES = {
    "v4": ("tpu-v4-podslice", 3),
    "v5e": ("tpu-v5-lite-podslice", 2),
    "v5p": ("tpu-v5p-slice", 3),
    "v6e": ("tpu-v6e-slice", 2),
}
_EVICTED = {"type": "DisruptionTarget", "status": "True"}
_SECONDS_BETWEEN_PROBES, _PROBES = 30, 3
_FROZEN_MINUTES = 2
_ALIVE_FILE = "/tmp/alive"  # of the pod alone


class Slices(NamedTuple):
    """TPU slices, as `--tpu v5e:4x4/2` names them: two slices of 4 x 4 chips of the kind v5e."""

    kind: str
    sizes: tuple[int, ...]
    number: int

    @classmethod
    def named(cls, text: str) -> "Slices":
        """From their name; InputError: GKE has no such slices."""
        match = re.fullmatch(r"(\w+):([1-9][0-9]*(?:x[1-9][0-9]*)*)(?:/([1-9][0-9]*))?", text, re.ASCII)
        if match is None or match[1] not in _TPU_NODES or match[2].count("x") + 1 != _TPU_NODES[match[1]][1]:
            raise InputError(
                f"--tpu {text}: wanted KIND:SIZES or KIND:SIZES/SLICES, as in v5e:4x4, v5p:2x2x4 or v6e:4x4/2;"
                f" kinds are {', '.join(_TPU_NODES)}"
            )
        return cls(match[1], tuple(int(size) for size in match[2].split("x")), int(match[3] or 1))

    @property
    def chips(self) -> int:
        """Of one slice."""
        return math.prod(self.sizes)

    @property
    def labels(self) -> dict[str, str]:
        """Those of the nodes."""
        return {
            "cloud.google.com/gke-tpu-accelerator": _TPU_NODES[self.kind][0],
            "cloud.google.com/gke-tpu-topology": "x".join(map(str, self.sizes)),
        }


@dataclass(frozen=True)
class KubernetesJob:
    """A job for Kubernetes.

    Attributes:
        command: what each of `pods` pods executes in the image, word for word: Kubernetes expands nothing in it.
        pods: how many; with `tpu`, of one slice.
        claim: a PersistentVolumeClaim that all pods can write, mounted at `mount`, where the command starts; None: an
            empty folder of each pod, for a run whose work directory is in object storage.
        grace_seconds: from SIGTERM, as at an eviction, to SIGKILL.
        tpu: slices of GKE to run on.
        restarts: how often the whole set starts again after a pod has failed. Evictions do not count.
        selector: labels that a node must have.
    """

    command: Sequence[str]
    image: str
    pods: int
    claim: str | None
    mount: str = "/work"
    name: str = "jaxnet"
    environment: Mapping[str, str] = field(default_factory=dict)
    namespace: str | None = None
    cpus: str = "4"
    memory: str = "16Gi"
    shared_memory: str = "2Gi"
    gpus: int = 0
    tpu: Slices | None = None
    restarts: int = 3
    grace_seconds: int = 120
    selector: Mapping[str, str] = field(default_factory=dict)


def manifest(job: KubernetesJob) -> str:
    """The JobSet as YAML."""
    _check(job)
    metadata: dict[str, Any] = {"name": job.name} | ({"namespace": job.namespace} if job.namespace else {})
    if job.tpu and job.pods > 1:  # all pods of a slice on the nodes of one, and no two slices on the same
        metadata["annotations"] = {"alpha.jobset.sigs.k8s.io/exclusive-topology": "cloud.google.com/gke-nodepool"}
    indexed = {
        "completionMode": "Indexed",
        "parallelism": job.pods,
        "completions": job.pods,
        "backoffLimit": 0,
        "podFailurePolicy": {"rules": [{"action": "FailJob", "onPodConditions": [_EVICTED]}]},
        "template": {"spec": _pod(job)},
    }
    if_evicted = {"action": "RestartJobSetAndIgnoreMaxRestarts", "onJobFailureReasons": ["PodFailurePolicy"]}
    jobset = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": metadata,
        "spec": {
            "network": {"enableDNSHostnames": True, "subdomain": job.name},
            "failurePolicy": {"maxRestarts": job.restarts, "rules": [{"name": "evicted", **if_evicted}]},
            "replicatedJobs": [
                {"name": _JOB, "replicas": job.tpu.number if job.tpu else 1, "template": {"spec": indexed}}
            ],
        },
    }
    return "# Made by `jaxnet launch kubernetes`; `kubectl apply -f FILE` starts it.\n" + to_yaml(jobset)


def _check(job: KubernetesJob) -> None:
    check_label("--name", job.name, _LONGEST_NAME)
    if job.name[0].isdigit():
        raise InputError(f"--name {job.name}: a service's name cannot begin with a digit")
    if job.namespace is not None:
        check_label("--namespace", job.namespace)
    if job.claim is None and not any("://" in word for word in job.command):
        raise InputError(
            "--claim is missing: name a PersistentVolumeClaim that all pods can write, or give the command a work"
            " directory in object storage, as in --workdir gs://BUCKET/NAME"
        )
    if job.claim is not None and not re.fullmatch("[a-z0-9]([a-z0-9.-]*[a-z0-9])?", job.claim):
        raise InputError(f"--claim {job.claim}: wanted the name of a PersistentVolumeClaim")
    if not re.fullmatch(r"(/[A-Za-z0-9_.-]+)+", job.mount):
        raise InputError(f"--mount {job.mount}: wanted an absolute path of letters, digits and _ . -")
    check_word("--image", job.image)
    for flag, text in (("--cpus", job.cpus), ("--memory", job.memory), ("--shared-memory", job.shared_memory)):
        if not re.fullmatch(r"[0-9]+(\.[0-9]+)?(m|[kKMGTPE]i?)?", text):
            raise InputError(f"{flag} {text}: wanted a quantity, such as 4, 500m or 16Gi")
    if job.tpu and job.tpu.chips % job.pods:
        raise InputError(f"--pods {job.pods}: the {job.tpu.chips} chips of a slice do not divide among them")
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
            {
                "name": "work",
                **({"persistentVolumeClaim": {"claimName": job.claim}} if job.claim else {"emptyDir": {}}),
            },
        ],
    }
    if tainted := _devices(job):
        pod["tolerations"] = [{"key": key, "operator": "Exists", "effect": "NoSchedule"} for key in tainted]
    if selector := (job.tpu.labels if job.tpu else {}) | dict(job.selector):
        pod["nodeSelector"] = selector
    return pod


def _devices(job: KubernetesJob) -> dict[str, int]:
    """The accelerators of a pod, by the name of the resource; nodes that have them are usually tainted with it."""
    return ({_GPU: job.gpus} if job.gpus else {}) | ({_TPU: job.tpu.chips // job.pods} if job.tpu else {})


def _container(job: KubernetesJob) -> dict[str, Any]:
    resources = {"cpu": job.cpus, "memory": job.memory} | {key: str(many) for key, many in _devices(job).items()}
    ports = _TPU_PORTS if job.tpu else {"coordinator": PORT}
    return {
        "name": "train",
        "image": job.image,
        "workingDir": job.mount,
        "command": [_literal(word) for word in job.command],
        "env": _environment(job),
        "ports": [{"name": name, "containerPort": port} for name, port in ports.items()],
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
        "livenessProbe": {
            "exec": {"command": ["/bin/sh", "-c", _PROBE]},
            "periodSeconds": _SECONDS_BETWEEN_PROBES,
            "failureThreshold": _PROBES,
            "timeoutSeconds": 10,
        },
    }


# The run touches the file every second once it has begun. A run that waits too long ends by itself; what this finds is
# a process that is frozen.
_PROBE = f"! test -e {_ALIVE_FILE} || find {_ALIVE_FILE} -mmin -{_FROZEN_MINUTES} | grep -q ."


def _environment(job: KubernetesJob) -> list[dict[str, Any]]:
    place = [] if job.tpu else _place(job)  # on TPUs, JAX reads what GKE says
    # The root file system is read-only, and so is the image's home directory. A pod that was told to end has failed.
    own = {"HOME": "/tmp", ALIVE: _ALIVE_FILE, STOPPED: str(128 + signal.SIGTERM)} | dict(job.environment)
    return [*place, *({"name": name, "value": _literal(value)} for name, value in own.items())]


def _place(job: KubernetesJob) -> list[dict[str, Any]]:
    return [
        {"name": COORDINATOR, "value": f"{job.name}-{_JOB}-0-0.{job.name}:{PORT}"},
        {"name": COUNT, "value": str(job.pods)},
        {"name": INDEX, "valueFrom": {"fieldRef": {"fieldPath": _INDEX_FIELD}}},
    ]


def _literal(text: str) -> str:
    """Protect $: Kubernetes replaces $(NAME) by a variable's value, and $$ by one $."""
    return text.replace("$", "$$")


# ---- Command line ---------------------------------------------------------------------------------------

_ABOUT = """\
Write a JobSet of N pods with one process each, and give it to kubectl. This needs the JobSet controller in the
cluster, an image (see launch/Dockerfile), and a PersistentVolumeClaim that all pods can write, where the command
starts, or a work directory in object storage. When a pod fails or is evicted, the whole set starts again. Variables
are passed on only with --env.

--node-selector picks GPUs of one kind: cloud.google.com/gke-accelerator=nvidia-h100-80gb on GKE,
nvidia.com/gpu.product=NVIDIA-H100-80GB-HBM3 where NVIDIA's GPU operator labels nodes. --tpu picks TPUs of GKE.

examples:
  jaxnet launch kubernetes --pods 2 --gpus 8 --image registry.example/jaxnet:1 --claim work \\
      -- jaxnet train --config configs/digits.py
  jaxnet launch kubernetes --tpu v5e:4x4/2 --image registry.example/jaxnet:tpu \\
      -- jaxnet train --config configs/digits.py --workdir gs://my-bucket/digits
  jaxnet launch kubernetes --pods 4 --image jaxnet:1 --claim work --dry-run -- jaxnet train --config configs/digits.py
"""


def add_kind(kinds: Commands) -> None:
    """Add `kubernetes` to the kinds of `jaxnet launch`."""
    parser = new_kind(kinds, "kubernetes", "a JobSet of Kubernetes", _ABOUT, run)
    parser.add_argument(
        "--pods",
        type=hosts_in_all,
        metavar="N",
        help="how many pods, each with one process; with --tpu of each slice, default a pod for 4 chips",
    )
    parser.add_argument("--image", required=True, help="the container image")
    parser.add_argument(
        "--claim",
        metavar="NAME",
        help="a PersistentVolumeClaim that all pods can write; not needed with a workdir in object storage",
    )
    parser.add_argument("--mount", default="/work", metavar="PATH", help="where the claim is mounted; default /work")
    parser.add_argument("--name", default="jaxnet", help="name of the set; default jaxnet")
    parser.add_argument("--namespace", metavar="NAME", help="default: kubectl's own")
    parser.add_argument("--cpus", default="4", metavar="Q", help="CPU cores of each pod; default 4")
    parser.add_argument("--memory", default="16Gi", metavar="Q", help="memory of each pod; default 16Gi")
    parser.add_argument("--shared-memory", default="2Gi", metavar="Q", help="/dev/shm of each pod; default 2Gi")
    parser.add_argument("--gpus", type=not_negative, default=0, metavar="G", help="GPUs of each pod; default 0")
    parser.add_argument("--tpu", metavar="KIND:SIZES[/SLICES]", help="TPU slices of GKE, such as v5e:4x4 or v6e:4x4/2")
    parser.add_argument(
        "--restarts",
        type=not_negative,
        default=3,
        metavar="R",
        help="start the whole set again after a failure, at most R times beside evictions; default 3",
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
    tpu = Slices.named(args.tpu) if args.tpu else None
    if tpu and args.gpus:
        raise InputError("--gpus and --tpu exclude each other: a node has one kind of accelerator")
    pods = args.pods or (max(1, tpu.chips // _CHIPS_OF_A_HOST) if tpu else None)
    if pods is None:
        raise InputError("--pods is missing: how many pods the job has, each with one process")
    text = manifest(
        KubernetesJob(
            whole_command(command_of(args), args.python),
            args.image,
            pods,
            args.claim,
            mount=args.mount,
            name=args.name,
            environment=passed_environment(os.environ, args.env, devices=args.devices_per_process),
            namespace=args.namespace,
            cpus=args.cpus,
            memory=args.memory,
            shared_memory=args.shared_memory,
            gpus=args.gpus,
            tpu=tpu,
            restarts=args.restarts,
            grace_seconds=args.grace,
            selector=dict(map(_label, args.node_selector)),
        )
    )
    return show(text) if args.dry_run else feed(text, "kubectl", "apply", "-f", "-", cure="install it")


def _label(text: str) -> tuple[str, str]:
    label, given, value = text.partition("=")
    if not given:
        raise InputError(f"--node-selector {text}: wanted LABEL=VALUE")
    return label, value
