"""Generated layouts: what training on a mesh leaves in the traces, and each group's dimension."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import prod
from typing import Any

import numpy as np
import pytest

from commtrace import trace_tables as schema
from commtrace.comms import full_size_bytes
from commtrace.measures import Measures

BASE_NS = 1_700_000_000_000_000_000
BYTES_PER_US = 100_000
MB = 1 << 20
_MAIN, _AUTOGRAD = 1, 2


@dataclass(frozen=True)
class Layout:
    """A mesh, slowest dimension first, and how each dimension is used.

    ``grads`` is ``ddp``, ``zero1``, ``fsdp`` or ``hsdp`` (with ``dp_replicate`` in the mesh);
    ``tp`` is ``all_reduce`` or ``sequence``, ``cp`` is ``ring``, ``ulysses`` or ``packed``, ``pp``
    is ``gpipe`` or ``1f1b``.
    """

    mesh: dict[str, int]
    grads: str = "ddp"
    tp: str = "all_reduce"
    cp: str = "ring"
    pp: str = "1f1b"
    even_experts: bool = False
    recompute: bool = False
    layers: int = 4
    micro_batches: int = 4
    steps: int = 2
    names: str | None = None  # mesh, megatron
    seed: int = 0


@dataclass(frozen=True)
class Trained:
    """A run, and the dimension that each group, by its name, truly shows; None for none."""

    run: Measures
    truth: dict[str, str | None]


@pytest.fixture(scope="session")
def train() -> Callable[[Layout], Trained]:
    """Runs a layout."""
    return lambda layout: _Job(layout).trained()


@dataclass
class _Rank:
    rank: int
    at: dict[str, int]
    program: list[tuple[Any, ...]] = field(default_factory=list)
    now: float = 0.0


class _Job:
    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.rng = np.random.default_rng(layout.seed)
        sizes = layout.mesh.values()
        places = product(*map(range, sizes))
        self.ranks = [
            _Rank(n, dict(zip(layout.mesh, place, strict=True))) for n, place in enumerate(places)
        ]
        self.everyone = tuple(range(prod(sizes)))
        self.groups: dict[tuple[str, tuple[int, ...]], str] = {("", self.everyone): "0"}
        self.described = {"0": "default_pg"}
        self.rows: list[dict[str, Any]] = []
        self.computed: list[dict[str, Any]] = []
        self.activation = int(self.rng.integers(8, 64)) * MB
        self.parameters = int(self.rng.integers(8, 400)) * MB

    def size(self, dimension: str) -> int:
        return self.layout.mesh.get(dimension, 1)

    def group(self, rank: _Rank, *dimensions: str) -> tuple[int, ...]:
        """The ranks that differ in these dimensions only."""
        return tuple(
            other.rank
            for other in self.ranks
            if all(other.at[d] == at for d, at in rank.at.items() if d not in dimensions)
        )

    def make(self, use: str, *dimensions: str) -> None:
        """A group for each place in the other dimensions."""
        for rank in self.ranks:
            members = self.group(rank, *dimensions)
            if len(members) > 1 and (use, members) not in self.groups:
                number = self.groups[use, members] = str(len(self.groups))
                named = {"mesh": f"mesh_{use}", "megatron": _MEGATRON.get(use)}
                if described := named.get(self.layout.names or ""):
                    self.described[number] = described

    def trained(self) -> Trained:
        for dimension in self.layout.mesh:
            self.make(dimension, dimension)
        self.make("dp", *self.shard)
        self.make("expert_dp", *_EXPERTS)
        self.make("mp", "tp", "pp")
        for step in range(self.layout.steps):
            for rank in self.ranks:
                rank.program += [("step", step), *self.step(rank)]
        _simulate(self)
        used = {row["name"] for row in self.rows if row["size_bytes"] > 1024}
        truth = {
            number: _TRUTH.get(use) if number in used else None
            for (use, _), number in self.groups.items()
        }
        return Trained(_measures(self), truth)

    def step(self, rank: _Rank) -> Iterator[tuple[Any, ...]]:
        stage, stages = rank.at.get("pp", 0), self.size("pp")
        batches = self.layout.micro_batches
        warm_up = batches if self.layout.pp == "gpipe" else min(batches, stages - 1 - stage)
        before = self.neighbour(rank, "pp", -1) if stage else None
        after = self.neighbour(rank, "pp", 1) if stage < stages - 1 else None
        done = 0
        for batch in range(batches + warm_up):
            if batch < batches:
                if before is not None:
                    yield ("recv", before, self.activation, "pp")
                yield from self.forward(rank)
                if after is not None:
                    yield ("send", after, self.activation, "pp")
            if batch >= warm_up:
                if after is not None:
                    yield ("recv", after, self.activation, "pp")
                done += 1
                yield from self.backward(rank, last=done == batches)
                if before is not None:
                    yield ("send", before, self.activation, "pp")
        yield from self.finish(rank)

    def neighbour(self, rank: _Rank, dimension: str, by: int) -> int:
        members = self.group(rank, dimension)
        return members[(members.index(rank.rank) + by) % len(members)]

    def forward(self, rank: _Rank) -> Iterator[tuple[Any, ...]]:
        yield ("thread", _MAIN)
        if self.layout.grads in ("fsdp", "hsdp"):
            yield from self.over(rank, "dp", "all_gather", self.parameters // 3)
        for _ in range(self.layout.layers):
            if self.layout.grads in ("fsdp", "hsdp"):
                yield from self.over(rank, "dp", "all_gather", self.parameters)
            yield from self.layer(rank, 300)
        yield ("compute", 100)

    def backward(self, rank: _Rank, *, last: bool) -> Iterator[tuple[Any, ...]]:
        yield ("thread", _AUTOGRAD)
        grads = self.layout.grads
        for layer in range(self.layout.layers):
            if grads in ("fsdp", "hsdp"):
                yield from self.over(rank, "dp", "all_gather", self.parameters)
            if self.layout.recompute:
                yield from self.layer(rank, 300)
            yield from self.layer(rank, 600, backward=True)
            if grads in ("fsdp", "hsdp"):
                yield from self.over(rank, "dp", "reduce_scatter", self.parameters)
                if grads == "hsdp":
                    part = self.parameters // prod(map(self.size, self.shard))
                    yield from self.over(rank, "dp_replicate", "all_reduce", part)
            elif last:
                op = "all_reduce" if grads == "ddp" else "reduce_scatter"
                yield from self.over(rank, "dp", op, self.parameters + layer * MB)
                if self.size("ep") > 1:
                    yield from self.over(rank, "expert_dp", op, 2 * self.parameters)

    @property
    def shard(self) -> tuple[str, ...]:
        return tuple(d for d in _DENSE if d != "dp_replicate" or self.layout.grads == "fsdp")

    def layer(
        self, rank: _Rank, compute_us: float, *, backward: bool = False
    ) -> Iterator[tuple[Any, ...]]:
        yield from self.tensor(rank, compute_us / 2, backward=backward)
        yield from self.attention(rank, compute_us / 4)
        yield from self.tensor(rank, compute_us / 2, backward=backward)
        for _ in range(2):
            sent = self.activation if self.layout.even_experts else None
            yield from self.over(rank, "ep", "all_to_all", sent)
            yield ("compute", compute_us / 4)

    def tensor(
        self, rank: _Rank, compute_us: float, *, backward: bool
    ) -> Iterator[tuple[Any, ...]]:
        if self.layout.tp == "sequence":
            for _ in range(2 if backward else 1):
                yield from self.over(rank, "tp", "all_gather", self.activation)
        yield ("compute", compute_us)
        op = "reduce_scatter" if self.layout.tp == "sequence" else "all_reduce"
        yield from self.over(rank, "tp", op, self.activation)

    def attention(self, rank: _Rank, compute_us: float) -> Iterator[tuple[Any, ...]]:
        n = self.size("cp")
        if n == 1:
            return
        if self.layout.cp == "ring":
            for _ in range(n - 1):
                after, before = self.neighbour(rank, "cp", 1), self.neighbour(rank, "cp", -1)
                yield ("exchange", after, before, self.activation // n, "cp")
                yield ("compute", compute_us / n)
            return
        packed = self.layout.cp == "packed"
        for size in (3 * self.activation,) if packed else (self.activation,) * 3:
            yield from self.over(rank, "cp", "all_to_all", size)
        yield ("compute", compute_us)
        yield from self.over(rank, "cp", "all_to_all", self.activation)

    def finish(self, rank: _Rank) -> Iterator[tuple[Any, ...]]:
        yield ("thread", _MAIN)
        if self.layout.grads == "zero1":
            for layer in range(self.layout.layers):
                yield from self.over(rank, "dp", "all_gather", self.parameters + layer * MB)
        yield from self.over(rank, "mp", "all_reduce", 4)
        yield from self.over(rank, "", "all_reduce", 8)
        yield ("compute", 100)

    def over(self, rank: _Rank, use: str, op: str, size: int | None) -> Iterator[tuple[Any, ...]]:
        members = self.group(rank, *self.dimensions(use))
        if len(members) > 1:
            yield ("collective", (use, members), op, size)

    def dimensions(self, use: str) -> tuple[str, ...]:
        uses = {"": tuple(self.layout.mesh), "dp": self.shard, "expert_dp": _EXPERTS}
        return uses.get(use, ("tp", "pp") if use == "mp" else (use,))


_DENSE = ("dp", "dp_replicate", "dp_shard", "cp", "ep")
_EXPERTS = ("dp", "dp_replicate", "dp_shard", "cp")
_TRUTH = {
    **{name: name for name in ("dp", "tp", "pp", "ep", "cp")},
    **dict.fromkeys(("dp_replicate", "dp_shard", "expert_dp"), "dp"),
}
_MEGATRON = {
    "dp": "DATA_PARALLEL_GROUP_WITH_CP",
    "tp": "TENSOR_MODEL_PARALLEL_GROUP",
    "pp": "PIPELINE_MODEL_PARALLEL_GROUP",
    "ep": "EXPERT_MODEL_PARALLEL_GROUP",
    "cp": "CONTEXT_PARALLEL_GROUP",
    "mp": "MODEL_PARALLEL_GROUP",
    "expert_dp": "EXPERT_DATA_PARALLEL_GROUP",
}


def _simulate(job: _Job) -> None:
    """Let every rank run its program; who needs others waits for them."""
    waiting: dict[Any, dict[int, tuple[Any, ...]]] = defaultdict(dict)
    count: dict[Any, int] = defaultdict(int)
    place = [0] * len(job.ranks)
    step = [0] * len(job.ranks)
    thread = [_MAIN] * len(job.ranks)
    ready = list(job.ranks)

    def done(members: Sequence[int], end: float) -> None:
        for member in members:
            job.ranks[member].now = end
            place[member] += 1
            ready.append(job.ranks[member])

    def keep(
        rank: int,
        group: tuple[str, tuple[int, ...]],
        op: str,
        start: float,
        end: float,
        **more: Any,
    ) -> None:
        job.rows.append(
            {"rank": rank, "op": op, "start": start, "end": end, "step": step[rank], **more}
            | {"name": job.groups[group], "group_size": len(group[1]), "thread": thread[rank]}
        )

    while ready:
        rank = ready.pop()
        if place[rank.rank] == len(rank.program):
            continue
        what, *rest = rank.program[place[rank.rank]]
        if what in ("step", "thread"):
            (step if what == "step" else thread)[rank.rank] = rest[0]
            done([rank.rank], rank.now)
        elif what == "compute":
            end = rank.now + rest[0] * job.rng.uniform(0.9, 1.1)
            where = {"rank": rank.rank, "step": step[rank.rank], "thread": thread[rank.rank]}
            job.computed.append({**where, "start": rank.now, "end": end})
            done([rank.rank], end)
        elif what == "collective":
            group, op, size = rest
            members = group[1]
            turn = (group, count[rank.rank, group])
            count[rank.rank, group] += 1
            waiting[turn][rank.rank] = (rank.now, size)
            if len(waiting[turn]) < len(members):
                continue
            met = waiting.pop(turn)
            last = max(start for start, _ in met.values())
            sizes = {
                r: s or int(job.activation * job.rng.uniform(0.5, 1.5)) for r, (_, s) in met.items()
            }
            end = last + 10 + max(sizes.values()) / BYTES_PER_US
            for r, (start, told) in met.items():
                other = sizes[r] if told else int(sizes[r] * job.rng.uniform(0.5, 1.5))
                n = len(members)
                ins = sizes[r] // n if op == "all_gather" else sizes[r]
                outs = sizes[r] // n if op == "reduce_scatter" else other
                size = full_size_bytes(op, ins, outs, n)
                keep(r, group, op, start, end, size_bytes=size, in_bytes=ins, out_bytes=outs)
            done(members, end)
        elif what == "exchange":
            after, before, size, dimension = rest
            members = job.group(rank, dimension)
            group = (dimension, members)
            turn = (members, "ring", count[rank.rank, "ring"])
            count[rank.rank, "ring"] += 1
            waiting[turn][rank.rank] = (rank.now, after, before)
            if len(waiting[turn]) < len(members):
                continue
            met = waiting.pop(turn)
            end = max(start for start, *_ in met.values()) + 10 + size / BYTES_PER_US
            for r, (start, to, of) in met.items():
                more = {"size_bytes": size, "in_bytes": size, "out_bytes": size}
                keep(r, group, "send", start, end, peer=to, **more)
                keep(r, group, "recv", start, end, peer=of, **more)
            done(members, end)
        else:
            peer, size, dimension = rest
            link = (rank.rank, peer) if what == "send" else (peer, rank.rank)
            turn = (link, what, count[link, what])
            count[link, what] += 1
            waiting[turn][rank.rank] = (rank.now,)
            other = (link, "recv" if what == "send" else "send", turn[2])
            more = {"size_bytes": size, "in_bytes": size, "out_bytes": size}
            group = (dimension, job.group(rank, dimension))
            if what == "send":  # without waiting for the receiver
                keep(rank.rank, group, "send", rank.now, rank.now + 10, peer=peer, **more)
                done([rank.rank], rank.now)
                if other in waiting:
                    (start,) = waiting.pop(other).values().__iter__().__next__()
                    end = max(start, rank.now) + 10 + size / BYTES_PER_US
                    keep(peer, group, "recv", start, end, peer=rank.rank, **more)
                    waiting.pop(turn)
                    done([peer], end)
            elif other in waiting:
                (sent,) = waiting.pop(other).values().__iter__().__next__()
                end = max(rank.now, sent) + 10 + size / BYTES_PER_US
                keep(rank.rank, group, "recv", rank.now, end, peer=peer, **more)
                waiting.pop(turn)
                done([rank.rank], end)


def _measures(job: _Job) -> Measures:
    def times(row: dict[str, Any]) -> dict[str, Any]:
        start, end = (BASE_NS + round(row[name] * 1000) for name in ("start", "end"))
        times = {"start_ns": start, "duration_ns": end - start, "launch_ns": start}
        return {**times, **{name: row[name] for name in ("rank", "step", "thread")}}

    def kernel(row: dict[str, Any], kind: str, stream: int) -> dict[str, Any]:
        at = {"device": "cuda:0", "stream": stream, "correlation": None}
        return {**times(row), **at, "name": kind, "kind": kind}

    collectives = [
        {
            **dict.fromkeys(column.name for column in schema.COLLECTIVES.columns),
            **{name: row[name] for name in ("op", "size_bytes", "in_bytes", "out_bytes")},
            **times(row),
            "group": row["name"],
            "executed": row["op"],
            "dtype": "bfloat16",
            "group_size": row["group_size"],
            "device": "cuda:0",
            "stream": 20,
            "peer": row.get("peer"),
            "name": "communication",
            "provenance": "kernel",
            "group_provenance": "metadata",
        }
        for row in job.rows
    ]
    collectives.sort(key=lambda row: row["start_ns"])
    kernels = [
        *(kernel(row, "compute", 7) for row in job.computed),
        *(kernel(row, "communication", 20) for row in job.rows),
    ]
    whole = {"start": 0, "end": max(row["end"] for row in job.rows), "thread": _MAIN, "step": 0}
    groups = [
        {
            "rank": rank,
            "group": name,
            "description": job.described.get(name),
            "backend": "nccl",
            "size": len(members),
            "ranks": ",".join(map(str, members)),
        }
        for (_, members), name in job.groups.items()
        for rank in members
    ]
    ranks = [
        {
            **dict.fromkeys(column.name for column in schema.RANKS.columns),
            "rank": rank,
            "file": f"rank{rank}.json",
            "host": "host",
            "world_size": len(job.ranks),
            "gpu": None,
            "rank_provenance": "metadata",
            "events": 1,
        }
        for rank in job.everyone
    ]
    return Measures(
        kernels=schema.KERNELS.of_dicts(kernels),
        copies=schema.COPIES.rows(),
        blocking_calls=schema.BLOCKING_CALLS.rows(),
        synchronisations=schema.SYNCHRONISATIONS.rows(),
        collectives=schema.COLLECTIVES.of_dicts(collectives),
        ops=schema.OPS.rows(),
        host_operators=schema.HOST_OPERATORS.rows(),
        host_gaps=schema.HOST_GAPS.rows(),
        steps=schema.STEPS.of_dicts(
            [{**times({**whole, "rank": rank}), "label": None} for rank in job.everyone]
        ),
        groups=schema.GROUPS.of_dicts(groups),
        ranks=schema.RANKS.of_dicts(ranks),
        probes=schema.PROBES.rows(),
    )
