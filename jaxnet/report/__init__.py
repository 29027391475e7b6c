"""What a run shows of itself: the timeline of a step, and where the time of a run went.

The timeline of one step, from the traces of the JAX profiler:

- `read_traces`: the newest trace of each process, as `Trace` and `Event`.
- `timeline`: one step as a `Timeline` of `DeviceStep`s, with `TimedCollective`s and `Span`s.
- `timeline_text`, `timeline_json`, `draw`: the same as text, JSON values or a picture.
- `union`, `timed_collective`: to make one of times that were not traced.

How a run grows with its devices: `draw_scaling`, and several beside each other: `draw_scalings`. What a step sends:
`draw_plan`. What predictions miss: `draw_residuals`. `jaxnet.figures.write_figure` makes a file of a picture.

Where the time of a run went, over all its attempts: `jaxnet.report.goodput`. A page about runs: `run_files` reads what
they wrote, `page` makes the HTML, with the charts of `curves`, and `served` shows it.

Modules, in the order in which a trace passes through them: `xspace` (bytes), `trace` (events), `programs` (compiled
programs), `steps` (which events are a step), `timeline`, `show`.
"""

from jaxnet.report.plans import draw_plan, draw_sent
from jaxnet.report.residuals import Pair, draw_residuals
from jaxnet.report.scaling import Scaling, draw_scaling, draw_scalings
from jaxnet.report.show import draw, timeline_json, timeline_text
from jaxnet.report.timeline import (
    DeviceStep,
    Span,
    TimedCollective,
    Timeline,
    hidden_seconds,
    timed_collective,
    timeline,
    union,
)
from jaxnet.report.trace import Event, Trace, read_traces

__all__ = [
    "DeviceStep",
    "Event",
    "Pair",
    "Scaling",
    "Span",
    "TimedCollective",
    "Timeline",
    "Trace",
    "draw",
    "draw_plan",
    "draw_residuals",
    "draw_scaling",
    "draw_scalings",
    "draw_sent",
    "hidden_seconds",
    "read_traces",
    "timed_collective",
    "timeline",
    "timeline_json",
    "timeline_text",
    "union",
]
