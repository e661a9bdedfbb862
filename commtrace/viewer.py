"""A recording in Perfetto: merge the ranks' files, serve one file to the browser.

The page is Perfetto's own, https://ui.perfetto.dev; the trace never leaves the machine.
The page's policy lets it read from one local port only, 9001.
"""

from __future__ import annotations

import contextlib
import http.server
import itertools
import re
import shutil
import tempfile
import threading
import time
import webbrowser
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from isal import igzip, isal_zlib

from commtrace.errors import TraceError, UsageError
from commtrace.reader.files import find

__all__ = ["merge", "open_in_perfetto"]

_PAGE = "https://ui.perfetto.dev"
_PORT = 9001
_GRACE_S = 3.0
_FIRST_FREE_TID = 1_000_000_000  # above every thread and stream

_Id = int | str


def open_in_perfetto(
    paths: Sequence[Path],
    *,
    browser: Callable[[str], object] = webbrowser.open,
    port: int = _PORT,
    tell: Callable[[str], object] = lambda _: None,
) -> None:
    """Show what ``paths`` hold in Perfetto, all ranks on one time axis.

    One file is served as it is, several are merged into a temporary one. Only that file
    is served, from 127.0.0.1 and to Perfetto's page only, until the page has fetched it
    or Ctrl-C; ``tell`` gets the lines a person needs meanwhile. Another ``port`` is for a
    page of one's own. Raises TraceError for files that cannot be merged, UsageError when
    the port is taken.
    """
    with tempfile.TemporaryDirectory(prefix="commtrace-") as folder:
        files = find(paths)
        trace = files[0]
        if len(files) > 1:
            trace = Path(folder) / "trace.json.gz"
            left_out = merge(files, trace)
            if left_out:
                tell(f"{left_out} events have no usable time and are left out")
        with _serving(trace, port) as server, contextlib.suppress(KeyboardInterrupt):
            link = f"{_PAGE}/#!/?url={server.address}"
            tell(f"opening {link}")
            tell("Chrome asks for access to the local network: allow it. Ctrl-C stops.")
            browser(link)
            server.fetched.wait()
            time.sleep(_GRACE_S)  # a reload of the page that follows at once still works


class _Server(http.server.ThreadingHTTPServer):
    """Serves one file, and knows when it was fetched to its end."""

    daemon_threads = True

    def __init__(self, trace: Path, port: int) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.trace = trace
        self.path = "/" + re.sub(r"[^\w.-]", "_", trace.name, flags=re.ASCII)
        self.host = f"127.0.0.1:{self.server_port}"
        self.address = f"http://{self.host}{self.path}"
        self.fetched = threading.Event()


class _Handler(http.server.BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        """The file, to whoever asks for it under the right name."""
        # A foreign page can make its own host name point here; the Host header tells.
        if self.headers.get("Host") != self.server.host:
            self.send_error(403)
        elif self.path != self.server.path:
            self.send_error(404)
        else:
            self._send()

    def _send(self) -> None:
        with self.server.trace.open("rb") as file:
            self.send_response(200)
            self.send_header("Access-Control-Allow-Origin", _PAGE)
            self.send_header("Cache-Control", "no-store")
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
def _serving(trace: Path, port: int) -> Iterator[_Server]:
    try:
        server = _Server(trace, port)
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


class _Event(msgspec.Struct, omit_defaults=True, gc=False):
    """A trace event. Its arguments stay the bytes that they are."""

    ph: str
    name: str = ""
    cat: str = ""
    ts: Any = None
    dur: Any = None
    pid: _Id = ""
    tid: _Id = ""
    id: _Id | None = None
    bp: str | None = None
    s: str | None = None
    args: msgspec.Raw = msgspec.Raw(b"{}")


class _Named(msgspec.Struct):
    """The arguments of a metadata event."""

    name: str = ""
    labels: str = ""


class _File(msgspec.Struct):
    events: list[_Event] = msgspec.field(name="traceEvents")
    base_ns: int = msgspec.field(name="baseTimeNanoseconds", default=0)
    distributed: dict[str, Any] = msgspec.field(name="distributedInfo", default_factory=dict)


@dataclass(frozen=True)
class _Rank:
    """One rank's file: ``ts`` and ``dur`` of its events are integer Unix ns."""

    number: int
    path: Path
    events: list[_Event]
    names: dict[tuple[str, _Id, _Id], str]
    left_out: int

    @property
    def start_ns(self) -> int | None:
        """When its first event starts."""
        return min((event.ts for event in self.events), default=None)


def merge(files: Sequence[Path], target: Path) -> int:
    """Write the traces of several ranks as one gzipped Chrome JSON, for Perfetto.

    Processes are named after their rank and get pids of their own, flows ids of their
    own; times count from the earliest event of all. Slices of one thread that overlap
    without nesting go to further lanes of that thread, because Perfetto would drop them.
    Returns how many events are left out because they have no usable time. Raises
    TraceError for a file that is not whole.
    """
    # Every file is read twice, so that one rank at a time is in memory.
    heads = sorted((rank.number, rank.path, rank.start_ns) for rank in map(_read, files))
    base_ns = min((start_ns for *_, start_ns in heads if start_ns is not None), default=0)
    digits = len(str(heads[-1][0]))
    ids = itertools.count(1)
    separator, left_out = b"", 0
    with igzip.open(target, "wb", compresslevel=1) as out:
        out.write(b'{"traceEvents":[\n')
        for rank in (_read(path) for _, path, _ in heads):
            left_out += rank.left_out
            for event in _renamed(rank, f"rank {rank.number:0{digits}}", base_ns, ids):
                out.write(separator + msgspec.json.encode(event))
                separator = b",\n"
        out.write(b"\n]}\n")
    return left_out


def _read(path: Path) -> _Rank:
    data = path.read_bytes()
    try:
        plain = igzip.decompress(data) if data.startswith(b"\x1f\x8b") else data
        file = msgspec.json.decode(plain, type=_File)
        names = _names(file.events)
    except (EOFError, OSError, isal_zlib.error, msgspec.MsgspecError) as error:  # type: ignore[misc]
        raise TraceError(
            f"{path}: cannot be merged with other ranks ({error}): open the others without it"
        ) from error
    events = [event for event in file.events if event.ph != "M"]
    timed = [event for event in events if _timed(event, file.base_ns)]
    return _Rank(_number(file, path), path, timed, names, len(events) - len(timed))


def _names(events: list[_Event]) -> dict[tuple[str, _Id, _Id], str]:
    """What metadata events call a process or a thread."""
    names = {}
    for event in events:
        if event.ph == "M":
            named = msgspec.json.decode(event.args, type=_Named)
            thread = event.tid if event.name == "thread_name" else ""
            names[event.name, event.pid, thread] = (named.name or named.labels).strip()
    return names


def _number(file: _File, path: Path) -> int:
    rank = file.distributed.get("rank")
    if isinstance(rank, int):
        return rank
    found = re.search(r"(?:rank|worker)[-_]?(\d+)", path.name)
    return int(found[1]) if found else 0


def _timed(event: _Event, base_ns: int) -> bool:
    """Turn its times into Unix ns; whether it has them."""
    start, length = _ns(event.ts), _ns(event.dur)
    if start is None or (event.ph == "X" and (length is None or length < 0)):
        return False
    event.ts, event.dur = base_ns + start, length
    return True


def _ns(micros: Any) -> int | None:
    if not isinstance(micros, (int, float)):
        return None
    whole = int(micros)  # apart: a float of the product has no room for ns since 1970
    return whole * 1000 + round((micros - whole) * 1000)


def _micros(ns: int | None) -> msgspec.Raw | None:
    return None if ns is None else msgspec.Raw(b"%d.%03d" % divmod(ns, 1000))


def _renamed(rank: _Rank, name: str, base_ns: int, ids: Iterator[int]) -> Iterator[_Event]:
    """The rank's events as they go into the merged trace, and the names of their tracks."""
    pids: dict[_Id, int] = defaultdict(lambda: next(ids))
    flows: dict[tuple[str, _Id], int] = defaultdict(lambda: next(ids))
    tracks: dict[tuple[_Id, _Id, int], tuple[int, int]] = {}
    lanes: dict[tuple[_Id, _Id], list[list[int]]] = defaultdict(list)
    lane_at: dict[tuple[_Id, _Id, int], int] = {}
    # Perfetto wants a slice before those inside it, and before its flows.
    for event in sorted(rank.events, key=lambda e: (e.ts, e.ph != "X", -(e.dur or 0))):
        pid, tid, start_ns = event.pid, event.tid, event.ts
        if event.ph == "X":
            lane = _lane(lanes[pid, tid], start_ns, start_ns + event.dur)
            lane_at[pid, tid, start_ns] = lane
        else:
            lane = lane_at.get((pid, tid, start_ns), 0)
        if (pid, tid, lane) not in tracks:
            own = isinstance(tid, int) and 0 <= tid < _FIRST_FREE_TID and lane == 0
            tracks[pid, tid, lane] = pids[pid], int(tid) if own else _FIRST_FREE_TID + next(ids)
        event.pid, event.tid = tracks[pid, tid, lane]
        event.ts, event.dur = _micros(start_ns - base_ns), _micros(event.dur)
        if event.id is not None:
            event.id = flows[event.cat, event.id]
        yield event
    for (pid, tid, lane), track in tracks.items():
        process = rank.names.get(("process_labels", pid, ""), str(pid))
        thread = rank.names.get(("thread_name", pid, tid), str(tid))
        yield _metadata("process_name", track, name=f"{name} {process}".strip())
        yield _metadata("process_sort_index", track, sort_index=rank.number)
        if thread:
            label = f"{thread} (lane {lane + 1})" if lane else thread
            yield _metadata("thread_name", track, name=label)


def _lane(lanes: list[list[int]], start: int, end: int) -> int:
    """The first lane where the slice nests; a lane is the ends of its open slices."""
    for number, ends in enumerate(lanes):
        while ends and ends[-1] <= start:
            ends.pop()
        if not ends or end <= ends[-1]:
            ends.append(end)
            return number
    lanes.append([end])
    return len(lanes) - 1


def _metadata(what: str, track: tuple[int, int], **args: str | int) -> _Event:
    pid, tid = track
    return _Event("M", what, pid=pid, tid=tid, args=msgspec.Raw(msgspec.json.encode(args)))
