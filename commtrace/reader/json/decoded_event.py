"""One event as it is decoded: what every event has; its arguments, until they are wanted, as text.

Most events of a file are arrows, instants and Python functions, which nobody reads. Where pieces
of text are decoded as a union by the category of event, nothing is made of these but a mark, and
the arguments of what a GPU does are decoded with it.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache, reduce
from operator import or_
from typing import Any, Literal

import msgspec

from commtrace.reader.json.arguments import BY_KIND
from commtrace.reader.json.categories import ARROWS, KINDS, NEEDLESS
from commtrace.reader.json.times import Time

__all__ = ["KIND_OF", "Event", "NumberedEvent", "by_category", "is_any"]


class Event(msgspec.Struct, gc=False):
    """Any event. Times stay text, for exactness."""

    ph: str = ""
    cat: str | None = None
    name: str | None = None
    pid: Any = None
    tid: Any = None
    ts: msgspec.Raw = msgspec.Raw(b"null")
    dur: msgspec.Raw = msgspec.Raw(b"null")
    args: msgspec.Raw = msgspec.Raw(b"{}")


class NumberedEvent(Event, gc=False):
    """The same with times as numbers, which may not be exact."""

    ts: Time = None  # type: ignore[assignment]
    dur: Time = None  # type: ignore[assignment]


KIND_OF: dict[type, str | None] = {Event: "any", NumberedEvent: "any"}
"""What is read of events of a type: see ``KINDS``; None of a mark."""


@lru_cache
def by_category(kind: type[Event], wanted: frozenset[str | None]) -> Any:
    """What decodes a list of events of a kind as a union of other types, in ``KIND_OF``.

    Those of the ``wanted`` categories have the fields of the kind, others none; arguments are
    decoded as ``arguments.BY_KIND`` says, others stay text. It fails where an event has no
    category, or one that is unheard of, where one of what is read has another phase than a complete
    event's, and where these arguments have the wrong types.
    """
    fields = {
        its.name: (its.name, its.type, msgspec.field(default=its.default))
        for its in msgspec.structs.fields(kind)
        if its.name not in ("ph", "cat")
    }
    complete, arrow = ("ph", Literal["X"]), ("ph", Literal["s", "t", "f"])
    typed = {
        its: ("args", args, msgspec.field(default_factory=args)) for its, args in BY_KIND.items()
    }
    read = {
        _of(category, complete, *{**fields, "args": typed.get(its, fields["args"])}.values()): its
        for category, its in KINDS.items()
        if category in wanted
    }
    unread = [
        *(_of(category, arrow) for category in ARROWS),
        *map(_of, (*NEEDLESS, *(category for category in KINDS if category not in wanted))),
    ]
    KIND_OF.update(read)
    KIND_OF.update(dict.fromkeys(unread))
    return msgspec.json.Decoder(list[reduce(or_, [*read, *unread])])  # type: ignore[misc]


def is_any(types: Iterable[type]) -> bool:
    """Whether events of these types may be of any category."""
    return not {Event, NumberedEvent}.isdisjoint(types)


def _of(category: str | None, *fields: Any) -> Any:
    """The type of the events of a category."""
    name = f"Of_{category}".replace(" ", "_")
    known = {"cat": category}
    return msgspec.defstruct(name, fields, tag_field="cat", tag=category, gc=False, namespace=known)
