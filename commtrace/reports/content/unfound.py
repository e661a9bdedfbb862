"""Which rules looked in vain, and which lacked their data, as the reports for people say it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from commtrace.diagnosis import LOOKED
from commtrace.units import clean, counted

if TYPE_CHECKING:
    from commtrace.analysis import Analysis

__all__ = ["CONCERNS", "unfound"]

_ANY = frozenset({"communication"})
_ON_GPU, _GPU = frozenset({"communication on a GPU"}), frozenset({"GPU"})
_HOST, _PEER = frozenset({"copies to or from the host"}), frozenset({"copies between GPUs"})
_MESSAGES, _REDUCE_SCATTER = frozenset({"send", "recv"}), frozenset({"reduce_scatter"})
CONCERNS: Mapping[str, frozenset[str]] = {
    "at-the-roofline": _ON_GPU,
    "below-link-speed": _ON_GPU,
    "byte-inflation": _REDUCE_SCATTER,
    "contention": _ON_GPU,
    "copy-loop": _HOST,
    "decomposed-all-reduce": _REDUCE_SCATTER | {"reduce"},
    "detour-beats-direct": _PEER,
    "early-root": frozenset({"reduce", "gather"}),
    "full-precision-payload": _ON_GPU,
    "head-of-line": _ON_GPU,
    "host-sync": _ON_GPU,
    "input-bound": frozenset({"data loading"}),  # no label of a loader tells that nothing waits
    "impossible-number": _ANY | _HOST | _PEER,
    "late-receiver": _MESSAGES,
    "late-root": frozenset({"broadcast", "scatter"}),
    "late-sender": _MESSAGES,
    "launch-gap": _GPU,
    "pageable-copy": _HOST,
    "pipeline-bubble": _MESSAGES,
    "slow-link": _MESSAGES,
    "uneven-all-to-all": frozenset({"all_to_all"}),
    "uneven-p2p-bandwidth": _PEER,
    "wrong-algorithm": _ON_GPU,
}
"""What must have run, any of it, for a rule to be missed; of others it is any communication."""


def unfound(analysis: Analysis) -> list[tuple[str, list[str]]]:
    """Titles and lines: what rules looked at and found too little, and what could not be looked at.

    Of the latter a line for each reason that concerns what ran, and a count of the rest.
    """
    skipped = analysis.verdict.diagnosis.skipped
    looked = {rule for rule, reason in skipped.items() if reason.startswith(LOOKED)}
    little = [_line([rule], skipped[rule].removeprefix(LOOKED)) for rule in sorted(looked)]
    return [("Checked, with little to save", little), ("Not checked", _unchecked(analysis, looked))]


def _unchecked(analysis: Analysis, looked: Collection[str]) -> list[str]:
    ran = _ran(analysis)
    skipped = analysis.verdict.diagnosis.skipped
    missed: dict[str, list[str]] = defaultdict(list)
    for rule in sorted(skipped.keys() - looked):
        if CONCERNS.get(rule, _ANY) & ran:
            missed[skipped[rule]].append(rule)
    most_first = sorted(missed.items(), key=lambda each: -len(each[1]))
    lines = [_line(rules, reason) for reason, rules in most_first]
    if rest := len(skipped) - len(looked) - sum(map(len, missed.values())):
        does = "does" if rest == 1 else "do"
        lines.append(f"{counted(rest, 'rule')} {does} not apply to what ran: see --format json.")
    return lines


def _line(rules: list[str], reason: str) -> str:
    return f"{', '.join(rules)}: {clean(reason, 200)}"


def _ran(analysis: Analysis) -> set[str]:
    """What there was to look at: operations by name, and kinds of work."""
    run = analysis.measures
    of_nccl = any("nccl" in backend for backend in analysis.run.backends)
    called, kernels = run.rows("collectives"), run.rows("kernels")
    communicates = bool(len(called) or kernels.coded("kind").being("communication").any())
    copied = set(run.rows("copies").coded("kind").occurring())
    found = {
        "communication": communicates,
        "communication on a GPU": communicates and (of_nccl or len(kernels) > 0),
        "GPU": of_nccl or len(kernels) > 0,
        "copies to or from the host": bool(copied & {"HtoD", "DtoH"}),
        "copies between GPUs": "PtoP" in copied,
    }
    return {*called.coded("op").occurring()} | {what for what, ran in found.items() if ran}
