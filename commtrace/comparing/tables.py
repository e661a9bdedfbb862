"""The tables of a comparison."""

from __future__ import annotations

from commtrace.table import Column, Table

__all__ = ["CHANGES", "COUNTS", "OUTLYING", "RANKS", "WORK"]

_OPERATION = (
    Column("op", "category", "The operation; null where it is none."),
    Column("dimension", "category", "Its groups' dimension of the job's mesh; null if unknown."),
    Column("dtype", "category", "torch's name of its element type."),
    Column("size_bytes", "Int64", "S, the full array: the larger of in and output.", "bytes"),
    Column("base_size_bytes", "Int64", "S in the base, where that is another; else null.", "bytes"),
)

CHANGES = Table(
    "changes",
    "one part of the change of a step, largest first: with `rest_ns` they sum to it",
    (
        Column(
            "kind",
            "category",
            "`compute`, `copy` or `host` (no operator ran; with GPUs, what the host does between "
            "launches) of ranks; `transfer` (all ranks were there) or `launch` (from call to "
            "start) of an operation; without a graph of the run `compute`, `communication` "
            "(exposed), `copy` and `idle` of the mean device.",
        ),
        Column("rank", "Int64", "Whose own work it is; null if of all ranks, or of no single one."),
        Column(
            "cause",
            "category",
            "`loader`, `checkpoint` or `garbage-collection`; null if none of these is known.",
        ),
        *_OPERATION,
        Column(
            "kernel",
            "category",
            "The kernel, or on a CPU the operator, that most of the change of compute is in; null "
            "if no single one.",
        ),
        Column(
            "place",
            "category",
            "The operation before which most of a rank's change is; null if no single one.",
        ),
        Column("base_ns", "int64", "How long it is in a step of the base.", "ns"),
        Column("candidate_ns", "int64", "How long it is in a step of the candidate.", "ns"),
        Column(
            "change_ns",
            "int64",
            "What a step is longer by for it: less than their difference where that was hidden.",
            "ns",
        ),
        Column("low_ns", "int64", "The least that it is, corrected for the number of rows.", "ns"),
        Column("high_ns", "int64", "The most that it is, corrected for the number of rows.", "ns"),
    ),
)

COUNTS = Table(
    "compared_operations",
    "the operations of one dimension, kind, type and size in a step",
    (
        *_OPERATION,
        Column("base_count", "float64", "How many a step of the base has.", "operations"),
        Column("candidate_count", "float64", "How many a step of the candidate has.", "operations"),
        Column("base_ns", "int64", "How long their transfers take in a step of the base.", "ns"),
        Column("candidate_ns", "int64", "How long they take in a step of the candidate.", "ns"),
    ),
)

_DID = (
    ("duration_ns", "How long its steps are."),
    ("compute_ns", "While compute kernels or operators ran on its devices."),
    ("exposed_communication_ns", "Communication without compute."),
    ("wait_ns", "Its waiting for other ranks."),
    ("copy_ns", "While copies ran."),
    ("idle_ns", "While nothing ran."),
)

RANKS = Table(
    "compared_ranks",
    "one rank: what its steps have, in the mean",
    (
        Column("rank", "int64", "The rank."),
        *(
            Column(f"{side}_{name}", "Int64", f"{about} {which}", "ns")
            for name, about in _DID
            for side, which in (("base", "In the base."), ("candidate", "In the candidate."))
        ),
    ),
)

WORK = Table(
    "compared_kernels",
    "the kernels, or on a CPU the operators, of one name and shape, in a step of the mean rank",
    (
        Column("kernel", "category", "The name that the trace has."),
        Column(
            "shape",
            "category",
            "The inputs' sizes as JSON, of a kernel those of the operator that launched it; null "
            "where they were not recorded.",
        ),
        Column(
            "base_shape", "category", "The shape in the base, where that is another; else null."
        ),
        Column("base_count", "float64", "How many a step of the base has.", "events"),
        Column("candidate_count", "float64", "How many a step of the candidate has.", "events"),
        Column("base_ns", "int64", "How long they run in a step of the base.", "ns"),
        Column("candidate_ns", "int64", "How long they run in a step of the candidate.", "ns"),
    ),
)

OUTLYING = Table(
    "outlying_steps",
    "one step that is not counted: one of the first, or one far off the others",
    (
        Column("side", "category", "`base` or `candidate`."),
        Column("recording", "int64", "Which recording of the side, from 1 on."),
        Column("step", "int64", "n of `ProfilerStep#n`."),
        Column("reason", "category", "`warm-up` or `outlying`."),
        Column("duration_ns", "int64", "How long it is.", "ns"),
        Column("more_ns", "int64", "How much longer than the steps that count.", "ns"),
        Column("kind", "category", "What most of that is, as in `changes`; null if unknown."),
        Column("rank", "Int64", "Whose it is; null if of no single one."),
        Column("cause", "category", "Its cause, as in `changes`."),
        Column("op", "category", "The operation, if it is one's."),
    ),
)
