"""Every table's columns, described once: dtype, unit, a sentence.

Tables are built with :meth:`Table.frame`, which is also where they are checked, and
the documentation of the columns is generated from here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "COLLECTIVES",
    "COPIES",
    "CUT_BEFORE_GPU",
    "GROUPS",
    "KERNELS",
    "NULL",
    "OPS",
    "PROBES",
    "RANKS",
    "STEPS",
    "TABLES",
    "Coded",
    "Column",
    "Diagnosis",
    "Evidence",
    "Finding",
    "Note",
    "Table",
    "rows",
]

CUT_BEFORE_GPU = "cut-before-gpu-events"
"""The code of the note that a file broke off before the events of its GPU."""

NULL = np.iinfo(np.int64).min
"""Stands for a missing integer while a column is still a numpy array."""

DType = Literal["int64", "Int64", "float64", "category", "bool"]


@dataclass(frozen=True)
class Coded:
    """A column of strings as codes into a dictionary; code -1 is null."""

    codes: np.ndarray[Any, np.dtype[np.int32]]
    names: tuple[str, ...]

    @classmethod
    def of(cls, values: list[str | None]) -> Coded:
        """Encode plain strings."""
        index: dict[str, int] = {}
        codes = [-1 if v is None else index.setdefault(v, len(index)) for v in values]
        return cls(np.asarray(codes, dtype=np.int32), tuple(index))

    def decoded(self) -> list[str | None]:
        """The plain strings again."""
        return [None if code < 0 else self.names[code] for code in self.codes]


Columns = Mapping[str, "np.ndarray[Any, Any] | Coded"]
"""A table's columns before pandas: numpy arrays, and Coded for strings."""


@dataclass(frozen=True)
class Column:
    """One column: ``Int64`` is an integer that can be null, ``category`` a string that can."""

    name: str
    dtype: DType
    about: str
    unit: str | None = None


@dataclass(frozen=True)
class Table:
    """A table's name, what one row is, and its columns in order."""

    name: str
    row: str
    columns: tuple[Column, ...]

    def frame(self, *parts: Columns) -> pd.DataFrame:
        """One DataFrame from the columns of any number of parts, concatenated in order.

        Raises KeyError when a part lacks a column, ValueError when lengths differ.
        """
        import pandas as pd

        return pd.DataFrame(
            {c.name: _series(c, [part[c.name] for part in parts]) for c in self.columns}
        )

    def from_rows(self, rows: list[dict[str, Any]]) -> pd.DataFrame:
        """One DataFrame from plain dicts; None is null. For small tables."""
        return self.frame(self.arrays(rows))

    def arrays(self, rows: list[dict[str, Any]]) -> Columns:
        """The columns of plain dicts, before pandas; None is null. For small tables."""
        return {c.name: _column(c, [row[c.name] for row in rows]) for c in self.columns}


def rows(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """A table's rows as plain dicts, the inverse of ``Table.from_rows``: null is None."""
    columns = {
        str(name): [
            None if null else value
            for value, null in zip(column.tolist(), column.isna(), strict=True)
        ]
        for name, column in frame.items()
    }
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _column(column: Column, values: list[Any]) -> np.ndarray[Any, Any] | Coded:
    if column.dtype == "category":
        return Coded.of(values)
    if column.dtype == "float64":
        return np.asarray([np.nan if v is None else v for v in values], dtype=np.float64)
    if column.dtype == "bool":
        return np.asarray(values, dtype=np.bool_)
    return np.asarray([NULL if v is None else v for v in values], dtype=np.int64)


def _series(column: Column, parts: list[Any]) -> Any:
    import pandas as pd

    if column.dtype == "category":
        return _categorical(parts)
    dtype = np.dtype(column.dtype.lower())
    values: Any = np.concatenate([np.empty(0, dtype), *parts]).astype(dtype, copy=False)
    if column.dtype == "Int64":
        return pd.arrays.IntegerArray(values, values == NULL)
    return values


def _categorical(parts: list[Coded]) -> pd.Categorical:
    import pandas as pd

    index: dict[str, int] = {}
    codes: list[Any] = [np.empty(0, dtype=np.int32)]
    for part in parts:
        target = [index.setdefault(name, len(index)) for name in part.names]
        codes.append(np.asarray([*target, -1], dtype=np.int32)[part.codes])
    joined: Any = np.concatenate(codes)
    return pd.Categorical.from_codes(joined, categories=pd.Index(list(index), dtype=object))


def _int(name: str, about: str, unit: str | None = None) -> Column:
    return Column(name, "int64", about, unit)


def _maybe(name: str, about: str, unit: str | None = None) -> Column:
    return Column(name, "Int64", about, unit)


def _text(name: str, about: str) -> Column:
    return Column(name, "category", about)


def _real(name: str, about: str, unit: str | None = None) -> Column:
    return Column(name, "float64", about, unit)


_RANK = _int("rank", "The rank whose trace this comes from.")
_DEVICE = _text("device", "torch's name, with the trace's own number: `cuda:0`, `cpu`.")
_STREAM = _int("stream", "The CUDA or HIP stream; on the CPU the thread.")
_START = _int("start_ns", "When it started, in Unix time on the rank's own clock.", "ns")
_DURATION = _int("duration_ns", "How long it ran.", "ns")
_LAUNCH = _maybe("launch_ns", "When the host launched it; null if untold.", "ns")
_STEP = _maybe("step", "n of the `ProfilerStep#n` that launched it; null outside any.")

KERNELS = Table(
    "kernels",
    "one GPU kernel",
    (
        _RANK,
        _DEVICE,
        _STREAM,
        _text("name", "The kernel's name as the trace has it."),
        _text("kind", "`compute` or `communication`."),
        _START,
        _DURATION,
        _LAUNCH,
        _maybe("thread", "The host thread that launched it."),
        _STEP,
    ),
)

COPIES = Table(
    "copies",
    "one copy or memory fill on a GPU",
    (
        _RANK,
        _DEVICE,
        _STREAM,
        _text("kind", "`HtoD`, `DtoH`, `DtoD`, `PtoP` (between GPUs), `HtoH`, or `Memset`."),
        _text("source", "`host` or a device; null for fills and where the trace does not tell."),
        _text("destination", "`host` or a device; null where the trace does not tell."),
        _text("memory", "Of the host's side: `pageable` or `pinned`; null for copies without one."),
        _maybe("size_bytes", "Bytes moved; null where the trace does not tell.", "bytes"),
        _START,
        _DURATION,
        _LAUNCH,
        _STEP,
    ),
)

COLLECTIVES = Table(
    "collectives",
    "one communication operation on one rank, point-to-point included",
    (
        _STEP,
        _text("group", "The process group's name; null where the trace does not tell."),
        _maybe("seq", "Its number in its group, the same on every rank; null if untold."),
        _RANK,
        _text("op", "The operation that was called, canonical; null where only a kernel shows it."),
        _text("executed", "The operation that ran: gloo runs reduce_scatter as `all_reduce`."),
        _text("call", "The call's name as the trace spells it."),
        _text("dtype", "torch's name of the element type."),
        _maybe("size_bytes", "S, the full array: the larger of input and output.", "bytes"),
        _maybe("in_bytes", "What this rank put in.", "bytes"),
        _maybe("out_bytes", "What this rank got out.", "bytes"),
        _maybe("group_size", "Ranks in the group.", "ranks"),
        _DEVICE,
        _STREAM,
        _maybe("peer", "The other global rank of a send or recv."),
        _maybe("root", "The global rank of a rooted operation's root."),
        _maybe(
            "asynchronous",
            "1 if the call was asked to return at once (`async_op`), 0 if not; null if untold.",
        ),
        _LAUNCH,
        _START,
        _DURATION,
        _text("name", "The kernel's or the annotation's name."),
        _text(
            "provenance",
            "Where operation, type and size come from, best first: `kernel` (its arguments), "
            "`record_param_comms`, `annotation`, `operator`, `kernel-name`.",
        ),
        _text(
            "group_provenance",
            "Where group and seq come from: `metadata`, `flight-recorder`, `only-group` "
            "(the only known group it can belong to); null where the group is.",
        ),
        _text("comms_id", "The identifier that newer traces give an operation on every rank."),
    ),
)

OPS = Table(
    "ops",
    "one CPU operator that is not called by another; kept where work runs on the CPU, "
    "and everywhere if it enqueues communication",
    (
        _RANK,
        _int("thread", "The thread it ran on."),
        _text("name", "The operator's name."),
        _text(
            "kind",
            "`communication` if it enqueues or awaits some, else `compute`, which may enclose it.",
        ),
        _START,
        _DURATION,
        _STEP,
    ),
)

STEPS = Table(
    "steps",
    "one profiler step or labelled range on one rank's host",
    (
        _RANK,
        _STEP,
        _text("label", "Null for the step itself; else the annotation's name within it."),
        _int("thread", "The thread that it is a range of."),
        _START,
        _DURATION,
    ),
)

GROUPS = Table(
    "groups",
    "one process group as one rank knows it",
    (
        _RANK,
        _text("group", "The group's name. Its identity is name and ranks together."),
        _text("description", "What the program calls it."),
        _text("backend", "gloo, nccl, …"),
        _int("size", "Ranks in the group.", "ranks"),
        _text("ranks", "Its global ranks, ascending, separated by commas; null if untold."),
    ),
)

RANKS = Table(
    "ranks",
    "one rank",
    (
        _RANK,
        _text("file", "The path of its file as it was given or found; of several the first."),
        _text("host", "The host's name; null where the trace does not tell."),
        _maybe("world_size", "Ranks in the job, as this trace says.", "ranks"),
        _text("backend", "The default group's backend, as this trace says."),
        _text("rank_provenance", "`metadata`, `file-name`, or `assumed`."),
        _maybe("start_ns", "First start of any event that was kept; null if none was.", "ns"),
        _maybe("end_ns", "Last end of any event that was kept; null if none was.", "ns"),
        _int("events", "Events in its files."),
    ),
)

PROBES = Table(
    "probes",
    "one reading of a rank's clock against rank 0's, as the recorder took it",
    (
        _RANK,
        _int("at_ns", "When, on the rank's clock.", "ns"),
        _int("offset_ns", "To subtract from the rank's times to reach rank 0's.", "ns"),
        _int("error_ns", "The true offset is no further off than that.", "ns"),
    ),
)

TABLES = (KERNELS, COPIES, COLLECTIVES, OPS, STEPS, GROUPS, RANKS, PROBES)


@dataclass(frozen=True)
class Note:
    """What the reader found wrong with a file, or had to assume."""

    code: str
    message: str
    rank: int | None = None
    file: str | None = None


@dataclass(frozen=True)
class Evidence:
    """One measured number behind a finding."""

    name: str
    value: float
    unit: str
    threshold: float | None = None


@dataclass(frozen=True)
class Finding:
    """One fault that a rule saw. ``cost_ns`` is the time recoverable at most.

    ``ranks`` are the culprits, ``streams`` where to look, the times Unix nanoseconds on the
    run's clock. ``explained_by`` names the rule whose finding this one is a symptom of.
    """

    rule: str
    summary: str
    ranks: tuple[int, ...]
    streams: tuple[int, ...]
    start_ns: int
    end_ns: int
    cost_ns: int
    evidence: tuple[Evidence, ...]
    ruled_out: tuple[str, ...]
    advice: str
    confidence: Literal["high", "medium", "low"]
    explained_by: str | None = None


@dataclass(frozen=True)
class Diagnosis:
    """Findings, costliest first, and the rules that could not look, with the reason.

    ``notes`` are about rules that broke.
    """

    findings: tuple[Finding, ...] = ()
    skipped: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[Note, ...] = ()
