"""A process beside the measuring one: a twin that answers calls, returns messages, or floods.

``Companion`` starts it, and ends it by ending its stdin. It says a line when it is ready. One that
floods begins when it is given a line, and stops with the next one; it says when it has.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from contextlib import suppress
from typing import Self

from wsmux.bus.client import Client
from wsmux.bus.session.link import Link
from wsmux.bus.wire.address import Address
from wsmux.bus.wire.envelope import parse
from wsmux.cli.children import end, undisturbed
from wsmux.exceptions import ConnectionClosed
from wsmux.runtime.deadline import Deadline

from ..processes import ROOT
from .directory import Numbered, identity
from .moving import PATIENCE, fresh, open_link, small_request

__all__ = ["RETURNER", "SERVICE", "TRAVELLER", "Companion", "main"]

# Who answers calls, who floods, and who returns messages to whom.
SERVICE = Address(2001, "service")
FLOODER = 2002
RETURNER, TRAVELLER = Address(2003, "returner"), Address(2004, "traveller")

# Seconds for it to end after its stdin has.
END = 5.0


class Companion:
    """Run such a process.

    Args:
        role: ``"service"``, ``"returner"`` or ``"flooder"``.
        url: the relay.
    """

    def __init__(self, role: str, url: str) -> None:
        program = (
            f"import sys; sys.path.insert(0, {str(ROOT)!r}); "
            f"from benchmarks.bus.companion import main; main({role!r}, {url!r})"
        )
        with undisturbed():
            self._process = subprocess.Popen(
                [sys.executable, "-c", program],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )

    def __enter__(self) -> Self:
        try:
            self._answer()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        end(self._process, END)
        self._process.stdout.close()

    def turn(self) -> None:
        """Have it begin, or stop, and wait until it has."""
        assert self._process.stdin is not None
        self._process.stdin.write("turn\n")
        self._process.stdin.flush()
        self._answer()

    def _answer(self) -> None:
        """Wait for a line; whoever waits for this process ends it when that takes too long."""
        assert self._process.stdout is not None
        if not self._process.stdout.readline():
            raise RuntimeError("the process beside this one has ended; what it said is above")


def main(role: str, url: str) -> None:
    """Run until stdin ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends stdin
    {"service": _serve, "returner": _return, "flooder": _flood}[role](url)


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _serve(url: str) -> None:
    keys = identity(SERVICE.twin)
    with Client(keys, url, Numbered(), twin=SERVICE.twin, session=SERVICE.session) as client:
        client.serve({"same": lambda payload: payload})
        client.wait_connected(PATIENCE)
        _say("ready")
        sys.stdin.read()


def _return(url: str) -> None:
    link, message = open_link(url, RETURNER), small_request(RETURNER, TRAVELLER)

    def answer() -> None:
        for _ in link.messages():
            if not link.send_nowait(message):
                raise RuntimeError("a link has no room for one message")

    thread = threading.Thread(target=answer)
    thread.start()
    _say("ready")
    sys.stdin.read()
    link.abort()
    thread.join()


def _flood(url: str) -> None:
    _say("ready")
    flood: _Flood | None = None
    for _ in sys.stdin:
        if flood is None:
            flood = _Flood(url)
            flood.wait_refused()
            _say("flooding")
        else:
            flood.close()
            flood = None
            _say("quiet")
    if flood is not None:
        flood.close()


class _Flood:
    """Send as fast as the relay reads, and take what it answers."""

    def __init__(self, url: str) -> None:
        address = fresh(FLOODER)
        self._link: Link = open_link(url, address)
        self._message = small_request(address, address)
        self._refused = threading.Event()
        self._threads = [threading.Thread(target=work) for work in (self._send, self._take)]
        for thread in self._threads:
            thread.start()

    def wait_refused(self) -> None:
        """Wait until it is above its limit."""
        if not self._refused.wait(PATIENCE):
            self.close()
            raise RuntimeError("the relay lets it flood")

    def close(self) -> None:
        """Cut the connection."""
        self._link.abort()
        for thread in self._threads:
            thread.join()

    def _send(self) -> None:
        with suppress(ConnectionClosed):
            while True:
                self._link.send(self._message, Deadline(PATIENCE))

    def _take(self) -> None:
        for data in self._link.messages():
            if len(data) != len(self._message) and parse(data).HasField("error"):
                self._refused.set()
