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


_MORE = 1.05  # times: a table of the whole run would seem to contradict what is said of the steps


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
    return median(found.exposed_ns) if whole(run).in_steps else _exposed_in_run_ns(run)


def of_devices(run: Measures, found: Devices) -> str:
    """What such a time is of, in words: the steps, where the run has more; the median device."""
    beyond = _exposed_in_run_ns(run) > _MORE * exposed_in_all_ns(run, found)
    count = found.rank.size
    median_of = f" (median of {count} devices)" if count > 1 else ""
    return f"{' in the steps' if beyond else ''}{median_of}"


def _exposed_in_run_ns(run: Measures) -> float:
    return median(_communicating(devices(run)).ints("exposed_communication_ns"))


def operations_named(run: Measures, op: str | None) -> Int64:
    """The numbers of an operation's; none where it is unknown. A message has both of its ends."""
    its, names = matched(run).operations, POINT_TO_POINT if op in POINT_TO_POINT else {op}
    numbers: Int64 = its.ints("operation")[its.coded("op").where(names.__contains__)]
    return numbers


def _communicating(devices: Rows) -> Rows:
    """Those with communication and a known compute."""
    known = devices.ints("compute_ns") != NULL
    return devices.take(known & (devices.ints("communication_ns") > 0))
