"""A report's page over HTTP, which follows its runs: made anew when they have written more."""

import threading
from collections.abc import Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from jaxnet.errors import InputError
from jaxnet.report.page import page
from jaxnet.report.run_files import read_run

_FOLLOWED = ("metrics.jsonl", "ledger.jsonl", "summary.json", "config.json")
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; connect-src 'self'"


def version_of(workdirs: Mapping[str, Path]) -> str:
    """Another text whenever one of these runs has written."""
    found = []
    for workdir in workdirs.values():
        for name in _FOLLOWED:
            try:
                about = (workdir / name).stat()
                found.append(f"{about.st_mtime_ns:x}.{about.st_size:x}")
            except OSError:
                found.append("-")
    return " ".join(found)


def page_server(workdirs: Mapping[str, Path], address: str, port: int) -> ThreadingHTTPServer:
    """A server of the page of these runs, by label. It answers GET of `/` and of `/version`, and nothing else.

    Raises:
        OSError: it cannot listen there.
        InputError: one of them is the workdir of no run.
    """
    made = _Page(workdirs)
    made.now()

    class Handler(BaseHTTPRequestHandler):
        def handle(self) -> None:
            with suppress(ConnectionError):  # a browser that has gone away
                super().handle()

        def do_GET(self) -> None:
            try:
                found = {"/": made.now, "/version": lambda: version_of(workdirs)}.get(self.path.partition("?")[0])
                if found is None:
                    return self._answer(404, "text/plain", "there is / and /version")
                self._answer(200, "text/html" if found == made.now else "text/plain", found())
            except InputError as error:  # a run that is moved away, or half a file
                self._answer(503, "text/plain", f"{error}\n")

        def _answer(self, status: int, kind: str, text: str) -> None:
            content = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(content)))
            self.send_header("Content-Security-Policy", _POLICY)
            self.send_header("X-Content-Type-Options", "nosniff")
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer((address, port), Handler)
    server.daemon_threads = True
    return server


class _Page:
    """The page, and the version of the runs that it was made of."""

    def __init__(self, workdirs: Mapping[str, Path]) -> None:
        self._workdirs, self._version, self._text = workdirs, "", ""
        self._lock = threading.Lock()

    def now(self) -> str:
        """The page of what is written by now."""
        with self._lock:
            if (version := version_of(self._workdirs)) != self._version:
                runs = [read_run(label, workdir) for label, workdir in self._workdirs.items()]
                self._text, self._version = page(runs, live=version), version
            return self._text
