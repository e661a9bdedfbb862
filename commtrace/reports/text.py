"""Numbers and names as people read them."""

from __future__ import annotations

__all__ = ["NOTHING", "clean", "duration", "percent", "rate", "size"]

NOTHING = "–"
_DURATIONS = (("s", 1_000_000_000), ("ms", 1_000_000), ("µs", 1_000), ("ns", 1))
_SIZES = (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3), ("B", 1))


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
    return "<0.001" if 0 < gb_s < 0.0005 else _digits(gb_s)


def percent(part: float | None, whole: float | None) -> str:
    """A share; nothing where it is undefined.

    >>> percent(1, 3), percent(1, 1000), percent(0, 3), percent(1, 0)
    ('33 %', '<1 %', '0 %', '–')
    """
    if part is None or not whole:
        return NOTHING
    share = 100 * part / whole
    return "<1 %" if 0 < share < 0.5 else f"{share:.0f} %"


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
            return f"{value if factor == 1 else _digits(value / factor)} {unit}"
    return str(value)


def _digits(value: float) -> str:
    decimals = 0 if value >= 99.95 else 1 if value >= 9.995 else 2 if value >= 0.9995 else 3
    return f"{value:,.{decimals}f}"
