"""Write the trace behind a published puzzle again, from its figures.

One process copied ten tensors of 10^7 float32 from GPU 0 to GPUs 1, 2 and 4, on a stream each,
in 4.5, 53.2 and 8.8 ms. Its author also measured each pair alone, at 93, 7.5 and 47 GB/s. The
trace holds just that: what was not published (launch times, stream numbers) is made up, evenly.

Source: https://github.com/anupambhatnagar/GPUPuzzlers, `_posts/2023-03-27-collectives.md`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from by_hand import Host, Json, device, device_events, document, host_event, names, save
from slim import HOST

FOLDER = Path(__file__).parent / "p2p_copies" / "hypercube-reconstructed"
SOURCE = "https://github.com/anupambhatnagar/GPUPuzzlers"
TENSORS = 10
BYTES = 40_000_000
TOGETHER_MS = {1: 4.5, 2: 53.2, 4: 8.8}
ALONE_GB_S = {1: 93.0, 2: 7.5, 4: 47.0}
LINKS = {1: "NV4", 2: "SYS", 4: "NV2"}
STREAMS = {1: 20, 2: 24, 4: 28}
GPUS = 8

BASE_NS = 1_679_875_200_000_000_000  # 27 March 2023, when the puzzle was published


def _copies(host: Host, label: str, duration_ns: dict[int, int]) -> Iterator[Json]:
    """Copy all tensors to each of these GPUs, and wait for the last."""
    begin_ns = host.now_ns
    for gpu, duration in duration_ns.items():
        for _ in range(TENSORS):
            yield from _copy(host, gpu, duration)
    yield host.synchronize()
    yield host.labelled(label, begin_ns)


def _copy(host: Host, gpu: int, duration_ns: int) -> Iterator[Json]:
    its = host.launch("aten::copy_", "cudaMemcpyAsync", 41, STREAMS[gpu], duration_ns)
    yield from its.events
    args = {
        "fromDevice": 0,
        "inDevice": 0,
        "toDevice": gpu,
        "fromContext": 1,
        "inContext": 1,
        "toContext": 1,
        "stream": STREAMS[gpu],
        "correlation": its.link,
        "bytes": BYTES,
        "memory bandwidth (GB/s)": BYTES / duration_ns,
    }
    name = "Memcpy PtoP (Device -> Device)"
    yield from device_events("gpu_memcpy", name, STREAMS[gpu], its, duration_ns, args)


def trace() -> Json:
    """All pairs together, then each alone, in one step."""
    host = Host()
    events = [*names(GPUS, STREAMS.values())]
    events += _copies(
        host, "together", {gpu: round(ms * 1e6 / TENSORS) for gpu, ms in TOGETHER_MS.items()}
    )
    for gpu, gb_s in ALONE_GB_S.items():
        events += _copies(host, f"to cuda:{gpu} alone", {gpu: round(BYTES / gb_s)})
    events.append(host_event("user_annotation", "ProfilerStep#1", 0, host.now_ns))
    devices = [device(gpu, "Tesla V100-SXM2-32GB", 34_089_730_048, 7, 80) for gpu in range(GPUS)]
    return document(events, source=SOURCE, base_ns=BASE_NS, devices=devices)


def manifest() -> Json:
    """As a recording's, but saying what it is."""
    return {
        "schema_version": 1,
        "reconstruction": True,
        "about": "Not recorded: written by traces/reconstruct_p2p.py from published figures.",
        "source": {
            "url": SOURCE,
            "file": "_posts/2023-03-27-collectives.md",
            "figures": {
                "tensors": TENSORS,
                "bytes_per_tensor": BYTES,
                "together_ms": {f"cuda:{gpu}": ms for gpu, ms in TOGETHER_MS.items()},
                "alone_gb_s": {f"cuda:{gpu}": gb_s for gpu, gb_s in ALONE_GB_S.items()},
            },
            "inferred": "V100: four and two NVLinks on GPU 0 make the six of a V100",
            "made_up": "launch times, stream numbers, the date",
        },
        "workload": {
            "name": "p2p_copies",
            "question": "Why do some GPUs get the same tensors much later than others?",
            "answer": [],
            "settings": {"elements": BYTES // 4, "tensors": TENSORS, "dtype": "float32"},
        },
        "iterations": 1,
        "warmup": 0,
        "backend": None,
        "world_size": 1,
        "hosts": [HOST],
        "devices": None,
        "topology": _topology(),
        "status": "complete",
        "error": None,
        "files": [{"rank": 0, "file": "rank0.json.gz"}],
    }


def expected() -> Json:
    """Per pair and label, GB/s to a part in ten thousand: the published figures, divided."""
    together = {gpu: TENSORS * BYTES / (ms * 1e6) for gpu, ms in TOGETHER_MS.items()}
    return {
        "workload": "p2p_copies",
        "pairs": [
            {
                "source": "cuda:0",
                "destination": f"cuda:{gpu}",
                "kind": "PtoP",
                "count": 2 * TENSORS,
                "bytes": 2 * TENSORS * BYTES,
                "gb_s": {"together": round(together[gpu], 2), "alone": ALONE_GB_S[gpu]},
            }
            for gpu in TOGETHER_MS
        ],
    }


def main() -> None:
    """Write the folder."""
    save(FOLDER, trace(), manifest(), expected())


def _topology() -> Json:
    """What was published of the links: GPU 0's. null is unknown."""
    links: list[list[str | None]] = [["X", *LINKS.values()]]
    for i, link in enumerate(LINKS.values(), 1):
        links.append([link, *("X" if i == j else None for j in range(1, len(LINKS) + 1))])
    return {"names": ["GPU0", *(f"GPU{gpu}" for gpu in LINKS)], "links": links}


if __name__ == "__main__":
    main()
