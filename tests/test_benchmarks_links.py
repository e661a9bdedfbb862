"""What-ifs of a link, held against a recording without the slow link."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.links import error, rows


def test_a_promise_against_what_was_had() -> None:
    assert error(30, 20) == "+50%"
    assert error(30, -5) == "the clean one is no faster"


def test_a_line_for_each_round_that_has_both(
    tmp_path: Path, recorded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    its = recorded / "isend_irecv" / "gloo-4"
    for name in ("slow-link-1", "none-1", "slow-link-2"):
        (tmp_path / f"gossip_hosts-{name}").symlink_to(its.resolve())
    (line,) = rows(tmp_path)
    name, number, slow, clean, saved, *promised = line.strip("| ").split(" | ")
    assert (name, number, slow, saved) == ("gossip_hosts", "1", clean, "0.0")
    assert promised[1::2] == ["the clean one is no faster"] * 2
