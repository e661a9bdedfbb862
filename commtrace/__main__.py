"""``python -m commtrace``, and the console script: Ctrl-C is silent from the first import on."""

from __future__ import annotations

import _signal  # what signal wraps, at no cost
import gc
import os
import sys

__all__ = ["main"]

_INTERRUPTED = 130
_THREADS = "OPENBLAS_NUM_THREADS"
_COPIES = "PANDAS_COPY_ON_WRITE"
_MANY = 100_000  # objects between two looks for garbage: imports and small tables make none


def main() -> int:
    """Run the command line; returns the exit status."""
    # So far nothing has begun that would have to be ended.
    _signal.signal(_signal.SIGINT, lambda *_: os._exit(_INTERRUPTED))
    gc.set_threshold(_MANY)
    if sys.argv[1:2] != ["record"]:  # whose program is not ours to limit
        os.environ.setdefault(_THREADS, "1")  # numpy would start one for each core, for nothing
        os.environ.setdefault(_COPIES, "1")  # as pandas 3 always does: only what is changed
    from commtrace import cli

    interrupted = False

    def interrupt(*_: object) -> None:
        nonlocal interrupted
        interrupted = True
        raise KeyboardInterrupt

    _signal.signal(_signal.SIGINT, interrupt)
    try:
        status = cli.main()
    except BaseException:
        if not interrupted:
            raise
        status = _INTERRUPTED  # whatever an import that was interrupted makes of it
    _signal.signal(_signal.SIGINT, _signal.SIG_IGN)  # all is done, but for Python's own end
    gc.freeze()  # which would look through everything for garbage
    return status


if __name__ == "__main__":
    sys.exit(main())
