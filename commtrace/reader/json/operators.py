"""What ``scan`` leaves out of a host: operators' inputs, functions of Python."""

from __future__ import annotations

from collections.abc import Callable
from itertools import compress
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from commtrace.arrays import NULL, Bool
from commtrace.reader.json.arguments import Decoder
from commtrace.reader.json.categories import OPERATORS
from commtrace.reader.json.columns import Names, Numbers, integers
from commtrace.reader.json.decoded_event import KIND_OF, Event
from commtrace.reader.json.document import Document
from commtrace.reader.json.events import Hosted
from commtrace.reader.json.metadata import base_ns
from commtrace.reader.json.salvage import BROKEN
from commtrace.reader.json.source import Source
from commtrace.reader.json.times import nanoseconds
from commtrace.table import Coded

__all__ = ["OperatorInputs", "mentions", "operator_inputs", "python_functions"]

_FUNCTION = "python_function"
_NOTHING = msgspec.Raw(b"null")
_MOST = 2**62  # of a size


class OperatorInputs(Hosted, frozen=True):
    """Operators, and of each the shapes and the types of its inputs as JSON.

    ``shapes`` as ``[[64,4096],[]]``, ``types`` as ``["float","Scalar"]``, or ``null``.
    """

    shapes: Coded
    types: Coded


class _Shaped(
    msgspec.Struct,
    gc=False,
    rename={"dims": "Input Dims", "old_dims": "Input dims", "types": "Input type"},
):
    dims: msgspec.Raw = _NOTHING
    old_dims: msgspec.Raw = _NOTHING  # before 2021
    types: msgspec.Raw = _NOTHING


_SHAPED = Decoder(_Shaped)


def python_functions(path: Path) -> Hosted:
    """The functions of Python, which the profiler records ``with_stack=True`` alone.

    Raises TraceError where the file cannot be read or is no trace.
    """
    found = _Events()
    if not any(_FUNCTION.encode() in block for block in Source(path)):
        return found.hosted(0)

    def take(events: list[Event]) -> None:
        found.add([event for event in events if event.cat == _FUNCTION and event.ph == "X"])

    return found.hosted(_read_all(path, take, None))


def mentions(path: Path, name: str) -> bool:
    """Whether a file has this text anywhere, as an operator's name.

    Raises TraceError where the file cannot be read.
    """
    text, before = f'"{name}"'.encode(), b""
    for block in Source(path):
        if text in (block := before + block):
            return True
        before = block[-len(text) :]
    return False


def operator_inputs(path: Path) -> OperatorInputs:
    """Those of which the profiler recorded shapes.

    Raises TraceError where the file cannot be read or is no trace.
    """
    found = _Inputs()
    its = found.hosted(_read_all(path, found.take, OPERATORS))
    return OperatorInputs(
        its.name,
        its.thread,
        its.start_ns,
        its.duration_ns,
        shapes=found.shapes.coded(),
        types=found.types.coded(),
    )


def _read_all(
    path: Path, take: Callable[[list[Event]], None], wanted: frozenset[str | None] | None
) -> int:
    """Hand on the events of a file, with the fields of those ``wanted``; the trace's base time."""
    document = Document(path, Event, take, wanted=wanted)
    for block in Source(path):
        document.feed(block)
    document.finish()
    return base_ns(document.metadata) or 0


class _Events:
    """Those so far, without the trace's base time."""

    def __init__(self) -> None:
        self._names = Names()
        self._numbers = Numbers(("thread", "start_ns", "duration_ns"))

    def hosted(self, since_ns: int) -> Hosted:
        """Which they are, and when and on which threads they ran."""
        return Hosted(self._names.coded(), **self._numbers.joined(since_ns))

    def add(self, its: list[Event], which: Bool | None = None) -> list[int]:
        """Some of these, by default all, as far as they have times and threads; those rows."""
        start_ns = nanoseconds([event.ts for event in its])
        duration_ns = nanoseconds([event.dur for event in its])
        thread = integers([event.tid for event in its])
        kept = (start_ns != NULL) & (duration_ns >= 0) & (thread != NULL)
        if which is not None:
            kept &= which
        rows: list[int] = np.flatnonzero(kept).tolist()
        self._names.extend([its[row].name or "" for row in rows])
        self._numbers.extend(start_ns[kept], duration_ns=duration_ns[kept], thread=thread[kept])
        return rows


class _Inputs(_Events):
    """The operators with shapes."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes, self.types = Names(), Names()
        self._known: dict[bytes, str | None] = {}
        self._types: dict[bytes, str] = {}

    def take(self, events: list[Event]) -> None:
        """Of some events the operators with shapes."""
        its = _operators(events)
        args = _SHAPED.many([event.args for event in its])
        shapes = [self._shape(_dims(shaped)) if shaped else None for shaped in args]
        rows = self.add(its, np.array([shape is not None for shape in shapes], dtype=np.bool_))
        self.shapes.extend([shapes[row] for row in rows])
        self.types.extend([self._type(args[row]) for row in rows])

    def _shape(self, dims: msgspec.Raw) -> str | None:
        """As JSON without blanks; None where no input has a size, and for what is no shape."""
        text = bytes(dims)
        if text not in self._known:
            self._known[text] = _normal(text)
        return self._known[text]

    def _type(self, shaped: _Shaped | None) -> str:
        text = bytes(shaped.types) if shaped else _NOTHING
        if text not in self._types:
            self._types[text] = _read(text)
        return self._types[text]


def _operators(events: list[Event]) -> list[Event]:
    read = compress(events, map(KIND_OF.__getitem__, map(type, events)))
    return [event for event in read if event.cat in OPERATORS and event.ph == "X"]


def _dims(shaped: _Shaped) -> msgspec.Raw:
    return shaped.old_dims if bytes(shaped.dims) == b"null" else shaped.dims


def _read(text: bytes) -> str:
    try:
        return msgspec.json.encode(msgspec.json.decode(text, type=list[str])).decode()
    except BROKEN:
        return "null"


def _normal(text: bytes) -> str | None:
    try:
        value = msgspec.json.decode(text)
        return msgspec.json.encode(value).decode() if _has_size(value) else None
    except BROKEN:
        return None


def _has_size(value: Any) -> bool:
    """Whether it is of lists and sizes alone, with a size among them."""
    return isinstance(value, list) and _leaves(value) == {True}


def _leaves(value: Any) -> set[bool]:
    """Of all that is no list, whether it is a size."""
    if not isinstance(value, list):
        return {type(value) is int and 0 <= value < _MOST}
    return set().union(*map(_leaves, value))
