"""Run here for each host of `jaxnet launch ssh`: hold one ssh connection and feed the agent behind it.

This is a file of its own because each connection is a process, started by path with `python -I -S`: it may import
the standard library only. It stands between launcher and ssh because SIGTERM would end ssh at once and leave the
remote processes to be killed. Signals go to the agent as lines of input instead.

Its order is JSON in the variable JAXNET_SSH_ORDER. Output lines that begin with the order's mark report progress. They
go into the file that the launcher reads, with times of this host's clock.
"""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

_LONGEST_LINE = 1 << 20


def connect(command: list[str], lines: list[str], log: Any, beat_seconds: float, take: Callable[[bytes], bool]) -> int:
    """Run the ssh `command`, send it `lines`, pass on signals; return the remote exit status.

    Args:
        command: ssh and its arguments.
        lines: its first input.
        log: a file for the output, or None.
        beat_seconds: between two empty lines, which tell the agent that this end is alive.
        take: gets each line of output first and returns whether to leave it out.
    """
    # A signal handler may put into a SimpleQueue at any moment, even while this thread waits in `get`.
    said: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _frame: said.put(signal.Signals(number).name))
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    writing = threading.Lock()
    pumps = [
        threading.Thread(target=_copy, args=(source, sink, log, writing, take), daemon=True)
        for source, sink in ((process.stdout, sys.stdout.buffer), (process.stderr, sys.stderr.buffer))
    ]
    for pump in pumps:
        pump.start()
    threading.Thread(target=_await_end, args=(process, said), daemon=True).start()
    _say(process, "".join(line + "\n" for line in lines))
    while process.poll() is None:
        try:
            line = said.get(timeout=beat_seconds)
        except queue.Empty:
            line = ""
        if line is not None:
            _say(process, line + "\n")
    for pump in pumps:
        pump.join()
    return process.returncode


def _await_end(process: "subprocess.Popen[bytes]", said: "queue.SimpleQueue[str | None]") -> None:
    process.wait()
    said.put(None)  # wake the loop that waits for a line


def _say(process: "subprocess.Popen[bytes]", text: str) -> None:
    assert process.stdin is not None
    with suppress(BrokenPipeError):  # ssh has ended; its status says how
        process.stdin.write(text.encode())
        process.stdin.flush()


def _copy(source: Any, sink: Any, log: Any, writing: threading.Lock, take: Callable[[bytes], bool]) -> None:
    for line in iter(lambda: source.readline(_LONGEST_LINE), b""):
        if take(line):
            continue
        with writing:
            if log is not None:
                with suppress(OSError):  # a full disk costs lines of the file, not of the output
                    log.write(line)
            with suppress(OSError):
                sink.write(line)
                sink.flush()


class ProgressFile:
    """Takes lines `MARK FIRST AGE STEP` and writes a progress file, see `jaxnet.cluster.progress`."""

    def __init__(self, mark: str, path: str) -> None:
        self._mark, self._path = mark.encode(), path
        self._began = ""

    def take(self, line: bytes) -> bool:
        words = line.split()
        if words[:1] != [self._mark] or len(words) != 4:
            return False
        first, age, step = (float(word) for word in words[1:])
        self._began = self._began or f"{first:.0f} {time.monotonic() - age!r}"
        with suppress(OSError):  # the job is worth more than its progress file
            file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.pwrite(file, f"{self._began} {step:.0f}\n".encode(), 0)
            finally:
                os.close(file)
        return True


if __name__ == "__main__":
    order = json.loads(os.environ.pop("JAXNET_SSH_ORDER"))
    log = open(order["log"], "ab", buffering=0) if order["log"] else None  # noqa: SIM115, PTH123 open until the process ends
    path = os.environ.get("JAXNET_PROGRESS_FILE")
    take = ProgressFile(order["mark"], path).take if order["mark"] and path else lambda line: False
    status = connect(order["ssh"], order["lines"], log, order["beat_seconds"], take)
    if status == 255:
        print(
            f"error: the connection to {order['host']} failed or was lost (ssh status 255)", file=sys.stderr, flush=True
        )
    sys.exit(128 - status if status < 0 else status)
