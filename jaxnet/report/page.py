"""One HTML page about one run or several: it needs no network, no script and no pointer, and a script makes it handier.

    page([read_run("xla", "runs/a"), read_run("ddp", "runs/b")])

Every picture has its values beside it as a table or in words. Colours are those of the run, dashes those of the split;
both are said in the legend.
"""

import html
import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from importlib.resources import files
from typing import Any

import jax.numpy as jnp

from jaxnet.comm.as_html import html_folded
from jaxnet.errors import one_line
from jaxnet.report.curves import (
    BOTTOM,
    HEIGHT,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    Curve,
    at_steps,
    line_chart,
    number_text,
    summary_text,
    thinned,
    ticks,
)
from jaxnet.report.goodput import KINDS, Goodput, stragglers
from jaxnet.report.run_files import RunFiles, curve
from jaxnet.report.show import label_of
from jaxnet.report.timeline import DeviceStep, Timeline

_RUNS = 6  # colours; a page of more runs uses them again
_SPLITS = ("train", "validation", "test")
_RATES = ("examples_per_second", "step_seconds", "data_wait_seconds")  # the trainer's own figures of each line
_NOT_METRICS = {"step", "split", "examples", "epoch", "skipped", *_RATES}


def page(runs: Sequence[RunFiles], *, live: str = "") -> str:
    """The page of these runs.

    Args:
        runs: what each has written; in a comparison the first is what the others are set beside.
        live: a version of what is shown, for a page that is served and asks for another; '' otherwise.
    """
    sections = [(name, title, body) for name, title, body in _sections(runs) if body]
    title = html.escape(f"jaxnet: {', '.join(run.label for run in runs)}")
    links = "".join(f'<li><a href="#{name}">{heading}</a></li>' for name, heading, _ in sections)
    bodies = "".join(
        f'<section aria-labelledby="{name}"><h2 id="{name}">{heading}</h2>{body}</section>'
        for name, heading, body in sections
    )
    made = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    attribute = f' data-live="{html.escape(live)}"' if live else ""
    return (
        f'<!DOCTYPE html>\n<html lang="en"{attribute}><head><meta charset="utf-8"><title>{title}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark"><link rel="icon" href="data:,">'
        f"<style>{_asset('page.css')}\n{_styles()}</style></head>\n"
        f'<body><a class="skip" href="#main">To the report</a><header><h1>{title}</h1>'
        f'<p class="soft">made {made}</p><nav aria-label="Sections"><ul>{links}</ul></nav></header>\n'
        f'<main id="main">{bodies}</main>\n<script>{_asset("page.js")}</script></body></html>\n'
    )


def _sections(runs: Sequence[RunFiles]) -> Iterator[tuple[str, str, str]]:
    for name, title, made in (
        ("figures", "Final figures", lambda: _figures(runs)),
        ("curves", "Curves", lambda: _charts(runs, _metric_names(runs))),
        ("speed", "Speed", lambda: _charts(runs, _RATES)),
        ("time", "Where the time went", lambda: "".join(map(_account, runs))),
        ("sends", "What a step sends", lambda: "".join(map(_plan, runs))),
        ("step", "A step in time", lambda: "".join(_step(run) for run in runs if run.timeline)),
        ("config", "Config", lambda: _configs(runs)),
        ("checkpoints", "Checkpoints", lambda: "".join(map(_checkpoints, runs))),
        ("faults", "What went wrong", lambda: "".join(map(_faults, runs))),
        ("environment", "Environment", lambda: _environments(runs)),
    ):
        try:
            yield name, title, made()
        except (AttributeError, LookupError, TypeError, ValueError) as error:  # a file that jaxnet has not written
            said = html.escape(one_line(error) or type(error).__name__)
            yield name, title, f"<p>cannot be shown: {said}</p>"


def _asset(name: str) -> str:
    return (files("jaxnet.report") / name).read_text(encoding="utf-8")


def _styles() -> str:
    """Colours by run, dashes by split: style number = run * splits + split."""
    dashes = ("none", "2 3", "6 3")
    return "".join(
        f".style-{run * len(_SPLITS) + split} {{ stroke: var(--run-{run}); stroke-dasharray: {dash} }}\n"
        f"circle.style-{run * len(_SPLITS) + split} {{ fill: var(--run-{run}); }}\n"
        for run in range(_RUNS)
        for split, dash in enumerate(dashes)
    )


# ---- Tables ---------------------------------------------------------------------------------------------


def table(caption: str, heads: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """An HTML table; columns of numbers stand to the right. '' without rows."""
    if not rows:
        return ""
    numbers = [
        all(isinstance(row[at], int | float) or row[at] is None for row in rows)
        and any(row[at] is not None for row in rows)
        for at in range(len(heads))
    ]
    of = [' class="number"' if number else "" for number in numbers]
    head = "".join(f'<th scope="col"{kind}>{html.escape(name)}</th>' for name, kind in zip(heads, of, strict=True))
    body = "".join(
        "<tr>" + "".join(f"<td{kind}>{_cell(value)}</td>" for value, kind in zip(row, of, strict=True)) + "</tr>"
        for row in rows
    )
    return (
        f'<div class="wide" tabindex="0" role="region" aria-label="{html.escape(caption)}">'
        f"<table><caption>{html.escape(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool | str):
        return html.escape(str(value))
    if isinstance(value, float):
        return number_text(value)
    return f"{value:,}" if isinstance(value, int) else html.escape(json.dumps(value))


def _folded(title: str, body: str) -> str:
    return html_folded(title, body) if body else ""


def _figures(runs: Sequence[RunFiles]) -> str:
    names = list(dict.fromkeys(name for run in runs for name in run.summary.get("metrics", [])))
    names = ["steps", *names, "examples_per_second", "wire_bytes_per_step", "data_wait_fraction", "seconds"]
    rows = [
        [run.label, run.summary.get("strategy", ""), "ended" if run.summary.get("finished") else "not finished"]
        + [value if isinstance(value := run.summary.get(name), int | float) else None for name in names]
        for run in runs
    ]
    return table("The figures of summary.json", ["run", "strategy", "state", *names], rows)


# ---- Curves ---------------------------------------------------------------------------------------------


def _metric_names(runs: Sequence[RunFiles]) -> list[str]:
    found = dict.fromkeys(name for run in runs for line in run.metrics for name in line)
    return sorted((name for name in found if name not in _NOT_METRICS), key=lambda name: (name != "loss", name))


def _charts(runs: Sequence[RunFiles], names: Sequence[str]) -> str:
    charts = [_chart(name, curves) for name in names if (curves := _curves(runs, name))]
    return f'<div class="charts">{"".join(charts)}</div>' if charts else ""


def _curves(runs: Sequence[RunFiles], name: str) -> list[Curve]:
    found = [
        Curve(
            f"{run.label} {split}" if len(runs) > 1 else split,
            thinned(points),
            at % _RUNS * len(_SPLITS) + _SPLITS.index(split),
            dotted=split != "train",
        )
        for at, run in enumerate(runs)
        for split in _SPLITS
        if (points := curve(run.metrics, split, name))
    ]
    return found


def _chart(name: str, curves: Sequence[Curve]) -> str:
    steps = [x for each in curves for x, _ in each.points]
    data = {
        "left": LEFT, "right": WIDTH - RIGHT, "top": TOP, "bottom": HEIGHT - BOTTOM, "width": WIDTH,
        "low": min(steps), "high": max(steps),
        "curves": [{"label": c.label, "x": [x for x, _ in c.points], "y": [y for _, y in c.points]} for c in curves],
    }  # fmt: skip
    keys = "".join(
        f'<li><svg viewBox="0 0 32 8" aria-hidden="true"><line class="curve style-{each.style}" x1="0" x2="32" y1="4" '
        f'y2="4"/></svg>{html.escape(each.label)}</li>'
        for each in curves
    )
    labels = [each.label for each in curves]
    rows = [[step, *values] for step, values in at_steps(curves)]
    title = html.escape(name.replace("_", " "))
    said = html.escape(summary_text(name.replace("_", " "), curves))
    return (
        f'<figure data-chart tabindex="0" role="group" aria-label="{said}"><h3>{title}</h3>'
        f'{line_chart(name, curves)}<ul class="key">{keys}</ul><output aria-live="polite"></output>'
        f'<script type="application/json">{json.dumps(data).replace("</", "<" + chr(92) + "/")}</script>'
        f"{_folded('Values', table(name, ['step', *labels], rows))}</figure>"
    )


# ---- Time -----------------------------------------------------------------------------------------------


def _account(run: RunFiles) -> str:
    if run.goodput is None:
        return ""
    found: Goodput = run.goodput
    used = [kind for kind in KINDS if any(row.seconds[kind] > 0 for row in found.rows)]
    total = {kind: sum(row.seconds[kind] for row in found.rows) for kind in used}
    whole = sum(total.values()) or 1.0
    shares = [f"{kind} {seconds / whole:.0%}" for kind, seconds in total.items()]
    colours = [f"background:var(--run-{at % _RUNS});opacity:{1 if at < _RUNS else 0.55}" for at in range(len(used))]
    spans = "".join(
        f'<span style="flex-grow:{seconds / whole:.4f};{colour}" title="{kind}: {seconds:.1f} s"></span>'
        for colour, (kind, seconds) in zip(colours, total.items(), strict=True)
    )
    keys = "".join(
        f'<li><span class="square" style="{colour}"></span>{share}</li>'
        for colour, share in zip(colours, shares, strict=True)
    )
    rows = [
        [
            row.attempt.attempt,
            row.attempt.host,
            row.attempt.first,
            row.attempt.step,
            "ended" if row.attempt.ended else "lost",
        ]
        + [row.seconds[kind] for kind in used]
        for row in found.rows
    ]
    heads = ["attempt", "host", "first step", "last step", "end", *(f"{kind}, s" for kind in used)]
    return (
        f"<h3>{html.escape(run.label)}: goodput {found.fraction:.1%}, {found.useful_seconds:,.1f} s of useful steps in "
        f'{found.wall_seconds:,.1f} s</h3><div class="bar" role="img" aria-label="{", ".join(shares)}">{spans}</div>'
        f'<ul class="key">{keys}</ul>' + table(f"Attempts of {run.label}", heads, rows)
    )


# ---- What travels ---------------------------------------------------------------------------------------


def _plan(run: RunFiles) -> str:
    plan = run.plan
    if not plan:
        return ""
    by_axis = plan.get("wire_bytes_per_axis", {})
    buckets = [
        [at, each.get("bytes"), each.get("dtype"), len(leaves := each.get("leaves", [])), _names(leaves)]
        for at, each in enumerate(plan.get("buckets", []))
    ]
    planned: dict[str, list[int]] = {}
    for each in plan.get("planned", []):
        kind = f"{each['kind']} over {' and '.join(each['axes'])}"
        planned.setdefault(kind, []).append(each["elements"] * jnp.dtype(each["dtype"]).itemsize)
    kinds = [[kind, len(sizes), sum(sizes)] for kind, sizes in planned.items()]
    axes = ", ".join(f"{number_text(size)} bytes over {axis}" for axis, size in by_axis.items()) or "nothing is planned"
    return (
        f"<h3>{html.escape(run.label)}: {html.escape(str(plan.get('strategy', '')))}</h3>"
        f"<p><code>{html.escape(str(plan.get('expression', '')))}</code></p>"
        f"<p>The busiest device sends {number_text(plan.get('wire_bytes_per_step', 0))} bytes a step: "
        f"{html.escape(axes)}.</p>"
        + table("Collectives of a step", ["collective", "how many", "bytes"], kinds)
        + _folded("Buckets", table("Buckets", ["bucket", "bytes", "dtype", "leaves", "which"], buckets))
    )


def _names(leaves: Sequence[Any]) -> str:
    names = [str(leaf.get("name", leaf)) if isinstance(leaf, Mapping) else str(leaf) for leaf in leaves]
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


# ---- A step ---------------------------------------------------------------------------------------------

_ROW, _NAMES = 46, 86  # pixels: of a device's two lanes, of the names beside them


def _step(run: RunFiles) -> str:
    assert run.timeline is not None
    made: Timeline = run.timeline
    devices = (made.devices if len(made.devices) <= 8 else made.first_devices)[:8]
    rows = [
        [
            *(each.process, each.device, 1e3 * each.span.length, 1e3 * each.compute_seconds),
            *(1e3 * each.communication_seconds, 1e3 * each.exposed_seconds, each.overlap),
        ]
        for each in devices
    ]
    heads = ["process", "device", "step, ms", "compute, ms", "communication, ms", "exposed, ms", "overlap"]
    return (
        f"<h3>{html.escape(run.label)}: {html.escape(made.program)}, step {made.step}</h3>"
        f'<figure><div class="wide" tabindex="0" role="region" aria-label="A step of {html.escape(run.label)} in time">'
        f"{_bars(devices)}</div>"
        '<ul class="key"><li>grey: computation</li><li>coloured: a bucket travels while nothing is computed</li>'
        "<li>pale: a bucket travels beside computation</li></ul></figure>"
        + table(f"Totals of {run.label}", heads, rows)
    )


def _bars(devices: Sequence[DeviceStep]) -> str:
    end = max(each.span.end for each in devices)
    width, height = 900, _ROW * len(devices) + 24
    scale = (width - _NAMES) / end

    def bar(start: float, stop: float, top: float, tall: float, style: str, title: str = "") -> str:
        named = f"<title>{html.escape(title)}</title>" if title else ""
        return (
            f'<rect x="{_NAMES + scale * start:.2f}" y="{top:.1f}" width="{max(0.3, scale * (stop - start)):.2f}" '
            f'height="{tall}" style="{style}">{named}</rect>'
        )

    parts = [f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="computation and messages by device">']
    for row, each in enumerate(devices):
        top = _ROW * row
        parts.append(f'<text x="0" y="{top + 20}">device {each.process}.{each.device}</text>')
        parts += [bar(span.start, span.end, top + 3, 16, "fill:var(--compute)") for span in each.compute]
        for timed in each.collectives:
            pale = f"fill:var(--run-1);opacity:{1 - 0.65 * timed.hidden_fraction:.2f}"
            title = f"{timed.kind} of bucket {label_of(timed)}, {timed.bytes:,} bytes, {1e3 * timed.span.length:.2f} ms"
            parts.append(bar(timed.span.start, timed.span.end, top + 22, 16, pale, title))
    for value in ticks(0.0, 1e3 * end)[1:]:
        place = f'x="{_NAMES + scale * value / 1e3:.1f}" y="{height - 4}" text-anchor="middle"'
        parts.append(f"<text {place}>{number_text(value)} ms</text>")
    return "".join([*parts, "</svg>"])


# ---- Config, checkpoints, faults, environment -----------------------------------------------------------


def _configs(runs: Sequence[RunFiles]) -> str:
    keys = list(dict.fromkeys(key for run in runs for key in run.config))
    labels = [run.label for run in runs]
    different = [
        [key, *(_shown(run.config.get(key)) for run in runs)]
        for key in keys
        if len({json.dumps(run.config.get(key)) for run in runs}) > 1
    ]
    rows = [[key, *(_shown(run.config.get(key)) for run in runs)] for key in keys]
    return table("Keys that differ", ["key", *labels], different) + _folded(
        f"All {len(keys)} keys", table("The whole config", ["key", *labels], rows)
    )


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _checkpoints(run: RunFiles) -> str:
    rows = [
        [each.step, each.bytes, datetime.fromtimestamp(each.time, UTC).strftime("%Y-%m-%d %H:%M:%S")]
        for each in run.saved
    ]
    return table(f"Checkpoints of {run.label}", ["step", "bytes", "saved, UTC"], rows)


def _faults(run: RunFiles) -> str:
    said = list(_said(run)) or ["nothing that is known"]
    return f"<h3>{html.escape(run.label)}</h3><ul>{''.join(f'<li>{html.escape(each)}</li>' for each in said)}</ul>"


_COUNTED = {
    "skipped_steps": "steps were skipped, whose loss or gradient was not finite",
    "loss_spikes": "times the loss jumped",
    "rollbacks": "times the run went back to a checkpoint",
    "damaged_records": "damaged records were left out",
}


def _said(run: RunFiles) -> Iterator[str]:
    rows = run.goodput.rows if run.goodput else []
    for attempt in (row.attempt for row in rows[:-1] if not row.attempt.ended):
        yield f"attempt {attempt.attempt} ended without a word at step {attempt.step:,}, on {attempt.host}"
    if run.goodput and run.goodput.lost_steps:
        yield f"{run.goodput.lost_steps:,} steps were done again"
    for name, what in _COUNTED.items():
        if isinstance(count := run.summary.get(name), int) and count:
            yield f"{count:,} {what}"
    if run.summary.get("not_saved"):
        yield f"not saved: {run.summary['not_saved']}"
    for row in rows:
        yield from (f"attempt {row.attempt.attempt}: {each}" for each in stragglers(row.attempt.ranks))
    yield from run.notes


def _environments(runs: Sequence[RunFiles]) -> str:
    found = [run.plan.get("environment", {}) for run in runs]
    keys = list(dict.fromkeys(key for each in found for key in each))
    rows = [[key, *(str(each.get(key, "")) for each in found)] for key in keys]
    return table("Versions and machine of the last attempt", ["", *(run.label for run in runs)], rows)
