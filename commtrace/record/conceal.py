"""What a recording repeats of a program's arguments, variables and errors; the rest is ``***``.

A secret may stand anywhere, so that only what is known to be harmless keeps its value.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping

from commtrace.comms import canonical_dtype
from commtrace.record.harmless import NAMES, VALUES, VARIABLES
from commtrace.record.workloads import Value

__all__ = ["HIDDEN", "arguments", "environment", "message", "settings"]

HIDDEN = "***"

_CONCERNS = re.compile(r"(?:NCCL|TORCH|CUDA|GLOO)_\w+|GLIBC_TUNABLES|OMP_NUM_THREADS", re.ASCII)
_SETTING = re.compile(r"[\w.,:;^=+ -]{0,200}", re.ASCII)  # neither a path nor an address
_PLAIN = re.compile(r"[\w.-]{0,40}", re.ASCII)
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?", re.ASCII | re.IGNORECASE)
_LONGEST_NUMBER = 12
_OPTION = re.compile(r"(--?[a-z][\w.-]{0,60})(?:=(.*))?", re.ASCII | re.IGNORECASE | re.DOTALL)
_ASSIGNMENT = re.compile(r"(\+{0,2}[a-z][\w.-]*)=(.*)", re.ASCII | re.IGNORECASE | re.DOTALL)

_SHORTEST = 4  # of what is looked for in messages: shorter words stand in most of them
_SECRET_NAME = re.compile(r"TOKEN|SECRET|PASS|CREDENTIAL|KEY|AUTH", re.IGNORECASE)
_TOKEN = re.compile(r"(?<![a-zA-Z0-9])(?:hf_|gh[pousr]_|github_pat_|glpat-|sk-|xox[a-z]-|AKIA|eyJ)")
_SPACES, _URL_PARTS = re.compile(r"\s+"), re.compile(r"[\s:/@?&=]+")
_SECRETS = (
    re.compile(_TOKEN.pattern + r"[\w.-]{16,}", re.ASCII),
    re.compile(r"(?<=://)[^\s/@]+(?=@)"),  # of user:password@host
    re.compile(r"(?<=\bbearer )[^\s,'\"]+", re.IGNORECASE),
)


def arguments(given: Iterable[str]) -> list[str]:
    """A program's arguments: options by name, few with their values.

    >>> arguments(["--lr", "1e-4", "--auth", "X", "-pX", "train", "lr=1", "key=X", "--bs=hf_X"])
    ['--lr', '1e-4', '--auth', '***', '-p***', '***', 'lr=1', '***', '--bs=***']
    """
    return [kept for _, kept in _kept(given)]


def environment(given: Mapping[str, str]) -> dict[str, str]:
    """The variables that concern communication: all by name, few with their values.

    >>> environment({"NCCL_ALGO": "Ring", "TORCH_HUB_AUTH": "X", "HOME": "/home/me"})
    {'NCCL_ALGO': 'Ring', 'TORCH_HUB_AUTH': '***'}
    """
    return {
        name: value if name in VARIABLES and _is_setting(value) else HIDDEN
        for name, value in sorted(given.items())
        if _CONCERNS.fullmatch(name)
    }


def settings(chosen: Mapping[str, Value]) -> dict[str, Value]:
    """A workload's settings: numbers, and texts that are one plain word.

    >>> settings({"elements": 8, "variant": "late_root", "url": "a@b", "token": "X"})
    {'elements': 8, 'variant': 'late_root', 'url': '***', 'token': '***'}
    """
    return {
        name: HIDDEN if isinstance(value, str) and not _is_plain(name, value) else value
        for name, value in chosen.items()
    }


def message(text: str, given: Iterable[str]) -> str:
    """An error's text without what is hidden of the arguments ``given``, nor other secrets.

    >>> message("HTTPError: no data/set at https://me:pw@host", ["--data", "data/set"])
    'HTTPError: no *** at https://***@host'
    """
    for secret in _SECRETS:
        text = secret.sub(HIDDEN, text)
    hidden = sorted(_hidden(given), key=len, reverse=True)
    if not hidden:
        return text
    anyone = "|".join(map(re.escape, hidden))
    return re.sub(rf"(?<!\w)(?:{anyone})(?!\w)", HIDDEN, text)


def _kept(given: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Each argument, and what is kept of it."""
    takes_value = False
    for argument in given:
        if takes_value and _is_harmless_value(argument):
            takes_value = False
            yield argument, argument
            continue
        option = _OPTION.fullmatch(argument)
        takes_value = option is not None and option[2] is None and _is_harmless_name(option[1])
        if option and not _TOKEN.search(option[1]):
            yield argument, _option(option[1], option[2])
        else:
            yield argument, _assignment(argument)


def _option(name: str, value: str | None) -> str:
    harmless = _is_harmless_name(name)
    if not harmless and name[1] != "-" and len(name) > 2:  # a value may stand close: -pX
        return name[:2] + HIDDEN
    if value is None:
        return name
    return f"{name}={value if harmless and _is_harmless_value(value) else HIDDEN}"


def _assignment(argument: str) -> str:
    match = _ASSIGNMENT.fullmatch(argument)
    if match and _is_harmless_name(match[1]):
        return f"{match[1]}={match[2] if _is_harmless_value(match[2]) else HIDDEN}"
    return argument if argument == "--" else HIDDEN


def _is_harmless_name(name: str) -> bool:
    return NAMES.issuperset(re.split(r"[._-]", name.lstrip("+-").lower()))


def _is_harmless_value(text: str) -> bool:
    if _NUMBER.fullmatch(text):
        return len(text) <= _LONGEST_NUMBER
    name = text.lower().removeprefix("torch.")
    return name in VALUES or canonical_dtype(name) is not None


def _is_plain(name: str, value: str) -> bool:
    known = bool(_PLAIN.fullmatch(value)) and not _TOKEN.search(value)
    return known and not _SECRET_NAME.search(name)


def _is_setting(value: str) -> bool:
    return bool(_SETTING.fullmatch(value)) and not _TOKEN.search(value)


def _hidden(given: Iterable[str]) -> set[str]:
    """Words that no message is to repeat."""
    hidden = [value for name, value in os.environ.items() if _SECRET_NAME.search(name)]
    for argument, kept in _kept(given):
        if kept.endswith(HIDDEN):
            value = argument[len(kept) - len(HIDDEN) :]
            hidden += [argument, value, *(_URL_PARTS if "://" in value else _SPACES).split(value)]
    return {word for word in hidden if len(word) >= _SHORTEST}
