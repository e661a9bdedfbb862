"""What an operation should cost."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commtrace.expect import (
    LINKS,
    fit,
    link_between,
    link_name,
    links_like,
    nccl_latency_ns,
    pcie,
)

SIZES = np.array([1e3, 1e4, 1e5, 1e6, 1e7, 1e8])
V100, H100 = "Tesla V100-SXM2-32GB", "NVIDIA H100 80GB HBM3"


@given(
    latency_us=st.floats(5, 500),
    gb_s=st.floats(1, 500),
    seed=st.integers(0, 10_000),
    late=st.floats(1, 20),
)
def test_a_fit_finds_latency_and_bandwidth_again(
    latency_us: float, gb_s: float, seed: int, late: float
) -> None:
    random = np.random.default_rng(seed)
    size = np.repeat(SIZES, 21)
    time = (latency_us * 1e3 + size / gb_s) * random.normal(1, 0.03, size.size)
    time[random.random(size.size) < 0.1] *= late  # one in ten was disturbed
    model = fit(size, time)
    assert model is not None
    assert model.latency_ns == pytest.approx(latency_us * 1e3, rel=0.15)
    assert model.gb_s == pytest.approx(gb_s, rel=0.15)
    assert model.points == size.size
    assert model.residual < 0.1


def test_a_residual_tells_that_the_model_does_not_fit() -> None:
    size = np.repeat(SIZES, 10)
    time = np.where(np.arange(size.size) % 2, 1.0, 3.0) * (1e4 + size / 10)
    model = fit(size, time)
    assert model is not None
    assert model.residual > 0.3


@pytest.mark.parametrize(
    "sizes", [[], [1000] * 50, [1000, 2000] * 20, [1000, 2000, 3000] * 20, [0, 0, 0]]
)
def test_without_different_sizes_there_is_no_fit(sizes: list[int]) -> None:
    assert fit(sizes, [1000.0] * len(sizes)) is None


def test_a_time_that_falls_with_the_size_is_no_model() -> None:
    assert fit([1e3, 1e5, 1e7], [3e6, 2e6, 1e3]) is None


def test_a_latency_is_never_negative() -> None:
    model = fit([1e4, 1e5, 1e6, 1e7], [5e2, 9e3, 1e5, 1.2e6])
    assert model is not None
    assert model.latency_ns == 0


@pytest.mark.parametrize(
    ("code", "gpu", "name", "peak"),
    [
        ("NV4", V100, "NVLink2 x4", 100),
        ("NV12", "NVIDIA A100-SXM4-80GB", "NVLink3 x12", 300),
        ("NV18", H100, "NVLink4 x18", 450),
        ("NV18", "NVIDIA B200", "NVLink5 x18", 900),
        ("SYS", "", "across CPU sockets", 63),
        ("PIX", H100, "PCIe 5 x16", 63),
        ("NODE", V100, "PCIe 3 x16", 15.8),
    ],
)
def test_a_code_and_a_gpu_make_a_link(code: str, gpu: str, name: str, peak: float) -> None:
    link = link_between(code, gpu)
    assert link is not None
    assert (link.name, link.peak_gb_s) == (name, peak)
    assert link.usual_gb_s < link.peak_gb_s


@pytest.mark.parametrize(
    ("code", "gpu"), [("NV4", "a GPU of tomorrow"), ("X", V100), ("PIX", ""), ("NVx", V100)]
)
def test_where_nothing_tells_a_bandwidth_there_is_no_link(code: str, gpu: str) -> None:
    assert link_between(code, gpu) is None


def test_links_in_words() -> None:
    assert link_name("NV18", H100) == "NV18: NVLink4 x18"
    assert link_name("NV18", "unknown") == "NV18: 18 NVLinks"
    assert link_name("PXB", H100) == "PXB: PCIe, several switches"
    assert link_name("???") == "???"


def test_the_host_is_behind_the_pcie_of_the_gpu() -> None:
    assert pcie("NVIDIA A100-PCIE-40GB") is LINKS["PCIe 4 x16"]
    assert pcie("NVIDIA A10") is LINKS["PCIe 4 x16"]
    assert pcie("") is None


def test_what_a_bandwidth_is_like() -> None:
    assert [link.name for link in links_like(93)] == ["NVLink2 x4"]
    assert [link.name for link in links_like(7.5)] == ["across CPU sockets"]
    assert {link.name for link in links_like(48)} == {"NVLink2 x2", "PCIe 5 x16"}
    assert links_like(3000) == []


def test_latency_by_nccls_constants() -> None:
    assert nccl_latency_ns("all_reduce", 8) == pytest.approx(15_000)
    assert nccl_latency_ns("all_gather", 8, protocol="Simple") == pytest.approx(32_200)
    assert nccl_latency_ns("all_reduce", 8, algorithm="Tree") == pytest.approx(15_200)
    two = nccl_latency_ns("all_reduce", 16, nodes=2)
    assert two == pytest.approx(1e3 * (6.6 + 2 * (14 * 0.6 + 2.7)))
    many = {a: nccl_latency_ns("all_reduce", 256, nodes=32, algorithm=a) for a in ("Ring", "Tree")}
    assert many["Tree"] < many["Ring"] / 3
