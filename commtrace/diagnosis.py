"""What a diagnosis holds: notes, evidence, findings, and what could not be checked."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import msgspec

from commtrace.units import counted, ms

__all__ = [
    "DEVICE_CAUSES",
    "HOST_CAUSES",
    "CannotLook",
    "Cause",
    "Diagnosis",
    "Evidence",
    "Explanation",
    "Finding",
    "Note",
    "Verdict",
    "about",
    "enough",
    "too_few",
]


def about(text: str, unit: str | None = None) -> msgspec.Meta:
    """What a field means, for the schema that is made from its type."""
    return msgspec.Meta(description=text, extra_json_schema={"unit": unit} if unit else None)


Cause = Literal["loader", "checkpoint", "garbage-collection", "compute", "copy", "host"]
"""What a culprit does more than others."""
HOST_CAUSES: tuple[Cause, ...] = ("host", "loader", "checkpoint", "garbage-collection")
"""What a host does that delays others, computing nothing."""
DEVICE_CAUSES: tuple[Cause, ...] = ("compute", "copy")
"""What a device does."""

_Rank = Annotated[int, about("A rank.")]
_Stream = Annotated[int, about("A stream.")]
_Line = Annotated[str, about("A line: its file, number, and function.")]
_Confounder = Annotated[str, about("A confounder, and why it is not that.")]


@dataclass(frozen=True)
class Note:
    """What the reader found wrong with a file, or had to assume."""

    code: Annotated[str, about("What it is, as in `truncated` or `missing-rank`.")]
    message: Annotated[str, about("One line that says it.")]
    rank: Annotated[int | None, about("The rank that it is about; null if none alone.")] = None
    file: Annotated[str | None, about("The file that it is about; null if none alone.")] = None


@dataclass(frozen=True)
class Evidence:
    """One measured number behind a finding."""

    name: Annotated[str, about("What was measured.")]
    value: Annotated[float, about("The measurement, in `unit`.")]
    unit: Annotated[str, about("The unit of value and threshold.")]
    threshold: Annotated[float | None, about("What it was held against, in `unit`.")] = None


@dataclass(frozen=True)
class Finding:
    """One fault that a rule reports. Times are on the run's clock."""

    rule: Annotated[str, about("The rule's name, in kebab-case.")]
    summary: Annotated[str, about("One line that says it.")]
    ranks: Annotated[tuple[_Rank, ...], about("The culprits, not everyone affected.")]
    streams: Annotated[tuple[_Stream, ...], about("The streams concerned, where that matters.")]
    start_ns: Annotated[int, about("Where it starts, in Unix time.", "ns")]
    end_ns: Annotated[int, about("Where it ends, in Unix time.", "ns")]
    cost_ns: Annotated[int, about("Potential saving.", "ns")]
    evidence: Annotated[tuple[Evidence, ...], about("The measured numbers behind it.")]
    ruled_out: Annotated[
        tuple[_Confounder, ...], about("What else it could have been, and is not.")
    ]
    advice: Annotated[str, about("What to do.")]
    confidence: Annotated[Literal["high", "medium", "low"], about("How sure it is.")]
    explained_by: Annotated[
        str | None, about("The rule whose finding this one is a symptom of, if any.")
    ] = None
    place: Annotated[
        str | None,
        about(
            "Where in the step: the innermost of the program's own labels (`record_function`) that "
            "nine tenths of it lie in, else before which call (`before the first all_gather of "
            "fsdp`); null if no single one."
        ),
    ] = None
    cause: Annotated[
        Cause | None,
        about("What the culprits do there more than others; null if no single one is most of it."),
    ] = None
    cost_on_top_ns: Annotated[
        int | None,
        about(
            "Time recoverable with what rules before it name already mended; null where no "
            "replay says.",
            "ns",
        ),
    ] = None
    replayed_step_ns: Annotated[
        int | None, about("The median step, replayed with this mended; null without replay.", "ns")
    ] = None
    called_at: Annotated[
        tuple[_Line, ...],
        about(
            "The program's lines that called these operations (`train.py:57 in main`), the most "
            "frequent first; empty where the recording does not tell, or where they are many."
        ),
    ] = ()
    when: Any = field(default=None, repr=False, compare=False)
    """The starts and ends of its events, until its place is known."""
    operations: Any = field(default=None, repr=False, compare=False)
    """The numbers of its operations, until the lines that called them are known."""
    weighs_ns: Any = field(default=0, repr=False, compare=False)
    """What it counts for beside others' savings, where its own is not known."""
    behind: Any = field(default=False, repr=False, compare=False)
    """Whether it goes behind what is surely wrong, as it may be as the program is meant to be."""
    spares_memory: Any = field(default=False, repr=False, compare=False)
    """Whether a program may have it for want of memory, so that half counts in the order.

    ``"all"`` where that is room for a whole model: what saves half as much without comes first.
    """
    by_itself: Any = field(default=False, repr=False, compare=False)
    """Whether it has a cause of its own, so that it is no symptom of what costs less."""
    explains: Any = field(default=None, repr=False, compare=False)
    """The rules whose findings are symptoms of it, where these are not all that its rule names."""

    def __str__(self) -> str:
        return "\n".join([self.summary, *self._lines()])

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:  # noqa: ARG002 - IPython's
        printer.text(str(self))

    def _repr_html_(self) -> str:
        from html import escape  # for notebooks only

        lines = [f"<b>{escape(self.summary)}</b>", *map(escape, self._lines())]
        rows = "".join(
            f"<tr><td>{escape(one.name)}</td><td>{one.value:,.6g} {escape(one.unit)}</td></tr>"
            for one in self.evidence
        )
        return f"<p>{'<br>'.join(lines)}</p><table>{rows}</table>"

    def _lines(self) -> list[str]:
        """Saving, advice, confidence."""
        saving = [f"potential saving: up to {ms(self.cost_ns)} in all"] if self.cost_ns else []
        lines = [f"called at {'; '.join(self.called_at)}"] if self.called_at else []
        return [*saving, *lines, f"→ {self.advice}", f"{self.confidence} confidence · {self.rule}"]


@dataclass(frozen=True)
class Diagnosis:
    """Findings, costliest first, and the rules that were skipped, with the reason.

    Of what an unsure one saves three quarters count: who is surer and saves nearly as much is
    first.

    ``notes`` are about rules that broke; ``all_broke`` if no other was asked. ``asked`` are the
    names of all that were.
    """

    findings: tuple[Finding, ...] = ()
    skipped: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[Note, ...] = ()
    all_broke: bool = False
    asked: frozenset[str] = field(default=frozenset(), repr=False, compare=False)

    def __str__(self) -> str:
        numbered = (f"{number}. {one}" for number, one in enumerate(self.findings, 1))
        return "\n\n".join(numbered) or self._none()

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:  # noqa: ARG002 - IPython's
        printer.text(str(self))

    def _repr_html_(self) -> str:
        items = "".join(f"<li>{one._repr_html_()}</li>" for one in self.findings)
        return f"<ol>{items}</ol>" if items else f"<p>{self._none()}</p>"

    def _none(self) -> str:
        return f"No findings; {counted(len(self.skipped), 'rule')} skipped."


@dataclass(frozen=True)
class Verdict:
    """A diagnosis, and what it takes to weigh its findings.

    ``step_time_ns`` is the time that costs are a share of: of so many ``steps`` if
    ``in_steps``, else of the whole run; findings of the rules in ``good_news`` are no faults.
    """

    diagnosis: Diagnosis
    step_time_ns: int
    good_news: frozenset[str]
    in_steps: bool = True
    steps: int = 1

    @property
    def faults(self) -> tuple[Finding, ...]:
        """The findings that are no good news."""
        return tuple(f for f in self.diagnosis.findings if f.rule not in self.good_news)


@dataclass(frozen=True)
class Explanation:
    """A rule: its documentation, its thresholds' defaults, and what it reports of its example."""

    rule: str
    documentation: str
    thresholds: Mapping[str, int | float | str]
    example: str
    verdict: Verdict


LOOKED = "looked: "
"""So begins the reason of a rule that looked, and found nothing worth a finding."""


class CannotLook(Exception):  # noqa: N818 - an answer, not an error
    """Raised by ``check`` where the trace lacks what the rule needs; the text says what."""


def too_few(count: int, noun: str, needed: int, which: str = "") -> CannotLook:
    """What a claim about many lacks; ``which`` says which of them count."""
    return CannotLook(f"needs {counted(needed, noun)}{which and ' '}{which}, has {count:,}")


def enough(
    found: Collection[tuple[int, Any]], needed: int, noun: str, which: str = ""
) -> Iterator[Any]:
    """What there is in at least so many; CannotLook if all was in fewer."""
    many = [one for count, one in found if count >= needed]
    yield from many
    if found and not many:
        raise too_few(max(count for count, _ in found), noun, needed, which)
