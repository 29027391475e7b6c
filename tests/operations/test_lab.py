"""The plan of a lab, and the refusals; nothing here needs root or makes a network."""

import os
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxnet.cli.main import run
from jaxnet.cluster.environment import find_place
from jaxnet.errors import InputError
from jaxnet.operations.lab import network
from jaxnet.operations.lab.network import parse_rate
from jaxnet.operations.lab.run import Lab, rank_on_host, run_lab, share_cores

_UNITS = {"kbit": 10**3, "mbit": 10**6, "gbit": 10**9}


@given(st.integers(10**6, 10**11), st.sampled_from(sorted(_UNITS)), st.booleans())
def test_a_rate_is_read_as_it_was_written(bits, unit, capital):
    text = f"{bits / _UNITS[unit]:.12f}{unit}"
    assert parse_rate(text.upper() if capital else text) == bits


@pytest.mark.parametrize(
    "text", ["", "fast", "1", "1gbps", "1 gbit", "-1gbit", "1e3mbit", "gbit", "1bit", "\u0661gbit"]
)
def test_what_is_no_rate(text):
    with pytest.raises(InputError, match="wanted a number of kbit, mbit or gbit a second, such as 1gbit or 250mbit"):
        parse_rate(text)


@pytest.mark.parametrize("text", ["0gbit", "999kbit", "101gbit", "9" * 400 + "gbit"])
def test_a_rate_out_of_reach(text):
    with pytest.raises(InputError, match="wanted 1mbit to 100gbit"):
        parse_rate(text)


@given(st.lists(st.integers(0, 999), unique=True), st.integers(1, 8), st.integers(1, 8))
def test_no_core_is_given_twice(cores, hosts, each):
    if hosts * each > len(cores):
        with pytest.raises(InputError, match=f"takes {hosts * each} CPU cores, and there are {len(cores)}"):
            share_cores(cores, hosts, each)
        return
    shares = share_cores(cores, hosts, each)
    assert [len(share) for share in shares] == [each] * hosts
    assert [core for share in shares for core in share] == cores[: hosts * each]


def test_every_rank_finds_its_place_and_none_of_the_machine_s_interfaces(monkeypatch):
    monkeypatch.setenv("JAXNET_NETWORK_INTERFACE", "ens5")
    lab = Lab(hosts=2, processes_per_host=2, devices_per_process=3)
    for index in range(4):
        environ = rank_on_host(index, ["/bin/true"], lab, ["/a", "/b"], [[], []], "t").environment
        place = find_place(environ)
        assert (place.process_index, place.process_count) == (index, 4)
        assert place.coordinator.host == network.host_address(0)
        assert place.interface is None
        assert environ["JAX_NUM_CPU_DEVICES"] == "3"


def test_neighbouring_ranks_share_a_host():
    lab = Lab(hosts=3, processes_per_host=2)
    paths, cores = ["/a", "/b", "/c"], [[0], [1], [2, 3]]
    commands = [rank_on_host(index, ["/bin/true", "-x"], lab, paths, cores, "t").command for index in range(6)]
    assert [command[4:] for command in commands] == [
        [name, path, listed, "/bin/true", "-x"]
        for name, path, listed in (("host0", "/a", "0"), ("host1", "/b", "1"), ("host2", "/c", "2,3"))
        for _ in range(2)
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--", "x"], "required: --hosts"),
        (["--hosts", "0", "--", "x"], "--hosts: '0' must be a whole number of at least 1"),
        (["--hosts", "65", "--", "sh"], "--hosts 65: wanted 1 to 64"),
        (["--hosts", "2"], "no command to launch; give it after --"),
        (["--hosts", "2", "--", "no.py"], "no such file: no.py"),
        (["--hosts", "2", "--rate", "1gbps", "--", "sh"], "--rate 1gbps: wanted a number of"),
        (["--hosts", "2", "--rates", "1gbit", "--", "sh"], "did you mean --rate?"),
        (["--hosts", "2", "--processes-per-host", "0", "--", "sh"], "--processes-per-host: '0' must be a whole number"),
        (["--hosts", "64", "--cpus-per-host", "9999", "--", "sh"], "takes 639936 CPU cores, and there are"),
    ],
)
def test_a_mistake(arguments, message):
    with pytest.raises(InputError) as caught:
        run(["lab", *arguments])
    assert message in str(caught.value)


def test_help_has_examples(capsys):
    with pytest.raises(SystemExit) as caught:
        run(["lab", "--help"])
    assert caught.value.code == 0
    assert "examples:\n  jaxnet lab --hosts 2 --rate 1gbit -- jaxnet train" in capsys.readouterr().out


def test_another_system(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(InputError, match="made of Linux namespaces, which darwin does not have"):
        run_lab(["sh"], Lab(2))


def test_without_iproute2(monkeypatch, tmp_path):
    """The PATH without the folders that are searched besides."""
    (tmp_path / "ip").write_text("")
    (tmp_path / "ip").chmod(0o755)
    monkeypatch.setattr(network, "_ADMIN_PATH", "")
    monkeypatch.setattr(os, "environ", {"PATH": str(tmp_path)})
    with pytest.raises(InputError, match=r"needs the program tc: install the package iproute2 \(on Debian"):
        run_lab([sys.executable], Lab(2))
