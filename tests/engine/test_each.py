"""One function over many items, whoever does it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

from commtrace.engine import HERE, Lost, each


def square(number: int) -> int:
    if number == 3:
        raise ZeroDivisionError
    return number * number


def dies_once(mark: Path) -> str:
    """Of the first who takes it, as one does whom the system ends for want of memory."""
    if not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return mark.name


def dies(mark: Path) -> str:
    if mark.name == "b":
        os.kill(os.getpid(), signal.SIGKILL)
    return mark.name


@pytest.fixture(params=["here", "pool", "threads", "processes"])
def where(request: pytest.FixtureRequest) -> Iterator[Executor | int]:
    if request.param in ("here", "pool"):
        yield HERE if request.param == "here" else 2
        return
    executor: Executor = (
        ThreadPoolExecutor(2)
        if request.param == "threads"
        else ProcessPoolExecutor(2, mp_context=get_context("fork"))
    )
    with executor:
        yield executor


def test_the_same_results_wherever(where: Executor | int) -> None:
    found = dict(each(square, range(6), where))
    assert isinstance(found[3], Lost)
    assert (found.pop(3).fault or "").startswith("ZeroDivisionError in test_each.py, line ")
    assert found == {0: 0, 1: 1, 2: 4, 4: 16, 5: 25}


@pytest.mark.parametrize("executor", [False, True])
def test_what_is_lost_with_a_process_is_done_once_more(tmp_path: Path, executor: bool) -> None:
    (tmp_path / "a").touch()
    (tmp_path / "c").touch()
    items = [tmp_path / name for name in "abc"]
    with ProcessPoolExecutor(2, mp_context=get_context("fork")) as processes:
        found = dict(each(dies_once, items, processes if executor else 2))
    assert found == {item: item.name for item in items}


@pytest.mark.parametrize("executor", [False, True])
def test_what_processes_die_of_again_costs_itself_alone(tmp_path: Path, executor: bool) -> None:
    items = [tmp_path / name for name in "abc"]
    with ProcessPoolExecutor(2, mp_context=get_context("fork")) as processes:
        found = dict(each(dies, items, processes if executor else 2))
    assert found == {items[0]: "a", items[1]: Lost(killed=True), items[2]: "c"}


def test_a_pool_has_as_many_processes_as_asked_for() -> None:
    known = {found for _, found in each(lambda _: os.getpid(), range(20), 2)}
    assert len(known) == 2
    assert os.getpid() not in known


def test_meanwhile_happens_once_while_others_work() -> None:
    done: list[str] = []
    found = each(square, range(2), 1, meanwhile=lambda: done.append("meanwhile"))
    for _, result in found:
        done.append(str(result))
    assert done == ["meanwhile", "0", "1"]
