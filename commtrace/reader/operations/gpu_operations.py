"""Communication on a GPU -> rows of the table of collectives, by the best metadata there is.

The rungs, best first: the kernel's own arguments; the ``record_param_comms`` that
launched it; the ``nccl:*`` annotation and the operator around the launch; the kernel's
name. A fact that one rung lacks comes from the next that has it.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import msgspec

from commtrace import comms, kernels
from commtrace.arrays import NULL
from commtrace.reader.gpu import Launched
from commtrace.reader.json.events import Call, Scan
from commtrace.reader.nest import Nest, by_thread
from commtrace.reader.operations.copy_engine import copied
from commtrace.reader.operations.operation_facts import (
    Described,
    annotation,
    facts_of,
    first,
    operator,
    parameters,
)
from commtrace.reader.operations.rows import RankContext, row, with_dtype

__all__ = ["gpu_rows"]

_REDUCES = ("all_reduce", "reduce_scatter", "reduce")
_SILENT = kernels.Kernel(is_nccl=True)

_Known = dict[bytes, tuple[Described, str]]
"""What events tell of an operation, and which of them names it, by what they say: it repeats."""

_text = msgspec.json.Encoder().encode


def gpu_rows(scan: Scan, join: Launched, context: RankContext) -> list[dict[str, Any]]:
    """One row for each communication kernel, or for each operation batched into one.

    Operations that copies between GPUs did without any kernel have a row, too.
    """
    nests = by_thread(call for call in scan.calls if _describes(call))
    launched: dict[int, list[tuple[int, Call]]] = defaultdict(list)
    worked: list[Call] = []
    known: _Known = {}
    rows = []
    for kernel in scan.calls:
        if kernel.category != "kernel":
            continue
        launch_ns, thread = int(join.launch_ns[kernel.gpu_row]), int(join.thread[kernel.gpu_row])
        if launch_ns == NULL:
            rows.append(_row(scan, context, known, kernel, None, []))
        else:
            launched[thread].append((launch_ns, kernel))
    for thread, run in launched.items():
        nest = nests.get(thread, Nest([]))
        previous_ns = NULL
        for launch_ns, kernel in sorted(run, key=lambda pair: pair[0]):
            for enclosing in _operations(nest, kernel, previous_ns, launch_ns):
                rows.append(_row(scan, context, known, kernel, launch_ns, enclosing))
                worked += [] if _by_name(kernel).call else enclosing
            if _by_name(kernel).is_nccl:
                previous_ns = launch_ns
    for copies, launch_ns, enclosing in copied(scan, join, nests, worked):
        rows.append(_row(scan, context, known, copies, launch_ns, enclosing))
    return rows


def _operations(nest: Nest, kernel: Call, previous_ns: int, launch_ns: int) -> list[list[Call]]:
    """What encloses the call of each operation that a kernel runs, innermost first.

    Operations coalesced between ``ncclGroupStart`` and ``ncclGroupEnd`` are recorded one
    by one, and launched together after the last.
    """
    enclosing = nest.around(launch_ns)
    alone = kernel.args.collective is not None or not _by_name(kernel).is_nccl
    if alone or any(map(_is_record, enclosing)):
        return [enclosing]
    coalesced = any("coalesced" in call.name for call in enclosing)
    batch = [
        nest.around(call.start_ns)
        for call in nest.started(previous_ns, launch_ns)
        if _is_record(call)
        and call.start_ns + call.duration_ns <= launch_ns
        and (coalesced or _recorded(call) in comms.POINT_TO_POINT)
    ]
    return batch or [enclosing]


def _row(
    scan: Scan,
    context: RankContext,
    known: _Known,
    kernel: Call,
    launch_ns: int | None,
    enclosing: list[Call],
) -> dict[str, Any]:
    record = next(filter(_is_record, enclosing), None)
    noted = next((c for c in enclosing if c.category == "user_annotation"), None)
    called = next((c for c in enclosing if _is_operator(c)), None)
    own = _by_name(kernel)
    if own.call is not None:
        record = noted = called = None
    calls = (kernel, record, noted, called)
    key = _text([(call.name, facts_of(call.args)) if call else None for call in calls])
    if key not in known:
        known[key] = _told(kernel, record, noted, called)
    facts, provenance = known[key]
    naming = kernel.args if kernel.args.collective is not None or record is None else record.args
    gpu, at = scan.gpu, kernel.gpu_row
    return row(
        context,
        context.place(facts, naming, called, (facts.op,)),
        facts,
        executed=own.executed if own.executed or own.call else facts.op,
        provenance=provenance,
        name=kernel.name,
        device=f"{scan.device_type}:{int(gpu.device[at])}",
        stream=int(gpu.stream[at]),
        launch_ns=launch_ns,
        start_ns=kernel.start_ns,
        duration_ns=kernel.duration_ns,
        comms_id=naming.comms_id,
    )


def _told(
    kernel: Call, record: Call | None, noted: Call | None, called: Call | None
) -> tuple[Described, str]:
    """Each fact from the best rung that has it, and the rung that names the operation."""
    own = _by_name(kernel)
    rungs: list[tuple[str, Described]] = []
    if kernel.args.collective is not None:
        rungs.append(("kernel", parameters(kernel.args)))
    if record is not None:
        rungs.append(("record_param_comms", parameters(record.args)))
    if noted is not None:
        rungs.append(("annotation", annotation(noted.name, noted.args)))
    by_operator = None if called is None else operator(called.name, called.args)
    if by_operator is not None:
        rungs.append(("operator", by_operator))
    rungs.append(("kernel-name", Described(own.op, own.call, group_size=own.group_size)))
    facts = first(*(rung for _, rung in rungs))
    if by_operator is not None:
        # An argument of the call's; as the rank of a record other tools write the caller's.
        root, peer = by_operator.root, by_operator.peer
        facts = facts._replace(
            root=facts.root if root is None else root, peer=facts.peer if peer is None else peer
        )
    if own.executed in _REDUCES:  # others move bytes, whatever the type
        facts = with_dtype(facts, own.dtype)
    return facts, next((label for label, rung in rungs if rung.op), "kernel-name")


def _by_name(kernel: Call) -> kernels.Kernel:
    """What the name tells; nothing where only the arguments show that it communicates."""
    return kernels.known(kernel.name) or _SILENT


def _describes(call: Call) -> bool:
    noted = call.category == "user_annotation" and not call.name.startswith("gloo:")
    return noted or _is_record(call) or _is_operator(call)


def _is_operator(call: Call) -> bool:
    return call.category == "cpu_op" and comms.canonical_operation(call.name) is not None


def _is_record(call: Call) -> bool:
    """Whether this is a record of an operation; those named ``wait`` are none."""
    return call.name == "record_param_comms" and _recorded(call) is not None


def _recorded(call: Call) -> str | None:
    return comms.canonical_operation(call.args.collective or "")
