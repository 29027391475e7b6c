"""A collective takes the links of a torus that its parties need, for as long as the fullest of them."""

import math

import pytest

from jaxnet.comm import FoundCollective
from jaxnet.cost.accelerators import Cluster
from jaxnet.cost.links import Place, load, places_of

V5E, RING, V5P = (Cluster.named(name) for name in ("v5e:4x4", "v5e:16x16", "v5p:2x2x4"))
TWO_SLICES = Cluster.named("v5e:4x4/2")


def found(kind="all-reduce", *, groups=(), pairs=(), elements=2**20, partitions=0, transport="xla"):
    return FoundCollective(kind, groups, (("float32", elements),), 0, "c", "", pairs, transport, partitions=partitions)


def taken_by(collective, cluster):
    return load(collective, cluster, places_of(cluster))


def units(collective, cluster):
    """Seconds beyond the latency, in those that the bytes of a device take on one link."""
    taken = taken_by(collective, cluster)
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
        assert taken_by(permute, V5E).links == (name,)
        assert units(permute, V5E) == pytest.approx(messages)


@pytest.mark.parametrize(("step", "messages"), [(1, 1), (2, 2), (8, 8), (9, 7), (15, 1)])
def test_a_rotation_of_a_ring_goes_the_shorter_way(step, messages):
    assert units(found("collective-permute", pairs=rotations(RING, 0, step)), RING) == pytest.approx(messages)


def test_a_permute_over_two_dims_takes_the_links_of_both():
    taken = taken_by(found("collective-permute", pairs=((0, 5),)), V5E)
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
    assert taken_by(collective, cluster).links == links
    assert 1 / units(collective, cluster) == pytest.approx(at_once)


@pytest.mark.parametrize(("cluster", "dims", "messages"), [(V5E, 1, 4 / 3), (V5E, 2, 16 / 15), (RING, 1, 2 * 16 / 15)])
def test_half_of_an_all_to_all_crosses_the_middle(cluster, dims, messages):
    """On an open line of four, 2 chips send a quarter of their message to each of 2 over one link."""
    groups = lines(cluster, 0) if dims == 1 else ()
    assert units(found("all-to-all", groups=groups), cluster) == pytest.approx(messages)


@pytest.mark.parametrize(
    ("cluster", "groups", "at_once"),
    [
        (V5E, ((0, 4), (8, 12)), 1),  # neighbours along x: a link each
        (V5E, ((0, 8), (4, 12)), 1 / 2),  # one within the other: the middle link is shared
        (V5E, ((0, 2, 8, 10), (1, 3, 9, 11)), 3 / 2),  # blocks with gaps: they share a link along y, and none along x
        (RING, tuple(tuple(range(first, first + 8)) for first in range(0, 256, 8)), 1),  # half a ring has two ends
    ],
)
def test_groups_that_lie_over_the_same_links_share_them(cluster, groups, at_once):
    assert 1 / units(found(groups=groups), cluster) == pytest.approx(at_once)


def test_an_all_to_all_of_neighbours_is_one_message_each_way():
    groups = tuple((first, first + 1) for first in range(0, 16, 2))
    assert units(found("all-to-all", groups=groups), V5E) == pytest.approx(1)


def test_one_chip_alone_waits_for_nobody():
    alone = Cluster.named("v5e:1x1")
    assert taken_by(found(), alone).seconds == alone.accelerator.latency[0]


def test_places_are_those_that_the_devices_say():
    class Chip:
        def __init__(self, slice_index, *coords):
            self.slice_index, self.coords = slice_index, coords

    cluster = Cluster.named("v5e:2x2/2")
    snake = [Chip(index, *chip, 0) for index in (0, 1) for chip in ((0, 0), (0, 1), (1, 1), (1, 0))]
    places = places_of(cluster, snake)
    assert places[3] == Place(0, (1, 0))
    assert places[6] == Place(1, (1, 1))
    across = found("collective-permute", pairs=((0, 2),))
    assert load(across, cluster, places).links == ("x", "y")
    assert load(across, cluster, places_of(cluster)).links == ("x",)
    assert places_of(cluster, [object()] * 8) == places_of(cluster)


def test_a_program_of_one_slice_of_two_numbers_its_chips():
    assert taken_by(found(groups=lines(V5E, 1), partitions=16), TWO_SLICES).links == ("y",)
    assert taken_by(found(partitions=16), TWO_SLICES).links == ("x", "y")


def test_between_slices_the_network_is_taken():
    across = tuple((place, place + 16) for place in range(16))
    for collective in (found(groups=across), found(transport="dcn")):
        taken = taken_by(collective, TWO_SLICES)
        assert (taken.links, taken.bytes) == (("far",), 4 * 2**20)


@pytest.mark.parametrize("hosts", [2, 3])
def test_of_an_all_to_all_each_device_sends_what_is_for_other_hosts_by_its_own_connection(hosts):
    """Counted device by device: each has an equal part of its message for each."""
    cluster = Cluster.named(f"h100:{hosts}x8")
    leaving = sum(4 * 2**20 / cluster.devices for receiver in range(cluster.devices) if receiver // 8 != 0)
    taken = taken_by(found("all-to-all"), cluster)
    assert taken.links == ("far",)
    assert taken.seconds == pytest.approx(cluster.accelerator.latency[1] + leaving / cluster.accelerator.far)
