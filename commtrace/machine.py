"""What a rank's process saw of its machine while it was recorded."""

from __future__ import annotations

from array import array
from itertools import chain
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct, structs

__all__ = ["Lines", "Machine"]

_Count = Annotated[int, Meta(gt=0, lt=2**31)]
_Seconds = Annotated[float, Meta(ge=0, lt=1e12)]
_Length = Annotated[int, Meta(ge=0, lt=2**40)]
_Core = Annotated[int, Meta(ge=0, lt=2**31)]
_Moment = Annotated[int, Meta(gt=0, lt=2**62)]


class _Said(Struct, frozen=True):
    names: list[str]
    looks: list[tuple[_Moment, _Length, _Length, _Length]]


class Lines(Struct, frozen=True):
    """Where in the program a rank's thread was, as a look at it every 10 ms or so has it.

    Each of ``looks``, rows of four packed integers of 64 bits, is when it was, in Unix ns of the
    rank's own clock, the number of a line in ``names``, and of the time since the look before, in
    µs, all and what the thread ran. A name is ``train.py:57 in main``; behind a comma the line of a
    library that it is in, if it is.
    """

    names: list[str]
    looks: bytes

    @classmethod
    def of(cls, said: Any) -> Lines:
        """What a file says, its looks as lists. Raises msgspec.ValidationError."""
        its = msgspec.convert(said, _Said)
        numbers = chain.from_iterable(its.looks)
        return cls(its.names, array("q", numbers).tobytes())


class Machine(Struct, frozen=True):
    """As the recorder noted it, in trace and manifest; None where it could not.

    The ``cores`` of the machine and those ``usable_cores`` that the process might use, which have
    these ``core_ids``, with as many ``processes`` that share them, and with how many ``threads``
    this one's operators compute; the ``seconds`` recorded, in which all processes of the machine
    were ``busy_s`` and this one took ``own_s`` of processor time. ``steps`` has for each step its
    number, and what its thread ran, waited for a core, and its process ran, in µs. ``core_speed``
    is when a fixed piece of work was done, in Unix ns of the rank's own clock, and what it took of
    the processor, in ns. ``lines`` is where in the program its thread was.
    """

    cores: _Count | None = None
    usable_cores: _Count | None = None
    processes: _Count | None = None
    threads: _Count | None = None
    seconds: _Seconds | None = None
    busy_s: _Seconds | None = None
    own_s: _Seconds | None = None
    steps: list[tuple[int, int, int, int]] | None = None
    core_speed: list[tuple[_Moment, _Moment]] | None = None
    lines: Lines | None = None
    core_ids: list[_Core] | None = None

    @classmethod
    def of(cls, said: Any) -> Machine | None:
        """What a file says, trusting no type in it: None where that cannot be."""
        try:
            lines = said.get("lines") if isinstance(said, dict) else None
            if lines is None:
                return msgspec.convert(said, cls)
            machine = msgspec.convert({**said, "lines": None}, cls)
            return structs.replace(machine, lines=Lines.of(lines))
        except msgspec.ValidationError:
            return None
