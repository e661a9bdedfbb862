"""What a program communicates, and whether its next operator uses the result."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import commtrace
from commtrace.metrics.run.used_at_once import used_at_once

PROGRAM = """
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
torch.set_num_threads(1)
weights, batch = torch.ones(256, 256), torch.ones(64, 256)
for _ in range(9):
    gradient, statistics = torch.ones(100_000), torch.ones(50_000)
    dist.all_reduce(gradient)
    gradient.div_(2)
    dist.broadcast(statistics, 0)
    for _ in range(4):
        batch = (batch @ weights).tanh()
    statistics.add_(1)
    __import__("commtrace").step()
dist.destroy_process_group()
"""


@pytest.mark.usefixtures("preloaded")
def test_the_next_operators_inputs_tell_whether_a_result_is_used_at_once(
    five_steps: Callable[[str, str], Path],
) -> None:
    folder = five_steps("train.py", PROGRAM)
    run = commtrace.load(folder).measures
    assert used_at_once(run, "all_reduce") > 0.9
    assert used_at_once(run, "broadcast") < 0.1
    for file in folder.glob("*rank0*"):
        file.unlink()
    assert used_at_once(commtrace.load(folder).measures, "all_reduce") > 0.9  # by rank 1's
    assert not used_at_once(run, "all_to_all")
