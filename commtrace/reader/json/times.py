"""Microseconds as a trace writes them, to integer nanoseconds, exactly.

``round(ts * 1000)`` on a float is wrong beyond 2**42 µs, which timestamps since boot
pass after 51 days and absolute ones always do. Whole and fraction are converted apart,
exact below 2**43 µs for the three decimals that Kineto writes; beyond either, from the
number's text. So a file is read with its times as numbers, which is faster, and only where
these are not exact once more with their text.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Sequence
from contextlib import suppress
from decimal import Decimal, InvalidOperation

import msgspec
import numpy as np
import numpy.typing as npt

from commtrace.arrays import NULL

__all__ = ["InexactError", "Time", "from_numbers", "nanoseconds"]

Time = int | float | str | None
"""A time as JSON has it, without its text."""

_EXACT = 2.0**43
_LIMIT_US = 2**62 // 1000
_FINER = re.compile(rb"\.\d{4}|[eE]")

_integers = msgspec.json.Decoder(list[int])
_floats = msgspec.json.Decoder(list[float | None])


class InexactError(Exception):
    """Some numbers have to be read as text."""


def from_numbers(times: Sequence[Time]) -> npt.NDArray[np.int64]:
    """Numbers of microseconds as nanoseconds, NULL for None.

    Raises InexactError where only their text is exact, and where they are strings.
    """
    with suppress(TypeError, OverflowError):
        return _thousandfold(np.array(array("q", times), dtype=np.int64))  # type: ignore[type-var]
    try:
        us = np.frombuffer(array("d", times))  # type: ignore[type-var]
    except (TypeError, OverflowError):
        return _without_missing(times)
    if np.abs(us).max() >= _EXACT:
        raise InexactError
    whole = np.floor(us)
    ns = whole * 1000 + np.rint((us - whole) * 1000)
    if (ns / 1000 != us).any():  # finer than nanoseconds, or none
        raise InexactError
    return ns.astype(np.int64)


def _without_missing(times: Sequence[Time]) -> npt.NDArray[np.int64]:
    known = [time for time in times if time is not None]
    if len(known) == len(times):
        raise InexactError
    ns = np.full(len(times), NULL)
    ns[[time is not None for time in times]] = from_numbers(known)
    return ns


def _thousandfold(us: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    if us.size and (us.max() > _LIMIT_US or us.min() < -_LIMIT_US):
        raise InexactError
    return us * 1000


def nanoseconds(texts: Sequence[bytes | msgspec.Raw]) -> npt.NDArray[np.int64]:
    """Each JSON number of microseconds as nanoseconds, half to even; NULL for anything else.

    Ascend writes numbers as strings.
    """
    array = b"[" + b",".join(texts) + b"]"
    try:
        return _from_integers(array)
    except (msgspec.DecodeError, OverflowError):
        pass
    if _FINER.search(array):
        return _one_by_one(texts)
    try:
        us = np.array(_floats.decode(array), dtype=np.float64)
    except (msgspec.DecodeError, RecursionError):
        return _one_by_one(texts)
    if us.size != len(texts) or (np.abs(us) >= _EXACT).any():
        return _one_by_one(texts)
    missing = np.isnan(us)
    us[missing] = 0
    whole = np.floor(us)
    fraction = np.rint((us - whole) * 1000)
    ns = whole.astype(np.int64) * 1000 + fraction.astype(np.int64)
    ns[missing] = NULL
    return ns


def _from_integers(array: bytes) -> npt.NDArray[np.int64]:
    us = np.array(_integers.decode(array), dtype=np.int64)
    if us.size and np.abs(us).max() > _LIMIT_US:
        raise OverflowError
    return us * 1000


def _one_by_one(texts: Sequence[bytes | msgspec.Raw]) -> npt.NDArray[np.int64]:
    return np.array([_exact(bytes(text)) for text in texts], dtype=np.int64)


def _exact(text: bytes) -> int:
    try:
        us = Decimal(text.strip(b'"').decode("ascii"))
    except (InvalidOperation, UnicodeDecodeError):
        return NULL
    if not us.is_finite() or abs(us) > _LIMIT_US:
        return NULL
    return round(us * 1000)
