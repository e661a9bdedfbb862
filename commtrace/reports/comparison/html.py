"""A comparison as one HTML page: the waterfall, every step of both sides, the tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import TYPE_CHECKING

from commtrace.comparing.gate import Gate
from commtrace.reports import Look
from commtrace.reports.comparison import notebook
from commtrace.reports.content import comparison
from commtrace.units import cut, duration

if TYPE_CHECKING:
    from commtrace.comparing.compared import Compared

__all__ = ["SUFFIX", "render"]

SUFFIX = ".html"
_ANY, _NONE = Look(), Gate()
_WIDTH, _ROW, _NAMES, _LABEL = 900, 24, 300, 90
_WHOLE, _MORE, _LESS = "#BBBBBB", "#CC6677", "#44AA99"
_KINDS = {
    "compute": "#BBBBBB",
    "copy": "#555555",
    "host": "#DDCC77",
    "transfer": "#332288",
    "launch": "#88CCEE",
    "communication": "#332288",
    "idle": "#EEEEEE",
}
_STYLE = """
body { font: 14px/1.5 system-ui, sans-serif; max-width: 70em; margin: 2em auto; padding: 0 1em }
table { border-collapse: collapse; margin: 1em 0 }
caption { text-align: left; font-weight: bold }
th, td { padding: .1em .6em; border-bottom: 1px solid #ddd }
svg { max-width: 100%; height: auto } svg text { font: 12px system-ui, sans-serif }
"""


def render(compared: Compared, gate: Gate = _NONE, look: Look = _ANY) -> str:  # noqa: ARG001 - a page has its own
    """The same facts as in the terminal, and pictures; nothing is loaded from elsewhere."""
    failure = gate.failed(compared)
    failed = f"<p><b>Gate: failed: {escape(failure)}</b></p>" if failure else ""
    title = escape(comparison.title(compared))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f"<title>{title}</title><style>{_STYLE}</style></head><body>"
        f"{failed}{''.join(_waterfall(comparison.bars(compared)))}"
        f"{''.join(_steps(compared))}{notebook.render(compared)}</body></html>\n"
    )


def _waterfall(bars: Sequence[tuple[str, int, int]]) -> Iterator[str]:
    if not bars:
        return
    longest = max(max(begin, end) for _, begin, end in bars) or 1
    scale = (_WIDTH - _NAMES - _LABEL) / longest
    yield "<h2>From base to candidate</h2>"
    yield f'<svg viewBox="0 0 {_WIDTH} {_ROW * len(bars)}" width="{_WIDTH}" role="img">'
    for number, (name, begin, end) in enumerate(bars):
        whole = number in (0, len(bars) - 1)
        colour = _WHOLE if whole else _MORE if end > begin else _LESS
        left, right = sorted((_NAMES + begin * scale, _NAMES + end * scale))
        at = number * _ROW
        sign = "" if whole else "+" if end > begin else "-" if end < begin else ""
        yield f'<text x="0" y="{at + 16}">{escape(cut(name, 46))}</text>'
        yield (
            f'<rect x="{left:.1f}" y="{at + 3}" width="{max(right - left, 1):.1f}" '
            f'height="{_ROW - 6}" fill="{colour}"/>'
        )
        label = f"{sign}{duration(abs(end - begin))}"
        yield f'<text x="{right + 4:.1f}" y="{at + 16}">{label}</text>'
    yield "</svg>"


def _steps(compared: Compared) -> Iterator[str]:
    """The critical path of each step, both sides below each other."""
    longest = max((sum(parts.values()) for _, _, parts in compared.paths), default=0)
    if not longest:
        return
    scale = (_WIDTH - _LABEL - _LABEL) / longest
    yield "<h2>Every step's critical path</h2><p>"
    for kind in dict.fromkeys(kind for _, _, parts in compared.paths for kind in parts):
        yield f'<span style="color: {_KINDS[kind]}">■</span> {kind} '
    height = 14 * len(compared.paths)
    yield f'</p><svg viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" role="img">'
    for number, (name, counts, parts) in enumerate(compared.paths):
        at, left = 14 * number, float(_LABEL)
        yield f'<text x="0" y="{at + 11}">{escape(name)}</text>'
        for kind, time in parts.items():
            width = time * scale
            yield (
                f'<rect x="{left:.1f}" y="{at + 1}" width="{width:.1f}" height="12" '
                f'fill="{_KINDS[kind]}" opacity="{1 if counts else 0.4}"/>'
            )
            left += width
        yield f'<text x="{left + 4:.1f}" y="{at + 11}">{duration(sum(parts.values()))}</text>'
    yield "</svg>"
