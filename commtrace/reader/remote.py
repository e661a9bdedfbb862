"""Traces in a store such as S3: copied here, and not again while they are the same there.

What ``fsspec`` has a driver for can be read. The copies of one path lie in a folder of the cache
whose name follows from its files' sizes, times and tags in the store: a change of any makes
another.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable
from hashlib import blake2b
from pathlib import Path, PurePosixPath
from shutil import rmtree
from tempfile import mkdtemp
from typing import Any

from commtrace.errors import TraceError
from commtrace.reader import cache
from commtrace.reader.files import NOT_TRACES, SUFFIXES

__all__ = ["local"]

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.:-]+://")
_MAGIC = re.compile(r"[*?\[]")
_MANIFEST = NOT_TRACES[0]
_OF_DRIVERS = (
    ("botocore.exceptions", "BotoCoreError"),
    ("google.auth.exceptions", "GoogleAuthError"),
    ("gcsfs.retry", "HttpError"),
    ("azure.core.exceptions", "AzureError"),
    ("aiohttp", "ClientError"),
)


def local(paths: Iterable[str | Path]) -> list[str | Path]:
    """The paths, in place of each URL the copies of the traces that it means.

    Those are the same as of a path. Raises TraceError, which says what is missing, where there
    is none, or where they cannot be copied.
    """
    found: list[str | Path] = []
    for path in paths:
        found += _copies(path) if isinstance(path, str) and _URL.match(path) else [path]
    return found


def _copies(url: str) -> list[Path]:
    system, path = _system(url)
    try:
        system.invalidate_cache()
        home, files = _meant(system, path)
        traces = [file for file in files if PurePosixPath(file).name != _MANIFEST]
        if not traces:
            raise TraceError(f"{url}: holds no trace: name a trace file or a folder of them")
        folder = _copied(system, home, {*files, *_manifests(system, traces)})
    except _errors() as error:
        why = " ".join(str(error).split()) or type(error).__name__
        raise TraceError(f"{url}: cannot be read: {why}") from None
    return [folder / _within(home, file) for file in traces]


def _errors() -> tuple[type[Exception], ...]:
    """What stores and their drivers raise: some have errors that are no OSError."""
    loaded = [(sys.modules[module], name) for module, name in _OF_DRIVERS if module in sys.modules]
    return OSError, ValueError, *(getattr(module, name) for module, name in loaded)


def _system(url: str) -> tuple[Any, str]:
    """The store, and the path in it."""
    try:
        from fsspec.core import url_to_fs
    except ImportError:
        remedy = "pip install 'commtrace[remote]' and the store's driver, such as s3fs or gcsfs"
        raise TraceError(f"{url}: needs fsspec: {remedy}") from None
    try:
        system, path = url_to_fs(url)
    except (ImportError, ValueError) as error:  # no driver, or none for that
        raise TraceError(f"{url}: {error}: pip install its driver for fsspec") from None
    return system, str(path)


def _meant(system: Any, path: str) -> tuple[str, list[str]]:
    """The folder that the copies' names are from, and the files."""
    if magic := _MAGIC.search(path):
        home = path[: magic.start()].rpartition("/")[0]
        matches = sorted(system.glob(path))
        inside = [file for match in matches if system.isdir(match) for file in system.find(match)]
        named = [match for match in matches if system.isfile(match)]
        return home, [file for file in {*inside, *named} if _is_candidate(file)]
    if system.isfile(path):
        return path.rpartition("/")[0], [path]
    return path, [file for file in system.find(path) if _is_candidate(file)]


def _is_candidate(file: str) -> bool:
    name = PurePosixPath(file).name
    return name.endswith(SUFFIXES) and (name not in NOT_TRACES or name == _MANIFEST)


def _manifests(system: Any, traces: Iterable[str]) -> list[str]:
    """The manifests beside traces, which those that are named one by one have, too."""
    beside = {f"{trace.rpartition('/')[0]}/{_MANIFEST}" for trace in traces}
    return [manifest for manifest in sorted(beside) if system.isfile(manifest)]


def _copied(system: Any, home: str, files: Iterable[str]) -> Path:
    files = sorted(files)
    state = repr([(file, system.ukey(file)) for file in files])
    name = blake2b(f"{system.protocol} {state}".encode(), digest_size=20).hexdigest()
    folder = cache.copies() / name
    if not folder.is_absolute():
        raise ValueError("there is no home folder to copy it to: set XDG_CACHE_HOME")
    if folder.is_dir():
        os.utime(folder)  # it was asked for
        return folder
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    begun = Path(mkdtemp(dir=folder.parent))
    try:
        targets = [begun / _within(home, file) for file in files]
        for parent in {target.parent for target in targets}:
            parent.mkdir(parents=True, exist_ok=True)
        system.get(files, [str(target) for target in targets])
        if not folder.is_dir():  # another process may have been quicker
            begun.rename(folder)
    finally:
        rmtree(begun, ignore_errors=True)
    return folder


def _within(home: str, file: str) -> PurePosixPath:
    """A file's name in the folder of copies. Raises ValueError for one that leads out of it."""
    name = PurePosixPath(file.removeprefix(home).lstrip("/"))
    if ".." in name.parts:
        raise ValueError(f"{file} is no file of a folder")
    return name
