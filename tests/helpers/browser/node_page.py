"""Drive the browser's module in Node, where nothing happens but what a test says."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import wsmux

from ..programs import needs

__all__ = ["NodePage", "node_page"]

PROGRAM = Path(__file__).with_name("page.mjs")
MODULE = Path(wsmux.__file__).parent / "flask" / "wsmux.js"


class NodePage:
    """The page, played by Node.js.

    Attributes:
        sent: messages for the server, which the test takes out.
        closed: the code and the reason with which the page has closed its connection, if it has.
    """

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.sent: list[bytes] = []
        self.closed: tuple[int, str] | None = None

    def connect(self, **limits: int) -> None:
        """Make a new connection, ``mux`` there, in place of the one before."""
        self.sent.clear()
        self.run(
            f"globalThis.mux = new Wsmux('ws://server.test/', {json.dumps(limits)});"
            "mux.closed.catch(() => {}); socket.onopen(); await mux.ready;"
        )

    def run(self, script: str) -> Any:
        """Run the body of an async function; return what it returns, which has to fit in JSON.

        Raises:
            AssertionError: the script threw.
        """
        return self._ask({"run": script})

    def take(self, message: bytes) -> None:
        """Hand over a message of the server's."""
        self._ask({"take": message.hex()})

    def _ask(self, command: dict[str, str]) -> Any:
        to, back = self._process.stdin, self._process.stdout
        assert to is not None
        assert back is not None
        to.write(json.dumps(command) + "\n")
        to.flush()
        line = back.readline()
        assert line, "the page is gone; its last words are above"
        answer = json.loads(line)
        self.sent += map(bytes.fromhex, answer["sent"])
        self.closed = answer["closed"] and tuple(answer["closed"])
        assert "thrown" not in answer, answer["thrown"]
        return answer.get("result")


@contextmanager
def node_page() -> Iterator[NodePage]:
    """Run Node for the block; skip where there is none."""
    program = needs("node")
    with tempfile.TemporaryDirectory() as directory:
        module = Path(directory, "wsmux.mjs")  # by another ending Node takes it for no module
        module.write_bytes(MODULE.read_bytes())
        with subprocess.Popen(
            [program, str(PROGRAM), str(module)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process:  # which ends its input, and it ends with that
            yield NodePage(process)
        assert process.returncode == 0
