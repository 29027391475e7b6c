"""`compiler_options` reach XLA's compiler of the step, and what it does not know is refused by its key.

And the strategy `auto`, which differs by platform as they do.
"""

import json
from contextlib import closing
from dataclasses import replace

import pytest

import jaxnet
from jaxnet import comm
from jaxnet.training.prepare import prepare
from support.runs import sharing

CONFIG = sharing(
    jaxnet.Config(
        model=jaxnet.models.CNN(2, widths=(2,), hidden=4),
        data=jaxnet.data.Synthetic((8, 8, 1), num_classes=2, num_train=32, num_test=16),
        epochs=1,
        batch_size=16,
        eval_batch_size=16,
        log=jaxnet.Log(tensorboard=False),
    )
)


def with_options(*options, **fields):
    return replace(CONFIG, compiler_options=options, **fields)


# ---- Options ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["fast", "=1", "sparse cores"])
def test_a_text_that_is_no_option_is_refused(text):
    with pytest.raises(jaxnet.InputError, match=r"compiler_options: .*: wanted NAME=VALUE, or one of sparse_cores"):
        prepare(with_options(text))


@pytest.mark.parametrize("option", ["xla_no_such_option=1", "sparse_cores"])
@pytest.mark.parametrize("strategy", ["ddp", "zero", "local_sgd", "xla"])
def test_what_the_compiler_does_not_know_is_refused_by_its_key(option, strategy, tmp_path):
    with pytest.raises(jaxnet.InputError, match=r"^compiler_options: XLA: .*No such compile option"):
        jaxnet.train(with_options(option, strategy=strategy), tmp_path, quiet=True)


def test_so_is_a_value_that_it_does_not_take_and_where_a_loop_of_ones_own_compiles():
    experiment = prepare(with_options("xla_cpu_enable_fast_math=maybe"))
    with pytest.raises(jaxnet.InputError, match=r"^compiler_options: .*'maybe' is not a valid bool value"):
        experiment.compiled()
    with closing(experiment.batches()) as batches, pytest.raises(jaxnet.InputError, match=r"^compiler_options: "):
        experiment.step(experiment.init(), next(batches))


@pytest.mark.parametrize("text", ["true", "False", "TRUE"])
def test_booleans_may_be_written_as_xla_prints_them(text):
    prepare(with_options(f"xla_cpu_enable_fast_math={text}")).compiled()
    assert str(comm.chosen_options([f"a={text}"])[0]) == f"a={text.lower()}"


def test_in_pieces_they_would_not_reach_it():
    with pytest.raises(jaxnet.InputError, match="compiler_options do not go with mode=pieces"):
        prepare(with_options("xla_cpu_enable_fast_math=true", mode="pieces"))


def test_the_later_of_two_options_of_one_name_counts():
    """A user's after jaxnet's: with its passes enabled again, XLA merges the buckets."""
    merged = with_options("xla_disable_hlo_passes=none", strategy="per_leaf")
    assert not prepare(merged, comm.make_mesh(2)).plan.verified().check.ok
    assert prepare(replace(merged, compiler_options=()), comm.make_mesh(2)).plan.verified().check.ok


def test_an_experiment_says_which_options_it_has_and_why():
    ours, theirs = prepare(with_options("xla_cpu_enable_fast_math=false", strategy="ddp")).compiler_options
    assert (ours.name, ours.why) == ("xla_disable_hlo_passes", "buckets and schedules stay")
    assert (str(theirs), theirs.why) == ("xla_cpu_enable_fast_math=false", "asked for")
    assert prepare(replace(CONFIG, strategy="xla")).compiler_options == ()


def test_of_two_options_of_one_name_the_later_is_told():
    [option] = prepare(with_options("xla_disable_hlo_passes=none", strategy="ddp")).compiler_options
    assert str(option) == "xla_disable_hlo_passes=none"


@pytest.mark.parametrize("platform", ["cpu", "gpu", "tpu"])
def test_each_option_has_a_reason(platform):
    options = comm.platform_options(platform)
    assert comm.compiler_options(platform) == {option.name: option.value for option in options}
    assert all(option.why for option in [*options, *comm.OPTION_SETS["sparse_cores"]])


# ---- The default strategy -----------------------------------------------------------------------------------------


def test_the_default_is_the_best_on_the_platform_by_its_own_name(tmp_path):
    run = jaxnet.train(CONFIG, tmp_path / "a", quiet=True)
    assert run.summary["strategy"] == "ddp"
    assert comm.named_strategy("auto", platform="tpu").name == "ddp"
    with pytest.raises(ValueError, match="auto takes no settings"):
        comm.named_strategy("auto:rank=2")


def test_a_run_goes_on_by_what_was_chosen(tmp_path):
    """Another version of jaxnet may have another rule."""
    before = jaxnet.train(CONFIG, tmp_path / "a", quiet=True).workdir / "config.json"
    settings = json.loads(before.read_text())
    assert settings["strategy.choice"]["strategy"] == "ddp"
    settings["strategy.choice"]["strategy"] = "hierarchical"
    before.write_text(json.dumps(settings))
    run = jaxnet.train(replace(CONFIG, epochs=2), tmp_path / "a", quiet=True, allow_config_change=True)
    assert run.summary["strategy"] == "hierarchical"
    assert json.loads(before.read_text())["strategy.choice"] == settings["strategy.choice"]


def test_a_run_from_before_there_was_auto_goes_on(tmp_path):
    run = jaxnet.train(replace(CONFIG, strategy="hierarchical"), tmp_path / "a", quiet=True)
    assert json.loads((run.workdir / "config.json").read_text())["strategy"] == "hierarchical"
    assert jaxnet.train(CONFIG, tmp_path / "a", quiet=True).summary["steps"] == run.summary["steps"]
    jaxnet.train(replace(CONFIG, strategy="flat"), tmp_path / "b", quiet=True)
    with pytest.raises(jaxnet.InputError, match=r"another config \(strategy: .*flat.* -> \"auto\"\)"):
        jaxnet.train(CONFIG, tmp_path / "b", quiet=True)
