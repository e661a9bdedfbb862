"""Numbers with their units, counts and names, as sentences have them."""

from __future__ import annotations

__all__ = ["counted", "cut", "mb", "ms"]


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
