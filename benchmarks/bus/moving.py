"""Have messages go round among links, be returned, or flood, and calls be answered.

Twins are named by numbers alone: their keys come from those, so that every process knows all.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache

from wsmux.bus.client import Client
from wsmux.bus.session.link import Link, dial
from wsmux.bus.twins.records import Twin, TwinDirectory
from wsmux.bus.wire.address import Address
from wsmux.bus.wire.envelope import digest, parse, request
from wsmux.bus.wire.keys import Identity, KeyType
from wsmux.bus.wire.tokens import make_token
from wsmux.exceptions import ConnectionClosed
from wsmux.runtime.deadline import Deadline

from ..words import SMALL

DOMAIN = "relay.bench"

# Twins that there are.
COUNT = 4096

# Seconds for a connection, or a message, that the measurement cannot do without.
PATIENCE = 30.0

# Messages under way in all, and for each link at least.
UNDER_WAY, FEWEST = 256, 4

# Seconds for which a message of the bench lives.
LIFE = 3600

# Times that each message has gone on when the clock starts, and seconds between two looks.
WARM_UP, PAUSE = 4, 0.005


# Who answers calls, who floods, and who returns messages to whom.
SERVICE = Address(2001, "service")
FLOODER = 2002
RETURNER, TRAVELLER = Address(2003, "returner"), Address(2004, "traveller")


def identity(number: int) -> Identity:
    """Return the keys of a twin."""
    return Identity.from_secret(f"0x{number:064x}", KeyType.SR25519)


@lru_cache(COUNT)
def _twin(number: int) -> Twin:
    keys = identity(number)
    return Twin(number, keys.account, (DOMAIN,), keys.e2e_public)


class Numbered(TwinDirectory):
    """Have the twins from 1 to ``COUNT``, all of one relay."""

    name = "the twins of the bench"

    def get(self, twin_id: int, deadline: Deadline) -> Twin | None:
        return _twin(twin_id) if 0 < twin_id <= COUNT else None

    def find(self, account: bytes, deadline: Deadline) -> Twin | None:
        twins = map(_twin, range(1, COUNT + 1))
        return next((twin for twin in twins if twin.account == account), None)


def fresh(twin: int) -> Address:
    """Return a session of a twin that there has not been."""
    return Address(twin, secrets.token_hex(8))


def open_link(url: str, address: Address) -> Link:
    """Connect a session; the caller runs the link."""

    def token() -> str:
        return make_token(identity(address.twin), *address, int(time.time()))

    return dial(url, token, Deadline(PATIENCE))


def small_request(source: Address, destination: Address) -> bytes:
    """Return an envelope with a small payload, as it travels."""
    number, now, plain = secrets.token_hex(16), int(time.time()), bytes(SMALL)
    made = request(number, source, destination, "echo", now, LIFE, plain=plain)
    made.signature = identity(source.twin).sign(digest(made))
    return made.SerializeToString()


class Station:
    """Send a message of its own to the next session for each that comes."""

    def __init__(self, url: str, address: Address, to: Address) -> None:
        self.link = open_link(url, address)
        self.count = 0
        self.failure: Exception | None = None
        self._message = small_request(address, to)
        self._length = len(self._message)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def begin(self, count: int) -> None:
        """Send the first messages; what ends the link before is told by who counts."""
        with suppress(ConnectionClosed):
            for _ in range(count):
                self.link.send(self._message, Deadline(PATIENCE))

    def close(self) -> None:
        """Cut the link."""
        self.link.abort()
        self._thread.join()

    def _run(self) -> None:
        link, message = self.link, self._message
        batches = link.batches()
        try:
            for batch in batches:
                for data in batch:
                    if len(data) != self._length:
                        raise RuntimeError("a message came that none of the bench is")
                    if not link.send_nowait(message):
                        raise RuntimeError("a link has no room for the few that go round")
                self.count += len(batch)
        except Exception as error:
            self.failure = error  # before the link ends, so that nobody takes that for the cause
        finally:
            batches.close()


def messages_per_second(url: str, twins: int, seconds: float) -> float:
    """Return how many messages come per second to so many twins, each of which sends to the next.

    A few are under way for each; what comes is not read, but counted. The clock starts when they
    have gone round, and does not stop before one has come.
    """
    addresses = [fresh(number) for number in range(1, twins + 1)]
    stations: list[Station] = []
    try:
        for position, address in enumerate(addresses):
            stations.append(Station(url, address, addresses[(position + 1) % twins]))
        each = max(FEWEST, UNDER_WAY // twins)
        for station in stations:
            station.begin(each)
        before = _wait_for(stations, WARM_UP * twins * each)
        start = time.perf_counter()
        time.sleep(seconds)
        after, end = _wait_for(stations, before + 1), time.perf_counter()
    finally:
        for station in stations:
            station.close()
    return (after - before) / (end - start)


def _wait_for(stations: Sequence[Station], count: int) -> int:
    """Return how many messages have come, once they are so many.

    Raises:
        Exception: what ended a station.
    """
    deadline = Deadline(PATIENCE)
    while (found := sum(station.count for station in stations)) < count:
        for station in stations:
            if failure := station.failure or station.link.error:
                raise failure
        if deadline.expired():
            raise RuntimeError(f"{found} messages came in {PATIENCE:.0f} s, not {count}")
        time.sleep(PAUSE)
    return found


# Processes beside the measuring one


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
            running[0].wait_steady()

    yield turn
    for flood in running:
        flood.close()


class _Flood:
    """Send as fast as the relay reads, and take what it answers."""

    def __init__(self, url: str) -> None:
        address = fresh(FLOODER)
        self._link = open_link(url, address)
        self._message = small_request(address, address)
        self._refused, self._full = threading.Event(), threading.Event()
        self._threads = [threading.Thread(target=work) for work in (self._send, self._take)]
        for thread in self._threads:
            thread.start()

    def wait_steady(self) -> None:
        """Wait until it is above its limit, and sends no more than the relay reads.

        It shares a core with who measures, and before that takes more of it than the relay does.
        """
        if not self._refused.wait(PATIENCE):
            raise RuntimeError("the relay lets it flood")
        if not self._full.wait(PATIENCE):
            raise RuntimeError("the relay reads whatever it sends")

    def close(self) -> None:
        """Cut the connection."""
        self._link.abort()
        for thread in self._threads:
            thread.join()

    def _send(self) -> None:
        with suppress(ConnectionClosed):
            while True:
                if not self._link.send_nowait(self._message):
                    self._full.set()
                    self._link.send(self._message, Deadline(PATIENCE))

    def _take(self) -> None:
        for data in self._link.messages():
            if len(data) != len(self._message) and parse(data).HasField("error"):
                self._refused.set()
