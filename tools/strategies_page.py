"""Write docs/strategies.md: every strategy with its drawing, what it says of itself, and what it sends.

    python tools/strategies_page.py

Everything on the page comes from the strategies themselves. A test compares it with what is there.
"""

import inspect
from collections.abc import Iterator
from pathlib import Path

import jax

from jaxnet.comm import DEVICE, HOST, STRATEGIES, Averaging, Strategy, settings_of, wire_bytes_per_axis
from jaxnet.report.travel import drawings

ROOT = Path(__file__).resolve().parent.parent
PAGE = "docs/strategies.md"
PICTURES = "docs/images/strategies"
HOSTS, DEVICES = 2, 4
_SIZES = {HOST: HOSTS, DEVICE: DEVICES}
_GRADIENT = [jax.ShapeDtypeStruct((1024, 1024), "float32")]
_WHEN = {
    "xla": "when XLA decides",
    "during": "during backward, as soon as its gradients are there",
    "after": "after all of backward",
    "priority": "during backward and the next forward, what the next forward needs first",
    "deferred": "summed in shards, which the next forward gathers",
    "local": "every few steps, parameters instead of gradients",
}
_HEAD = """\
# The strategies

Written by `python tools/strategies_page.py`, from the strategies themselves. Choose one with `strategy=NAME`, set what
it takes with `strategy=NAME:key=value`, and its bucket size with `bucket_bytes`.

`strategy=NAME` takes other sizes than the function on some platforms: `hierarchical` buckets of 4 MiB on CPUs, `zero`
of 25 MiB on GPUs, `torus` and `halving_doubling` larger pieces on GPUs and TPUs. On TPUs all that scatter over a host
take buckets of 16 MiB: `hierarchical`, `blueconnect`, `zero`, `powersgd`, `local_sgd`, `post_local_sgd`, `bmuf`.

The drawings show one message on two hosts of four devices: a row is a host. Devices in one outline add up, share out or
gather with each other; an arrow is a message from one device to another; below stands what each device gives into the
round. They are read off the program that the strategy traces; `jaxnet strategies --drawings FOLDER` draws them for any
mesh.

*Sends* is what the busiest device sends for a gradient of 4 MiB, relative to those 4 MiB. A ring over all eight devices
sends 1.75, and no exact sum sends less in all. How to choose: [communication](guide/communication.md).

"""


def page() -> str:
    """The text of the page."""
    return _HEAD + "\n".join("\n".join(_section(make())) for make in STRATEGIES.values())


def pictures() -> dict[str, str]:
    """The drawings, by file name."""
    return {f"{name}.svg": text for name, text in drawings(HOSTS, DEVICES).items()}


def _section(strategy: Strategy) -> Iterator[str]:
    name = strategy.name
    yield f"## `{name}`\n"
    said = inspect.getdoc(STRATEGIES[name]) or ""
    yield said.partition("\n\nArgs:")[0].rstrip() + "\n"
    if strategy.reducer is not None:
        yield f"![{name}: the rounds of a message between eight devices](images/strategies/{name}.svg)\n"
        yield f"- *Is*: `{strategy.expression}`"
    yield f"- *Travels* {_WHEN[strategy.when]}; {'exact' if strategy.exact else 'not exact: fewer bits, or later'}."
    if sent := _sent(strategy):
        every = f", every {strategy.schedule.every} steps" if isinstance(strategy.schedule, Averaging) else ""
        yield f"- *Sends*: {sent}{every}."
    if settings := settings_of(name):
        yield f"- *Takes*: {', '.join(f'`{key}={value}`'.lower() for key, value in settings.items())}."
    yield ""


def _sent(strategy: Strategy) -> str:
    if strategy.reducer is None:
        return ""
    whole = sum(leaf.size * leaf.dtype.itemsize for leaf in _GRADIENT)
    found = wire_bytes_per_axis(strategy.reducer.plan(_GRADIENT, _SIZES).collectives)
    names = {HOST: "across hosts", DEVICE: "inside a host", f"{HOST}+{DEVICE}": "over both axes at once"}
    return ", ".join(f"{size / whole:.3g} {names[axis]}" for axis, size in found.items())


def write() -> None:
    """Write the page and the drawings."""
    (ROOT / PAGE).write_text(page())
    folder = ROOT / PICTURES
    folder.mkdir(exist_ok=True)
    for name, text in pictures().items():
        (folder / name).write_text(text + "\n")


if __name__ == "__main__":
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", HOSTS * DEVICES)
    write()
