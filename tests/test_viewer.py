"""Several ranks become one trace for Perfetto, and only that page gets the one file."""

from __future__ import annotations

import gzip
import http.client
import json
import socket
from collections import defaultdict
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

import commtrace as ct
from commtrace import viewer
from commtrace.errors import TraceError, UsageError
from commtrace.reports import content
from commtrace.viewer.lanes import Lanes
from commtrace.viewer.server import PAGE, serving

BASE_NS = 1_700_000_000_123_456_789


@pytest.fixture(autouse=True)
def _no_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(viewer, "_GRACE_S", 0)


def slice_(name: str, start_us: float, us: float, tid: Any = 7, **more: Any) -> dict[str, Any]:
    at = {"pid": 42, "tid": tid, "ts": start_us, "dur": us}
    return {"ph": "X", "cat": "user_annotation", "name": name, **at, **more}


def write(folder: Path, rank: int, *events: dict[str, Any], base_ns: int = BASE_NS) -> Path:
    labels = {"ph": "M", "name": "process_labels", "pid": 42, "tid": 0, "args": {"labels": "CPU"}}
    path = folder / f"rank-{rank}.json.gz"
    trace = {
        "distributedInfo": {"rank": rank},
        "baseTimeNanoseconds": base_ns,
        "traceEvents": [labels, *events],
    }
    path.write_bytes(gzip.compress(json.dumps(trace).encode()))
    return path


def merged(*files: Path) -> list[dict[str, Any]]:
    target = files[0].parent / "merged.json.gz"
    assert viewer.merge(by_rank(*files), target) == 0
    return events_in(target.read_bytes())


def by_rank(*files: Path) -> dict[int, Path]:
    return {int(file.name.split("-")[1].split(".")[0]): file for file in files}


def events_in(data: bytes) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = json.loads(gzip.decompress(data))["traceEvents"]
    return events


def slices(events: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {event["name"]: event for event in events if event["ph"] == "X"}


def names(events: list[dict[str, Any]], what: str) -> list[str]:
    return [event["args"]["name"] for event in events if event["name"] == what]


def test_ranks_share_one_time_axis_to_the_nanosecond(tmp_path: Path) -> None:
    found = slices(
        merged(
            write(tmp_path, 0, slice_("a", 1000.001, 0.3)),
            write(tmp_path, 1, slice_("b", 1000.001, 2.999), base_ns=BASE_NS + 17),
        )
    )
    assert (found["a"]["ts"], found["a"]["dur"]) == (0.0, 0.3)
    assert (found["b"]["ts"], found["b"]["dur"]) == (0.017, 2.999)


def test_times_since_1970_keep_their_nanoseconds(tmp_path: Path) -> None:
    old = slice_("old", 1_683_564_901_540_885, 12), slice_("next", 1_683_564_901_540_890.5, 1)
    found = slices(
        merged(
            write(tmp_path, 0, *old, base_ns=0),
            write(tmp_path, 1, slice_("x", 1_683_564_901_540_884, 0), base_ns=0),
        )
    )
    assert [found[name]["ts"] for name in ("x", "old", "next")] == [0, 1, 6.5]


def test_processes_are_named_after_their_rank_and_never_shared(tmp_path: Path) -> None:
    events = merged(*(write(tmp_path, rank, slice_(str(rank), 1, 1)) for rank in (10, 2, 0)))
    assert names(events, "process_name") == ["rank 00 CPU", "rank 02 CPU", "rank 10 CPU"]
    assert len({event["pid"] for event in slices(events).values()}) == 3
    order = [e["args"]["sort_index"] for e in events if e["name"] == "process_sort_index"]
    assert order == [0, 2, 10]


def test_an_arrow_stays_within_its_rank(tmp_path: Path) -> None:
    arrow = (
        slice_("launch", 1, 2),
        slice_("kernel", 5, 2, tid=8),
        {"ph": "s", "id": 5, "cat": "ac2g", "name": "ac2g", "pid": 42, "tid": 7, "ts": 1},
        {"ph": "f", "id": 5, "cat": "ac2g", "name": "ac2g", "pid": 42, "tid": 8, "ts": 5},
    )
    events = merged(write(tmp_path, 0, *arrow), write(tmp_path, 1, *arrow))
    ends = defaultdict(set)
    for event in events:
        if event["ph"] in "sf":
            ends[event["id"]].add((event["pid"], event["ph"]))
    assert [len(end) for end in ends.values()] == [2, 2]
    assert all(len({pid for pid, _ in end}) == 1 for end in ends.values())


def test_overlapping_slices_get_lanes_and_their_arrows_follow(tmp_path: Path) -> None:
    overlapping = (
        slice_("gloo:send", 0, 10),
        slice_("gloo:recv", 5, 10),
        {"ph": "s", "id": 1, "cat": "c", "name": "c", "pid": 42, "tid": 7, "ts": 5},
    )
    named = {"ph": "M", "name": "thread_name", "pid": 42, "tid": 7, "args": {"name": "python "}}
    events = merged(write(tmp_path, 0, named, *overlapping), write(tmp_path, 1))
    found = slices(events)
    assert found["gloo:send"]["tid"] == 7
    assert found["gloo:recv"]["tid"] != 7
    assert [e["tid"] for e in events if e["ph"] == "s"] == [found["gloo:recv"]["tid"]]
    assert names(events, "thread_name") == ["python", "python (lane 2)"]


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20)), max_size=25))
def test_slices_of_a_track_nest_or_are_apart(
    tmp_path_factory: pytest.TempPathFactory, spans: list[tuple[int, int]]
) -> None:
    folder = tmp_path_factory.mktemp("lanes")
    given_ = [slice_(str(number), *span) for number, span in enumerate(spans)]
    found = slices(merged(write(folder, 0, *given_), write(folder, 1, slice_("other", 0, 0))))
    assert len(found) == len(spans) + 1
    for a in found.values():
        for b in found.values():
            same = (a["pid"], a["tid"]) == (b["pid"], b["tid"])
            assert not (same and a["ts"] < b["ts"] < a["ts"] + a["dur"] < b["ts"] + b["dur"])


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 20)), max_size=40))
def test_a_slice_goes_to_the_first_lane_where_it_nests(spans: list[tuple[int, int]]) -> None:
    lanes, plain = Lanes(), list[list[tuple[int, int]]]()
    for start, end in sorted(((a, a + b) for a, b in spans), key=lambda s: (s[0], -s[1])):
        fits = [all(e <= start or end <= e for _, e in lane) for lane in plain]
        expected = fits.index(True) if True in fits else len(plain)
        plain += [[]] if expected == len(plain) else []
        plain[expected].append((start, end))
        assert lanes.place(start, end) == expected


class Compared(int):
    """A time that counts its comparisons."""

    count = 0

    def __lt__(self, other: object) -> bool:
        Compared.count += 1
        return int(self) < other  # type: ignore[operator]

    def __gt__(self, other: object) -> bool:
        Compared.count += 1
        return int(self) > other  # type: ignore[operator]

    __le__, __ge__ = __lt__, __gt__


def test_many_overlapping_slices_take_little_more_than_their_number() -> None:
    lanes = Lanes()
    for n in range(4096):
        assert lanes.place(Compared(n), Compared(n + 10_000)) == n
    assert Compared.count < 4096 * 12 * 8


@pytest.mark.parametrize(
    "damage",
    [{"ts": "soon"}, {"ts": None}, {"ts": 1e300}, {"dur": -1}, {"dur": None}, {"ph": ""}],
    ids=str,
)
def test_events_that_cannot_be_placed_are_counted(tmp_path: Path, damage: dict[str, Any]) -> None:
    file = write(tmp_path, 0, slice_("a", 0, 1), {**slice_("b", 0, 1), **damage})
    target = tmp_path / "merged.json.gz"
    assert viewer.merge({0: file}, target) == 1
    assert set(slices(events_in(target.read_bytes()))) == {"a"}


@pytest.mark.parametrize(
    "odd",
    [
        {"pid": [1], "tid": {}},
        {"pid": None, "tid": 1.5},
        {"args": None},
        {"name": None},
        {"id": []},
    ],
    ids=str,
)
def test_events_of_odd_types_are_shown(tmp_path: Path, odd: dict[str, Any]) -> None:
    names_nothing = {"ph": "M", "name": "process_name", "pid": 42, "args": {"name": 7}}
    file = write(tmp_path, 0, names_nothing, {**slice_("b", 3, 1), **odd})
    (found,) = (event for event in merged(file) if event["ph"] == "X")
    assert (found["ts"], found["dur"]) == (0, 1)


def test_a_target_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="TMPDIR"):
        viewer.merge({0: write(tmp_path, 0)}, tmp_path / "none" / "merged.json.gz")


class Page:
    """Stands in for the browser: opens the link, and asks for what a test wants.

    ``requests`` are methods, paths (PATH is the right one), and headers beside the page's.
    """

    def __init__(self, *requests: tuple[str, str, dict[str, str | None]]) -> None:
        self.requests = requests
        self.replies: list[http.client.HTTPResponse] = []
        self.body = b""

    def __call__(self, link: str) -> None:
        page, _, address = link.partition("/#!/?url=")
        assert page == PAGE
        url = urlsplit(address)
        assert url.hostname == "127.0.0.1"
        self.path = url.path
        for method, path, more in (*self.requests, ("GET", "PATH", {})):
            connection = http.client.HTTPConnection("127.0.0.1", url.port, timeout=20)
            path = path.replace("PATH", url.path).replace("ADDRESS", address)
            headers = {"Host": url.netloc, "Origin": PAGE, **more}
            connection.putrequest(method, path, skip_host=True)
            for name, value in headers.items():
                if value is not None:
                    connection.putheader(name, value)
            connection.endheaders()
            reply = connection.getresponse()
            self.body = reply.read()
            self.replies.append(reply)
            connection.close()


def test_one_file_is_served_as_it_is_and_to_perfetto_only(tmp_path: Path) -> None:
    file = write(tmp_path, 3, slice_("a", 0, 1))
    page, told = Page(), list[str]()
    viewer.open_in_perfetto([file], browser=page, port=0, tell=told.append)
    assert page.body == file.read_bytes()
    (reply,) = page.replies
    assert reply.getheader("Access-Control-Allow-Origin") == PAGE
    assert "/rank-3.json.gz" in told[0]
    assert "local network" in told[1]


def served(*paths: Path) -> tuple[set[str], list[str]]:
    """The slices that the page gets, and what is said meanwhile but the last two lines."""
    page, told = Page(), list[str]()
    viewer.open_in_perfetto(paths, browser=page, port=0, tell=told.append)
    return set(slices(events_in(page.body))), told[:-2]


def test_several_files_are_served_merged(tmp_path: Path) -> None:
    files = [write(tmp_path, rank, slice_(f"on {rank}", 0, 1)) for rank in (0, 1)]
    assert served(*files) == ({"on 0", "on 1"}, [])
    assert served(tmp_path) == ({"on 0", "on 1"}, [])


@pytest.mark.parametrize(("bad", "said"), [(1, "1 event"), (2, "2 events")])
def test_what_is_not_shown_is_counted(tmp_path: Path, bad: int, said: str) -> None:
    nowhere = [{**slice_("b", 0, 1), "ts": "soon"}] * bad
    files = write(tmp_path, 0, slice_("a", 0, 1), *nowhere), write(tmp_path, 1)
    shown, told = served(*files)
    assert shown == {"a"}
    assert told[-1] == f"not shown, without a kind or a usable time: {said}"


def test_of_a_truncated_file_what_can_be_read_is_served(tmp_path: Path) -> None:
    file = write(tmp_path, 0, *(slice_(f"a{n}", 10 * n, 1) for n in range(2000)))
    file.write_bytes(file.read_bytes()[:-2000])
    shown, told = served(file)
    assert 500 < len(shown) < 2000
    assert "truncated (rank 0): the gzip data breaks off" in told[0]
    write(tmp_path, 1, slice_("whole", 0, 1))
    assert served(tmp_path) == (shown | {"whole"}, told)


def test_ranks_are_those_of_the_analysis_and_so_are_the_notes(tmp_path: Path) -> None:
    write(tmp_path, 0, slice_("first", 0, 1)).rename(tmp_path / "a.json.gz")
    (tmp_path / "b.json.gz").write_bytes((tmp_path / "a.json.gz").read_bytes())
    write(tmp_path, 1, slice_("other", 0, 1)).rename(tmp_path / "c.json.gz")
    (tmp_path / "d.json").write_text("no trace")
    (tmp_path / "manifest.json").write_text("{}")
    shown, told = served(tmp_path)
    assert shown == {"first", "other"}
    assert told == content.notes(ct.load(tmp_path).notes)
    assert [line.split()[0].rstrip(":") for line in told] == ["unreadable", "duplicate-rank"]


def test_what_holds_no_trace_is_refused_as_by_the_analysis(tmp_path: Path) -> None:
    file = tmp_path / "rank0.json"
    for content_ in ("", "no JSON", '{"steps": []}'):
        file.write_text(content_)
        with pytest.raises(TraceError) as analysed:
            ct.load(file)
        with pytest.raises(TraceError) as opened:
            viewer.open_in_perfetto([file], browser=lambda _: None, port=0)
        assert str(opened.value) == str(analysed.value)


NOBODY: list[tuple[str, str, dict[str, str | None], int]] = [
    ("GET", "PATH", {"Host": "evil.example"}, 403),
    ("GET", "PATH", {"Host": "evil.example:9001"}, 403),
    ("GET", "PATH", {"Host": None}, 403),
    ("GET", "PATH", {"Origin": "https://evil.example"}, 403),
    ("GET", "PATH", {"Origin": "http://ui.perfetto.dev"}, 403),
    ("GET", "PATH", {"Origin": "null"}, 403),
    ("GET", "PATH", {"Origin": None}, 403),
    ("GET", "/", {}, 404),
    ("GET", "/rank-0.json.gz", {}, 404),
    ("GET", "/0123456789/rank-0.json.gz", {}, 404),
    ("GET", "/x/..PATH", {}, 404),
    ("GET", "/%2ePATH", {}, 404),
    ("GET", "/.PATH", {}, 404),
    ("GET", "PATH/../rank-0.json.gz", {}, 404),
    ("GET", "PATH?", {}, 404),
    ("GET", "PATH%00", {}, 404),
    ("GET", "ADDRESS", {}, 404),
    ("GET", "/etc/passwd", {}, 404),
    ("HEAD", "PATH", {}, 501),
    ("POST", "PATH", {}, 501),
    ("OPTIONS", "PATH", {"Origin": "https://evil.example"}, 403),
    ("OPTIONS", "PATH", {"Host": "evil.example"}, 403),
    ("OPTIONS", "/", {}, 404),
    ("OPTIONS", "PATH", {"Access-Control-Request-Private-Network": "true"}, 204),
]
"""Requests that do not get the file: method, path, headers beside the page's, and the reply."""


def test_no_other_request_gets_the_file_or_ends_the_server(tmp_path: Path) -> None:
    file = write(tmp_path, 0)
    page = Page(*(case[:3] for case in NOBODY))  # and then the right one
    viewer.open_in_perfetto([file], browser=page, port=0)
    assert page.body == file.read_bytes()
    for case, reply in zip(NOBODY, page.replies, strict=False):
        assert (*case[:3], reply.status) == case
        asked = reply.status == 204
        assert reply.getheader("Access-Control-Allow-Origin") == (PAGE if asked else None)
        private = reply.getheader("Access-Control-Allow-Private-Network")
        assert private == ("true" if asked else None)
    assert page.replies[-1].status == 200


def test_only_the_page_that_has_fetched_all_counts(tmp_path: Path) -> None:
    with serving(write(tmp_path, 0), 0) as server:
        for origin, expected in (("https://evil.example", False), (PAGE, True)):
            connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=20)
            connection.request("GET", server.path, headers={"Origin": origin})
            connection.getresponse().read()
            connection.close()
            assert server.fetched.wait(5 if expected else 0) is expected


def test_nobody_guesses_where_a_file_is_served(tmp_path: Path) -> None:
    file, paths = write(tmp_path, 0), set()
    for _ in range(3):
        page = Page()
        viewer.open_in_perfetto([file], browser=page, port=0)
        secret, name = page.path.strip("/").split("/")
        assert name == "rank-0.json.gz"
        assert len(secret) >= 22  # 128 bits
        paths.add(secret)
    assert len(paths) == 3


def test_any_file_name_makes_a_link(tmp_path: Path) -> None:
    file = write(tmp_path, 0).rename(tmp_path / "a & b#ü?.json.gz")
    page = Page()
    viewer.open_in_perfetto([file], browser=page, port=0)
    assert page.body == file.read_bytes()


def test_ctrl_c_ends_it_quietly(tmp_path: Path) -> None:
    def interrupted(link: str) -> None:
        raise KeyboardInterrupt

    viewer.open_in_perfetto([write(tmp_path, 0)], browser=interrupted, port=0)


def test_a_taken_port_is_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=rf"^port {port} .*stop what listens"):
            viewer.open_in_perfetto([write(tmp_path, 0)], browser=lambda _: None, port=port)
