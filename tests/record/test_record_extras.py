"""What a recording carries besides the profiler's events: labels, and what the machine did."""

from __future__ import annotations

import gc
import gzip
import io
import json
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from commtrace.errors import UsageError
from commtrace.record import record_program

torch = pytest.importorskip("torch")

import commtrace  # noqa: E402
from commtrace.metrics.run.machines import machines  # noqa: E402
from commtrace.record import extras, labels  # noqa: E402
from commtrace.record.step_times import StepTimes  # noqa: E402


@pytest.fixture(autouse=True)
def no_other_collection(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("COMMTRACE_WITHOUT", raising=False)
    gc.disable()
    yield
    gc.enable()


def read(folder: Path) -> tuple[dict[str, Any], list[str]]:
    content = json.loads(gzip.decompress((folder / "rank0.json.gz").read_bytes()))
    named = [e for e in content["traceEvents"] if e["name"].startswith("commtrace::")]
    assert {event["cat"] for event in named} <= {"user_annotation"}
    return content["commtrace"], [event["name"] for event in named]


def ended(work: Any) -> None:
    """Look until it has, without a wait.

    What gloo begins while torch ends a profile may cost all that another thread has noted.
    """
    while not work.is_completed():
        time.sleep(0.001)


def test_collections_are_labelled_but_for_the_youngest(tmp_path: Path) -> None:
    before = list(gc.callbacks)
    gc.collect()
    with commtrace.recording(tmp_path):
        gc.collect(0)
        gc.collect(1)
        gc.collect()
    gc.collect()
    ours, names = read(tmp_path)
    assert names == ["commtrace::garbage-collection"] * 2
    assert ours["carries"] == ["garbage-collection", "lines", "machine", "wait"]
    assert gc.callbacks == before


def test_waits_are_labelled_where_the_program_calls_them(tmp_path: Path) -> None:
    dist = torch.distributed
    before = dist.Work.wait
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        with commtrace.recording(tmp_path):
            dist.all_reduce(torch.ones(4))
            dist.all_reduce(torch.ones(4), async_op=True).wait()
            ended(dist.all_reduce(torch.ones(4), async_op=True))
    finally:
        dist.destroy_process_group()
    assert read(tmp_path)[1].count("commtrace::wait") == 2
    assert dist.Work.wait is before


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
def test_a_collection_takes_no_part_in_what_it_interrupts(tmp_path: Path) -> None:
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.overrides import TorchFunctionMode

    called: list[str] = []

    class Called(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            called.append(str(func))
            return func(*args, **(kwargs or {}))

    def double(tensor: Any) -> Any:
        gc.collect()
        return tensor + tensor

    with commtrace.recording(tmp_path):
        graph = make_fx(double)(torch.ones(2))
        traced = torch.jit.trace(double, torch.ones(2), check_trace=False)
        with Called():
            gc.collect()
    assert "profiler" not in graph.code
    assert "profiler" not in str(traced.graph)
    assert not called
    assert read(tmp_path)[1] == ["commtrace::garbage-collection"] * 2  # torch.jit would keep it


def test_a_collection_in_another_thread_is_none_of_ours(tmp_path: Path) -> None:
    with commtrace.recording(tmp_path):
        thread = threading.Thread(target=gc.collect)
        thread.start()
        thread.join()
    assert read(tmp_path)[1] == []


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_what_saves_is_labelled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.distributed import checkpoint
    from torch.distributed.checkpoint import state_dict_saver

    for module in (checkpoint, state_dict_saver):
        for name in ("save", "async_save"):
            monkeypatch.setattr(module, name, getattr(module, name))
    for module in (torch, torch.serialization):
        monkeypatch.setattr(module, "save", module.save)
    safetensors = ModuleType("safetensors.torch")
    safetensors.save_file = lambda tensors, filename: filename  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "safetensors.torch", safetensors)
    labels.label_checkpoints()
    weights = {"weight": torch.ones(2)}
    with commtrace.recording(tmp_path / "out"):
        torch.save(weights, io.BytesIO())
        pickle.dumps(weights)  # as object collectives do
        checkpoint.save(weights, checkpoint_id=str(tmp_path / "kept"), no_dist=True)
        assert safetensors.save_file(weights, "kept.safetensors") == "kept.safetensors"
    ours, names = read(tmp_path / "out")
    assert names == ["commtrace::checkpoint"] * 3  # one saves by another
    assert "checkpoint" in ours["carries"]


def test_what_the_machine_did(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    with commtrace.recording(tmp_path):
        sum(range(200_000))
    machine = read(tmp_path)[0]["machine"]
    assert machine["processes"] == 8
    assert 0 < machine["usable_cores"] <= machine["cores"]
    assert 0 < machine["own_s"] <= machine["threads"] * machine["seconds"] * 1.1
    assert machine["busy_s"] >= 0
    assert len(machine["load"]) == 2
    assert machine["steps"] == []  # of which it has none
    ((at_ns, took_ns),) = machine["core_speed"]
    assert abs(time.time_ns() - at_ns) < 600e9
    assert 1_000 < took_ns < 100_000_000


def test_a_core_is_looked_at_now_and_then_where_a_program_waits_or_ends_a_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("commtrace.record.core_speed._EVERY_NS", 20_000_000)
    dist = torch.distributed
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        with commtrace.recording(tmp_path):
            for _ in range(3):
                dist.all_reduce(torch.ones(4))  # at once: too soon to look again
            for _ in range(2):
                time.sleep(0.03)
                dist.all_reduce(torch.ones(4))
            waits = threading.Thread(target=lambda: dist.all_reduce(torch.ones(4)))
            time.sleep(0.03)
            waits.start()
            waits.join()
    finally:
        dist.destroy_process_group()
    looks = read(tmp_path)[0]["machine"]["core_speed"]
    assert len(looks) == 3
    assert looks == sorted(looks)


def test_what_each_step_ran_and_waited_for_a_core() -> None:
    times = StepTimes()
    times.start()
    if times.stop() is None:
        pytest.skip("the kernel does not count it")
    times.start()
    until = time.thread_time() + 0.02
    while time.thread_time() < until:
        pass
    times.end(5)
    time.sleep(0.02)
    times.end(6)
    (first, ran, _, process), (second, slept, waited, _) = times.stop() or []
    assert (first, second) == (5, 6)
    assert 19_000 < ran <= process + 1_000
    assert slept < 15_000
    assert waited >= 0


def test_a_context_tells_of_its_steps_and_the_trace_alone_is_enough(tmp_path: Path) -> None:
    schedule = torch.profiler.schedule(wait=1, warmup=1, active=2)
    with commtrace.recording(tmp_path, schedule=schedule) as run:
        for _ in range(4):
            sum(range(20_000))
            run.step()
    its = machines(commtrace.load(tmp_path).measures)[0]
    if its.steps is None:
        pytest.skip("the kernel does not count it")
    recorded = commtrace.load(tmp_path).steps
    assert {number for number, *_ in its.steps} >= set(recorded["step"]) == {2, 3}
    assert min(ran for _, ran, _, _ in its.steps) > 0


def test_each_can_be_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMMTRACE_WITHOUT", "garbage-collection, machine, wait")
    with commtrace.recording(tmp_path):
        gc.collect()
    ours, names = read(tmp_path)
    assert (names, ours["carries"], ours["machine"]) == ([], [], None)


def test_what_is_not_there_cannot_be_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMMTRACE_WITHOUT", "gc")
    message = "COMMTRACE_WITHOUT=gc: no such extra; leave out garbage-collection, checkpoint, "
    with pytest.raises(UsageError, match=message):
        commtrace.recording(tmp_path)
    with pytest.raises(UsageError, match=message):
        record_program([__file__], out=tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_a_gpus_synchronisations_are_asked_for_where_torch_can(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[dict[str, bool]] = []

    def config(**options: bool) -> None:
        asked.append(options)

    assert extras.new_profiler().experimental_config is None
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.profiler, "profile", lambda **options: options)
    monkeypatch.setattr(torch._C._profiler, "_ExperimentalConfig", config)
    assert "experimental_config" in extras.new_profiler()
    assert asked[0] == {"enable_cuda_sync_events": True}
    monkeypatch.setattr(torch._C._profiler, "_ExperimentalConfig", lambda: None)  # an older torch
    assert "experimental_config" not in extras.new_profiler()


KEEPS = """
import sys
import torch
import torch.distributed as dist
from commtrace.record.profile import end_group

dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=0, world_size=1)
groups = [*dist.distributed_c10d._world.pg_map]
dist.all_reduce(torch.ones(4))
end_group(dist.destroy_process_group)
assert not dist.is_initialized()
vars(sys.modules[end_group.__module__]).clear()  # as the interpreter does in the end
assert sys.getrefcount(groups[0]) == 3  # of the list, of the question, and of nobody
"""


def test_a_group_that_is_kept_outlives_the_interpreter(tmp_path: Path) -> None:
    words = [sys.executable, "-c", KEEPS, str(tmp_path / "store")]
    ran = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch.jit")
def test_what_an_optimizer_collects_to_be_saved_is_labelled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    collect = "consolidate_state_dict"
    monkeypatch.setattr(ZeroRedundancyOptimizer, collect, lambda _self: torch.ones(1).add(1))
    labels.label_collected_states()
    labels.label_collected_states()  # of another window
    with torch.profiler.profile() as profiler:
        getattr(ZeroRedundancyOptimizer, collect)(None)
    names = [event.name for event in profiler.events()]
    assert names.count("commtrace::checkpoint") == 1
