"""Makes trace files: starts the ranks of a workload or a program, and says what ran where.

Only what runs inside a rank imports torch at once; everything else when a recording starts.
"""

from __future__ import annotations

from commtrace.record.job import Plan
from commtrace.record.launch import record
from commtrace.record.nodes import Place
from commtrace.record.program import record_program
from commtrace.record.session import Interrupted
from commtrace.record.workloads import Workload, available, find

__all__ = [
    "Interrupted",
    "Place",
    "Plan",
    "Workload",
    "available",
    "find",
    "record",
    "record_program",
]
