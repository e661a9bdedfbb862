"""Every error that commtrace raises on purpose.

``CommtraceError``
    the base: catch it to catch them all. Its text is one line that names the
    file or the field, what is wrong with it, and what to do.

``TraceError``
    an input that cannot be analysed: not a trace, unreadable, empty.
``UsageError``
    a request that cannot be met: an unknown name, an impossible setting.
``RecordError``
    a recording that failed: a rank raised, died or never arrived.
"""

from __future__ import annotations

__all__ = ["CommtraceError", "RecordError", "TraceError", "UsageError"]


class CommtraceError(Exception):
    """Base class; the command line prints it as one line and exits with 2."""


class TraceError(CommtraceError):
    """An input that cannot be analysed."""


class UsageError(CommtraceError):
    """A request that cannot be met."""


class RecordError(CommtraceError):
    """A recording that failed."""
