"""Events of accelerators other than CUDA's and ROCm's, as Kineto would write them for CUDA.

Kineto's backends of other vendors keep CUDA's categories or add some of their own, with the
device's number as the process. Ascend's traces are not Kineto's: their device events have no
category, and the name of their process and the type of their task say what they are.
"""

from __future__ import annotations

import re
from collections.abc import Set

import msgspec

from commtrace.reader.json.categories import LAUNCHES, ON_HOST
from commtrace.reader.json.decoded_event import Event
from commtrace.reader.json.salvage import BROKEN

__all__ = ["CUDA", "Accelerators"]

CUDA = "cuda"
"""Torch's name of CUDA's devices, and of ROCm's."""

_OWN = {
    "mtia_ccp_events": "kernel",
    "hpu_op": "kernel",  # and what the host calls for it
    "mlu_memcpy": "gpu_memcpy",
    "mlu_memset": "gpu_memset",
    "GCU_MEMCPY": "gpu_memcpy",
    "GCU_MEMSET": "gpu_memset",
}
_TYPES = {
    category: category.lower().partition("_")[0].replace("privateuse1", "privateuseone")
    for category in (*LAUNCHES, *_OWN)
} | dict.fromkeys(("cuda_runtime", "cuda_driver", "Runtime"), CUDA)
_MOST_DEVICES = 256  # a larger number is a process of the host

_ASCEND = "npu"
_HARDWARE, _COMMUNICATION, _NO_WORK = "hardware", "communication", "no work"
_ROLES = {
    "Ascend Hardware": _HARDWARE,
    "HCCL": _COMMUNICATION,
    "Communication": _COMMUNICATION,
    "CANN": _NO_WORK,  # the host's calls
    "Overlap Analysis": _NO_WORK,  # sums of the others
}
# Compiled when they are first needed, as few files do.
_COMPUTES = r"(?:KERNEL_)?(?:AI_?CORE|AI_?VEC\w*|AI_?CPU|MIX_AI[CV]|FFTS_PLUS)"
_COPIES = ("SDMA_SQE", "PCIE_DMA_SQE", "MEMCPY_ASYNC")
_SIGNALS = r"\w*(?:EVENT|NOTIFY|WAIT|RECORD|WRITE_VALUE|PLACE_HOLDER)\w*"
_OPERATION = r"(?i)hcom_|hccl"
_MOST_PROCESSES = 1024


class _Named(msgspec.Struct, gc=False):
    name: str = ""


class _Task(msgspec.Struct, gc=False, rename={"type": "Task Type"}):
    type: str = ""


_name = msgspec.json.Decoder(_Named)
_task = msgspec.json.Decoder(_Task)


class Accelerators:
    """Takes a file's events in their order.

    ``late``: some came before the name of the process that tells what they are. Another
    reading, ``again``, knows the names from its start.
    """

    def __init__(self) -> None:
        self.late = False
        self._roles: dict[int, str] = {}  # of processes
        self._unnamed: set[int] = set()
        self._hosts: set[int] = set()
        self._types: set[str] = set()
        self._lone = False  # hardware's communication was taken: no process has the operations

    @property
    def device_type(self) -> str:
        """Torch's name of the devices."""
        if _HARDWARE in self._roles.values():
            return _ASCEND
        return min(self._types) if self._types and CUDA not in self._types else CUDA

    @property
    def in_turn(self) -> bool:
        """Whether what an event is hung on those before it."""
        return bool(self._roles or self._types.intersection(map(_TYPES.__getitem__, _OWN)))

    def join(self, other: Accelerators) -> None:
        """Take what another saw of the same file, neither of them ``in_turn``."""
        self._types |= other._types

    def again(self) -> Accelerators:
        """For the same file from its start."""
        other = Accelerators()
        other._roles = self._roles
        return other

    def translated(self, events: list[Event], categories: Set[str | None]) -> list[Event]:
        """The events as on CUDA, without what is no work; what is unknown stays as it is.

        They are of these categories.
        """
        if not categories.isdisjoint(ON_HOST):
            host = next(event.pid for event in events if event.cat in ON_HOST)
            self._hosts.update({host} if type(host) is int else ())
        self._types.update(_TYPES[cat] for cat in categories if cat in _TYPES)
        if None not in categories and _OWN.keys().isdisjoint(categories):
            return events
        as_known = (
            self._named(event)
            if event.cat is None
            else self._own(event)
            if event.cat in _OWN
            else event
            for event in events
        )
        return [event for event in as_known if event is not None]

    def _own(self, event: Event) -> Event | None:
        """An event of a category of its own: on a device if its process is one's number."""
        pid = event.pid
        if event.cat == "hpu_op" and type(pid) is int and pid in self._hosts:
            return None
        if type(pid) is not int or not 0 <= pid < _MOST_DEVICES or event.ph != "X":
            return event
        return msgspec.structs.replace(event, cat=_OWN[event.cat or ""])

    def _named(self, event: Event) -> Event | None:
        """An event without a category, by what its process is."""
        if type(event.pid) is not int:
            return event
        if event.ph == "M":
            self._learn(event)
        if event.ph != "X":
            return event
        role = self._roles.get(event.pid)
        if role is None:
            if len(self._unnamed) < _MOST_PROCESSES:
                self._unnamed.add(event.pid)
            return event
        if role == _HARDWARE:
            return self._hardware(event)
        if role == _COMMUNICATION and re.match(_OPERATION, event.name or ""):
            # Its threads are groups, which are no streams: other numbers keep them apart.
            group = -1 - event.tid if type(event.tid) is int else None
            return self._on_device(event, "kernel", group)
        return None

    def _learn(self, event: Event) -> None:
        if event.name != "process_name" or event.pid in self._roles:
            return
        try:
            role = _ROLES.get(_name.decode(event.args).name)
        except BROKEN:
            return
        if role is None or len(self._roles) == _MOST_PROCESSES:
            return
        self._roles[event.pid] = role
        self.late |= event.pid in self._unnamed
        self.late |= role == _COMMUNICATION and self._lone

    def _hardware(self, event: Event) -> Event | None:
        try:
            kind = _task.decode(event.args).type
        except BROKEN:
            return event
        if kind == "COMMUNICATION":
            if _COMMUNICATION in self._roles.values():
                return None
            self._lone = True
        elif kind in _COPIES:
            return self._on_device(event, "gpu_memcpy", event.tid)
        elif not re.fullmatch(_COMPUTES, kind):
            return None if re.fullmatch(_SIGNALS, kind) else event
        return self._on_device(event, "kernel", event.tid)

    def _on_device(self, event: Event, category: str, stream: object) -> Event:
        # The trace numbers no devices: they have the order of their processes.
        role = self._roles[event.pid]
        number = [pid for pid, its in self._roles.items() if its == role].index(event.pid)
        return msgspec.structs.replace(
            event, cat=category, pid=number, tid=stream, args=msgspec.Raw(b"{}")
        )
