"""A timeline and a page of its findings, served to the browser of this machine's user.

Every user of the machine and every page in a browser could ask on the port. So what is the run's
has a secret path, requests must name this server as their host, and of other pages only Perfetto's
may read the timeline, if that page is used.
"""

from __future__ import annotations

import contextlib
import http.server
import mimetypes
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from commtrace.errors import UsageError

__all__ = ["PAGE", "PORT", "Server", "serving"]

PAGE = "https://ui.perfetto.dev"
PORT = 9001
"""The only local port that Perfetto's page may read from."""
_POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-eval' 'unsafe-inline'; "
    "style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; font-src 'self' data:; "
    "connect-src 'self' blob: data:; worker-src 'self' blob:; object-src 'none'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
"""What the bundled UI needs; without it, it would ask the internet."""
_TRACE = "run.pftrace.gz"


class Server(http.server.ThreadingHTTPServer):
    """Serves ``timeline``, ``ui`` by path if it is here, and a page of findings.

    ``page`` is Perfetto's, ``trace`` and ``home`` are the addresses of timeline and findings.
    ``findings`` makes the page of findings from a nonce for its style and script.
    """

    daemon_threads = True

    def __init__(self, timeline: Path, ui: Mapping[str, Path], port: int) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.timeline, self.ui = timeline, ui
        self.host = f"127.0.0.1:{self.server_port}"
        self.path = f"/{secrets.token_urlsafe(16)}/"
        self.home = f"http://{self.host}{self.path}"
        self.trace = self.home + _TRACE
        self.page = f"http://{self.host}" if ui else PAGE
        self.asked_at, self.was_fetched = time.monotonic(), False
        self.findings: Callable[[str], str] = "".join

    def wait(self, patience_s: float, idle_s: float) -> None:
        """Until nobody has come for the timeline in time, or nobody who did asks any more."""
        while True:
            limit = idle_s if self.was_fetched else patience_s
            left = self.asked_at + limit - time.monotonic()
            if left <= 0:
                return
            time.sleep(min(left, 0.5))


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        """The timeline, the findings, the UI; the findings' page says that it is still open."""
        here, is_trace = self.server, self.path == f"{self.server.path}{_TRACE}"
        if not self._is_allowed(is_trace):
            self.send_error(403)
            return
        if is_trace:
            self._send_file(here.timeline, "application/octet-stream")
            here.was_fetched = True
        elif self.path == here.path:
            nonce = secrets.token_urlsafe(16)
            self._send(here.findings(nonce).encode(), "text/html; charset=utf-8", _of_page(nonce))
        elif self.path == f"{here.path}alive":
            self._send(b"", "text/plain", _of_page(""))
        elif (file := here.ui.get(self.path)) is not None:
            self._send_file(file, _kind(file))
        else:
            self.send_error(404)
            return
        here.asked_at = time.monotonic()

    def do_OPTIONS(self) -> None:
        """Chrome may ask whether a page of the internet may read from this machine."""
        is_trace = self.path == f"{self.server.path}{_TRACE}"
        if self.server.ui or not is_trace or not self._is_allowed(is_trace):
            self.send_error(403)
            return
        self._begin(204, _POLICY)
        self.send_header("Access-Control-Allow-Methods", "GET")
        self.send_header("Access-Control-Allow-Private-Network", "true")
        self.end_headers()

    def _is_allowed(self, is_trace: bool) -> bool:
        # A foreign page can make its own host name point here; the Host header tells.
        if self.headers.get("Host") != self.server.host:
            return False
        origin = self.headers.get("Origin")
        if is_trace and not self.server.ui:
            return origin == PAGE
        if origin not in (None, f"http://{self.server.host}"):
            return False
        # Where there is no origin, this says who asks; a person may follow a link from anywhere.
        site, mode = (self.headers.get(f"Sec-Fetch-{name}") for name in ("Site", "Mode"))
        return site in (None, "none", "same-origin") or (mode == "navigate" and not is_trace)

    def _send(self, body: bytes, kind: str, policy: str) -> None:
        self._begin(200, policy)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _send_file(self, path: Path, kind: str) -> None:
        with path.open("rb") as file:
            self._begin(200, _POLICY)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(path.stat().st_size))
            self.end_headers()
            shutil.copyfileobj(file, self.wfile)

    def _begin(self, status: int, policy: str) -> None:
        self.send_response(status)
        self.send_header("Content-Security-Policy", policy)
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("Cache-Control", "no-store")
        if not self.server.ui:
            self.send_header("Access-Control-Allow-Origin", PAGE)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as above
        """Nothing: standard error is for the person, not for requests."""

    def handle(self) -> None:
        """A page that is closed meanwhile is no error."""
        with contextlib.suppress(ConnectionError):
            super().handle()


def _of_page(nonce: str) -> str:
    return (
        f"default-src 'none'; style-src 'nonce-{nonce}'; script-src 'nonce-{nonce}'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


def _kind(file: Path) -> str:
    kinds = {".js": "text/javascript", ".wasm": "application/wasm"}  # whatever the machine says
    return (
        kinds.get(file.suffix) or mimetypes.guess_type(file.name)[0] or "application/octet-stream"
    )


@contextlib.contextmanager
def serving(timeline: Path, ui: Mapping[str, Path], port: int) -> Iterator[Server]:
    """Serve a timeline from 127.0.0.1 meanwhile.

    With a ``ui`` of its own any port will do if this one is taken; else UsageError is raised.
    """
    with _bound(timeline, ui, port) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()


def _bound(timeline: Path, ui: Mapping[str, Path], port: int) -> Server:
    try:
        return Server(timeline, ui, port)
    except OSError as error:
        if ui:
            return Server(timeline, ui, 0)
        raise UsageError(
            f"port {port} of 127.0.0.1 cannot be used ({error.strerror}): stop what listens "
            "there; Perfetto's page can read from no other port"
        ) from error
