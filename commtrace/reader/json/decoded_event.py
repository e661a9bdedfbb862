"""One event as it is decoded: what every event has; its arguments, until they are wanted, as text.

Half of the events of a file are arrows and instants, which nobody reads. Where pieces of text are
decoded as a union by the kind of event (``ph``), nothing is made of these.
"""

from __future__ import annotations

from functools import lru_cache, reduce
from operator import or_
from typing import Any, ClassVar

import msgspec

from commtrace.reader.json.times import Time

__all__ = ["Event", "NumberedEvent", "by_phase"]


class _Fields(msgspec.Struct, gc=False):
    """Times stay text, for exactness."""

    cat: str | None = None
    name: str | None = None
    pid: Any = None
    tid: Any = None
    ts: msgspec.Raw = msgspec.Raw(b"null")
    dur: msgspec.Raw = msgspec.Raw(b"null")
    args: msgspec.Raw = msgspec.Raw(b"{}")


class _NumberedFields(_Fields, gc=False):
    """Times are numbers, which may not be exact."""

    ts: Time = None  # type: ignore[assignment]
    dur: Time = None  # type: ignore[assignment]


class Event(_Fields, gc=False):
    """Any event."""

    ph: str = ""


class NumberedEvent(Event, gc=False):
    """The same with times as numbers."""

    ts: Time = None  # type: ignore[assignment]
    dur: Time = None  # type: ignore[assignment]


class _Complete(_Fields, gc=False, tag_field="ph", tag="X"):
    ph: ClassVar[str] = "X"


class _NumberedComplete(_NumberedFields, gc=False, tag_field="ph", tag="X"):
    ph: ClassVar[str] = "X"


class _Metadata(_Fields, gc=False, tag_field="ph", tag="M"):
    ph: ClassVar[str] = "M"


class _NumberedMetadata(_NumberedFields, gc=False, tag_field="ph", tag="M"):
    ph: ClassVar[str] = "M"


_OTHERS = tuple(
    msgspec.defstruct(f"Phase_{phase}", (), tag_field="ph", tag=phase, gc=False)
    for phase in "BEiICnbestfPNODcvVR"
)


@lru_cache
def by_phase(kind: type[Event]) -> tuple[Any, frozenset[type]]:
    """What decodes a list of events of a kind as a union of other types; those of them to keep.

    It fails where an event has no phase, or one that is unheard of.
    """
    numbered = kind is NumberedEvent
    kept = (_NumberedComplete, _NumberedMetadata) if numbered else (_Complete, _Metadata)
    union: Any = reduce(or_, kept + _OTHERS)
    return msgspec.json.Decoder(list[union]), frozenset(kept)
