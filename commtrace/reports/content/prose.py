"""A rule's documentation and sentences, taken apart for whoever lays them out."""

from __future__ import annotations

import re
from inspect import cleandoc
from itertools import groupby

__all__ = ["clause", "first_line", "paragraphs"]

_ENOUGH = 60  # characters: what is shorter leads up to what follows


def clause(text: str) -> str:
    """What stands before a semicolon, if that is enough."""
    heads = (text[: match.start()] for match in re.finditer("; ", text))
    whole = (head for head in heads if head.count("(") == head.count(")"))
    return next((head for head in whole if len(head) >= _ENOUGH), text)


def first_line(documentation: str) -> str:
    """What the documentation begins with."""
    return cleandoc(documentation).partition("\n")[0]


def paragraphs(documentation: str) -> list[tuple[str, list[str]]]:
    r"""Headings with their paragraphs, each on one line; what precedes all has none.

    A heading is a line with indented lines below it.

    >>> paragraphs("One is late.\n\nBlind spots\n    Clocks\n    drift.\n\n    Others.")
    [('', ['One is late.']), ('Blind spots', ['Clocks drift.', 'Others.'])]
    """
    parts: list[tuple[str, list[str]]] = [("", [])]
    blocks = groupby(cleandoc(documentation).splitlines(), key=lambda line: bool(line.strip()))
    for lines in (list(block) for filled, block in blocks if filled):
        if len(lines) > 1 and not lines[0].startswith(" ") and lines[1].startswith(" "):
            parts.append((lines.pop(0), []))
        parts[-1][1].append(" ".join(line.strip() for line in lines))
    return parts
