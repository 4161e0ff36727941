"""Drive a headless Chromium by its DevTools protocol."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from websocket import WebSocket, create_connection

from ..programs import needs
from ..waiting import wait_for

__all__ = ["HEADLESS", "Page", "browser", "opened"]

# Seconds for a browser to start, and for what is run in it, on a busy machine.
PATIENCE = 60

HEADLESS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage")
COMMANDED = ("--remote-debugging-port=0", "--remote-allow-origins=*")


@contextmanager
def browser(directory: Path) -> Iterator[int]:
    """Run Chromium with a profile in ``directory``; give the port that takes commands."""
    told = directory / "DevToolsActivePort"
    process = subprocess.Popen(
        [needs("chromium"), *HEADLESS, *COMMANDED, f"--user-data-dir={directory}", "about:blank"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_for(lambda: process.poll() is not None or _lines(told) == 2, timeout=PATIENCE)
        assert process.poll() is None, f"chromium ended with {process.returncode}"
        yield int(told.read_text().splitlines()[0])
    finally:
        process.terminate()
        process.wait(PATIENCE)


def _lines(path: Path) -> int:
    return len(path.read_text().splitlines()) if path.exists() else 0


class Page:
    """One tab of the browser."""

    def __init__(self, socket: WebSocket) -> None:
        self._socket = socket
        self._number = 0

    def run(self, script: str) -> Any:
        """Run the body of an async function; return what it returns, which has to fit in JSON.

        Raises:
            AssertionError: the script threw.
        """
        wanted = {"expression": f"(async () => {{{script}}})()", "awaitPromise": True}
        told = self._ask("Runtime.evaluate", {**wanted, "returnByValue": True})
        assert "exceptionDetails" not in told, json.dumps(told["exceptionDetails"], indent=1)
        return told["result"].get("value")

    def load(self, url: str) -> None:
        """Go to an address; wait until its page and its modules have been loaded."""
        self._ask("Page.enable", {})
        self._tell("Page.navigate", {"url": url})
        while json.loads(self._socket.recv()).get("method") != "Page.loadEventFired":
            pass

    def resize(self, width: int, height: int) -> None:
        """Give the page a viewport of another size, in pixels."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self._ask("Emulation.setDeviceMetricsOverride", size)

    def _tell(self, method: str, params: dict[str, Any]) -> None:
        self._number += 1
        self._socket.send(json.dumps({"id": self._number, "method": method, "params": params}))

    def _ask(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        self._tell(method, params)
        while True:
            told = json.loads(self._socket.recv())
            if told.get("id") == self._number:
                assert "error" not in told, told
                result: dict[str, Any] = told["result"]
                return result


@contextmanager
def opened(port: int, url: str) -> Iterator[Page]:
    """Open a tab with a page, and close it behind the block."""
    asked = Request(f"http://127.0.0.1:{port}/json/new?about:blank", method="PUT")
    with urlopen(asked, timeout=PATIENCE) as answer:
        told = json.load(answer)
    socket = create_connection(told["webSocketDebuggerUrl"], timeout=PATIENCE)
    page = Page(socket)
    try:
        page.load(url)
        yield page
    finally:
        urlopen(f"http://127.0.0.1:{port}/json/close/{told['id']}", timeout=PATIENCE).close()
        socket.close()
