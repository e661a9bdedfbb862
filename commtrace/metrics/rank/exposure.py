"""Where exposed communication belongs: to which group, operation, step, or phase."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from commtrace.arrays import Float64, Int64, codes, distinct, first_rows
from commtrace.intervals import Intervals, subtract, total, union
from commtrace.measures import measure
from commtrace.metrics.rank.activity import Activity, calls_by_device, device_activity
from commtrace.metrics.rank.phases import phases
from commtrace.table import Column, Rows, Table

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = [
    "EXPOSURE_BY_GROUP",
    "EXPOSURE_BY_OP",
    "EXPOSURE_BY_PHASE",
    "EXPOSURE_BY_STEP",
    "By",
    "exposure",
]

Key = tuple[Hashable, ...]
_Keyed = tuple[Int64, list[Key]]
"""For each row of ``collectives`` which key is its, and the keys."""

By = Literal["group", "op", "step", "phase"]


def _table(by: str, *keys: Column) -> Table:
    return Table(
        f"exposure_by_{by}",
        f"the communication of one {by} on one device; the most exposed first",
        (
            Column("rank", "int64", "The rank."),
            Column("device", "category", "torch's name, with the trace's own number."),
            *keys,
            Column("communication_ns", "int64", "While any of it ran.", "ns"),
            Column(
                "exposed_ns",
                "Int64",
                "Its part of the device's exposed communication: the parts are the whole, exactly. "
                "Null where the trace lacks the device's compute.",
                "ns",
            ),
        ),
    )


EXPOSURE_BY_GROUP = _table(
    "group",
    Column("group", "category", "The process group's name; null if unknown."),
    Column("ranks", "category", "Its global ranks, separated by commas; null if unknown."),
    Column("description", "category", "What the program calls it; null if unknown."),
)
EXPOSURE_BY_OP = _table(
    "op",
    Column("op", "category", "The operation called, or the one that ran if only that is known."),
)
EXPOSURE_BY_STEP = _table(
    "step", Column("step", "Int64", "n of the `ProfilerStep#n` that launched it; null outside any.")
)
EXPOSURE_BY_PHASE = _table(
    "phase",
    Column("phase", "category", "`forward`, `backward`, `optimizer`; null if unknown."),
)


@measure
def exposure(run: Measures, *, by: By = "group") -> Rows:
    """To what each device's exposed communication belongs, as ``EXPOSURE_BY_GROUP``, ….

    Exposed time in which several operations run is split equally among them, and an
    operation's parts belong to its group, its kind, the step and the phase (see ``phases``)
    that launched it. So the parts of a device add up to the exposed communication of
    ``devices``, whichever way it is split. ``communication_ns`` counts such time for each,
    and may add up to more.
    """
    table, keys_of = _WAYS[by]
    called = run.rows("collectives")
    code, keys = keys_of(run)
    start, end = called.when()
    found = []
    for (rank, device), done in device_activity(run).items():
        at = calls_by_device(run)[rank, device]
        parts = _parts(done, start[at], end[at], code[at], keys)
        names = [column.name for column in table.columns[2:]]
        found += [
            {"rank": rank, "device": device, **dict(zip(names, part, strict=True))}
            for part in parts
        ]
    return table.of_dicts(found)


def _parts(
    done: Activity, start: Int64, end: Int64, code: Int64, keys: Sequence[Key]
) -> list[tuple[Any, ...]]:
    """Key, communication and exposed time of each key on one device; ``code`` is that of a row."""
    known, first = np.unique(code, return_index=True)
    members = {keys[one]: code == one for one in known[np.argsort(first)].tolist()}
    unions = {key: union(start[its], end[its]) for key, its in members.items()}
    if done.compute is None:
        return [(*key, total(when), None) for key, when in unions.items()]
    exposed = subtract(done.communication, done.compute)
    shares = _shares(start, end, exposed)
    whole = _apportioned(total(exposed), [float(shares[its].sum()) for its in members.values()])
    parts = [
        (*key, total(when), part) for (key, when), part in zip(unions.items(), whole, strict=True)
    ]
    return sorted(parts, key=lambda part: -part[-1])


def _shares(start: Int64, end: Int64, exposed: Intervals) -> Float64:
    """Each operation's share of the exposed time in which it runs, split among all that run."""
    times = distinct(np.concatenate((start, end, *exposed)))
    running, inside = _depth(times, start, end), _depth(times, *exposed)
    rate = inside / np.maximum(running, 1)
    grown = np.concatenate(([0.0], np.cumsum(rate * np.diff(times))))
    shares: Float64 = grown[np.searchsorted(times, end)] - grown[np.searchsorted(times, start)]
    return shares


def _depth(times: Int64, start: Int64, end: Int64) -> Int64:
    """How many intervals cover each gap between times, which hold all their ends."""
    change = np.zeros(times.size, dtype=np.int64)
    np.add.at(change, np.searchsorted(times, start), 1)
    np.add.at(change, np.searchsorted(times, end), -1)
    return np.cumsum(change)[:-1]


def _apportioned(whole: int, shares: list[float]) -> list[int]:
    """Integers in proportion to the shares that add up to the whole: largest remainders."""
    weight = sum(shares)
    if not weight:
        return [0] * len(shares)
    exact = [share * (whole / weight) for share in shares]
    parts = [int(part) for part in exact]
    order = sorted(range(len(parts)), key=lambda i: parts[i] - exact[i])
    for i in order[: whole - sum(parts)]:
        parts[i] += 1
    return parts


def _groups(run: Measures) -> _Keyed:
    known: dict[Key, set[Key]] = defaultdict(set)
    for row in run.rows("groups").dicts():
        known[row["rank"], row["group"], row["size"]].add((row["ranks"], row["description"]))

    def key(rank: int, group: str | None, size: int | None) -> Key:
        identities = known.get((rank, group, size), set())
        identity = next(iter(identities)) if len(identities) == 1 else (None, None)
        return group, *identity

    return _keyed(run, ("rank", "group", "group_size"), key)


def _operations(run: Measures) -> _Keyed:
    return _keyed(run, ("op", "executed"), lambda op, executed: (op or executed,))


def _steps(run: Measures) -> _Keyed:
    return _keyed(run, ("step",), lambda step: (step,))


def _phases(run: Measures) -> _Keyed:
    phase = phases(run)
    code = codes(phase)
    return code, [(its,) for its in phase.take(first_rows(code)).decoded()]


def _keyed(run: Measures, names: Sequence[str], key_of: Callable[..., Key]) -> _Keyed:
    """The keys of ``collectives``, from columns' values, and which of them is each row's."""
    called = run.rows("collectives")
    code = codes(*(called.columns[name] for name in names))
    number: dict[Key, int] = {}
    of = [
        number.setdefault(key_of(*(row[name] for name in names)), len(number))
        for row in run.rows("collectives", first_rows(code)).dicts()
    ]
    return np.asarray(of, dtype=np.int64)[code], list(number)


_WAYS: dict[By, tuple[Table, Callable[[Measures], _Keyed]]] = {
    "group": (EXPOSURE_BY_GROUP, _groups),
    "op": (EXPOSURE_BY_OP, _operations),
    "step": (EXPOSURE_BY_STEP, _steps),
    "phase": (EXPOSURE_BY_PHASE, _phases),
}
