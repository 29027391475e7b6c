"""The command and the environment of each process of a local launch."""

import socket
import sys

import pytest

from jaxnet.cluster.environment import find_place
from jaxnet.errors import InputError, exit_cleanly
from jaxnet.operations.launchers import local
from jaxnet.operations.launchers.free_port import free_port
from jaxnet.operations.launchers.job import find_command
from jaxnet.operations.launchers.local import gpus_here, rank_environment, share_of


def test_a_python_file_runs_with_this_interpreter(tmp_path):
    program = tmp_path / "train.py"
    program.touch()
    assert find_command([str(program), "--x"]) == [sys.executable, str(program), "--x"]


def test_jaxnet_runs_with_this_interpreter_whatever_the_path_is(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    assert find_command(["jaxnet", "doctor"]) == [sys.executable, "-m", "jaxnet", "doctor"]


def test_a_program_is_found_on_the_path():
    assert find_command(["sh", "-c", "true"])[0].endswith("/sh")


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ([], "no command to launch"),
        (["nowhere/train.py"], "no such file: nowhere/train.py .* -- jaxnet train --config FILE"),
        (["no-such-program"], "no such program: no-such-program"),
    ],
)
def test_a_command_that_cannot_run(command, message):
    with pytest.raises(InputError, match=message):
        find_command(command)


def test_every_rank_finds_its_place():
    outside = {"JAX_PROCESS_ID": "7", "JAX_COORDINATOR_BIND_ADDRESS": "10.0.0.1:1", "HOME": "/root"}
    for index in range(3):
        environ = rank_environment(outside, index, 3, 4321, None)
        place = find_place(environ)
        assert (place.process_index, place.process_count, str(place.coordinator)) == (
            index,
            3,
            "127.0.0.1:4321",
        )
        assert place.bind is None
        assert environ["HOME"] == "/root"
        assert "JAX_NUM_CPU_DEVICES" not in environ


def test_emulated_devices_ask_for_the_cpu_unless_told_otherwise():
    assert rank_environment({}, 0, 1, 1, 4)["JAX_PLATFORMS"] == "cpu"
    assert rank_environment({"JAX_PLATFORMS": "cuda,cpu"}, 0, 1, 1, 4)["JAX_PLATFORMS"] == "cuda,cpu"
    assert rank_environment({}, 0, 1, 1, 4)["JAX_NUM_CPU_DEVICES"] == "4"


@pytest.fixture
def outgoing(monkeypatch, tmp_path):
    """Sets the ports of outgoing connections."""
    file = tmp_path / "range"
    monkeypatch.setattr("jaxnet.operations.launchers.free_port._RANGE", file)
    return lambda first, last: file.write_text(f"{first}\t{last}\n")


def test_no_outgoing_connection_takes_the_port_that_is_drawn(outgoing):
    outgoing(32768, 60999)
    drawn = {free_port() for _ in range(20)}
    assert all(10_000 <= port < 32768 for port in drawn)
    assert len(drawn) > 10  # at random: not all launches begin with the same


def test_where_the_kernel_gives_out_every_port_it_gives_one(outgoing):
    outgoing(1024, 65535)
    with socket.socket() as server:
        server.bind(("127.0.0.1", free_port()))


@pytest.fixture
def two_gpus(monkeypatch, tmp_path):
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    monkeypatch.setattr("jaxnet.operations.launchers.local._DEVICES", tmp_path)
    monkeypatch.setattr("jaxnet.operations.launchers.local._PLUGINS", ("jax",))  # installed, as a plug-in would be


@pytest.mark.parametrize(
    ("environ", "gpus"),
    [
        ({}, ["0", "1"]),
        ({"JAX_PLATFORMS": "cuda,cpu"}, ["0", "1"]),
        ({"JAX_PLATFORMS": "cpu"}, []),
        ({"CUDA_VISIBLE_DEVICES": "3,GPU-8f"}, ["3", "GPU-8f"]),
        ({"CUDA_VISIBLE_DEVICES": "0, 1"}, ["0", "1"]),
        ({"CUDA_VISIBLE_DEVICES": "1,-1,0"}, ["1"]),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, []),
        ({"CUDA_VISIBLE_DEVICES": "NoDevFiles"}, []),
        ({"CUDA_VISIBLE_DEVICES": ""}, []),
        ({"JAX_PLATFORMS": "cpu,cuda"}, []),
    ],
)
def test_gpus_that_jax_would_use(two_gpus, environ, gpus):
    assert gpus_here(environ) == gpus


def test_without_the_plug_in_there_are_none(two_gpus, monkeypatch):
    monkeypatch.setattr("jaxnet.operations.launchers.local._PLUGINS", ("no_such_package",))
    assert gpus_here({}) == []


def test_without_a_gpu_what_is_named_is_none(two_gpus, monkeypatch, tmp_path):
    monkeypatch.setattr("jaxnet.operations.launchers.local._DEVICES", tmp_path / "empty")
    assert gpus_here({"CUDA_VISIBLE_DEVICES": "0"}) == []


@pytest.mark.parametrize(
    ("environ", "devices", "gpus"),
    [({}, None, ["0", "1"]), ({}, 2, [None, None]), ({"JAX_PLATFORMS": "cuda,cpu"}, 2, ["0", "1"])],
)
def test_a_launch_shares_them_out(two_gpus, monkeypatch, environ, devices, gpus):
    for name in ("JAX_PLATFORMS", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    started = []
    monkeypatch.setattr(local, "supervise", lambda ranks, grace: started.extend(ranks) or 0)
    local.launch_local([sys.executable, "-c", ""], 2, devices)
    assert [rank.environment.get("CUDA_VISIBLE_DEVICES") for rank in started] == gpus


def test_gpus_that_do_not_divide_are_refused(monkeypatch):
    monkeypatch.setattr(local, "gpus_here", lambda environ: list("01234567"))
    with pytest.raises(InputError, match="--processes 3: the 8 GPUs here do not divide among them"):
        local.launch_local([sys.executable, "-c", ""], 3)


def test_each_process_gets_as_many_gpus_of_its_own():
    gpus = list("01234567")
    for processes in (1, 2, 3, 8):
        shares = [share_of(gpus, index, processes)["CUDA_VISIBLE_DEVICES"].split(",") for index in range(processes)]
        assert {len(share) for share in shares} == {8 // processes}
        assert len(set().union(*shares)) == processes * (8 // processes)


def test_more_processes_than_gpus_are_refused():
    with pytest.raises(InputError, match="--processes 2: each wants a GPU of its own, and there is one here"):
        share_of(["0"], 0, 2)


def test_processes_that_share_a_gpu_get_one_line(capsys):
    def first_collective():
        raise RuntimeError(
            "INTERNAL: NCCL operation ncclCommInitRankConfig(...) failed: invalid usage. Last NCCL warning(error) log "
            "entry 'Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 60'."
        )

    with pytest.raises(SystemExit) as ended:
        exit_cleanly(first_collective)
    assert ended.value.code == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("error: two processes of this host use the same GPU")
