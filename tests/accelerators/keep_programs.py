"""Write tests/comm/programs anew: what the compilers make of small steps, without what no test reads.

PYTHONPATH=.venv-compilers:tests:. python tests/accelerators/keep_programs.py

With JAX 0.10; a later one writes some of them beside those, with its version in the name.
"""

import dataclasses
import json
import re
from pathlib import Path

import jax

from jaxnet.comm import programs_in
from jaxnet.cost.accelerators import Cluster, prepare_compilers
from jaxnet.training.prepare import prepare
from support.described import config

FOLDER = Path(__file__).parents[1] / "comm/programs"
KEPT = [
    *[("h100:2x2", name) for name in ("ddp", "hierarchical", "zero", "int8")],
    *[("v5e:4x4", name) for name in ("ddp", "hierarchical", "zero", "fp16")],
    ("v5e:2x2", "torus"),
    *[("v5e:2x2/2", name) for name in ("ddp", "flat", "hierarchical", "zero", "torus", "fp16", "int8")],
]
KEPT_LATER = [
    *[("h100:2x2", name) for name in ("ddp", "hierarchical", "zero", "int8", "torus")],
    *[("v5e:4x4", name) for name in ("ddp", "hierarchical")],
]
_TABLES = ("//", "FileNames", "FunctionNames", "FileLocations", "StackFrames")
_COLLECTIVE = re.compile(r" (all-|reduce-scatter|collective-|send|recv|dot\(|convolution\(|custom-call\()")


def main() -> None:
    """Compile each, and keep it."""
    prepare_compilers()
    FOLDER.mkdir(exist_ok=True)
    version = ".".join(jax.__version__.split(".")[:2])
    first = version == "0.10"
    for cluster, strategy in KEPT if first else KEPT_LATER:
        experiment = prepare(config(strategy, depth=1), Cluster.named(cluster).mesh())
        head = {
            "cluster": cluster,
            "strategy": strategy,
            "axis_sizes": dict(experiment.mesh.shape),
            "planned": [dataclasses.asdict(collective) for collective in experiment.sends.collectives],
        }
        name = re.sub(r"\W", "_", f"{cluster}_{strategy}" if first else f"{cluster}_{strategy}_jax_{version}")
        text = shortened(experiment.compiled().as_text() or "")
        (FOLDER / f"{name}.hlo").write_text(f"// {json.dumps(head)}\n{text}")
        print(name, len(text))


def shortened(hlo: str) -> str:
    """The entry's lines, and of other computations those that a test reads; neither metadata nor configuration."""
    [program] = programs_in(hlo)
    entry = {each.name for each in program.entry}
    kept = []
    for line in hlo.splitlines():
        line = _without(_without(line, ", metadata={"), ", backend_config={")
        match = re.match(r"\s+(?:ROOT )?%?([\w.\-]+) = ", line)
        if line.startswith(_TABLES) or re.match(r"\d", line):
            continue
        if match is None or match[1] in entry or _COLLECTIVE.search(line) or " parameter(" in line:
            kept.append(line.rstrip())
    return _without_empty("\n".join(kept))


def _without_empty(text: str) -> str:
    """Leave out computations that say nothing: no collective and no product."""
    blocks = re.split(r"\n(?=%|ENTRY)", text)
    return "\n".join(block for block in blocks if not block.startswith("%") or _COLLECTIVE.search(block)) + "\n"


def _without(line: str, opening: str) -> str:
    """A line without an attribute in braces."""
    begin = line.find(opening)
    if begin < 0:
        return line
    depth, place = 1, begin + len(opening)
    while depth and place < len(line):
        depth += {"{": 1, "}": -1}.get(line[place], 0)
        place += 1
    return line[:begin] + line[place:]


if __name__ == "__main__":
    main()
