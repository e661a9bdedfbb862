"""Make a recording small: keep what commtrace reads, in Kineto's own layout.

``python traces/slim.py FOLDER`` rewrites the traces of a folder in place.
"""

from __future__ import annotations

import gzip
import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from commtrace.comms import is_communication_call
from commtrace.reader.json.events import Arguments

HOST = "host"
CATEGORIES = {
    *("kernel", "gpu_memcpy", "gpu_memset", "cuda_runtime", "cuda_driver", "cuda_sync", "ac2g"),
    *("user_annotation", "gpu_user_annotation"),
}
METADATA = {"process_name", "process_labels", "thread_name"}
ARGUMENTS = {field.encode_name for field in msgspec.structs.fields(Arguments)}

Json = dict[str, Any]


def slim_folder(folder: Path) -> None:
    """Slim every trace of a folder, and take the host's name out of its manifest."""
    for path in sorted(folder.glob("*.json.gz")):
        write(path, slim(json.loads(gzip.decompress(path.read_bytes())), path.name))
    manifest = folder / "manifest.json"
    facts = json.loads(manifest.read_text("utf-8"))
    facts["hosts"] = [HOST for _ in facts["hosts"]]
    manifest.write_text(json.dumps(facts, indent=2, ensure_ascii=False) + "\n", "utf-8")


def slim(trace: Json, name: str) -> Json:
    """A trace without what commtrace does not read, nor what names the machine."""
    events = trace["traceEvents"]
    called = set(_called(events))
    kept = [_event(event) for i, event in enumerate(events) if i not in called and _wanted(event)]
    small = {**trace, "traceEvents": kept, "host_name": HOST, "traceName": name}
    if "commtrace" in trace:
        small["commtrace"] = {**trace["commtrace"], "host": HOST}
    return small


def write(path: Path, trace: Json) -> None:
    """Write a trace, event by event as Kineto does; the same trace gives the same bytes."""
    buffer = io.BytesIO()
    with gzip.GzipFile(fileobj=buffer, mode="wb", filename="", mtime=0) as file:
        file.write("\n".join(_lines(trace)).encode())
    path.write_bytes(buffer.getvalue())


def _wanted(event: Json) -> bool:
    if event["ph"] == "M":
        return event["name"] in METADATA
    return event.get("cat") in CATEGORIES or event.get("cat") == "cpu_op"


def _called(events: list[Json]) -> Iterator[int]:
    """The operators that another one calls, but for those that communicate."""
    ends: dict[Any, float] = {}
    ops = [i for i, event in enumerate(events) if event.get("cat") == "cpu_op"]
    for i in sorted(ops, key=lambda i: (events[i]["ts"], -events[i]["dur"])):
        event, thread = events[i], (events[i]["pid"], events[i]["tid"])
        end = event["ts"] + event["dur"]
        if end > ends.get(thread, end - 1):
            ends[thread] = end
        elif not is_communication_call(event["name"]):
            yield i


def _event(event: Json) -> Json:
    host_side = event.get("cat") in ("cpu_op", "user_annotation")
    if not host_side:
        return event
    communicates = is_communication_call(event["name"]) or event["name"].startswith("gloo:")
    args = event.get("args", {})
    return {**event, "args": {k: v for k, v in args.items() if communicates and k in ARGUMENTS}}


def _lines(trace: Json) -> Iterator[str]:
    yield "{"
    for key, value in trace.items():
        if key not in ("traceEvents", "traceName"):
            yield f"  {json.dumps(key)}: {json.dumps(value)},"
    yield '  "traceEvents": ['
    last = len(trace["traceEvents"]) - 1
    for i, event in enumerate(trace["traceEvents"]):
        args = {"args": event["args"]} if "args" in event else {}
        head = json.dumps({k: v for k, v in event.items() if k != "args"})[1:-1]
        yield "  {"
        yield f"    {head}{',' if args else ''}"
        if args:
            yield from ('    "args": {', f"      {json.dumps(args['args'])[1:-1]}", "    }")
        yield "  }" if i == last else "  },"
    yield f'  ], "traceName": {json.dumps(trace["traceName"])}'
    yield "}\n"


if __name__ == "__main__":
    slim_folder(Path(sys.argv[1]))
