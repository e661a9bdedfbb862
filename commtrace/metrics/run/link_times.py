"""How long transfers between two ranks took, against others of their kind."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from commtrace.arrays import Int64
from commtrace.comms import POINT_TO_POINT
from commtrace.measures import measure
from commtrace.metrics.rank.hosts import hosts
from commtrace.metrics.run.bandwidth import served
from commtrace.metrics.run.message_waits import message_waits
from commtrace.metrics.run.waits import matched

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["ENDS", "between_two", "link_times"]

ENDS = ["sender", "receiver"]
_LEAST_NS = 100_000  # of a wait for messages: fewer are not known


@measure
def between_two(run: Measures) -> pd.DataFrame:
    """Rows of SERVED that two ranks took part in, with their ``sender`` and ``receiver``.

    ``across`` says whether these are of two hosts. ``by_cpu`` are moved by threads that need a
    core, gloo's; ``on_cpu`` are its messages, of which ``burst`` numbers those under way at one
    time.
    """
    known = served(run, late=True).frame()
    known = known[known["exact"] & (known["present"] == 2)]
    rows = (
        matched(run)
        .waits[["operation", "rank"]]
        .assign(
            receives=(run.collective_columns["op"] == "recv").to_numpy(),
            on_cpu=(run.collective_columns["device"] == "cpu").to_numpy(),
        )
    )
    rows = rows[rows["operation"].isin(known["operation"])].sort_values(["receives", "rank"])
    of = rows.groupby("operation")
    ends = of["rank"].agg(["first", "last"]).loc[known["operation"]]
    on_cpu = of["on_cpu"].all().loc[known["operation"]].to_numpy()
    known = known.assign(
        sender=ends["first"].to_numpy(),
        receiver=ends["last"].to_numpy(),
        by_cpu=on_cpu,
        on_cpu=on_cpu & known["op"].isin(POINT_TO_POINT).to_numpy(),
    )
    across = known["sender"].map(hosts(run)).ne(known["receiver"].map(hosts(run)))
    known = known.assign(across=across).sort_values([*ENDS, "first_arrival_ns"], kind="stable")
    return known.assign(burst=_bursts(known))


@measure
def link_times(run: Measures) -> pd.DataFrame:
    """Each transfer between two ranks, its time against the median of its kind: ``relative``.

    Kinds are alike in operation, type and size, within hosts or across them. Of messages of gloo
    a row is a burst, and its ``transfer_ns`` what its receiver, or its sender, had to wait for it
    once both had called, since no other time of it is known; ``count`` is its messages.
    """
    known = between_two(run)
    kind = known["op"].astype(str) + " " + known["dtype"].astype(str)
    columns = [*ENDS, "across", "by_cpu", "on_cpu", "transfer_ns", "busbw_gb_s", "size_bytes"]
    each = known[~known["on_cpu"]].assign(kind=kind, scale=known["size_bytes"])
    table = each[[*columns, "kind", "scale"]].assign(count=1)
    if known["on_cpu"].any():
        bursts = _waited(known[known["on_cpu"]], run)
        table = pd.concat([part for part in (table, bursts) if len(part)], ignore_index=True)
    times = table.groupby(["kind", "scale", "across"])["transfer_ns"]
    return table.assign(relative=table["transfer_ns"] / times.transform("median"))


def _bursts(known: pd.DataFrame) -> Int64:
    """A number for what two ranks exchange while anything of it is under way."""
    pair = known.groupby(ENDS, sort=False).ngroup().to_numpy(np.int64)
    arrived, ended = (known[c].to_numpy(np.int64) for c in ("last_arrival_ns", "last_end_ns"))
    begins = np.ones(pair.size, dtype=np.bool_)
    for its in np.unique(pair).tolist():
        mine = np.flatnonzero(pair == its)
        begins[mine[1:]] = arrived[mine[1:]] >= np.maximum.accumulate(ended[mine])[:-1]
    return np.cumsum(begins)


def _waited(messages: pd.DataFrame, run: Measures) -> pd.DataFrame:
    waits = (
        matched(run)
        .waits[["operation"]]
        .assign(
            blocked_ns=message_waits(run).blocked_ns,
            receives=(run.collective_columns["op"] == "recv").to_numpy(),
        )
    )
    of = waits.merge(messages[["operation", "burst"]], on="operation")
    waited = of.groupby(["burst", "receives"])["blocked_ns"].sum().groupby("burst").max()
    bursts = messages.groupby("burst").agg(
        sender=("sender", "first"),
        receiver=("receiver", "first"),
        across=("across", "first"),
        by_cpu=("by_cpu", "first"),
        on_cpu=("on_cpu", "first"),
        size_bytes=("size_bytes", "sum"),
        count=("operation", "size"),
    )
    time = waited.reindex(bursts.index).clip(lower=_LEAST_NS)
    return bursts.assign(
        transfer_ns=time,
        busbw_gb_s=bursts["size_bytes"] / time,
        kind="messages",
        scale=np.floor(np.log2(bursts["size_bytes"])).astype(np.int64),
    ).reset_index(drop=True)
