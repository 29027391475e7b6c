"""Run on each host of `jaxnet launch ssh`: start the host's processes, and end them when the connection ends.

This is a file of its own because its text travels over ssh to a host that need have nothing but Python 3.10. It
imports the standard library only.

Its input, after its own text, is one order (a line of JSON). Each later line is the name of a signal to pass on, or is
empty, which says that the launcher is alive. When the input ends, or no line comes for too long, the agent kills the
processes with all that they started. There is no terminal, which would mix output and errors, and no value passes
through a shell.

If the order has a mark, the agent also reports the processes' progress, which they write into private files.
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
    """The processes of one order.

    Threads wait for input, for output and for processes to end. They put what happens into `_events`, which `run`
    handles one by one, so that only one thread changes the state.
    """

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
        """The status of the first process that failed, as a shell reports it, or 0."""
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
        # The earlier of two deadlines: processes that got SIGTERM must end, and a sign of life must come.
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
        # `unset` names variables of another job, which a login may set.
        kept = {name: value for name, value in os.environ.items() if name not in self._order["unset"]}
        process = subprocess.Popen(
            self._order["command"],
            cwd=self._order["directory"],
            env=kept | self._order["environment"] | own,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=_die_with_parent,  # safe: this process has no other thread yet
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
        _kill_group(pid)  # whatever it started and left behind
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
        with self._writing, suppress(OSError):  # the connection may have ended
            sink.write(line)
            sink.flush()

    def _keep_telling(self) -> None:
        while not self._ended.wait(_TELL_SECONDS):
            self._tell()
        self._tell()

    def _tell(self) -> None:
        """Write `MARK FIRST AGE STEP`, if it is news and all processes have done a step.

        AGE is how long ago the first step was done, because clocks of two hosts differ. See `jaxnet.cluster.progress`.
        """
        found = []
        for own in self._order["own"]:
            try:
                first, began, step = Path(own["JAXNET_PROGRESS_FILE"]).read_text().split()
            except (OSError, ValueError):  # no step yet
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
    # os._exit: one thread still reads the input, and others may wait on a connection that takes no more output.
    os._exit(Agent(json.loads(sys.stdin.buffer.readline())).run())
