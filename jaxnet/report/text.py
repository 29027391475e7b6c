"""A timeline in words and as JSON values."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from jaxnet.report.runs import ranges
from jaxnet.report.timeline import DeviceStep, TimedCollective, Timeline

_TOTALS = "process device      step   compute      comm    hidden   exposed  overlap"
_COLLECTIVES = "  bucket  collective         axes                bytes     start       end       ms  hidden"


def timeline_text(timeline: Timeline) -> str:
    """The totals of every device, and the collectives of the first device of each process."""
    return "\n".join(_lines(timeline))


def timeline_json(timeline: Timeline) -> dict[str, Any]:
    """Everything, as JSON values: times in seconds from the step's start, `[start, end]` for a span."""
    return {
        "program": timeline.program,
        "step": timeline.step,
        "steps": list(timeline.steps),
        "notes": list(timeline.notes),
        "devices": [_device_json(device) for device in timeline.devices],
    }


def label_of(timed: TimedCollective) -> str:
    """How a collective is called in a table and on a bar: the bucket's number, or where else it comes from.

    >>> from jaxnet.report.spans import Span
    >>> label_of(TimedCollective("psum.1", "all-reduce", 3, "bucket_3", (), 0, 8, Span(0, 1), 0))
    '3'
    """
    parts = timed.scope.split("/")
    if timed.bucket is None or len(parts) == 1:
        return (parts[-1] or "-") if timed.bucket is None else str(timed.bucket)
    return "/".join([*parts[:-1], str(timed.bucket)])


def _lines(timeline: Timeline) -> Iterator[str]:
    yield f"{timeline.program}, step {timeline.step} (the trace holds {ranges(timeline.steps)}); times in ms"
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
        f"{label_of(timed)[-8:]:>8}  {timed.kind:<18} {where:<12} {timed.bytes:>12,} {_ms(timed.span.start)} "
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
