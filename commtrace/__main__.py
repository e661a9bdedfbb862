"""``python -m commtrace``, and the console script: Ctrl-C is silent from the first import on."""

from __future__ import annotations

import os
import signal
import sys

__all__ = ["main"]

_INTERRUPTED = 130


def main() -> int:
    """Run the command line; returns the exit status."""
    # An exception could be taken for a failed import. Nothing has begun that must be ended.
    signal.signal(signal.SIGINT, lambda *_: os._exit(_INTERRUPTED))
    from commtrace import cli

    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        status = cli.main()
    except KeyboardInterrupt:
        status = _INTERRUPTED
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # all is done, but for Python's own end
    return status


if __name__ == "__main__":
    sys.exit(main())
