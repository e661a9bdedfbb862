"""The page that lists the findings as links into the timeline, while that is served."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from html import escape
from typing import TYPE_CHECKING

from commtrace.reports import content
from commtrace.reports.content.findings import ADVICE
from commtrace.reports.content.open_command import numbered_findings, range_in_run
from commtrace.reports.content.saving import saving
from commtrace.units import clean

if TYPE_CHECKING:
    from commtrace.analysis import Analysis
    from commtrace.diagnosis import Finding

__all__ = ["findings_page"]

_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; max-width: 60em; margin: 2em auto; padding: 0 1em }
li { margin: 0 0 .9em } li p { margin: .1em 0; color: #444 } h1 { font-size: 1.3em }
"""
# A browser asks a page in the background once a minute at most.
_SCRIPT = "setInterval(() => fetch('alive'), 20000)"


def findings_page(analysis: Analysis, nonce: str, link: Callable[[Finding | None], str]) -> str:
    """As HTML: the run, then its findings; a link without a finding is the whole run's.

    Texts come from traces: they are escaped. The page says every 20 s that it is still open.
    """
    title = escape(clean(analysis.run.name))
    facts = (f"<p>{escape(line)}</p>" for line in content.headline(analysis)[1:])
    items = "".join(_items(analysis, link))
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>'
        f'<style nonce="{nonce}">{_STYLE}</style><h1>{title}</h1>{"".join(facts)}'
        f"<p>{_anchor(link(None), 'The whole run in Perfetto')}</p>"
        f"{f'<ol>{items}</ol>' if items else '<p>No findings.</p>'}"
        f'<script nonce="{nonce}">{_SCRIPT}</script></html>\n'
    )


def _items(analysis: Analysis, link: Callable[[Finding | None], str]) -> Iterator[str]:
    for _, finding in numbered_findings(analysis.verdict):
        facts = (saving(finding, analysis.verdict), range_in_run(analysis, finding), finding.rule)
        yield (
            f"<li>{_anchor(link(finding), clean(finding.summary, 400))}"
            f"<p>{escape(' · '.join(filter(None, facts)))}</p>"
            f"<p>→ {escape(clean(finding.advice, ADVICE))}</p></li>"
        )


def _anchor(address: str, text: str) -> str:
    # A tab that is open does not follow when only what is behind # changes.
    return f'<a href="{escape(address)}" target="_blank" rel="noopener">{escape(text)}</a>'
