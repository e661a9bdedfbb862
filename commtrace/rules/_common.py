"""What several rules ask of a trace."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any

from commtrace.metrics.whole import whole
from commtrace.rules._rule import CannotLook
from commtrace.wording import counted

if TYPE_CHECKING:
    from commtrace.trace import Trace

__all__ = ["enough", "mb", "ms", "of_time", "several_ranks", "share_pct", "too_few", "worth_saying"]


def worth_saying(cost_ns: float, trace: Trace, share: float) -> bool:
    """Whether a cost is at least that share of the steps' time; of the run's without steps."""
    time_ns = whole(trace).time_ns
    return min(cost_ns, time_ns) > 0 and min(cost_ns, time_ns) >= share * time_ns


def share_pct(cost_ns: float, trace: Trace) -> float:
    """A cost as a share of the steps' time, in percent; of the run's without steps."""
    time_ns = whole(trace).time_ns
    return 100 * min(cost_ns, time_ns) / max(time_ns, 1)


def of_time(trace: Trace) -> str:
    """What ``share_pct`` is a share of, in words."""
    return "of the steps' time" if whole(trace).in_steps else "of the run's time"


def too_few(count: int, noun: str, needed: int, which: str = "") -> CannotLook:
    """What a claim about many lacks; ``which`` says which of them count."""
    return CannotLook(f"{counted(count, noun)}{which and ' '}{which}, needs {needed:,}")


def enough(
    found: Collection[tuple[int, Any]], needed: int, noun: str, which: str = ""
) -> Iterator[Any]:
    """What was found in at least so many; CannotLook if all was found in fewer."""
    many = [one for count, one in found if count >= needed]
    yield from many
    if found and not many:
        raise too_few(max(count for count, _ in found), noun, needed, which)


def several_ranks(trace: Trace) -> None:
    """Raises CannotLook where there is nobody to compare with."""
    if len(trace.ranks) < 2:
        raise CannotLook("one rank only: waiting is not separable")


def mb(size_bytes: float) -> str:
    """A size for a sentence.

    >>> mb(999_600), mb(4e6), mb(12)
    ('1 MB', '4 MB', '12 bytes')
    """
    for unit, per in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size_bytes >= 0.9995 * per:
            return f"{_digits(size_bytes / per)} {unit}"
    return f"{size_bytes:.0f} bytes"


def ms(time_ns: float) -> str:
    """A time for a sentence.

    >>> ms(1_080_000), ms(-99_000), ms(999_600_000), ms(1.5e12)
    ('1.08 ms', '-99 µs', '1 s', '1,500 s')
    """
    for unit, per, least in (("s", 1e9, 9.995e8), ("ms", 1e6, 1e5)):
        if abs(time_ns) >= least:
            return f"{_digits(time_ns / per)} {unit}"
    return f"{_digits(time_ns / 1e3)} µs"


def _digits(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 999.5 else f"{value:.3g}"
