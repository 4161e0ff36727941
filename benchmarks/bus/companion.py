"""A process beside the measuring one: a twin that answers calls, returns messages, or floods.

One that floods begins when it is asked, and stops when it is asked again; it says when it has.
"""

from __future__ import annotations

import signal
import sys
import threading
from contextlib import suppress

from wsmux.bus.client import Client
from wsmux.bus.session.link import Link
from wsmux.bus.wire.address import Address
from wsmux.bus.wire.envelope import parse
from wsmux.exceptions import ConnectionClosed
from wsmux.runtime.deadline import Deadline

from ..worker import say
from .moving import PATIENCE, Numbered, fresh, identity, open_link, small_request

__all__ = ["RETURNER", "SERVICE", "TRAVELLER", "main"]

# Who answers calls, who floods, and who returns messages to whom.
SERVICE = Address(2001, "service")
FLOODER = 2002
RETURNER, TRAVELLER = Address(2003, "returner"), Address(2004, "traveller")


def main(role: str, url: str) -> None:
    """Run until stdin ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends stdin
    {"service": _serve, "returner": _return, "flooder": _flood}[role](url)


def _serve(url: str) -> None:
    keys = identity(SERVICE.twin)
    with Client(keys, url, Numbered(), twin=SERVICE.twin, session=SERVICE.session) as client:
        client.serve({"same": lambda payload: payload})
        client.wait_connected(PATIENCE)
        say()
        sys.stdin.read()


def _return(url: str) -> None:
    link, message = open_link(url, RETURNER), small_request(RETURNER, TRAVELLER)

    def answer() -> None:
        for _ in link.messages():
            if not link.send_nowait(message):
                raise RuntimeError("a link has no room for one message")

    thread = threading.Thread(target=answer)
    thread.start()
    say()
    sys.stdin.read()
    link.abort()
    thread.join()


def _flood(url: str) -> None:
    say()
    flood: _Flood | None = None
    for _ in sys.stdin:
        if flood is None:
            flood = _Flood(url)
            flood.wait_refused()
            say()
        else:
            flood.close()
            flood = None
            say()
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
