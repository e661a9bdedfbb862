"""What each workload calls, read off its code and nothing else.

The truth that the analysis of the recordings is held to. It knows the workloads' arguments
but no trace, and uses none of commtrace's code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

WIDTH = {"float32": 4, "float16": 2, "bfloat16": 2, "int64": 8}


@dataclass(frozen=True)
class Call:
    """One communication call of one rank.

    ``in_bytes`` and ``out_bytes`` are what the call's buffers hold on this rank, the same one
    for an operation in place; ``size_bytes`` is the full array; ``group`` the global ranks.
    """

    label: str | None
    op: str
    dtype: str | None
    size_bytes: int | None
    in_bytes: int | None
    out_bytes: int | None
    group: tuple[int, ...]
    root: int | None = None
    peer: int | None = None


@dataclass(frozen=True)
class Rank:
    """One rank of a recording: what a workload's code can ask for."""

    rank: int
    n: int
    settings: dict[str, Any]
    on_gpu: bool = False

    @property
    def everyone(self) -> tuple[int, ...]:
        """The default group's ranks."""
        return tuple(range(self.n))

    @property
    def ends(self) -> tuple[int, ...]:
        """The subgroup's ranks."""
        return (0, self.n - 1)

    @property
    def dtype(self) -> str:
        """The element type that was set."""
        return str(self.settings.get("dtype", "float32"))

    @property
    def bytes(self) -> int:
        """What ``elements`` of the type that was set take."""
        return int(self.settings["elements"]) * WIDTH[self.dtype]

    def groups(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """The label and the ranks of the default group, and of the subgroup if it is in it."""
        yield "default_group", self.everyone
        if self.rank in self.ends:
            yield "subgroup", self.ends

    def in_place(self, op: str, label: str | None, size: int, **other: Any) -> Call:
        """A call on one buffer, among all ranks unless given."""
        facts = {"dtype": self.dtype, "group": self.everyone, **other}
        return Call(label, op, size_bytes=size, in_bytes=size, out_bytes=size, **facts)

    def moved(
        self, op: str, label: str | None, given: int, got: int, group: tuple[int, ...], **other: Any
    ) -> Call:
        """A call on two buffers, the larger of which is the full array unless given."""
        facts = {"dtype": self.dtype, "size_bytes": max(given, got), **other}
        return Call(label, op, in_bytes=given, out_bytes=got, group=group, **facts)

    def send(self, label: str, peer: int, size: int) -> Call:
        """A send to a global rank."""
        return self.moved("send", label, size, 0, self.everyone, peer=peer)

    def recv(self, label: str, peer: int, size: int) -> Call:
        """A receive from a global rank."""
        return self.moved("recv", label, 0, size, self.everyone, peer=peer)


def _broadcast(r: Rank) -> Iterator[Call]:
    root = r.n - 1
    yield r.in_place("broadcast", "int64", 3 * WIDTH["int64"], dtype="int64", root=root)
    for label, group in r.groups():
        yield r.in_place("broadcast", label, r.bytes, group=group, root=root)


def _reduce(r: Rank) -> Iterator[Call]:
    for label, group in r.groups():
        yield r.in_place("reduce", label, r.bytes, group=group, root=0)


def _all_reduce(r: Rank) -> Iterator[Call]:
    for label in ("SUM", "PRODUCT", "MIN", "MAX", "AVG"):
        yield r.in_place("all_reduce", label, r.bytes)
    if r.rank in r.ends:
        yield r.in_place("all_reduce", "subgroup", r.bytes, group=r.ends)


def _scatter(r: Rank) -> Iterator[Call]:
    cases = [("default_group", r.everyone, r.bytes, r.dtype), ("int64", r.everyone, 16, "int64")]
    cases += [("subgroup", r.ends, r.bytes, r.dtype)] if r.rank in r.ends else []
    for label, group, part, dtype in cases:
        whole = part * len(group)
        given = whole if r.rank == 0 else 0
        yield r.moved("scatter", label, given, part, group, size_bytes=whole, dtype=dtype, root=0)


def _gather(r: Rank) -> Iterator[Call]:
    for label, group in r.groups():
        whole = r.bytes * len(group)
        got = whole if r.rank == 0 else 0
        yield r.moved("gather", label, r.bytes, got, group, size_bytes=whole, root=0)


def _all_gather(r: Rank) -> Iterator[Call]:
    for label in ("list", "tensor"):
        yield r.moved("all_gather", label, r.bytes, r.bytes * r.n, r.everyone)
    if r.rank in r.ends:
        yield r.moved("all_gather", "subgroup", r.bytes, r.bytes * 2, r.ends)


def _reduce_scatter(r: Rank) -> Iterator[Call]:
    for label in ("list", "tensor"):
        yield r.moved("reduce_scatter", label, r.bytes * r.n, r.bytes, r.everyone)
    if r.rank in r.ends:
        yield r.moved("reduce_scatter", "subgroup", r.bytes * 2, r.bytes, r.ends)


def _all_to_all(r: Rank) -> Iterator[Call]:
    for label in ("list", "tensor"):
        yield r.moved("all_to_all", label, r.bytes * r.n, r.bytes * r.n, r.everyone)
    if r.rank in r.ends:
        yield r.moved("all_to_all", "subgroup", r.bytes * 2, r.bytes * 2, r.ends)
    given = r.bytes * sum(range(1, r.n + 1))
    yield r.moved("all_to_all", "uneven", given, r.bytes * (r.rank + 1) * r.n, r.everyone)


def _barrier(r: Rank) -> Iterator[Call]:
    for label, group in r.groups():
        yield Call(label, "barrier", None, None, None, None, group)


def _send_recv(r: Rank) -> Iterator[Call]:
    peer = r.rank ^ 1
    if peer < r.n:
        first = r.rank < peer
        for label, sends in (("ping", first), ("pong", not first)):
            yield (r.send if sends else r.recv)(label, peer, r.bytes)


def _isend_irecv(r: Rank) -> Iterator[Call]:
    for label in ("separate", "batched"):
        send = r.send(label, (r.rank + 1) % r.n, r.bytes)
        recv = r.recv(label, (r.rank - 1) % r.n, r.bytes)
        yield from (recv, send) if label == "separate" and r.rank % 2 else (send, recv)


def _decomposed_all_reduce(r: Rank) -> Iterator[Call]:
    shard = -(-int(r.settings["elements"]) // r.n) * WIDTH[r.dtype]
    tensor = shard * r.n
    part = shard if r.settings["variant"] == "matched" else tensor
    yield r.in_place("all_reduce", "all_reduce", tensor)
    yield r.in_place("reduce", "reduce + broadcast", tensor, root=0)
    yield r.in_place("broadcast", "reduce + broadcast", tensor, root=0)
    label = "reduce_scatter + all_gather"
    yield r.moved("reduce_scatter", label, part * r.n, part, r.everyone)
    yield r.moved("all_gather", label, part, part * r.n, r.everyone)


def _broadcast_precision(r: Rank) -> Iterator[Call]:
    elements = int(r.settings["elements"]) or (100_000_000 if r.on_gpu else 1_000_000)
    for dtype in ("float32", "float16", "bfloat16"):
        yield r.in_place("broadcast", dtype, elements * WIDTH[dtype], dtype=dtype, root=0)


def _overlap(r: Rank) -> Iterator[Call]:
    for label in ("synchronous", "overlapped", "waited_too_early"):
        yield r.in_place("all_reduce", label, r.bytes)


def _cold_start(r: Rank) -> Iterator[Call]:
    for label in ("first_all_reduce", "second_all_reduce"):
        yield r.in_place("all_reduce", label, r.bytes)
    for label in ("first_recv", "second_recv"):
        if r.rank < 2:
            yield (r.recv if r.rank else r.send)(label, 1 - r.rank, r.bytes)


def _straggler(r: Rank) -> Iterator[Call]:
    yield r.in_place("all_reduce", "all_reduce", r.bytes)


def _pipeline(r: Rank) -> Iterator[Call]:
    size = int(r.settings["width"]) ** 2 * WIDTH[r.dtype]
    for label, source, target in (
        ("forward", r.rank - 1, r.rank + 1),
        ("backward", r.rank + 1, r.rank - 1),
    ):
        for _ in range(int(r.settings["micro_batches"])):
            if source in r.everyone:
                yield r.recv(label, source, size)
            if target in r.everyone:
                yield r.send(label, target, size)


def _ddp_training(r: Rank) -> Iterator[Call]:
    layer = int(r.settings["width"]) ** 2 * WIDTH["float32"]
    # DDP closes a bucket with the layer that fills it.
    per_bucket = -(-int(float(r.settings["bucket_mb"]) * 1024**2) // layer)
    layers, micro_batches = int(r.settings["layers"]), int(r.settings["micro_batches"])
    buckets = [min(per_bucket, layers - i) * layer for i in range(0, layers, per_bucket)]
    for label, reduced in (("sync_always", micro_batches), ("no_sync", 1)):
        for size in buckets * reduced:
            yield r.in_place("all_reduce", label, size)


CALLS: dict[str, Callable[[Rank], Iterator[Call]]] = {
    function.__name__.removeprefix("_"): function
    for function in (
        *(_broadcast, _reduce, _all_reduce, _scatter, _gather, _all_gather, _reduce_scatter),
        *(_all_to_all, _barrier, _send_recv, _isend_irecv, _decomposed_all_reduce),
        *(_broadcast_precision, _overlap, _cold_start, _straggler, _pipeline, _ddp_training),
    )
}


def expected(manifest: dict[str, Any]) -> dict[str, Any]:
    """What ``expected.json`` says of a recording: each rank's calls, in order, in every step."""
    name, settings = manifest["workload"]["name"], manifest["workload"]["settings"]
    n, on_gpu = manifest["world_size"], manifest["backend"] == "nccl"
    return {
        "workload": name,
        "steps": list(range(1, manifest["iterations"] + 1)),
        "calls_per_step": {
            str(rank): [asdict(call) for call in CALLS[name](Rank(rank, n, settings, on_gpu))]
            for rank in range(n)
        },
    }
