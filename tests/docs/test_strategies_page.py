"""docs/strategies.md and its drawings are what the strategies make of them today."""

from xml.etree import ElementTree

import jax
import pytest

from jaxnet import comm
from jaxnet.errors import InputError
from jaxnet.report.travel import moves_of, travel_svg
from support.programs import ROOT
from tools import strategies_page

CURE = "run: python tools/strategies_page.py"
KINDS = {"permute": "collective-permute"}
SUMMED = [name for name in comm.STRATEGIES if name != "xla"]


def test_the_page_is_up_to_date():
    assert (ROOT / strategies_page.PAGE).read_text() == strategies_page.page(), CURE


def test_the_drawings_are_up_to_date():
    drawn = strategies_page.pictures()
    there = {path.name: path.read_text() for path in (ROOT / strategies_page.PICTURES).iterdir()}
    assert there == {name: text + "\n" for name, text in drawn.items()}, CURE


@pytest.mark.parametrize("name", SUMMED)
def test_what_is_drawn_is_what_is_planned(name):
    """The rounds are read off the program; their kinds and axes are those of the plan."""
    strategy = comm.named_strategy(name)
    planned = strategy.reducer.plan([jax.ShapeDtypeStruct((64, 64), "float32")], {"host": 2, "device": 4}).collectives
    drawn = [(KINDS.get(move.kind, move.kind), move.axes) for move in moves_of(strategy)]
    assert sorted(drawn) == sorted((each.kind, each.axes) for each in planned if each.size > 1)


def test_a_ring_sends_to_the_next_in_every_host():
    move = moves_of(comm.named_strategy("torus"))[0]
    assert sorted(move.pairs) == [(0, 1), (1, 2), (2, 3), (3, 0), (4, 5), (5, 6), (6, 7), (7, 4)]
    assert move.bytes == 64 * 64 * 4 / 4


@pytest.mark.parametrize("shape", [(1, 8), (8, 1), (2, 2)])
def test_a_drawing_is_well_formed_and_says_what_it_shows(shape):
    for name in ("hierarchical", "torus"):
        drawn = ElementTree.fromstring(travel_svg(comm.named_strategy(name), *shape))
        title = drawn.find("{http://www.w3.org/2000/svg}title").text
        assert title.startswith(f"{name} on {shape[0]} hosts of {shape[1]} devices: ")


def test_what_xla_places_cannot_be_drawn():
    with pytest.raises(InputError, match="XLA places the reduction"):
        moves_of(comm.named_strategy("xla"))
