"""The traces of several ranks as one run: one operation, one clock."""

from commtrace.matching.clock import CLOCK, SAME_HOST_ERROR_NS, clock, on_run_clock
from commtrace.matching.notes import unmatched
from commtrace.matching.operations import MATCHES, match

__all__ = [
    "CLOCK",
    "MATCHES",
    "SAME_HOST_ERROR_NS",
    "clock",
    "match",
    "on_run_clock",
    "unmatched",
]
