"""One connection of `jaxnet launch ssh`, as a script: ssh, fed with what the host's agent is to do.

It stands between the launcher and ssh because SIGTERM would end ssh and leave the remote processes to be killed:
signals go to them as lines of input. It imports nothing of ours; its order is JSON in the variable JAXNET_SSH_ORDER.
"""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from typing import Any

_BEAT_SECONDS = 5.0
_LONGEST_LINE = 1 << 20


def connect(command: list[str], lines: list[str], log: Any) -> int:
    """Run the ssh `command`, say `lines` to it and pass on signals; the result is the remote exit status."""
    said: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _frame: said.put(signal.Signals(number).name))
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    writing = threading.Lock()
    pumps = [
        threading.Thread(target=_copy, args=(source, sink, log, writing), daemon=True)
        for source, sink in ((process.stdout, sys.stdout.buffer), (process.stderr, sys.stderr.buffer))
    ]
    for pump in pumps:
        pump.start()
    threading.Thread(target=_await_end, args=(process, said), daemon=True).start()
    _say(process, "".join(line + "\n" for line in lines))
    while process.poll() is None:
        try:
            line = said.get(timeout=_BEAT_SECONDS)
        except queue.Empty:
            line = ""
        if line is not None:
            _say(process, line + "\n")
    for pump in pumps:
        pump.join()
    return process.returncode


def _await_end(process: "subprocess.Popen[bytes]", said: "queue.SimpleQueue[str | None]") -> None:
    process.wait()
    said.put(None)  # which wakes the one that waits for a line


def _say(process: "subprocess.Popen[bytes]", text: str) -> None:
    assert process.stdin is not None
    with suppress(BrokenPipeError):  # it has ended, and its status says how
        process.stdin.write(text.encode())
        process.stdin.flush()


def _copy(source: Any, sink: Any, log: Any, writing: threading.Lock) -> None:
    for line in iter(lambda: source.readline(_LONGEST_LINE), b""):
        with writing:
            if log is not None:
                log.write(line)
            with suppress(OSError):
                sink.write(line)
                sink.flush()


if __name__ == "__main__":
    order = json.loads(os.environ.pop("JAXNET_SSH_ORDER"))
    log = open(order["log"], "ab", buffering=0) if order["log"] else None  # noqa: SIM115, PTH123 as long as the process
    status = connect(order["ssh"], order["lines"], log)
    if status == 255:
        print(
            f"error: the connection to {order['host']} failed or was lost (ssh status 255)", file=sys.stderr, flush=True
        )
    sys.exit(128 - status if status < 0 else status)
