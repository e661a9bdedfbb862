"""Small copies between host and GPU, one by one: the device is idle around each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from commtrace.arrays import NULL, Bool, Float64, Int64, among, codes, distinct, most
from commtrace.causal.edits.rank_edits import copying_within, launching_within, not_blocking
from commtrace.causal.replay.graph import Lags
from commtrace.causal.savings import Edit, Saving, saving
from commtrace.comms import is_update
from commtrace.diagnosis import Evidence, Finding, too_few
from commtrace.intervals import Intervals, covered, union, united
from commtrace.metrics.rank.rows_of import rows_of_rank
from commtrace.metrics.rank.timelines import SMALL_BYTES, Timeline, behind, elsewhere, timelines
from commtrace.metrics.run.object_collectives import objects_sent
from commtrace.metrics.run.whole import of_time, share_pct, worth_reporting
from commtrace.quantiles import median
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
        most, worth = 0, list[_Stalls]()
        for line in timelines(run):
            copies = self._copies(line, run)
            most = max(most, int(copies.sum()))
            if copies.sum() >= self.min_copies:
                one = self._stalls(line, copies, run)
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
            summary = its.summary + too(ranks, worst.line.rank)
            yield replace(its, ranks=ranks, summary=summary)

    @staticmethod
    def _beside(line: Timeline, run: Measures) -> float:
        """What part of the saving is next to copies: all where inference waits for results anyway.

        Then its host loses its lead without the other copies, too.
        """
        return _BESIDE if _steps_without_update(line, run) is None else 1.0

    def _at_once(self, run: Measures, found: list[_Stalls]) -> Edit:
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
        begin, end = _on_host(line, run, since="launch_ns")
        launch = line.launch_ns
        of_collective = covered(launch, launch + 1, (begin, end)) > 0
        return line.small_copies(self.max_bytes) & ~of_collective

    def _stalls(self, line: Timeline, copies: Bool, run: Measures) -> _Stalls:
        beside = line.starved_beside(copies) & (line.idle_ns <= 1e3 * self.max_stall_us)
        begin, end = (line.start_ns - line.idle_ns)[beside], line.start_ns[beside]
        worked = united(elsewhere(line, run), _on_host(line, run, since="start_ns"))
        idle = end - begin - covered(begin, end, worked)
        usual, answered = _usual_ns(line), _answered(line, copies, run)[beside]
        kept = np.where(line.with_host[beside], idle, (idle - usual).clip(min=0))
        counts = (idle > 0) & ~answered
        beside[beside] = counts
        begin, end, idle, kept = (its[counts] for its in (begin, end, idle, kept))
        stalling = copies & (beside | np.concatenate((beside[1:], [False])))
        needed = _needed(line, stalling, run)
        return _Stalls(line, stalling, needed, begin, end, int(idle.sum()), int(kept.sum()), usual)

    def _finding(self, found: _Stalls, gain: Saving, run: Measures) -> Finding:
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
_LOOP = 3  # copies in a step: fewer are values read each for itself
_MOSTLY = 0.5  # of the copies
_VLLM_STEP = "gpu_model_runner: preprocess"


class _Stalls(Struct, frozen=True):
    """Idle time next to small copies.

    ``copies`` are those with any, and those ``needed`` that must stay; ``kept_ns`` is ``idle_ns``
    without the usual gaps.
    """

    line: Timeline
    copies: Bool
    needed: Bool
    begin_ns: Int64
    end_ns: Int64
    idle_ns: int
    kept_ns: int
    usual_ns: float

    @property
    def count(self) -> int:
        """The copies."""
        return int(self.copies.sum())

    @property
    def cost_ns(self) -> int:
        """What all cost but those that remain."""
        return round(self.kept_ns * (1 - int(self.needed.sum()) / max(self.count, 1)))


def _mostly_of(found: _Stalls) -> set[str]:
    """The kinds of the copies, but for those that are hardly any."""
    often = Counter(str(kind) for kind in found.line.kind[found.copies])
    return {kind for kind, count in often.items() if count >= _HARDLY_ANY * found.count}


def _mostly_of_objects(run: Measures, found: _Stalls) -> bool:
    """Whether most of the copies are next to collectives of objects, but for other copies."""
    line = found.line
    objects = np.isin(line.start_ns, objects_sent(run, line.rank)[0])
    work = np.flatnonzero(~line.with_host)
    if not objects.any():
        return False
    after = np.searchsorted(work, np.flatnonzero(found.copies))
    beside = np.append(objects[work], False)
    return bool((beside[after] | beside[after - 1]).mean() > _MOSTLY)


def _answered(line: Timeline, copies: Bool, run: Measures) -> Bool:
    """What is behind the result of a step of inference: what comes next follows from it."""
    if (steps := _steps_without_update(line, run)) is None:
        return np.zeros_like(copies)
    return behind(_last_of_each(line, copies & line.kinds.being("DtoH"), steps))


def _needed(line: Timeline, copies: Bool, run: Measures) -> Bool:
    """One copy of all; of several of a size in a step the last, which fetches what all brought.

    Where no optimizer steps, of each step the last to and from the host: a step of inference has to
    be told its input and to tell its result.
    """
    if (steps := _steps_without_update(line, run)) is not None:
        return _last_of_each(line, copies, steps)
    needed = np.zeros_like(copies)
    needed[np.flatnonzero(copies)[-1:]] = True
    begins = _profiler_steps(line, run)
    step = np.searchsorted(begins, line.launch_ns, side="right")
    for size in distinct(line.size_bytes[copies]).tolist():
        alike = copies & (line.size_bytes == size)
        if np.count_nonzero(alike) >= _LOOP * distinct(step[alike]).size:
            needed |= _last_of_each(line, alike, begins)
    return needed


def _steps_without_update(line: Timeline, run: Measures) -> Int64 | None:
    """When a rank's steps begin, if it has any and no optimizer steps in them.

    vLLM marks them itself; the profiler's, if there are any, may hold several.
    """
    steps = rows_of_rank(run, "steps", line.rank)
    label = steps.coded("label")
    marked = label.being(_VLLM_STEP)
    begins = np.sort(steps.ints("start_ns")[marked])
    begins = begins if begins.size else _profiler_steps(line, run)
    updates = any(map(is_update, label.occurring()))
    return None if updates or not begins.size else begins


def _profiler_steps(line: Timeline, run: Measures) -> Int64:
    """When a rank's steps begin, in their order."""
    steps = rows_of_rank(run, "steps", line.rank)
    begins: Int64 = np.sort(steps.ints("start_ns")[~steps.coded("label").known])
    return begins


def _last_of_each(line: Timeline, copies: Bool, begins: Int64) -> Bool:
    """The last of these copies in each step, of each kind."""
    at = np.flatnonzero(copies)
    way = codes(np.searchsorted(begins, line.launch_ns[at], side="right"), line.kinds.take(at))
    last = np.zeros_like(copies)
    last[most(way, at, int(way.max(initial=-1)) + 1)] = True
    return last


def _usual_ns(line: Timeline) -> float:
    """The median gap before work that has no copy from or to the host next to it."""
    gaps = line.idle_ns[~(line.with_host | behind(line.with_host))]
    return median(gaps) if gaps.size else 0.0


def _on_host(line: Timeline, run: Measures, *, since: str) -> Intervals:
    """When the rank's collectives on the CPU ran, from their launch or their start on."""
    calls = rows_of_rank(run, "collectives", line.rank)
    rows = np.flatnonzero(calls.coded("device").being("cpu"))
    begin, start_ns, duration_ns = (
        calls.ints(name)[rows] for name in (since, "start_ns", "duration_ns")
    )
    return union(np.where(begin == NULL, start_ns, begin), start_ns + duration_ns)


def _run(*, reads: int, every_us: float, computes_us: float = 0) -> Measures:
    run = Tiny()
    for i in range(reads):
        at = i * every_us
        launch = BASE_NS + round(1e3 * at)
        if computes_us:
            run.kernel(0, at + 6, computes_us, stream=8, launch_ns=launch - 1_000)
        run.copy(0, at + 6, 2, kind="DtoH", size=4, memory="pageable", launch_ns=launch)
    return run.trace()
