"""SIGTERM is noticed in this process, and in no child of it."""

import signal
import subprocess
import sys

from support.programs import clean_environment

PROGRAM = """
import os, signal, time
from jaxnet.cluster.told import told
told.notice()
child = os.fork()
if child == 0:
    signal.pause()
os.kill(child, signal.SIGTERM)
print("the child", os.waitpid(child, 0)[1])
{then}
print("told", told.is_set())
"""


def printed(then):
    command = [sys.executable, "-c", PROGRAM.format(then=then)]
    return subprocess.check_output(command, env=clean_environment(), text=True).splitlines()


def test_a_forked_child_has_its_own_signals():
    assert printed("") == [f"the child {signal.SIGTERM:d}", "told False"]


def test_it_is_noticed_by_a_thread_alone():
    """As where the main thread does not come back to Python: its handler is taken away here."""
    then = "told._on_signal = None; signal.signal(signal.SIGTERM, lambda *_: None)\n"
    then += "os.kill(os.getpid(), signal.SIGTERM)\nwhile not told.is_set(): time.sleep(0.01)"
    assert printed(then)[-1] == "told True"


OTHER = """
import os, signal
from jaxnet.cluster.told import told
reading, writing = os.pipe()
os.set_blocking(writing, False)
signal.set_wakeup_fd(writing)
signal.signal(signal.SIGTERM, lambda *_: None)
told.notice()
signal.raise_signal(signal.SIGTERM)
print(told.is_set(), os.read(reading, 9), signal.set_wakeup_fd(-1) == writing)
"""


def test_the_pipe_of_another_stays_its_own():
    out = subprocess.check_output([sys.executable, "-c", OTHER], env=clean_environment(), text=True)
    assert out == "False b'\\x0f' True\n"
