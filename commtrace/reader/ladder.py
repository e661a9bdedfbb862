"""Communication kernels -> rows of the table of collectives, by the best metadata there is.

The rungs, best first: the kernel's own arguments; the ``record_param_comms`` that
launched it; the ``nccl:*`` annotation and the ``c10d`` operator around the launch; the
kernel's name. A fact that one rung lacks comes from the next that has it.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from commtrace import comms
from commtrace.reader.described import Described, annotation, first, operator, parameters
from commtrace.reader.events import Call, Scan
from commtrace.reader.gpu import Launched
from commtrace.reader.nesting import Nest, by_thread
from commtrace.reader.operations import Setting, row, with_dtype
from commtrace.schema import NULL

__all__ = ["kernel_rows"]

_REDUCES = ("all_reduce", "reduce_scatter", "reduce")


def kernel_rows(scan: Scan, join: Launched, setting: Setting) -> list[dict[str, Any]]:
    """One row for each communication kernel, or for each operation batched into one."""
    nests = by_thread(call for call in scan.calls if _describes(call))
    launched: dict[int, list[tuple[int, Call]]] = defaultdict(list)
    rows = []
    for kernel in scan.calls:
        if kernel.category != "kernel":
            continue
        launch_ns, thread = int(join.launch_ns[kernel.gpu_row]), int(join.thread[kernel.gpu_row])
        if launch_ns == NULL:
            rows.append(_row(scan, setting, kernel, None, []))
        else:
            launched[thread].append((launch_ns, kernel))
    for thread, kernels in launched.items():
        nest = nests.get(thread, Nest([]))
        previous_ns = NULL
        for launch_ns, kernel in sorted(kernels, key=lambda pair: pair[0]):
            for enclosing in _operations(nest, kernel, previous_ns, launch_ns):
                rows.append(_row(scan, setting, kernel, launch_ns, enclosing))
            previous_ns = launch_ns
    return rows


def _operations(nest: Nest, kernel: Call, previous_ns: int, launch_ns: int) -> list[list[Call]]:
    """What encloses the call of each operation that a kernel runs, innermost first.

    Operations coalesced between ``ncclGroupStart`` and ``ncclGroupEnd`` are recorded one
    by one, and launched together after the last.
    """
    enclosing = nest.around(launch_ns)
    if kernel.args.collective is not None or any(map(_is_record, enclosing)):
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
    scan: Scan, setting: Setting, kernel: Call, launch_ns: int | None, enclosing: list[Call]
) -> dict[str, Any]:
    record = next(filter(_is_record, enclosing), None)
    noted = next((c for c in enclosing if c.category == "user_annotation"), None)
    called = next((c for c in enclosing if c.name.startswith("c10d::")), None)
    rungs: list[tuple[str, Described]] = []
    if kernel.args.collective is not None:
        rungs.append(("kernel", parameters(kernel.args)))
    if record is not None:
        rungs.append(("record_param_comms", parameters(record.args)))
    if noted is not None:
        rungs.append(("annotation", annotation(noted.name, noted.args)))
    if called is not None:
        rungs.append(("operator", operator(called.name, called.args)))
    told = first(*(rung for _, rung in rungs))
    stated = comms.kernel_operation(kernel.name)
    if stated in _REDUCES:  # others move bytes, whatever the type
        told = with_dtype(told, comms.kernel_dtype(kernel.name))
    naming = kernel.args if kernel.args.collective is not None or record is None else record.args
    gpu, at = scan.gpu, kernel.gpu_row
    return row(
        setting,
        setting.place(told, naming, called, (told.op,)),
        told,
        executed=stated or told.op,
        provenance=next((label for label, rung in rungs if rung.op), "kernel-name"),
        name=kernel.name,
        device=f"cuda:{int(gpu.device[at])}",
        stream=int(gpu.stream[at]),
        launch_ns=launch_ns,
        start_ns=kernel.start_ns,
        duration_ns=kernel.duration_ns,
        comms_id=naming.comms_id,
    )


def _describes(call: Call) -> bool:
    noted = call.category == "user_annotation" and not call.name.startswith("gloo:")
    return noted or _is_record(call) or call.name.startswith("c10d::")


def _is_record(call: Call) -> bool:
    """Whether this is a record of an operation; those named ``wait`` are none."""
    return call.name == "record_param_comms" and _recorded(call) is not None


def _recorded(call: Call) -> str | None:
    return comms.canonical_operation(call.args.collective or "")
