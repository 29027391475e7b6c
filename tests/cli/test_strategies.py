"""`jaxnet strategies`: the list, and what each strategy would send of a model."""

import json

import pytest

from jaxnet.cli.main import run
from jaxnet.comm import STRATEGIES
from jaxnet.report.travel import drawings
from support.programs import ROOT
from support.refusals import refused, says

DIGITS = str(ROOT / "configs/digits.py")


def printed(capsys, *arguments):
    assert run(["strategies", *arguments]) == 0
    return capsys.readouterr().out


@pytest.fixture
def rows(capsys):
    rows = json.loads(printed(capsys, "--config", DIGITS, "--json"))
    return {row["name"]: row for row in rows}


def test_the_list_names_every_strategy_once(capsys):
    lines = printed(capsys).splitlines()
    assert [line.split()[0] for line in lines] == list(STRATEGIES)
    assert [row["name"] for row in json.loads(printed(capsys, "--json"))] == list(STRATEGIES)


def test_flat_is_one_message_and_the_measure_of_the_others(rows):
    gradient_bytes = rows["flat"]["wire_bytes_per_step"] * 8 / (2 * 7)
    assert rows["flat"]["messages"] == 1
    assert rows["flat"]["ratio_to_flat"] == 1
    assert rows["per_leaf"]["ratio_to_flat"] == pytest.approx(1, abs=1e-4)
    assert rows["hierarchical"]["wire_bytes_per_axis"]["host"] == pytest.approx(gradient_bytes / 4, rel=1e-3)
    assert rows["fp16"]["ratio_to_flat"] == pytest.approx(0.5, abs=1e-3)
    assert rows["cntk_1bit"]["ratio_to_flat"] < 1 / 16


def test_parameters_that_travel_every_eight_steps_count_an_eighth(rows):
    assert rows["local_sgd"]["wire_bytes_per_step"] == pytest.approx(
        rows["hierarchical"]["wire_bytes_per_step"] / 8, rel=1e-3
    )
    assert rows["bmuf"]["ratio_to_flat"] == rows["local_sgd"]["ratio_to_flat"]
    early = 200 / 674  # of the steps send gradients
    assert rows["post_local_sgd"]["ratio_to_flat"] == pytest.approx(
        rows["hierarchical"]["ratio_to_flat"] * (early + (1 - early) / 8), rel=1e-3
    )


def test_an_optimizer_that_is_averaged_travels_too(capsys):
    given = "local_sgd:with_optimizer=true"
    rows = {row["name"]: row for row in json.loads(printed(capsys, "--config", DIGITS, "--json", f"strategy={given}"))}
    assert rows[given]["wire_bytes_per_step"] == pytest.approx(
        3 * rows["local_sgd"]["wire_bytes_per_step"], rel=1e-3
    )  # AdamW keeps two means of as many elements


def test_what_xla_sends_is_not_known(rows):
    assert "messages" not in rows["xla"]


def test_the_table_has_a_line_a_strategy_and_a_column_an_axis(capsys):
    heads, *lines = printed(capsys, "--config", DIGITS, "--mesh", "2x4").splitlines()[1:]
    assert {"host", "device", "host+device"} <= set(heads.split())
    assert [line.split()[0] for line in lines] == list(STRATEGIES)


def test_gradients_that_do_not_travel_whole_are_not_compared(capsys):
    given = ["strategies", "--config", DIGITS, "shard_dense=dense_0,dense_1"]
    says(refused(lambda: run(given), capsys), ["shard_dense=dense_0,dense_1: ", "leave shard_dense out"])


def test_a_strategy_without_a_name_is_the_configs_own(tmp_path, capsys):
    config = tmp_path / "own.py"
    config.write_text(
        "from dataclasses import replace\nfrom configs import digits\nfrom jaxnet.comm import *\n"
        "def get_config():\n"
        "    return replace(digits.get_config(), strategy=Strategy(bucketed(all_reduce(*AXES), MiB)))\n"
    )
    assert printed(capsys, "--config", str(config), "--mesh", "2x4").splitlines()[-1].startswith("the config's own ")


def test_bucket_bytes_reach_the_strategies_that_have_them(capsys):
    rows = json.loads(printed(capsys, "--config", DIGITS, "--json", "bucket_bytes=65536"))
    messages = {row["name"]: row.get("messages") for row in rows}
    assert messages["ddp"] > 1
    assert messages["flat"] == 1


def test_the_bytes_are_drawn(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    printed(capsys, "--config", DIGITS, "--svg", f"{tmp_path}/sent.svg")
    assert "digits, 2 hosts of 4 devices" in (tmp_path / "sent.svg").read_text()
    printed(capsys, "--config", DIGITS, "--svg", f"{tmp_path}/sent.svg", "hosts=4")
    assert "digits, 4 hosts of 2 devices" in (tmp_path / "sent.svg").read_text()
    message = refused(lambda: run(["strategies", "--png", f"{tmp_path}/sent.png"]), capsys)
    says(message, ["--png: give --config FILE too"])


def test_drawings_of_all_but_xla(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("jaxnet.cli.strategies.emulate_devices", lambda *_: None)  # eight are there
    assert run(["strategies", "--drawings", f"{tmp_path}/drawn", "--mesh", "2x2"]) == 0
    assert capsys.readouterr().out == f"27 drawings in {tmp_path}/drawn\n"
    assert (tmp_path / "drawn/torus.svg").read_text().startswith("<svg ")
    says(refused(lambda: run(["strategies", "--drawings", str(tmp_path), "--json"]), capsys), ["leave --json out"])


def test_the_number_of_hosts_of_a_config_counts_and_that_of_a_mesh_before_it(capsys):
    def sizes(*arguments):
        assert run(["plan", "--config", DIGITS, "--json", "strategy=flat", *arguments]) == 0
        return json.loads(capsys.readouterr().out)["mesh"]

    assert sizes("hosts=4") == {"host": 4, "device": 2}
    assert sizes() == {"host": 2, "device": 4}
    assert sizes("hosts=4", "--mesh", "1x8") == {"host": 1, "device": 8}
    says(
        refused(lambda: run(["plan", "--config", DIGITS, "hosts=3"]), capsys), ["hosts=3: ", "wanted one of 1, 2, 4, 8"]
    )


@pytest.mark.parametrize("more", [["epochs=3"], ["--png", "x.png"]])
def test_drawings_take_nothing_else(more, tmp_path, capsys):
    given = ["strategies", "--drawings", str(tmp_path / "d"), *more]
    says(refused(lambda: run(given), capsys), [f"leave {more[0]} out"])


def test_drawings_of_one_device(capsys):
    assert "nothing travels" in drawings(1, 1)["ddp"]
