"""The command and the environment of each process of a local launch."""

import socket
import sys
from pathlib import Path

import pytest

from jaxnet.cluster.environment import find_place
from jaxnet.errors import InputError
from jaxnet.operations.launchers.free_port import free_port
from jaxnet.operations.launchers.job import find_command
from jaxnet.operations.launchers.local import rank_environment


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


def test_no_outgoing_connection_takes_the_port_that_is_drawn():
    first_outgoing = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    drawn = {free_port() for _ in range(20)}
    assert all(10_000 <= port < first_outgoing for port in drawn)
    assert len(drawn) > 10  # at random: not all launches begin with the same


def test_where_the_kernel_gives_out_every_port_it_gives_one(monkeypatch, tmp_path):
    every = tmp_path / "range"
    every.write_text("1024\t65535\n")
    monkeypatch.setattr("jaxnet.operations.launchers.free_port._RANGE", every)
    with socket.socket() as server:
        server.bind(("127.0.0.1", free_port()))
