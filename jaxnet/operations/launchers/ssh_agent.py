"""On a host of `jaxnet launch ssh`: that host's processes, which end when the connection to the launcher does.

It travels over the connection as text and imports nothing of ours, so that a host needs no more for it than
Python. After its text, its input is one order (a line of JSON), and then a line now and then: the name of a signal
to pass on, or nothing, which says that the launcher is still there. When the input ends, or nothing comes for
too long, the processes are killed with all that they started. Nothing goes through a terminal, which would mix
up output and errors, and no value through a shell.

Asked to, it tells between the lines of output how far its processes have come, which they write into private files.
"""

import ctypes
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

_PR_SET_PDEATHSIG = 1
_DRAIN_SECONDS = 2.0
_TELL_SECONDS = 0.5
_LONGEST_LINE = 1 << 20


class Agent:
    """The processes of one order; `run` returns the status of the first that failed, as a shell reports it."""

    def __init__(self, order: dict[str, Any]):
        self._order = order
        self._events: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self._writing = threading.Lock()
        self._pumps: list[threading.Thread] = []
        self._status = 0
        self._kill_at = float("inf")
        self._silence: float = order["silence_seconds"]
        self._told = ""
        self._ended = threading.Event()

    def run(self) -> int:
        if not self._order["mark"]:
            return self._run()
        with tempfile.TemporaryDirectory(prefix="jaxnet-") as folder:
            for own in self._order["own"]:
                own["JAXNET_PROGRESS_FILE"] = f"{folder}/{own['JAX_PROCESS_ID']}"
            return self._run()

    def _run(self) -> int:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda number, _frame: self._events.put(("line", signal.Signals(number).name)))
        try:
            for own in self._order["own"]:
                self._start(own)
        except OSError as error:
            print(
                f"error: cannot run {self._order['command'][0]} in {self._order['directory']}: {error}", file=sys.stderr
            )
            self._kill()
            return 1
        self._watch_all()
        silent_at = time.monotonic() + self._silence
        while self._running:
            left = min(self._kill_at, silent_at) - time.monotonic()
            try:
                kind, what = self._events.get(timeout=max(left, 0))
            except queue.Empty:
                kind, what = "closed", None
            if kind == "ended":
                self._on_end(*what)
            elif kind == "line":
                silent_at = time.monotonic() + self._silence
                self._signal(what)
            else:
                self._kill()
                self._kill_at = silent_at = time.monotonic() + self._silence
        self._ended.set()
        give_up = time.monotonic() + _DRAIN_SECONDS
        for pump in self._pumps:
            pump.join(max(give_up - time.monotonic(), 0))
        return self._status

    def _start(self, own: dict[str, str]) -> None:
        kept = {name: value for name, value in os.environ.items() if name not in self._order["unset"]}
        process = subprocess.Popen(
            self._order["command"],
            cwd=self._order["directory"],
            env=kept | self._order["environment"] | own,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=_die_with_parent,  # there is no other thread yet
        )
        self._running[process.pid] = process

    def _watch_all(self) -> None:
        several = len(self._running) > 1
        for process, own in zip(list(self._running.values()), self._order["own"], strict=True):
            prefix = f"[{own['JAX_PROCESS_ID']}] ".encode() if several else b""
            for source, sink in ((process.stdout, sys.stdout.buffer), (process.stderr, sys.stderr.buffer)):
                self._pumps.append(threading.Thread(target=self._pass_on, args=(prefix, source, sink), daemon=True))
            threading.Thread(target=self._await_end, args=(process,), daemon=True).start()
        if self._order["mark"]:
            self._pumps.append(threading.Thread(target=self._keep_telling, daemon=True))
        for pump in self._pumps:
            pump.start()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        for line in sys.stdin.buffer:
            self._events.put(("line", line.decode().strip()))
        self._events.put(("closed", None))

    def _await_end(self, process: "subprocess.Popen[bytes]") -> None:
        self._events.put(("ended", (process.pid, process.wait())))

    def _on_end(self, pid: int, returncode: int) -> None:
        del self._running[pid]
        _kill_group(pid)  # what it started and left behind
        if returncode != 0 and self._status == 0:
            self._status = 128 - returncode if returncode < 0 else returncode
            self._kill_at = time.monotonic() + self._order["grace_seconds"]
            self._signal("SIGTERM")

    def _signal(self, name: str) -> None:
        if name:
            for process in self._running.values():
                process.send_signal(signal.Signals[name])

    def _kill(self) -> None:
        for pid in self._running:
            _kill_group(pid)

    def _pass_on(self, prefix: bytes, source: Any, sink: Any) -> None:
        for line in iter(lambda: source.readline(_LONGEST_LINE), b""):
            self._write(sink, prefix + line if line.endswith(b"\n") else prefix + line + b"\n")

    def _write(self, sink: Any, line: bytes) -> None:
        with self._writing, suppress(OSError):  # of a connection that has ended
            sink.write(line)
            sink.flush()

    def _keep_telling(self) -> None:
        while not self._ended.wait(_TELL_SECONDS):
            self._tell()
        self._tell()

    def _tell(self) -> None:
        """Say `MARK FIRST AGE STEP` once all have done a step, as `jaxnet.cluster.progress` has it, if it is news."""
        found = []
        for own in self._order["own"]:
            try:
                first, began, step = Path(own["JAXNET_PROGRESS_FILE"]).read_text().split()
            except (OSError, ValueError):  # not yet
                return
            found.append((int(first), float(began), int(step)))
        first, began, step = (max(values) for values in zip(*found, strict=True))
        if self._told != (told := f"{first} {began} {step}"):
            self._told = told
            line = f"{self._order['mark']} {first} {time.monotonic() - began:.3f} {step}\n"
            self._write(sys.stdout.buffer, line.encode())


def _die_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _kill_group(group: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    # At once: one thread still reads the input, and others may wait for a connection that takes no more output.
    os._exit(Agent(json.loads(sys.stdin.buffer.readline())).run())
