"""Only the user's own pages get anything, and the server ends by itself."""

from __future__ import annotations

import http.client
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from commtrace.errors import UsageError
from commtrace.viewer.server import PAGE, Server, serving

Headers = dict[str, str | None]

ELSEWHERE = "https://evil.example"
FOREIGN = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}
FOLLOWED = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
OWN: list[tuple[str, Headers, int]] = [
    ("TRACE", {}, 200),
    ("TRACE", {"Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "cors"}, 200),
    ("HOME", {}, 200),
    ("HOME", FOLLOWED, 200),
    ("HOMEalive", {}, 200),
    ("/", FOLLOWED, 200),
    ("/v1/app.js", {}, 200),
    ("TRACE", {"Host": "evil.example"}, 403),
    ("TRACE", {"Host": "localhost"}, 403),
    ("TRACE", {"Host": None}, 403),
    ("TRACE", {"Origin": ELSEWHERE}, 403),
    ("TRACE", {"Origin": PAGE}, 403),
    ("TRACE", {"Origin": "null"}, 403),
    ("TRACE", FOREIGN, 403),
    ("TRACE", FOLLOWED, 403),
    ("HOME", {"Host": "evil.example"}, 403),
    ("HOME", {"Origin": ELSEWHERE}, 403),
    ("HOME", FOREIGN, 403),
    ("/", {"Host": "evil.example"}, 403),
    ("/", FOREIGN, 403),
    ("/v1/app.js", {"Origin": ELSEWHERE}, 403),
    ("/v1/../secret.txt", {}, 404),
    ("/v1/%2e%2e/secret.txt", {}, 404),
    ("//etc/passwd", {}, 404),
    ("/etc/passwd", {}, 404),
    ("/v1", {}, 404),
    ("/v1/app.js/", {}, 404),
    ("/v1/app.js%00", {}, 404),
    ("/x/..TRACE", {}, 404),
    ("TRACE?", {}, 404),
    ("/run.pftrace.gz", {}, 404),
    ("HOME../secret.txt", {}, 404),
    ("http://127.0.0.1/", {}, 404),
]
"""Where the UI is served, too: path, headers beside a browser's usual ones, the reply's status."""
PERFETTOS: list[tuple[str, Headers, int]] = [
    ("TRACE", {"Origin": PAGE}, 200),
    ("TRACE", {"Origin": PAGE, **FOREIGN}, 200),
    ("TRACE", {}, 403),
    ("TRACE", {"Origin": ELSEWHERE}, 403),
    ("TRACE", {"Origin": "http://ui.perfetto.dev"}, 403),
    ("TRACE", {"Origin": PAGE, "Host": "evil.example"}, 403),
    ("HOME", {}, 200),
    ("HOME", {"Origin": PAGE}, 403),
    ("HOME", FOREIGN, 403),
    ("/", {}, 404),
]


def asked(server: Server, path: str, headers: Headers, method: str = "GET") -> Any:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=20)
    path = path.replace("TRACE", f"{server.path}run.pftrace.gz").replace("HOME", server.path)
    connection.putrequest(method, path, skip_host=True)
    for name, value in {"Host": server.host, **headers}.items():
        if value is not None:
            connection.putheader(name, value)
    connection.endheaders()
    reply = connection.getresponse()
    reply.body = reply.read()  # type: ignore[attr-defined]
    connection.close()
    return reply


@pytest.fixture
def timeline(tmp_path: Path) -> Path:
    file = tmp_path / "t.pftrace.gz"
    file.write_bytes(b"the timeline")
    return file


@pytest.fixture
def ui(tmp_path: Path) -> dict[str, Path]:
    (tmp_path / "secret.txt").write_text("secret")
    (tmp_path / "app.js").write_text("the UI")
    return {"/": tmp_path / "app.js", "/v1/app.js": tmp_path / "app.js"}


@pytest.mark.parametrize("own", [True, False])
def test_who_gets_what(timeline: Path, ui: dict[str, Path], own: bool) -> None:
    with serving(timeline, ui if own else {}, 0) as server:
        server.findings = lambda nonce: f"findings {nonce}"
        for path, headers, status in OWN if own else PERFETTOS:
            reply = asked(server, path, headers)
            assert (path, headers, reply.status) == (path, headers, status)
            given = {"TRACE": b"the timeline", "/": b"the UI", "/v1/app.js": b"the UI"}
            if status == 200 and path in given:
                assert reply.body == given[path]
            if status != 200:
                assert b"timeline" not in reply.body
                assert b"findings" not in reply.body
        for method in ("POST", "HEAD", "PUT"):
            assert asked(server, "TRACE", {"Origin": PAGE}, method).status == 501


def test_the_page_of_the_internet_may_ask_to_read_the_timeline(timeline: Path) -> None:
    private = {"Access-Control-Request-Private-Network": "true"}
    with serving(timeline, {}, 0) as server:
        reply = asked(server, "TRACE", {"Origin": PAGE, **private}, "OPTIONS")
        assert reply.status == 204
        assert reply.getheader("Access-Control-Allow-Origin") == PAGE
        assert reply.getheader("Access-Control-Allow-Private-Network") == "true"
        for path, headers in (("HOME", {"Origin": PAGE}), ("TRACE", {"Origin": ELSEWHERE})):
            assert asked(server, path, {**headers, **private}, "OPTIONS").status == 403


def test_a_page_of_ours_may_ask_nobody_else(timeline: Path, ui: dict[str, Path]) -> None:
    with serving(timeline, ui, 0) as server:
        for path in ("/", "HOME"):
            policy = asked(server, path, {}).getheader("Content-Security-Policy")
            assert "connect-src 'self'" in policy
            assert "frame-ancestors 'none'" in policy
            assert "http" not in policy
        assert asked(server, "/", {}).getheader("Access-Control-Allow-Origin") is None
        assert asked(server, "HOME", {}).getheader("Content-Security-Policy") != policy  # a nonce


def test_it_ends_when_nobody_comes_and_when_all_have_left(timeline: Path) -> None:
    with serving(timeline, {}, 0) as server:
        begun = time.monotonic()
        server.wait(patience_s=0.1, idle_s=60)
        assert time.monotonic() - begun < 30
        asked(server, "TRACE", {"Origin": PAGE})
        server.wait(patience_s=60, idle_s=0.1)
        assert time.monotonic() - begun < 30


def test_nobody_guesses_where_a_timeline_is_served(timeline: Path) -> None:
    with serving(timeline, {}, 0) as one, serving(timeline, {}, 0) as other:
        assert one.path != other.path
        assert len(one.path.strip("/")) >= 22  # 128 bits


def test_a_taken_port(timeline: Path, ui: dict[str, Path]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with serving(timeline, ui, port) as server:
            assert server.server_port != port
            assert asked(server, "TRACE", {}).body == b"the timeline"
        with (
            pytest.raises(UsageError, match=rf"^port {port} .*stop what listens"),
            serving(timeline, {}, port),
        ):
            pass
