"""Write requirements.lock: the exact versions that a release is tested with, for every Python we support.

    python tools/lock.py python3.11 python3.12 python3.13

Each interpreter resolves the extras `dev`, `docs` and `notebooks` to the newest versions; nothing is installed.
A package whose version differs between them, or that only some of them need, gets a marker.
"""

import json
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HEADER = """\
# The versions that jaxnet is tested with: pip install -c requirements.lock -e '.[dev]'
# Written by `make lock` for Python {pythons}; do not edit.
"""


def resolve(interpreter: str) -> tuple[str, dict[str, str]]:
    """The interpreter's version, as in 3.11, and the version of every package that it would install."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([interpreter, "-m", "venv", folder], check=True)
        pip = [f"{folder}/bin/python", "-m", "pip", "--quiet"]
        subprocess.run([*pip, "install", "--upgrade", "pip"], check=True)
        report_file = Path(folder, "report.json")
        subprocess.run(
            [*pip, "install", "--dry-run", "--report", str(report_file), ".[dev,docs,notebooks]"],
            cwd=ROOT,
            check=True,
        )
        report = json.loads(report_file.read_text())
    versions = {
        re.sub(r"[-_.]+", "-", item["metadata"]["name"]).lower(): item["metadata"]["version"]
        for item in report["install"]
    }
    del versions["jaxnet"]
    return report["environment"]["python_version"], versions


def merge(resolved: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    """Requirement lines in the order of their names, from {python version: {package: version}}."""
    pythons: dict[tuple[str, str], list[str]] = defaultdict(list)
    for python, versions in resolved.items():
        for requirement in versions.items():
            pythons[requirement].append(python)
    for (name, version), needed_by in sorted(pythons.items()):
        marker = " or ".join(f'python_version == "{python}"' for python in needed_by)
        yield f"{name}=={version}" + (f" ; {marker}" if len(needed_by) < len(resolved) else "")


if __name__ == "__main__":
    resolved = dict(map(resolve, sys.argv[1:]))
    lines = [HEADER.format(pythons=", ".join(resolved)), *(f"{line}\n" for line in merge(resolved))]
    (ROOT / "requirements.lock").write_text("".join(lines))
