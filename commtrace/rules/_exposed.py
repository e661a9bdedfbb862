"""How much communication each device has that nothing runs beside, and what could."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from commtrace.arrays import NULL, Int64, codes, first_rows, sums
from commtrace.comms import POINT_TO_POINT
from commtrace.metrics.rank.devices import devices
from commtrace.metrics.run.waits import matched
from commtrace.metrics.run.whole import has_steps, whole
from commtrace.quantiles import median

if TYPE_CHECKING:
    from commtrace.measures import Measures
    from commtrace.table import Rows

__all__ = ["Devices", "exposed_in_all_ns", "of_devices", "operations_named", "per_device"]


class Devices(Struct, frozen=True, eq=False):
    """Each device's communication, what of it is exposed, compute without it, what could hide."""

    rank: Int64
    communication_ns: Int64
    exposed_ns: Int64
    free_ns: Int64
    gain_ns: Int64


def per_device(run: Measures) -> Devices:
    """Of each that communicates and whose compute is known, in all steps together."""
    rows = _communicating(devices(run, by_step=has_steps(run)))
    exposed = rows.ints("exposed_communication_ns")
    free = rows.ints("compute_ns") - rows.ints("overlapped_communication_ns")
    place = codes(rows.ints("rank"), rows.coded("device"))
    first = first_rows(place)
    times = (rows.ints("communication_ns"), exposed, free, np.minimum(exposed, free))
    return Devices(rows.ints("rank")[first], *(sums(place, its, first.size) for its in times))


def exposed_in_all_ns(run: Measures, found: Devices) -> float:
    """The median device's exposed communication: in the steps, where shares are of these.

    Else in the whole run, as the table of devices has it.
    """
    if whole(run).in_steps:
        return median(found.exposed_ns)
    return median(_communicating(devices(run)).ints("exposed_communication_ns"))


def of_devices(found: Devices) -> str:
    """Of how many devices a time is the median, in words; nothing of one."""
    count = found.rank.size
    return f" (median of {count} devices)" if count > 1 else ""


def operations_named(run: Measures, op: str | None) -> Int64:
    """The numbers of an operation's; none where it is unknown. A message has both of its ends."""
    its, names = matched(run).operations, POINT_TO_POINT if op in POINT_TO_POINT else {op}
    numbers: Int64 = its.ints("operation")[its.coded("op").where(names.__contains__)]
    return numbers


def _communicating(devices: Rows) -> Rows:
    """Those with communication and a known compute."""
    known = devices.ints("compute_ns") != NULL
    return devices.take(known & (devices.ints("communication_ns") > 0))
