"""The rules about how fast operations are served."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.faults.loop import Loop
from commtrace.diagnosis import Finding
from commtrace.measures import Measures
from commtrace.rules import RULES, diagnose
from commtrace.rules.degraded_link import DegradedLink
from commtrace.synthetic import BASE_NS, Tiny, on_links, one_machine
from commtrace.trace_tables import TABLES
from tests.edited import edited

MB = 1_000_000


def found(trace: Measures, rule: str) -> tuple[Finding, ...]:
    return diagnose(trace, select=[rule]).findings


def skipped(trace: Measures, rule: str) -> str | None:
    return diagnose(trace, select=[rule]).skipped.get(rule)


def all_reduces(
    took_us: Sequence[float],
    *,
    sizes: Sequence[int] | int = 16 * MB,
    ranks: int = 2,
    pause_us: float = 1000,
    op: str = "all_reduce",
    **tiny: Any,
) -> Tiny:
    """One after the other, everybody there on time."""
    run = Tiny(ranks, **tiny)
    now = 0.0
    for i, took in enumerate(took_us):
        size = sizes if isinstance(sizes, int) else sizes[i]
        for rank in range(ranks):
            root = 0 if op in ("broadcast", "scatter") else None
            run.collective(rank, op, now, took, size=size, root=root)
        now += took + pause_us
    return run


class TestSpeedOfTheLink:
    @pytest.mark.parametrize(
        ("took_us", "fires"),
        [
            (900, "at-the-roofline"),  # 498 GB/s, by NVLS: above the link's own peak
            (1500, "at-the-roofline"),  # 299
            (1540, None),  # 291: less than 0.8 of 370
            (2400, None),  # 187
            (2450, "below-link-speed"),  # 183: less than half of 370
            (250, "impossible-number"),  # 1024 GB/s
        ],
    )
    def test_which_fires_at_which_bandwidth(self, took_us: float, fires: str | None) -> None:
        rules = ["at-the-roofline", "below-link-speed", "impossible-number"]
        findings = diagnose(on_links(took_us), select=rules).findings
        assert [one.rule for one in findings] == ([fires] if fires else [])

    @pytest.mark.parametrize("rule", ["at-the-roofline", "below-link-speed"])
    def test_without_a_topology_they_are_skipped(self, rule: str) -> None:
        trace = all_reduces([1000] * 20, ranks=4).trace()
        assert "needs a recorded topology" in (skipped(trace, rule) or "")

    @pytest.mark.parametrize("rule", ["at-the-roofline", "below-link-speed"])
    def test_nor_where_links_differ_or_machines_do(self, rule: str) -> None:
        mixed = one_machine(4)
        mixed["topology"]["links"][0][1] = "SYS"
        assert skipped(all_reduces([1000] * 20, ranks=4, manifest=mixed).trace(), rule)
        two = all_reduces([1000] * 20, ranks=4, manifest=one_machine(4), hosts=("a", "b"))
        assert skipped(two.trace(), rule)

    def test_waiting_for_a_late_rank_is_not_slowness(self) -> None:
        run = Tiny(8, manifest=one_machine(8))
        for i in range(12):
            for rank in range(8):
                late = 5000 if rank == 3 else 0
                at = i * 8000 + late
                run.collective(rank, "all_reduce", at, 6500 - late, size=256 * MB)
        assert not found(run.trace(), "below-link-speed")
        assert found(run.trace(), "at-the-roofline")

    H100 = "NVIDIA H100 80GB HBM3"

    @pytest.mark.parametrize(
        ("gpu", "hosts", "took_us", "fires"),
        [
            (H100, ("a",), 9_000, True),  # 50 GB/s: PCIe 5 would give 52
            (H100, ("a",), 2_550, True),  # 176: half of what 370 and 56 µs of latency allow
            (H100, ("a",), 2_500, False),  # 179
            (H100, ("a", "b"), 9_000, False),  # the network's
            ("NVIDIA H100 PCIe", ("a",), 9_000, False),
            ("AMD Instinct MI300X", ("a",), 9_000, False),
            ("Tesla V100-SXM2-32GB", ("a",), 20_000, False),  # 22: maybe over few of its NVLinks
            ("Tesla V100-SXM2-32GB", ("a",), 40_000, True),  # 11: PCIe 3 would give 12
        ],
    )
    def test_of_gpus_with_nvlinks_by_their_name_these_are_assumed(
        self, gpu: str, hosts: tuple[str, ...], took_us: float, fires: bool
    ) -> None:
        run = all_reduces([took_us] * 12, sizes=256 * MB, ranks=8, hosts=hosts).trace()
        findings = found(edited(run, "ranks", gpu=gpu), "below-link-speed")
        assert bool(findings) == fires
        if fires:
            assert findings[0].confidence == "medium"
            assert f"(assumed of {gpu})" in findings[0].summary
            gb_s = 370 if gpu == self.H100 else 140
            expected_ns = 256e6 * 1.75 / gb_s + 56e3
            assert findings[0].cost_ns == pytest.approx(
                12 * (1e3 * took_us - expected_ns), rel=0.01
            )

    def test_less_than_nvlinks_give_but_more_than_pcie_may_be_so_for_two_gpus(self) -> None:
        """Every two of a board's four GPUs have a third of their NVLinks."""
        run = all_reduces([256 / 54 * 1e3] * 12, sizes=256 * MB, ranks=2).trace()
        assert not found(edited(run, "ranks", gpu=self.H100), "below-link-speed")

    @pytest.mark.parametrize("until_us", [0, 60_000])
    def test_or_beside_compute(self, until_us: float) -> None:
        run = all_reduces([4_000] * 12, sizes=256 * MB, ranks=8)
        for rank in range(8):
            run.kernel(rank, 100, until_us)
            for i in range(12):  # which waits for all_reduces, so that they cost something
                run.kernel(rank, 5_000 * i + 4_000, 900)
        fires = bool(found(edited(run.trace(), "ranks", gpu=self.H100), "below-link-speed"))
        assert fires == (until_us == 0)

    @pytest.mark.parametrize("own", [True, False])
    def test_gpus_of_other_numbers_are_of_one_host(self, own: bool) -> None:
        run = Tiny(4)
        for i, rank in product(range(12), range(4)):
            device = f"cuda:{rank if own else rank % 2}"
            run.collective(rank, "all_reduce", i * 9000, 8000, size=256 * MB, device=device)
        trace = edited(run.trace(), "ranks", gpu=self.H100, host=None)
        assert bool(found(trace, "below-link-speed")) == own

    @pytest.mark.parametrize("op", ["all_to_all", "broadcast"])
    def test_what_one_rank_can_bound_tells_nothing_of_all_links(self, op: str) -> None:
        run = all_reduces([20_000] * 12, sizes=256 * MB, ranks=8, op=op).trace()
        assert not found(edited(run, "ranks", gpu=self.H100), "below-link-speed")

    def test_what_gloo_moves_takes_no_nvlinks(self) -> None:
        run = all_reduces([9_000] * 12, sizes=256 * MB, ranks=8, backend="gloo").trace()
        assert not found(edited(run, "ranks", gpu=self.H100), "below-link-speed")

    def test_compute_at_the_same_time_lowers_the_confidence(self) -> None:
        run = all_reduces([4000] * 12, sizes=256 * MB, ranks=8, manifest=one_machine(8))
        for rank in range(8):
            run.kernel(rank, 0, 45_000)  # over most of them, which cost nothing
        (finding,) = found(run.trace(), "below-link-speed")
        assert finding.confidence == "medium"
        assert "contention" not in " ".join(finding.ruled_out)


class TestImpossibleNumber:
    def test_a_copy_faster_than_the_pcie_of_the_gpu(self) -> None:
        run = Tiny(manifest={"devices": [{"name": "NVIDIA A100-SXM4-80GB"}]})
        run.copy(0, 0, 100, kind="DtoH", size=10 * MB)
        (finding,) = found(run.trace(), "impossible-number")
        assert "1 DtoH copy of 10 MB cuda:0 → host seems to take 0.1 ms: that needs 100 GB/s" in (
            finding.summary
        )

    def test_copies_of_all_gpus_are_one_finding(self) -> None:
        run = Tiny(4, manifest={"devices": [{"name": "NVIDIA A100-SXM4-80GB"}]})
        for rank in range(4):
            run.copy(rank, 0, 100, kind="DtoH", size=10 * MB, source=f"cuda:{rank}")
            run.copy(rank, 200, 100 if rank else 1000, kind="HtoD", size=10 * MB)
        up, down = sorted(found(run.trace(), "impossible-number"), key=lambda its: its.summary)
        assert up.summary.startswith("3 HtoD copies of 10 MB cuda:0 → host seem to take 0.1 ms")
        assert down.summary.startswith("4 DtoH copies of 10 MB of ranks 0–3 seem to take 0.1 ms")
        assert (up.ranks, down.ranks) == ((1, 2, 3), (0, 1, 2, 3))

    def test_on_an_unknown_gpu_it_could_be_grace(self) -> None:
        run = Tiny()
        run.copy(0, 0, 100, kind="DtoH", size=10 * MB)
        assert not found(run.trace(), "impossible-number")

    def test_a_send_of_gloo_may_only_have_filled_a_buffer(self) -> None:
        run = Tiny(2, backend="gloo")
        for i in range(3):
            run.collective(0, "send", i * 1000, 1, size=10 * MB, peer=1)
            run.collective(1, "recv", i * 1000, 1, size=10 * MB, peer=0)
        assert not found(run.trace(), "impossible-number")

    def test_a_single_cold_measurement_is_looked_at_too(self) -> None:
        trace = all_reduces([770], sizes=1000 * MB, ranks=8).trace()
        (finding,) = found(trace, "impossible-number")
        assert finding.summary.startswith("1 all_reduce of 1 GB seems to take 0.77 ms")
        assert "needs 1299 GB/s" in finding.summary

    def test_a_stray_one_is_noise(self) -> None:
        trace = all_reduces([4000] * 20 + [770], sizes=1000 * MB, ranks=8).trace()
        assert not found(trace, "impossible-number")

    def test_copies_within_a_gpu_are_as_fast_as_its_memory(self) -> None:
        run = Tiny()
        run.copy(0, 0, 10, kind="DtoD", size=20 * MB, destination="cuda:0")
        why = skipped(run.trace(), "impossible-number") or ""
        assert "needs sizes of operations, or copies of 1 MB" in why


class TestLatencyBound:
    LARGE = (4 * MB, 16 * MB, 64 * MB)

    def run(self, small: int, pause_us: float, *, took: float = 20) -> Measures:
        sizes = [*self.LARGE, *[8_000] * small]
        times = [20 + size / 1e5 for size in self.LARGE] + [took] * small
        return all_reduces(times, sizes=sizes, pause_us=pause_us).trace()

    def test_what_it_saves(self) -> None:
        (finding,) = found(self.run(60, 2), "latency-bound")
        assert "60 all_reduces of 8 kB each follow one another" in finding.summary
        assert finding.cost_ns == pytest.approx(59 * (20_000 + 2_000), rel=0.02)

    def steps(self, small: int, size: int) -> Loop:
        """Six steps with a few large all_reduces, and small ones in a row when all is computed."""
        loop = Loop(3, ranks=2, steps=6, host_leads=False)
        loop.spread = 0.002
        for _ in range(loop.steps):
            with loop.step():
                for large in self.LARGE:
                    for rank in loop.everyone:
                        loop.compute(rank, 1_000)
                    loop.together("all_reduce", large, wait=True)
                for _ in range(small):
                    loop.together("all_reduce", size, wait=True)
        return loop

    def test_a_replay_makes_one_of_each_row(self) -> None:
        many, one = self.steps(40, 8_000), self.steps(1, 40 * 8_000)
        (finding,) = found(many.trace(), "latency-bound")
        assert "240 all_reduces of 8 kB each follow one another" in finding.summary
        assert finding.summary.endswith(": 6 would do, 1 in place of 40 in each step")
        # Each of 39 has its latency, and a microsecond for a tick; what is between them stays.
        latency_ns = 1e3 * (many.latency_us + 1)
        assert finding.cost_ns == pytest.approx(6 * 39 * latency_ns, rel=0.02)
        assert finding.replayed_step_ns == pytest.approx(1e3 * one.elapsed_us() / 6, rel=0.05)

    def test_sizes_that_differ_are_told_from_to(self) -> None:
        sizes = [*self.LARGE, *[48, 5_760] * 30]
        times = [20 + size / 1e5 for size in sizes]
        (finding,) = found(all_reduces(times, sizes=sizes, pause_us=2).trace(), "latency-bound")
        assert "60 all_reduces of 48 bytes to 5.76 kB each follow one another" in finding.summary

    def test_two_sizes_far_apart_are_a_line(self) -> None:
        """1.2 MB take 80 µs, and 95.2 MB 94 times 18.5 µs more: 58 µs whatever the size."""
        times, few = [1820, *[80] * 60, 1820], [1_200_000] * 60
        run = all_reduces(times, sizes=[95_200_000, *few, 95_200_000], pause_us=2)
        (finding,) = found(run.trace(), "latency-bound")
        assert "60 all_reduces of 1.2 MB each follow one another" in finding.summary
        assert "(57.8 µs each)" in finding.summary
        near = all_reduces(times, sizes=[12_000_000, *few, 12_000_000], pause_us=2)
        assert not found(near.trace(), "latency-bound")

    def test_an_optimizer_that_sends_parameter_by_parameter_can_send_buckets(self) -> None:
        sizes = [*self.LARGE, *[8_000] * 60]
        times = [20 + size / 1e5 for size in self.LARGE] + [20.0] * 60
        run = all_reduces(times, sizes=sizes, pause_us=2, op="broadcast")
        label = "Optimizer.step#ZeroRedundancyOptimizer.step"
        run.step(0, 0, 0, 10_000, label=label)
        (finding,) = found(run.trace(), "latency-bound")
        assert "parameters_as_bucket_view=True" in finding.advice

    @pytest.mark.parametrize(("busy_s", "confidence"), [(1.0, "medium"), (2.0, "low")])
    def test_where_others_take_the_cores_it_is_not_sure(
        self, busy_s: float, confidence: str
    ) -> None:
        sizes = [*self.LARGE, *[8_000] * 60]
        times = [20 + size / 1e5 for size in self.LARGE] + [20.0] * 60
        machine = {"cores": 2, "usable_cores": 2, "seconds": 1.0, "busy_s": busy_s, "own_s": 0.5}
        run = all_reduces(times, sizes=sizes, pause_us=2, backend="gloo")
        run.manifest = {"ranks": [{"rank": rank, "machine": machine} for rank in range(2)]}
        (finding,) = found(run.trace(), "latency-bound")
        assert finding.confidence == confidence
        assert ("50 % of the CPU cores" in finding.summary) == (confidence == "low")

    def test_groups_of_one_dimension_are_one_finding(self) -> None:
        run = Tiny(4)
        run.groups |= {"dp0": (0, 2), "dp1": (1, 3)}
        now = 0.0
        for size in [*self.LARGE, *[8_000] * 30]:
            took = 20 + size / 1e5
            for rank in range(4):
                run.collective(rank, "all_reduce", now, took, size=size, group=f"dp{rank % 2}")
            now += took + 2
        (finding,) = found(run.trace(), "latency-bound")
        assert "60 all_reduces of 8 kB each follow one another" in finding.summary
        assert "2 would do" in finding.summary
        assert finding.cost_ns == pytest.approx(29 * (20_000 + 2_000), rel=0.05)

    @pytest.mark.parametrize(
        ("scattered", "fires"), [((16 * MB, 1_000), 1), ((16 * MB,), 0), ((), 0)]
    )
    def test_units_far_smaller_than_others_are_needless(
        self, scattered: tuple[int, ...], fires: int
    ) -> None:
        """A layer's norms as units of their own: between their gathers is what layers compute.

        What is gathered alone, as metrics, is no unit.
        """
        run = Tiny(2)
        now = 0.0
        for _ in range(12):
            for size in (16 * MB, 1_000, 1_000):
                took = 20 + size / 1e5
                for rank in range(2):
                    run.collective(rank, "all_gather", now, took, size=size)
                    run.kernel(rank, now + took + 1, 50)
                now += took + 60
        for size in scattered:
            for rank in range(2):
                run.collective(rank, "reduce_scatter", now, 20 + size / 1e5, size=size)
            now += 200
        findings = found(run.trace(), "latency-bound")
        assert len(findings) == fires
        for finding in findings:
            assert "24 all_gathers of 1 kB each are of units far smaller" in finding.summary
            assert "shard whole blocks" in finding.advice
            assert finding.cost_ns == pytest.approx(24 * 20_000, rel=0.1)

    @pytest.mark.parametrize(("small", "pause_us"), [(60, 25), (9, 2)])
    def test_with_a_pause_or_few_there_is_nothing_to_join(
        self, small: int, pause_us: float
    ) -> None:
        assert not found(self.run(small, pause_us), "latency-bound")

    def test_another_operation_in_between_ends_the_row(self) -> None:
        run = Tiny(2)
        sizes = [*self.LARGE, *[8_000, 8_000, 2 * MB] * 20]
        now = 0.0
        for size in sizes:
            for rank in range(2):
                run.collective(rank, "all_reduce", now, 20 + size / 1e5, size=size)
            now += 22 + size / 1e5
        (finding,) = found(run.trace(), "latency-bound")
        assert "20 would do" in finding.summary

    def test_of_one_size_nccls_constants_tell(self) -> None:
        trace = all_reduces([16.0] * 60, sizes=8_000, ranks=8, pause_us=2).trace()
        (finding,) = found(trace, "latency-bound")
        assert any("NCCL's tuning constants" in one.name for one in finding.evidence)

        assert "(15 µs each, assumed from NCCL's tuning constants)" in finding.summary

    @pytest.mark.parametrize(
        ("gpu", "left_us"),
        [
            (None, 13),  # as slowly as the small ones seem to be moved
            ("NVIDIA H100 PCIe", 13),
            ("NVIDIA H100 80GB HBM3", 1.5135),  # 320 kB × 7/4 at 370 GB/s
        ],
    )
    def test_of_one_size_what_a_large_one_would_take_is_what_its_links_do(
        self, gpu: str | None, left_us: float
    ) -> None:
        trace = all_reduces([28.0] * 60, sizes=320_000, ranks=8, pause_us=2).trace()
        (finding,) = found(edited(trace, "ranks", gpu=gpu), "latency-bound")
        assert finding.cost_ns == pytest.approx(1e3 * (60 * 30 - 2 - 15 - 60 * left_us), rel=0.01)
        evidence = {one.name: one.value for one in finding.evidence}
        assert (evidence.get("assumed of one in their place, NVLink4 x18") == 370) == (left_us < 13)

    @pytest.mark.parametrize(("took_us", "fires"), [(32, True), (92, False)])
    def test_what_the_links_leave_is_latency_if_it_is_near_nccls(
        self, took_us: float, fires: bool
    ) -> None:
        trace = all_reduces([took_us] * 60, sizes=MB, ranks=8, pause_us=2).trace()
        findings = found(edited(trace, "ranks", gpu="NVIDIA H100 80GB HBM3"), "latency-bound")
        assert bool(findings) == fires  # 92 µs are those of a slow link, that more bytes need, too
        if fires:
            said = "(27.3 µs each, assumed from what NVLink4 x18 usually reaches): 3 would do"
            assert said in findings[0].summary

    def test_a_row_is_a_bucket_after_the_other(self) -> None:
        trace = all_reduces([32] * 60, sizes=MB, ranks=8, pause_us=2).trace()
        trace = edited(trace, "ranks", gpu="NVIDIA H100 80GB HBM3")
        whole, parted = (
            diagnose(
                trace,
                select=["latency-bound"],
                thresholds={"latency-bound": {"bucket_bytes": size}},
            ).findings
            for size in (100 * MB, 25 * MB)
        )
        assert whole[0].cost_ns - parted[0].cost_ns == pytest.approx(2 * 29e3, rel=0.1)

    @pytest.mark.parametrize(("larger_us", "latency_us"), [(24.5, 24), (28, 15)])
    def test_what_many_take_alike_whatever_their_size_is_latency(
        self, larger_us: float, latency_us: float
    ) -> None:
        sizes, times = [160_000, 320_000] * 60, [24.0, larger_us] * 60
        trace = all_reduces(times, sizes=sizes, ranks=8, pause_us=2).trace()
        findings = found(trace, "latency-bound")
        assert findings[0].evidence[1].value == pytest.approx(latency_us)
        assert ("assumed" in findings[0].summary) == (latency_us == 15)

    @pytest.mark.parametrize(
        ("size", "pause_us", "fires"),
        [
            (4, 8, True),
            (4, 20, False),  # less than such a latency, and time enough to compute with the result
            (16_000, 8, False),  # may have been moved for 28 µs of them, at 1 GB/s
        ],
    )
    def test_what_any_link_moves_in_no_time_is_all_latency(
        self, size: int, pause_us: float, fires: bool
    ) -> None:
        trace = all_reduces([38.0] * 60, sizes=size, ranks=8, pause_us=pause_us).trace()
        findings = found(trace, "latency-bound")
        assert bool(findings) == fires
        if fires:
            assert "100 % of their time is latency (38 µs each)" in findings[0].summary
            assert findings[0].cost_ns == pytest.approx(59 * 46e3, rel=0.02)

    @pytest.mark.parametrize(
        ("pause_us", "computes_us", "fires"),
        [
            (50, 2, True),  # the host reads each result, then calls the next
            (50, 20, False),  # that can have needed it
            (300, 9, True),  # and makes it, as the norm of each gradient: two operators' launches
            (150, 20, False),
            (600, 2, False),  # so long a host does other things
        ],
    )
    def test_what_an_idle_gpu_waits_for_could_have_been_sent_before(
        self, pause_us: float, computes_us: float, fires: bool
    ) -> None:
        run = all_reduces([38.0] * 60, sizes=4, ranks=8, pause_us=pause_us)
        for rank in range(8):
            for place in range(60):
                at = (place + 1) * (38 + pause_us) - pause_us + 5
                run.kernel(rank, at, computes_us)
        findings = found(run.trace(), "latency-bound")
        assert bool(findings) == fires
        if fires:
            assert findings[0].cost_ns > 0.8 * 59 * (38e3 + 48e3)

    @pytest.mark.parametrize("missing", [False, True])
    def test_broadcasts_of_a_root_that_nobody_names_are_known_if_all_ranks_are(
        self, missing: bool
    ) -> None:
        run = Tiny(4)
        for place in range(60):
            for rank in range(3 if missing else 4):
                run.collective(rank, "broadcast", 40.0 * place, 38, size=4)
        findings = found(run.trace(), "latency-bound")
        assert bool(findings) != missing

    def test_where_even_the_small_ones_are_large_there_is_no_latency_of_these(self) -> None:
        run, now = Tiny(8), 0.0
        for op, size in [("reduce_scatter", 160 * MB)] * 3 + [("all_gather", 8 * MB)] * 12:
            for rank in range(8):
                run.collective(rank, op, now, size / 2e4, size=size)
            now += size / 2e4 + 5
        diagnosis = diagnose(run.trace(), select=["latency-bound"])
        assert not diagnosis.findings
        assert "latency-bound" not in diagnosis.skipped

    @pytest.mark.parametrize(
        ("op", "took", "fires"),
        [
            ("reduce_scatter", 75, True),
            ("broadcast", 75, False),
            ("reduce_scatter", 500, False),  # which is no latency any more
        ],
    )
    def test_the_rate_of_larger_ones_of_the_group_tells_what_is_latency(
        self, op: str, took: int, fires: bool
    ) -> None:
        run, now = Tiny(8), 0.0
        for _ in range(2):
            for rank in range(8):
                run.collective(rank, op, now, 3000, size=60 * MB)
            now += 3500
        for _ in range(200):
            for rank in range(8):
                run.collective(rank, "all_gather", now, took, size=MB)
            now += took + 2
        findings = found(run.trace(), "latency-bound")
        assert bool(findings) == fires
        for finding in findings:
            assert "200 all_gathers of 1 MB each follow one another" in finding.summary
            assert "33 % of their time is latency (25 µs each)" in finding.summary  # 50 µs moving
            left_us = 200 * 50 + 8 * 25  # in eight buckets
            assert finding.cost_ns == pytest.approx(1e3 * (200 * 77 - left_us), rel=0.01)
            assert finding.evidence[0].threshold == pytest.approx(30)

    def test_parameters_that_are_sharded_too_finely_are_one_finding(self) -> None:
        run, now = Tiny(8), 0.0
        for op in ("all_gather", "reduce_scatter"):
            for _ in range(60):
                for rank in range(8):
                    run.collective(rank, op, now, 12, size=4096)
                now += 14
        (finding,) = found(run.trace(), "latency-bound")
        assert "60 all_gathers of 4.1 kB each" in finding.summary
        assert "60 reduce_scatters of 4.1 kB each" in finding.summary
        moving_ns = 1.2e3  # of each: NCCL's constants are 10.8 µs
        assert finding.cost_ns == pytest.approx(2 * 59 * (14e3 - moving_ns), rel=0.01)
        assert "larger units" in finding.advice

    @pytest.mark.parametrize("on", ["gpu", "host"])
    def test_on_hosts_a_pause_is_work(self, on: str) -> None:
        backend = "nccl" if on == "gpu" else "gloo"
        run = all_reduces([38.0] * 60, sizes=4, ranks=2, pause_us=50, backend=backend)
        for rank in range(2):
            run.kernel(rank, 0, 1)
        assert bool(found(run.trace(), "latency-bound")) == (on == "gpu")

    @pytest.mark.parametrize(
        ("pause_us", "computes_us", "name", "fires"),
        [
            (500, 60, "norm", True),  # the host reads each result, then calls the next
            (500, 60, "matmul", False),  # a layer of tensor parallelism, whose next needs the sum
            (100, 60, "matmul", False),
            (100, 60, "autograd::engine::evaluate_function: MmBackward0", True),
            (500, 200, "norm", False),  # that can have needed it
            (900, 60, "norm", False),  # so long a host does other things
            (500, 0, "norm", False),  # the trace tells of no operator
        ],
    )
    def test_hosts_that_read_each_result_could_have_sent_all_before(
        self, pause_us: float, computes_us: float, name: str, fires: bool
    ) -> None:
        run = all_reduces([200.0] * 60, sizes=4, pause_us=pause_us, backend="gloo")
        for rank in range(2):
            for place in range(60 if computes_us else 0):
                at = (place + 1) * (200 + pause_us) - pause_us + 5
                full = name if "::" in name else f"aten::{name}"
                run.op(rank, at, computes_us, name=full)
        assert bool(found(run.trace(), "latency-bound")) == fires

    def test_what_a_few_bytes_more_take_is_no_bandwidth(self) -> None:
        """A cluster's sum and its count, one after the other: 256 bytes take twice as long as 4."""
        run = all_reduces([430, 210] * 60, sizes=[256, 4] * 60, pause_us=30, backend="gloo")
        (finding,) = found(run.trace(), "latency-bound")
        assert "120 all_reduces of 4 bytes to 256 bytes each follow one another" in finding.summary

    def test_of_one_size_on_gloo_nothing_tells(self) -> None:
        trace = all_reduces([300.0] * 60, sizes=200_000, backend="gloo").trace()
        assert "in several sizes" in (skipped(trace, "latency-bound") or "")

    def test_what_any_link_moves_at_once_is_latency(self) -> None:
        (finding,) = found(
            all_reduces([300.0] * 60, sizes=8_000, pause_us=2, backend="gloo").trace(),
            "latency-bound",
        )
        latency_us = 300 - 8  # at 1 GB/s 8 kB take 8 µs
        assert finding.evidence[1].name == "latency, what is left of it at 1 GB/s"
        assert finding.evidence[1].value == pytest.approx(latency_us)

    def test_times_that_do_not_follow_sizes_tell_nothing(self) -> None:
        took_us = {200_000: 900.0, 800_000: 500.0, 3_200_000: 100.0}
        sizes = [*took_us] * 20
        trace = all_reduces([took_us[size] for size in sizes], sizes=sizes, backend="gloo").trace()
        assert "whose times grow with these" in (skipped(trace, "latency-bound") or "")

    def test_a_line_through_two_of_three_sizes_is_no_fit(self) -> None:
        took_us = {200_000: 100.0, 800_000: 500.0, 3_200_000: 120.0}
        sizes = [*took_us] * 20
        trace = all_reduces([took_us[size] for size in sizes], sizes=sizes, backend="gloo").trace()
        assert "whose times grow with these" in (skipped(trace, "latency-bound") or "")

    def test_times_that_vary_have_a_median(self) -> None:
        sizes = [*self.LARGE, *[8_000] * 60]
        times = [20 + size / 1e5 for size in self.LARGE] + [10.0, 20.0, 90.0] * 20
        (finding,) = found(all_reduces(times, sizes=sizes, pause_us=2).trace(), "latency-bound")
        assert "60 all_reduces of 8 kB each follow one another" in finding.summary
        assert finding.cost_ns == pytest.approx(60 * (40_000 + 2_000), rel=0.02)

    def test_sizes_are_said_from_the_least_to_the_most(self) -> None:
        sizes = [*self.LARGE, *[48, 5_760] * 30]
        times = [20 + size / 1e5 for size in sizes]
        (finding,) = found(all_reduces(times, sizes=sizes, pause_us=2).trace(), "latency-bound")
        assert "60 all_reduces of 48 bytes to 5.76 kB each follow" in finding.summary

    @pytest.mark.parametrize("delayed_us", [0, 200])
    def test_what_is_no_latency_is_said_beside_it(self, delayed_us: float) -> None:
        sizes = [*self.LARGE, *[8_000] * 60]
        times = [20 + size / 1e5 for size in self.LARGE] + [20, 20, 20 + delayed_us] * 20
        (finding,) = found(all_reduces(times, sizes=sizes, pause_us=2).trace(), "latency-bound")
        mean_us = finding.evidence[2].value
        assert finding.cost_ns == pytest.approx(59 * 1000 * mean_us, rel=0.03)
        assert ("88.6 µs in the mean" in finding.summary) == bool(delayed_us)

    @pytest.mark.parametrize(("steps", "said"), [(1, ": at most 3 would do"), (3, ": 3 would do")])
    def test_pauses_within_a_step_may_be_the_machines(self, steps: int, said: str) -> None:
        run, now = Tiny(2), 0.0
        for size in self.LARGE:
            for rank in range(2):
                run.collective(rank, "all_reduce", now, 20 + size / 1e5, size=size)
            now += 22 + size / 1e5
        for part in range(3):
            if steps > 1:
                for rank in range(2):
                    run.step(rank, part, now, 700)
            for at in range(20):
                for rank in range(2):
                    run.collective(rank, "all_reduce", now + 22 * at, 20, size=8_000)
            now += 700
        if steps == 1:
            for rank in range(2):
                run.step(rank, 0, 0, now)
        (finding,) = found(run.trace(), "latency-bound")
        assert said in finding.summary

    @pytest.mark.parametrize(("ddp", "backward"), [(True, True), (True, False), (False, True)])
    def test_only_what_ddp_reduces_has_its_buckets(self, ddp: bool, backward: bool) -> None:
        sizes = [*self.LARGE, *[8_000] * 60]
        times = [20 + size / 1e5 for size in self.LARGE] + [20.0] * 60
        run = all_reduces(times, sizes=sizes, pause_us=2)
        if ddp:
            run.step(0, 0, 0, 10, label="DistributedDataParallel.forward")
        if backward:
            run.step(0, 0, 10, 10_000, label="backward")
        (finding,) = found(run.trace(), "latency-bound")
        assert ("bucket_cap_mb" in finding.advice) == (ddp and backward)

    @pytest.mark.parametrize("backward", [True, False])
    def test_scatters_of_a_backward_pass_are_those_of_autograd(self, backward: bool) -> None:
        sizes = [*self.LARGE, *[8_000] * 60]
        times = [20 + size / 1e5 for size in self.LARGE] + [20.0] * 60
        run = all_reduces(times, sizes=sizes, pause_us=2, op="scatter")
        if backward:
            run.step(0, 0, 0, 20_000, label="backward")
        (finding,) = found(run.trace(), "latency-bound")
        assert ("all_gather_tensor_autograd" in finding.advice) == backward


class TestDegradedLink:
    @pytest.mark.parametrize(("after", "fires"), [(1.2, False), (1.3, True)])
    def test_a_step_of_a_quarter(self, after: float, fires: bool) -> None:
        trace = all_reduces([400.0] * 40 + [400 * after] * 20, pause_us=100).trace()
        findings = found(trace, "degraded-link")
        assert bool(findings) == fires
        if findings:
            assert "40 before, 20 after" in findings[0].summary

    def test_a_first_one_that_warms_up_does_not_count(self) -> None:
        trace = all_reduces([900.0] + [400.0] * 39 + [520.0] * 20, pause_us=100).trace()
        (finding,) = found(trace, "degraded-link")
        assert "39 before, 20 after" in finding.summary

    @pytest.mark.parametrize(("hosts", "fires"), [(("a", "a"), False), (("a", "b"), True)])
    def test_what_cpus_move_within_a_host_crosses_no_link(
        self, hosts: tuple[str, ...], fires: bool
    ) -> None:
        run = Tiny(2, backend="gloo", hosts=hosts)
        for number, took in enumerate([400.0] * 30 + [800.0] * 30):
            for rank in range(2):
                run.collective(rank, "all_reduce", 1_000 * number, took, size=16 * MB)
        trace = run.trace()
        assert bool(found(trace, "degraded-link")) == fires
        assert ("within one host" in (skipped(trace, "degraded-link") or "")) != fires

    def test_an_early_moment_is_found_where_it_is(self) -> None:
        """Later operations vary a little, and grow slower still by less."""
        times = [160.0] * 14 + [395.0] * 12 + [405.0] * 34
        (finding,) = found(all_reduces(times).trace(), "degraded-link")
        assert "14 before, 46 after" in finding.summary

    def test_one_slow_operation_at_the_end_does_not_hide_the_moment(self) -> None:
        moment, stall = sorted(
            one.summary
            for one in found(
                all_reduces([400.0] * 30 + [800.0] * 29 + [16_000.0]).trace(), "degraded-link"
            )
        )[::-1]
        assert "30 before, 30 after" in moment
        assert stall.startswith("1 of 60 all_reduces of ranks 0–1 takes 16 ms")

    def test_mixed_sizes_are_compared_with_their_own(self) -> None:
        sizes = [16 * MB, 64 * MB, 32 * MB] * 20
        times = [size / 4e4 * (2 if i >= 30 else 1) for i, size in enumerate(sizes)]
        (finding,) = found(all_reduces(times, sizes=sizes).trace(), "degraded-link")
        assert finding.evidence[0].value == pytest.approx(2)
        assert finding.cost_ns == pytest.approx(sum(times[30:]) / 2 * 1e3, rel=0.01)

    def test_compute_that_begins_to_run_beside_it_is_another_cause(self) -> None:
        run = all_reduces([400.0] * 30 + [800.0] * 30)
        for rank in range(2):
            run.kernel(rank, 30 * 1400, 60_000)
        assert not found(run.trace(), "degraded-link")

    @pytest.mark.parametrize(("later", "findings"), [(0, 1), (8, 2)])
    def test_groups_of_one_dimension_that_change_at_once_are_one_finding(
        self, later: int, findings: int
    ) -> None:
        """Else each alone would save nothing: the other is as slow."""
        run = Tiny(4)
        run.groups |= {"dp0": (0, 2), "dp1": (1, 3)}
        for i, rank in product(range(60), range(4)):
            slow = i >= 30 + later * (rank % 2)
            of = {"size": 16 * MB, "group": f"dp{rank % 2}"}
            run.collective(rank, "all_reduce", 1_400 * i, 800 if slow else 400, **of)
        its = found(run.trace(), "degraded-link")
        assert len(its) == findings
        if findings == 1:
            assert "operations of 2 groups of dp take 2.00 times" in its[0].summary
            assert "(60 before, 60 after)" in its[0].summary

    def test_getting_faster_is_no_fault(self) -> None:
        assert not found(all_reduces([800.0] * 30 + [400.0] * 30).trace(), "degraded-link")

    @staticmethod
    def steps(slow: dict[int, float], each: int = 4, device: str = "cuda:0") -> Measures:
        """Four steps of some all_reduces of 400 µs, some of them so much longer."""
        run = Tiny(2)
        for step in range(4):
            for rank in range(2):
                run.step(rank, step, 10_000 * step, 10_000)
                for number in range(each):
                    took = 400 * slow.get(step, 1.0 + 0.1 * (number % 2))
                    at = 10_000 * step + 2_400 * number
                    more = {"size": 16 * MB, "device": device}
                    run.collective(rank, "all_reduce", at, took, **more)
        return run.trace()

    def test_some_steps_in_which_all_is_slower_are_named(self) -> None:
        (finding,) = found(self.steps({2: 4.0}), "degraded-link")
        assert finding.summary.startswith("in 1 of 4 steps (2) all operations of ranks 0–1 take")
        assert finding.cost_ns == pytest.approx(4 * 400 * (4.0 - 1.05) * 1e3, rel=0.02)

    @pytest.mark.parametrize(
        "its",
        [
            {"slow": {2: 1.5}},  # which varies as much otherwise
            {"slow": {1: 4.0, 2: 4.0}},
            {"slow": {2: 4.0}, "each": 2},
            {"slow": {2: 4.0}, "device": "cpu"},
        ],
    )
    def test_as_many_steps_few_operations_or_those_of_cores_are_not(self, its: Any) -> None:
        assert not found(self.steps(**its), "degraded-link")

    def test_few_operations_tell_nothing(self) -> None:
        trace = all_reduces([400.0] * 8 + [800.0] * 8).trace()
        assert (
            "needs 20 operations of 100 kB or more, of one group and recorded on every rank, has 16"
            in (skipped(trace, "degraded-link") or "")
        )

    @settings(max_examples=25, deadline=None)
    @given(seed=st.integers(0, 2**32 - 1), noise=st.floats(0, 1))
    def test_noise_is_no_step(self, seed: int, noise: float) -> None:
        times = 400 * np.random.default_rng(seed).lognormal(0, noise, 60)
        assert not list(DegradedLink().check(all_reduces(times.tolist()).trace()))


class TestSlowLink:
    def pairs(self, slow: dict[tuple[int, int], float], *, ranks: int = 4, **tiny: Any) -> Measures:
        """Everybody sends to everybody, one at a time, in 100 µs or as given."""
        run = Tiny(ranks, **tiny)
        at = 0.0
        for _ in range(12):
            for source in range(ranks):
                for to in range(ranks):
                    if source != to:
                        took = slow.get((source, to), 100.0)
                        run.collective(source, "send", at, took, size=4 * MB, peer=to)
                        run.collective(to, "recv", at, took, size=4 * MB, peer=source)
                        at += took + 10
        return run.trace()

    @staticmethod
    def sent_around(run: Tiny) -> float:
        """A dozen rounds of messages along the first four ranks; when they are over."""
        at = 0.0
        for _ in range(12):
            for source in range(4):
                to, sent = (source + 1) % 4, 300.0 if source == 1 else 100.0
                run.collective(source, "send", at, sent, size=4 * MB, peer=to)
                run.collective(to, "recv", at, sent, size=4 * MB, peer=source)
                at += sent + 10
        return at

    @pytest.mark.parametrize(("took", "fires"), [(120.0, False), (300.0, True)])
    def test_one_way_stands_out(self, took: float, fires: bool) -> None:
        findings = found(self.pairs({(1, 2): took}), "slow-link")
        assert bool(findings) == fires
        if findings:
            assert "12 transfers rank 1 → rank 2 take 3.00 times as long" in findings[0].summary
            assert findings[0].ranks == (1, 2)
            assert findings[0].confidence == "medium"

    @pytest.mark.parametrize(("took", "rings"), [(450.0, 10), (90.0, 0)])
    def test_rings_that_are_as_slow_as_the_link_lose_as_much(self, took: float, rings: int) -> None:
        run = Tiny(4)
        at = self.sent_around(run)
        for _ in range(10):
            for rank in range(4):
                run.collective(rank, "all_reduce", at, took, size=4 * MB)
            at += took + 10
        (finding,) = found(run.trace(), "slow-link")
        assert (f"; as slow are {rings} rings over it" in finding.summary) == bool(rings)
        lost_us = 12 * 200 + rings * took * 2 / 3
        assert finding.cost_ns == pytest.approx(1e3 * lost_us, rel=0.01)

    @pytest.mark.parametrize(("elsewhere", "rings"), [(150.0, 10), (450.0, 0)])
    def test_rings_that_are_as_slow_without_the_link_are_not_slow_for_it(
        self, elsewhere: float, rings: int
    ) -> None:
        run = Tiny(8)
        run.groups |= {"a": (0, 1, 2, 3), "b": (4, 5, 6, 7)}
        at = self.sent_around(run)
        for _ in range(10):
            for group, took in (("a", 450.0), ("b", elsewhere)):
                for rank in run.groups[group]:
                    run.collective(rank, "all_reduce", at, took, size=4 * MB, group=group)
            at += 460
        (finding,) = found(run.trace(), "slow-link")
        assert (f"; as slow are {rings} rings over it" in finding.summary) == bool(rings)

    def test_both_ways_of_a_cable_are_one_link(self) -> None:
        (finding,) = found(self.pairs({(1, 2): 300.0, (2, 1): 300.0}), "slow-link")
        assert finding.ranks == (1, 2)
        assert (
            "24 transfers rank 1 ↔ rank 2 take 3.00 times as long as the same between the other 5 "
            "pairs" in finding.summary
        )
        assert finding.cost_ns == pytest.approx(24 * 200e3, rel=0.02)

    def test_two_links_are_named_together(self) -> None:
        (finding,) = found(self.pairs({(1, 2): 300.0, (3, 0): 300.0}), "slow-link")
        assert "24 transfers rank 3 → rank 0, rank 1 → rank 2 take 3.00" in finding.summary
        assert finding.ranks == (0, 1, 2, 3)
        assert finding.cost_ns == pytest.approx(24 * 200e3, rel=0.02)

    def test_a_rank_that_is_slow_with_several_is_named_alone(self) -> None:
        """As a GPU some of whose links are down, which others reach by a bridge."""
        run, slow = Tiny(6), {(2, 1), (2, 3)}
        pairs = [(2, 1), (2, 3), (2, 5), (0, 1), (1, 0), (3, 4), (4, 3), (4, 5), (5, 0), (0, 4)]
        for micro, (at, (source, to)) in product(range(12), enumerate(pairs)):
            took = 300.0 if (source, to) in slow else 100.0
            begun = micro * 5000.0 + at * 400
            run.collective(source, "send", begun, took, size=4 * MB, peer=to)
            run.collective(to, "recv", begun, took, size=4 * MB, peer=source)
        (finding,) = found(run.trace(), "slow-link")
        assert finding.ranks == (2,)
        assert "transfers rank 2 ↔ ranks 1, 3 take 3.00" in finding.summary
        assert "check the links of rank 2's GPU" in finding.advice

    @pytest.mark.parametrize(
        ("slow", "confidence"),
        [
            (((0, 1), (8, 9)), "low"),  # 0 only sends, and 9 only receives: they may be slow
            (((2, 3), (3, 4)), None),  # 3 is slow with both
            (((0, 1), (1, 2)), None),
        ],
    )
    def test_of_a_chain(self, slow: tuple[tuple[int, int], ...], confidence: str | None) -> None:
        run = Tiny(10)
        for micro in range(12):
            for source in range(9):
                took = 300.0 if (source, source + 1) in slow else 100.0
                at = micro * 4000.0 + source * 400
                run.collective(source, "send", at, took, size=4 * MB, peer=source + 1)
                run.collective(source + 1, "recv", at, took, size=4 * MB, peer=source)
        findings = found(run.trace(), "slow-link")
        assert [its.confidence for its in findings] == ([confidence] if confidence else [])

    @pytest.mark.parametrize(
        ("slow", "ranks"),
        [
            (((1, 2), (3, 4), (5, 6)), None),  # of all hosts alike
            (((1, 2), (3, 4)), (2, 3)),  # all that host b sends and receives
        ],
    )
    def test_of_a_chain_of_hosts(
        self, slow: tuple[tuple[int, int], ...], ranks: tuple[int, ...] | None
    ) -> None:
        """Two ranks each: of its three ways between hosts two are slow, so that slow is usual."""
        run = Tiny(8, hosts=("a", "b", "c", "d"))
        for micro in range(12):
            for source in range(7):
                took = 300.0 if (source, source + 1) in slow else 100.0
                at = micro * 4000.0 + source * 400
                run.collective(source, "send", at, took, size=4 * MB, peer=source + 1)
                run.collective(source + 1, "recv", at, took, size=4 * MB, peer=source)
        findings = found(run.trace(), "slow-link")
        assert [its.ranks for its in findings] == ([ranks] if ranks else [])
        if ranks:
            assert "from and to host b take 3.00 times as long" in findings[0].summary

    def test_one_of_two_ways_between_hosts_is_held_against_the_other(self) -> None:
        """Two pipelines of two hosts: the link of ranks 2 and 4 takes ten times as long."""
        run = Tiny(8, hosts=("a", "b"))
        for micro, source in product(range(12), range(6)):
            took = 4000.0 if source == 2 else 400.0 if source == 3 else 100.0
            at = micro * 8000.0 + source * 400
            run.collective(source, "send", at, took, size=4 * MB, peer=source + 2)
            run.collective(source + 2, "recv", at, took, size=4 * MB, peer=source)
        (finding,) = found(run.trace(), "slow-link")
        assert finding.ranks == (2, 4)
        assert "take 10 times as long" in finding.summary

    def test_many_slow_ones_are_no_links(self) -> None:
        assert not found(
            self.pairs(dict.fromkeys(((0, 1), (1, 2), (2, 3), (3, 0)), 300.0)), "slow-link"
        )

    def test_a_rank_that_is_slow_with_everybody_is_no_link(self) -> None:
        slow = {(1, to): 300.0 for to in (0, 2, 3)} | {(to, 1): 300.0 for to in (0, 2, 3)}
        assert not found(self.pairs(slow), "slow-link")

    def test_between_machines_everything_is_slower(self) -> None:
        far = {(a, b): 300.0 for a in range(4) for b in range(4) if (a < 2) != (b < 2)}
        assert not found(self.pairs(far, hosts=("a", "b")), "slow-link")

    def test_two_ranks_have_nobody_to_compare_with(self) -> None:
        trace = self.pairs({(0, 1): 300.0}, ranks=2)
        reason = skipped(trace, "slow-link")
        assert reason == "needs 3 pairs of ranks with 10 transfers or more, has 2"


class TestWrongAlgorithm:
    def pinned(self, took: float, size: int, ranks: int = 8, **environment: str) -> Measures:
        manifest = {**one_machine(ranks), "environment": environment}
        return all_reduces([took] * 20, sizes=size, ranks=ranks, manifest=manifest).trace()

    @pytest.mark.parametrize(
        ("environment", "took", "size"),
        [
            ({"NCCL_PROTO": "LL"}, 2400, 256 * MB),
            ({"NCCL_PROTO": "^Simple,LL128"}, 2400, 256 * MB),
            ({"NCCL_PROTO": "simple"}, 60, 8_000),
        ],
    )
    def test_a_protocol_for_other_sizes(
        self, environment: dict[str, str], took: float, size: int
    ) -> None:
        (finding,) = found(self.pinned(took * 10, size, **environment), "wrong-algorithm")
        assert f"NCCL_PROTO={environment['NCCL_PROTO']} keeps NCCL" in finding.summary
        assert "unset NCCL_PROTO " in finding.advice

    @pytest.mark.parametrize(
        "environment",
        [{}, {"NCCL_DEBUG": "INFO"}, {"NCCL_PROTO": "LL,Simple"}, {"NCCL_ALGO": "Ring,Tree"}],
    )
    def test_free_to_choose(self, environment: dict[str, str]) -> None:
        trace = self.pinned(2400, 256 * MB, **environment)
        diagnosis = diagnose(trace, select=["wrong-algorithm"])
        assert not diagnosis.findings
        assert not diagnosis.skipped

    def test_what_is_not_modelled_is_not_judged(self) -> None:
        reason = skipped(self.pinned(2400, 256 * MB, NCCL_ALGO="NVLS"), "wrong-algorithm")
        assert reason == "needs an algorithm that is modelled: NCCL_ALGO=NVLS leaves none"

    def test_without_the_environment_nothing_is_known(self) -> None:
        trace = all_reduces([100.0] * 20).trace()
        assert skipped(trace, "wrong-algorithm") == "needs the recorded environment"


class TestFullPrecisionPayload:
    BFLOAT = "ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_64x3_nn"

    def training(self, *kernels: str, gap: float = 1000, dtype: str = "float32") -> Measures:
        run = Tiny(2)
        for i in range(12):
            for rank in range(2):
                for k, kernel in enumerate(kernels):
                    run.kernel(rank, i * 3000 + 400 * k, 400, name=kernel)
                run.collective(rank, "all_reduce", i * 3000 + gap, 800, size=64 * MB, dtype=dtype)
        return run.trace()

    @pytest.mark.parametrize(
        ("kernels", "fires"),
        [
            ((BFLOAT,), True),
            (("void flash_fwd_kernel<Flash_fwd_kernel_traits<128, cutlass::bfloat16_t>>",), True),
            ((BFLOAT, "ampere_sgemm_128x64_tn", "volta_sgemm_64x64_nn"), False),
            (("sm80_xmma_gemm_f32f32_tf32f32_f32_tn_n",), False),
        ],
    )
    def test_names_tell_in_which_precision_is_computed(
        self, kernels: tuple[str, ...], fires: bool
    ) -> None:
        trace = self.training(*kernels, gap=1500)
        assert bool(found(trace, "full-precision-payload")) == fires

    @pytest.mark.parametrize(
        ("kernels", "confidence"),
        [
            (("ampere_sgemm_128x64_tn",), "medium"),
            (("vectorized_elementwise_kernel",), "low"),
            (("ampere_dgemm_128x64_tn",), None),
        ],
    )
    def test_float64_is_for_models_that_compute_in_it(
        self, kernels: tuple[str, ...], confidence: str | None
    ) -> None:
        trace = self.training(*kernels, gap=1500, dtype="float64")
        findings = found(trace, "full-precision-payload")
        assert [one.confidence for one in findings] == ([confidence] if confidence else [])

    @pytest.mark.parametrize(
        "kernels", [("vectorized_elementwise_kernel",), ("void fbgemm_gpu::to<c10::Half>",)]
    )
    def test_what_multiplies_no_matrices_tells_nothing(self, kernels: tuple[str, ...]) -> None:
        reason = skipped(self.training(*kernels), "full-precision-payload")
        assert "kernels whose names show" in (reason or "")

    @pytest.mark.parametrize(
        ("ops", "told"),
        [
            (("all_reduce",), "compression hook (DDP) or reduce_dtype"),
            (("all_gather",), "convert what is sent"),
            (("all_gather", "all_reduce"), "compression hook (DDP) or reduce_dtype"),
            (("all_gather", "reduce_scatter"), "param_dtype and reduce_dtype"),
        ],
    )
    def test_advice_is_for_what_is_sent(self, ops: tuple[str, ...], told: str) -> None:
        run = Tiny(2)
        for i, (at, op) in product(range(6), enumerate(ops)):
            for rank in range(2):
                run.kernel(rank, i * 3000, 900, name=self.BFLOAT)
                run.collective(rank, op, i * 3000 + 1000 + 900 * at, 800, size=64 * MB)
        (finding,) = found(run.trace(), "full-precision-payload")
        assert told in finding.advice

    @pytest.mark.parametrize(("op", "explains"), [("all_reduce", True), ("all_gather", False)])
    def test_what_a_program_gathers_need_not_be_waited_for(self, op: str, explains: bool) -> None:
        """Only gradients come when they must, and are exposed for their bytes."""
        run = Tiny(2)
        for rank, i in product(range(2), range(6)):
            launch_ns = BASE_NS + 3_000_000 * i
            run.kernel(rank, i * 3000, 900, name=self.BFLOAT, launch_ns=launch_ns - 100_000)
            launched = {"launch_ns": launch_ns - 50_000}
            run.collective(rank, op, i * 3000 + 1000, 800, size=64 * MB, **launched)
            run.kernel(rank, i * 3000 + 1800, 900, name=self.BFLOAT, **launched)
        rules = ["full-precision-payload", "exposed-communication"]
        by_rule = {its.rule: its for its in diagnose(run.trace(), select=rules).findings}
        its = by_rule["exposed-communication"].explained_by
        assert its == ("full-precision-payload" if explains else None)

    @pytest.mark.parametrize(("large_us", "saved_us"), [(142, 22.5), (125, (125 - 7.8) / 2)])
    def test_half_the_bytes_take_no_less_latency(self, large_us: float, saved_us: float) -> None:
        """0.8 MB more take 18 µs more, 1 MB less 22.5 µs less.

        Where all take as long it is half of what NCCL's least latency for two ranks leaves.
        """
        run = Tiny(2)
        for i, rank in product(range(12), range(2)):
            run.kernel(rank, i * 500, 99, name=self.BFLOAT)
            run.collective(rank, "all_reduce", i * 500 + 100, 124 + i % 2, size=1_200_000)
            for at in range(2):
                run.kernel(rank, i * 500 + 226, 9, name=self.BFLOAT)
                start = i * 500 + 236 + 130 * at
                run.collective(rank, "all_reduce", start, large_us, size=2 * MB)
        (finding,) = found(run.trace(), "full-precision-payload")
        small_us = 1.2 * saved_us / 2 if large_us == 142 else (124 - 7.8) / 2
        assert finding.cost_ns == pytest.approx(12e3 * (2 * saved_us + small_us), rel=0.05)

    def test_buffers_that_are_sent_beside_gradients_need_their_precision(self) -> None:
        def trained(buffers: int, dtype: str) -> Measures:
            run = Tiny(2)
            for i, rank in product(range(12), range(2)):
                run.kernel(rank, i * 3000, 900, name=self.BFLOAT)
                run.collective(rank, "broadcast", i * 3000 + 1000, 900, size=buffers, root=0)
                at = {"size": 8 * MB, "dtype": dtype}
                run.collective(rank, "all_reduce", i * 3000 + 2000, 900, **at)
            return run.trace()

        assert not found(trained(4 * MB, "bfloat16"), "full-precision-payload")
        (of_gradients,) = found(trained(4 * MB, "float32"), "full-precision-payload")
        assert "12 operations carry 96 MB" in of_gradients.summary
        (of_both,) = found(trained(8 * MB, "float32"), "full-precision-payload")
        assert "24 operations" in of_both.summary

    def test_half_precision_payload_is_what_it_asks_for(self) -> None:
        trace = self.training(self.BFLOAT, dtype="bfloat16")
        assert not found(trace, "full-precision-payload")

    def test_what_compute_hides_costs_nothing(self) -> None:
        trace = self.training(self.BFLOAT, self.BFLOAT, self.BFLOAT, gap=200)
        assert not found(trace, "full-precision-payload")


@pytest.mark.parametrize("rule", ["latency-bound", "degraded-link", "slow-link"])
def test_one_rank_cannot_tell_waiting_from_transfer(rule: str) -> None:
    run = Tiny(1)
    for i in range(30):
        run.collective(0, "all_reduce", i * 100, 50, size=8_000)
    assert "needs several ranks" in (skipped(run.trace(), rule) or "")


@pytest.mark.parametrize("rule", sorted(set(RULES) & {"latency-bound", "degraded-link"}))
def test_rows_of_a_table_may_be_numbered_as_they_like(rule: str) -> None:
    trace = RULES[rule].bad()
    shuffled = {
        name: getattr(trace, name).set_axis(range(7, 7 + len(getattr(trace, name))))
        for name in (table.name for table in TABLES)
    }
    assert found(replace(trace, **shuffled), rule) == found(trace, rule)
