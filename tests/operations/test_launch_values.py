"""Commands, variables and hosts as launchers take them, and the YAML that they write."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxnet.errors import InputError
from jaxnet.operations.launchers.hosts import Host, parse_list, read_file
from jaxnet.operations.launchers.job import check_word, passed_environment, whole_command
from jaxnet.operations.launchers.mpi import MpiJob, mpi_script
from jaxnet.operations.launchers.slurm import SlurmJob, slurm_script
from jaxnet.operations.launchers.yaml import to_yaml

_TEXT = st.text(st.characters(exclude_categories=["Cs"]))
_SCALARS = _TEXT | st.booleans() | st.integers() | st.sampled_from(["yes", "1", "null", "a: b", "- x", "a\nb\n", "1e3"])
_VALUES = st.recursive(_SCALARS, lambda inner: st.lists(inner) | st.dictionaries(_TEXT, inner), max_leaves=12)


@given(st.lists(_VALUES) | st.dictionaries(_TEXT, _VALUES))
def test_yaml_is_read_back_as_it_was(value):
    yaml = pytest.importorskip("yaml")
    assert yaml.safe_load(to_yaml(value)) == (value or None)


def test_variables_travel_when_they_are_named_or_on_the_list():
    environ = {"SECRET": "s", "LISTED": "l", "NAMED": "n"}
    assert passed_environment(environ, ["NAMED", "NEW=a=b"], ["LISTED", "UNSET"]) == {
        "LISTED": "l",
        "NAMED": "n",
        "NEW": "a=b",
        "PYTHONUNBUFFERED": "1",
    }
    emulated = passed_environment({}, [], devices=4)
    assert (emulated["JAX_NUM_CPU_DEVICES"], emulated["JAX_PLATFORMS"]) == ("4", "cpu")


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ("UNSET", "--env UNSET: there is no such variable here; set it, or give --env UNSET=VALUE"),
        ("1X=2", "--env 1X=2: wanted NAME or NAME=VALUE"),
        ("=2", "--env =2: wanted NAME or NAME=VALUE"),
        ("A B=2", "wanted NAME or NAME=VALUE"),
        ("JAX_PROCESS_ID=1", "--env JAX_PROCESS_ID: the launcher sets that one"),
    ],
)
def test_a_variable_that_cannot_travel(asked, message):
    with pytest.raises(InputError) as caught:
        passed_environment({}, [asked])
    assert message in str(caught.value)


def test_a_python_file_runs_with_the_hosts_interpreter():
    assert whole_command(["a.py", "x"], "/py") == ["/py", "a.py", "x"]
    assert whole_command(["echo", "x"], "/py") == ["echo", "x"]
    with pytest.raises(InputError, match="no command to launch; give it after --"):
        whole_command([], "/py")


def test_hosts():
    assert parse_list("n1, ada@n2:2222,[fd00::1]:22") == [Host("n1"), Host("n2", "ada", 2222), Host("fd00::1", port=22)]
    assert parse_list("n1:4,n2", "slots") == [Host("n1", slots=4), Host("n2")]


def test_a_file_of_hosts(tmp_path):
    path = tmp_path / "hosts"
    path.write_text("# the rack\nn1 slots=2  # two\n\nada@n2:99\nn3 user=eve port=7 slots=3\n")
    assert read_file(path) == [Host("n1", slots=2), Host("n2", "ada", 99), Host("n3", "eve", 7, 3)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "'' is no host; wanted [USER@]HOST[:PORT]"),
        ("n1,", "'' is no host"),
        ("-oProxyCommand=x", "'-oProxyCommand=x' is no host"),
        ("-x@n1", "'-x@n1' is no host"),
        ("n1 n2", "'n1 n2' is no host"),
        ("n1;id", "'n1;id' is no host"),
        ("n1:0", "the port of n1 is '0'; wanted a number from 1 to 65535"),
        ("n1:99999999999", "the port of n1 is '99999999999'"),
        ("n1,n1", "n1 is there twice; give it once, with slots"),
    ],
)
def test_what_is_no_host(text, message):
    with pytest.raises(InputError) as caught:
        parse_list(text)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "there is no host in it; write one a line"),
        ("n1\nn2 cpus=3\n", ":2: 'cpus=3' is not one of user=U, port=P and slots=N"),
        ("n1 slots=0\n", ":1: the slots of n1 are '0'; wanted a number from 1 to 1024"),
        ("n1 user=-l\n", ":1: 'user=-l' is not one of"),
    ],
)
def test_what_is_no_file_of_hosts(tmp_path, text, message):
    path = tmp_path / "hosts"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        read_file(path)
    assert message in str(caught.value)
    with pytest.raises(InputError, match="none: No such file or directory"):
        read_file(tmp_path / "none")


@pytest.mark.parametrize("text", ["", " ", "a b", "a\n#SBATCH --x", "'", '"', "$HOME", "-x", "é"])
def test_what_is_no_word(text):
    with pytest.raises(InputError, match="--name"):
        check_word("--name", text)


def test_a_slurm_script_asks_for_what_was_given():
    script = slurm_script(
        SlurmJob(
            ["x"],
            "/d",
            name="n",
            nodes=3,
            processes_per_node=4,
            gpus_per_process=1,
            cpus_per_process=8,
            time="1-0",
            partition="p",
            account="a",
            warn_seconds=60,
            options=["--qos=high"],
        )
    )
    asked = [line.removeprefix("#SBATCH --") for line in script.splitlines() if line.startswith("#SBATCH")]
    assert asked == [
        *("job-name=n", "nodes=3", "ntasks-per-node=4", "gpus-per-task=1", "cpus-per-task=8", "time=1-0"),
        *("partition=p", "account=a", "signal=B:USR1@60", "no-requeue", "open-mode=append", "qos=high"),
    ]
    assert "srun --kill-on-bad-exit=1 --cpus-per-task=8 /bin/sh" in script
    assert "scontrol requeue" not in script
    for wrong in ("qos=high", "--comment=a b", "--x\n#SBATCH --y"):
        with pytest.raises(InputError, match="--sbatch"):
            slurm_script(SlurmJob(["x"], "/d", options=[wrong]))
    with pytest.raises(InputError, match="use jaxnet launch mpi --starter srun"):
        slurm_script(SlurmJob(["x", "transport=mpi"], "/d"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hosts": [Host("n1")]}, "--processes 2, but the hosts have 1 slots together"),
        ({"hosts": [Host("n1", "ada"), Host("n2")]}, "--hosts n1: MPI takes no user and no port"),
        ({"starter": "srun"}, "--starter srun is for --transport mpi"),
        ({"command": ["x", "transport=mpi"]}, "give --transport mpi before the --"),
    ],
)
def test_what_mpi_cannot_start(changes, message):
    with pytest.raises(InputError) as caught:
        mpi_script(MpiJob(**{"command": ["x"], "directory": "/d", "processes": 2} | changes))
    assert message in str(caught.value)
