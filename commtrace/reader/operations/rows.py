"""One row of the table of collectives, whatever ran it."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from msgspec import Struct

from commtrace import comms
from commtrace.reader.json.events import Arguments, Call
from commtrace.reader.operations.flight_recorder import FlightRecorder
from commtrace.reader.operations.groups import Group, Groups
from commtrace.reader.operations.operation_facts import Described, completed

__all__ = ["GroupPlace", "RankContext", "row", "with_dtype"]

_LARGEST = 2**63


class GroupPlace(Struct, frozen=True):
    """An operation's group and its number there, how these are known, and the program's line.

    ``source`` is the global rank that it came from, where its call named none.
    """

    group: Group | None = None
    seq: int | None = None
    provenance: str | None = None
    called_at: str | None = None
    source: int | None = None


class RankContext(Struct, frozen=True):
    """What a rank knows beside its events."""

    rank: int
    groups: Groups
    flight: FlightRecorder

    def learn(self, calls: Collection[Call]) -> None:
        """Add the groups that operations name to those listed; and when all were called."""
        for call in calls:
            if comms.canonical_operation(call.args.collective or "") is not None:
                self.groups.named(call.args)
        self.flight.know(
            (call.start_ns, call.start_ns + call.duration_ns)
            for call in calls
            if call.name.startswith("c10d::")
        )
        for entry in self.flight.entries:
            self.groups.called(entry.group)

    def place(
        self,
        facts: Described,
        naming: Arguments | None,
        call: Call | None,
        ops: Collection[str | None],
    ) -> GroupPlace:
        """Find an operation's group.

        ``naming`` are the arguments that may name it; ``call`` is the ``c10d`` operator,
        within which the flight recorder noted one of ``ops``.
        """
        entries = []
        if call is not None:
            end_ns = call.start_ns + call.duration_ns
            entries = self.flight.within(call.start_ns, end_ns, ops)
        line, source = (entries[0].called_at, entries[0].source) if entries else (None, None)
        group = self.groups.named(naming) if naming is not None else None
        if group is not None:
            seq = naming.seq if naming is not None else None
            if seq is None and entries and entries[0].group == group.name:
                return GroupPlace(group, entries[0].seq, "flight-recorder", line, source)
            return GroupPlace(group, seq, "metadata", line, source)
        if entries:
            its = self.groups.called(entries[0].group)
            return GroupPlace(its, entries[0].seq, "flight-recorder", line, source)
        candidates = self.groups.candidates(facts.peer)
        return (
            GroupPlace(candidates[0], None, "only-group") if len(candidates) == 1 else GroupPlace()
        )

    def global_rank(self, index: int | None, place: GroupPlace, peer: int | None) -> int | None:
        """The global rank of a group's rank, where all groups it can be agree on it."""
        if index is None:
            return None
        groups = [place.group] if place.group is not None else self.groups.candidates(peer)
        found = {group.member(index) for group in groups}
        return found.pop() if len(found) == 1 else None

    def peer(self, facts: Described, place: GroupPlace) -> int | None:
        """The global rank of a peer, which is of the group where that is known.

        Some tools write a rank's own number there: nobody sends messages to itself.
        """
        peer = self.global_rank(facts.peer, place, facts.peer)
        if peer not in (None, self.rank):
            return peer
        ranks = place.group.ranks if place.group is not None else None
        peer = place.source if facts.global_peer is None else facts.global_peer
        return peer if peer != self.rank and (ranks is None or peer in ranks) else None


def row(
    context: RankContext,
    place: GroupPlace,
    facts: Described,
    *,
    executed: str | None,
    provenance: str,
    name: str,
    device: str,
    stream: int,
    launch_ns: int | None,
    start_ns: int,
    duration_ns: int,
    thread: int | None = None,
    comms_id: Any = None,
) -> dict[str, Any]:
    """A row, without its step, which depends on nothing else here."""
    group_size = facts.group_size
    if group_size is None and place.group is not None:
        group_size = place.group.size
    root = context.global_rank(facts.root, place, None)
    is_root = None if root is None else root == context.rank
    whole = completed(facts, group_size, is_root)
    group_provenance = place.provenance
    if whole.group_size is None and place.group is None:
        # NCCL runs no kernel for a group of one rank.
        group_size = context.groups.common_size(alone=device == "cpu")
        if group_size is not None:
            whole = completed(facts, group_size, is_root)
            group_provenance = "deduced"
    in_bytes = _bytes(whole.in_elements, facts.dtype)
    out_bytes = _bytes(whole.out_elements, facts.dtype)
    size = (
        comms.full_size_bytes(facts.op, in_bytes, out_bytes, whole.group_size) if facts.op else None
    )
    if is_root is False:  # NCCL tells every rank of the root's buffer
        in_bytes = 0 if facts.op == "scatter" else in_bytes
        out_bytes = 0 if facts.op == "gather" else out_bytes
    return {
        "group": place.group.name if place.group is not None else None,
        "seq": _fitting(place.seq),
        "rank": context.rank,
        "op": facts.op,
        "executed": executed,
        "call": facts.call,
        "dtype": None if facts.op == "barrier" else facts.dtype,
        "size_bytes": _fitting(size),
        "in_bytes": in_bytes,
        "out_bytes": out_bytes,
        "group_size": _fitting(whole.group_size),
        "device": device,
        "stream": stream,
        "peer": context.peer(facts, place),
        "root": root,
        "asynchronous": None if facts.asynchronous is None else int(facts.asynchronous),
        "launch_ns": launch_ns,
        "thread": thread,
        "start_ns": start_ns,
        "duration_ns": duration_ns,
        "name": name,
        "provenance": provenance,
        "group_provenance": group_provenance,
        "comms_id": None if comms_id is None else str(comms_id),
        "called_at": place.called_at,
    }


def with_dtype(facts: Described, *others: str | None) -> Described:
    """The same facts, with the first type that is known."""
    return facts._replace(dtype=next((d for d in (facts.dtype, *others) if d), None))


def _bytes(elements: int | None, dtype: str | None) -> int | None:
    if elements is None or dtype is None:
        return None
    return _fitting(elements * comms.element_bytes(dtype))


def _fitting(value: int | None) -> int | None:
    """None for what no column can hold, which only a damaged trace tells."""
    return value if value is not None and 0 <= value < _LARGEST else None
