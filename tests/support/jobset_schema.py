"""The part of JobSet's CRD (v1alpha2), batch/v1 and core/v1 that manifests use: fields, types, names."""

import re

LABEL = re.compile("[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
_QUANTITY = re.compile(r"[0-9]+(\.[0-9]+)?(m|[kMGTPE]i?)?")
_VARIABLE = re.compile("[A-Za-z_][A-Za-z0-9_]*")
_PATH = re.compile("/.*")
_ANY = re.compile(".*", re.DOTALL)


def _one_of(*words):
    return re.compile("|".join(map(re.escape, words)))


def _quantities():
    return {re.compile("cpu|memory|nvidia\\.com/gpu"): _QUANTITY}


# A dict is an object: needed fields end with "!"; a compiled name stands for any that it matches. [x] is a list of x.
_CONTAINER = {
    "name!": LABEL,
    "image!": _ANY,
    "workingDir": _PATH,
    "command": [_ANY],
    "env": [{"name!": _VARIABLE, "value": _ANY, "valueFrom": {"fieldRef": {"fieldPath!": _ANY}}}],
    "ports": [{"name": re.compile("[a-z0-9-]{1,15}"), "containerPort!": range(1, 65536)}],
    "resources": {"requests": _quantities(), "limits": _quantities()},
    "securityContext": {
        "allowPrivilegeEscalation": bool,
        "readOnlyRootFilesystem": bool,
        "capabilities": {"drop": [_ANY]},
    },
    "volumeMounts": [{"name!": LABEL, "mountPath!": _PATH}],
}
_POD = {
    "containers!": [_CONTAINER],
    "restartPolicy!": _one_of("Never", "OnFailure"),
    "terminationGracePeriodSeconds": range(2**31),
    "automountServiceAccountToken": bool,
    "enableServiceLinks": bool,
    "nodeSelector": {re.compile(r"[A-Za-z0-9]([A-Za-z0-9_./-]*[A-Za-z0-9])?"): _ANY},
    "securityContext": {
        "runAsNonRoot": bool,
        "runAsUser": range(2**31),
        "runAsGroup": range(2**31),
        "fsGroup": range(2**31),
        "seccompProfile": {"type!": _one_of("RuntimeDefault", "Localhost", "Unconfined")},
    },
    "volumes": [
        {
            "name!": LABEL,
            "emptyDir": {"medium": _one_of("", "Memory"), "sizeLimit": _QUANTITY},
            "persistentVolumeClaim": {"claimName!": _SUBDOMAIN, "readOnly": bool},
        }
    ],
}
_JOB = {
    "completionMode": _one_of("Indexed", "NonIndexed"),
    "parallelism": range(2**31),
    "completions": range(2**31),
    "backoffLimit": range(2**31),
    "template!": {"spec!": _POD},
}
JOBSET = {
    "apiVersion!": _one_of("jobset.x-k8s.io/v1alpha2"),
    "kind!": _one_of("JobSet"),
    "metadata!": {"name!": LABEL, "namespace": LABEL},
    "spec!": {
        "network": {"enableDNSHostnames": bool, "subdomain": LABEL},
        "failurePolicy": {"maxRestarts": range(2**31)},
        "replicatedJobs!": [{"name!": LABEL, "replicas": range(2**31), "template!": {"spec!": _JOB}}],
    },
}


def wrong(value, wanted, where="jobset"):
    """What does not fit, a line each."""
    if isinstance(wanted, dict):
        return _wrong_object(value, wanted, where) if isinstance(value, dict) else [f"{where}: no object"]
    if isinstance(wanted, list):
        if not isinstance(value, list):
            return [f"{where}: no list"]
        return [line for place, one in enumerate(value) for line in wrong(one, wanted[0], f"{where}[{place}]")]
    if isinstance(wanted, range):
        fits = type(value) is int and value in wanted
    elif wanted is bool:
        fits = isinstance(value, bool)
    else:
        fits = isinstance(value, str) and wanted.fullmatch(value) is not None
    return [] if fits else [f"{where}: {value!r}"]


def _wrong_object(value, wanted, where):
    named = {key.removesuffix("!"): inner for key, inner in wanted.items() if isinstance(key, str)}
    patterns = {key: inner for key, inner in wanted.items() if not isinstance(key, str)}
    needed = [key[:-1] for key in wanted if isinstance(key, str) and key.endswith("!")]
    lines = [f"{where}: {key} is missing" for key in needed if key not in value]
    for key, inner in value.items():
        fits = [named[key]] if key in named else [form for name, form in patterns.items() if name.fullmatch(key)]
        lines += wrong(inner, fits[0], f"{where}.{key}") if fits else [f"{where}: there is no field {key}"]
    return lines
