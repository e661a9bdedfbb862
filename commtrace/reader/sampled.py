"""Whether a file holds only a sample of what its process did.

Calls of a GPU's runtime are numbered in their order. Kineto leaves some of them out, so that the
numbers of those it keeps are a few apart: 1 to 5 in the median of the traces of public projects
known here. The host's events have an index from PyTorch 2.3 on, each its own. Where somebody kept
events at random, or filtered them, most numbers are missing.
"""

from __future__ import annotations

import numpy as np

from commtrace.arrays import distinct
from commtrace.quantiles import median
from commtrace.reader.json.events import Scan
from commtrace.units import counted

__all__ = ["sampled"]

_APART = 20  # in the median
_DENSE = 0.05  # of the numbers: where as many are there, whole stretches of the run are
_FEW = 100  # calls, which tell nothing


def sampled(scan: Scan) -> str | None:
    """What tells that most of a file's events were left out; None where nothing does."""
    return _of_gpu_calls(scan) or _of_host_events(scan)


def _of_gpu_calls(scan: Scan) -> str | None:
    numbers = np.concatenate((scan.gpu.correlation, scan.launches.correlation))
    numbers = distinct(numbers[numbers > 0])
    if numbers.size < _FEW:
        return None
    all_of_them = int(numbers[-1] - numbers[0]) + 1
    if median(np.diff(numbers)) < _APART or numbers.size > _DENSE * all_of_them:
        return None
    return (
        f"calls of the GPU's runtime are numbered (correlation), and {numbers.size:,} of "
        f"{all_of_them:,} are in the file: events were filtered, or are a sample"
    )


def _of_host_events(scan: Scan) -> str | None:
    found = [call.args.index for call in scan.calls if type(call.args.index) is int]
    if not found or max(found) - min(found) < max(_APART * scan.events, _FEW):
        return None
    return (
        f"events of the host are numbered (Ev Idx), up to {max(found):,}, and "
        f"{counted(scan.events, 'event')} are in the file: events were filtered, or are a sample"
    )
