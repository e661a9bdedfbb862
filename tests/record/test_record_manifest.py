from __future__ import annotations

from commtrace.record import manifest

TOPOLOGY = """\
\t\x1b[4mGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m
GPU0\t X \tNV18\tPIX\t0-47\t0\t\tN/A
GPU1\tNV18\t X \tSYS\t48-95\t1\t\tN/A
NIC0\tPIX\tSYS\t X \t\t\t\t

Legend:

  X    = Self
  NV#  = Connection traversing a bonded set of # NVLinks

NIC Legend:

  NIC0: mlx5_0
"""


# Eight V100: two quads of NVLinks, NICs named by their devices.
DGX_1 = """\
\tGPU0\tGPU1\tGPU2\tGPU3\tGPU4\tGPU5\tGPU6\tGPU7\tmlx5_0\tmlx5_2\tmlx5_1\tmlx5_3\tCPU Affinity
GPU0\t X \tNV1\tNV1\tNV2\tNV2\tSYS\tSYS\tSYS\tPIX\tSYS\tPHB\tSYS\t0-19,40-59
GPU1\tNV1\t X \tNV2\tNV1\tSYS\tNV2\tSYS\tSYS\tPIX\tSYS\tPHB\tSYS\t0-19,40-59
GPU2\tNV1\tNV2\t X \tNV2\tSYS\tSYS\tNV1\tSYS\tPHB\tSYS\tPIX\tSYS\t0-19,40-59
GPU3\tNV2\tNV1\tNV2\t X \tSYS\tSYS\tSYS\tNV1\tPHB\tSYS\tPIX\tSYS\t0-19,40-59
GPU4\tNV2\tSYS\tSYS\tSYS\t X \tNV1\tNV1\tNV2\tSYS\tPIX\tSYS\tPHB\t20-39,60-79
GPU5\tSYS\tNV2\tSYS\tSYS\tNV1\t X \tNV2\tNV1\tSYS\tPIX\tSYS\tPHB\t20-39,60-79
GPU6\tSYS\tSYS\tNV1\tSYS\tNV1\tNV2\t X \tNV2\tSYS\tPHB\tSYS\tPIX\t20-39,60-79
GPU7\tSYS\tSYS\tSYS\tNV1\tNV2\tNV1\tNV2\t X \tSYS\tPHB\tSYS\tPIX\t20-39,60-79
mlx5_0\tPIX\tPIX\tPHB\tPHB\tSYS\tSYS\tSYS\tSYS\t X \tSYS\tPHB\tSYS\t
mlx5_2\tSYS\tSYS\tSYS\tSYS\tPIX\tPIX\tPHB\tPHB\tSYS\t X \tSYS\tPHB\t
mlx5_1\tPHB\tPHB\tPIX\tPIX\tSYS\tSYS\tSYS\tSYS\tPHB\tSYS\t X \tSYS\t
mlx5_3\tSYS\tSYS\tSYS\tSYS\tPHB\tPHB\tPIX\tPIX\tSYS\tPHB\tSYS\t X \t

Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes
"""

# Two of eight A100 behind NVSwitch, with a bonded NIC.
DGX_A100 = """\
\tGPU0\tGPU1\tmlx5_0\tmlx5_bond_1\tCPU Affinity\tNUMA Affinity
GPU0\t X \tNV12\tPXB\tSYS\t48-63,176-191\t3
GPU1\tNV12\t X \tPXB\tSYS\t48-63,176-191\t3
mlx5_0\tPXB\tPXB\t X \tSYS\t\t
mlx5_bond_1\tSYS\tSYS\tSYS\t X \t\t
"""

# A box without NVLink.
PCIE = """\
\tGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID
GPU0\t X \tPIX\tPXB\tSYS\tNODE\t0-31\t0\t\tN/A
GPU1\tPIX\t X \tPHB\tSYS\tNODE\t0-31\t0\t\tN/A
GPU2\tPXB\tPHB\t X \tSYS\tPHB\t0-31\t0\t\tN/A
GPU3\tSYS\tSYS\tSYS\t X \tSYS\t32-63\t1\t\tN/A
NIC0\tNODE\tNODE\tPHB\tSYS\t X \t\t\t\t

NIC Legend:

  NIC0: mlx5_0
"""


def links(text: str) -> dict[str, dict[str, str]]:
    topology = manifest._topology(text)
    assert topology is not None
    names = topology["names"]
    return {
        name: dict(zip(names, row, strict=True))
        for name, row in zip(names, topology["links"], strict=True)
    }


def test_topologies_of_machines() -> None:
    dgx_1 = links(DGX_1)
    assert list(dgx_1) == [*(f"GPU{n}" for n in range(8)), "mlx5_0", "mlx5_2", "mlx5_1", "mlx5_3"]
    assert [dgx_1["GPU0"][name] for name in ("GPU1", "GPU3", "GPU5", "mlx5_1")] == [
        "NV1",
        "NV2",
        "SYS",
        "PHB",
    ]
    dgx_a100 = links(DGX_A100)
    assert dgx_a100["GPU1"] == {"GPU0": "NV12", "GPU1": "X", "mlx5_0": "PXB", "mlx5_bond_1": "SYS"}
    pcie = links(PCIE)
    assert list(pcie) == ["GPU0", "GPU1", "GPU2", "GPU3", "NIC0"]
    assert list(pcie["GPU2"].values()) == ["PXB", "PHB", "X", "SYS", "PHB"]
    for machine in (dgx_1, dgx_a100, pcie):
        for one, row in machine.items():
            assert row[one] == "X"
            assert all(machine[other][one] == link for other, link in row.items())


def test_topology_as_a_matrix() -> None:
    assert manifest._topology(TOPOLOGY) == {
        "names": ["GPU0", "GPU1", "NIC0"],
        "links": [["X", "NV18", "PIX"], ["NV18", "X", "SYS"], ["PIX", "SYS", "X"]],
    }
    assert manifest._topology(None) is None
    assert manifest._topology("No devices were found\n\n") is None
    assert manifest._topology("\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tSYS\t0-3\n") is None
