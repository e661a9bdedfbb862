"""Ranks on which torch's anomaly detection was left on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from commtrace.errors import TraceError
from commtrace.measures import measure
from commtrace.metrics.rank.rank_file import file_of
from commtrace.reader.json import mentions

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["detects_anomalies"]

_CHECK = "aten::_is_any_true"
"""With which only the engine asks a gradient for NaN: torch/csrc/autograd/engine.cpp."""


@measure
def detects_anomalies(run: Measures, rank: int) -> bool:
    """Whether backward checks its gradients for NaN there; not where the file cannot be read."""
    file = file_of(run, rank)
    try:
        return file is not None and mentions(file, _CHECK)
    except TraceError:
        return False
