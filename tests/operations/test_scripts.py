"""Files that run alone, by path or as text over ssh: they import the standard library only."""

import ast
import sys

import pytest

from support.programs import ROOT

OPERATIONS = ROOT / "jaxnet/operations"
SCRIPTS = [
    "lab/kernel.py",
    "launchers/ssh_agent.py",
    "launchers/ssh_client.py",
    "launchers/free_port.py",
    "tether.py",
]


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_needs_the_standard_library_only(script):
    imported = set()
    for node in ast.walk(ast.parse((OPERATIONS / script).read_text())):
        if isinstance(node, ast.Import):
            imported |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            imported.add(node.module)
    assert imported
    assert {name.partition(".")[0] for name in imported} <= sys.stdlib_module_names
