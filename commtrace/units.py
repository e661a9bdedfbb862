"""Numbers with their units, counts and names, as sentences and tables have them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import groupby, pairwise

__all__ = [
    "NOTHING",
    "about",
    "clean",
    "counted",
    "cut",
    "duration",
    "mb",
    "ms",
    "multiple",
    "numbered",
    "percent",
    "rate",
    "size",
]

NOTHING = "–"
_MANY = 9  # numbers
_DURATIONS = (("s", 1_000_000_000), ("ms", 1_000_000), ("µs", 1_000), ("ns", 1))
_SIZES = (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3), ("B", 1))


def counted(count: int, noun: str) -> str:
    """A count and its noun, which agree.

    >>> counted(1, "rank"), counted(1200, "rank"), counted(2, "copy"), counted(0, "batch")
    ('1 rank', '1,200 ranks', '2 copies', '0 batches')
    """
    if count == 1:
        return f"1 {noun}"
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return f"{count:,} {noun[:-1]}ies"
    return f"{count:,} {noun}{'es' if noun.endswith(('ch', 's')) else 's'}"


def numbered(noun: str, numbers: Collection[int]) -> str:
    """A noun and its numbers, of which neighbours are joined; at least one.

    Many at even distances are named by their ends.

    >>> numbered("rank", {4}), numbered("rank", {0, 5, 4, 6})
    ('rank 4', 'ranks 0, 4–6')
    >>> numbered("rank", range(5, 128, 8))
    'ranks 5–125, every 8th'
    """
    if len(numbers) >= _MANY and (every := _distance(sorted(numbers))) > 1:
        return f"{noun}s {min(numbers)}–{max(numbers)}, every {_ordinal(every)}"
    runs = groupby(enumerate(sorted(numbers)), key=lambda pair: pair[1] - pair[0])
    ends = [[number for _, number in run] for _, run in runs]
    each = (f"{run[0]}–{run[-1]}" if len(run) > 1 else str(run[0]) for run in ends)
    return f"{noun}{'s' if len(numbers) > 1 else ''} {', '.join(each)}"


def _distance(numbers: Sequence[int]) -> int:
    """How far each is from the one before; 0 where these differ."""
    apart = {later - number for number, later in pairwise(numbers)}
    return apart.pop() if len(apart) == 1 else 0


def _ordinal(number: int) -> str:
    teens = number // 10 % 10 == 1
    return f"{number}{'th' if teens else {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th')}"


def cut(name: str, limit: int) -> str:
    """A name of at most so many characters: what is too much is cut from its middle.

    >>> cut("forward", 20), cut("optimizer.zero_grad(set_to_none=True)", 20)
    ('forward', 'optimizer.…one=True)')
    """
    if len(name) <= limit:
        return name
    left = limit // 2
    return f"{name[:left]}…{name[left + 1 - limit :]}"


def ms(time_ns: float) -> str:
    """A time for a sentence.

    >>> ms(1_080_000), ms(-99_000), ms(999_600_000), ms(1.5e12)
    ('1.08 ms', '-99 µs', '1 s', '1,500 s')
    """
    for unit, per, least in (("s", 1e9, 9.995e8), ("ms", 1e6, 1e5)):
        if abs(time_ns) >= least:
            return f"{_digits(time_ns / per)} {unit}"
    return f"{_digits(time_ns / 1e3)} µs"


def about(time_ns: float) -> str:
    """A time for a sentence that is an estimate: two digits.

    >>> about(48_100_000), about(1.26e8), about(950_000)
    ('about 48 ms', 'about 130 ms', 'about 0.95 ms')
    """
    return f"about {ms(float(f'{time_ns:.2g}'))}"


def mb(size_bytes: float) -> str:
    """A size for a sentence.

    >>> mb(999_600), mb(4e6), mb(12)
    ('1 MB', '4 MB', '12 bytes')
    """
    for unit, per in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size_bytes >= 0.9995 * per:
            return f"{_digits(size_bytes / per)} {unit}"
    return f"{size_bytes:.0f} bytes"


def _digits(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 999.5 else f"{value:.3g}"


def duration(ns: int | None) -> str:
    """Three digits and a unit.

    >>> duration(12_345_678), duration(999_600), duration(0), duration(None)
    ('12.3 ms', '1.00 ms', '0', '–')
    """
    return _scaled(ns, _DURATIONS)


def size(size_bytes: int | None) -> str:
    """Three digits and a decimal unit: MB is 1e6 bytes.

    >>> size(40_000_000), size(512), size(None)
    ('40.0 MB', '512 B', '–')
    """
    return _scaled(size_bytes, _SIZES)


def rate(gb_s: float | None) -> str:
    """GB/s, without the unit.

    >>> rate(88.91), rate(0.01234), rate(0.00001), rate(None)
    ('88.9', '0.012', '<0.001', '–')
    """
    if gb_s is None:
        return NOTHING
    return "<0.001" if 0 < gb_s < 0.0005 else _three_digits(gb_s)


def percent(part: float | None, whole: float | None) -> str:
    """A share; nothing where it is undefined.

    >>> percent(1, 3), percent(1, 1000), percent(0, 3), percent(1, 0)
    ('33 %', '<1 %', '0 %', '–')
    """
    if part is None or not whole:
        return NOTHING
    share = 100 * part / whole
    return "<1 %" if 0 < share < 0.5 else f"{share:.0f} %"


def multiple(value: float) -> str:
    """How many times as much.

    >>> multiple(1.234), multiple(413.2), multiple(3105.3)
    ('1.23x', '413x', '3,105x')
    """
    return f"{value:,.0f}x" if value >= 999.5 else f"{value:.3g}x"


def clean(name: object, limit: int = 120) -> str:
    r"""A name from a trace on one line: what does not print is replaced, what is long is cut.

    >>> clean("all\x1b[2Jreduce\n"), clean(None)
    ('all\ufffd[2Jreduce\ufffd', '–')
    """
    if name is None:
        return NOTHING
    shown = "".join(c if c.isprintable() else "\ufffd" for c in str(name)[: 2 * limit])
    return shown if len(shown) <= limit else f"{shown[: limit - 1]}…"


def _scaled(value: int | None, units: tuple[tuple[str, int], ...]) -> str:
    if value is None:
        return NOTHING
    for unit, factor in units:
        if value >= 0.9995 * factor:
            return f"{value if factor == 1 else _three_digits(value / factor)} {unit}"
    return str(value)


def _three_digits(value: float) -> str:
    decimals = 0 if value >= 99.95 else 1 if value >= 9.995 else 2 if value >= 0.9995 else 3
    return f"{value:,.{decimals}f}"
