"""One file, served to Perfetto's page and to nobody else.

The page's policy lets it read from one local port only, 9001, where every user of this
machine and every page in a browser could ask: the path is a secret, and the page named.
"""

from __future__ import annotations

import contextlib
import http.server
import re
import secrets
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

from commtrace.errors import UsageError

__all__ = ["PAGE", "PORT", "Server", "serving"]

PAGE = "https://ui.perfetto.dev"
PORT = 9001


class Server(http.server.ThreadingHTTPServer):
    """Serves one file at ``address``; ``fetched`` is set when the page has it, to its end."""

    daemon_threads = True

    def __init__(self, trace: Path, port: int) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.trace = trace
        name = re.sub(r"[^\w.-]", "_", trace.name, flags=re.ASCII)
        self.path = f"/{secrets.token_urlsafe(16)}/{name}"
        self.host = f"127.0.0.1:{self.server_port}"
        self.address = f"http://{self.host}{self.path}"
        self.fetched = threading.Event()


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        """The file, to the page that knows its path."""
        if self._is_allowed():
            self._send()

    def do_OPTIONS(self) -> None:
        """Chrome may ask whether a page of the internet may read from this machine."""
        if self._is_allowed():
            self._begin(204)
            self.send_header("Access-Control-Allow-Methods", "GET")
            self.send_header("Access-Control-Allow-Private-Network", "true")
            self.end_headers()

    def _is_allowed(self) -> bool:
        # A foreign page can make its own host name point here; the Host header tells.
        if self.headers.get("Host") != self.server.host or self.headers.get("Origin") != PAGE:
            self.send_error(403)
        elif self.path != self.server.path:
            self.send_error(404)
        else:
            return True
        return False

    def _begin(self, status: int) -> None:
        self.send_response(status)
        self.send_header("Access-Control-Allow-Origin", PAGE)
        self.send_header("Cache-Control", "no-store")

    def _send(self) -> None:
        with self.server.trace.open("rb") as file:
            self._begin(200)
            self.send_header("Content-Type", "application/octet-stream")
            self.send_header("Content-Length", str(self.server.trace.stat().st_size))
            self.end_headers()
            # A page that is closed meanwhile has not fetched the file.
            with contextlib.suppress(ConnectionError):
                shutil.copyfileobj(file, self.wfile)
                self.server.fetched.set()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as above
        """Nothing: standard error is for the person, not for requests."""


@contextlib.contextmanager
def serving(trace: Path, port: int) -> Iterator[Server]:
    """Serve ``trace`` from 127.0.0.1 meanwhile. Raises UsageError when the port is taken."""
    try:
        server = Server(trace, port)
    except OSError as error:
        raise UsageError(
            f"port {port} of 127.0.0.1 cannot be used ({error.strerror}): stop what listens "
            "there; Perfetto's page can read from no other port"
        ) from error
    with server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
