"""Simulated steps: against closed forms and a slow plain simulator, and beside published tables."""

import dataclasses
import json
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxnet.cli.main import main
from jaxnet.cli.papers import REDUCTION, all_lines
from jaxnet.cli.simulate import KNOWN_ERROR
from jaxnet.comm import DEVICE, HOST, Collective, Strategy, named_strategy
from jaxnet.cost.machines import EFFICIENCY, LATENCY, MACHINES, Link, Machine, machine_named
from jaxnet.cost.papers import PAPERS, Compared, compared, layers_of, reduction
from jaxnet.cost.simulation import DEVIATION, FORWARD, Layer, Work, grown, overlapped, simulated, stage, upkeep
from jaxnet.errors import InputError
from jaxnet.models import ZOO
from support.programs import ROOT

FAST = Machine("fast", "", 8, Link("nvlink", 1e30), Link("rdma", 1e30), "")
SLOW = Machine("slow", "", 8, Link("pcie", 10e9), Link("tcp", 1e9), "")
WORK = Work("net", tuple(Layer(1_000_000 * size, 1e9) for size in (1, 4, 2, 8)), batch=32, rate=320.0)
NAMES = ["flat", "per_leaf", "ddp", "hierarchical", "blueconnect", "torus", "halving_doubling"]


def test_one_device_is_what_was_measured():
    found = simulated(WORK, named_strategy("ddp"), SLOW, 1, 1)
    assert (found.seconds, found.exposed, found.rate, found.efficiency) == (0.1, 0.0, 320.0, 1.0)


@pytest.mark.parametrize(("hosts", "devices"), [(1, 2), (2, 1), (2, 4), (4, 8)])
def test_all_gradients_at_once_take_what_the_formula_says(hosts, devices):
    """`flat` on links of known rates: a ring's bytes and hops, behind all of computation."""
    count = hosts * devices
    step = simulated(WORK, named_strategy("flat"), SLOW, hosts, devices)
    compute = 0.1 * (1 + DEVIATION * math.sqrt(2 * math.log(count)))
    sent = 2 * (count - 1) / count * WORK.gradient_bytes
    near = sent / (EFFICIENCY["pcie"] * 10e9) + 2 * (devices - 1) * LATENCY["pcie"]
    far = sent / (EFFICIENCY["tcp"] * 1e9) + 2 * math.ceil(math.log2(hosts)) * LATENCY["tcp"]
    assert step.seconds == pytest.approx(compute + (near if hosts == 1 else far), rel=1e-6)
    assert step.exposed == pytest.approx(step.seconds - compute)


def test_the_network_between_hosts_is_shared():
    """Eight devices of a host that each send a part to another host send the whole through its one link."""
    part = Collective("all-reduce", (HOST,), 2, 1_000_000, "float32")
    link, seconds = stage(part, SLOW, {HOST: 2, DEVICE: 8})
    assert link == "far"
    assert seconds == pytest.approx(2 * LATENCY["tcp"] + 8 * part.wire_bytes / (EFFICIENCY["tcp"] * 1e9))
    whole = Collective("all-reduce", (HOST, DEVICE), 16, 8_000_000, "float32")
    assert stage(whole, SLOW, {HOST: 2, DEVICE: 8})[1] == pytest.approx(seconds, rel=0.9)


@pytest.mark.parametrize("axes", [(HOST,), (HOST, DEVICE)])
def test_of_an_all_to_all_all_that_is_for_other_hosts_leaves_at_once(axes):
    """Counted device by device: each has an equal part of its message for each of its group."""
    places = [(host, device) for host in range(4) for device in range(8)]
    groups = [places] if DEVICE in axes else [[each for each in places if each[1] == device] for device in range(8)]
    each = Collective("all-to-all", axes, len(groups[0]), 1_000_000, "uint8")
    pairs = [(sender, receiver) for group in groups for sender in group for receiver in group]
    leaving = sum(1_000_000 / each.size for sender, receiver in pairs if sender[0] == 0 != receiver[0])
    link, seconds = stage(each, SLOW, {HOST: 4, DEVICE: 8})
    assert link == "far"
    assert seconds == pytest.approx(2 * LATENCY["tcp"] + leaving / (EFFICIENCY["tcp"] * 1e9))


def test_backward_goes_from_the_last_layer_to_the_first():
    """The last message has the first layer alone, and cannot leave before all of backward is done."""
    first = dataclasses.replace(WORK, layers=(Layer(8_000_000, 0.0), Layer(1, 1e9)))
    last = dataclasses.replace(WORK, layers=(Layer(1, 1e9), Layer(8_000_000, 0.0)))
    ends = [simulated(work, named_strategy("per_leaf"), SLOW, 2, 1) for work in (first, last)]
    alone = 32e6 / (EFFICIENCY["tcp"] * 1e9)
    assert ends[0].exposed == pytest.approx(alone, rel=0.02)
    compute = ends[1].seconds - ends[1].exposed
    assert ends[1].seconds == pytest.approx(max(compute, FORWARD * compute + alone), rel=0.02)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("hosts", "devices"), [(1, 8), (4, 1), (4, 8), (64, 8)])
def test_no_step_is_shorter_than_its_parts(name, hosts, devices):
    strategy = named_strategy(name)
    step, free = (simulated(WORK, strategy, machine, hosts, devices) for machine in (SLOW, FAST))
    assert 0 < step.unhidden <= step.efficiency <= step.limit <= 1
    after = dataclasses.replace(strategy, schedule="after")
    assert step.unhidden == simulated(WORK, after, SLOW, hosts, devices).efficiency
    assert step.seconds >= free.seconds >= WORK.seconds
    if hosts > 1:  # no strategy sends less across than 2 (h-1)/h of the gradient, through one link
        assert step.seconds >= 2 * (hosts - 1) / hosts * WORK.gradient_bytes / (EFFICIENCY["tcp"] * 1e9)


def test_a_ring_and_stages_send_the_same_between_hosts():
    """Both send each gradient through each host's link about twice."""
    steps = [simulated(WORK, named_strategy(name), SLOW, 4, 8).seconds for name in ("ddp", "hierarchical")]
    assert steps[0] == pytest.approx(steps[1], rel=0.3)


@pytest.mark.parametrize("strategy", [named_strategy("powersgd:rank=4"), Strategy(named_strategy("powersgd").reducer)])
def test_what_sends_by_shape_is_refused(strategy):
    with pytest.raises(InputError, match="what it sends follows from the shapes of the parameters"):
        simulated(WORK, strategy, SLOW, 4, 8)


@pytest.mark.parametrize("name", ["xla", "zero", "s_caffe_ob"])
def test_what_does_not_sum_message_by_message_is_refused(name):
    with pytest.raises(InputError, match=f"strategy={name} is not simulated"):
        simulated(WORK, named_strategy(name), SLOW, 2, 2)


@pytest.mark.parametrize("strategy", [named_strategy("local_sgd"), named_strategy("bmuf:every=4")])
def test_means_of_parameters_are_refused(strategy):
    with pytest.raises(InputError, match=r"is not simulated: its steps are not alike, parameters travel in every \dth"):
        simulated(WORK, strategy, SLOW, 2, 2)


# ---- Links take what comes first, one at a time ---------------------------------------------------------


def stepped(begins, stages):
    """The same, a tick at a time: whoever has waited longest, then the lowest number, gets a free link."""
    at, since, left, held, time = [0] * len(begins), list(begins), {}, {}, 0
    while any(at[index] < len(stages[index]) for index in range(len(begins))):
        for index, (link, seconds) in enumerate(
            stages[index][at[index]] if at[index] < len(stages[index]) else (None, 0) for index in range(len(begins))
        ):
            del seconds
            if link is not None and held.get(link) == index and left[link] == 0:
                at[index], since[index], held[link] = at[index] + 1, time, None
        for link in ("near", "far"):
            waiting = [
                (since[index], index)
                for index in range(len(begins))
                if at[index] < len(stages[index]) and stages[index][at[index]][0] == link and since[index] <= time
            ]
            if held.get(link) is None and waiting:
                held[link] = min(waiting)[1]
                left[link] = stages[held[link]][at[held[link]]][1]
        time += 1
        for link, index in held.items():
            if index is not None:
                left[link] -= 1
    return time - 1


STAGES = st.lists(st.tuples(st.sampled_from(["near", "far"]), st.integers(1, 5)), min_size=1, max_size=4)


@given(st.lists(st.tuples(st.integers(0, 12), STAGES), min_size=1, max_size=6))
def test_queues_end_as_a_simulation_tick_by_tick(messages):
    begins, stages = zip(*messages, strict=True)
    assert overlapped(12, begins, stages)[:2] == (12, stepped(begins, stages))


def test_stages_of_several_messages_overlap():
    three = [("near", 2), ("far", 2), ("near", 2)]
    assert overlapped(0, [0], [three])[:2] == (0, 6)
    assert overlapped(0, [0, 0], [three] * 2).arrived < 12


@given(st.lists(st.tuples(st.integers(0, 12), STAGES), min_size=1, max_size=6), st.sampled_from([0.25, 0.5, 0.75]))
def test_what_messages_take_of_the_processor_is_missing_to_computation(messages, share):
    """Computation ends later by its share of the time in which something travelled beside it."""
    begins, stages = zip(*messages, strict=True)
    computed = overlapped(12, begins, stages, share).computed
    travelling = sum(seconds for each in stages for _, seconds in each)
    assert 12 <= computed <= 12 + share / (1 - share) * 12 + 1e-9
    assert computed <= 12 + share * travelling + 1e-9


# ---- Hosts that fail ------------------------------------------------------------------------------------


def lived(mean, save, restart, interval, seed):
    """The goodput of a run whose hosts fail at random times, interval by interval."""
    draw = random.Random(seed)
    done, time, failure = 0.0, 0.0, draw.expovariate(1 / mean)
    while done < 400 * mean / 10:
        if time + interval + save <= failure:
            time, done = time + interval + save, done + interval
        else:  # what was trained since the last save is lost
            time = failure + restart
            failure = time + draw.expovariate(1 / mean)
    return done / time


@pytest.mark.parametrize(("save", "restart"), [(1.0, 5.0), (10.0, 100.0)])
def test_goodput_is_that_of_runs_that_fail_at_random(save, restart):
    found = upkeep(hosts=10, between_failures=100_000.0, save=save, restart=restart)
    lives = [lived(10_000.0, save, restart, found.interval, seed) for seed in range(20)]
    assert found.goodput == pytest.approx(sum(lives) / 20, abs=0.005)


@given(st.floats(1e4, 1e9), st.floats(0.1, 100), st.integers(1, 10_000))
def test_no_other_interval_loses_less(between, save, hosts):
    interval = upkeep(hosts, between, save, 60.0).interval
    lost = lambda w: save / w + w / 2 / (between / hosts)  # noqa: E731
    assert lost(interval) <= min(lost(interval * factor) for factor in (0.5, 0.9, 1.1, 2.0)) * (1 + 1e-9)


def test_a_save_that_takes_no_time_is_made_all_the_time():
    assert upkeep(hosts=10, between_failures=100_000.0, save=0.0, restart=100.0) == (0.0, 1 / 1.01)


# ---- Names ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("v100", "wanted MACHINE:HOSTSxDEVICES"),
        ("v1000:2x8", "there are k80-fdr"),
        ("v100-edr:2x9", "1 to 8 devices, got 9"),
        ("v100-edr:0x8", "wanted 1 to 1,048,576 devices, got 0"),
        ("h100:9999999x8", "got 79,999,992"),
    ],
)
def test_machines_that_are_none_are_refused(text, words):
    with pytest.raises(InputError, match=r"^--on ") as caught:
        machine_named(text)
    assert words in str(caught.value)


def test_slices_of_tpus_are_hosts_of_chips():
    machine, slices, chips = machine_named("v5p:4x4x4/3")
    assert (machine.name, slices, chips, machine.dims) == ("v5p", 3, 64, 3)
    assert machine.near_hops(64) == pytest.approx(3 * 3)
    with pytest.raises(InputError, match="--on v5p:4x4: wanted v5p:XxYxZ"):
        machine_named("v5p:4x4")


def test_sizes_are_doubled_up_to_what_was_asked_for():
    assert grown(3, 8) == [(1, 1), (1, 2), (1, 4), (1, 8), (2, 8), (3, 8)]
    assert grown(1, 1) == [(1, 1)]


def test_every_machine_has_a_source():
    assert all(machine.source and machine.near.rate >= machine.far.rate / 16 for machine in MACHINES.values())


# ---- Networks, and published tables ---------------------------------------------------------------------


@pytest.mark.parametrize("name", ["alexnet", "googlenet", "resnet18"])
def test_layers_are_those_of_the_network(name):
    layers = layers_of(name)
    assert sum(layer.elements for layer in layers) == ZOO[name].parameters
    assert sum(layer.flops for layer in layers) == ZOO[name].flops
    assert layers[0].flops > 0  # the first layer is used first
    assert layers[-1].elements in (1000, 1_024_000)  # the classifier, last


def test_bert_has_its_parameters():
    assert sum(layer.elements for layer in layers_of("bert_base")) == pytest.approx(110e6, rel=0.01)


@pytest.mark.parametrize("name", ["horovod_44_vgg16_rdma", "horovod_44_vgg16_tcp", "dlperf_oneflow_resnet50_fp32"])
def test_rows_are_found_from_one_device_and_the_links(name):
    assert all(abs(row.points) < 5 for row in compared(PAPERS[name]))


def test_published_efficiencies_are_those_of_the_rows():
    row = compared(PAPERS["horovod_44_vgg16_tcp"])[0]
    assert (row.devices, row.published) == (16, pytest.approx(1308.7 / 16 / 130.9))
    assert compared(PAPERS["caffe2_57x"])[0].published == 57 / 64


def test_every_table_says_what_is_not_in_its_source():
    for paper in PAPERS.values():
        assert paper.source
        assert all(devices > 1 and figure > 0 for devices, figure in paper.rows)
        if any(figure <= 1 for _, figure in paper.rows):
            assert paper.assumed


def test_the_page_has_what_is_found():
    """docs/results_simulated.md holds the output of `simulate --paper all`, and a simulation says how far off."""
    rows = {name: compared(paper) for name, paper in PAPERS.items()}
    page = (ROOT / "docs/results_simulated.md").read_text()
    assert "\n".join(all_lines(list(PAPERS.values()), rows)) in page
    off = sorted(abs(row.points) for each in rows.values() for row in each)
    near = sum(points <= 5 for points in off)
    assert f"of {len(off)} published rows {near} are within 5 points" in KNOWN_ERROR
    assert f"half within {off[len(off) // 2]:.1f}" in KNOWN_ERROR
    between = sum(row.between() for each in rows.values() for row in each)
    assert f"{between} lie between" in KNOWN_ERROR


def test_a_reduction_is_that_of_the_closed_forms():
    machine, size = MACHINES["k80-fdr"], 8 << 20
    found = reduction(size, machine, 160)
    near, far = machine.near.seconds(size, 1), machine.far.seconds(size, 1)
    assert found.one_by_one == pytest.approx(15 * near + 144 * far)
    assert found.binomial == pytest.approx(4 * near + 4 * far)
    chains = [
        (chunks + 14) * machine.near.seconds(size / chunks, 1) + (chunks + 8) * machine.far.seconds(size / chunks, 1)
        for chunks in (1, 2, 4, 8, 16, 32, 64, 128)
    ]
    assert found.tuned == pytest.approx(min(chains))
    small = reduction(4096, machine, 160)
    assert small.tuned == small.binomial


def test_the_page_has_the_reductions(capsys):
    for options in ([], ["--json"]):
        with pytest.raises(SystemExit, match="0"):
            main(["simulate", "--paper", REDUCTION, *options])
    table, rows = capsys.readouterr().out.split("[", 1)
    assert table in (ROOT / "docs/results_simulated.md").read_text()
    assert [row["bytes"] for row in json.loads(f"[{rows}")] == [4096, 65536, 1 << 20, 8 << 20, 64 << 20, 256 << 20]


def test_between_allows_a_margin_on_both_sides():
    row = Compared(8, published=0.8, simulated=0.9, unhidden=0.7)
    assert row.between(0)
    assert row._replace(published=0.94).between()
    assert row._replace(published=0.66).between()
    assert not row._replace(published=0.96).between()
    assert not row._replace(published=0.64).between()
