"""What a comparison is given of each recording."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from commtrace.analysis import Summary
from commtrace.diagnosis import Diagnosis

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["Recorded"]


@dataclass(frozen=True)
class Recorded:
    """A recording: what ran, its measures, and what its diagnosis says."""

    run: Summary
    measures: Measures
    diagnosis: Diagnosis
