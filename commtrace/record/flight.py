"""PyTorch's flight recorder: what a rank communicated, and where it is now."""

from __future__ import annotations

import json
import pickle
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d

from commtrace.record import messages
from commtrace.record.call_site import call_site

__all__ = ["Operation", "current", "dump", "left", "state", "waiting"]

_RETIRED_S = 0.2


@dataclass(frozen=True)
class Operation:
    """One operation that a rank called: ``number`` counts in its ``group``; done, or not yet.

    ``called_at`` is the program's line, where it is known.
    """

    name: str
    group: str
    number: int
    called_ns: int
    done: bool
    ranks: list[int] = field(default_factory=list)
    called_at: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """As it goes to the launcher."""
        return dict(vars(self))

    def waited_s(self) -> float:
        """How long ago it was called."""
        return (time.time_ns() - self.called_ns) / 1e9


def dump(since_ns: int = 0) -> dict[str, Any] | None:
    """The recorder's dump, operations called since then; None where none were noted.

    Each with the line of the program that called it (``called_at``), in place of its stack. gloo's
    messages, which it does not keep, come behind those that it does.
    """
    recorded = _dump(stacks=True) or {"entries": []}
    entries = [
        {
            **{key: value for key, value in entry.items() if key != "frames"},
            "called_at": call_site(entry.get("frames", ())),
        }
        for entry in recorded["entries"]
        if entry["time_created_ns"] >= since_ns
    ]
    entries += messages.entries(since_ns)
    return {**recorded, "entries": entries} if entries else None


def current() -> Operation | None:
    """The operation that this rank waits for, else the last it called; None if unknown."""
    operations = _operations(_dump(stacks=True))
    pending = [operation for operation in operations if not operation.done]
    return pending[0] if pending else operations[-1] if operations else None


def state() -> dict[str, Any] | None:
    """The same as the launcher gets it."""
    operation = current()
    return operation.to_dict() if operation else None


def left() -> dict[str, Any] | None:
    """The same for a rank that has just failed: gloo retires an operation behind its caller."""
    deadline = time.monotonic() + _RETIRED_S
    while (operation := current()) and not operation.done and time.monotonic() < deadline:
        time.sleep(_RETIRED_S / 20)
    return operation.to_dict() if operation else None


def waiting(*, with_line: bool = False) -> Operation | None:
    """The oldest operation that is not done. Cheap without its line: only those are dumped."""
    pending = _operations(_dump(pending=True, stacks=with_line))
    return next((one for one in pending if not one.done), None)


def _dump(*, pending: bool = False, stacks: bool = False) -> dict[str, Any] | None:
    for name in _dumpers():
        dumper = getattr(_distributed_c10d, name if stacks else f"{name}_json", None)
        if dumper is None:
            continue
        recorded: dict[str, Any] = (
            pickle.loads(dumper(True, True, pending))
            if stacks
            else json.loads(dumper(True, pending))
        )
        if recorded.get("entries"):
            return recorded
    return None


def _dumpers() -> Iterator[str]:
    """NCCL has a recorder of its own, and both may be in use. They outlive the groups."""
    if torch.cuda.is_initialized():
        yield "_dump_nccl_trace"
    yield "_dump_fr_trace"


def _operations(recorded: dict[str, Any] | None) -> list[Operation]:
    members = _members()
    return [_operation(entry, members) for entry in (recorded or {}).get("entries", ())]


def _operation(entry: dict[str, Any], members: dict[str, list[int]]) -> Operation:
    group = entry["process_group"][0]
    return Operation(
        name=entry["profiling_name"].partition(":")[2] or entry["profiling_name"],
        group=group,
        number=entry["p2p_seq_id" if entry.get("is_p2p") else "collective_seq_id"],
        called_ns=entry["time_created_ns"],
        # gloo's operations stay "scheduled" until they are retired.
        done=bool(entry.get("retired")) or entry.get("state") == "completed",
        ranks=members.get(group, []),
        called_at=call_site(entry.get("frames", ())),
    )


def _members() -> dict[str, list[int]]:
    if not (dist.is_available() and dist.is_initialized()):
        return {}
    configs: list[dict[str, Any]] = getattr(dist.distributed_c10d, "_get_all_pg_configs", list)()
    return {config["pg_name"]: config["ranks"] for config in configs}
