"""Small copies between host and GPU, one by one: the device is idle around each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from commtrace.arrays import Bool, Float64, Int64, among
from commtrace.causal.edits.rank_edits import copying_within, launching_within, not_blocking
from commtrace.causal.replay.graph import Lags
from commtrace.causal.savings import Edit, Saving, saving
from commtrace.diagnosis import Evidence, Finding, too_few
from commtrace.intervals import covered
from commtrace.metrics.rank.timelines import SMALL_BYTES, Timeline, timelines
from commtrace.metrics.run.object_collectives import objects_sent
from commtrace.metrics.run.whole import of_time, share_pct, worth_reporting
from commtrace.quantiles import median
from commtrace.rules._copy_stalls import CopyStalls, copy_stalls, on_host, steps_without_update
from commtrace.rules._rule import Rule, too
from commtrace.synthetic import BASE_NS, Tiny
from commtrace.units import mb, ms

if TYPE_CHECKING:
    from commtrace.measures import Measures

_SURE = 100  # copies
_BESIDE = 0.5  # of what is saved: the rest is idle while the host regains its lead


class CopyLoop(Rule, frozen=True):
    """Small copies between host and GPU, one by one, leave the GPU idle around each.

    What it detects
        At least ``min_copies`` copies from or to the host, of less than ``max_bytes`` each,
        next to which a device is idle because the host launches the next work only when
        the copy is done. Idle time after a copy counts, and before one if the host launched
        nothing ahead since the last; each up to ``max_stall_us`` µs: at least half of
        ``min_step_share`` of the steps' time. All but one of the copies cost that share, with what
        is idle until the host has regained its lead. In steps without an optimizer all but the last
        to the host, and the last from it, cost it by themselves, since inference needs these; what
        the host does between its result and its next input is not theirs.

    Why it costs time
        The bytes take next to no time. But ``.item()``, ``.cpu()``, ``print`` or
        ``torch.tensor(x, device="cuda")`` blocks the host until the copy is done, and only
        then does it launch the next work, some ten microseconds each time.

    What to do
        Collect what is read on the device (``torch.stack``) and fetch it at once: one
        ``.tolist()`` or ``.cpu()`` after the loop; log less often than every step. To the
        device: one ``torch.tensor`` of the whole list, ``non_blocking=True`` from pinned
        memory, or make the values there (``torch.full``, ``torch.arange``).

    Blind spots
        That a copy blocks its host is inferred from when launches resume. Copies between two
        places of one device do not block the host: launch-gap's, too.
    """

    min_copies: int = 10
    max_bytes: int = SMALL_BYTES
    max_stall_us: float = 1000.0
    min_step_share: float = 0.05

    def check(self, run: Measures) -> Iterator[Finding]:
        """At most one finding, with the worst of the devices that have the fault."""
        most, worth = 0, list[CopyStalls]()
        for line in timelines(run):
            copies = self._copies(line, run)
            most = max(most, int(copies.sum()))
            if copies.sum() >= self.min_copies:
                one = copy_stalls(line, copies, run, self.max_stall_us)
                share = self.min_step_share * self._beside(line, run)
                if one.count >= self.min_copies and worth_reporting(one.cost_ns, run, share):
                    worth.append(one)
        if most < self.min_copies:
            which = f"of less than {mb(self.max_bytes)} between the host and a GPU"
            raise too_few(most, "copy", self.min_copies, which)
        if not worth:
            return
        worst = max(worth, key=lambda one: one.cost_ns)
        gain = saving(run, self._at_once(run, worth), worst.cost_ns, self.min_step_share)
        if worth_reporting(gain.cost_ns, run, self.min_step_share):
            ranks = tuple(sorted({one.line.rank for one in worth}))
            its = self._finding(worst, gain, run)
            summary = its.summary + too(ranks, worst.line.rank, run)
            yield replace(its, ranks=ranks, summary=summary)

    @staticmethod
    def _beside(line: Timeline, run: Measures) -> float:
        """What part of the saving is next to copies: all where inference waits for results anyway.

        Then its host loses its lead without the other copies, too.
        """
        return _BESIDE if steps_without_update(line, run) is None else 1.0

    def _at_once(self, run: Measures, found: list[CopyStalls]) -> Edit:
        """Only what is needed of a device's copies is left, and the host's wait and work for it."""

        def edit(lag_ns: Lags) -> Int64:
            lag: Int64 = lag_ns.astype(np.int64)
            for its in found:
                line, copies = its.line, np.flatnonzero(its.copies & ~its.needed)
                done_ns = np.concatenate((line.start_ns[copies], line.end_ns[copies]))
                soon_ns = round(1e3 * self.max_stall_us)
                not_blocking(run, line.rank, done_ns, soon_ns, lag)
                none: Float64 = np.zeros(copies.size)
                copying_within(run, line.rank, line.start_ns[copies], none, lag)
                late = among(line.start_ns, its.end_ns)
                for which, most_ns in ((line.with_host, 0.0), (~line.with_host, its.usual_ns)):
                    launch_ns = line.launch_ns[late & which]
                    launching_within(run, line.rank, launch_ns, round(most_ns), lag)
            return lag

        return edit

    def _copies(self, line: Timeline, run: Measures) -> Bool:
        """The small copies, but those of a collective on the host, which gloo makes."""
        begin, end = on_host(line, run, since="launch_ns")
        launch = line.launch_ns
        of_collective = covered(launch, launch + 1, (begin, end)) > 0
        return line.small_copies(self.max_bytes) & ~of_collective

    def _finding(self, found: CopyStalls, gain: Saving, run: Measures) -> Finding:
        line, kinds = found.line, _mostly_of(found)
        sizes = line.size_bytes[found.copies]
        size = mb(median(sizes)) + ("" if sizes.min() == sizes.max() else " (median)")
        way = " and ".join(_WAY[kind] for kind in sorted(kinds)) + " the host"
        each, least = found.idle_ns / found.count, self.min_copies
        share = share_pct(gain.cost_ns, run)
        return self.finding(
            (found.begin_ns, found.end_ns),
            summary=(
                f"{found.count:,} copies of {size} {way}, one by one, stall rank {line.rank}'s "
                f"{line.device} for {ms(each)} each: {ms(found.idle_ns)} in all"
            ),
            ranks=(line.rank,),
            streams=tuple(sorted({int(stream) for stream in line.stream[found.copies]})),
            saving=gain,
            evidence=(
                Evidence("copies with idle time beside them", found.count, "copies", least),
                Evidence("largest of them", float(sizes.max()), "bytes", self.max_bytes),
                Evidence("idle beside them", found.idle_ns, "ns"),
                Evidence("usual gap before other work", found.usual_ns, "ns"),
                Evidence(f"share {of_time(run)}", share, "%", 100 * self.min_step_share),
            ),
            ruled_out=(
                "work that had been launched: only what was launched after the copy is counted",
                "other work of the rank: time of its other devices and collectives is left out",
                "a host that launches slowly: the usual gap before other work is taken off",
            ),
            advice=_OBJECTS
            if _mostly_of_objects(run, found)
            else "; ".join(_ADVICE[kind] for kind in sorted(kinds)),
            confidence="high" if found.count >= _SURE else "medium",
        )

    @staticmethod
    def bad() -> Measures:
        """200 results of 4 bytes are read one by one: 2 µs of copying, 38 µs idle."""
        return _run(reads=200, every_us=40)

    @staticmethod
    def good() -> Measures:
        """They are read while the next kernels, launched before, run on another stream."""
        return _run(reads=200, every_us=40, computes_us=39)


_WAY = {"DtoH": "to", "HtoD": "from"}
_ADVICE = {
    "DtoH": "collect the values on the device (torch.stack) and fetch them at once, with one "
    ".tolist() or .cpu() after the loop instead of .item() or .cpu() in it; log less often",
    "HtoD": "send the values at once, with one torch.tensor of them all, from pinned memory with "
    "non_blocking=True, or make them on the device (torch.full, torch.arange)",
}


_OBJECTS = (
    "collectives of Python objects (all_gather_object, broadcast_object_list) send a length and "
    "bytes, copied to the GPU and back, for which the host waits: send tensors, or objects over a "
    "gloo group, or seldom"
)
_HARDLY_ANY = 0.05  # of the copies
_MOSTLY = 0.5  # of the copies


def _mostly_of(found: CopyStalls) -> set[str]:
    """The kinds of the copies, but for those that are hardly any."""
    often = Counter(str(kind) for kind in found.line.kind[found.copies])
    return {kind for kind, count in often.items() if count >= _HARDLY_ANY * found.count}


def _mostly_of_objects(run: Measures, found: CopyStalls) -> bool:
    """Whether most of the copies are next to collectives of objects, but for other copies."""
    line = found.line
    objects = np.isin(line.start_ns, objects_sent(run, line.rank)[0])
    work = np.flatnonzero(~line.with_host)
    if not objects.any():
        return False
    after = np.searchsorted(work, np.flatnonzero(found.copies))
    beside = np.append(objects[work], False)
    return bool((beside[after] | beside[after - 1]).mean() > _MOSTLY)


def _run(*, reads: int, every_us: float, computes_us: float = 0) -> Measures:
    run = Tiny()
    for i in range(reads):
        at = i * every_us
        launch = BASE_NS + round(1e3 * at)
        if computes_us:
            run.kernel(0, at + 6, computes_us, stream=8, launch_ns=launch - 1_000)
        run.copy(0, at + 6, 2, kind="DtoH", size=4, memory="pageable", launch_ns=launch)
    return run.trace()
