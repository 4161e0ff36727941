"""What stands beside the measuring process: who answers calls, returns messages, or floods."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from wsmux.bus.client import Client
from wsmux.bus.wire.address import Address
from wsmux.bus.wire.envelope import parse
from wsmux.exceptions import ConnectionClosed
from wsmux.runtime.deadline import Deadline

from .moving import PATIENCE, Numbered, Station, fresh, identity, open_link, small_request

# Who answers calls, who floods, and who returns messages to whom.
SERVICE = Address(2001, "service")
FLOODER = 2002
RETURNER, TRAVELLER = Address(2003, "returner"), Address(2004, "traveller")


@contextmanager
def service(url: str) -> Iterator[None]:
    """Answer calls."""
    keys = identity(SERVICE.twin)
    with Client(keys, url, Numbered(), twin=SERVICE.twin, session=SERVICE.session) as client:
        client.serve({"same": lambda payload: payload})
        client.wait_connected(PATIENCE)
        yield


@contextmanager
def returner(url: str) -> Iterator[None]:
    """Return messages."""
    station = Station(url, RETURNER, TRAVELLER)
    yield
    station.close()


@contextmanager
def flooder(url: str) -> Iterator[Callable[[], None]]:
    """Yield what begins a flood, and what stops it when it is called again."""
    running: list[_Flood] = []

    def turn() -> None:
        if running:
            running.pop().close()
        else:
            running.append(_Flood(url))
            running[0].wait_refused()

    yield turn
    for flood in running:
        flood.close()


class _Flood:
    """Send as fast as the relay reads, and take what it answers."""

    def __init__(self, url: str) -> None:
        address = fresh(FLOODER)
        self._link = open_link(url, address)
        self._message = small_request(address, address)
        self._refused = threading.Event()
        self._threads = [threading.Thread(target=work) for work in (self._send, self._take)]
        for thread in self._threads:
            thread.start()

    def wait_refused(self) -> None:
        """Wait until it is above its limit."""
        if not self._refused.wait(PATIENCE):
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
