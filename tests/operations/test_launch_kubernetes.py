"""The JobSet: its fields exist, its names are valid, and its pods have few rights."""

import copy

import pytest

from jaxnet.errors import InputError
from jaxnet.operations.launchers.kubernetes import KubernetesJob, manifest
from support.jobset_schema import JOBSET, LABEL, wrong

yaml = pytest.importorskip("yaml")


def jobset(**changes):
    job = KubernetesJob(**{"command": ["run"], "image": "image:1", "pods": 3, "claim": "work-claim"} | changes)
    return yaml.safe_load(manifest(job))


def pod_of(value):
    return value["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]


@pytest.mark.parametrize(
    "changes",
    [{}, {"gpus": 8, "namespace": "team", "selector": {"cloud.example/pool": "a100"}, "environment": {"A": "1: 2"}}],
)
def test_the_manifest_fits_the_schema(changes):
    assert wrong(jobset(**changes), JOBSET) == []


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (["spec", "replicatedJobs", 0, "replicas"], "1"),
        (["spec", "replicatedJobs", 0, "name"], "Host"),
        (["spec", "replicatedJob"], []),
        (["spec", "failurePolicy", "maxRestarts"], True),
    ],
)
def test_the_check_finds_what_is_wrong(path, value):
    changed = copy.deepcopy(jobset())
    inner = changed
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    assert len(wrong(changed, JOBSET)) == 1


def test_a_process_a_pod_which_finds_the_first_by_name():
    value = jobset(name="digits")
    [job] = value["spec"]["replicatedJobs"]
    indexed = job["template"]["spec"]
    assert (indexed["completionMode"], indexed["parallelism"], indexed["completions"]) == ("Indexed", 3, 3)
    assert (indexed["backoffLimit"], value["spec"]["failurePolicy"]) == (0, {"maxRestarts": 3})
    env = {entry["name"]: entry for entry in pod_of(value)["containers"][0]["env"]}
    # JobSet names a pod JOBSET-JOB-REPLICA-INDEX, in the subdomain.
    assert env["JAX_COORDINATOR_ADDRESS"]["value"] == "digits-host-0-0.digits:12321"
    assert value["spec"]["network"] == {"enableDNSHostnames": True, "subdomain": "digits"}
    assert env["JAX_NUM_PROCESSES"]["value"] == "3"
    assert "job-completion-index" in env["JAX_PROCESS_ID"]["valueFrom"]["fieldRef"]["fieldPath"]


def test_a_pod_may_do_little_and_takes_what_it_asks_for():
    pod = pod_of(jobset(gpus=2))
    [container] = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert not pod["automountServiceAccountToken"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert container["resources"]["limits"] == {"cpu": "4", "memory": "16Gi", "nvidia.com/gpu": "2"}
    assert container["resources"]["requests"] == container["resources"]["limits"]
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    assert set(mounts) == {"/tmp", "/dev/shm", "/work"}
    assert set(mounts.values()) == {volume["name"] for volume in pod["volumes"]}


def test_the_longest_name_leaves_room_for_those_of_the_pods():
    name = "a" * 44
    assert LABEL.fullmatch(f"{jobset(name=name)['metadata']['name']}-host-0-99999-abcde")
    with pytest.raises(InputError, match="wanted at most 44 lower-case letters"):
        jobset(name=name + "a")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "Digits"}, "--name Digits: wanted at most 44 lower-case"),
        ({"name": "8ball"}, "cannot begin with a digit"),
        ({"namespace": "-x"}, "--namespace -x"),
        ({"claim": "Work"}, "--claim Work"),
        ({"mount": "work"}, "--mount work: wanted an absolute path"),
        ({"image": "a b"}, "--image 'a b'"),
        ({"memory": "16 GB"}, "--memory 16 GB: wanted a quantity"),
        ({"selector": {"pool": "a b"}}, "--node-selector pool=a b"),
    ],
)
def test_what_kubernetes_would_refuse(changes, message):
    with pytest.raises(InputError) as caught:
        jobset(**changes)
    assert message in str(caught.value)
