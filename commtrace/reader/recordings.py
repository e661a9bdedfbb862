"""Which trace files are of one recording, and which of their ranks' files follow each other.

Files are of one job where they agree on its size, no two of one rank were recorded at the
same time, and their times are minutes from each other at most. A rank may have several
files, one behind the other, if one process wrote them: cycles, as a profiler's schedule
with repeats leaves them. A process is known by its threads.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import structs

from commtrace.arrays import NULL, Int64, distinct
from commtrace.errors import TraceError
from commtrace.packed import PackedColumns, pack
from commtrace.reader.names import natural, worker
from commtrace.table import Coded
from commtrace.trace import RankTrace

__all__ = [
    "GAP_NS",
    "UNIX_NS",
    "fact",
    "ranks_by_order",
    "recordings",
    "same",
    "window",
    "with_steps",
]

GAP_NS = 600 * 10**9
"""Ranks of one run start within minutes, and their clocks agree better."""
UNIX_NS = 10**18
"""In 2001; what is less counts from somewhere else, on each host from its own."""
_NUMBERED_GAP_NS = 10**9  # where only their order makes files ranks, they have to be of one time
_THREADS = {"kernels": "thread", "ops": "thread", "steps": "thread"}


def recordings(parts: Sequence[RankTrace]) -> list[list[RankTrace]]:
    """The parts of each recording, in time, the recordings with most files first.

    Raises TraceError where one rank has two files of the same time.
    """
    found: list[list[RankTrace]] = []
    for job in _by_world(parts):
        found += _by_time(job)
    return sorted(found, key=len, reverse=True)


def same(a: RankTrace, b: RankTrace) -> bool:
    """Whether two files hold the same events of the same rank."""
    if a.rank != b.rank or window(a) is None:
        return False
    return all(
        _equal(values, b.columns[table][name])
        for table, columns in a.columns.items()
        for name, values in columns.items()
        if name != "file"
    )


def ranks_by_order(parts: Sequence[RankTrace]) -> dict[Path, int]:
    """Files that have no rank, numbered in natural order; those of one process alike."""
    processes: list[list[RankTrace]] = []
    for part in sorted(parts, key=lambda part: natural(part.file)):
        its = next((its for its in processes if _one_process(its[-1], part)), None)
        if its is None:
            processes.append([part])
        else:
            its.append(part)
    return {part.file: rank for rank, its in enumerate(processes) for part in its}


def fact(part: RankTrace, column: str) -> int | None:
    """An integer of the file's row of ``ranks``."""
    value = int(part.columns["ranks"][column][0])  # type: ignore[index]
    return None if value == NULL else value


def host(part: RankTrace) -> str | None:
    """Its host's name."""
    host = part.columns["ranks"]["host"]
    assert isinstance(host, Coded)
    return host.decoded()[0]


def window(part: RankTrace) -> tuple[int, int] | None:
    """When the file's events began and ended; None without any."""
    start, end = fact(part, "start_ns"), fact(part, "end_ns")
    return None if start is None or end is None else (start, end)


def with_steps(part: RankTrace, changed: Callable[[Int64], Int64]) -> RankTrace:
    """The part, with the numbers of steps in all its tables changed; nothing is measured of it."""
    columns = dict(part.columns)
    for table, its in part.columns.items():
        if "step" in its:
            step: Any = its["step"]
            others = {**its, "step": changed(step)}
            columns[table] = pack(others) if isinstance(its, PackedColumns) else others
    return structs.replace(part, columns=columns, measured={})


def _by_world(parts: Sequence[RankTrace]) -> list[list[RankTrace]]:
    """By the size of the job; who does not tell it belongs to the most."""
    sizes = {part.file: fact(part, "world_size") for part in parts}
    known = Counter(size for size in sizes.values() if size is not None)
    usual = known.most_common(1)[0][0] if known else None
    jobs: dict[int | None, list[RankTrace]] = defaultdict(list)
    for part in parts:
        size = sizes[part.file]
        jobs[usual if size is None else size].append(part)
    return list(jobs.values())


def _by_time(parts: list[RankTrace]) -> list[list[RankTrace]]:
    timed = sorted((part for part in parts if window(part)), key=_start)
    once = len({part.rank for part in timed}) == len(timed)
    numbered = all(part.provenance == "assumed" for part in parts)
    gap_ns = _NUMBERED_GAP_NS if numbered else GAP_NS
    found: list[list[RankTrace]] = []
    for cluster in _clusters(timed, gap_ns if once else 0):
        _refuse_two_at_once(cluster)
        home = next((one for one in found[::-1] if _continues(one, cluster, gap_ns)), None)
        if home is None:
            found.append(cluster)
        else:
            home += cluster
    empty = [part for part in parts if window(part) is None]
    if empty and not found:
        return [empty]
    for part in empty:
        max(found, key=len).append(part)
    return found


def _clusters(timed: Sequence[RankTrace], gap_ns: int) -> list[list[RankTrace]]:
    """Files in the order of time, cut where one begins that much behind the end of all before."""
    clusters: list[list[RankTrace]] = []
    reach = 0
    for part in timed:
        start, end = _window(part)
        if clusters and (start - reach <= gap_ns or (gap_ns and end < UNIX_NS)):
            clusters[-1].append(part)
        else:
            clusters.append([part])
        reach = max(reach, end)
    return clusters


def _refuse_two_at_once(cluster: Sequence[RankTrace]) -> None:
    for its in _by_rank(cluster).values():
        for a, b in combinations(its, 2):
            if not _one_process(a, b):
                raise TraceError(
                    f"rank {a.rank} is in {a.file} and in {b.file}, which are not of one "
                    "recording: analyze one recording at a time"
                )


def _continues(recording: Sequence[RankTrace], cluster: Sequence[RankTrace], gap_ns: int) -> bool:
    """Whether a later cluster is of the same job."""
    before = _by_rank(recording)
    pairs = [(before[part.rank][-1], part) for part in cluster if part.rank in before]
    if pairs:
        return all(_one_process(a, b) for a, b in pairs)
    end, start = max(_window(part)[1] for part in recording), _window(cluster[0])[0]
    return start - end <= gap_ns or start < UNIX_NS


def _by_rank(parts: Iterable[RankTrace]) -> dict[int, list[RankTrace]]:
    ranks: dict[int, list[RankTrace]] = defaultdict(list)
    for part in parts:
        ranks[part.rank].append(part)
    return ranks


def _one_process(a: RankTrace, b: RankTrace) -> bool:
    """Whether one process may have written two files, one behind the other."""
    if not _disjoint(a, b) or (host(a) and host(b) and host(a) != host(b)):
        return False
    folders = {a.file.resolve().parent, b.file.resolve().parent}
    if len(folders) > 1 and all((folder / "manifest.json").exists() for folder in folders):
        return False
    process = worker(a.file)
    if process != worker(b.file):
        return False
    threads_a, threads_b = _threads(a), _threads(b)
    if threads_a and threads_b:
        # In a container every process may have the same number: the steps must go on.
        return bool(threads_a & threads_b) and (len(folders) == 1 or _steps_go_on(a, b))
    return process is not None and len(folders) == 1


def _disjoint(a: RankTrace, b: RankTrace) -> bool:
    (start_a, end_a), (start_b, end_b) = _window(a), _window(b)
    return end_a <= start_b or end_b <= start_a


def _steps_go_on(a: RankTrace, b: RankTrace) -> bool:
    steps = [_integers(part, "steps", "step") for part in (a, b)]
    return bool(steps[0] and steps[1] and not steps[0] & steps[1])


def _threads(part: RankTrace) -> set[int]:
    return {n for table, column in _THREADS.items() for n in _integers(part, table, column)}


def _integers(part: RankTrace, table: str, column: str) -> set[int]:
    return set(distinct(part.columns[table][column]).tolist()) - {NULL}  # type: ignore[arg-type]


def _window(part: RankTrace) -> tuple[int, int]:
    return window(part) or (0, 0)


def _start(part: RankTrace) -> int:
    return _window(part)[0]


def _equal(a: object, b: object) -> bool:
    if isinstance(a, Coded) and isinstance(b, Coded):
        return a.names == b.names and np.array_equal(a.codes, b.codes)
    return np.array_equal(np.asarray(a), np.asarray(b), equal_nan=False)
