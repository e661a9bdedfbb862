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

from commtrace import viewer
from commtrace.errors import TraceError, UsageError

BASE_NS = 1_700_000_000_123_456_789


@pytest.fixture(autouse=True)
def _no_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(viewer, "_GRACE_S", 0)


def slice_(name: str, start_us: float, us: float, tid: Any = 7, **more: Any) -> dict[str, Any]:
    return {"ph": "X", "name": name, "pid": 42, "tid": tid, "ts": start_us, "dur": us, **more}


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
    assert viewer.merge(files, target) == 0
    events: list[dict[str, Any]] = json.loads(gzip.decompress(target.read_bytes()))["traceEvents"]
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
    old = slice_("old", 1_683_564_901_540_885, 12), slice_("next", 1_683_564_901_540_890.25, 1)
    found = slices(
        merged(
            write(tmp_path, 0, *old, base_ns=0),
            write(tmp_path, 1, slice_("x", 1_683_564_901_540_884, 0), base_ns=0),
        )
    )
    assert [found[name]["ts"] for name in ("x", "old", "next")] == [0, 1, 6.25]


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


def test_events_without_a_usable_time_are_counted(tmp_path: Path) -> None:
    broken = ({**slice_("a", 0, 1), "ts": "soon"}, slice_("b", 0, -1), slice_("c", 0, 1))
    files = [write(tmp_path, 0, *broken), write(tmp_path, 1)]
    assert viewer.merge(files, tmp_path / "merged.json.gz") == 2


@pytest.mark.parametrize(
    "damage",
    [lambda data: data[:-20], lambda data: gzip.compress(b"[1, NaN"), lambda data: b"\x1f\x8b no"],
    ids=["truncated", "no JSON", "no gzip"],
)
def test_a_damaged_file_is_named(tmp_path: Path, damage: Any) -> None:
    bad, good = write(tmp_path, 0, slice_("a", 0, 1)), write(tmp_path, 1)
    bad.write_bytes(damage(bad.read_bytes()))
    with pytest.raises(TraceError, match=r"rank-0\.json\.gz.*without it$"):
        viewer.merge([good, bad], tmp_path / "merged.json.gz")


class Page:
    """Stands in for the browser: opens the link, and asks for what a test wants."""

    def __init__(self, *requests: tuple[str, dict[str, str]]) -> None:
        self.requests = requests
        self.replies: list[http.client.HTTPResponse] = []
        self.body = b""

    def __call__(self, link: str) -> None:
        page, _, address = link.partition("/#!/?url=")
        assert page == "https://ui.perfetto.dev"
        url = urlsplit(address)
        assert url.hostname == "127.0.0.1"
        for path, headers in (*self.requests, (url.path, {})):
            connection = http.client.HTTPConnection("127.0.0.1", url.port, timeout=20)
            connection.request("GET", path, headers=headers)
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
    assert reply.getheader("Access-Control-Allow-Origin") == "https://ui.perfetto.dev"
    assert "/rank-3.json.gz" in told[0]
    assert "local network" in told[1]


def test_several_files_are_served_merged(tmp_path: Path) -> None:
    files = [write(tmp_path, rank, slice_(f"on {rank}", 0, 1)) for rank in (0, 1)]
    page = Page()
    viewer.open_in_perfetto(files, browser=page, port=0)
    assert set(slices(json.loads(gzip.decompress(page.body))["traceEvents"])) == {"on 0", "on 1"}


def test_nothing_else_is_served(tmp_path: Path) -> None:
    file = write(tmp_path, 0)
    elsewhere = {"Host": "evil.example"}
    page = Page(("/", {}), ("/../rank-0.json.gz", {}), ("/rank-0.json.gz", elsewhere))
    viewer.open_in_perfetto([file], browser=page, port=0)
    assert [reply.status for reply in page.replies] == [404, 404, 403, 200]


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
