"""Makes trace files: starts the ranks of a workload, profiles them, says what ran where.

Only what runs inside a rank imports torch at once; everything else when a recording starts.
"""

from __future__ import annotations

from commtrace.record.launch import record
from commtrace.record.workloads import Workload, available, find

__all__ = ["Workload", "available", "find", "record"]
