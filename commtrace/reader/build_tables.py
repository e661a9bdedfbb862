"""Scan -> tables: one trace file's events as the columns that ``schema`` describes."""

from __future__ import annotations

from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from commtrace.arrays import NULL, Int64
from commtrace.comms import canonical_dtype
from commtrace.diagnosis import Note
from commtrace.machine import Machine
from commtrace.reader import gpu, host, synchronisations
from commtrace.reader.before_steps import of_steps
from commtrace.reader.host import Steps
from commtrace.reader.host_gaps import host_gaps
from commtrace.reader.job_metadata import JobMetadata
from commtrace.reader.json.events import Call, Scan
from commtrace.reader.operations.gloo import gloo_rows
from commtrace.reader.operations.gpu_operations import gpu_rows
from commtrace.reader.operations.groups import Groups
from commtrace.reader.operations.ranks_in_calls import ranks_and_calls
from commtrace.reader.operations.rows import RankContext
from commtrace.reader.overruns import Cut, cut_overruns
from commtrace.reader.sampled import sampled
from commtrace.table import Columns
from commtrace.trace_tables import (
    COLLECTIVES,
    CUT_BEFORE_GPU,
    FAILED,
    GROUPS,
    PROBES,
    RANKS,
    SAMPLED,
)
from commtrace.units import numbered

__all__ = ["Identity", "Tables", "identify", "tables"]

Identity = tuple[int, str]
"""A rank, and where it is known from: `metadata`, `file-name` or `assumed`."""

_NAMES = ("op", "executed", "call")

_COUNTED = {
    "orphaned-kernels": "{} kernels have no launch in the trace: their step and, unless the "
    "kernel has it, their operation are unknown",
    "negative-launch-latency": "{} GPU events start over 10 us before their launch: the clocks "
    "of host and GPU disagree",
    "before-steps": "{} events from before the recorded steps are left out: messages on their way "
    "had kept the profile open",
    "unfinished-operations": "{} communication calls have no work in the trace: it ended first, "
    "or they failed",
    "untold-operations": "{} communication kernels have no known operation",
    "unknown-dtype": "{} communication events have an element type unknown here: no sizes",
    "unknown-copies": "{} copies have a name without a known direction",
    "unreadable-groups": "{} entries of the list of process groups cannot be read",
    "unlisted-groups": "{} process groups are so large that their ranks are not listed",
    "unreadable-flight-recorder": "{} entries of the flight recorder cannot be read",
}


class Tables(Struct, frozen=True):
    """One file's tables by their names in ``schema``, and what had to be assumed.

    ``machine`` is what the recorder noted of the rank's machine.
    """

    columns: dict[str, Columns]
    notes: tuple[Note, ...]
    machine: Machine | None


def identify(scan: Scan, otherwise: Identity) -> Identity:
    """The rank that a file's own metadata tell (PyTorch's or the recorder's), or ``otherwise``.

    Without any in the metadata it is that of whom all calls are, if they tell.
    """
    identity = JobMetadata.of(scan).identity(otherwise)
    if identity[1] == "metadata" or len(ranks := ranks_and_calls(scan.calls)[0]) != 1:
        return identity
    return min(ranks), "calls"


def tables(scan: Scan, identity: Identity) -> Tables:
    """All tables of one file, for the rank that it is taken to be of: see ``identify``.

    The notes are those of this step; the scan's own are not repeated.
    """
    cut = cut_overruns(scan)
    several, calls = ranks_and_calls(cut.scan.calls)
    scan = replace(cut.scan, calls=calls)
    job, rank = JobMetadata.of(scan), identity[0]
    scan, before = of_steps(scan, None if job.partial else job.first_step)
    context = RankContext(rank, job.groups(rank), job.flight())
    context.learn(scan.calls)
    steps = Steps(scan.annotations, None if job.partial else job.last_step)
    join = gpu.launched(scan, steps)
    gloo = gloo_rows(scan, context)
    rows = sorted(gpu_rows(scan, join, context) + gloo.rows, key=lambda row: row["start_ns"])
    copies = gpu.copies(scan, join, rank)
    counts = {
        "orphaned-kernels": join.orphans,
        "negative-launch-latency": join.premature,
        "before-steps": before,
        "unfinished-operations": gloo.unfinished,
        "untold-operations": sum(all(row[name] is None for name in _NAMES) for row in rows),
        "unknown-dtype": _unknown_types(scan.calls),
        "unknown-copies": gpu.unknown(copies),
        "unreadable-groups": context.groups.unreadable,
        "unlisted-groups": context.groups.unlisted,
        "unreadable-flight-recorder": context.flight.unreadable,
    }
    gaps = host_gaps(scan, gloo.rows, rank)
    columns: dict[str, Columns] = {
        "kernels": gpu.kernels(scan, join, rank),
        "copies": copies,
        "blocking_calls": synchronisations.blocking_calls(scan, steps, rank),
        "synchronisations": synchronisations.synchronisations(scan, steps, rank),
        "collectives": _collectives(rows, steps, launches=scan.launches.start_ns.size > 0),
        "ops": host.operators(scan, steps, rank),
        "host_operators": host.beside_gpu(scan, steps, rank),
        "host_gaps": {**gaps, "step": steps.containing(gaps["start_ns"])},
        "steps": host.step_ranges(scan, steps, rank),
        "groups": _groups(context.groups, rank),
        "ranks": _ranks(scan, job, identity),
        "probes": PROBES.arrays([{**probe, "rank": rank} for probe in job.probes]),
    }
    notes = _notes(job, identity, counts, cut)
    if len(several) > 1:
        message = (
            f"it holds calls of {numbered('rank', several)}, taken as one rank: who waits for whom "
            "is unknown"
        )
        notes += (Note("several-ranks", message, rank, scan.file),)
    if _cut_before_gpu(scan):
        message = (
            "the trace ends before its GPU events: what ran there, communication included, is "
            "unknown; copy or record it again"
        )
        notes += (Note(CUT_BEFORE_GPU, message, rank, scan.file),)
    if why := sampled(scan):
        notes += (Note(SAMPLED, why, rank, scan.file),)
    return Tables(columns, notes, job.machine)


def _cut_before_gpu(scan: Scan) -> bool:
    """Whether a file broke off before the events of a GPU that its host used.

    Kineto writes the host's operators first. Work of gloo shows a run on the CPU, also where
    the process saw GPUs.
    """
    if scan.gpu.start_ns.size or all(note.code != "truncated" for note in scan.notes):
        return False
    on_gpu = scan.launches.start_ns.size or scan.metadata.get("deviceProperties")
    nccl = any(call.name.startswith(("nccl:", "record_param_comms")) for call in scan.calls)
    return bool(on_gpu or nccl) and not any(call.name.startswith("gloo:") for call in scan.calls)


def _collectives(rows: list[dict[str, Any]], steps: Steps, *, launches: bool) -> Columns:
    moments = [_begun(row, launches) for row in rows]
    numbers = steps.containing(np.asarray(moments, dtype=np.int64)).tolist()
    for row, number in zip(rows, numbers, strict=True):
        row["step"] = None if number == NULL else number
    return COLLECTIVES.arrays(rows)


def _begun(row: dict[str, Any], launches: bool) -> int:
    """When the host called an operation; NULL where that was lost, as for kernels."""
    on_gpu = row["device"] != "cpu"
    called = row["launch_ns"] if on_gpu and launches else row["launch_ns"] or row["start_ns"]
    return NULL if called is None else called


def _groups(groups: Groups, rank: int) -> Columns:
    return GROUPS.arrays(
        [
            {
                "rank": rank,
                "group": group.name,
                "description": group.description,
                "backend": group.backend,
                "size": group.size,
                "ranks": group.ranks and ",".join(map(str, sorted(group.ranks))),
            }
            for group in groups.known
            if group.size is not None
        ]
    )


def _ranks(scan: Scan, job: JobMetadata, identity: Identity) -> Columns:
    rank, provenance = identity
    kept = (scan.gpu, scan.launches, scan.operators, scan.annotations)
    starts: list[Int64] = [part.start_ns for part in kept]
    ends = [part.start_ns + part.duration_ns for part in kept]
    starts.append(np.asarray([call.start_ns for call in scan.calls], dtype=np.int64))
    ends.append(
        np.asarray([call.start_ns + call.duration_ns for call in scan.calls], dtype=np.int64)
    )
    return RANKS.arrays(
        [
            {
                "rank": rank,
                "file": scan.file,
                "host": job.host,
                "gpu": job.gpu,
                "world_size": job.world_size,
                "backend": job.backend,
                "rank_provenance": provenance,
                "start_ns": min((int(part.min()) for part in starts if part.size), default=None),
                "end_ns": max((int(part.max()) for part in ends if part.size), default=None),
                "events": scan.events,
            }
        ]
    )


def _unknown_types(calls: tuple[Call, ...]) -> int:
    dtypes = (call.args.dtype for call in calls)
    return sum(bool(dtype) and canonical_dtype(str(dtype)) is None for dtype in dtypes)


def _notes(
    job: JobMetadata, identity: Identity, counts: dict[str, int], cut: Cut
) -> tuple[Note, ...]:
    rank, provenance = identity
    found = [(code, _COUNTED[code].format(count)) for code, count in counts.items() if count]
    if cut.kernels:
        message = (
            f"{cut.kernels} kernels end after the next kernel of their stream begins, by "
            f"{cut.time_ns / 1e6:,.1f} ms in all, as ROCm records after a stall: each is taken "
            "to end where the next begins"
        )
        found.append(("overrunning-kernels", message))
    found += [("bad-metadata", f"{what}: taken as unknown") for what in job.unusable]
    if job.partial:
        found.append((FAILED, f"the recording failed, and holds what there was: {job.partial}"))
    found += [("recorder-waited", message) for message in job.waited]
    if provenance == "file-name":
        found.append(("rank-from-filename", f"the trace has no rank: {rank} is from its name"))
    elif provenance == "assumed":
        found.append(("rank-assumed", f"neither the trace nor its name has a rank: took {rank}"))
    if job.rank is not None and job.world_size is not None and job.rank >= job.world_size:
        found.append(
            ("inconsistent-metadata", f"rank {job.rank} in a world of {job.world_size} ranks")
        )
    return tuple(Note(code, message, rank, job.file) for code, message in found)
