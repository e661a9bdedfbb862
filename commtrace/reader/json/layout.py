"""How one file lays its events out, learned from the first of them.

Kineto has changed its line breaks over the years, and other tools rewrite its files on
one line. What separates two events is the same throughout a file, and so is the text by
which an event opens. That is enough to find where events end, and to drop the ones that
nobody will look at, most of a file, without parsing them.
"""

from __future__ import annotations

import json
import re

from msgspec import Struct

from commtrace import comms

__all__ = ["Layout", "learn"]

_HEAD = re.compile(rb'\{(\s*"ph"\s*:\s*")X("\s*,\s*"cat"\s*:\s*")[^"\\]*("\s*,\s*"name"\s*:\s*")')
_FOLLOW = re.compile(rb"\s*,\s*\{")
_LINE = re.compile(rb"\r?\n[ \t]*\Z")
_GUESS = re.compile(rb'((?:\r?\n[ \t]*)?)\}(\s*,\s*\{)\s*"ph"')
_UNWANTED = rb'(?:python_function|Python function|gpu_user_annotation|overhead)"'
_ARGUMENTS = rb'(?<="args": \{)|(?<="args":\{)'
_FLOWS_AND_INSTANTS = rb'[sfti]"'

_scan = json.JSONDecoder(parse_int=float).raw_decode


class Layout(Struct, frozen=True):
    """The texts that stand around events.

    ``indent`` is the line break before an event's closing brace, ``follow`` what comes
    after it up to the next event's opening brace; ``head`` the texts before, between and
    after the values of ``ph`` and ``cat``, where events begin with those.
    """

    indent: bytes
    follow: bytes
    head: tuple[bytes, bytes, bytes] | None = None

    @property
    def separator(self) -> bytes:
        """What stands between the insides of two events."""
        return self.indent + b"}" + self.follow

    def dropper(self, operators: bool) -> re.Pattern[bytes] | None:
        """A pattern for unwanted events with their separator; None if they are not known.

        ``operators`` drops CPU operators, too, but for those that communicate. A match
        begins with the event's kind and holds no opening brace but its arguments' and, at
        its end, the next event's: no other event can hide within it, unless damage took its
        own brace away.
        """
        if self.head is None:
            return None
        ph, cat, name = map(re.escape, self.head)
        if operators:
            calls = rf"(?:{comms.CALL_PREFIX}|{comms.STEP_PREFIX})".encode()
            unwanted = rb"(?:%b|(?:cpu_op|Operator)%b(?!%b|[^\"]*\\))" % (_UNWANTED, name, calls)
        else:
            unwanted = _UNWANTED
        gap = re.escape(self.separator)
        return re.compile(
            rb"%b(?:%b|X%b%b)[^{]*\{(?:(?<=%b)|(?:%b)[^{]*\{(?<=%b))"
            % (ph, _FLOWS_AND_INSTANTS, cat, unwanted, gap, _ARGUMENTS, gap)
        )


def learn(text: bytes) -> Layout | None:
    """The layout of events, of which ``text`` is the beginning; None if it does not show."""
    indent_follow = _first_gap(text) or _guessed_gap(text)
    if indent_follow is None:
        return None
    head = _HEAD.search(text)
    return Layout(*indent_follow, (head[1], head[2], head[3]) if head else None)


def _first_gap(text: bytes) -> tuple[bytes, bytes] | None:
    try:
        _, end = _scan(text.decode("latin-1"))
    except (ValueError, RecursionError):
        return None
    follow = _FOLLOW.match(text, end)
    if follow is None:
        return None
    indent = _LINE.search(text, 0, end - 1)
    return indent.group() if indent else b"", follow.group()


def _guessed_gap(text: bytes) -> tuple[bytes, bytes] | None:
    # The first event is damaged, or one of a kind: any gap before a "ph" will do.
    gap = _GUESS.search(text)
    return (gap.group(1), gap.group(2)) if gap else None
