"""HTML and SVG as text. What is not ``Markup`` already is escaped: names are hostile."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from html import escape

__all__ = ["Content", "Markup", "hashed", "listed", "number", "tag"]

_EMPTY = frozenset({"br", "circle", "input", "line", "path", "polyline", "rect", "use"})


class Markup(str):
    """Text that is HTML already: only ``tag`` and the files of this package make it."""

    __slots__ = ()


Content = str | None


def tag(name: str, *content: Content, **attributes: str | float | None) -> Markup:
    """An element. ``class_`` is ``class``, ``data_x`` is ``data-x``; what is None is left out.

    >>> tag("p", "a < b", tag("br"), class_="hint", hidden=None)
    '<p class="hint">a &lt; b<br/></p>'
    """
    named = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(_text(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in _EMPTY and not content:
        return Markup(f"<{name}{named}/>")
    inner = "".join(
        part if isinstance(part, Markup) else escape(part) for part in content if part is not None
    )
    return Markup(f"<{name}{named}>{inner}</{name}>")


def listed(title: str, lines: Sequence[str]) -> Markup | None:
    """A list under a title; nothing if it is empty."""
    items = tag("ul", *(tag("li", line) for line in lines))
    return tag("div", tag("h4", title), items, class_="listed") if lines else None


def hashed(text: str) -> str:
    """How a page's policy names a style or script that it allows."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def number(value: float) -> str:
    """A coordinate, as short as a hundredth of a pixel allows.

    >>> number(3.0), number(0.126), number(-0.001)
    ('3', '0.13', '0')
    """
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def _text(value: str | float) -> str:
    return value if isinstance(value, str) else number(value)
