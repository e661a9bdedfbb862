"""Write a trace of copies between host and GPU from published figures.

Three puzzles of one author, put on one GPU behind each other:

- matrix products on one stream, a hundred copies of 4 MB to the host on a second, a hundred from
  the host on a third: from pageable memory, blocking, and from pinned memory, non-blocking. To the
  host they took 78 and 33 ms; only non-blocking all three streams overlapped.
- 17 GB to an A100 made 4.2 GB/s from pageable memory, 12 from pinned: the rates used here for the
  copies from the host.
- 4,096 elements brought to the host one by one took 26 µs each, and all at once next to nothing.

What was not published (launch times, stream numbers, how long products take) is made up, evenly.

Source: https://github.com/anupambhatnagar/GPUPuzzlers, `_posts/2023-03-13-swimming-in-streams.md`,
`2023-03-06-memorable-mysteries.md` and `2023-02-13-d2h-sync.md`, with their answers.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from by_hand import Host, Json, device, device_events, document, host_event, names, save
from slim import HOST

Kind = Literal["DtoH", "HtoD"]
Memory = Literal["Pageable", "Pinned"]

FOLDER = Path(__file__).parent / "host_device_copies" / "puzzles-reconstructed"
SOURCE = "https://github.com/anupambhatnagar/GPUPuzzlers"
BASE_NS = 1_678_665_600_000_000_000  # 13 March 2023
COPIES, BYTES = 100, 4 * 1024 * 1024
TO_HOST_MS: dict[Memory, float] = {"Pageable": 78.0, "Pinned": 33.0}
FROM_HOST_GB_S: dict[Memory, float] = {"Pageable": 4.2, "Pinned": 12.0}
PRODUCTS, PRODUCT_NS = 100, 750_000  # of the puzzle's thousand, each ten times as long
ELEMENTS, ELEMENT_NS = 1024, 26_000  # of the puzzle's 4,096
SMALL_NS = 1_500  # a copy of 4 bytes to 16 kB
STREAMS = {"product": 7, "DtoH": 20, "HtoD": 24}
DEFAULT_STREAM = 7


def trace() -> Json:
    """All in one step."""
    host = Host()
    events = [*names(1, STREAMS.values())]
    events += _three_streams(host, "blocking, pageable", "Pageable")
    events += _three_streams(host, "non-blocking, pinned", "Pinned")
    events += _elements(host, "one by one", ELEMENTS, 4)
    events += _elements(host, "at once", 1, 4 * ELEMENTS)
    events.append(host_event("user_annotation", "ProfilerStep#1", 0, host.now_ns))
    a100 = device(0, "NVIDIA A100-PCIE-40GB", 42_297_786_368, 8, 108)
    return document(events, source=SOURCE, base_ns=BASE_NS, devices=[a100])


def _three_streams(host: Host, label: str, memory: Memory) -> Iterator[Json]:
    begin_ns = host.now_ns
    for _ in range(PRODUCTS):
        yield from _product(host)
    to_host_ns = round(1e6 * TO_HOST_MS[memory] / COPIES)
    from_host_ns = round(BYTES / FROM_HOST_GB_S[memory])
    for _ in range(COPIES):
        yield from _copy(host, "DtoH", memory, BYTES, to_host_ns, STREAMS["DtoH"])
    for _ in range(COPIES):
        yield from _copy(host, "HtoD", memory, BYTES, from_host_ns, STREAMS["HtoD"])
    yield host.synchronize()
    yield host.labelled(label, begin_ns)


def _elements(host: Host, label: str, count: int, size: int) -> Iterator[Json]:
    """``.cpu()`` again and again: the host waits for each."""
    begin_ns = host.now_ns
    for _ in range(count):
        called_ns = host.now_ns
        yield from _copy(host, "DtoH", "Pageable", size, SMALL_NS, DEFAULT_STREAM)
        host.now_ns = called_ns + ELEMENT_NS
    yield host.labelled(label, begin_ns)


def _product(host: Host) -> Iterator[Json]:
    stream = STREAMS["product"]
    its = host.launch("aten::mm", "cudaLaunchKernel", 211, stream, PRODUCT_NS)
    yield from its.events
    args = {"device": 0, "context": 1, "stream": stream, "correlation": its.link}
    yield from device_events("kernel", "ampere_sgemm_128x128_nn", stream, its, PRODUCT_NS, args)


def _copy(
    host: Host, kind: Kind, memory: Memory, size: int, took_ns: int, stream: int
) -> Iterator[Json]:
    ends = f"Device -> {memory}" if kind == "DtoH" else f"{memory} -> Device"
    blocking = memory == "Pageable"
    its = host.launch("aten::copy_", "cudaMemcpyAsync", 41, stream, took_ns, blocking=blocking)
    yield from its.events
    args = {
        "device": 0,
        "context": 1,
        "stream": stream,
        "correlation": its.link,
        "bytes": size,
        "memory bandwidth (GB/s)": size / took_ns,
    }
    yield from device_events("gpu_memcpy", f"Memcpy {kind} ({ends})", stream, its, took_ns, args)


def manifest() -> Json:
    """As a recording's, but saying what it is."""
    return {
        "schema_version": 1,
        "reconstruction": True,
        "about": "Not recorded: written by traces/reconstruct_copies.py from published figures.",
        "source": {
            "url": SOURCE,
            "files": [
                "_posts/2023-03-13-swimming-in-streams.md",
                "_posts/2023-03-06-memorable-mysteries.md",
                "_posts/2023-02-13-d2h-sync.md",
            ],
            "figures": {
                "copies": COPIES,
                "bytes_per_copy": BYTES,
                "to_host_ms": TO_HOST_MS,
                "from_host_gb_s": FROM_HOST_GB_S,
                "one_element_us": ELEMENT_NS / 1e3,
            },
            "inferred": "that the rates of the second puzzle hold for the copies of the first",
            "made_up": "launch times, stream numbers, how long products and small copies take, "
            "the date; a hundred products instead of a thousand, 1,024 elements instead of 4,096",
        },
        "workload": {
            "name": "host_device_copies",
            "question": "What does it cost to bring tensors to the GPU and back?",
            "answer": ["duration_ns_p50", "blocking, pageable", "non-blocking, pinned"],
            "settings": {"elements": BYTES // 4, "dtype": "float32"},
        },
        "iterations": 1,
        "warmup": 0,
        "backend": None,
        "world_size": 1,
        "hosts": [HOST],
        "devices": None,
        "topology": None,
        "status": "complete",
        "error": None,
        "files": [{"rank": 0, "file": "rank0.json.gz"}],
    }


def expected() -> Json:
    """Per label, kind and memory: how many copies, their bytes, and GB/s as published."""
    large = [
        {
            "label": label,
            "kind": kind,
            "memory": memory.lower(),
            "count": COPIES,
            "bytes": COPIES * BYTES,
            "gb_s": round(gb_s, 3),
        }
        for label, memory in (
            ("blocking, pageable", "Pageable"),
            ("non-blocking, pinned", "Pinned"),
        )
        for kind, gb_s in (
            ("DtoH", COPIES * BYTES / (1e6 * TO_HOST_MS[memory])),
            ("HtoD", FROM_HOST_GB_S[memory]),
        )
    ]
    return {
        "workload": "host_device_copies",
        "copies": large,
        "one_by_one": {"count": ELEMENTS, "duration_ns": ELEMENTS * ELEMENT_NS},
    }


def main() -> None:
    """Write the folder."""
    save(FOLDER, trace(), manifest(), expected())


if __name__ == "__main__":
    main()
