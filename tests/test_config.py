"""A user's own communication kernels, and what is wrong with a configuration."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from commtrace import config, kernels
from commtrace.errors import UsageError
from commtrace.kernels import Kernel

OURS = (
    '[tool.commtrace.communication]\nkernels = {"my_fast_allreduce" = "all_reduce", "^put_" = ""}\n'
)


def forget() -> None:
    config.kernel_patterns.cache_clear()
    kernels.known.cache_clear()


@pytest.fixture
def configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Path]]:
    """A current folder with this configuration."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COMMTRACE_CONFIG", raising=False)

    def write(text: str | bytes, name: str = "pyproject.toml") -> Path:
        file = tmp_path / name
        file.write_bytes(text.encode() if isinstance(text, str) else text)
        forget()
        return file

    yield write
    forget()


def test_patterns_are_searched_and_leave_nccl_alone(configured: Callable[..., Path]) -> None:
    configured(OURS)
    assert kernels.known("void mine::my_fast_allreduce_v2<float>(x)") == Kernel(
        "all_reduce", "all_reduce"
    )
    assert kernels.known("put_rows") == Kernel()
    assert kernels.known("void put_rows") is None
    configured('[tool.commtrace.communication]\nkernels = {"AllGather" = "broadcast"}\n')
    gathers = Kernel("all_gather", "all_gather", is_nccl=True)
    assert kernels.known("ncclDevKernel_AllGather_RING_LL(x)") == gathers


def test_a_file_of_any_name(
    configured: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMMTRACE_CONFIG", str(configured(OURS, "mine.toml")))
    assert kernels.is_communication("my_fast_allreduce")


@pytest.mark.parametrize("text", ["", "[project]\nname = 'other", "[tool.commtrace]\n"])
def test_a_file_that_says_nothing_of_us(configured: Callable[..., Path], text: str) -> None:
    configured(text)
    assert config.kernel_patterns() == ()


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[tool.commtrace", "is not TOML"),
        (b"# commtrace \xff\n", "is not TOML"),
        ("tool = {commtrace = 3}", "must be a table"),
        ("[tool.commtrace]\ncommunication = []", "must be a table"),
        ("[tool.commtrace.communication]\nkernels = ['a']", "must be a table"),
        (
            "[tool.commtrace.communication]\nkernels = {a = 'allreduce'}",
            "'allreduce' is no operation",
        ),
        ("[tool.commtrace.communication]\nkernels = {a = 1}", "1 is no operation"),
        ("[tool.commtrace.communication]\nkernels = {a = []}", "no operation"),
        ("[tool.commtrace.communication]\nkernels = {'(' = ''}", "no regular expression"),
    ],
)
def test_a_wrong_file_is_one_line_that_names_it(
    configured: Callable[..., Path], text: str | bytes, complaint: str
) -> None:
    configured(text)
    with pytest.raises(UsageError, match=complaint) as error:
        kernels.known("any")
    assert str(error.value).startswith("pyproject.toml: ")
    assert "\n" not in str(error.value)


def test_a_named_file_must_be_there(
    configured: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMMTRACE_CONFIG", "none.toml")
    configured("")
    with pytest.raises(UsageError, match=r"^none\.toml: .* COMMTRACE_CONFIG names it"):
        config.kernel_patterns()


def test_thresholds_of_rules(configured: Callable[..., Path]) -> None:
    configured("[tool.commtrace.rules.straggler]\nmin_step_share = 0.1\n")
    assert config.rule_thresholds() == (
        Path("pyproject.toml"),
        {"straggler": {"min_step_share": 0.1}},
    )


@pytest.mark.parametrize("rules", ["rules = 3", "rules.straggler = 3"])
def test_thresholds_that_are_no_tables(configured: Callable[..., Path], rules: str) -> None:
    configured(f"[tool.commtrace]\n{rules}\n")
    with pytest.raises(UsageError, match=r"pyproject\.toml: tool\.commtrace\.rules.* a table of"):
        config.rule_thresholds()
