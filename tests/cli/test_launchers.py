"""The kinds of `jaxnet launch`: help with examples, `--dry-run`, mistakes in one line."""

import re
import shutil
import subprocess
import sys

import pytest

from jaxnet.cli.main import main

KINDS = {
    "ssh": ["--hosts", "n1,n2"],
    "slurm": ["--nodes", "2"],
    "mpi": ["--processes", "2"],
    "kubernetes": ["--pods", "2", "--image", "i", "--claim", "c"],
    "tpu": ["--name", "t", "--zone", "z"],
    "sky": ["--nodes", "2"],
}


def status_of(arguments):
    with pytest.raises(SystemExit) as caught:
        main(["launch", *arguments])
    return caught.value.code


@pytest.mark.parametrize("kind", KINDS)
def test_help_has_examples(kind, capsys):
    assert status_of([kind, "--help"]) == 0
    printed = capsys.readouterr().out
    assert f"\nexamples:\n  jaxnet launch {kind} " in printed
    assert re.search(r"\S  +-- ", printed) is None  # a line break is kept, and the backslash before it


@pytest.mark.parametrize("kind", KINDS)
def test_a_dry_run_prints_and_starts_nothing(kind, capsys, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("GIVEN", "it's")
    arguments = [
        kind,
        *KINDS[kind],
        "--env",
        "GIVEN",
        "--env",
        "NEW=1",
        "--dry-run",
        "--",
        "no-such.py",
        "a b",
        "--",
        "-x",
    ]
    assert status_of(arguments) == 0
    printed = capsys.readouterr().out
    assert all(word in printed for word in ("no-such.py", "a b", "GIVEN", "NEW"))
    if shutil.which("bash", path="/bin") and kind in ("slurm", "mpi", "tpu"):
        monkeypatch.undo()
        assert subprocess.run(["bash", "-n"], input=printed, text=True).returncode == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["ssh", "--", "x"], "one of the arguments --hosts --hostfile is required"),
        (["ssh", "--hosts", "-oProxyCommand=x", "--", "x"], "expected one argument"),
        (["ssh", "--hosts=-oProxyCommand=x", "--", "x"], "is no host"),
        (["ssh", "--hosts", "n1"], "no command to launch; give it after --"),
        (["slurm", "--nodes", "0", "--", "x"], "--nodes: '0' must be a whole number of at least 1"),
        (["slurm", "--nodes", "1", "--time", "1 hour", "--", "x"], "--time '1 hour': wanted letters, digits"),
        (["slurm", "--nodes", "1", "--experiment", "it's", "--", "x"], '--experiment "it\'s": no closing quotation'),
        (["slurm", "--nodes", "1", "--sbatch", "qos=high", "--", "x"], "wanted an option of sbatch"),
        (["mpi", "--processes", "2", "--starter", "lam", "--", "x"], "--starter: invalid choice: 'lam'"),
        (["slurm", "--nodes", "1", "--mount", "/d", "--", "x"], "--mount /d: there is no container to mount it in"),
        (["slurm", "--nodes", "1", "--pyxis", "i", "--mount", "d", "--", "x"], "--mount d: wanted absolute paths"),
        (["slurm", "--nodes", "1", "--pyxis", "i", "--apptainer", "i", "--", "x"], "not allowed with argument --pyxis"),
        (
            ["slurm", "--nodes", "1", "--gpus-per-node", "8", "--processes-per-node", "3", "--", "x"],
            "--gpus-per-node 8 does not divide among --processes-per-node 3",
        ),
        (["kubernetes", "--pods", "2", "--image", "i", "--", "x"], "--claim is missing"),
        (["kubernetes", "--claim", "c", "--image", "i", "--", "x"], "--pods is missing"),
        (["kubernetes", "--claim", "c", "--image", "i", "--tpu", "v9:4", "--", "x"], "--tpu v9:4: wanted KIND:SIZES"),
        (
            ["kubernetes", "--claim", "c", "--image", "i", "--tpu", "v5e:4x4", "--gpus", "1", "--", "x"],
            "--gpus and --tpu exclude each other",
        ),
        (
            ["kubernetes", *KINDS["kubernetes"], "--node-selector", "foo", "--", "x"],
            "--node-selector foo: wanted LABEL=VALUE",
        ),
        (["tpu", "--zone", "z", "--", "x"], "one of the arguments --name --queued-resource is required"),
        (["tpu", "--name", "t", "--zone", "z", "--env", "NO_SUCH", "--", "x"], "there is no such variable here"),
        (["sky", "--nodes", "1", "--accelerators", "A100 8", "--", "x"], "--accelerators 'A100 8'"),
        (["sky", "--nodes", "1", "--upload", "no/folder", "--dry-run", "--", "x"], "--upload no/folder: there is no"),
    ],
)
def test_a_mistake_is_one_line(arguments, message, capsys):
    assert status_of(arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("error: ")
    assert message in printed.err
    assert printed.err.count("\n") == 1


@pytest.mark.parametrize(("kind", "program"), [("slurm", "sbatch"), ("kubernetes", "kubectl"), ("sky", "sky")])
def test_what_is_made_goes_to_the_program_of_the_place(kind, program, tmp_path, monkeypatch, capfd):
    """As its input, or for `sky` as a file; its exit status is passed on."""
    stand_in = tmp_path / program
    read = "open(sys.argv[-1]).read() if len(sys.argv) > 4 else sys.stdin.read()"
    stand_in.write_text(f"#!{sys.executable}\nimport sys\nprint({read})\nsys.exit(9)\n")
    stand_in.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    command = [kind, *KINDS[kind], "--", "x.py"]
    assert status_of([*command[:1], "--dry-run", *command[1:]]) == 0
    shown = capfd.readouterr().out
    assert status_of(command) == 9
    assert capfd.readouterr().out == shown + "\n"


@pytest.mark.parametrize("kind", KINDS)
def test_hosts_run_jaxnet_with_their_python(kind, capsys):
    """Their PATH may lack it."""
    assert status_of([kind, *KINDS[kind], "--dry-run", "--", "jaxnet", "doctor", "--json"]) == 0
    words = re.findall(r"-{0,2}\w+", capsys.readouterr().out)
    assert " -m jaxnet doctor --json" in " ".join(words)


def test_with_gradients_by_mpi_jaxnet_runs_under_mpi4py(capsys):
    given = ["mpi", "--processes", "2", "--transport", "mpi", "--dry-run", "--", "jaxnet", "train", "transport=mpi"]
    assert status_of(given) == 0
    assert "\n  -m\n  mpi4py\n  -m\n  jaxnet\n  train\n  transport=mpi\n" in capsys.readouterr().out


@pytest.mark.parametrize("kind", KINDS)
def test_a_program_that_is_not_here(kind, capsys, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    assert status_of([kind, *KINDS[kind], "--", "x"]) == 2
    assert "error: there is no program " in capsys.readouterr().err


def test_another_mpi_than_the_one_named(tmp_path, capsys, monkeypatch):
    (tmp_path / "mpirun").write_text("#!/bin/sh\necho HYDRA build details:\n")
    (tmp_path / "mpirun").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert status_of(["mpi", "--processes", "2", "--", "x"]) == 2
    assert "['HYDRA build details:'] of itself; give the --starter that it is" in capsys.readouterr().err
