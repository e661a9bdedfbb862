"""Clocks are read over a real connection; who is not there is not read."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from commtrace.record import clock as clocks
from commtrace.record.clock import Clock, Reading
from commtrace.trace_tables import WAITED

AHEAD_NS = 5_000_000


class Store:
    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._changed = threading.Condition()

    def set(self, key: str, value: str) -> None:
        with self._changed:
            self._values[key] = value.encode()
            self._changed.notify_all()

    def get(self, key: str) -> bytes:
        with self._changed:
            self._changed.wait_for(lambda: key in self._values, timeout=30)
            return self._values[key]

    def check(self, keys: list[str]) -> bool:
        return all(key in self._values for key in keys)


@pytest.fixture
def skewed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every thread but the one that serves as rank 0 has a clock that is ahead."""
    true_ns = time.time_ns
    monkeypatch.setattr(
        clocks.time,
        "time_ns",
        lambda: true_ns() + (0 if threading.current_thread().name == "rank0" else AHEAD_NS),
    )


@pytest.fixture
def run() -> Iterator[Callable[[int, Callable[[Clock], object]], list[object]]]:
    """Runs the same on every rank's clock, each rank a thread."""
    with ThreadPoolExecutor(8) as pool:

        def each(world_size: int, action: Callable[[Clock], object]) -> list[object]:
            store = Store()

            def rank(number: int) -> object:
                threading.current_thread().name = f"rank{number}"
                with Clock(number, world_size, store, "127.0.0.1") as clock:
                    return action(clock)

            return list(pool.map(rank, range(world_size)))

        yield each


@pytest.mark.usefixtures("skewed")
def test_the_offset_is_within_its_error(run: Callable[..., list[list[Reading]]]) -> None:
    first, *others = run(4, lambda clock: clock.read() + clock.read())
    assert [(reading.offset_ns, reading.error_ns) for reading in first] == [(0, 0)] * 2
    assert [len(readings) for readings in others] == [2, 2, 2]
    for reading in (reading for readings in others for reading in readings):
        assert abs(reading.offset_ns - AHEAD_NS) <= reading.error_ns


def test_a_second_meeting_finds_nothing_of_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    store = pytest.importorskip("torch").distributed.HashStore()
    from commtrace.record import rank_agreement as meeting

    monkeypatch.setattr(meeting, "_store", lambda: store)
    first, second = meeting.Meeting(), meeting.Meeting()
    assert [first.agree("first", number) for number in (3, 4)] == [3, 3]
    assert second.agree("first", 5) == 5
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    first.open()
    assert first.notes == ["clocks were not compared: MASTER_ADDR does not say where rank 0 is"]


def test_ranks_open_their_clocks_only_if_all_are_coming(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two ranks the first waits for no other than one that is announced."""
    store = pytest.importorskip("torch").distributed.HashStore()
    from commtrace.record import rank_agreement as meeting

    def meet(number: int, rank: int) -> meeting.Meeting:
        monkeypatch.setattr(meeting, "_numbers", iter([number]))
        monkeypatch.setattr(meeting.dist, "get_rank", lambda: rank)
        return meeting.Meeting()

    monkeypatch.setattr(meeting, "_store", lambda: store)
    monkeypatch.setattr(meeting.dist, "get_world_size", lambda: 2)
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    no_address = "clocks were not compared: MASTER_ADDR does not say where rank 0 is"
    unequal = (
        "clocks were not compared: the ranks do not step equally often; call commtrace.step() once "
        "in each round"
    )
    for number, announced, note in ((0, (0, 1), no_address), (1, (0,), unequal)):
        for rank in announced:
            meet(number, rank).announce()
        first = meet(number, 0)
        first.open(0.05)
        assert first.notes == [note]
    meet(1, 1).announce()
    late = meet(1, 1)
    late.open(60.0)
    assert late.notes == [unequal]  # the first has gone on


def test_a_long_wait_for_other_clocks_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    store = pytest.importorskip("torch").distributed.HashStore()
    from commtrace.record import rank_agreement as meeting

    monkeypatch.setattr(meeting, "_store", lambda: store)
    monkeypatch.setattr(meeting.dist, "get_rank", lambda: 1)
    monkeypatch.setattr(meeting.dist, "get_world_size", lambda: 2)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setattr(clocks, "TIMEOUT_S", 0.2)
    for long_s, notes in ((60.0, 0), (0.1, 1)):
        monkeypatch.setattr(meeting, "_LONG_S", long_s)
        alone = meeting.Meeting()
        alone.open()
        said = [note for note in alone.notes if note.startswith(WAITED)]
        assert len(said) == notes


def test_who_has_its_trace_may_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a rank whose trace is not yet there reports that it hangs."""
    watch = pytest.importorskip("commtrace.record.watch")
    told: list[str] = []
    report = SimpleNamespace(
        is_heard=True,
        has_recorded=True,
        at=lambda outcome, operation: told.append(outcome),
        order=None,
    )
    looks = iter([True, True])

    def order(patience_s: float) -> None:
        try:
            report.has_recorded = next(looks)
        except StopIteration:
            raise EOFError from None

    report.order = order
    late = SimpleNamespace(waited_s=lambda: 9.0, to_dict=dict)
    monkeypatch.setattr(watch.flight, "waiting", lambda **_: late)
    watch._watch(report, 1.0, None)
    assert told == []
    looks = iter([False, True])
    watch._watch(report, 1.0, None)
    assert told == ["stuck"]


def test_one_rank_alone(run: Callable[..., list[list[Reading]]]) -> None:
    ((reading,),) = run(1, Clock.read)
    assert (reading.offset_ns, reading.error_ns) == (0, 0)


def test_who_has_left_is_not_waited_for(run: Callable[..., list[list[Reading]]]) -> None:
    def leave_early(clock: Clock) -> list[Reading]:
        return [] if threading.current_thread().name == "rank1" else clock.read() + clock.read()

    first, gone, other = run(3, leave_early)
    assert (len(first), gone, len(other)) == (2, [], 2)


def test_without_rank_0_there_is_no_reading(run: Callable[..., list[list[Reading]]]) -> None:
    def without(clock: Clock) -> list[Reading]:
        return [] if threading.current_thread().name == "rank0" else clock.read()

    assert run(3, without) == [[], [], []]


def test_who_never_hears_of_rank_0_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clocks, "TIMEOUT_S", 0.1)
    with Clock(1, 2, Store(), "127.0.0.1") as clock:
        assert clock.read() == []


def test_rank_0_at_an_address_that_is_not_its_own_says_so() -> None:
    store = Store()
    with Clock(0, 2, store, "192.0.2.1") as clock:
        assert len(clock.read()) == 1
    with Clock(1, 2, store, "192.0.2.1") as clock:
        assert clock.read() == []


def test_who_comes_too_late_gets_no_stale_answer(
    run: Callable[..., list[list[Reading]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clocks, "TIMEOUT_S", 0.2)

    given_up = threading.Event()

    def late(clock: Clock) -> list[Reading]:
        if threading.current_thread().name == "rank0":
            given_up.wait(30)
        readings = clock.read() + clock.read()
        given_up.set()
        return readings

    first, other = run(2, late)
    assert (len(first), other) == (2, [])


def test_many_who_are_silent_are_waited_for_no_longer_than_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0]

    class Silent:
        def settimeout(self, seconds: float) -> None:
            self.seconds = seconds

        def recv(self, _: int) -> bytes:
            now[0] += self.seconds
            raise TimeoutError

        def close(self) -> None: ...

    monkeypatch.setattr(clocks.time, "monotonic", lambda: now[0])
    with Clock(0, 1, Store(), "127.0.0.1") as clock:
        clock._peers = [Silent() for _ in range(9)]
        assert len(clock.read()) == 1
    assert now[0] < clocks.TIMEOUT_S + 1


def test_an_address_that_nobody_listens_at() -> None:
    store = Store()
    with socket.create_server(("127.0.0.1", 0)) as closing:
        port = closing.getsockname()[1]
    store.set("commtrace/clock", f"127.0.0.1 {port}")
    with Clock(1, 2, store, "127.0.0.1") as clock:
        assert clock.read() == []
