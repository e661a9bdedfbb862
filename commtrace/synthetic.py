"""Tiny traces written by hand: what ``bad()`` and ``good()`` are made of.

Times are given in microseconds from the start, sizes in bytes; every event is one call.

>>> run = Tiny(ranks=2)
>>> run.collective(0, "all_reduce", 0, 100, size=1 << 20)
>>> run.collective(1, "all_reduce", 40, 60, size=1 << 20)
>>> len(run.trace().rows("collectives"))
2
"""

from __future__ import annotations

from typing import Any

from commtrace.comms import full_size_bytes
from commtrace.diagnosis import Note
from commtrace.measures import Measures
from commtrace.trace_tables import (
    BLOCKING_CALLS,
    COLLECTIVES,
    COPIES,
    GROUPS,
    HOST_GAPS,
    KERNELS,
    OPS,
    PROBES,
    RANKS,
    STEPS,
    SYNCHRONISATIONS,
)

__all__ = ["BASE_NS", "COMMUNICATION", "COMPUTE", "Tiny", "on_links", "one_machine"]


def one_machine(
    gpus: int, code: str = "NV18", gpu: str = "NVIDIA H100 80GB HBM3"
) -> dict[str, Any]:
    """A manifest that tells the links of a machine."""
    links = [["X" if i == j else code for j in range(gpus)] for i in range(gpus)]
    return {
        "devices": [{"index": str(i), "name": gpu} for i in range(gpus)],
        "topology": {"names": [f"GPU{i}" for i in range(gpus)], "links": links},
    }


def on_links(
    duration_us: float, *, op: str = "all_reduce", size: int = 256_000_000, count: int = 12
) -> Measures:
    """Eight H100 that run one operation again and again, each for as long."""
    run = Tiny(8, manifest=one_machine(8))
    for i in range(count):
        for rank in range(8):
            run.collective(rank, op, i * 4000 + rank, duration_us - rank, size=size)
    return run.trace()


BASE_NS = 1_700_000_000_000_000_000
COMPUTE, COMMUNICATION = 7, 20


class Tiny:
    """A trace in the making: ``ranks`` of one group ``"0"``, on one host unless given."""

    def __init__(
        self,
        ranks: int = 1,
        *,
        backend: str = "nccl",
        hosts: tuple[str, ...] = ("host",),
        manifest: dict[str, Any] | None = None,
    ) -> None:
        self.ranks = ranks
        self.backend = backend
        self.hosts = hosts
        self.manifest = manifest
        self.notes: list[Note] = []
        self.groups = {"0": tuple(range(ranks))}
        self._seq: dict[tuple[str, int], int] = {}
        self._kernels: list[dict[str, Any]] = []
        self._copies: list[dict[str, Any]] = []
        self._blocking_calls: list[dict[str, Any]] = []
        self._synchronisations: list[dict[str, Any]] = []
        self._collectives: list[dict[str, Any]] = []
        self._ops: list[dict[str, Any]] = []
        self._host_gaps: list[dict[str, Any]] = []
        self._steps: list[dict[str, Any]] = []

    @property
    def device(self) -> str:
        """Where operations run unless given."""
        return "cpu" if self.backend == "gloo" else "cuda:0"

    def collective(
        self,
        rank: int,
        op: str,
        start_us: float,
        duration_us: float,
        *,
        size: int | None = None,
        in_bytes: int | None = None,
        out_bytes: int | None = None,
        **more: Any,
    ) -> None:
        """One operation on one rank; on a GPU its kernel too. ``more`` sets any column."""
        group = more.pop("group", "0")
        members = self.groups[group]
        n = len(members)
        if size is not None:
            in_bytes = in_bytes or (size // n if op in ("all_gather", "gather") else size)
            out_bytes = out_bytes or (size // n if op in ("reduce_scatter", "scatter") else size)
        p2p = op in ("send", "recv")
        seq = None if p2p else self._seq.setdefault((group, rank), 0)
        self._seq[group, rank] = self._seq.get((group, rank), 0) + (not p2p)
        row = {
            **_when(start_us, duration_us),
            "step": None,
            "group": group,
            "seq": seq,
            "rank": rank,
            "op": op,
            "executed": op,
            "call": op,
            "dtype": "float32",
            "in_bytes": in_bytes,
            "out_bytes": out_bytes,
            "size_bytes": full_size_bytes(op, in_bytes, out_bytes, n),
            "group_size": n,
            "device": self.device,
            "stream": COMMUNICATION,
            "peer": None,
            "root": None,
            "asynchronous": None,
            "launch_ns": BASE_NS + round(start_us * 1e3) - 5_000,
            "thread": None,
            "name": f"{self.backend}:{op}",
            "provenance": "kernel",
            "group_provenance": "metadata",
            "comms_id": None,
            "called_at": None,
        }
        row = {**row, **more}
        self._collectives.append(row)
        if row["device"] != "cpu":
            self.kernel(
                rank,
                start_us,
                duration_us,
                name=f"ncclDevKernel_{op}",
                kind="communication",
                **{c: row[c] for c in ("device", "stream", "launch_ns", "step")},
            )

    def kernel(self, rank: int, start_us: float, duration_us: float, **more: Any) -> None:
        """One GPU kernel."""
        row = {
            **_when(start_us, duration_us),
            "rank": rank,
            "device": "cuda:0",
            "stream": COMPUTE,
            "name": "gemm",
            "kind": "compute",
            "launch_ns": BASE_NS + round(start_us * 1e3) - 5_000,
            "thread": 1,
            "correlation": None,
            "step": None,
        }
        self._kernels.append({**row, **more})

    def copy(
        self,
        rank: int,
        start_us: float,
        duration_us: float,
        *,
        kind: str,
        size: int,
        source: str = "cuda:0",
        destination: str = "host",
        **more: Any,
    ) -> None:
        """One copy; ``kind`` as in the table."""
        row = {
            **_when(start_us, duration_us),
            "rank": rank,
            "device": source if source != "host" else destination,
            "stream": COMPUTE,
            "kind": kind,
            "source": source,
            "destination": destination,
            "memory": None,
            "size_bytes": size,
            "launch_ns": BASE_NS + round(start_us * 1e3) - 5_000,
            "thread": 1,
            "correlation": None,
            "step": None,
        }
        self._copies.append({**row, **more})

    def blocking_call(
        self, rank: int, name: str, start_us: float, duration_us: float, **more: Any
    ) -> None:
        """One call of CUDA that can block the host."""
        row = {
            **_when(start_us, duration_us),
            "rank": rank,
            "thread": 1,
            "name": name,
            "device": None,
            "stream": None,
            "correlation": None,
            "step": None,
        }
        self._blocking_calls.append({**row, **more})

    def synchronisation(self, rank: int, kind: str, start_us: float, **more: Any) -> None:
        """One wait for a GPU's work, or one event recorded, as in the table."""
        row = {
            **dict.fromkeys(column.name for column in SYNCHRONISATIONS.columns),
            **_when(start_us, 1),
            "rank": rank,
            "kind": kind,
            "thread": 1,
            "device": "cuda:0",
        }
        self._synchronisations.append({**row, **more})

    def op(self, rank: int, start_us: float, duration_us: float, **more: Any) -> None:
        """One operator on the CPU."""
        row = {"rank": rank, "thread": 1, "name": "aten::mm", "kind": "compute", "step": None}
        self._ops.append({**row, **_when(start_us, duration_us), **more})

    def gap(self, rank: int, start_us: float, duration_us: float, thread: int = 1) -> None:
        """A time without operators on a host thread."""
        row = {"rank": rank, "thread": thread, "step": None, **_when(start_us, duration_us)}
        self._host_gaps.append(row)

    def step(
        self, rank: int, step: int, start_us: float, duration_us: float, label: str | None = None
    ) -> None:
        """One profiler step, or a labelled range in it."""
        row = {"rank": rank, "step": step, "label": label, "thread": 1}
        self._steps.append({**row, **_when(start_us, duration_us)})

    def trace(self) -> Measures:
        """The trace, its events in steps by when they start."""
        for row in self._events:
            row["step"] = row["step"] or self._step_of(row)
        return Measures(
            kernels=KERNELS.of_dicts(self._kernels),
            copies=COPIES.of_dicts(self._copies),
            blocking_calls=BLOCKING_CALLS.of_dicts(self._blocking_calls),
            synchronisations=SYNCHRONISATIONS.of_dicts(self._synchronisations),
            collectives=COLLECTIVES.of_dicts(self._collectives),
            ops=OPS.of_dicts(self._ops),
            host_gaps=HOST_GAPS.of_dicts(self._host_gaps),
            steps=STEPS.of_dicts(self._steps),
            groups=GROUPS.of_dicts(self._group_rows()),
            ranks=RANKS.of_dicts([self._rank_row(rank) for rank in range(self.ranks)]),
            probes=PROBES.rows(),
            notes=tuple(self.notes),
            manifest=self.manifest,
        )

    @property
    def _events(self) -> list[dict[str, Any]]:
        return [
            *self._collectives,
            *self._kernels,
            *self._copies,
            *self._blocking_calls,
            *self._synchronisations,
            *self._ops,
            *self._host_gaps,
        ]

    def _step_of(self, row: dict[str, Any]) -> int | None:
        for step in self._steps:
            end = step["start_ns"] + step["duration_ns"]
            inside = step["start_ns"] <= row["start_ns"] < end
            if inside and step["rank"] == row["rank"] and step["label"] is None:
                return int(step["step"])
        return None

    def _group_rows(self) -> list[dict[str, Any]]:
        return [
            {
                "rank": rank,
                "group": name,
                "description": name,
                "backend": self.backend,
                "size": len(members),
                "ranks": ",".join(map(str, members)),
            }
            for name, members in self.groups.items()
            for rank in members
        ]

    def _rank_row(self, rank: int) -> dict[str, Any]:
        mine = [row for row in (*self._events, *self._steps) if row["rank"] == rank]
        return {
            "rank": rank,
            "file": f"rank{rank}.json",
            "host": self.hosts[rank * len(self.hosts) // self.ranks],
            "world_size": self.ranks,
            "backend": self.backend,
            "rank_provenance": "metadata",
            "start_ns": min((row["start_ns"] for row in mine), default=None),
            "end_ns": max((row["start_ns"] + row["duration_ns"] for row in mine), default=None),
            "events": 0,
        }


def _when(start_us: float, duration_us: float) -> dict[str, int]:
    return {
        "start_ns": BASE_NS + round(start_us * 1e3),
        "duration_ns": round(duration_us * 1e3),
    }
