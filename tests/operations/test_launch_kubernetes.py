"""The JobSet: it fits its CRD, its names are valid, its pods have few rights, and a frozen one is found."""

import copy
import os
import subprocess

import pytest

from jaxnet.errors import InputError
from jaxnet.operations.launchers.kubernetes import KubernetesJob, Slices, manifest
from support.jobset_schema import LABEL, wrong

yaml = pytest.importorskip("yaml")


def jobset(**changes):
    job = KubernetesJob(**{"command": ["run"], "image": "image:1", "pods": 3, "claim": "work-claim"} | changes)
    return yaml.safe_load(manifest(job))


def pod_of(value):
    return value["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"gpus": 8, "namespace": "team", "selector": {"cloud.example/pool": "a100"}, "environment": {"A": "1: 2"}},
        {"tpu": Slices.named("v6e:4x4/2"), "pods": 4},
        {"claim": None, "command": ["run", "--workdir", "gs://a/b"]},
    ],
)
def test_the_manifest_fits_the_schema(changes):
    assert wrong(jobset(**changes)) == []


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (["spec", "replicatedJobs", 0, "replicas"], "1"),
        (["spec", "replicatedJobs", 0, "name"], "Host"),
        (["spec", "failurePolicy", "rules", 0, "action"], "Restart"),
        (["spec", "replicatedJobs", 0, "template", "spec", "template", "spec", "containers", 0, "livenessProb"], {}),
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
    assert len(wrong(changed)) == 1


def test_a_process_a_pod_which_finds_the_first_by_name():
    value = jobset(name="digits")
    [job] = value["spec"]["replicatedJobs"]
    indexed = job["template"]["spec"]
    assert (indexed["completionMode"], indexed["parallelism"], indexed["completions"]) == ("Indexed", 3, 3)
    assert (indexed["backoffLimit"], value["spec"]["failurePolicy"]["maxRestarts"]) == (0, 3)
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


def test_a_slice_of_tpus_is_a_job_whose_pods_read_their_place_from_gke():
    value = jobset(tpu=Slices.named("v5e:4x4/2"), pods=4, selector={"cloud.google.com/gke-spot": "true"})
    [job] = value["spec"]["replicatedJobs"]
    assert (job["replicas"], job["template"]["spec"]["parallelism"]) == (2, 4)
    assert value["metadata"]["annotations"] == {
        "alpha.jobset.sigs.k8s.io/exclusive-topology": "cloud.google.com/gke-nodepool"
    }
    pod = pod_of(value)
    assert pod["nodeSelector"] == {
        "cloud.google.com/gke-tpu-accelerator": "tpu-v5-lite-podslice",
        "cloud.google.com/gke-tpu-topology": "4x4",
        "cloud.google.com/gke-spot": "true",
    }
    [container] = pod["containers"]
    assert container["resources"]["limits"]["google.com/tpu"] == "4"
    assert [toleration["key"] for toleration in pod["tolerations"]] == ["google.com/tpu"]
    assert not any(entry["name"].startswith("JAX_") for entry in container["env"])


def test_an_evicted_pod_has_failed_and_its_set_starts_again():
    value = jobset()
    [rule] = value["spec"]["failurePolicy"]["rules"]
    assert rule["action"] == "RestartJobSetAndIgnoreMaxRestarts"
    indexed = value["spec"]["replicatedJobs"][0]["template"]["spec"]
    [evicted] = indexed["podFailurePolicy"]["rules"]
    assert evicted == {"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    env = {entry["name"]: entry.get("value") for entry in pod_of(value)["containers"][0]["env"]}
    assert env["JAXNET_STOPPED_STATUS"] == "143"


def test_the_probe_finds_a_process_that_is_frozen_and_no_other(tmp_path):
    [container] = pod_of(jobset())["containers"]
    env = {entry["name"]: entry.get("value") for entry in container["env"]}
    file = tmp_path / "alive"
    shell, dash, text = container["livenessProbe"]["exec"]["command"]
    command = [shell, dash, text.replace(env["JAXNET_ALIVE_FILE"], str(file))]

    def lives():
        return subprocess.run(command).returncode == 0

    assert lives()  # it has not begun yet
    file.touch()
    assert lives()
    minutes_ago = file.stat().st_mtime - 200
    os.utime(file, (minutes_ago, minutes_ago))
    assert not lives()


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
        ({"claim": None}, "--claim is missing: name a PersistentVolumeClaim"),
        ({"tpu": Slices.named("v5e:4x4"), "pods": 3}, "--pods 3: the 16 chips of a slice do not divide among them"),
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


@pytest.mark.parametrize("text", ["v5e", "v5e:4x4x4", "v9:4x4", "v5p:4x4", "v5e:4x0", "v5e:4x4/0", "v5e:4x4/two"])
def test_slices_that_gke_does_not_have(text):
    with pytest.raises(InputError, match="wanted KIND:SIZES"):
        Slices.named(text)
