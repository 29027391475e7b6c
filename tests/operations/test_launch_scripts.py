"""Any words, variables and folders arrive unchanged through the script of each launcher."""

import json
import re
import shutil
import subprocess
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jaxnet.cluster.addresses import Address
from jaxnet.errors import InputError
from jaxnet.operations.launchers.container import Container
from jaxnet.operations.launchers.hosts import Host
from jaxnet.operations.launchers.kubernetes import KubernetesJob, manifest
from jaxnet.operations.launchers.mpi import MpiJob, mpi_script
from jaxnet.operations.launchers.sky import SkyJob, sky_task
from jaxnet.operations.launchers.slurm import SlurmJob, slurm_script
from jaxnet.operations.launchers.ssh_job import HERE, SshJob, orders, ssh_command
from jaxnet.operations.launchers.tpu import TpuJob, tpu_script
from support.stand_ins import make_stand_ins, run_script, show_command

yaml = pytest.importorskip("yaml")

_NASTY = [
    "",
    " ",
    "-x",
    "--",
    "a b",
    "it's",
    '"',
    "\\",
    "$HOME",
    "$(id)",
    "`id`",
    "!x",
    "a\nb",
    "\n",
    "#SBATCH --x",
    "é☃𝄞",
]
WORDS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=30) | st.sampled_from(
    _NASTY
)
FOLDERS = st.text(st.characters(exclude_characters="\0/", exclude_categories=["Cs"]), min_size=1, max_size=20)
anything = given(words=st.lists(WORDS, max_size=4), value=WORDS, name=FOLDERS.filter(lambda name: name not in "..."))
few = settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture
def stand_ins(tmp_path):
    return make_stand_ins(tmp_path / "bin")


def folder_of(tmp_path, name):
    folder = tmp_path / "folders" / name
    folder.mkdir(parents=True, exist_ok=True)
    return str(folder)


@few
@anything
def test_slurm(tmp_path, stand_ins, words, value, name):
    folder, command = folder_of(tmp_path, name), show_command(stand_ins, words)
    script = slurm_script(SlurmJob(command, folder, {"VALUE": value}, nodes=2, requeue=2))
    shown = run_script(script, stand_ins, tmp_path, JAX_COORDINATOR_BIND_ADDRESS="[::]:1")
    place = {"JAX_PROCESS_ID": "1", "JAX_NUM_PROCESSES": "2", "JAX_COORDINATOR_ADDRESS": "n1:61441"}
    assert shown == {"words": words, "folder": folder, "VALUE": value, **place}


@pytest.mark.parametrize("kind", ["apptainer", "pyxis"])
@few
@anything
def test_slurm_with_a_container(tmp_path, stand_ins, kind, words, value, name):
    command, folder = show_command(stand_ins, words), folder_of(tmp_path, name)
    job = SlurmJob(command, folder, {"VALUE": value}, container=Container(kind, "an image", ["/a b:/c"]))
    if ":" in folder or (kind == "pyxis" and "," in folder):
        with pytest.raises(InputError, match=r"colon|comma"):
            slurm_script(job)
        return
    shown = run_script(slurm_script(job), stand_ins, tmp_path, SHOWN="PYTHONNOUSERSITE")
    assert (shown["words"], shown["folder"], shown["VALUE"]) == (words, folder, value)
    assert shown["PYTHONNOUSERSITE"] == "1"


@pytest.mark.parametrize(
    ("per_node", "processes", "visible", "own"),
    [(4, 2, "4,5,6,7", "6,7"), (8, 8, "0,1,2,3,4,5,6,7", "1"), (4, 1, "0,1,2,3", "0,1,2,3")],
)
def test_the_processes_of_a_slurm_host_share_out_its_gpus(tmp_path, stand_ins, per_node, processes, visible, own):
    command = show_command(stand_ins, [])
    job = SlurmJob(command, str(tmp_path), gpus_per_node=per_node, processes_per_node=processes)
    name = "CUDA_VISIBLE_DEVICES"
    assert run_script(slurm_script(job), stand_ins, tmp_path, SHOWN=name, **{name: visible})[name] == own


def test_lines_before_a_slurm_job_may_read_what_is_not_set(tmp_path, stand_ins):
    lines = ['module() { test -z "$NOT_SET" && export VALUE="$1"; }', "module load"]
    script = slurm_script(SlurmJob(show_command(stand_ins, []), str(tmp_path), before=lines))
    assert run_script(script, stand_ins, tmp_path)["VALUE"] == "load"


@few
@given(experiments=st.lists(st.lists(WORDS, max_size=3), min_size=1, max_size=4), data=st.data())
def test_an_experiment_of_a_slurm_array(tmp_path, stand_ins, experiments, data):
    index = data.draw(st.integers(0, len(experiments) - 1))
    script = slurm_script(SlurmJob(show_command(stand_ins, ["x"]), str(tmp_path), experiments=experiments))
    assert f"#SBATCH --array=0-{len(experiments) - 1}\n" in script
    ids = {"SLURM_ARRAY_JOB_ID": "4097", "SLURM_ARRAY_TASK_ID": str(index)}
    assert run_script(script, stand_ins, tmp_path, **ids)["words"] == ["x", *experiments[index]]


@pytest.mark.parametrize("starter", ["openmpi", "mpich"])
@few
@anything
def test_mpi(tmp_path, stand_ins, starter, words, value, name):
    folder, command = folder_of(tmp_path, name), show_command(stand_ins, words)
    job = MpiJob(command, folder, 2, {"VALUE": value}, hosts=[Host("n1"), Host("n2")], starter=starter)
    place = {"JAX_PROCESS_ID": "1", "JAX_NUM_PROCESSES": "2", "JAX_COORDINATOR_ADDRESS": "n1:12321"}
    expected = {"words": words, "folder": folder, "VALUE": value, **place}
    assert run_script(mpi_script(job), stand_ins, tmp_path) == expected


@pytest.mark.parametrize("starter", ["openmpi", "mpich", "srun"])
def test_with_mpis_transport_no_variable_of_jax_is_set(tmp_path, stand_ins, starter):
    job = MpiJob(show_command(stand_ins, ["x"]), str(tmp_path), 2, starter=starter, transport="mpi")
    shown = run_script(mpi_script(job), stand_ins, tmp_path, JAX_PROCESS_ID="7")
    assert shown["JAX_COORDINATOR_ADDRESS"] is shown["JAX_PROCESS_ID"] is None


@few
@anything
def test_tpu(tmp_path, stand_ins, words, value, name):
    folder, command = folder_of(tmp_path, name), show_command(stand_ins, words)
    script = tpu_script(TpuJob(command, "t", "z", directory=folder, environment={"VALUE": value}))
    shown = run_script(script, stand_ins, tmp_path)
    assert (shown["words"], shown["folder"], shown["VALUE"]) == (words, folder, value)


def test_all_slices_of_a_queued_resource():
    script = tpu_script(TpuJob(["run"], "two", "z", queued=True))
    assert "exec gcloud compute tpus queued-resources ssh two --zone=z --worker=all --node=all --command=" in script


@few
@anything
def test_sky(tmp_path, stand_ins, words, value, name):
    job = SkyJob(show_command(stand_ins, words), 2, workdir=name, setup=value, environment={"VALUE": value})
    task = yaml.safe_load(sky_task(job))
    assert (task["workdir"], task.get("setup", ""), task["num_nodes"]) == (name, value, 2)
    shown = run_script(task["run"], stand_ins, tmp_path, JAX_PROCESS_ID="7")
    assert (shown["words"], shown["VALUE"], shown["JAX_PROCESS_ID"]) == (words, value, None)


@few
@anything
def test_ssh(tmp_path, stand_ins, words, value, name):
    """The agent is fed as the launcher feeds it; `ssh` runs here what a login shell would."""
    folder = folder_of(tmp_path, name)
    job = SshJob(show_command(stand_ins, words), folder, [Host("n1"), Host("n2", slots=2)], {"VALUE": value})
    order = orders(job, Address("n1", 77), None)[0]
    lines = [json.dumps((HERE / "ssh_agent.py").read_text()), json.dumps(order)]
    done = subprocess.Popen(
        ssh_command(Host("n1"), sys.executable, None),
        env=stand_ins,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        executable=shutil.which("ssh", path=stand_ins["PATH"]),
    )
    with done:
        done.stdin.write(("\n".join(lines) + "\n").encode())
        done.stdin.flush()  # and not closed, which would end the process
        shown = json.loads(done.stdout.read())
    place = {"JAX_PROCESS_ID": "0", "JAX_NUM_PROCESSES": "3", "JAX_COORDINATOR_ADDRESS": "n1:77"}
    assert shown == {"words": words, "folder": folder, "VALUE": value, **place}


@given(words=st.lists(WORDS, max_size=4), value=WORDS)
def test_kubernetes(words, value):
    text = manifest(KubernetesJob(["run", *words], "image:1", 2, "claim", environment={"VALUE": value}))
    job = yaml.safe_load(text)["spec"]["replicatedJobs"][0]["template"]
    container = job["spec"]["template"]["spec"]["containers"][0]
    variables = {entry["name"]: entry.get("value") for entry in container["env"]}
    assert [expanded(word, variables) for word in container["command"]] == ["run", *words]
    assert expanded(variables["VALUE"], variables) == value


def expanded(text, variables):
    """What Kubernetes makes of a word: $(NAME) is replaced where there is such a variable, $$ becomes $."""

    def replace(found):
        return "$" if found[0] == "$$" else variables.get(found[1], found[0])

    return re.sub(r"\$\$|\$\(([^)]*)\)", replace, text, flags=re.DOTALL)
