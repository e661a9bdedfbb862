"""What stands beside a file's events, from its text, whatever the text."""

from __future__ import annotations

import json
import re
import reprlib
from collections.abc import Mapping
from typing import Any

import msgspec

from commtrace.reader.json.salvage import BROKEN, Text

__all__ = ["base_ns", "known", "parsed", "quoted", "whole"]

_TRIES = 16  # values that break off are read again and again: so often at most
_DIGITS = 20  # of the longest integer
_SHOWN = 40
_BASE_LIMIT_NS = 2**61

_MOST = ("baseTimeNanoseconds", "distributedInfo", "deviceProperties", "host_name")
_READ = frozenset((*_MOST, "commtrace", "flight_recorder", "traceEvents"))
# Of damaged files, and of what Python wrote: compiled when first they are met.
_KNOWN = rf'"({"|".join(_MOST)})"\s*:\s*'
_PYTHON = (
    r"'((?:[^'\\]|\\.)*)'"
    r'|"(?:[^"\\]|\\.)*"'
    r"|\b(?:None|True|False)\b|[()]|\b\d+(?=\s*:)"
)
_AS_JSON = {"None": "null", "True": "true", "False": "false", "(": "[", ")": "]"}


def base_ns(metadata: Mapping[str, Any]) -> int | None:
    """What is to be added to every time of a file; None if it cannot be."""
    base = metadata.get("baseTimeNanoseconds", 0)
    return base if type(base) is int and 0 <= base < _BASE_LIMIT_NS else None


def whole(text: bytes) -> dict[str, Any] | None:
    """A JSON object, also with NaN and broken characters in it; None if it is none.

    A list or object in it that nothing reads may be None: decoded it takes many times its bytes.
    """
    try:
        value = _top_level(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _top_level(text: bytes) -> Any:
    try:
        values = _values.decode(text)
    except BROKEN:
        return _decoder.decode(_text(text))
    return {
        key: _decoder.decode(_text(bytes(raw)))
        if key in _READ or bytes(memoryview(raw)[:1]) not in (b"[", b"{")
        else None
        for key, raw in values.items()
    }


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


def known(text: bytes) -> dict[str, Any]:
    """The metadata that matter most, from text that is not JSON as a whole."""
    string, at = Text(_text(text)), 0
    found: dict[str, Any] = {}
    for _ in range(_TRIES):
        match = re.compile(_KNOWN).search(string, at)
        if match is None:
            break
        try:
            found[match[1]], at = _decoder.raw_decode(string, match.end())
        except (ValueError, RecursionError):
            at = match.end()
    return found


def parsed(text: Any) -> Any:
    """What a string stands for, as JSON or as Python's ``repr``; None for anything else."""
    if not isinstance(text, str):
        return None
    for spelled in (text, re.sub(_PYTHON, _as_json, text, flags=re.DOTALL)):
        try:
            return _decoder.decode(spelled)
        except (ValueError, RecursionError):
            continue
    return None


def quoted(value: Any) -> str:
    """The beginning of a value, to name it in a note; also of one that is huge or deep."""
    return repr(value[:_SHOWN]) if isinstance(value, str) else reprlib.repr(value)[:_SHOWN]


def _as_json(token: re.Match[str]) -> str:
    if token[1] is not None:
        return '"' + token[1].replace("\\'", "'").replace('"', '\\"') + '"'
    return f'"{token[0]}"' if token[0].isdecimal() else _AS_JSON.get(token[0], token[0])


def _integer(digits: str) -> float:
    # Python refuses, or takes long over, an int of many digits; too large is infinite.
    return int(digits) if len(digits) <= _DIGITS else float(digits)


_decoder = json.JSONDecoder(strict=False, parse_int=_integer)
_values = msgspec.json.Decoder(dict[str, msgspec.Raw])
