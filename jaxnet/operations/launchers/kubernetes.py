"""`jaxnet launch kubernetes`."""

import argparse
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jaxnet.cluster.environment import COORDINATOR, COUNT, INDEX
from jaxnet.command_line import Commands, add_command, add_devices, command_of, new_kind, not_negative, positive, show
from jaxnet.errors import InputError
from jaxnet.operations.launchers.job import PORT, check_label, check_word, feed

# ---- Writing YAML: mappings, lists, numbers, booleans and strings, which any parser reads back as they were


# Words that no version of YAML takes for anything but a string; the rest is quoted.
_PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9_/.-]*")
_NOT_STRINGS = {"y", "n", "yes", "no", "on", "off", "true", "false", "null", "nan", "inf"}
# What JSON leaves as it is and YAML does not allow, takes for the end of a line, or may take for a byte-order mark.
_ESCAPED = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff\ud800-\udfff]|[^\x00-\uffff]")
_BLOCK_LINE = re.compile(r"[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?|")


def to_yaml(value: Any) -> str:
    """The text of a mapping or a list.

    >>> print(to_yaml({"name": "a", "on": True, "args": ["x: y", "1"], "none": {}}), end="")
    name: a
    "on": true
    args:
      - "x: y"
      - "1"
    none: {}
    """
    return "\n".join(_lines(value)) + "\n"


def _lines(value: Any) -> list[str]:
    if isinstance(value, Mapping):
        return [line for key, inner in value.items() for line in _entry(f"{_string(key)}:", inner)]
    return [line for inner in value for line in _item(inner)]


def _entry(start: str, value: Any) -> list[str]:
    if _is_block(value):
        return [f"{start} |", *("  " + line if line else "" for line in value.removesuffix("\n").split("\n"))]
    if isinstance(value, (Mapping, list, tuple)) and value:
        return [start, *("  " + line if line else "" for line in _lines(value))]
    return [f"{start} {_scalar(value)}"]


def _item(value: Any) -> list[str]:
    if isinstance(value, (Mapping, list, tuple)) and value:
        first, *rest = _lines(value)
        return [f"- {first}", *("  " + line if line else "" for line in rest)]
    return [f"- {_scalar(value)}"]


def _is_block(value: Any) -> bool:
    """Whether `value` is a text of printable lines, which read best one below the other."""
    if not (isinstance(value, str) and value.endswith("\n") and not value.startswith("\n")):
        return False
    lines = value.removesuffix("\n").split("\n")
    indented = lines[0].startswith(" ")
    return len(lines) > 1 and bool(lines[-1]) and not indented and all(_is_block_line(line) for line in lines)


def _is_block_line(line: str) -> bool:
    return _BLOCK_LINE.fullmatch(line.lstrip(" ")) is not None and line == line.rstrip(" ")


def _scalar(value: Any) -> str:
    if isinstance(value, (Mapping, Sequence)) and not isinstance(value, str):
        return "{}" if isinstance(value, Mapping) else "[]"
    return _string(value) if isinstance(value, str) else json.dumps(value)


def _string(text: str) -> str:
    if _PLAIN.fullmatch(text) and text.lower() not in _NOT_STRINGS:
        return text
    return _ESCAPED.sub(lambda found: f"\\U{ord(found[0]):08x}", json.dumps(text, ensure_ascii=False))


# ---- A Kubernetes JobSet: one indexed Job of N pods, a process in each, restarted as a whole when one fails
#
# The JobSet controller makes the headless service by which the pods have names. Pods run as an ordinary user,
# on a root file system that they cannot write; /tmp, /dev/shm and the work directory are mounted.


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


_ABOUT = """\
Make a JobSet of N pods, a process in each, and give it to kubectl. It needs the JobSet controller in the cluster,
an image (see launch/Dockerfile) and a PersistentVolumeClaim that all pods can write, where the command starts.
When a pod fails, the whole set is started anew. Variables travel only if --env names them.

examples:
  jaxnet launch kubernetes --pods 2 --gpus 8 --image registry.example/jaxnet:1 --claim work -- train.py --config c.py
  jaxnet launch kubernetes --pods 4 --image jaxnet:1 --claim work --dry-run -- train.py --config configs/digits.py
"""


def add_kind(kinds: Commands) -> None:
    """Add `kubernetes`."""
    parser = new_kind(kinds, "kubernetes", "a JobSet of Kubernetes", _ABOUT, run)
    parser.add_argument("--pods", type=positive, required=True, metavar="N", help="how many processes")
    parser.add_argument("--image", required=True, help="the container image")
    parser.add_argument("--claim", required=True, metavar="NAME", help="the PersistentVolumeClaim all pods write")
    parser.add_argument("--mount", default="/work", metavar="PATH", help="where it is mounted; default /work")
    parser.add_argument("--name", default="jaxnet", help="of the set; default jaxnet")
    parser.add_argument("--namespace", metavar="NAME", help="default: kubectl's own")
    parser.add_argument("--cpus", default="4", metavar="Q", help="CPU cores of each pod; default 4")
    parser.add_argument("--memory", default="16Gi", metavar="Q", help="of each pod; default 16Gi")
    parser.add_argument("--shared-memory", default="2Gi", metavar="Q", help="/dev/shm of each pod; default 2Gi")
    parser.add_argument("--gpus", type=not_negative, default=0, metavar="G", help="of each pod; default 0")
    parser.add_argument(
        "--restarts", type=not_negative, default=3, metavar="R", help="of the whole set, after failures; default 3"
    )
    parser.add_argument("--grace", type=positive, default=120, metavar="S", help="seconds to save in; default 120")
    parser.add_argument(
        "--node-selector", action="append", default=[], metavar="LABEL=VALUE", help="of nodes that will do"
    )
    parser.add_argument("--python", default="python3", metavar="PATH", help="the image's; default python3")
    add_devices(parser)
    add_command(parser, "the manifest")


def run(args: argparse.Namespace) -> int:
    """Run `jaxnet launch kubernetes`."""
    from jaxnet.operations.launchers.job import passed_environment, whole_command

    pass

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
    return show(text) if args.dry_run else apply(text)
