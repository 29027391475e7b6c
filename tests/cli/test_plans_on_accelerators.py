"""`jaxnet plan --on` and `jaxnet strategies --on`: what they print and refuse, without the compilers."""

import dataclasses
import json

import jax
import pytest

from jaxnet import comm
from jaxnet.cli.main import run
from jaxnet.config.file import load_config
from jaxnet.cost import accelerators
from jaxnet.cost.accelerators import Cluster
from jaxnet.errors import InputError, exit_cleanly
from jaxnet.training import forecast
from jaxnet.training.experiment import Experiment
from jaxnet.training.prepare import prepare
from support.refusals import DIGITS, TINY, refused


@pytest.fixture
def tiny(tmp_path):
    path = tmp_path / "tiny.py"
    path.write_text(TINY)
    return str(path)


@pytest.fixture
def on_cpus(monkeypatch):
    """The described devices are four emulated ones, so that XLA for CPUs compiles."""
    monkeypatch.setattr(accelerators, "prepare_compilers", lambda: None)
    monkeypatch.setattr(Cluster, "mesh", lambda self, hosts=None: comm.make_mesh(2, jax.devices()[:4]))


def test_a_plan_says_whether_it_fits_and_what_is_hidden(tiny, on_cpus, capsys):
    assert run(["plan", "--config", tiny, "--on", "h100:2x2", "strategy=hierarchical"]) == 0
    out = capsys.readouterr().out
    assert "on 4 x NVIDIA H100 80GB HBM3, compiled by JAX" in out
    assert ": fits\n" in out
    assert "with xla_disable_hlo_passes=" in out  # the emulated ones are CPUs
    assert ": buckets and schedules stay\n" in out
    assert "all 4 planned collectives are in the compiled program" in out
    assert "% of the bytes that a device sends travel beside operations" in out


def test_on_one_device_nothing_travels(tiny, on_cpus, monkeypatch, capsys):
    monkeypatch.setattr(Cluster, "mesh", lambda self, hosts=None: comm.make_mesh(1, jax.devices()[:1]))
    assert run(["plan", "--config", tiny, "--on", "h200:1x1", "strategy=hierarchical"]) == 0
    out = capsys.readouterr().out
    assert "nothing travels: no collective was planned, and none is in the compiled program" in out
    assert "beside operations" not in out


def test_a_plan_as_json(tiny, on_cpus, capsys):
    assert run(["plan", "--config", tiny, "--on", "v5e:2x2", "--json", "strategy=ddp"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["on"]["kind"] == "v5e"
    assert plan["missing"] == []
    assert plan["options"][0].keys() == {"name", "value", "why"}
    assert len(plan["found"]) == len(plan["planned"]) == 2
    assert 0 < plan["memory"]["arguments"] < plan["memory"]["limit"]
    assert plan["modelled"]["step_seconds"] >= plan["modelled"]["exposed_seconds"] > 0


def test_the_modelled_step_is_drawn_as_a_measured_one(tiny, on_cpus, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    png = tmp_path / "step.png"
    assert run(["plan", "--config", tiny, "--on", "v5e:2x2", "--png", str(png), "strategy=ddp"]) == 0
    assert png.read_bytes().startswith(b"\x89PNG")


def test_the_picture_has_the_times_of_the_model(tiny, on_cpus):
    cluster = Cluster.named("v5e:2x2")
    config = dataclasses.replace(load_config(tiny), strategy="per_leaf")
    made = forecast.forecast(prepare(config, cluster.mesh()), cluster)
    [device] = made.picture.devices
    assert len(device.collectives) == len(made.timeline.travels)
    assert device.compute_seconds == pytest.approx(made.timeline.compute)
    assert device.span.length == pytest.approx(made.timeline.seconds)
    assert device.exposed_seconds == pytest.approx(made.timeline.exposed)
    assert {timed.axes for timed in device.collectives} == {comm.AXES}


def test_a_model_beyond_the_memory_does_not_fit(tiny, on_cpus, monkeypatch, capsys):
    small = accelerators.ACCELERATORS["v5e"]
    monkeypatch.setitem(accelerators.ACCELERATORS, "v5e", small.__class__(**{**vars(small), "memory": 1000}))
    assert run(["plan", "--config", tiny, "--on", "v5e:2x2"]) == 0
    out = capsys.readouterr().out
    assert "1000 bytes: does not fit\n" in out
    assert out.endswith("it fits with no number of microbatches\n")


def test_the_microbatches_with_which_it_fits_are_found(tiny, on_cpus, monkeypatch, capsys):
    tries = iter([2**31, 2**21, 2**12])
    real = forecast._memory
    monkeypatch.setattr(
        forecast, "_memory", lambda *given: dataclasses.replace(real(*given), temporary=next(tries), limit=2**20)
    )
    assert run(["plan", "--config", tiny, "--on", "v5e:2x2", "--json"]) == 0
    fits = json.loads(capsys.readouterr().out)["fits_with"]
    assert (fits["microbatches"], fits["temporary"]) == (4, 2**12)


def test_microbatches_divide_a_share_that_is_no_power_of_two(tiny, on_cpus, monkeypatch, capsys):
    tries = iter([2**31, 2**21, 2**12])
    real = forecast._memory
    monkeypatch.setattr(
        forecast, "_memory", lambda *given: dataclasses.replace(real(*given), temporary=next(tries), limit=2**20)
    )
    assert run(["plan", "--config", tiny, "--on", "v5e:2x2", "--json", "batch_size=60", "data.num_train=60"]) == 0
    fits = json.loads(capsys.readouterr().out)["fits_with"]
    assert (fits["microbatches"], fits["temporary"]) == (15, 2**12)  # after 3: a device has 15 examples


def test_a_step_that_the_compiler_finds_too_large_is_tried_with_more_microbatches(tiny, on_cpus, monkeypatch, capsys):
    real, tries = Experiment.compiled, []

    def too_large(self, options=None):
        tries.append(self.config.microbatches)
        if self.config.microbatches < 4:
            raise RuntimeError("RESOURCE_EXHAUSTED: Ran out of memory on HBM.")
        return real(self)

    monkeypatch.setattr(Experiment, "compiled", too_large)
    words = "RESOURCE_EXHAUSTED: Ran out of memory on HBM; it fits with microbatches=4: "
    assert words in refused(lambda: run(["plan", "--config", tiny, "--on", "v5e:2x2"]), capsys)
    assert tries == [1, 2, 4]


def test_what_only_a_device_could_try_is_left_out_and_said(tiny, on_cpus, monkeypatch, capsys):
    real, given = Experiment.compiled, []

    def without_tiles(self, options=None):
        given.append(options)
        if options is None:
            raise RuntimeError("INTERNAL: Couldn't find output tile sizes that satisfy hlo: %dot")
        return real(self)

    monkeypatch.setattr(Experiment, "compiled", without_tiles)
    assert run(["plan", "--config", tiny, "--on", "h100:2x2"]) == 0
    assert given == [None, {"xla_gpu_enable_triton_gemm": False}]
    assert "compiled without Triton's products" in capsys.readouterr().out


def test_what_the_compiler_refuses_is_one_line(tiny, on_cpus, monkeypatch, capsys):
    def refuses(self, options=None):
        raise RuntimeError("INTERNAL: no such thing\nand a trace")

    monkeypatch.setattr(Experiment, "compiled", refuses)
    arguments = ["plan", "--config", tiny, "--on", "h100:2x2"]
    words = "--on: XLA does not compile this step for 4 x NVIDIA H100 80GB HBM3: RuntimeError: INTERNAL: no such thing"
    assert words in refused(lambda: exit_cleanly(lambda: run(arguments)), capsys)


def test_strategies_have_a_row_each_and_those_that_cannot_say_why(tiny, on_cpus, monkeypatch, capsys):
    few = {name: comm.STRATEGIES[name] for name in ("xla", "ddp", "hierarchical")}
    monkeypatch.setattr(comm, "STRATEGIES", few)
    assert run(["strategies", "--config", tiny, "--on", "h100:2x2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[-3:]] == list(few)
    assert run(["strategies", "--config", tiny, "--on", "h100:2x2", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["planned"], row["found"]) for row in rows] == [(0, 0), (2, 2), (4, 4)]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["plan", "--config", DIGITS, "--on", "h100"], "wanted KIND:SIZES"),
        (
            ["plan", "--config", DIGITS, "--on", "here"],
            "devices of this machine are of the kind 'cpu'; known are NVIDIA",
        ),
        (["plan", "--config", DIGITS, "--on", "h100:2x8", "--mesh", "2x4"], "--mesh: --on names a mesh already"),
        (["strategies", "--on", "h100:2x8"], "give --config FILE too"),
    ],
)
def test_what_cannot_be_meant_is_refused(arguments, words, capsys):
    assert words in refused(lambda: exit_cleanly(lambda: run(arguments)), capsys)


def test_without_the_compiler_the_error_says_what_to_install(monkeypatch):
    from jax.experimental import topologies

    def absent(**named):
        raise NotImplementedError("topology not implemented for cuda")

    monkeypatch.setattr(topologies, "get_topology_desc", absent)
    with pytest.raises(InputError, match=r"--on h100:2x8: .*topology not implemented.*pip install 'jaxnet\[aot-gpu\]'"):
        Cluster.named("h100:2x8").mesh()


def test_a_slice_whose_hosts_would_not_be_whole_is_no_matter_of_the_compiler():
    words = r"^--on v5e:3x5: wanted 1 or even numbers for the first two sizes: a host has 2 x 2 chips$"
    with pytest.raises(InputError, match=words):
        Cluster.named("v5e:3x5").mesh()


def test_photos_that_are_not_here_are_planned_by_their_shapes(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    config = "configs/cifar10_resnet20.py"
    assert run(["strategies", "--config", config, "--json"]) == 0
    said = capsys.readouterr()
    assert "warning: planned with the shapes of the data alone: the data set cifar10 is not prepared" in said.err
    assert json.loads(said.out)[1]["messages"] > 50
