from __future__ import annotations

from commtrace.record import manifest
from commtrace.record.job import Job

JOB = Job("mine", "mine.py", {"elements": 8}, 5, 2, "gloo", 2, "out")

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


def test_topology_as_a_matrix() -> None:
    assert manifest._topology(TOPOLOGY) == {
        "names": ["GPU0", "GPU1", "NIC0"],
        "links": [["X", "NV18", "PIX"], ["NV18", "X", "SYS"], ["PIX", "SYS", "X"]],
    }
    assert manifest._topology(None) is None
    assert manifest._topology("No devices were found\n\n") is None


def test_environment_holds_what_concerns_communication_and_no_secret() -> None:
    environment = {
        "NCCL_DEBUG": "INFO",
        "TORCH_NCCL_BLOCKING_WAIT": "1",
        "CUDA_VISIBLE_DEVICES": "0,1",
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
        "TORCH_HUB_TOKEN": "secret",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "HOME": "/home/somebody",
        "MY_NCCL_X": "1",
    }
    kept = manifest.describe(JOB, "Why?", environment)["environment"]
    assert set(kept) == {
        "NCCL_DEBUG",
        "TORCH_NCCL_BLOCKING_WAIT",
        "CUDA_VISIBLE_DEVICES",
        "GLOO_SOCKET_IFNAME",
        "OMP_NUM_THREADS",
    }
