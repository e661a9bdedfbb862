"""Programs that call for messages a step before they wait for them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from commtrace import load
from commtrace.metrics.run.waits import matched
from commtrace.record import Plan, record_program

pytest.importorskip("torch")
pytestmark = pytest.mark.slow


def recorded(folder: Path, text: str, *arguments: str) -> Path:
    """Where eight steps of a program on two ranks were recorded, from the fifth on."""
    program, out = folder / "program.py", folder / "traces"
    program.write_text(text)
    record_program([str(program), *arguments], plan=Plan(first=5, steps=8), world_size=2, out=out)
    return out


AHEAD = """
import sys
import torch
import torch.distributed as dist
import commtrace

def posted(peer):
    rows = torch.empty(8, 16)
    return [dist.irecv(row, peer) for row in rows]

dist.init_process_group("gloo")
peer, ahead = 1 - dist.get_rank(), sys.argv[1] == "ahead"
works = posted(peer)
for step in range(16):
    later = posted(peer) if ahead else []
    for work in [dist.isend(row, peer) for row in torch.ones(8, 16)] + works:
        work.wait()
    commtrace.step()
    works = later or posted(peer)
for work in [dist.isend(row, peer) for row in torch.ones(8, 16)] + works:
    work.wait()
dist.destroy_process_group()
"""


@pytest.mark.parametrize(("when", "kept"), [("ahead", True), ("then", False)])
def test_a_profile_lasts_until_its_messages_have_come(
    when: str, kept: bool, tmp_path: Path
) -> None:
    """Of those on their way torch notes the end in the profile that they were called in."""
    folder = recorded(tmp_path, AHEAD, when)
    for rank in range(2):
        trace = json.loads(gzip.decompress((folder / f"rank{rank}.json.gz").read_bytes()))
        events = [its for its in trace["traceEvents"] if its.get("ph") == "X"]
        steps = sorted(its["ts"] for its in events if its["name"].startswith("ProfilerStep#"))
        messages = [its["ts"] for its in events if its["name"] == "gloo:recv"]
        assert len(steps) == 8
        assert (min(messages) < steps[0]) == kept


NEVER_AWAITED = """
import time
import torch
import torch.distributed as dist
import commtrace

dist.init_process_group("gloo")
rank, rows = dist.get_rank(), torch.ones(4, 4096)
for step in range(16):
    if rank == 0:
        works = [dist.isend(row, 1) for row in rows]  # the last step's go, and nobody waits
        for row in torch.empty(4, 4096):
            dist.recv(row, 1)
    else:
        for row in torch.empty(4, 4096):
            dist.recv(row, 0)
            time.sleep(0.002)
            dist.send(row, 0)
    commtrace.step()
dist.destroy_process_group()
"""


def test_messages_that_nobody_waits_for_hold_nobody_up(tmp_path: Path) -> None:
    folder = recorded(tmp_path, NEVER_AWAITED)
    run = load(folder, cache=False)
    begun = {rank: run.measures.rows("ranks").ints("start_ns")[rank] for rank in range(2)}
    assert abs(begun[0] - begun[1]) < 10**9, "what came before the first step is left out"
    codes = {note.code for note in run.notes}
    assert "before-steps" in codes
    assert codes.isdisjoint({"recorder-waited", "unmatched-operations", "steps-without-work"})
    sends = matched(run.measures).operations
    assert len(sends) == 8 * 8
    assert sends.ints("transfer_ns").max() < 500_000_000


SLOW_TO_GATHER = """
import time
import torch
import torch.distributed as dist
import commtrace

dist.init_process_group("gloo")
stop = torch.profiler.profile.stop_trace

def slowly(self):
    time.sleep(3 * dist.get_rank())
    stop(self)

value = torch.ones(8)
for step in range(16):
    if step == 6:  # within the window
        torch.profiler.profile.stop_trace = slowly
    dist.all_reduce(value)
    commtrace.step()
dist.destroy_process_group()
"""


def test_clocks_are_compared_before_what_was_recorded_is_gathered(tmp_path: Path) -> None:
    """One rank may have recorded ten times as much as another, who would wait for it."""
    folder = recorded(tmp_path, SLOW_TO_GATHER)
    manifest = json.loads((folder / "manifest.json").read_text())
    assert len([its for its in manifest["clock_probe"] if its["rank"] == 1]) == 2
    assert "recorder-waited" not in {note.code for note in load(folder, cache=False).notes}
