"""Every strategy in the programs that the real compilers make for GPUs and TPUs. `make test-compilers` runs these."""

import pytest

from jaxnet.comm import STRATEGIES
from jaxnet.config.file import load_config
from jaxnet.cost.accelerators import ACCELERATORS, Cluster, prepare_compilers
from jaxnet.training.scaling import PUBLISHED_RATES, compiled_rate
from support.described import compiled_for, require_compiler
from support.programs import ROOT

PLANNED = [name for name in STRATEGIES if name not in ("xla", "local_sgd", "post_local_sgd", "bmuf")]  # in every step


def require_whole(made, strategy):
    """Each planned collective is in the program; besides them only what XLA places by itself."""
    assert made.check.ok, made.check.explain()
    assert bool(made.check.planned) == (strategy != "xla")
    assert made.timeline.travels


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_on_gpus_every_plan_is_found_whole(strategy):
    made = compiled_for(Cluster.named("h100:2x2"), strategy, depth=1)
    require_whole(made, strategy)
    if strategy != "xla":
        assert made.check.extra == ()


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_on_tpus_every_plan_is_found_whole(strategy):
    made = compiled_for(Cluster.named("v5e:2x2"), strategy, depth=1, hosts=2)
    require_whole(made, strategy)


@pytest.mark.parametrize("cluster", ["v5e:8x8", "v5p:2x2x4", "v4:2x2x4", "v6e:4x4"])
@pytest.mark.parametrize("strategy", ["hierarchical", "zero", "parameter_server"])
def test_on_other_slices_too(cluster, strategy):
    require_whole(compiled_for(Cluster.named(cluster), strategy), strategy)


@pytest.mark.parametrize("strategy", PLANNED)
def test_between_slices_the_plan_is_found_in_what_megascale_sends(strategy):
    made = compiled_for(Cluster.named("v5e:2x2/2"), strategy)
    require_whole(made, strategy)
    assert {travel.found.transport for travel in made.timeline.travels} == {"xla", "dcn"}


def test_buckets_in_stages_travel_beside_backward_on_gpus():
    made = compiled_for(Cluster.named("h100:2x8"), "hierarchical", batch_size=2048)
    beside = {found.kind for found in made.check.found if found.compute_during}
    assert "all-gather" in beside  # without `pipelined` all gathers follow the last product


def test_permutes_travel_beside_something_on_tpus():
    found = compiled_for(Cluster.named("v5e:2x2"), "torus", hosts=2).check.found
    permutes = [each for each in found if each.kind == "collective-permute"]
    assert permutes
    assert all(each.done > each.start for each in permutes)


@pytest.mark.parametrize("cluster", ["v5p:2x2x1", "v6e:2x2"])
def test_sparse_cores_sum_beside_backward(cluster):
    """All but the metrics' message, which nothing follows; and buckets stay."""
    made = compiled_for(Cluster.named(cluster), "ddp", compiler_options=("sparse_cores",))
    require_whole(made, "ddp")
    gradients, alone = made.timeline.travels[:-1], made.timeline.travels[-1]
    assert len(gradients) > 2
    assert all(travel.found.compute_during for travel in gradients)
    assert alone.found.arrays == (("float32", 2),)
    assert [option.name for option in made.options] == [
        "xla_jf_crs_combiner_threshold_count",
        "xla_tpu_enable_sparse_core_collective_offload_all_reduce",
        "xla_tpu_sparse_core_all_reduce_offload_max_num_operands",
        "xla_tpu_sparse_core_all_reduce_latency_multiplier",
    ]


def test_a_compiled_step_at_half_of_the_rates_is_near_what_was_published():
    require_compiler(Cluster.named("a100:1x1"))
    config = load_config(ROOT / "configs/imagenet_resnet50.py", "model.dtype=bfloat16")
    rate = compiled_rate(config, "a100", 256, config.data.blank())
    assert all(0.8 < published / rate < 1.25 for published in PUBLISHED_RATES["bfloat16"])


@pytest.mark.parametrize("kind", [kind for kind in ACCELERATORS if kind != "h100"])
def test_every_kind_of_accelerator_is_known_to_its_compiler(kind):
    accelerator = ACCELERATORS[kind]
    sizes = "2x2" if accelerator.dims == 2 else "2x2x1"
    made = compiled_for(Cluster.named(f"{kind}:{sizes}"), "ddp")
    require_whole(made, "ddp")
    assert 0 < made.memory.arguments < made.memory.limit


@pytest.mark.parametrize(
    "name", ["h100:1x8", "h200:1x1", "a100-40:1x4", "v4:2x2x4", "v5e:4x4/2", "v5p:2x2x1", "v6e:2x2"]
)
def test_devices_that_are_there_have_their_name(name):
    cluster = Cluster.named(name)
    require_compiler(cluster)
    prepare_compilers()
    devices = cluster.describe()
    there = Cluster.of(devices)
    assert there == cluster
    assert set(there.mesh().devices.flat) == set(devices)
