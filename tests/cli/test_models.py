"""`jaxnet models` lists the networks, or the layers of one."""

import json

import pytest

from jaxnet.cli.main import run
from jaxnet.errors import InputError
from jaxnet.models import ZOO

NAMES = ["vgg11", "alexnet", "nin"]  # the others are counted in tests/models


@pytest.fixture(autouse=True)
def a_small_zoo(monkeypatch):
    monkeypatch.setattr("jaxnet.models.zoo.ZOO", {name: ZOO[name] for name in NAMES})


def printed(capsys, *arguments):
    assert run(["models", *arguments]) == 0
    return capsys.readouterr().out


def test_the_list_names_every_network_once(capsys):
    _, *lines = printed(capsys).splitlines()
    assert [line.split()[0] for line in lines] == NAMES


def test_json_has_the_numbers_of_the_table(capsys):
    rows = {row["name"]: row for row in json.loads(printed(capsys, "--json"))}
    assert list(rows) == NAMES
    assert all(row["parameters"] == row["source_parameters"] for row in rows.values())
    assert rows["alexnet"] == {
        "name": "alexnet",
        "image": [224, 224, 3],
        "classes": 1000,
        "parameters": 61_100_840,
        "source_parameters": 61_100_840,
        "gradient_bytes": 244_403_360,
        "flops": 1_428_376_960,
        "source": "Krizhevsky, 2014 (one weird trick); torchvision",
    }


def test_layers_are_in_the_order_of_use_and_add_up(capsys):
    shown = json.loads(printed(capsys, "alexnet", "--json"))
    kernels = [layer for layer in shown["layers"] if layer["path"].endswith("kernel")]
    assert [layer["path"].split("/")[0] for layer in kernels] == [
        *(f"features_{place}" for place in (0, 3, 6, 8, 10)),
        *(f"classifier_{place}" for place in (1, 4, 6)),
    ]
    assert kernels[0] == {"path": "features_0/kernel", "shape": [11, 11, 3, 64], "parameters": 23_232}
    assert sum(layer["parameters"] for layer in shown["layers"]) == shown["parameters"]


def test_the_table_of_layers_has_a_line_a_parameter(capsys):
    head, network, _, _, *lines = printed(capsys, "nin").splitlines()
    assert head.split()[0] == "network"
    assert network.split()[0] == "nin"
    assert lines[0].split() == ["conv1/kernel", "11x11x3x96", "34,848"]
    assert len(lines) == 24


@pytest.mark.parametrize(
    ("name", "hint"), [("vgg_11", "did you mean 'vgg11'?"), ("u_net", "`jaxnet models` lists them")]
)
def test_an_unknown_name_is_refused(name, hint):
    with pytest.raises(InputError) as caught:
        run(["models", name])
    assert str(caught.value).startswith(f"there is no network {name!r}; ")
    assert hint in str(caught.value)
