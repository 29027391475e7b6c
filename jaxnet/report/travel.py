"""What travels between which devices, drawn: the rounds of one message, read off the strategy's own program.

    travel_svg(comm.named_strategy("hierarchical"))

Each panel is a round; hosts are rows of devices. Devices in one outline add up, share out or gather with each other; an
arrow is a message from one device to another. What stands below is how much of the message each device holds or sends.
"""

import html
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
from jax.extend.core import Jaxpr
from jax.sharding import PartitionSpec as P

from jaxnet.comm import AXES, DEVICE, HOST, STRATEGIES, Sharded, Strategy, as_reducer, make_mesh
from jaxnet.comm.reducer import inner_programs, traced_collective
from jaxnet.errors import InputError
from jaxnet.figures import COLLECTIVE_COLOURS

_SIDE = 64  # of the gradient that is sent, a matrix: each round has a round part of it
_BYTES = 4 * _SIDE * _SIDE
_MOST_PANELS = 12


class Move(NamedTuple):
    """A round of a message.

    Attributes:
        kind: 'all-reduce', 'reduce-scatter', 'all-gather', 'all-to-all' or 'permute'.
        axes: of the mesh, that it spans.
        bytes: that a device gives into it.
        pairs: of a permute, from which device to which; by number, host by host.
    """

    kind: str
    axes: tuple[str, ...]
    bytes: int
    pairs: tuple[tuple[int, int], ...] = ()


def moves_of(strategy: Strategy, hosts: int = 2, devices: int = 4) -> list[Move]:
    """The rounds in which the sum of one gradient of 64 x 64 float32 is made; needs as many JAX devices.

    Raises:
        InputError: XLA places the reduction, so there is nothing to read.
    """
    reducer = strategy.reducer
    if reducer is None:
        raise InputError(f"strategy={strategy.label}: XLA places the reduction, so nothing is known before it compiles")
    mesh = make_mesh(hosts, jax.devices()[: hosts * devices])
    gradient = jax.ShapeDtypeStruct((_SIDE, _SIDE), "float32")

    def reduced(value: Any) -> Any:
        whole = as_reducer(reducer) if isinstance(reducer, Sharded) else reducer
        own = [jax.lax.pcast(value, AXES, to="varying")]
        return whole.reduce(own, whole.init(own, mesh.shape))[0]

    mapped = jax.shard_map(reduced, mesh=mesh, in_specs=P(), out_specs=P(), check_vma=False)
    jaxpr = jax.make_jaxpr(mapped)(gradient).jaxpr
    return list(_moves(jaxpr, {HOST: hosts, DEVICE: devices}))


def _moves(jaxpr: Jaxpr, sizes: dict[str, int]) -> Iterator[Move]:
    for equation in jaxpr.eqns:
        traced = traced_collective(equation)
        if traced is None:
            for inner in inner_programs(equation):
                yield from _moves(inner, sizes)
            continue
        kind, axes = traced
        if math.prod(sizes[axis] for axis in axes) == 1:
            continue
        given: list[Any] = [each.aval for each in equation.invars]
        size = sum(math.prod(each.shape) * each.dtype.itemsize for each in given)
        yield Move(
            kind.removeprefix("collective-"), axes, size, tuple(_pairs(axes, equation.params.get("perm", ()), sizes))
        )


def _pairs(axes: tuple[str, ...], perm: Sequence[tuple[int, int]], sizes: dict[str, int]) -> Iterator[tuple[int, int]]:
    """A permute's pairs as numbers of devices: one over a single axis is made in every line of the mesh."""
    for start, end in perm:
        if axes == (DEVICE,):
            yield from ((host * sizes[DEVICE] + start, host * sizes[DEVICE] + end) for host in range(sizes[HOST]))
        elif axes == (HOST,):
            yield from ((start * sizes[DEVICE] + at, end * sizes[DEVICE] + at) for at in range(sizes[DEVICE]))
        else:
            yield start, end


def drawings(hosts: int = 2, devices: int = 4) -> dict[str, str]:
    """`travel_svg` of every strategy that has a name, but of `xla`, which XLA places; by name."""
    made = {name: make() for name, make in STRATEGIES.items()}
    return {name: travel_svg(each, hosts, devices) for name, each in made.items() if each.reducer is not None}


# ---- Picture --------------------------------------------------------------------------------------------

_STEP, _RADIUS, _PANEL_GAP, _TOP = 36, 10, 26, 24  # pixels
_COLOURS = {**COLLECTIVE_COLOURS, "permute": COLLECTIVE_COLOURS["collective-permute"]}


def travel_svg(strategy: Strategy, hosts: int = 2, devices: int = 4) -> str:
    """The rounds of a message as an SVG; raises as `moves_of` does."""
    moves = [(move, len(list(again))) for move, again in itertools.groupby(moves_of(strategy, hosts, devices))]
    shown = moves if len(moves) <= _MOST_PANELS else moves[: _MOST_PANELS - 1]
    width, tall = devices * _STEP + _PANEL_GAP, hosts * _STEP + _TOP + 40
    columns = max(1, min(len(shown) + (len(shown) < len(moves)), 6))
    rows = max(1, -(-(len(shown) + (len(shown) < len(moves))) // columns))
    said = "; ".join(_words(*each) for each in shown) or "nothing travels"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {columns * width} {rows * tall}" '
        f'width="{columns * width}" role="img" style="max-width:100%;height:auto;background:#fff" '
        'font-family="system-ui, sans-serif" font-size="11">'
        f"<title>{html.escape(f'{strategy.label} on {hosts} hosts of {devices} devices: {said}')}</title>"
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="6" markerHeight="6" orient="auto">'
        f'<path d="M0 0 L8 4 L0 8 z" fill="{_COLOURS["permute"]}"/></marker></defs>'
    ]
    for number, (move, times) in enumerate(shown):
        left, top = number % columns * width, number // columns * tall
        parts.append(f'<g transform="translate({left} {top})">{_panel(move, times, hosts, devices)}</g>')
    if more := sum(times for _, times in moves[len(shown) :]):
        left, top = len(shown) % columns * width, len(shown) // columns * tall
        parts.append(f'<text x="{left + 6}" y="{top + tall / 2}" fill="#57606a">and {more} more</text>')
    return "".join([*parts, "</svg>"])


def _words(move: Move, times: int) -> str:
    again = f" {times} times" if times > 1 else ""
    return f"{move.kind} over {' and '.join(move.axes)}{again}, {_amount(move)}"


def _amount(move: Move) -> str:
    return "the whole message" if move.bytes == _BYTES else f"{_fraction(move.bytes / _BYTES)} of the message"


def _fraction(part: float) -> str:
    """A part of the message as it is read: 1/8, or percents where it is none.

    >>> _fraction(0.125), _fraction(0.3)
    ('1/8', '30 %')
    """
    whole = 1 / part
    return f"1/{round(whole)}" if abs(whole - round(whole)) < 0.02 and whole >= 1 else f"{part:.0%}".replace("%", " %")


def _panel(move: Move, times: int, hosts: int, devices: int) -> str:
    colour, again = _COLOURS[move.kind], f" x {times}" if times > 1 else ""
    parts = [f'<text x="6" y="14" font-weight="600" fill="{colour}">{move.kind}{again}</text>']
    if not move.pairs:
        parts += [_outline(group, colour) for group in _groups(move.axes, hosts, devices)]
    parts += [_arrow(divmod(start, devices), divmod(end, devices), colour) for start, end in move.pairs]
    for host, device in itertools.product(range(hosts), range(devices)):
        x, y = _place(host, device)
        parts.append(
            f'<circle cx="{x}" cy="{y}" r="{_RADIUS}" fill="#fff" stroke="#57606a"/>'
            f'<text x="{x}" y="{y + 4}" text-anchor="middle" fill="#1b1f24">{host * devices + device}</text>'
        )
    parts.append(f'<text x="6" y="{_TOP + hosts * _STEP + 16}" fill="#57606a">{_amount(move)}</text>')
    return "".join(parts)


def _place(host: int, device: int) -> tuple[float, float]:
    return 6 + _STEP * (device + 0.5), _TOP + _STEP * (host + 0.5)


def _groups(axes: tuple[str, ...], hosts: int, devices: int) -> list[tuple[int, int, int, int]]:
    """Outlines, as first and last host and device."""
    if set(axes) == {HOST, DEVICE}:
        return [(0, hosts - 1, 0, devices - 1)]
    if axes == (DEVICE,):
        return [(host, host, 0, devices - 1) for host in range(hosts)]
    return [(0, hosts - 1, device, device) for device in range(devices)]


def _outline(group: tuple[int, int, int, int], colour: str) -> str:
    first_host, last_host, first, last = group
    (x0, y0), (x1, y1) = _place(first_host, first), _place(last_host, last)
    pad = _RADIUS + 4
    return (
        f'<rect x="{x0 - pad}" y="{y0 - pad}" width="{x1 - x0 + 2 * pad}" height="{y1 - y0 + 2 * pad}" rx="12" '
        f'fill="{colour}" fill-opacity="0.18" stroke="{colour}"/>'
    )


def _arrow(start: tuple[int, int], end: tuple[int, int], colour: str) -> str:
    """A curve between the rims of two circles, bent so that one back is not upon it."""
    (x0, y0), (x1, y1) = _place(*start), _place(*end)
    length = math.hypot(x1 - x0, y1 - y0)
    across, down = (x1 - x0) / length, (y1 - y0) / length
    bend = 6 + 0.16 * length
    middle = (x0 + x1) / 2 + bend * down, (y0 + y1) / 2 - bend * across
    x0, y0, x1, y1 = (
        x0 + across * _RADIUS,
        y0 + down * _RADIUS,
        x1 - across * (_RADIUS + 1),
        y1 - down * (_RADIUS + 1),
    )
    return (
        f'<path d="M{x0:.1f} {y0:.1f} Q{middle[0]:.1f} {middle[1]:.1f} {x1:.1f} {y1:.1f}" fill="none" '
        f'stroke="{colour}" stroke-width="1.4" marker-end="url(#tip)"/>'
    )
