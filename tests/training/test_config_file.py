"""What a config says is read, changed, written and compared without loss."""

import dataclasses
import json
import math
import sys
from typing import Literal

import flax.linen as nn
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxnet.config.file import apply_override, load_config
from jaxnet.config.keys import all_keys, conforms, default_values, differences, flatten, parse_value, to_json
from jaxnet.config.run import Config
from jaxnet.data import Digits, FashionMNIST, Synthetic
from jaxnet.errors import InputError
from jaxnet.models import CNN, ResNet, from_linen
from jaxnet.optimizer import Optimizer

LEAVES = {
    int: st.integers(),
    float: st.floats(allow_nan=False, allow_infinity=False),
    bool: st.booleans(),
    str: st.text(),
    Literal["local", "host", "global"]: st.sampled_from(["local", "host", "global"]),
    int | None: st.none() | st.integers(),
    float | None: st.none() | st.floats(allow_nan=False, allow_infinity=False),
    tuple[int, ...]: st.lists(st.integers()).map(tuple),
    tuple[float, ...]: st.lists(st.floats(allow_nan=False, allow_infinity=False)).map(tuple),
    tuple[int, int, int]: st.tuples(st.integers(), st.integers(), st.integers()),
    tuple[int, ...] | None: st.none() | st.lists(st.integers()).map(tuple),
}
WORDS = st.sampled_from(
    ["true", "off", "none", "nan", "inf", "1e3", "0x10", "1_000", "8,16", "(8,)", "global", "", "²"]
)

CONFIGS = [
    Config(model=CNN(10), data=Digits(), epochs=1, batch_size=8),
    Config(model=ResNet(10, (1, 1)), data=Synthetic((8, 8, 1)), epochs=0.5, batch_size=8, average_decay=0.9, hosts=2),
    Config(model=CNN(10, dtype="bfloat16"), data=FashionMNIST(idx_dir="/data"), epochs=2, batch_size=8),
]

USER = """
from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import flax.linen as nn

from jaxnet.data import Synthetic
from jaxnet.config.run import Config

if TYPE_CHECKING:
    from collections.abc import Callable


class Net(nn.Module):
    num_classes: int = 2
    width: int | None = None
    rates: tuple[float, ...] = ()
    activation: Callable[[int], int] | None = None

    @nn.compact
    def __call__(self, images, *, train, keys=None):
        return nn.Dense(self.num_classes)(images.reshape(images.shape[0], -1))


@dataclass(frozen=True)
class Narrow(Synthetic):
    margin: int = 2


def get_config() -> Config:
    return Config(model=Net(), data=Narrow((8, 8, 1), num_classes=2), epochs=1, batch_size=8)
"""


def as_text(value):
    """A value as a user would type it."""
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


@given(st.sampled_from(list(LEAVES)).flatmap(lambda kind: st.tuples(st.just(kind), LEAVES[kind])))
def test_what_is_typed_is_what_is_read(pair):
    kind, value = pair
    assert conforms(value, kind)
    assert parse_value(as_text(value), kind, "key") == value


@given(st.sampled_from(list(LEAVES)), st.text() | WORDS)
def test_any_text_is_a_value_of_the_type_or_refused_by_name(kind, text):
    message = None
    try:
        value = parse_value(text, kind, "group.key")
    except InputError as error:
        message = str(error)
    told = str(InputError(f"group.key={text}: wanted "))  # in which control characters are numbers
    assert message.startswith(told) if message else conforms(value, kind)


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("1e-3", float, 0.001),
        ("1_000", int, 1000),
        ("(8, 16)", tuple[int, ...], (8, 16)),
        ("8,", tuple[int, ...], (8,)),
        ("", tuple[int, ...], ()),
        ("32,32,3", tuple[int, int, int], (32, 32, 3)),
        ("Off", bool, False),
        ("1", bool, True),
        ("NULL", int | None, None),
        ("none", str | None, None),
        ("7", str | None, "7"),
        ("2", Literal[1, 2], 2),
        ("[8,16]", tuple[int, ...], (8, 16)),
        ("[cd]*:0.5", tuple[tuple[str, float], ...], (("[cd]*", 0.5),)),
        ("([cd]*, fc_[12])", tuple[str, ...], ("[cd]*", "fc_[12]")),
        ("fc_[12]", tuple[str, ...], ("fc_[12]",)),
    ],
)
def test_ways_to_write_a_value(text, kind, value):
    read = parse_value(text, kind, "key")
    assert (read, type(read)) == (value, type(value))


@pytest.mark.parametrize(
    ("text", "kind", "wanted"),
    [
        ("8,8", tuple[int, int, int], "a comma-separated tuple of 3: an integer, an integer, an integer"),
        ("0x10", int, "an integer"),
        ("9" * 5000, int, "an integer"),
        ("1e999", float, "a number"),
        ("yess", bool, "true or false"),
        ("3", Literal[1, 2], "one of 1, 2"),
        ("x", tuple[int, ...] | None, "a comma-separated tuple, each an integer or none"),
    ],
)
def test_what_is_wanted_is_said(text, kind, wanted):
    with pytest.raises(InputError) as error:
        parse_value(text, kind, "key")
    assert str(error.value) == f"key={text}: wanted {wanted}, got {text!r}"


def test_a_type_without_a_notation_is_left_to_the_file():
    for kind in (dict[str, int], nn.Module, object):
        with pytest.raises(InputError, match="key=3: only the config file can set this"):
            parse_value("3", kind, "key")


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (True, int),
        (1.0, int),
        ("1", float),
        (math.nan, float | None),
        (1, bool),
        (None, str),
        ([1], tuple[int, ...]),
        ((1, 2), tuple[int, int, int]),
        ((1, "2"), tuple[int, ...]),
        ("mean", Literal["sum", "max"]),
        ({}, Optimizer),
        (Optimizer, Optimizer),
    ],
)
def test_what_a_file_says_of_another_type_does_not_conform(value, kind):
    assert not conforms(value, kind)


@pytest.mark.parametrize("config", CONFIGS, ids=["cnn", "resnet", "bfloat16"])
def test_every_key_takes_its_own_value(config):
    flat = flatten(config)
    keys = list(all_keys(config))
    assert len(keys) > 30
    for key in keys:
        value = config
        for name in key.split("."):
            value = getattr(value, name)
        same = apply_override(config, f"{key}={as_text(value)}")
        assert same == config, key
        assert flatten(same) == flat


@pytest.mark.parametrize("config", CONFIGS, ids=["cnn", "resnet", "bfloat16"])
def test_the_json_is_the_whole_config(config):
    read = json.loads(to_json(config))
    assert read == flatten(config)
    assert set(read) == {*all_keys(config), *(key.rpartition(".")[0] for key in all_keys(config) if "." in key)} | {
        key for key, value in vars(config).items() if dataclasses.is_dataclass(value)
    }
    assert differences(read, flatten(config)) == []


def test_a_model_of_functions_is_the_same_in_every_process():
    first, second = (flatten(dataclasses.replace(CONFIGS[0], model=from_linen(CNN(10)))) for _ in range(2))
    assert first == second
    assert "from_linen" in first["model"]


def test_linens_own_fields_are_no_keys():
    keys = set(all_keys(CONFIGS[0]))
    assert "model.widths" in keys
    assert not {"model.parent", "model.name"} & keys


def test_a_linen_module_is_changed_in_a_copy():
    changed = apply_override(CONFIGS[0], "model.widths=8")
    assert changed.model == CNN(10, widths=(8,))
    assert CONFIGS[0].model == CNN(10)


VALUES = st.none() | st.booleans() | st.integers() | st.text() | st.lists(st.integers())
FLAT = st.dictionaries(st.sampled_from("abcdef"), VALUES)


@given(FLAT, FLAT)
def test_differences_names_exactly_the_keys_that_differ(saved, current):
    lines = differences(saved, current)
    differ = {key for key in saved | current if key not in saved or key not in current or saved[key] != current[key]}
    assert {line.partition(":")[0] for line in lines} == differ
    assert len(lines) == len(differ)
    assert differences(saved, saved) == []


def test_differences_reads_as_a_change():
    saved, current = {"epochs": 1, "hosts": 2}, {"epochs": 2, "seed": None}
    assert differences(saved, current) == ["epochs: 1 -> 2", "hosts: 2 -> (absent)", "seed: (absent) -> null"]


@pytest.mark.parametrize("config", CONFIGS, ids=["cnn", "resnet", "bfloat16"])
def test_a_key_that_a_saved_config_lacks_had_its_default(config):
    current, defaults = flatten(config), default_values(config)
    for key in ("guard", "log.hlo", "model.widths", "seed"):
        older = {k: v for k, v in current.items() if k != key and not k.startswith(f"{key}.")}
        changed = [] if all(current[k] == defaults.get(k, ...) for k in current.keys() - older.keys()) else [key]
        assert [line.partition(":")[0] for line in differences(older, current, defaults)] == changed
    assert not {"epochs", "batch_size", "model", "data"} & set(defaults)
    changed = dataclasses.replace(config, seed=7)
    older = {k: v for k, v in current.items() if k != "seed"}
    assert differences(older, flatten(changed), default_values(changed)) == ["seed: 0 -> 7"]


@pytest.fixture
def user(tmp_path):
    path = tmp_path / "user.py"
    path.write_text(USER)
    return path


def test_a_users_own_module_and_data_with_types_as_strings(user):
    overrides = ["model.width=3", "model.rates=0.1,0.2", "data.margin=5", "data.image_shape=4,4,1", "model.width=none"]
    config = load_config(user, *overrides)
    assert config.model.width is None
    assert config.model.rates == (0.1, 0.2)
    assert config.data.margin == 5
    assert config.data.image_shape == (4, 4, 1)
    assert flatten(config)["model"] == "config_user.Net"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model.width=wide", "model.width=wide: wanted an integer or none, got 'wide'"),
        ("model.activation=relu", "model.activation=relu: only the config file can set this"),
        ("data.image_shape=4,4", "wanted a comma-separated tuple of 3"),
        ("data.image_shape=0,4,1", "data.image_shape=0,4,1: image_shape must be"),
        ("data.margin=none", "data.margin=none: wanted an integer"),
    ],
)
def test_a_users_own_types_are_checked(user, override, message):
    with pytest.raises(InputError) as error:
        load_config(user, override)
    assert message in str(error.value)


def test_overrides_apply_in_order(user):
    assert load_config(user, "seed=1", "seed=2").seed == 2


@pytest.mark.parametrize("given", [Config(CNN(10), Digits(), epochs=1, batch_size=64), None, 3])
def test_what_is_no_name_of_a_file_is_refused(given):
    with pytest.raises(InputError, match=r"^config .*: wanted the name of a Python file, whose get_config\(\) returns"):
        load_config(given)


def test_a_config_does_not_stand_in_for_a_module_of_the_same_name(tmp_path):
    path = tmp_path / "json.py"
    path.write_text(USER)
    load_config(path)
    assert json.dumps([1]) == "[1]"
    assert __import__("json") is json


@pytest.mark.parametrize("name", ["digits", "fashion_mnist"])
def test_the_configs_that_come_along_load(name, pytestconfig):
    config = load_config(pytestconfig.rootpath / f"configs/{name}.py")
    assert set(flatten(config)) >= set(all_keys(config))


def test_a_config_imports_what_lies_beside_it_and_here_but_not_in_pythons_place(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    (tmp_path / "sub").mkdir()
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    name = f"of_{tmp_path.name}"
    (tmp_path / f"sub/{name}_beside.py").write_text("WIDTHS = (4,)\n")
    (tmp_path / f"here/{name}_here.py").write_text("HIDDEN = 8\n")
    (tmp_path / "sub/colorsys.py").write_text("raise RuntimeError\n")
    (tmp_path / "sub/mine.py").write_text(
        f"import colorsys\nfrom {name}_beside import WIDTHS\nfrom {name}_here import HIDDEN\n"
        "from jaxnet import Config\nfrom jaxnet.data import Digits\nfrom jaxnet.models import CNN\n"
        "def get_config():\n    return Config(CNN(10, WIDTHS, HIDDEN), Digits(), epochs=1, batch_size=8)\n"
    )
    sys.modules.pop("colorsys", None)
    assert load_config(tmp_path / "sub/mine.py").model.widths == (4,)
    before = [*sys.path]
    load_config(tmp_path / "sub/mine.py")
    assert sys.path == before
