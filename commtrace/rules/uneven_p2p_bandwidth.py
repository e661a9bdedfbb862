"""Copies between some GPUs are far slower than between others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from commtrace.expect import LINKS, Link, link_between
from commtrace.intervals import total, union
from commtrace.rules._common import ms
from commtrace.rules._rule import CannotLook, Rule
from commtrace.rules._tiny import Tiny
from commtrace.schema import Evidence, Finding

if TYPE_CHECKING:
    import pandas as pd

    from commtrace.trace import Trace


@dataclass(frozen=True)
class UnevenP2PBandwidth(Rule):
    """Copies from one GPU to others run at very different bandwidths.

    What it detects
        Peer copies of at least ``min_bytes`` whose bandwidth per pair of GPUs falls into
        classes more than ``class_gap_pct`` apart, while each pair by itself is steady: the
        middle half of its copies within ``spread_pct``.

    Why it costs time
        GPUs of one machine are not equally near: some share NVLinks, some only a PCIe
        switch, some sit on different CPU sockets. The same bytes take many times longer
        on the slow pairs.

    What to do
        Put the pairs that exchange most on the fast links (CUDA_VISIBLE_DEVICES, rank
        order), or relay over a GPU that both reach fast. At most the difference between
        the slow pair's time and the fast pair's is gained.

    Blind spots
        A link's name is a fact only with a recorded topology; otherwise it is inferred
        from the bandwidth and marked so. Traces of other processes on the same link are
        not in this one. ROCm writes peer copies as DtoD and hides the pair.
    """

    min_bytes: int = 16_000_000
    class_gap_pct: float = 25.0
    spread_pct: float = 5.0

    def check(self, trace: Trace) -> Iterator[Finding]:
        """One finding per slow pair, against the fastest from the same source."""
        copies = trace.copies[
            (trace.copies["kind"] == "PtoP") & (trace.copies["size_bytes"] >= self.min_bytes)
        ]
        if copies.empty:
            raise CannotLook(f"no copies between GPUs of {self.min_bytes / 1e6:.0f} MB or more")
        copies = copies.assign(gb_s=copies["size_bytes"] / copies["duration_ns"].clip(lower=1))
        for _, of_source in copies.groupby(["rank", "source"], observed=True):
            pairs = [pair for _, pair in of_source.groupby("destination", observed=True)]
            fast = max(pairs, key=lambda pair: float(pair["gb_s"].median()))
            for slow in pairs:
                if self._far_apart(slow, fast):
                    yield self._finding(slow, fast, trace)

    def _far_apart(self, slow: pd.DataFrame, fast: pd.DataFrame) -> bool:
        apart = float(fast["gb_s"].median()) > float(slow["gb_s"].median()) * (
            1 + self.class_gap_pct / 100
        )
        return apart and self._steady(slow) and self._steady(fast)

    def _steady(self, pair: pd.DataFrame) -> bool:
        low, middle, high = np.percentile(pair["gb_s"].astype(float), [25, 50, 75])
        return bool(high - low <= self.spread_pct / 100 * middle)

    def _finding(self, slow: pd.DataFrame, fast: pd.DataFrame, trace: Trace) -> Finding:
        slow_gb_s, fast_gb_s = (float(pair["gb_s"].median()) for pair in (slow, fast))
        taken, moved = _busy_ns(slow), int(slow["size_bytes"].sum())
        slow_link, fast_link = (_link(pair, trace) for pair in (slow, fast))
        source, destination = _ends(slow)
        concurrent = _overlap_pct(slow, trace)
        end_ns = int((slow["start_ns"] + slow["duration_ns"]).max())
        return Finding(
            rule=self.name(),
            summary=(
                f"copies {source} → {destination} run at {slow_gb_s:.3g} GB/s ({slow_link}); "
                f"{source} → {_ends(fast)[1]} at {fast_gb_s:.3g} ({fast_link})"
            ),
            ranks=(int(slow["rank"].iloc[0]),),
            streams=tuple(int(stream) for stream in slow["stream"].unique()),
            start_ns=int(slow["start_ns"].min()),
            end_ns=end_ns,
            cost_ns=max(round(taken - moved / fast_gb_s), 0),
            evidence=(
                Evidence("bandwidth of the slow pair", slow_gb_s, "GB/s"),
                Evidence("bandwidth of the fast pair", fast_gb_s, "GB/s"),
                Evidence("ratio", fast_gb_s / slow_gb_s, "x", 1 + self.class_gap_pct / 100),
                Evidence("copied while other copies ran", concurrent, "%"),
            ),
            ruled_out=_ruled_out(slow, fast, concurrent, trace),
            advice=(
                f"put pairs that exchange much on faster links than {source} – {destination}: "
                f"{moved / 1e6:.0f} MB took {ms(taken)}, on the fast pair {ms(moved / fast_gb_s)}"
            ),
            confidence="high" if _told(slow_link) and _told(fast_link) else "medium",
        )

    @staticmethod
    def bad() -> Trace:
        """40 MB to one GPU in 0.45 ms, to another in 5.3 ms."""
        return _copies(450, 5300)

    @staticmethod
    def good() -> Trace:
        """The same to both in 0.45 ms."""
        return _copies(450, 450)


def _copies(first_us: float, second_us: float) -> Trace:
    run = Tiny()
    for i in range(10):
        run.copy(
            0, i * 6000, first_us, kind="PtoP", size=40_000_000, destination="cuda:1", stream=21
        )
        run.copy(
            0, i * 6000, second_us, kind="PtoP", size=40_000_000, destination="cuda:2", stream=22
        )
    return run.trace()


def _ends(pair: pd.DataFrame) -> tuple[str, str]:
    return str(pair["source"].iloc[0]), str(pair["destination"].iloc[0])


def _busy_ns(copies: pd.DataFrame) -> int:
    start = copies["start_ns"].to_numpy()
    return total(union(start, start + copies["duration_ns"].to_numpy()))


def _overlap_pct(pair: pd.DataFrame, trace: Trace) -> float:
    """Share of the pair's copies, by time, during which other peer copies ran."""
    others = trace.copies[(trace.copies["kind"] == "PtoP") & ~trace.copies.index.isin(pair.index)]
    alone = _busy_ns(others)
    both = _busy_ns(trace.copies.loc[[*pair.index, *others.index]])
    mine = _busy_ns(pair)
    return 100 * (mine + alone - both) / mine


def _ruled_out(
    slow: pd.DataFrame, fast: pd.DataFrame, concurrent_pct: float, trace: Trace
) -> tuple[str, ...]:
    reasons = []
    if slow["size_bytes"].median() >= fast["size_bytes"].median():
        reasons.append("size: the slow pair's copies are no smaller than the fast pair's")
    alone = slow[~_meets_others(slow, trace)]
    if concurrent_pct == 0:
        reasons.append("sharing a link: no other peer copy ran at the time")
    elif len(alone) and alone["gb_s"].median() < 1.1 * slow["gb_s"].median():
        reasons.append(
            f"sharing a link: {len(alone)} copies that ran alone reached no more than "
            f"{alone['gb_s'].median():.3g} GB/s"
        )
    return tuple(reasons)


def _meets_others(pair: pd.DataFrame, trace: Trace) -> Any:
    others = trace.copies[(trace.copies["kind"] == "PtoP") & ~trace.copies.index.isin(pair.index)]
    starts = np.sort(others["start_ns"].to_numpy())
    ends = np.sort((others["start_ns"] + others["duration_ns"]).to_numpy())
    begun = np.searchsorted(starts, (pair["start_ns"] + pair["duration_ns"]).to_numpy())
    done = np.searchsorted(ends, pair["start_ns"].to_numpy(), side="right")
    return begun > done


def _link(pair: pd.DataFrame, trace: Trace) -> str:
    recorded = _recorded(pair, trace)
    if recorded:
        return recorded
    gb_s = float(pair["gb_s"].median())
    fits = [link for link in LINKS.values() if 0.7 * link.usual_gb_s <= gb_s <= link.peak_gb_s]
    nearest: Link | None = min(fits, key=lambda link: abs(link.usual_gb_s - gb_s), default=None)
    return f"inferred: like {nearest.name}" if nearest else "link unknown"


def _recorded(pair: pd.DataFrame, trace: Trace) -> str | None:
    topology = (trace.manifest or {}).get("topology") or {}
    names = {name: place for place, name in enumerate(topology.get("names") or [])}
    ends = [names.get(end.replace("cuda:", "GPU")) for end in _ends(pair)]
    if None in ends:
        return None
    code = topology["links"][ends[0]][ends[1]]
    if not isinstance(code, str):
        return None
    link = link_between(code, _gpu(trace))
    return f"{code}, {link.name}" if link else code


def _gpu(trace: Trace) -> str:
    devices = (trace.manifest or {}).get("devices") or [{}]
    return str(devices[0].get("name", ""))


def _told(link: str) -> bool:
    return not link.startswith(("inferred", "link unknown"))
