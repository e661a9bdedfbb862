"""Why communication between GPUs is slow, and what to change, from profiler traces.

>>> import commtrace as ct
>>> run = ct.load("traces/decomposed_all_reduce/gloo-4")  # doctest: +SKIP
>>> run.collectives  # a DataFrame  # doctest: +SKIP
"""

from __future__ import annotations

TYPE_CHECKING = False  # typing's, which takes as long to import as all else here
if TYPE_CHECKING:
    from typing import Any

    from commtrace.comparison import Comparison, compare
    from commtrace.diagnosis import Diagnosis, Evidence, Finding, Note
    from commtrace.errors import CommtraceError, RecordError, TraceError, UsageError
    from commtrace.measures import Measures
    from commtrace.record.recording import recording, step, trace_handler
    from commtrace.run import Run, load

__all__ = [
    "CommtraceError",
    "Comparison",
    "Diagnosis",
    "Evidence",
    "Finding",
    "Measures",
    "Note",
    "RecordError",
    "Run",
    "TraceError",
    "UsageError",
    "__version__",
    "compare",
    "load",
    "recording",
    "step",
    "trace_handler",
]

__version__ = "0.1.0"

_HOMES = {
    "errors": ("CommtraceError", "RecordError", "TraceError", "UsageError"),
    "record.recording": ("recording", "step", "trace_handler"),
    "run": ("Run", "load"),
    "comparison": ("Comparison", "compare"),
    "diagnosis": ("Diagnosis", "Evidence", "Finding", "Note"),
    "measures": ("Measures",),
}


def __getattr__(name: str) -> Any:
    # Names are found on first use: importing the package loads none of its libraries.
    from importlib import import_module

    for module, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"commtrace.{module}"), name)
    raise AttributeError(f"module 'commtrace' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
