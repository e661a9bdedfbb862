"""What a manifest tells of each rank."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["manifest_ranks"]


def manifest_ranks(run: Measures) -> list[dict[str, Any]]:
    """Its rows; none without a manifest. Anybody can have written it: what is no row is none."""
    ranks = (run.manifest or {}).get("ranks")
    return [one for one in ranks if isinstance(one, dict)] if isinstance(ranks, list) else []
