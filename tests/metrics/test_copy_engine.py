"""A collective that copy engines do is communication, and a copy."""

from __future__ import annotations

from dataclasses import replace

from commtrace.metrics.rank.devices import devices
from commtrace.synthetic import Tiny


def test_it_counts_beside_kernels_of_the_same_stream() -> None:
    run = Tiny()
    run.collective(0, "all_gather", 0, 10, size=4096)
    run.copy(0, 20, 30, kind="PtoP", size=1 << 20, destination="cuda:1", stream=20)
    run.kernel(0, 40, 20)
    trace = run.trace()
    engine = trace.collectives.assign(name="Memcpy PtoP (Device -> Device)").iloc[[0]]
    engine = engine.assign(start_ns=engine["start_ns"] + 20_000, duration_ns=30_000)
    engine = engine.astype({"name": "category"})
    both = replace(trace, collectives=engine)
    (row,) = devices(both).dicts()
    assert row["communication_ns"] == 40_000  # the kernel's 10 µs, the engine's 30
    assert row["copy_ns"] == 30_000
    assert row["overlapped_communication_ns"] == 10_000  # 40 to 50 µs
    assert row["idle_ns"] == 10_000  # 10 to 20 µs
