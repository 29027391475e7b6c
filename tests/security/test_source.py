"""No line of the program turns bytes that it reads into code, or reads a socket without limits; what may, is listed."""

import ast

import pytest

from support.programs import ROOT

PROGRAM = [ROOT / "train.py", *sorted((ROOT / "jaxnet").rglob("*.py")), *sorted((ROOT / "tools").rglob("*.py"))]

# Whose readers run what they read.
MODULES = {"pickle", "_pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve", "yaml", "code", "pty"}
BUILTINS = {"eval", "exec", "compile", "__import__"}
# The last part of a name that is called, whatever it is called on.
CALLS = {"system", "popen", "getoutput", "getstatusoutput", "mktemp", "exec_module", "run_path"}
# What reads from sockets or waits for callers. A limit for each piece is none for a message in many pieces.
SOCKETS = {"accept", "makefile", "recv", "recv_into", "recvfrom", "recvmsg", "serve_forever", "start_server"}
# A config is a Python program, and its documentation says so.
# A config is a program; the front door imports what a table beside it names.
ALLOWED = {
    ("jaxnet/config/file.py", "exec_module()"),
    ("jaxnet/cluster/messages.py", "accept()"),
    ("jaxnet/cluster/messages.py", "recv()"),
    ("jaxnet/notebook.py", "import pickle"),  # between processes of one user, in a directory of theirs
    ("jaxnet/notebook.py", "import cloudpickle"),
    ("jaxnet/cli/report.py", "serve_forever()"),  # two fixed paths, on loopback unless told otherwise
    ("jaxnet/__init__.py", "import_module() of a name that is not written there"),
}


def offences(text):
    """What a program does that it must not, with its line."""
    for node in ast.walk(ast.parse(text)):
        yield from ((node.lineno, what) for what in of_node(node))


def of_node(node):
    if isinstance(node, ast.Import):
        yield from (f"import {name.name}" for name in node.names if name.name.split(".")[0] in MODULES)
    if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in MODULES:
        yield f"import {node.module}"
    if isinstance(node, ast.Name) and node.id in BUILTINS:
        yield node.id
    if isinstance(node, ast.Call):
        yield from of_call(node)


def of_call(node):
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    if name in CALLS | SOCKETS and ast.unparse(node.func) != "platform.system":
        yield f"{name}()"
    if name == "import_module" and not isinstance(node.args[0], ast.Constant):
        yield "import_module() of a name that is not written there"
    for keyword in node.keywords:
        off = isinstance(keyword.value, ast.Constant) and keyword.value.value is False
        if keyword.arg in ("shell", "allow_pickle") and not off:
            yield f"{keyword.arg}="


def test_nothing_that_is_read_can_run():
    found = {(str(path.relative_to(ROOT)), what): line for path in PROGRAM for line, what in offences(path.read_text())}
    assert found.keys() == ALLOWED, {place: line for place, line in found.items() if place not in ALLOWED}


@pytest.mark.parametrize(
    ("text", "what"),
    {
        "eval(text)": "eval",
        "run = exec": "exec",
        "import numpy, pickle": "import pickle",
        "from yaml import load": "import yaml",
        "os.system(text)": "system()",
        "subprocess.run(text, shell=True)": "shell=",
        "subprocess.run(text, shell=asked)": "shell=",
        "np.load(path, allow_pickle=True)": "allow_pickle=",
        "tempfile.mktemp()": "mktemp()",
        "peer.recv(4096)": "recv()",
        "peer.makefile('rb').readline()": "makefile()",
        "importlib.import_module(name)": "import_module() of a name that is not written there",
    }.items(),
)
def test_each_is_found(text, what):
    assert [what for _, what in offences(text)] == [what]


@pytest.mark.parametrize(
    "text",
    [
        "re.compile(text)",
        "np.load(path, allow_pickle=False)",
        "subprocess.run([program], shell=False)",
        "importlib.import_module('mpi4py.MPI')",
        "import pickletools",
        "platform.system()",
    ],
)
def test_what_is_harmless_is_not(text):
    assert list(offences(text)) == []
