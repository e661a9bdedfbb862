"""The rules about copies: between GPUs, and from and to the host."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from commtrace import reader
from commtrace.diagnosis import Finding
from commtrace.measures import Measures
from commtrace.rules import diagnose
from commtrace.synthetic import BASE_NS, Tiny
from tests.edited import edited

MB40 = 40_000_000
FAST_US = 430.0  # 93 GB/s

Way = tuple[int, int, float, float]  # source, destination, start, duration


def peers(*ways: Way, count: int = 10, size: int = MB40, **manifest: Any) -> Measures:
    """Each way ``count`` times, every 20 ms."""
    run = Tiny(manifest=manifest or None)
    for i in range(count):
        for source, destination, start, took in ways:
            run.copy(
                0,
                i * 20_000 + start,
                took,
                kind="PtoP",
                size=size,
                source=f"cuda:{source}",
                destination=f"cuda:{destination}",
                stream=20 + destination,
            )
    return run.trace()


def found(trace: Measures, rule: str) -> tuple[Finding, ...]:
    return diagnose(trace, select=[rule]).findings


def uneven(trace: Measures) -> tuple[Finding, ...]:
    return found(trace, "uneven-p2p-bandwidth")


def detours(trace: Measures) -> tuple[Finding, ...]:
    return found(trace, "detour-beats-direct")


def numbers(finding: Finding) -> dict[str, float]:
    return {one.name: one.value for one in finding.evidence}


def topology(**codes: str) -> dict[str, Any]:
    """``GPU0_GPU1="NV4"``, both ways; the rest is unknown."""
    ends = {tuple(pair.split("_")): code for pair, code in codes.items()}
    names = sorted({end for pair in ends for end in pair})
    links = [[ends.get((a, b), ends.get((b, a))) for b in names] for a in names]
    return {"names": names, "links": links}


class TestTheP2PPuzzle:
    @pytest.fixture
    def trace(self, recorded: Path) -> Measures:
        return reader.read([recorded / "p2p_copies" / "hypercube-reconstructed"])

    def test_why_the_copies_take_so_different_times(self, trace: Measures) -> None:
        (finding,) = uneven(trace)
        assert finding.summary == (
            "cuda:0 → cuda:2 copies at 7.5 GB/s even alone (SYS: across CPU sockets), "
            "cuda:0 → cuda:4 at 47 GB/s (NV2: NVLink2 x2), "
            "cuda:0 → cuda:1 at 93 GB/s (NV4: NVLink2 x4)"
        )
        assert finding.confidence == "high"
        assert [reason.partition(":")[0] for reason in finding.ruled_out] == [
            "size",
            "contention",
            "contention",
        ]
        gain = numbers(finding)
        assert gain["potential saving, cuda:0 → cuda:2"] == pytest.approx(97.9, abs=0.1)
        assert gain["potential saving, cuda:0 → cuda:4"] == pytest.approx(8.7, abs=0.1)

    def test_what_would_be_faster(self, trace: Measures) -> None:
        (finding,) = detours(trace)
        assert "cuda:0 → cuda:2 copies at 7.5 GB/s" in finding.summary
        assert (
            "over pinned host memory they would reach 12 GB/s (as PCIe 3 x16 usually does)"
            in finding.summary
        )
        assert finding.confidence == "medium"
        assert "cuda:1 or cuda:4 has NVLinks to cuda:2" in finding.advice
        assert "4.2 to 6.3 times the direct copy" in finding.advice

    def test_of_a_gpu_that_nobody_names_pcie_3_is_an_assumption(self, trace: Measures) -> None:
        (finding,) = detours(edited(trace, "ranks", gpu=None))
        assert (
            "over pinned host memory they would reach 12 GB/s (assuming PCIe 3" in finding.summary
        )
        assert finding.confidence == "low"

    def test_both_are_told_the_fault_first(self, trace: Measures) -> None:
        findings = diagnose(trace).findings
        assert [(one.rule, one.explained_by) for one in findings] == [
            ("uneven-p2p-bandwidth", None),
            ("detour-beats-direct", None),
        ]


class TestUnevenP2PBandwidth:
    @pytest.mark.parametrize(("times", "fires"), [(1.24, False), (1.27, True)])
    def test_classes_are_a_quarter_apart(self, times: float, fires: bool) -> None:
        trace = peers((0, 1, 0, FAST_US), (0, 2, 5000, FAST_US * times))
        assert bool(uneven(trace)) == fires

    def test_two_that_share_the_way_are_not_slow(self) -> None:
        shared = ((0, 2, 5000, 2 * FAST_US), (0, 3, 5000, 2 * FAST_US))
        assert not uneven(peers((0, 1, 0, FAST_US), *shared))

    def test_two_that_share_the_way_and_are_slow_together_are_slow(self) -> None:
        shared = ((0, 2, 5000, 8 * FAST_US), (0, 3, 5000, 8 * FAST_US))
        (finding,) = uneven(peers((0, 1, 0, FAST_US), *shared))
        assert "with all that ran beside it" in " ".join(finding.ruled_out)

    def test_a_pair_that_is_slow_only_beside_others_is_not(self) -> None:
        trace = peers(
            (0, 1, 0, FAST_US), (0, 2, 5000, FAST_US), (0, 2, 8000, 12e3), (0, 3, 8000, 12e3)
        )
        (finding,) = uneven(trace)
        assert [name for name in numbers(finding) if name.startswith("potential")] == [
            "potential saving, cuda:0 → cuda:3"
        ]

    def test_a_pair_that_is_not_steady_is_left_out(self) -> None:
        unsteady = [(0, 2, 5000 + 2000 * k, took) for k, took in enumerate((900, 1300, 1900))]
        assert not uneven(peers((0, 1, 0, FAST_US), *unsteady))

    def test_small_copies_tell_nothing(self) -> None:
        trace = peers((0, 1, 0, 20), (0, 2, 5000, 200), size=1_000_000)
        diagnosis = diagnose(trace, select=["uneven-p2p-bandwidth"])
        assert not diagnosis.findings
        assert (
            "needs 3 copies of 16 MB or more between two GPUs, has 0" in diagnosis.skipped.values()
        )

    def test_it_compares_pairs_of_different_sources(self) -> None:
        (finding,) = uneven(peers((0, 1, 0, FAST_US), (2, 3, 5000, 5300)))
        assert finding.summary.startswith("cuda:2 → cuda:3 copies at 7.55 GB/s")

    def test_without_a_topology_a_link_is_a_guess(self) -> None:
        (finding,) = uneven(peers((0, 1, 0, FAST_US), (0, 2, 5000, 5300)))
        assert "link not recorded; as fast as NVLink2 x4" in finding.summary
        assert "link not recorded; as fast as across CPU sockets" in finding.summary
        assert finding.confidence == "medium"

    def test_devices_are_counted_as_the_process_sees_them(self) -> None:
        trace = peers(
            (0, 1, 0, FAST_US),
            (0, 2, 5000, 5300),
            topology=topology(GPU3_GPU5="NV4", GPU3_GPU0="SYS", GPU0_GPU5="SYS"),
            environment={"CUDA_VISIBLE_DEVICES": "3,5,0"},
        )
        (finding,) = uneven(trace)
        assert (
            "cuda:0 → cuda:2 copies at 7.55 GB/s even alone (SYS: across CPU sockets)"
            in finding.summary
        )
        assert "(NV4: 4 NVLinks)" in finding.summary

    def test_identifiers_in_place_of_numbers_tell_no_link(self) -> None:
        trace = peers(
            (0, 1, 0, FAST_US),
            (0, 2, 5000, 5300),
            topology=topology(GPU0_GPU1="NV4", GPU0_GPU2="SYS"),
            environment={"CUDA_VISIBLE_DEVICES": "GPU-8932f937,GPU-1,GPU-2"},
        )
        (finding,) = uneven(trace)
        assert "SYS" not in finding.summary

    def test_a_copy_that_queues_behind_a_slow_one_moves_up_with_it(self) -> None:
        """Ten of 5.3 ms in a row, all launched at once, would be done in ten times 0.45 ms."""
        run = Tiny()
        for i in range(10):
            for gpu, at, took in ((1, 60_000 + 500 * i, FAST_US), (2, 5300 * i, 5300)):
                launch = BASE_NS + (1000 * at if gpu == 1 else 0)
                way = {"destination": f"cuda:{gpu}", "stream": 20 + gpu, "launch_ns": launch}
                run.copy(0, at, took, kind="PtoP", size=40_000_000, **way)
        (finding,) = uneven(run.trace())
        assert finding.cost_ns == pytest.approx(10 * (5300 - FAST_US) * 1000, rel=1e-6)

    def test_many_pairs_are_counted(self) -> None:
        fast = [(0, gpu, 1000 * gpu, FAST_US) for gpu in range(1, 5)]
        slow = [(0, gpu, 6000 * (gpu - 4), 5300) for gpu in (5, 6)]
        (finding,) = uneven(peers(*fast, *slow))
        assert "cuda:0 → cuda:5 and cuda:0 → cuda:6 copy at" in finding.summary
        assert "4 pairs at 93" in finding.summary


class TestDetourBeatsDirect:
    DIRECT = (0, 2, 10_000, 5300)

    def test_a_measured_relay(self) -> None:
        (finding,) = detours(peers((0, 1, 0, 450), (1, 2, 2000, 900), self.DIRECT))
        assert finding.confidence == "high"
        assert "over cuda:1 they would reach 44.4 GB/s (both hops measured here)" in finding.summary
        assert numbers(finding)["over cuda:1, one tensor at a time"] == pytest.approx(29.6, abs=0.1)
        assert finding.cost_ns == pytest.approx(10 * (5300 - 900) * 1000)

    def test_a_relay_that_is_always_taken_is_none(self) -> None:
        trace = peers((0, 1, 10_000, 5300), (1, 2, 10_000, 5300), self.DIRECT)
        assert "cuda:1" not in "".join(one.summary for one in detours(trace))

    def test_a_recorded_relay_counts_its_nvlinks_as_those_measured(self) -> None:
        links = topology(GPU0_GPU1="NV4", GPU1_GPU2="NV2", GPU0_GPU2="SYS")
        (finding,) = detours(peers((0, 1, 0, 450), self.DIRECT, topology=links))
        assert "over cuda:1 they would reach 44.4 GB/s (by the recorded links)" in finding.summary
        assert finding.confidence == "medium"

    def test_a_second_hop_that_is_known_to_be_slow_is_not_offered(self) -> None:
        links = topology(GPU0_GPU1="NV4", GPU1_GPU2="PHB", GPU0_GPU2="SYS")
        (finding,) = detours(peers((0, 1, 0, 450), self.DIRECT, topology=links))
        assert "pinned host memory" in finding.summary
        assert "NVLinks to" not in finding.advice

    def test_pinned_copies_in_the_trace_tell_what_staging_reaches(self) -> None:
        run = Tiny()
        for i in range(10):
            at = i * 20_000
            run.copy(0, at, 5300, kind="PtoP", size=MB40, destination="cuda:2")
            run.copy(0, at + 6000, 1600, kind="DtoH", size=MB40, memory="pinned")
            run.copy(
                0,
                at + 8000,
                2000,
                kind="HtoD",
                size=MB40,
                memory="pinned",
                source="host",
                destination="cuda:2",
            )
        (finding,) = detours(run.trace())
        assert (
            "over pinned host memory they would reach 20 GB/s (as pinned copies" in finding.summary
        )
        assert finding.confidence == "medium"

    def test_nobody_stages_what_is_fast(self) -> None:
        assert not detours(peers((0, 1, 0, FAST_US)))


class TestPageableCopy:
    def copies(
        self, *, took: float = 800, size: int = 4_000_000, pinned: str = "", **manifest: Any
    ) -> Measures:
        run = Tiny(manifest=manifest or None)
        for i in range(10):
            ends = {"source": "host", "destination": "cuda:0"}
            at = i * 3000
            run.copy(0, at, took, kind="HtoD", size=size, memory="pageable", **ends)
            if pinned == "HtoD":
                run.copy(0, at + 1000, 200, kind="HtoD", size=size, memory="pinned", **ends)
            if pinned == "DtoH":
                run.copy(0, at + 1000, 250, kind="DtoH", size=size, memory="pinned")
        return run.trace()

    @pytest.mark.parametrize(
        ("pinned", "manifest", "reference", "confidence"),
        [
            ("HtoD", {}, "where pinned HtoD copies here reach 20", "high"),
            ("DtoH", {}, "where pinned DtoH copies here reach 16", "medium"),
            ("", {"devices": [{"name": "NVIDIA A100-SXM4-80GB"}]}, "PCIe 4 x16 usually", "medium"),
            ("", {}, "PCIe 3 x16 (assumed) usually reach 12", "low"),
        ],
    )
    def test_what_pinned_copies_would_reach(
        self, pinned: str, manifest: dict[str, Any], reference: str, confidence: str
    ) -> None:
        (finding,) = found(self.copies(pinned=pinned, **manifest), "pageable-copy")
        assert reference in finding.summary
        assert finding.confidence == confidence

    def test_other_ranks_pinned_copies_are_known_better_than_any_link(self) -> None:
        run = Tiny(2)
        for i in range(10):
            for rank, took, memory in ((0, 800, "pageable"), (1, 100, "pinned")):
                way = {"kind": "HtoD", "source": "host", "destination": "cuda:0"}
                run.copy(rank, i * 3000, took, size=4_000_000, memory=memory, **way)
        (finding,) = found(run.trace(), "pageable-copy")
        assert "where pinned HtoD copies of other ranks reach 40 GB/s" in finding.summary
        assert finding.confidence == "medium"
        assert finding.cost_ns == pytest.approx(10 * 700e3)

    @pytest.mark.parametrize(
        ("gpu", "link", "gb_s"),
        [
            ("NVIDIA H100 80GB HBM3", "PCIe 5 x16 usually", 52),
            ("NVIDIA L40S", "PCIe 4 x16 usually", 25),
            ("AMD Instinct MI300X", "PCIe 5 x16 usually", 52),
            ("Tesla T4", "PCIe 3 x16 usually", 12),
            ("NVIDIA PG509-210", "PCIe 3 x16 (assumed) usually", 12),
        ],
    )
    def test_a_trace_names_the_gpu_and_so_its_link(self, gpu: str, link: str, gb_s: int) -> None:
        (finding,) = found(edited(self.copies(), "ranks", gpu=gpu), "pageable-copy")
        assert f"where pinned copies over {link} reach {gb_s} GB/s" in finding.summary

    def test_small_copies_do_not_matter(self) -> None:
        assert not found(self.copies(size=900_000), "pageable-copy")

    def test_as_fast_as_pinned_is_no_fault(self) -> None:
        assert not found(self.copies(took=210, pinned="HtoD"), "pageable-copy")

    def test_without_the_kind_of_memory_it_is_skipped(self) -> None:
        run = Tiny()
        run.copy(0, 0, 800, kind="DtoH", size=4_000_000)
        diagnosis = diagnose(run.trace(), select=["pageable-copy"])
        assert diagnosis.skipped == {
            "pageable-copy": "needs copies between host and GPU whose kind of memory is known"
        }

    def test_both_ways_are_one_finding_with_what_both_save(self) -> None:
        """20 copies of 800 µs that would take 333."""
        run = Tiny()
        for i in range(10):
            for at, kind, memory, took in (
                (0, "HtoD", "pageable", 800),
                (1000, "DtoH", "pageable", 800),
                (2000, "HtoD", "pinned", 333),
            ):
                its = {"kind": kind, "memory": memory}
                run.copy(0, i * 3000 + at, took, size=4_000_000, **its)
        (its,) = found(run.trace(), "pageable-copy")
        assert its.cost_ns == pytest.approx(9_340_000, rel=0.01)
        assert "10 HtoD copies use pageable memory" in its.summary
        assert "10 DtoH copies use pageable memory" in its.summary

    def test_a_real_trace(self, real_traces: Path) -> None:
        trace = reader.read([real_traces / "gpupuzzlers_streams_copies.json.gz"])
        (its,) = found(trace, "pageable-copy")
        assert its.summary.startswith("200 HtoD copies use pageable memory: 5.12 GB/s")
        assert "100 DtoH copies use pageable memory: 5.32 GB/s" in its.summary
        assert numbers(its)["bandwidth of pinned DtoH copies here"] == pytest.approx(12.7, 0.01)


@pytest.mark.parametrize(("stream", "saved_ms"), [(30, 5), (7, 4)])
def test_hosts_do_not_wait_for_what_is_pinned(stream: int, saved_ms: float) -> None:
    """25 MB in 5 ms, in 1 if pinned: beside compute, or before it on its stream."""
    run = Tiny(2, manifest={"devices": [{"name": "NVIDIA A100-SXM4-80GB"}]})
    way = {"kind": "HtoD", "source": "host", "destination": "cuda:0", "memory": "pageable"}
    for step in range(10):
        for rank in range(2):
            at = 15_000 * step
            run.step(rank, step, at, 15_000)
            launched = {"launch_ns": BASE_NS + 1000 * at}
            run.blocking_call(rank, "cudaMemcpyAsync", at, 4_998)
            run.copy(rank, at + 5, 5_000, size=25_000_000, stream=stream, **way, **launched)
            run.kernel(rank, at + 5_025, 9_000, launch_ns=BASE_NS + 1000 * (at + 5_020))
            run.collective(
                *(rank, "all_reduce", at + 14_030, 950),
                size=1 << 20,
                launch_ns=BASE_NS + 1000 * (at + 5_025),
            )
            run.blocking_call(rank, "cudaDeviceSynchronize", at + 5_040, 9_945)
    (its,) = found(run.trace(), "pageable-copy")
    assert its.cost_ns == pytest.approx(10 * saved_ms * 1e6, rel=0.05)


@pytest.mark.parametrize("size", [1 << 24, 1 << 10])
def test_stalls_between_large_pageable_copies_are_these_copies(size: int) -> None:
    """The host fills what the GPU copies: 2 ms for each that takes 4; small ones are no reason."""
    run = Tiny()
    memory = {"kind": "HtoD", "size": size, "source": "host", "destination": "cuda:0"}
    for i in range(40):
        start = 6000 * i
        launched = {"launch_ns": BASE_NS + 1000 * start}
        run.copy(0, start + 5, 3990, memory="pageable", **memory, **launched)
    pinned = 6000 * 40
    run.copy(0, pinned, 500, memory="pinned", **memory, launch_ns=BASE_NS + 1000 * pinned)
    stalls = [its for its in diagnose(run.trace()).findings if its.rule == "launch-gap"]
    assert [its.explained_by == "pageable-copy" for its in stalls] == [size > 1 << 20]


def test_pageable_copies_of_ranks_that_communicate_on_cpus_are_estimated(recorded: Path) -> None:
    run = reader.read([recorded / "host_device_copies" / "nccl-1"])
    (finding,) = diagnose(run, select=["pageable-copy"]).findings
    assert finding.cost_ns == pytest.approx(30.9e6, rel=0.01)
    assert any("estimated saving" in one.name for one in finding.evidence)


def test_copies_of_a_rank_that_communicates_with_nobody_are_estimated() -> None:
    run, way = Tiny(3), {"source": "host", "destination": "cuda:0", "memory": "pageable"}
    run.groups |= {"p": (0, 1)}
    for step in range(8):
        at = step * 10_000
        for rank in range(3):
            run.step(rank, step, at, 10_000)
            run.kernel(rank, at + 6_100, 1_800)
        for rank in (0, 1):
            run.collective(rank, "all_reduce", at + 8_015, 900, size=1 << 20, group="p")
            run.blocking_call(rank, "cudaDeviceSynchronize", at + 8_100, 830)
        for copy in range(3):
            run.copy(2, at + 5 + copy * 2_000, 1_900, kind="HtoD", size=8_000_000, **way)
    (finding,) = diagnose(run.trace(), select=["pageable-copy"]).findings
    assert finding.ranks == (2,)
    assert finding.cost_ns > 0
