"""A collective takes the links of a torus that its parties need, for as long as the fullest of them."""

import math

import pytest

from jaxnet.comm import FoundCollective
from jaxnet.cost.accelerators import Cluster
from jaxnet.cost.links import load

V5E, RING, V5P = (Cluster.named(name) for name in ("v5e:4x4", "v5e:16x16", "v5p:2x2x4"))
TWO_SLICES = Cluster.named("v5e:4x4/2")


def found(kind="all-reduce", *, groups=(), pairs=(), elements=2**20, partitions=0, transport="xla"):
    return FoundCollective(kind, groups, (("float32", elements),), 0, "c", "", pairs, transport, partitions=partitions)


def units(collective, cluster):
    """Seconds beyond the latency, in those that the bytes of a device take on one link."""
    taken = load(collective, cluster)
    return (taken.seconds - cluster.accelerator.latency[0]) * cluster.link_rate / taken.bytes


def rotations(cluster, dim, step):
    """Every chip sends to the one `step` further along a dim."""
    size = cluster.sizes[dim]
    stride = math.prod(cluster.sizes[dim + 1 :])
    places = range(cluster.near_devices)
    return tuple((p, p + ((p // stride + step) % size - p // stride % size) * stride) for p in places)


def lines(cluster, dim):
    size, stride = cluster.sizes[dim], math.prod(cluster.sizes[dim + 1 :])
    firsts = [p for p in range(cluster.near_devices) if p // stride % size == 0]
    return tuple(tuple(first + n * stride for n in range(size)) for first in firsts)


@pytest.mark.parametrize(("step", "messages"), [(1, 1), (2, 2), (3, 1)])
def test_a_rotation_of_an_open_line_of_four(step, messages):
    """Two steps: 0 and 1 send over the middle link one way, 2 and 3 the other. The others: one message a link."""
    for dim, name in ((0, "x"), (1, "y")):
        permute = found("collective-permute", pairs=rotations(V5E, dim, step))
        assert load(permute, V5E).links == (name,)
        assert units(permute, V5E) == pytest.approx(messages)


@pytest.mark.parametrize(("step", "messages"), [(1, 1), (2, 2), (8, 8), (9, 7), (15, 1)])
def test_a_rotation_of_a_ring_goes_the_shorter_way(step, messages):
    assert units(found("collective-permute", pairs=rotations(RING, 0, step)), RING) == pytest.approx(messages)


def test_a_permute_over_two_dims_takes_the_links_of_both():
    taken = load(found("collective-permute", pairs=((0, 5),)), V5E)
    assert taken.links == ("x", "y")
    assert units(found("collective-permute", pairs=((0, 5),)), V5E) == pytest.approx(1)


@pytest.mark.parametrize(
    ("cluster", "groups", "links", "at_once"),
    [
        (V5E, (), ("x", "y"), 2),
        (V5E, lines(V5E, 1), ("y",), 1),
        (V5E, lines(V5E, 0), ("x",), 1),
        (RING, lines(RING, 0), ("x",), 2),
        (RING, (), ("x", "y"), 4),
        (V5P, (), ("x", "y", "z"), 3),
        (V5P, lines(V5P, 2), ("z",), 1),
    ],
)
def test_a_sum_keeps_the_links_of_its_dims_busy(cluster, groups, links, at_once):
    collective = found(groups=groups)
    assert load(collective, cluster).links == links
    assert 1 / units(collective, cluster) == pytest.approx(at_once)


@pytest.mark.parametrize(("cluster", "dims", "messages"), [(V5E, 1, 4 / 3), (V5E, 2, 16 / 15), (RING, 1, 2 * 16 / 15)])
def test_half_of_an_all_to_all_crosses_the_middle(cluster, dims, messages):
    """On an open line of four, 2 chips send a quarter of their message to each of 2 over one link."""
    groups = lines(cluster, 0) if dims == 1 else ()
    assert units(found("all-to-all", groups=groups), cluster) == pytest.approx(messages)


def test_a_program_of_one_slice_of_two_numbers_its_chips():
    assert load(found(groups=lines(V5E, 1), partitions=16), TWO_SLICES).links == ("y",)
    assert load(found(partitions=16), TWO_SLICES).links == ("x", "y")


def test_between_slices_the_network_is_taken():
    across = tuple((place, place + 16) for place in range(16))
    for collective in (found(groups=across), found(transport="dcn")):
        taken = load(collective, TWO_SLICES)
        assert (taken.links, taken.bytes) == (("far",), 4 * 2**20)
