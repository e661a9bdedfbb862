"""Generated runs: what NCCL would leave in the traces of several ranks, with its truth."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import pytest

from commtrace import trace_tables as schema
from commtrace.measures import Measures
from commtrace.table import Rows

BASE_NS = 1_700_000_000_000_000_000
BYTES_PER_NS = 50.0
LATENCY_NS = 20_000


@dataclass(frozen=True)
class Clocks:
    """What each rank's clock shows at a true time."""

    offset_ns: tuple[float, ...]
    drift: tuple[float, ...]

    def shows(self, time: Any, rank: Any) -> Any:
        offset, drift = np.asarray(self.offset_ns)[rank], np.asarray(self.drift)[rank]
        return BASE_NS + np.rint(time + offset + drift * time).astype(np.int64)

    def true_offset(self, shown_ns: int, rank: int, reference: int) -> float:
        """How far a rank's clock is ahead of another's when it shows a time."""
        offset = shown_ns - BASE_NS - self.offset_ns[rank]
        time = offset / (1 + self.drift[rank])
        return (
            self.offset_ns[rank]
            - self.offset_ns[reference]
            + (self.drift[rank] - self.drift[reference]) * time
        )


@dataclass(frozen=True)
class Generated:
    """A run, and for each row of its collectives the truth: operation, arrival, end, wait."""

    trace: Measures
    truth: pd.DataFrame
    clocks: Clocks


@dataclass
class _Job:
    """Ranks that take part in operations, each at its own pace."""

    rng: np.random.Generator
    ranks: int
    jitter_ns: float
    skew_ns: float
    alike: bool
    now: Any = field(init=False)
    rows: list[dict[str, Any]] = field(default_factory=list)
    count: int = 0

    def __post_init__(self) -> None:
        self.now = np.zeros(self.ranks)

    def compute(self) -> None:
        self.now = self.now.max() + self.rng.exponential(600_000) + 50_000 + np.zeros(self.ranks)
        self.now += self.rng.exponential(self.skew_ns, self.ranks) if self.skew_ns else 0

    def collective(self, group: str, members: Sequence[int], op: str = "all_reduce") -> None:
        size = 1 << (20 if self.alike else int(self.rng.integers(10, 26)))
        self._run(group, members, op, size, {})

    def message(self, source: int, target: int) -> None:
        size = 1 << (20 if self.alike else int(self.rng.integers(10, 26)))
        self._run("world", (source, target), "", size, {source: target, target: source})

    def _run(
        self, group: str, members: Sequence[int], op: str, size: int, peers: dict[int, int]
    ) -> None:
        at = list(members)
        arrival = self.now[at].copy()
        over = arrival.max() + LATENCY_NS + size / BYTES_PER_NS
        end = over + np.abs(self.rng.normal(0, self.jitter_ns, len(at)))
        for rank, came, went in zip(at, arrival.tolist(), end.tolist(), strict=True):
            self.rows.append(
                {
                    "operation": self.count,
                    "rank": rank,
                    "group": group,
                    "op": op or ("send" if rank == at[0] else "recv"),
                    "peer": peers.get(rank),
                    "size_bytes": size,
                    "members": ",".join(map(str, sorted(at))) if not peers else "",
                    "group_size": len(at) if not peers else self.ranks,
                    "arrival": came,
                    "end": went,
                    "wait": arrival.max() - came,
                    "transfer": end.max() - arrival.max(),
                }
            )
        self.now[at] = end
        self.count += 1


@pytest.fixture(scope="session")
def generate() -> Callable[..., Generated]:
    """Builds a run; see ``_generate``."""
    return _generate


def _generate(
    world_size: int = 4,
    steps: int = 100,
    *,
    seed: int = 0,
    hosts: int = 1,
    named_hosts: bool = True,
    offset_ns: float = 5e6,
    drift_ppm: float = 30.0,
    jitter_ns: float = 5_000,
    skew_ns: float = 100_000,
    late: int = 0,
    drop: float = 0.0,
    missing: Sequence[int] = (),
    mesh: int = 0,
    pipeline: bool = False,
    alike: bool = False,
    identifiers: str | None = None,
    own_names: bool = False,
) -> Generated:
    """``steps`` times: compute, then an all_reduce of all ranks.

    Ranks are spread over ``hosts`` whose clocks differ by up to ``offset_ns`` and
    ``drift_ppm``. Rank r's window opens ``late * r`` operations late; it loses the share
    ``drop`` of them. With ``mesh`` columns, each row and each column of the mesh has an
    all_reduce too; with ``pipeline``, each rank sends to the next. ``identifiers`` is
    None, ``sequence`` or ``comms-id``. With ``own_names`` each rank names groups its own way.
    """
    rng = np.random.default_rng(seed)
    job = _Job(rng, world_size, jitter_ns, skew_ns, alike)
    everyone = range(world_size)
    for _ in range(steps):
        job.compute()
        for group, members in _mesh(world_size, mesh):
            job.collective(group, members)
        for source in everyone[:-1] if pipeline else ():
            job.message(source, source + 1)
        job.collective("world", everyone)
    host = [rank * hosts // world_size for rank in everyone]
    offsets = [0.0, *rng.uniform(-offset_ns, offset_ns, hosts - 1)]
    drifts = [0.0, *(rng.choice([-1, 1], hosts - 1) * drift_ppm * 1e-6)]
    clocks = Clocks(tuple(offsets[h] for h in host), tuple(drifts[h] for h in host))
    truth = _numbered(pd.DataFrame(job.rows))
    lost = rng.random(len(truth)) < drop
    lost |= truth["place"] < late * truth["rank"]
    truth = truth[~lost & ~truth["rank"].isin(missing)].reset_index(drop=True)
    present = [rank for rank in everyone if rank not in missing]
    return Generated(
        Measures(
            kernels=schema.KERNELS.rows(),
            copies=schema.COPIES.rows(),
            blocking_calls=schema.BLOCKING_CALLS.rows(),
            synchronisations=schema.SYNCHRONISATIONS.rows(),
            collectives=_collectives(truth, clocks, identifiers, own_names),
            ops=schema.OPS.rows(),
            host_operators=schema.HOST_OPERATORS.rows(),
            host_gaps=schema.HOST_GAPS.rows(),
            steps=schema.STEPS.rows(),
            groups=_groups(truth, world_size, own_names),
            probes=schema.PROBES.rows(),
            ranks=schema.RANKS.of_dicts(
                [
                    {
                        "rank": rank,
                        "file": f"rank{rank}.json",
                        "host": f"host{host[rank]}" if named_hosts else None,
                        "world_size": world_size,
                        "backend": "nccl",
                        "gpu": None,
                        "rank_provenance": "metadata",
                        "start_ns": None,
                        "end_ns": None,
                        "events": 1,
                    }
                    for rank in present
                ]
            ),
        ),
        truth,
        clocks,
    )


def _mesh(world_size: int, columns: int) -> Iterator[tuple[str, Sequence[int]]]:
    """Rows and columns of ranks; all rows have one name, and all columns another."""
    if columns:
        for first in range(0, world_size, columns):
            yield "row", range(first, first + columns)
        for first in range(columns):
            yield "column", range(first, world_size, columns)


def _numbered(truth: pd.DataFrame) -> pd.DataFrame:
    """``seq`` as NCCL counts: per group, of point-to-point each rank its own."""
    by_rank = truth.groupby("rank")
    peer = truth["peer"].notna()
    seq = truth.groupby(["rank", "group", "members", peer]).cumcount() + 1
    return truth.assign(place=by_rank.cumcount(), seq=seq)


def _collectives(
    truth: pd.DataFrame, clocks: Clocks, identifiers: str | None, own_names: bool
) -> Rows:
    rank = truth["rank"].to_numpy()
    start = clocks.shows(truth["arrival"].to_numpy(), rank)
    end = clocks.shows(truth["end"].to_numpy(), rank)
    rows = []
    for row, first, last in zip(
        truth.to_dict("records"), start.tolist(), end.tolist(), strict=True
    ):
        peer = None if pd.isna(row["peer"]) else int(row["peer"])
        name = f"{row['group']}@{row['rank']}" if own_names else row["group"]
        key = f"{name} {row['members']} {row['seq']} {peer is not None}"
        rows.append(
            {
                "step": None,
                "group": name,
                "seq": row["seq"] if identifiers else None,
                "rank": row["rank"],
                "op": row["op"],
                "executed": row["op"],
                "call": row["op"],
                "dtype": "float32",
                "size_bytes": row["size_bytes"],
                "in_bytes": row["size_bytes"],
                "out_bytes": row["size_bytes"],
                "group_size": row["group_size"],
                "device": "cuda:0",
                "stream": 20,
                "peer": peer,
                "root": None,
                "asynchronous": None,
                "launch_ns": None,
                "thread": None,
                "start_ns": first,
                "duration_ns": last - first,
                "name": "ncclDevKernel",
                "provenance": "kernel",
                "group_provenance": "metadata",
                "comms_id": key if identifiers == "comms-id" else None,
                "called_at": None,
            }
        )
    return schema.COLLECTIVES.of_dicts(rows)


def _groups(truth: pd.DataFrame, world_size: int, own_names: bool) -> Rows:
    everyone = ",".join(map(str, range(world_size)))
    members = truth["members"].where(truth["members"] != "", everyone)
    known = truth.assign(members=members)[["rank", "group", "members"]].drop_duplicates()
    return schema.GROUPS.of_dicts(
        [
            {
                "rank": rank,
                "group": f"{group}@{rank}" if own_names else group,
                "description": None,
                "backend": "nccl",
                "size": ranks.count(",") + 1,
                "ranks": ranks,
            }
            for rank, group, ranks in known.itertuples(index=False)
        ]
    )
