"""A Kubernetes JobSet: one indexed Job of N pods, a process in each, restarted as a whole when one fails.

The JobSet controller makes the headless service by which the pods have names. Pods run as an ordinary user,
on a root file system that they cannot write; /tmp, /dev/shm and the work directory are mounted.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jaxnet.cluster.environment import COORDINATOR, COUNT, INDEX
from jaxnet.cluster.launchers.job import PORT, check_label, check_word
from jaxnet.cluster.launchers.shell import feed
from jaxnet.cluster.launchers.yaml import to_yaml
from jaxnet.errors import InputError

_JOB = "host"
_LONGEST_NAME = 63 - len(f"-{_JOB}-0-99999-abcde")  # the pods' names are labels too
_USER = 1000
_INDEX_FIELD = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
_GPU = "nvidia.com/gpu"


@dataclass(frozen=True)
class KubernetesJob:
    """What runs in each of `pods` pods, and what each pod is given.

    Attributes:
        command: executed in the image as it stands; Kubernetes expands nothing in it.
        claim: a PersistentVolumeClaim that all pods can write, mounted at `mount`; commands start there.
        restarts: how often the whole set is started anew after a pod has failed.
        grace_seconds: from SIGTERM, as at an eviction, to SIGKILL.
        selector: labels of the nodes that will do.
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


def apply(text: str) -> int:
    """Give the manifest to kubectl; the result is its exit status."""
    return feed(text, "kubectl", "apply", "-f", "-", missing="install it")


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
    # The image's own home directory cannot be written.
    own = {"HOME": "/tmp"} | dict(job.environment)
    return [*place, *({"name": name, "value": _literal(value)} for name, value in own.items())]


def _literal(text: str) -> str:
    """Kubernetes puts variables in the place of $(NAME), and takes $$ for one $."""
    return text.replace("$", "$$")
