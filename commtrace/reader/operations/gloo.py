"""Calls of ``c10d`` on the CPU and gloo's work -> rows of the table of collectives.

gloo's work is annotated ``gloo:*`` on the thread that does it, without a word of the
call it belongs to. Each call is known to ask for certain work; work, in the order of its
start, goes to the earliest call that still lacks such work. A monitored barrier is done by its
caller's own thread, with messages that are no operations of the program's.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from typing import Any, NamedTuple

from msgspec import Struct

from commtrace import comms
from commtrace.reader.json.events import Call, Scan
from commtrace.reader.nest import by_thread
from commtrace.reader.operations.operation_facts import (
    Described,
    annotation,
    argument_sizes,
    operator,
)
from commtrace.reader.operations.rows import GroupPlace, RankContext, row, with_dtype

__all__ = ["Worked", "gloo_rows"]

_Work = tuple[str | None, int | None]
"""An operation that gloo runs, and its elements; None if unknown."""

_SPARSE = "gloo:sparse_all_reduce"
_LIST_OF_SHARDS = "c10d::reduce_scatter_"
_MONITORED = "c10d::monitored_barrier_"


class _Ran(NamedTuple):
    """Work of gloo, and what its annotation says."""

    work: Call
    facts: Described


class _Asked(Struct):
    """A call, the work it still lacks, and the work it got.

    ``endless`` is a call of which nobody says how often it asks for its work: it takes as
    much as comes, until the next such call.
    """

    call: Call
    facts: Described
    place: GroupPlace
    lacking: Counter[_Work]
    endless: bool = False
    works: list[_Ran] = []

    @property
    def complete(self) -> bool:
        return bool(self.works) and (self.endless or not self.lacking.total())


class Worked(Struct, frozen=True):
    """Rows of the table of collectives, and how many calls lack their work."""

    rows: list[dict[str, Any]]
    unfinished: int


def gloo_rows(scan: Scan, context: RankContext) -> Worked:
    """One row for each call that gloo worked for.

    Work without a call, in traces that hold no operators, becomes a row by itself.
    """
    works = [call for call in scan.calls if call.name.startswith("gloo:")]
    if scan.gpu.device.size and not works:
        return Worked([], 0)
    calls = _calls(scan)
    monitored = [call for call in calls if call.name == _MONITORED]
    nests = by_thread(monitored)
    ran = [
        _Ran(work, annotation(work.name, work.args))
        for work in works
        if work.thread not in nests or not nests[work.thread].around(work.start_ns)
    ]
    asked, alone = _matched(
        [_ask(call, context) for call in calls if call.name != _MONITORED],
        sorted(ran, key=lambda r: r.work.start_ns),
    )
    done = [each for each in asked if each.complete]
    rows = [_call_row(each, context) for each in done]
    rows += [_work_row(work, context) for work in alone]
    rows += [_call_row(_by_itself(call, context), context) for call in monitored]
    return Worked(rows, len(asked) - len(done))


def _calls(scan: Scan) -> list[Call]:
    """The calls that did not go to another backend, which leaves notes within its calls.

    Nor those that call themselves anew: so does each under a ``TorchDispatchMode``.
    """
    nests = by_thread(call for call in scan.calls if call.category != "kernel")
    gone = {
        id(outer)
        for nest in nests.values()
        for call in nest.calls
        for outer in nest.around(call.start_ns)
        if call.name == "record_param_comms"
        or _is_foreign(call)
        or (outer.name == call.name and outer.start_ns < call.start_ns)
    }
    calls = [
        call
        for call in scan.calls
        if call.name.startswith("c10d::")
        and comms.canonical_operation(call.name) is not None
        and id(call) not in gone
    ]
    return sorted(calls, key=lambda c: c.start_ns)


def _is_foreign(call: Call) -> bool:
    return call.category == "user_annotation" and not call.name.startswith("gloo:")


def _ask(call: Call, context: RankContext) -> _Asked:
    facts = operator(call.name, call.args)
    ran = "all_reduce" if facts.op == "reduce_scatter" else facts.op
    place = context.place(facts, None, call, (ran, facts.op))
    if call.name == _LIST_OF_SHARDS:
        n = _shards(call, place, context)
        lacking: Counter[_Work] = Counter({(ran, facts.out_elements): n or 1})
        return _Asked(call, facts, place, lacking, endless=n is None)
    if facts.op in ("scatter", "barrier"):
        sizes: list[int | None] = [None]
    elif facts.op == "reduce_scatter":
        sizes = [*argument_sizes(call.args, 1)] or [None]
    else:
        sizes = [facts.out_elements if facts.op == "recv" else facts.in_elements]
    return _Asked(call, facts, place, Counter((ran, size) for size in sizes))


def _by_itself(call: Call, context: RankContext) -> _Asked:
    """A call that is its own work."""
    its = _ask(call, context)
    its.works.append(_Ran(call, its.facts))
    return its


def _shards(call: Call, place: GroupPlace, context: RankContext) -> int | None:
    end_ns = call.start_ns + call.duration_ns
    noted = context.flight.within(call.start_ns, end_ns, ("all_reduce",))
    return len(noted) or (place.group.size if place.group is not None else None)


def _matched(asked: list[_Asked], works: list[_Ran]) -> tuple[list[_Asked], list[_Ran]]:
    waiting: dict[_Work, deque[_Asked]] = defaultdict(deque)
    coming = deque(asked)
    alone = []
    for ran in works:
        while coming and coming[0].call.start_ns <= ran.work.start_ns:
            _wait(waiting, coming.popleft())
        facts = ran.facts
        elements = facts.out_elements if facts.op == "recv" else facts.in_elements
        for kind in ((facts.op, elements), (facts.op, None)):
            if waiting[kind]:
                _give(waiting[kind], kind, ran)
                break
        else:
            alone.append(ran)
    return asked, alone


def _wait(waiting: dict[_Work, deque[_Asked]], asked: _Asked) -> None:
    for kind in asked.lacking:
        queue = waiting[kind]
        if queue and queue[-1].endless and queue[-1].works:
            queue.pop()
        queue.append(asked)


def _give(queue: deque[_Asked], kind: _Work, ran: _Ran) -> None:
    asked = queue[0]
    asked.works.append(ran)
    if not asked.endless:
        asked.lacking[kind] -= 1
        if not asked.lacking[kind]:
            queue.popleft()


def _call_row(asked: _Asked, context: RankContext) -> dict[str, Any]:
    call, facts, works = asked.call, asked.facts, [ran.work for ran in asked.works]
    start_ns = works[0].start_ns
    end_ns = max(work.start_ns + work.duration_ns for work in works)
    notes = [ran.facts for ran in asked.works]
    noted = context.flight.within(
        call.start_ns, call.start_ns + call.duration_ns, (notes[0].op, facts.op)
    )
    facts = with_dtype(facts, *(n.dtype for n in notes), *(entry.dtype for entry in noted))
    facts = _dense(works[0], _sized(facts, notes))
    if call.name == _LIST_OF_SHARDS and len(works) in context.groups.sizes(default=len(works)):
        facts = facts._replace(group_size=len(works))
    return row(
        context,
        asked.place,
        facts,
        executed=notes[0].op,
        provenance="operator",
        name=works[0].name,
        device="cpu",
        stream=works[0].thread,
        launch_ns=call.start_ns,
        thread=call.thread,
        start_ns=start_ns,
        duration_ns=end_ns - start_ns,
    )


def _sized(facts: Described, notes: list[Described]) -> Described:
    """With the sizes of its work, where the call is one of a list, whose shapes nobody records."""
    if facts.in_elements is not None or facts.out_elements is not None:
        return facts
    sizes = [note.in_elements for note in notes if note.op == facts.op]
    known = [size for size in sizes if size is not None]
    if not known or len(known) < len(notes):
        return facts
    return facts._replace(in_elements=sum(known))


def _dense(work: Call, facts: Described) -> Described:
    """Without the sizes of a sparse tensor, which are a dense one's: what goes is unknown."""
    if work.name != _SPARSE:
        return facts
    return facts._replace(in_elements=None, out_elements=None)


def _work_row(ran: _Ran, context: RankContext) -> dict[str, Any]:
    work, facts = ran.work, _dense(*ran)
    return row(
        context,
        context.place(facts, None, None, ()),
        facts,
        executed=facts.op,
        provenance="annotation",
        name=work.name,
        device="cpu",
        stream=work.thread,
        launch_ns=None,
        start_ns=work.start_ns,
        duration_ns=work.duration_ns,
    )
