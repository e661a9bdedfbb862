"""Addresses that open a served timeline in Perfetto's page, at a finding if wanted."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from commtrace.viewer.findings import range_ns
from commtrace.viewer.timeline import RUN, rank_name

if TYPE_CHECKING:
    from collections.abc import Iterable

    from commtrace.diagnosis import Finding
    from commtrace.measures import Measures

__all__ = ["finding_link", "run_link"]

_SHOWN = 8
"""Ranks whose tracks are pinned or expanded, at most."""
_COMPARED = 4
"""Ranks whose tracks are pinned, at least: a culprit is one next to others."""


def run_link(run: Measures, page: str, trace: str) -> str:
    """The whole run, its first ranks expanded."""
    ranks = sorted(set(run.rows("ranks").ints("rank").tolist()))
    names = _any(rank_name(run, rank) for rank in ranks[:_SHOWN])
    expand = {"id": "dev.perfetto.ExpandTracksByRegex", "args": [f"^({RUN}|{names}|operations.*)$"]}
    return _link(page, trace, startupCommands=[expand])


def finding_link(finding: Finding, run: Measures, page: str, trace: str) -> str:
    """A finding's range, with the findings, the critical path and its ranks' operations pinned.

    A culprit's are next to others', who may wait for it.
    """
    every = sorted(set(run.rows("ranks").ints("rank").tolist()))
    ranks = list(dict.fromkeys((*finding.ranks[:_SHOWN], *every)))
    shown = ranks[: min(max(len(finding.ranks), _COMPARED), _SHOWN)]
    tracks = ["findings", "critical path"]
    for name in (rank_name(run, rank) for rank in shown):
        tracks.append(f"{name}( waited for|[^,]*, .*)")
        if finding.streams:
            tracks.append(rf"{name} (\S+ )?stream ({_any(map(str, finding.streams))})")
    # One command for each, for they are pinned in the order of the commands.
    pin = [{"id": "dev.perfetto.PinTracksByRegex", "args": [f"^{its}$"]} for its in tracks]
    start, end = range_ns(finding)
    return _link(page, trace, visStart=start, visEnd=end, startupCommands=pin)


def _link(page: str, trace: str, **more: Any) -> str:
    values = {
        name: value if isinstance(value, int) else json.dumps(value) for name, value in more.items()
    }
    parts = {"url": trace, **values}.items()
    return f"{page}/#!/?" + "&".join(
        f"{name}={quote(str(value), safe='')}" for name, value in parts
    )


def _any(names: Iterable[str]) -> str:
    return "|".join(map(re.escape, names)).replace("\\ ", " ")
