"""What damage or malice makes long, deep or many costs no more than its size.

Time is counted as work, never measured; a timeout only guards against a hang.
"""

from __future__ import annotations

import gzip
import json
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from commtrace.errors import TraceError
from commtrace.metrics.run.line_looks import line_looks
from commtrace.reader import nest, workers
from commtrace.reader.build_tables import tables
from commtrace.reader.json import document, metadata, salvage
from commtrace.reader.json.events import Arguments, Call
from commtrace.reader.json.scan import scan
from commtrace.reader.operations import flight_recorder as flight
from commtrace.reader.operations import groups
from commtrace.reader.operations import operation_facts as described
from commtrace.synthetic import Tiny

RANK_0 = (0, "file-name")
KERNEL = {
    "ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllReduce", "pid": 0, "tid": 7, "ts": 1,
    "dur": 1, "args": {"device": 0, "stream": 7, "Process Group Name": "GROUP"},
}  # fmt: skip


def outcome(tmp_path: Path, content: bytes | dict[str, Any]) -> workers.RankTrace:
    found = workers._outcome(written(tmp_path, content), RANK_0)
    assert isinstance(found, workers.RankTrace), found
    return found


def written(tmp_path: Path, content: bytes | dict[str, Any]) -> Path:
    file = tmp_path / "rank0.json"
    if isinstance(content, dict):
        content = json.dumps({"traceEvents": [KERNEL], **content}).encode()
    file.write_bytes(content)
    return file


def messages(part: workers.RankTrace, code: str) -> list[str]:
    return [note.message for note in part.notes if note.code == code]


@pytest.mark.parametrize("number", ["0x" + "f" * 20_000, "9" * 20_000, "9" * 5000 + ".5", "1e999"])
@pytest.mark.parametrize("quoted", [True, False])
def test_a_number_of_many_digits_costs_itself_alone(
    tmp_path: Path, number: str, quoted: bool
) -> None:
    info = f"{{'rank': {number}, 'world_size': 2}}" if quoted else {"rank": 1, "world_size": 2}
    text = json.dumps({"distributedInfo": info, "traceEvents": [KERNEL]})
    text = text if quoted else text.replace('"rank": 1', f'"rank": {number}')
    part = outcome(tmp_path, text.encode())
    assert len(part.columns["kernels"]["start_ns"]) == 1
    assert part.notes[0].code in ("bad-metadata", "damaged")
    if not number.startswith("0x"):
        assert messages(part, "bad-metadata")[0].startswith("rank is ")
        assert part.columns["ranks"]["world_size"].tolist() == [2]


def test_a_long_number_elsewhere(tmp_path: Path) -> None:
    for key in ("ts", "tid", "pid", "correlation", "device", "Process Group Name"):
        text = json.dumps(KERNEL | {"args": {"device": 0, "correlation": 0, **KERNEL["args"]}})
        event = json.loads(text) | {key: "LONG"}
        event["args"][key] = "LONG"
        long = json.dumps(event).replace('"LONG"', "9" * 20_000)
        outcome(tmp_path, f'{{"traceEvents": [{text}, {long}, {text}]}}'.encode())


def test_python_literals_are_read_without_python(recwarn: pytest.WarningsRecorder) -> None:
    told = {"a": (1, [None, True]), "b": {0: "it's", 1: 'say "x"'}, "c": False}
    assert metadata.parsed(repr(told)) == {
        "a": [1, [None, True]],
        "b": {"0": "it's", "1": 'say "x"'},
        "c": False,
    }
    for text in ("__import__('os')", "{'a': '\\d'}", "(" * 9999, "-" * 9999, "'", ""):
        assert metadata.parsed(text) is None
    assert not recwarn.list


def test_what_nobody_reads_behind_the_events_is_not_copied(tmp_path: Path) -> None:
    text = b'{"traceEvents": [{"ph": "X"}], "x": [' + b"[]," * 300_000 + b"[]]}"
    file = written(tmp_path, text)
    tracemalloc.start()
    try:
        scan(file)
        assert tracemalloc.get_traced_memory()[1] < 4.5 * len(text)
    finally:
        tracemalloc.stop()


def test_a_long_literal_takes_little_memory() -> None:
    text = "(" + "1," * 100_000 + ")"
    tracemalloc.start()
    try:
        assert metadata.parsed(text) is None
        assert tracemalloc.get_traced_memory()[1] < 20 * len(text)
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("flag", [8, 16])
def test_a_gzip_header_of_a_megabyte(tmp_path: Path, flag: int) -> None:
    packed = gzip.compress(json.dumps({"traceEvents": [KERNEL]}).encode())
    headed = packed[:3] + bytes([flag]) + packed[4:10] + b"a" * 1_000_000
    found = scan(written(tmp_path, headed + b"\0" + packed[10:]))
    assert (found.events, found.notes) == (1, ())
    with pytest.raises(TraceError, match=r"gzip data breaks off.*copy or record it again"):
        scan(written(tmp_path, headed))


@pytest.mark.parametrize("depth", [100, 900, 940, 950, 960, 970, 980, 990, 2000])
def test_deep_values_anywhere(tmp_path: Path, depth: int) -> None:
    deep = "[" * depth + "]" * depth
    args = dict.fromkeys(["Process Group Name", "Process Group Ranks", "Comms Id"], "DEEP")
    content = {
        "distributedInfo": {"rank": "DEEP", "pg_config": ["DEEP", {"pg_name": "DEEP"}]},
        "commtrace": {
            "clock_probe": ["DEEP"],
            "machine": {"steps": "DEEP"},
            "flight_recorder": {"entries": ["DEEP"]},
        },
        "baseTimeNanoseconds": "DEEP",
        "traceEvents": [KERNEL, {**KERNEL, "pid": "DEEP", "args": args}, KERNEL],
    }
    part = outcome(tmp_path, json.dumps(content).replace('"DEEP"', deep).encode())
    assert part.notes


def test_many_wrong_probes_are_one_note(tmp_path: Path) -> None:
    part = outcome(tmp_path, {"commtrace": {"clock_probe": [{"at_ns": "soon"}] * 5000}})
    (message,) = messages(part, "bad-metadata")
    assert message.startswith("clock_probe has 5,000 like {'at_ns': 'soon'}")


def test_a_machine_that_cannot_be_is_none(tmp_path: Path) -> None:
    part = outcome(tmp_path, {"commtrace": {"machine": {"own_s": "all"}}})
    assert part.machine is None
    assert messages(part, "bad-metadata") == ["machine is {'own_s': 'all'}: taken as unknown"]


@pytest.mark.parametrize(
    "lines",
    [
        {"names": ["a.py:1"], "looks": [[1, 0, 10]]},
        {"names": ["a.py:1"], "looks": [[1, 0, 10, 2**60]]},
        {"names": ["a.py:1"], "looks": "AAAA"},
        {"names": 3, "looks": []},
        [],
    ],
)
def test_lines_that_cannot_be_are_none(tmp_path: Path, lines: Any) -> None:
    part = outcome(tmp_path, {"commtrace": {"machine": {"lines": lines}}})
    assert part.machine is None
    assert messages(part, "bad-metadata")[0].startswith("machine is {'lines': ")


def test_a_look_at_a_line_that_is_not_there_is_left_out(tmp_path: Path) -> None:
    said = {"names": ["a.py:1 in f"], "looks": [[5, 7, 10, 10], [9, 0, 10, 10]]}
    part = outcome(tmp_path, {"commtrace": {"rank": 0, "machine": {"lines": said}}})
    run = replace(Tiny().trace(), machines={0: part.machine})
    its = line_looks(run, 0)
    assert its is not None
    assert its.at_ns.tolist() == [9]


def test_a_shape_of_very_many_dimensions_is_none() -> None:
    long = Arguments(dims=[[2**61] * 100_000], types=["float"])
    assert described.annotation("gloo:all_reduce", long).in_elements is None


def test_an_unexpected_error_in_a_worker_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def failing(file: Path, otherwise: object, processes: int) -> workers.RankTrace:
        raise ZeroDivisionError

    monkeypatch.setattr(workers, "_outcome", failing)
    files = [tmp_path / "a.json", tmp_path / "b.json"]
    told = dict(workers.read_each(dict.fromkeys(files, RANK_0), workers=2))
    assert set(told) == set(files)
    for file, failure in told.items():
        assert isinstance(failure, workers.Failure)
        message = failure.why
        assert message.startswith(f"{file}: cannot be read: ZeroDivisionError in test_reader_host")
        assert message.endswith("a fault of commtrace's: please report it")
        assert "\n" not in message
    assert capfd.readouterr() == ("", "")


def test_want_of_memory_says_what_to_do(tmp_path: Path) -> None:
    with mock.patch.object(workers, "scan", side_effect=MemoryError):
        told = workers._outcome(tmp_path / "a.json", RANK_0)
    why = f"{tmp_path}/a.json: needs more memory than there is: try again with --workers 1"
    assert told == workers.Failure(why)


# Work.


def test_an_error_counts_no_lines() -> None:
    assert json.JSONDecodeError("", salvage.Text("\n" * 9), 9).lineno == 1


@pytest.mark.parametrize("opening", ['{"ph":', '{"a":1},{"ph":' + '{"ph":' * 3000])
def test_deep_junk_is_skipped_level_by_level(tmp_path: Path, opening: str) -> None:
    text = '{"traceEvents": [' + opening * (1_000_000 // len(opening))
    with mock.patch.object(salvage, "_value", wraps=salvage._value) as tried:
        scan(written(tmp_path, text.encode()))
    assert tried.call_count < 1500


@pytest.mark.parametrize(
    "junk", [b'{"ph":"X",', b"0,", b'"a",', b'{"ph":"X","name":"a"b","cat":', b'{"ph":1},']
)
def test_what_cannot_be_a_trace_is_given_up_early(tmp_path: Path, junk: bytes) -> None:
    file = written(tmp_path, b'{"traceEvents": [' + junk * 100_000)
    with (
        mock.patch.object(salvage, "_value", wraps=salvage._value) as tried,
        pytest.raises(TraceError, match=r"is no trace, or damaged throughout: .* record it again"),
    ):
        scan(file)
    assert tried.call_count < 10_100


def test_much_damage_without_an_event_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(document, "_LONGEST_BARREN", 1 << 20)
    with pytest.raises(TraceError, match="damaged throughout: 0 events"):
        scan(written(tmp_path, b"[" * (1 << 22)))


def test_a_trace_with_much_damage_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document, "_PATIENCE", 10)
    events = [json.dumps(KERNEL), *['{"ph": 1}'] * 5] * 100
    found = scan(written(tmp_path, ('{"traceEvents": [' + ", ".join(events) + "]}").encode()))
    assert found.gpu.start_ns.size == 100


@pytest.mark.parametrize("start", [b"", b"{", b"{{", b'{"a":['])
def test_the_list_of_events_is_looked_for_some_times_only(tmp_path: Path, start: bytes) -> None:
    text = start + b'"traceEvents": [],' * 50_000
    with mock.patch.object(document, "whole", wraps=document.whole) as tried:
        assert scan(written(tmp_path, text)).events == 0
    assert tried.call_count < 20


@pytest.mark.parametrize("key", ['"host_name": ', '"host_name": "x" ', '"distributedInfo": [['])
def test_broken_metadata_are_looked_through_some_times_only(key: str) -> None:
    with mock.patch.object(metadata, "_decoder", wraps=metadata._decoder) as decoder:
        metadata.known(key.encode() * 50_000)
    assert decoder.raw_decode.call_count < 20


class Looked(groups.Group):
    """A group that counts how often it is looked at."""

    count = 0

    def __getattribute__(self, name: str) -> Any:
        Looked.count += 1
        return super().__getattribute__(name)


def test_many_groups_and_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "Group", Looked)
    listed = [{"pg_name": str(n), "ranks": [0, 1]} for n in range(1000)]
    known = groups.Groups(listed, 2, 0)
    for n in range(1000):
        assert known.called(str(n)) is known.known[n]
        assert known.named(Arguments(group=str(n), group_ranks="[0, 1]")) is known.known[n]
        assert len(known.candidates(peer=1)) > 1
    assert Looked.count < 20_000


def test_ranks_that_few_words_imply_are_not_spelled_out_without_end(tmp_path: Path) -> None:
    most = 1_000_000
    listed = [{"pg_name": str(n), "pg_size": most} for n in range(50)]
    known = groups.Groups(listed, most, 0)
    assert (known.unlisted, sum(group.ranks is not None for group in known.known)) == (49, 1)
    spaced = Arguments(
        group="x", group_ranks="[0, 2, ...]", group_size=most, rank_start=0, rank_stride=2
    )
    group = known.named(spaced)
    assert group is not None
    assert (group.size, group.ranks, known.unlisted) == (most, None, 50)
    info = {"rank": 0, "world_size": most, "pg_config": listed[:2]}
    made = tables(scan(written(tmp_path, {"distributedInfo": info, "traceEvents": []})), RANK_0)
    assert (
        "1 process groups are so large"
        in {n.code: n.message for n in made.notes}["unlisted-groups"]
    )


def test_calls_within_calls_without_end() -> None:
    deep = [Call("cpu_op", "c10d::send", 1, n, 10_000 - 2 * n, Arguments()) for n in range(3000)]
    its = nest.Nest(deep)
    with mock.patch.object(nest, "_is_open", wraps=nest._is_open) as asked:
        assert its.around(3500)[0] is deep[-1]
    assert asked.call_count < 300


def test_one_call_has_some_operations_only() -> None:
    noted = {"profiling_name": "gloo:send", "process_group": ["0"], "time_created_ns": 5}
    recorder = flight.FlightRecorder({"entries": [noted] * 9000})
    assert len(recorder.within(0, 9, ("send",))) < 5000


class Counted(bytes):
    """A block that counts how often its length is asked for."""

    asked = 0

    def __len__(self) -> int:
        Counted.asked += 1
        return super().__len__()


def test_small_blocks_are_counted_once(tmp_path: Path) -> None:
    found = document.Document(tmp_path, document.Event, lambda events: None, wanted=None)
    found.feed(b'{"traceEvents": [{"ph": "' + b"x" * 5000)
    for _ in range(5000):
        found.feed(Counted(b" "))
    assert Counted.asked < 20_000


def test_what_nobody_reads_beside_the_events_is_not_decoded(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    odd = b"[" + b"[]," * 500_000 + b"[]]"
    file.write_bytes(b'{"odd": %b, "host_name": "a", "traceEvents": [], "more": %b}' % (odd, odd))
    tracemalloc.start()
    try:
        found = scan(file)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found.metadata["host_name"] == "a"
    assert most < 10 * file.stat().st_size
