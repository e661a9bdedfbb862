"""Chromium without a window, driven over a pipe by the DevTools protocol."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

__all__ = ["Browser", "Page", "chromium"]

_FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--disable-dev-shm-usage", "--hide-scrollbars", "--force-color-profile=srgb"),
)
_PATIENCE_S = 120


def chromium() -> str | None:
    """The program; None where there is none."""
    return shutil.which("chromium") or shutil.which("chromium-browser")


class Browser:
    """A browser with a profile of its own. Ends with ``close``."""

    def __init__(self, program: str, profile: Path) -> None:
        commands, self._commands = os.pipe()
        self._answers, answers = os.pipe()
        # It reads from 3 and writes to 4; only bash takes numbers above 9 behind the arrows.
        self._process = subprocess.Popen(
            [
                *("bash", "-c", f'exec "$@" 3<&{commands} 4>&{answers}', "bash", program, *_FLAGS),
                *(f"--user-data-dir={profile}", "--remote-debugging-pipe", "about:blank"),
            ],
            pass_fds=(commands, answers),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(commands)
        os.close(answers)
        self._number = 0
        self._rest = b""
        self.events: list[dict[str, Any]] = []

    def close(self) -> None:
        """End it."""
        self._process.terminate()
        self._process.wait(_PATIENCE_S)
        os.close(self._commands)
        os.close(self._answers)

    def send(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        """The answer to one command; what happens meanwhile is kept in ``events``."""
        self._number += 1
        command = {"id": self._number, "method": method, "params": parameters}
        if session:
            command["sessionId"] = session
        os.write(self._commands, json.dumps(command).encode() + b"\0")
        while True:
            message = self._message()
            if message.get("id") == self._number:
                assert "error" not in message, message
                return dict(message["result"])
            self.events.append(message)

    def page(self, url: str, *, width: int = 1280, height: int = 900, **features: str) -> Page:
        """A loaded page; ``features`` are media features, as in ``prefers_color_scheme="dark"``."""
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = Page(self, session, target)
        page.send("Runtime.enable")
        page.send("Network.enable")
        page.send("Page.enable")
        page.resize(width, height)
        named = [{"name": k.replace("_", "-"), "value": v} for k, v in features.items()]
        page.send("Emulation.setEmulatedMedia", features=named)
        page.send("Page.navigate", url=url)
        page.wait_for("document.readyState === 'complete' && location.href !== 'about:blank'")
        return page

    def _message(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._answers], [], [], _PATIENCE_S)
            assert ready, "the browser does not answer"
            more = os.read(self._answers, 1 << 20)
            assert more, "the browser has ended"
            self._rest += more
        text, _, self._rest = self._rest.partition(b"\0")
        return dict(json.loads(text))


class Page:
    """One page of a browser."""

    def __init__(self, browser: Browser, session: str, target: str) -> None:
        self._browser, self._session, self._target = browser, session, target

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command for this page."""
        return self._browser.send(method, self._session, **parameters)

    def close(self) -> None:
        """Close it."""
        self._browser.send("Target.closeTarget", targetId=self._target)

    def resize(self, width: int, height: int) -> None:
        """As large as that, in CSS pixels."""
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def evaluate(self, script: str) -> Any:
        """What an expression is, promises awaited; errors of the script are errors."""
        answer = self.send(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait_for(self, condition: str) -> None:
        """Until an expression is true."""
        until = time.monotonic() + _PATIENCE_S
        while not self.evaluate(f"Boolean({condition})"):
            assert time.monotonic() < until, condition
            time.sleep(0.02)

    def click(self, selector: str) -> None:
        """Click what a selector finds first."""
        self.evaluate(f"document.querySelector({json.dumps(selector)}).click()")

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        """``mouseMoved``, ``mousePressed``, ``mouseReleased`` or ``mouseWheel`` at a place."""
        self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def press(self, key: str) -> None:
        """A key, by its name in JavaScript."""
        text = {"text": key} if len(key) == 1 else {}
        self.send("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
        self.send("Input.dispatchKeyEvent", type="keyUp", key=key)

    @property
    def problems(self) -> list[Any]:
        """Uncaught errors, errors on the console, and requests to anywhere but files."""
        return [event["params"] for event in self._events() if _is_problem(event)]

    @property
    def answered(self) -> set[str]:
        """The addresses on the network that it got answers from."""
        met = [e["params"] for e in self._events() if e["method"] == "Network.responseReceived"]
        addresses = {its["response"]["url"] for its in met}
        return {address for address in addresses if address.startswith(("http", "ws"))}

    def screenshot(self, file: Path, *, whole: bool = True) -> None:
        """Write a PNG, of the whole page or of what is in view."""
        answer = self.send("Page.captureScreenshot", captureBeyondViewport=whole)
        file.write_bytes(base64.b64decode(answer["data"]))

    def _events(self) -> list[dict[str, Any]]:
        self.evaluate("0")
        return [event for event in self._browser.events if event.get("sessionId") == self._session]


def _is_problem(event: dict[str, Any]) -> bool:
    method, its = event["method"], event["params"]
    if method == "Network.requestWillBeSent":
        return not its["request"]["url"].startswith(("file:", "about:", "data:"))
    return method == "Runtime.exceptionThrown" or (
        method in ("Runtime.consoleAPICalled", "Log.entryAdded") and its.get("type") == "error"
    )
