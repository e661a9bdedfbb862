"""Tiny traces written by hand: what ``bad()`` and ``good()`` are made of.

Times are given in microseconds from the start, sizes in bytes; every event is one call.

>>> run = Tiny(ranks=2)
>>> run.collective(0, "all_reduce", 0, 100, size=1 << 20)
>>> run.collective(1, "all_reduce", 40, 60, size=1 << 20)
>>> len(run.trace().rows("collectives"))
2
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from itertools import chain
from typing import Any

from commtrace.comms import full_size_bytes
from commtrace.diagnosis import Note
from commtrace.machine import Lines, Machine
from commtrace.measures import Measures
from commtrace.table import Table
from commtrace.trace_tables import (
    BLOCKING_CALLS,
    COLLECTIVES,
    COPIES,
    GROUPS,
    HOST_GAPS,
    KERNELS,
    OPS,
    RANKS,
    STEPS,
    SYNCHRONISATIONS,
    TABLES,
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
    """A trace in the making: ``ranks`` of one group ``"0"``, on one host unless given.

    ``rows`` are those of each table so far, as dicts.
    """

    def __init__(
        self,
        ranks: int = 1,
        *,
        backend: str = "nccl",
        hosts: tuple[str | None, ...] = ("host",),
        manifest: dict[str, Any] | None = None,
    ) -> None:
        self.ranks = ranks
        self.backend = backend
        self.hosts = hosts
        self.manifest = manifest
        self.notes: list[Note] = []
        self.groups = {"0": tuple(range(ranks))}
        self._seq: dict[tuple[str, int], int] = {}
        self._looks = defaultdict[int, list[tuple[int, str, int]]](list)
        self.rows: dict[str, list[dict[str, Any]]] = {table.name: [] for table in TABLES}

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
        row = self._add(
            COLLECTIVES,
            rank,
            start_us,
            duration_us,
            {
                "group": group,
                "seq": seq,
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
                "launch_ns": _launched(start_us),
                "name": f"{self.backend}:{op}",
                "provenance": "kernel",
                "group_provenance": "metadata",
                **more,
            },
        )
        if row["device"] != "cpu":
            self.kernel(
                rank,
                start_us,
                duration_us,
                name=f"ncclDevKernel_{op}",
                kind="communication",
                **{c: row[c] for c in ("device", "stream", "launch_ns", "step")},
                **({"thread": row["thread"]} if row.get("thread") else {}),
            )

    def kernel(self, rank: int, start_us: float, duration_us: float, **more: Any) -> None:
        """One GPU kernel."""
        known = {
            "device": "cuda:0",
            "stream": COMPUTE,
            "name": "gemm",
            "kind": "compute",
            "launch_ns": _launched(start_us),
            "thread": 1,
        }
        self._add(KERNELS, rank, start_us, duration_us, {**known, **more})

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
        known = {
            "device": source if source != "host" else destination,
            "stream": COMPUTE,
            "kind": kind,
            "source": source,
            "destination": destination,
            "size_bytes": size,
            "launch_ns": _launched(start_us),
            "thread": 1,
        }
        self._add(COPIES, rank, start_us, duration_us, {**known, **more})

    def blocking_call(
        self, rank: int, name: str, start_us: float, duration_us: float, **more: Any
    ) -> None:
        """One call of CUDA that can block the host."""
        known = {"thread": 1, "name": name, **more}
        self._add(BLOCKING_CALLS, rank, start_us, duration_us, known)

    def synchronisation(self, rank: int, kind: str, start_us: float, **more: Any) -> None:
        """One wait for a GPU's work, or one event recorded, as in the table."""
        known = {"kind": kind, "thread": 1, "device": "cuda:0", **more}
        self._add(SYNCHRONISATIONS, rank, start_us, 1, known)

    def op(self, rank: int, start_us: float, duration_us: float, **more: Any) -> None:
        """One operator on the CPU."""
        known = {"thread": 1, "name": "aten::mm", "kind": "compute", **more}
        self._add(OPS, rank, start_us, duration_us, known)

    def gap(self, rank: int, start_us: float, duration_us: float, thread: int = 1) -> None:
        """A time without operators on a host thread."""
        self._add(HOST_GAPS, rank, start_us, duration_us, {"thread": thread})

    def step(
        self, rank: int, step: int, start_us: float, duration_us: float, label: str | None = None
    ) -> None:
        """One profiler step, or a labelled range in it."""
        known = {"step": step, "label": label, "thread": 1}
        self._add(STEPS, rank, start_us, duration_us, known)

    def look(self, rank: int, at_us: float, line: str, passed_us: int) -> None:
        """One look of the recorder's at a rank's thread, which ran since the look before."""
        self._looks[rank].append((BASE_NS + round(at_us * 1e3), line, passed_us))

    def _add(
        self,
        table: Table,
        rank: int,
        start_us: float,
        duration_us: float,
        known: Mapping[str, Any],
    ) -> dict[str, Any]:
        """A row of the table; what is not known is null."""
        row = {
            **dict.fromkeys(column.name for column in table.columns),
            "rank": rank,
            "start_ns": BASE_NS + round(start_us * 1e3),
            "duration_ns": round(duration_us * 1e3),
            **known,
        }
        self.rows[table.name].append(row)
        return row

    def trace(self) -> Measures:
        """The trace, its events in steps by when they start."""
        events = (its for name, its in self.rows.items() if name != STEPS.name)
        for row in chain.from_iterable(events):
            row["step"] = row["step"] or self._step_of(row)
        ranks = [self._rank_row(rank) for rank in range(self.ranks)]
        rows = {**self.rows, GROUPS.name: self._group_rows(), RANKS.name: ranks}
        tables: Any = {table.name: table.of_dicts(rows[table.name]) for table in TABLES}
        return Measures(
            **tables,
            machines={rank: Machine(lines=_lines(looks)) for rank, looks in self._looks.items()},
            notes=tuple(self.notes),
            manifest=self.manifest,
        )

    def _step_of(self, row: dict[str, Any]) -> int | None:
        for step in self.rows[STEPS.name]:
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
        mine = [row for row in chain.from_iterable(self.rows.values()) if row["rank"] == rank]
        return {
            "rank": rank,
            "file": f"rank{rank}.json",
            "host": self.hosts[rank * len(self.hosts) // self.ranks],
            "world_size": self.ranks,
            "backend": self.backend,
            "gpu": None,
            "rank_provenance": "metadata",
            "start_ns": min((row["start_ns"] for row in mine), default=None),
            "end_ns": max((row["start_ns"] + row["duration_ns"] for row in mine), default=None),
            "events": 0,
        }


def _lines(looks: list[tuple[int, str, int]]) -> Lines:
    names = [*dict.fromkeys(line for _, line, _ in looks)]
    every = [(at, names.index(line), took, took) for at, line, took in looks]
    return Lines.of({"names": names, "looks": every})


def _launched(start_us: float) -> int:
    """Five microseconds before the start."""
    return BASE_NS + round(start_us * 1e3) - 5_000
