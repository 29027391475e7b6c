"""Plans found in programs that the compilers of GPUs and TPUs made, of which `programs` has the parts that matter.

tests/accelerators/keep_programs.py writes them; tests/accelerators compiles anew where the compilers are installed.
"""

import collections
import json
import re
from pathlib import Path

import pytest

from jaxnet.comm import Collective, collectives_in, verify

KEPT = sorted((Path(__file__).parent / "programs").glob("*.hlo"))


def read(path):
    head, text = path.read_text().split("\n", 1)
    head = json.loads(head.removeprefix("// "))
    planned = []
    for each in head["planned"]:
        planned.append(Collective(**{key: _tuples(value) for key, value in each.items()}))
    return head, planned, text


def _tuples(value):
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def test_there_are_programs():
    assert len(KEPT) > 10


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_the_plan_is_found_whole(path):
    head, planned, text = read(path)
    check = verify(text, planned, head["axis_sizes"])
    assert check.ok, check.explain()
    if "/" not in head["cluster"]:  # between slices XLA adds stages of its own
        assert check.extra == ()


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_a_collective_that_is_taken_out_is_missed(path):
    head, planned, text = read(path)
    more = [*planned, Collective("all-reduce", ("host", "device"), 4, 12_345, "float64")]
    check = verify(text, more, head["axis_sizes"])
    assert [missing.elements for missing in check.missing] == [12_345]


@pytest.mark.parametrize("path", [path for path in KEPT if "_2x2_2_" in path.name], ids=lambda path: path.stem)
def test_between_slices_messages_have_their_own_transport(path):
    _, _, text = read(path)
    transports = collections.Counter(found.transport for found in collectives_in(text))
    assert transports["dcn"] > 0
    assert transports["xla"] > 0


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_no_collective_is_counted_twice(path):
    _, planned, text = read(path)
    found = collectives_in(text)
    assert len({each.name for each in found}) == len(found)
    assert all(each.start <= each.done for each in found)
    assert len(found) <= 3 * len(planned)


@pytest.mark.parametrize("path", [path for path in KEPT if "_2x2_2_" in path.name], ids=lambda path: path.stem)
def test_what_is_received_first_is_the_same_message(path):
    """Between slices the scheduler may begin to receive before it sends: a gather's result, or a part of a sum."""
    head, planned, text = read(path)
    lines = text.splitlines()
    received = {_rendezvous(line): place for place, line in enumerate(lines) if " recv(" in line}
    for place, line in enumerate(lines):
        if " send(" in line and (other := received[_rendezvous(line)]) > place:
            lines[place], lines[other] = lines[other], lines[place]
    swapped = "\n".join(lines)
    assert swapped != text
    check = verify(swapped, planned, head["axis_sizes"])
    assert check.ok, check.explain()


def _rendezvous(line):
    return re.search(r'_xla_host_transfer_rendezvous="([^"]*)"', line)[1]
