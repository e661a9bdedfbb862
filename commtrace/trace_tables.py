"""Every table's columns, described once: dtype, unit, a sentence.

Tables are built with :meth:`Table.rows`, which is also where they are checked, and
the documentation of the columns is generated from here.
"""

from __future__ import annotations

from commtrace.table import Column, Table

__all__ = [
    "BLOCKING_CALLS",
    "COLLECTIVES",
    "COPIES",
    "CUT_BEFORE_GPU",
    "FAILED",
    "GROUPS",
    "HOST_GAPS",
    "HOST_OPERATORS",
    "KERNELS",
    "LEFT_OUT",
    "MISSING_RANK",
    "OPS",
    "PROBES",
    "RANKS",
    "RECORDED_APART",
    "SAMPLED",
    "STEPS",
    "SYNCHRONISATIONS",
    "TABLES",
    "WAITED",
]

CUT_BEFORE_GPU = "cut-before-gpu-events"
"""The code of the note that a file broke off before the events of its GPU."""
FAILED = "failed-recording"
"""The code of the note that a recording holds less than it should, and why."""
LEFT_OUT = ": left out"
"""How the note ends that a file is of another run than the most."""
MISSING_RANK = "missing-rank"
"""The code of the note that ranks of the job have no file."""
RECORDED_APART = "recorded-apart"
"""The code of the note that a run was cut to the time that all its ranks were recorded."""
SAMPLED = "sampled-events"
"""The code of the note that most of a file's events were left out before it came here."""
WAITED = "the recorder held this rank up"
"""How the recorder's note begins that it waited in the middle of the program."""


def _int(name: str, about: str, unit: str | None = None) -> Column:
    return Column(name, "int64", about, unit)


def _maybe(name: str, about: str, unit: str | None = None) -> Column:
    return Column(name, "Int64", about, unit)


def _text(name: str, about: str) -> Column:
    return Column(name, "category", about)


_RANK = _int("rank", "The rank whose trace this comes from.")
_DEVICE = _text("device", "torch's name, with the trace's own number: `cuda:0`, `cpu`.")
_STREAM = _int("stream", "The CUDA or HIP stream; on the CPU the thread.")
_START = _int("start_ns", "When it started, in Unix time on the rank's own clock.", "ns")
_DURATION = _int("duration_ns", "How long it ran.", "ns")
_LAUNCH = _maybe("launch_ns", "When the host launched it; null if unknown.", "ns")
_LAUNCHED_BY = _maybe("thread", "The host thread that launched it.")
_CORRELATION = _maybe(
    "correlation", "The number of the launch; the kernels and copies of one CUDA graph share it."
)
_CALL = _maybe("correlation", "The number that the trace gives the call.")
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
        _LAUNCHED_BY,
        _CORRELATION,
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
        _text("source", "`host` or a device; null for fills, and if unknown."),
        _text("destination", "`host` or a device; null if unknown."),
        _text("memory", "Of the host's side: `pageable` or `pinned`; null for copies without one."),
        _maybe("size_bytes", "Bytes moved; null if unknown.", "bytes"),
        _START,
        _DURATION,
        _LAUNCH,
        _LAUNCHED_BY,
        _CORRELATION,
        _STEP,
    ),
)

BLOCKING_CALLS = Table(
    "blocking_calls",
    "one call of CUDA or HIP that can block its host thread: it synchronises, copies, "
    "allocates or frees memory, or launches while the queue of launches is full",
    (
        _RANK,
        _int("thread", "The host thread that called it."),
        _text("name", "The call's name as the trace has it."),
        _text("device", "The device that it copies on or waits for; null where unknown."),
        _maybe(
            "stream",
            "The stream that it copies on or waits for; null where it is none, or unknown: of "
            "what waits, it is known where the profiler recorded synchronisations.",
        ),
        _START,
        _DURATION,
        _CALL,
        _STEP,
    ),
)

SYNCHRONISATIONS = Table(
    "synchronisations",
    "one wait for the work of a GPU, or one event recorded for such a wait",
    (
        _RANK,
        _text(
            "kind",
            "`Context Sync`, `Stream Sync`, `Event Sync`: the host waits, or asks without "
            "waiting; `Stream Wait Event`: a stream waits; `Event Record`.",
        ),
        _text("call", "The call's name as the trace has it; null where the trace lacks the call."),
        _maybe("thread", "The host thread that called it; null where the trace lacks the call."),
        _text(
            "device", "The device that is synchronised; null where the profiler did not record it."
        ),
        _maybe(
            "stream",
            "The stream that waits for an event, or that the host waits for; null where it is "
            "none, or where the profiler did not record synchronisations.",
        ),
        _maybe(
            "awaited_stream", "The stream on which the awaited event was recorded; null if unknown."
        ),
        _maybe("event", "The awaited event's number; null if it is none or unknown."),
        _maybe(
            "record_correlation", "Of the call that recorded the awaited event; null if unknown."
        ),
        _maybe("recorded_ns", "When the host called for that; null if unknown.", "ns"),
        _START,
        _DURATION,
        _CALL,
        _STEP,
    ),
)

COLLECTIVES = Table(
    "collectives",
    "one communication operation on one rank, point-to-point included",
    (
        _STEP,
        _text("group", "The process group's name; null if unknown."),
        _maybe("seq", "Its number in its group, the same on every rank; null if unknown."),
        _RANK,
        _text(
            "op",
            "The operation that was called, canonical; null where only a kernel shows it that "
            "several have in common.",
        ),
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
            "1 if the call was asked to return at once (`async_op`), 0 if not; null if unknown.",
        ),
        _LAUNCH,
        _maybe("thread", "The host thread that called it; null if unknown."),
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
            "(the only known group it can belong to); `deduced` where the group is null and its "
            "size is that of all groups that the trace lists; null where nothing is known.",
        ),
        _text("comms_id", "The identifier that newer traces give an operation on every rank."),
        _text(
            "called_at",
            "The program's line that called it, and the library's if one did, as the recorder's "
            "flight recorder noted them: `train.py:57 in main`; null if unknown.",
        ),
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
        _maybe("operators", "How many it was, with all that it called; null beside a GPU."),
        _START,
        _DURATION,
        _STEP,
    ),
)

HOST_OPERATORS = Table(
    "host_operators",
    "one operator that is not called by another, on the host of a GPU",
    (
        _RANK,
        _int("thread", "The thread it ran on."),
        _text("name", "The operator's name."),
        _START,
        _DURATION,
        _maybe("step", "n of the `ProfilerStep#n` that it begins in; null outside any."),
    ),
)

HOST_GAPS = Table(
    "host_gaps",
    "a time in which a host thread that calls communication ran no operator, while an operation "
    "it had called was under way; calls of communication count as such times, data loading, "
    "checkpoints and garbage collection do not; of ranks without a GPU",
    (
        _RANK,
        _int("thread", "The thread."),
        _START,
        _DURATION,
        _maybe("step", "n of the `ProfilerStep#n` that it begins in; null outside any."),
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
        _text("ranks", "Its global ranks, ascending, separated by commas; null if unknown."),
    ),
)

RANKS = Table(
    "ranks",
    "one rank",
    (
        _RANK,
        _text("file", "The path of its file as it was given or found; of several the first."),
        _text("host", "The host's name; null if unknown."),
        _text("gpu", "The model of its GPUs; null if unknown, or of several models."),
        _maybe("world_size", "Ranks in the job, as this trace says.", "ranks"),
        _text("backend", "The default group's backend, as this trace says."),
        _text("rank_provenance", "`metadata`, `calls`, `file-name`, or `assumed`."),
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

TABLES = (
    KERNELS,
    COPIES,
    BLOCKING_CALLS,
    SYNCHRONISATIONS,
    COLLECTIVES,
    OPS,
    HOST_OPERATORS,
    HOST_GAPS,
    STEPS,
    GROUPS,
    RANKS,
    PROBES,
)
