"""Show a timeline: as text, as JSON values, and as a picture."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from jaxnet.figures import COLLECTIVE_COLOURS, HATCHES, new_figure
from jaxnet.report.programs import BUCKET_SCOPE
from jaxnet.report.steps import step_ranges
from jaxnet.report.timeline import DeviceStep, Span, TimedCollective, Timeline, difference, intersection

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# ---- Text and JSON --------------------------------------------------------------------------------------

_TOTALS = "process device      step   compute      comm    hidden   exposed  overlap"
_COLLECTIVES = "   bucket  collective         axes                bytes     start       end       ms  hidden"


def timeline_text(timeline: Timeline) -> str:
    """Return the totals of every device, and the collectives of the first device of each process, as text."""
    return "\n".join(_lines(timeline))


def timeline_json(timeline: Timeline) -> dict[str, Any]:
    """Return everything as JSON values: times in seconds from the step's start, `[start, end]` for a span."""
    return {
        "program": timeline.program,
        "step": timeline.step,
        "steps": list(timeline.steps),
        "notes": list(timeline.notes),
        "devices": [_device_json(device) for device in timeline.devices],
    }


def label_of(timed: TimedCollective) -> str:
    """Return the label of a collective in a table and on a bar: its bucket's number, or its scope.

    >>> from jaxnet.report.timeline import Span
    >>> label_of(TimedCollective("psum.1", "all-reduce", 3, "bucket_3", (), 0, 8, Span(0, 1), 0))
    '3'
    >>> label_of(TimedCollective("psum.1", "all-reduce", 0, "metrics/bucket_0", (), 0, 8, Span(0, 1), 0))
    'metrics/0'
    """
    parts = timed.scope.split("/")
    if timed.bucket is None:
        return parts[-1] or "-"
    around = itertools.takewhile(lambda part: not BUCKET_SCOPE.match(part), parts)
    return "/".join([*around, str(timed.bucket)])


def _lines(timeline: Timeline) -> Iterator[str]:
    yield f"{timeline.program}, step {timeline.step} (the trace holds {step_ranges(timeline.steps)}); times in ms"
    yield ""
    yield _TOTALS
    yield from (_totals(device) for device in timeline.devices)
    for device in timeline.first_devices:
        yield ""
        yield f"process {device.process}, device {device.device}"
        yield _COLLECTIVES
        yield from (_row(timed) for timed in device.collectives)
    for note in timeline.notes:
        yield ""
        yield f"note: {note}"


def _totals(device: DeviceStep) -> str:
    seconds = (
        device.span.length,
        device.compute_seconds,
        device.communication_seconds,
        device.communication_seconds - device.exposed_seconds,
        device.exposed_seconds,
    )
    return f"{device.process:>7} {device.device:>6} {' '.join(map(_ms, seconds))} {device.overlap:>8.0%}"


def _row(timed: TimedCollective) -> str:
    where = "+".join(timed.axes) or (f"groups of {timed.size}" if timed.size else "all")
    return (
        f"{label_of(timed)[-9:]:>9}  {timed.kind:<18} {where:<12} {timed.bytes:>12,} {_ms(timed.span.start)} "
        f"{_ms(timed.span.end)} {1e3 * timed.span.length:>8.3f} {timed.hidden_fraction:>7.0%}"
    )


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:>9.3f}"


def _device_json(device: DeviceStep) -> dict[str, Any]:
    return {
        "process": device.process,
        "device": device.device,
        "span": list(device.span),
        "compute_seconds": device.compute_seconds,
        "communication_seconds": device.communication_seconds,
        "exposed_seconds": device.exposed_seconds,
        "overlap": device.overlap,
        "compute": [list(span) for span in device.compute],
        "collectives": [asdict(timed) | {"hidden_fraction": timed.hidden_fraction} for timed in device.collectives],
    }


# ---- Picture --------------------------------------------------------------------------------------------

_MOST_ROWS = 8

_COMPUTE = "0.35"
_HIDDEN_ALPHA = 0.35
_CHARACTER = 0.009  # width of a character of a label, as a fraction of the picture's width


def draw(timeline: Timeline) -> "Figure":
    """Draw a timeline: for each device a row of compute and below it one of collectives.

    A collective is dark while it is exposed and pale while compute hides it. Of more than eight devices, only the first
    of each process is shown.

    Raises:
        InputError: matplotlib is missing.
    """
    shown = _shown(timeline)
    figure = new_figure(10, 1.6 + 0.8 * len(shown))
    axis = figure.add_subplot()
    axis.set_xlim(0, 1e3 * max(device.span.end for device in shown))
    for row, device in enumerate(shown):
        _draw_device(axis, row, device)
    of_all = f"{len(shown)} of {len(timeline.devices)} devices" if len(shown) < len(timeline.devices) else ""
    step = f"step {timeline.step}" if timeline.steps else ""  # a model has no number
    axis.set_title(", ".join(filter(None, [timeline.program, step, of_all])), loc="left")
    axis.set(xlabel="ms from the step's start", yticks=[row + 0.5 for row in range(len(shown))])
    axis.set(yticklabels=[_name(device, shown) for device in shown], ylim=(len(shown), 0))
    axis.spines[["left", "right", "top"]].set_visible(False)
    axis.tick_params(axis="y", length=0)
    _legend(figure, shown)
    return figure


def _shown(timeline: Timeline) -> Sequence[DeviceStep]:
    devices = timeline.devices if len(timeline.devices) <= _MOST_ROWS else timeline.first_devices
    return devices[:_MOST_ROWS]


def _name(device: DeviceStep, shown: Sequence[DeviceStep]) -> str:
    place = f"process {device.process}\n" if any(other.process != device.process for other in shown) else ""
    return f"{place}device {device.device}\noverlap {device.overlap:.0%}"


def _draw_device(axis: "Axes", row: int, device: DeviceStep) -> None:
    _bars(axis, device.compute, row + 0.10, 0.36, facecolor=_COMPUTE)
    rows = lanes(device.collectives)
    height = 0.36 / (max(rows, default=0) + 1)
    for timed, lane in zip(device.collectives, rows, strict=True):
        _draw_collective(axis, timed, device.compute, row + 0.50 + lane * height, height)
    axis.axhline(row + 1, color="0.8", linewidth=0.8)


def _draw_collective(
    axis: "Axes", timed: TimedCollective, compute: Sequence[Span], bottom: float, height: float
) -> None:
    colour, hatch = COLLECTIVE_COLOURS[timed.kind], HATCHES[timed.kind]
    _bars(axis, intersection([timed.span], compute), bottom, height, facecolor=colour, alpha=_HIDDEN_ALPHA)
    _bars(axis, difference([timed.span], compute), bottom, height, facecolor=colour)
    _bars(axis, [timed.span], bottom, height, facecolor="none", edgecolor="white", hatch=hatch, linewidth=0.5)
    label, width = label_of(timed), axis.get_xlim()[1]
    if 1e3 * timed.span.length >= _CHARACTER * (len(label) + 0.5) * width:
        middle = 1e3 * (timed.span.start + timed.span.end) / 2
        box = {"boxstyle": "round,pad=0.15", "facecolor": "white", "edgecolor": "none"}
        axis.text(middle, bottom + height / 2, label, ha="center", va="center", fontsize=8, bbox=box)


def _bars(axis: "Axes", spans: Sequence[Span], bottom: float, height: float, **style: Any) -> None:
    axis.broken_barh([(1e3 * span.start, 1e3 * span.length) for span in spans], (bottom, height), **style)


def lanes(collectives: Sequence[TimedCollective]) -> list[int]:
    """Return a lane for each collective, so that those in one lane do not overlap; they come in order of start."""
    ends: list[float] = []
    chosen = []
    for timed in collectives:
        free = [lane for lane, end in enumerate(ends) if end <= timed.span.start]
        lane = free[0] if free else len(ends)
        ends[lane : lane + 1] = [timed.span.end]
        chosen.append(lane)
    return chosen


def _legend(figure: "Figure", shown: Sequence[DeviceStep]) -> None:
    from matplotlib.patches import Patch

    kinds = {timed.kind for device in shown for timed in device.collectives}
    handles = [Patch(facecolor=_COMPUTE, label="compute")]
    for kind, colour in COLLECTIVE_COLOURS.items():
        if kind in kinds:
            handles.append(Patch(facecolor=colour, edgecolor="white", hatch=HATCHES[kind], label=kind))
    pale = Patch(facecolor="0.3", alpha=_HIDDEN_ALPHA, label="pale: hidden")
    figure.legend(
        handles=[*handles, pale], loc="outside lower left", ncols=7, columnspacing=1.2, handlelength=1.6, frameon=False
    )
