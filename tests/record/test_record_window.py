"""Which steps are in the trace, in this process: what each call of a program leads to."""

from __future__ import annotations

import gzip
import itertools
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from commtrace.errors import RecordError, UsageError

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402

import commtrace  # noqa: E402
from commtrace.record import rank_agreement  # noqa: E402
from commtrace.record import recording as recordings  # noqa: E402
from commtrace.record.job import Plan  # noqa: E402
from commtrace.record.manifest import partial  # noqa: E402
from commtrace.record.own_profiler import OWN  # noqa: E402
from commtrace.record.profiler import Profiler  # noqa: E402
from commtrace.record.step_detection import Steps  # noqa: E402
from commtrace.record.window import Window  # noqa: E402

Make = Callable[..., Window]


def read(path: Path) -> dict[str, Any]:
    return json.loads(gzip.decompress(path.read_bytes()))


def spans(content: dict[str, Any], start: str) -> list[str]:
    events = [e for e in content["traceEvents"] if e["ph"] == "X" and e["name"].startswith(start)]
    return [event["name"] for event in sorted(events, key=lambda event: event["ts"])]


def work(times: int, window: Window) -> None:
    for _ in range(times):
        torch.ones(8)
        window.step()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "rank0.json.gz"


@pytest.fixture
def make(path: Path) -> Make:
    return lambda *arguments, **plan: Window(Plan(**plan), path, {"program": "mine"}, *arguments)


def test_the_steps_asked_for_and_no_others(make: Make, path: Path) -> None:
    told: list[Any] = []
    window = make(lambda meeting, facts: told.append(facts), steps=3)
    window.begin()
    work(7, window)
    content = read(path)  # it is there as soon as the window is over
    work(5, window)
    window.close()
    assert spans(content, "ProfilerStep") == ["ProfilerStep#5", "ProfilerStep#6", "ProfilerStep#7"]
    assert spans(content, "aten::ones") == ["aten::ones"] * 3
    ours = content["commtrace"]
    assert ours["program"] == "mine"
    assert ours["partial"] is None
    (facts,) = told
    assert 0 < facts.pop("seconds") < 60
    lines = ours["machine"].pop("lines")
    assert set(lines) == {"names", "looks"}
    assert facts.pop("machine") == ours["machine"]
    assert facts == {"backend": None, "steps": [5, 7], "notes": ours["notes"], "over": False}
    assert ours["notes"] == [
        "the program has no process group: rank and world size as it was started"
    ]


@pytest.mark.parametrize("first", [2, 3])
def test_a_window_without_room_to_warm_up(make: Make, path: Path, first: int) -> None:
    window = make(first=first, steps=1)
    window.begin()
    work(first, window)
    assert spans(read(path), "ProfilerStep") == [f"ProfilerStep#{first}"]


def test_who_has_no_steps_is_recorded_whole(make: Make, path: Path) -> None:
    window = make()
    window.begin()
    torch.ones(8)
    window.close()
    content = read(path)
    assert spans(content, "aten::ones") == ["aten::ones"]
    assert content["commtrace"]["steps"] is None
    assert content["commtrace"]["partial"] is None
    assert "recorded whole, its first " in content["commtrace"]["notes"][0]


def test_without_steps_it_does_not_record_for_ever(make: Make, path: Path) -> None:
    window = make()
    window.begin()
    torch.ones(8)
    window.pause()
    torch.ones(8)
    assert torch.autograd._profiler_enabled()  # what is in flight ends in memory that is there
    window.close()
    assert spans(read(path), "aten::ones") == ["aten::ones"]
    assert not torch.autograd._profiler_enabled()


@pytest.mark.parametrize("steps", [2, 3, 4])
def test_a_window_that_no_step_reaches(make: Make, path: Path, steps: int) -> None:
    window = make()
    window.begin()
    work(steps, window)
    torch.zeros(8)
    with pytest.raises(RecordError, match=r"no step reached the window \(3 to 8 steps within"):
        window.close()
    kept = min(steps, 3)  # with the fourth the profiler warms up
    assert spans(read(path), "aten::ones") == ["aten::ones"] * kept
    assert read(path)["commtrace"]["steps"] is None
    assert not spans(read(path), "ProfilerStep")
    assert partial(path) == read(path)["commtrace"]["partial"]
    assert f"ended after step {steps}; choose a lower --start-step" in (partial(path) or "")


def test_ranks_agree_on_the_fewest_steps_that_one_can_keep(monkeypatch: Any) -> None:
    store = torch.distributed.HashStore()
    monkeypatch.setattr(rank_agreement, "_store", lambda: store)
    monkeypatch.setattr(rank_agreement, "_numbers", itertools.repeat(0))
    light, heavy, late = (rank_agreement.Meeting() for _ in range(3))
    assert [light.lower("lowest", 8), heavy.lower("lowest", 5), light.lower("lowest", 8)] == [
        8,
        5,
        5,
    ]
    assert light.agree("steps", 5) == 5
    assert late.lower("lowest", 2) == 2
    assert late.agree("steps", 2) == 5  # the others have begun


def test_ranks_that_cannot_agree_say_so_once(monkeypatch: Any) -> None:
    class Gone:
        def compare_set(self, *_: str) -> bytes:
            raise RuntimeError("Broken pipe")

    monkeypatch.setattr(rank_agreement, "_store", Gone)
    meeting = rank_agreement.Meeting()
    assert meeting.agree("number of steps", meeting.lower("lowest number of steps", 4)) == 4
    (note,) = meeting.notes
    assert note == "the ranks could not agree on the lowest number of steps: Broken pipe"


@pytest.mark.parametrize("steps", [5, 6])
def test_a_program_that_ends_within_its_window(make: Make, path: Path, steps: int) -> None:
    window = make()
    window.begin()
    work(steps, window)
    said = f"the program ended after step {steps}, within the window: 3 to 8 steps within 10 s"
    with pytest.raises(RecordError, match=said):
        window.close()
    assert spans(read(path), "aten::ones") == ["aten::ones"] * (steps - 4)


def test_a_program_that_fails_within_its_window(make: Make, path: Path) -> None:
    window = make()
    window.begin()
    work(4, window)
    torch.zeros(8)
    window.close("ValueError: no")
    assert partial(path) == "ValueError: no"
    assert spans(read(path), "aten::zeros") == ["aten::zeros"]  # where it failed
    assert not spans(read(path), "aten::ones")


class Clock:
    """The time, as a program makes it pass."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr("commtrace.record.window.time.monotonic", lambda: self.now)

    def step(self, step_s: float, window: Window) -> None:
        torch.ones(8)
        self.now += step_s
        window.step()


@pytest.mark.parametrize(
    ("step_s", "steps"), [(0.002, 8), (1.25, 8), (1.3, 7), (2.5, 4), (4.0, 3), (30.0, 3)]
)
def test_the_default_window_is_as_long_as_the_steps_let_it(
    make: Make, path: Path, monkeypatch: pytest.MonkeyPatch, step_s: float, steps: int
) -> None:
    monkeypatch.setattr(Profiler, "events_per_s", lambda *_: None)
    clock, window = Clock(monkeypatch), make()
    window.begin()
    clock.step(300.0, window)  # what compiles, say, tells nothing of the others
    for _ in range(13):
        clock.step(step_s, window)
    window.close()
    content = read(path)
    assert content["commtrace"]["steps"] == [5, 4 + steps]
    assert len(spans(content, "ProfilerStep")) == steps


def test_the_default_window_of_a_long_program(make: Make, path: Path) -> None:
    window = make()
    window.begin()
    work(12, window)
    assert read(path)["commtrace"]["steps"] == [5, 12]
    assert not torch.autograd._profiler_enabled()
    began_s = time.process_time()
    for _ in range(9_988):
        window.step()
    assert time.process_time() - began_s < 0.5  # 50 µs each; it takes a thousandth of that
    window.close()


@pytest.mark.parametrize(
    ("events_per_s", "step_s", "steps"), [(2e5, 2.5, 4), (1e5, 9.0, 2), (1e5, 30.0, 1)]
)
def test_the_default_window_keeps_two_million_events(
    make: Make,
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    events_per_s: float,
    step_s: float,
    steps: int,
) -> None:
    monkeypatch.setattr(Profiler, "events_per_s", lambda *_: events_per_s)
    clock, window = Clock(monkeypatch), make()
    window.begin()
    for _ in range(12):
        clock.step(step_s, window)
    window.close()
    ours = read(path)["commtrace"]
    assert ours["steps"] == [5, 4 + steps]
    assert any("more would have left over 2,000,000 events" in n for n in ours["notes"]) == (
        steps < 3
    )


def test_events_are_counted_where_steps_are() -> None:
    profiler = Profiler()
    profiler.prepare()
    profiler.start()
    torch.ones(8)
    since_ns = time.time_ns()
    for _ in range(10):
        torch.ones(8)
    profiler.stop()
    assert profiler.recorded_s
    seconds = profiler.recorded_s - (since_ns - profiler.began_ns) / 1e9
    assert (profiler.events_per_s(since_ns) or 0) * seconds == pytest.approx(30)
    assert (profiler.events_per_s(0) or 0) * profiler.recorded_s == pytest.approx(33)
    assert Profiler().events_per_s(0) is None


@pytest.mark.parametrize("steps", [7, 9, 11])
def test_a_program_that_ends_within_the_default_window(make: Make, path: Path, steps: int) -> None:
    window = make()
    window.begin()
    work(steps, window)
    torch.zeros(8)  # behind its last step
    window.close()
    ours = read(path)["commtrace"]
    assert (ours["steps"], ours["partial"]) == ([5, steps], None)
    note = f"the program ended after step {steps}, before the window's last, 12"
    assert note in ours["notes"]


def test_steps_for_so_many_seconds(make: Make, path: Path, monkeypatch: Any) -> None:
    clock, window = Clock(monkeypatch), make(first=2, seconds=10.0)
    window.begin()
    for _ in range(6):
        clock.step(4.0, window)
    assert spans(read(path), "ProfilerStep") == [f"ProfilerStep#{n}" for n in (2, 3, 4)]


def test_a_signal_begins_it(make: Make, path: Path) -> None:
    window = make(on_signal=True, steps=2)
    window.begin()  # nothing, before the signal
    work(4, window)
    window.request()
    work(4, window)
    assert spans(read(path), "ProfilerStep") == ["ProfilerStep#7", "ProfilerStep#8"]


def test_a_signal_that_never_comes(make: Make, path: Path) -> None:
    window = make(on_signal=True)
    work(4, window)
    with pytest.raises(RecordError, match="no signal came"):
        window.close()
    assert not path.exists()


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OWN, "wrote", None)


@pytest.mark.usefixtures("own")
def test_it_gives_way_to_the_programs_own_profiler(make: Make, path: Path) -> None:
    window = make(first=3, steps=1)
    window.begin()
    with torch.profiler.profile() as own:
        work(4, window)
    assert own.events()
    assert not [event for event in own.events() if event.name.startswith("ProfilerStep")]
    with pytest.raises(RecordError, match=r"a profiler of its own, whose traces are gone or were"):
        window.close()
    assert not path.exists()


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize("suffix", ["json", "json.gz"])
def test_what_the_programs_own_profiler_wrote_is_the_recording(
    make: Make, path: Path, tmp_path: Path, suffix: str
) -> None:
    told: list[Any] = []
    window = make(lambda meeting, facts: told.append(facts), first=3, steps=1)
    window.begin()
    schedule = torch.profiler.schedule(wait=1, warmup=1, active=2, repeat=1)
    files = tmp_path / "log"
    files.mkdir()

    def ready(profiler: Any) -> None:
        profiler.export_chrome_trace(str(files / f"own.{suffix}"))

    with torch.profiler.profile(schedule=schedule, on_trace_ready=ready) as own:
        for _ in range(6):
            work(1, window)
            own.step()
    window.close()
    content = read(path)
    assert spans(content, "ProfilerStep") == ["ProfilerStep#2", "ProfilerStep#3"]
    assert spans(content, "aten::ones") == ["aten::ones"] * 2
    ours = content["commtrace"]
    assert (ours["partial"], ours["steps"], ours["own_profiler"]) == (None, None, True)
    assert ours["notes"][0] == (
        "the program ran a profiler of its own: this is what it wrote last, and no other steps"
    )
    (facts,) = told
    assert facts["own_profiler"]
    assert 0 <= facts["seconds"] < 60
    machine = facts["machine"]
    assert ours["machine"].pop("lines") is not None
    assert machine == ours["machine"]
    assert 0 < machine["own_s"] <= 2 * os.cpu_count() * machine["seconds"]
    assert [number for number, *_ in machine["steps"] or ((2,), (3,))] == [2, 3]
    assert (files / f"own.{suffix}").exists()
    assert commtrace.load(path).ranks["rank"].tolist() == [0]


@pytest.mark.usefixtures("own")
def test_what_our_handler_wrote_is_the_recording_too(
    make: Make, path: Path, tmp_path: Path
) -> None:
    window = make(first=3, steps=1)
    window.begin()
    with torch.profiler.profile(on_trace_ready=commtrace.trace_handler(tmp_path / "log")):
        work(4, window)
    window.close()
    assert path.read_bytes().startswith(b"\x1f\x8b")
    assert spans(read(path), "aten::ones") == ["aten::ones"] * 4
    text = gzip.decompress(path.read_bytes())
    assert text.count(b'"commtrace":') == 1


@pytest.mark.usefixtures("own")
def test_a_profiler_of_its_own_that_is_done_before_the_window_is_no_matter(
    make: Make, path: Path, tmp_path: Path
) -> None:
    window = make(first=4, steps=2)
    window.begin()
    with torch.profiler.profile() as own:
        work(1, window)
    own.export_chrome_trace(str(tmp_path / "own.json"))
    work(6, window)
    window.close()
    assert spans(read(path), "ProfilerStep") == ["ProfilerStep#4", "ProfilerStep#5"]
    assert "own_profiler" not in read(path)["commtrace"]


def counting(window: Window, monkeypatch: pytest.MonkeyPatch) -> Steps:
    """Count the steps of what optimizers are made from now on."""
    window.begin()
    optimizers = torch.optim.Optimizer
    monkeypatch.setattr(optimizers, "profile_hook_step", staticmethod(optimizers.profile_hook_step))
    steps = Steps(window)
    steps.watch_optimizers()
    monkeypatch.setattr(recordings, "_steps", steps)
    return steps


@pytest.fixture
def counted(make: Make, monkeypatch: pytest.MonkeyPatch) -> Iterator[Steps]:
    window = make(first=3, steps=2)
    yield counting(window, monkeypatch)
    window.close("over")


def optimizer() -> Any:
    class Mine(torch.optim.SGD):  # a class of its own: torch patches each but once
        def step(self, closure: Any = None) -> Any:
            return super().step(closure)

    return Mine([torch.nn.Parameter(torch.ones(2))], lr=0.1)


@pytest.mark.usefixtures("counted")
def test_the_first_optimizer_that_steps_counts(path: Path) -> None:
    first, second = optimizer(), optimizer()
    for _ in range(4):
        first.step()
        second.step()
        second.step()
    content = read(path)
    assert content["commtrace"]["steps"] == [3, 4]
    # A step ends where the optimizer's range has ended, and not within it.
    ranges = [e for e in content["traceEvents"] if e["name"] == "Optimizer.step#Mine.step"]
    steps = [e for e in content["traceEvents"] if e["name"].startswith("ProfilerStep#")]
    assert len(steps) == 2
    for event in ranges:
        assert sum(s["ts"] <= event["ts"] < s["ts"] + s["dur"] for s in steps) == 1
        end = event["ts"] + event["dur"]
        assert any(s["ts"] <= event["ts"] and end <= s["ts"] + s["dur"] for s in steps)


@pytest.mark.parametrize(
    ("optimizers", "batches", "steps"),
    [(1, 1, [5, 12]), (1, 4, [5, 12]), (2, 1, [5, 12]), (0, 1, None)],
    ids=["one", "accumulated", "two in turn", "none"],
)
def test_the_default_window_by_what_optimizers_do(
    make: Make,
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    optimizers: int,
    batches: int,
    steps: list[int] | None,
) -> None:
    window = make()
    counting(window, monkeypatch)
    each = [optimizer() for _ in range(optimizers)]
    for _ in range(14):
        for _ in range(batches):
            torch.ones(8)
        for one in each:
            one.step()
    window.close()
    content = read(path)
    assert (content["commtrace"]["steps"], content["commtrace"]["partial"]) == (steps, None)
    recorded = 8 if steps else 14
    assert len(spans(content, "aten::ones")) == recorded * batches
    assert len(spans(content, "Optimizer.step#")) == recorded * optimizers
    assert len(spans(content, "ProfilerStep")) == (8 if steps else 0)


@pytest.mark.usefixtures("counted")
@pytest.mark.parametrize("keep", [False, True])
def test_the_next_optimizer_counts_when_the_first_is_done(path: Path, keep: bool) -> None:
    done = [optimizer()]
    done[0].step()
    if not keep:
        done.clear()
    second = optimizer()
    for _ in range(20 if keep else 0):
        second.step()
    for _ in range(2):
        second.step()
    assert not path.exists()
    second.step()
    assert read(path)["commtrace"]["steps"] == [3, 4]


@pytest.mark.usefixtures("counted")
def test_of_nested_steps_the_outermost_counts(path: Path) -> None:
    outer, inner = optimizer(), optimizer()
    step_of_inner = lambda: inner.step()  # noqa: E731

    class Outer(type(outer)):
        def step(self, closure: Any = None) -> Any:
            step_of_inner()
            if closure:
                raise ValueError("no")

    nesting = Outer([torch.nn.Parameter(torch.ones(2))], lr=0.1)
    with pytest.raises(ValueError, match="no"):
        nesting.step(lambda: None)  # one that fails does not count, nor spoils the next
    for _ in range(3):
        nesting.step()
    assert not path.exists()
    nesting.step()
    content = read(path)
    assert content["commtrace"]["steps"] == [3, 4]
    assert len(spans(content, "Optimizer.step#Outer.step")) == 2


def test_optimizers_that_step_within_backward_are_not_counted(counted: Steps, path: Path) -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    mine = type(optimizer())([weight], lr=0.1)
    weight.register_post_accumulate_grad_hook(lambda _: mine.step())
    for _ in range(8):
        weight.sum().backward()
    counted._window.close()
    assert read(path)["commtrace"]["notes"][0].startswith(
        "the optimizers step within backward, and commtrace.step() was never called: recorded whole"
    )


def in_a_thread(action: Callable[[], object]) -> None:
    thread = threading.Thread(target=action)
    thread.start()
    thread.join()


def test_an_optimizer_of_a_server_steps_in_whatever_thread_and_ends_no_step(
    make: Make, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    window = make()
    counting(window, monkeypatch)
    mine = optimizer()
    for _ in range(9):
        mine.step()
        in_a_thread(mine.step)
    window.close()
    assert read(path)["commtrace"]["steps"] is None
    assert read(path)["commtrace"]["notes"][0].startswith(
        "an optimizer steps in several threads, as a server's do, and commtrace.step() was never"
    )


@pytest.mark.usefixtures("counted")
def test_what_the_program_says_takes_over(path: Path) -> None:
    mine = optimizer()
    for _ in range(4):
        torch.ones(8)
        mine.step()
        mine.step()
        commtrace.step()
    assert spans(read(path), "aten::ones") == ["aten::ones"] * 2
    assert read(path)["commtrace"]["steps"] == [3, 4]


@pytest.mark.usefixtures("counted")
@pytest.mark.parametrize("steps", [1, 2, 3, 5])  # warmed up, recording twice, written
def test_the_program_may_begin_late_to_say_its_steps(path: Path, steps: int) -> None:
    mine = optimizer()
    for _ in range(4):
        torch.ones(8)
        for _ in range(steps):
            mine.step()
        commtrace.step()
    content = read(path)
    assert content["commtrace"]["steps"] == [3, 4]
    assert spans(content, "ProfilerStep") == ["ProfilerStep#3", "ProfilerStep#4"]
    assert spans(content, "aten::ones") == ["aten::ones"] * 2
    before = "1 step of" if steps == 1 else f"{steps} steps of"
    note = f"the program counts its own steps; the first ended after {before}"
    assert note in content["commtrace"]["notes"][0]


def test_a_program_that_says_too_few_steps(counted: Steps, path: Path) -> None:
    mine = optimizer()
    for _ in range(5):
        mine.step()
    assert path.exists()
    commtrace.step()
    assert not path.exists()
    with pytest.raises(RecordError, match="ended after step 1 of those it counts; choose a lower"):
        counted._window.close()


def test_steps_of_an_optimizer_are_not_those_behind_the_programs_window(counted: Steps) -> None:
    mine = optimizer()
    for _ in range(60):
        mine.step()
    afterwards = counted._window._unrecorded
    assert afterwards.facts()
    for _ in range(20):
        commtrace.step()
    assert counted._window._unrecorded is not afterwards
    (times,) = counted._window._unrecorded.facts().values()
    assert len(times) == 20 - 4 - 3  # behind the window's last, and three that settle


def test_a_step_that_nobody_counts_does_nothing() -> None:
    commtrace.step()


def test_a_group_that_is_destroyed_ends_with_the_process(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    from commtrace.record import profile, rank_recording

    kept: list[Any] = []
    monkeypatch.setattr(profile, "_keep", kept.append)
    for module in (dist, dist.distributed_c10d):
        monkeypatch.setattr(module, "destroy_process_group", dist.destroy_process_group)
    rank_recording.watch_group(make())
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    groups = {dist.group.WORLD, dist.new_group([0])}
    dist.destroy_process_group()
    assert not dist.is_initialized()
    assert set(kept) == groups


def test_recording_all_of_a_context(tmp_path: Path) -> None:
    with commtrace.recording(tmp_path / "out"):
        torch.ones(8)
    content = read(tmp_path / "out" / "rank0.json.gz")
    assert spans(content, "aten::ones") == ["aten::ones"]
    assert content["commtrace"]["world_size"] == 1
    with (
        pytest.raises(UsageError, match="exists, and nothing is overwritten"),
        commtrace.recording(tmp_path / "out"),
    ):
        pass


def test_recording_by_a_schedule_writes_its_first_window(tmp_path: Path) -> None:
    schedule = torch.profiler.schedule(wait=1, warmup=1, active=2)
    with commtrace.recording(tmp_path, schedule=schedule) as run:
        for _ in range(12):
            run.step()
    content = read(tmp_path / "rank0.json.gz")
    assert spans(content, "ProfilerStep") == ["ProfilerStep#2", "ProfilerStep#3"]


def test_recording_what_raises_keeps_what_there_is(tmp_path: Path) -> None:
    def fail() -> None:
        with commtrace.recording(tmp_path):
            torch.ones(8)
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        fail()
    path = tmp_path / "rank0.json.gz"
    assert spans(read(path), "aten::ones") == ["aten::ones"]
    assert partial(path) == "ValueError: no"


@pytest.mark.parametrize("use_gzip", [False, True])
def test_a_handler_names_files_as_tensorboards_and_adds_what_we_know(
    tmp_path: Path, use_gzip: bool
) -> None:
    handler = commtrace.trace_handler(tmp_path / "log", "me", use_gzip=use_gzip)
    with torch.profiler.profile(on_trace_ready=handler):
        torch.ones(8)
    (path,) = (tmp_path / "log").iterdir()
    worker, number, *suffix = path.name.split(".")
    assert (worker, number.isdecimal()) == ("me", True)
    assert suffix == ["pt", "trace", "json", "gz"][: 4 if use_gzip else 3]
    content = read(path) if use_gzip else json.loads(path.read_text())
    assert content["commtrace"]["rank"] == 0
    assert commtrace.load(tmp_path / "log").measures.ranks.shape[0] == 1


def test_a_device_is_waited_for_where_the_window_opens_and_closes(
    make: Make, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[int] = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: waited.append(1))
    window = make(first=3, steps=2)
    work(1, window)
    assert not waited
    work(2, window)
    assert len(waited) == 1
    work(1, window)
    assert len(waited) == 2
    assert path.exists()


def test_a_workloads_rank_has_the_device_of_its_local_rank(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from commtrace.record import worker
    from commtrace.record.job import Job

    chosen: list[Any] = []
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    for name, value in {"RANK": "5", "LOCAL_RANK": "1", "WORLD_SIZE": "8"}.items():
        monkeypatch.setenv(name, value)
    context = worker._context(Job("mine", "mine.py", {}, 1, 0, "nccl", "out", 60.0))
    assert context.device == torch.device("cuda", 1)
    assert chosen == [context.device]
    assert (context.rank, context.world_size) == (5, 8)
