"""The arguments of events, decoded by the kind of event that carries them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import msgspec

from commtrace.arrays import NULL
from commtrace.reader.json.events import Arguments
from commtrace.reader.json.salvage import BROKEN

__all__ = [
    "BY_KIND",
    "COMMUNICATION",
    "GPU",
    "LAUNCH",
    "SYNCHRONISATION",
    "Decoder",
    "communication",
    "of_today",
    "possible",
]

T = TypeVar("T")

_SPELLED = {
    "size_bytes": "bytes",
    "from_device": "fromDevice",
    "in_device": "inDevice",
    "to_device": "toDevice",
    "collective": "Collective name",
}


class GpuArguments(msgspec.Struct, gc=False, rename=_SPELLED):
    """What a kernel, a copy or a fill tells; NULL is unknown, as it is in a column."""

    device: int | None = NULL
    stream: int | None = NULL
    correlation: int | None = NULL
    size_bytes: int | None = NULL
    from_device: int | None = NULL
    in_device: int | None = NULL
    to_device: int | None = NULL
    collective: Any = None


class _AllGpuArguments(Arguments, frozen=True, gc=False, rename=_SPELLED):
    """The same with those of its communication, if it is some."""

    device: int | None = NULL
    stream: int | None = NULL
    correlation: int | None = NULL
    size_bytes: int | None = NULL
    from_device: int | None = NULL
    in_device: int | None = NULL
    to_device: int | None = NULL


class _LaunchArguments(msgspec.Struct, gc=False):
    correlation: int | None = NULL


class _SynchronisationArguments(
    msgspec.Struct,
    gc=False,
    rename={
        "event": "wait_on_cuda_event_id",
        "awaited_stream": "wait_on_stream",
        "record_correlation": "wait_on_cuda_event_record_corr_id",
    },
):
    device: int | None = NULL
    stream: int | None = NULL
    correlation: int | None = NULL
    event: int | None = NULL
    awaited_stream: int | None = NULL
    record_correlation: int | None = NULL


class Decoder(Generic[T]):
    """Arguments of one kind, from their text."""

    def __init__(self, kind: type[T]) -> None:
        self._one = msgspec.json.Decoder(kind)
        self._list: Any = msgspec.json.Decoder(list[kind])  # type: ignore[valid-type]
        self._lenient = msgspec.json.Decoder(kind, strict=False)

    def many(self, texts: Sequence[msgspec.Raw]) -> list[T | None]:
        """Decode all at once; None stands for arguments of the wrong types."""
        try:
            found: list[T | None] = self._list.decode(b"[" + b",".join(texts) + b"]")
        except BROKEN:
            return [self.one(text) for text in texts]
        return found

    def of(self, given: Sequence[Any]) -> list[Any]:
        """The same, of arguments of which some may be decoded already."""
        texts = [its for its in given if type(its) is msgspec.Raw]
        if not texts:
            return list(given)
        decoded = iter(self.many(texts))
        return [next(decoded) if type(its) is msgspec.Raw else its for its in given]

    def one(self, text: msgspec.Raw) -> T | None:
        """Decode one; None stands for arguments of the wrong types.

        Whole numbers that are written as floats or texts are none: others write traces anew.
        """
        for decoder in (self._one, self._lenient):
            try:
                return decoder.decode(text)
            except BROKEN:
                continue
        return None


GPU = Decoder(GpuArguments)
LAUNCH = Decoder(_LaunchArguments)
SYNCHRONISATION = Decoder(_SynchronisationArguments)
COMMUNICATION = Decoder(Arguments)

BY_KIND: dict[str, type[msgspec.Struct]] = {
    "gpu": _AllGpuArguments,
    "launch": _LaunchArguments,
    "synchronisation": _SynchronisationArguments,
}
"""What is decoded with an event of a kind (see ``categories``) where its text is sound."""

_OF_COMMUNICATION = len(Arguments.__struct_fields__)


def communication(given: Sequence[Any]) -> list[Arguments | None]:
    """What events tell of their communication; None stands for arguments of the wrong types."""
    return [
        Arguments(*msgspec.structs.astuple(its)[:_OF_COMMUNICATION])
        if type(its) is _AllGpuArguments
        else its
        for its in COMMUNICATION.of(given)
    ]


def of_today(args: Arguments) -> Arguments:
    """The same, with shapes by today's name."""
    if args.old_dims is None:
        return args
    dims = args.old_dims if args.dims is None else args.dims
    return msgspec.structs.replace(args, dims=dims, old_dims=None)


def possible(args: Arguments) -> Arguments:
    """The same object, unless it tells a negative size or an empty group: then without them."""
    ins, outs, size = args.in_elements, args.out_elements, args.group_size
    if (ins or 0) >= 0 and (outs or 0) >= 0 and (size is None or size > 0):
        return args
    return msgspec.structs.replace(
        args,
        in_elements=None if (ins or 0) < 0 else ins,
        out_elements=None if (outs or 0) < 0 else outs,
        group_size=size if (size or 0) > 0 else None,
    )
