"""What operators work on, which ``scan`` leaves out: their inputs' shapes and types."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from commtrace.arrays import NULL
from commtrace.reader.json.arguments import Decoder
from commtrace.reader.json.columns import Names, Numbers, integers
from commtrace.reader.json.decoded_event import Event
from commtrace.reader.json.document import Document
from commtrace.reader.json.events import Hosted
from commtrace.reader.json.metadata import base_ns
from commtrace.reader.json.salvage import BROKEN
from commtrace.reader.json.source import Source
from commtrace.reader.json.times import nanoseconds
from commtrace.table import Coded

__all__ = ["OperatorInputs", "operator_inputs"]

_OPERATORS = ("cpu_op", "Operator")
_NOTHING = msgspec.Raw(b"null")


class OperatorInputs(Hosted, frozen=True):
    """Operators, and of each the shapes and the types of its inputs as JSON.

    ``shapes`` as ``[[64,4096],[]]``, ``types`` as ``["float","Scalar"]``, or ``null``.
    """

    shapes: Coded
    types: Coded


class _Shaped(msgspec.Struct, gc=False, rename={"dims": "Input Dims", "types": "Input type"}):
    dims: msgspec.Raw = _NOTHING
    types: msgspec.Raw = _NOTHING


_SHAPED = Decoder(_Shaped)


def operator_inputs(path: Path) -> OperatorInputs:
    """The operators of which the profiler recorded shapes.

    Raises TraceError where the file cannot be read or is no trace.
    """
    found = _Operators()
    document = Document(path, Event, found.take)
    for block in Source(path):
        document.feed(block)
    document.finish()
    numbers = found.numbers.joined(base_ns(document.metadata) or 0)
    return OperatorInputs(
        name=found.names.coded(),
        shapes=found.shapes.coded(),
        types=found.types.coded(),
        **numbers,
    )


class _Operators:
    """The operators so far, without the trace's base time."""

    def __init__(self) -> None:
        self.names, self.shapes, self.types = Names(), Names(), Names()
        self.numbers = Numbers(("thread", "start_ns", "duration_ns"))
        self._known: dict[bytes, str | None] = {}
        self._types: dict[bytes, str] = {}

    def take(self, events: list[Event]) -> None:
        its = [event for event in events if event.cat in _OPERATORS and event.ph == "X"]
        args = _SHAPED.many([event.args for event in its])
        shapes = [shaped and self._shape(shaped.dims) for shaped in args]
        start_ns = nanoseconds([event.ts for event in its])
        duration_ns = nanoseconds([event.dur for event in its])
        thread = integers([event.tid for event in its])
        usable = (start_ns != NULL) & (duration_ns >= 0) & (thread != NULL)
        usable &= np.array([shape is not None for shape in shapes], dtype=np.bool_)
        rows = np.flatnonzero(usable).tolist()
        self.names.extend([its[row].name or "" for row in rows])
        self.shapes.extend([shapes[row] for row in rows])
        self.types.extend([self._type(args[row]) for row in rows])
        self.numbers.extend(
            start_ns[usable], duration_ns=duration_ns[usable], thread=thread[usable]
        )

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
    """Whether it is of lists and integers alone, with an integer among them."""
    return isinstance(value, list) and _leaves(value) == {int}


def _leaves(value: Any) -> set[type]:
    if not isinstance(value, list):
        return {type(value)}
    return set().union(*map(_leaves, value))
