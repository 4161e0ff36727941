"""Take every figure of the bus, and hold the clock."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from functools import cached_property
from itertools import chain, cycle, islice
from statistics import quantiles
from urllib.parse import urlsplit
from urllib.request import urlopen

from wsmux.bus.client import Client
from wsmux.bus.relay.rate_limiter import WINDOW
from wsmux.bus.session.link import Link
from wsmux.bus.wire.address import Address
from wsmux.runtime.deadline import Deadline

from ..blocking import median_us, repeated
from ..processes import Worker, Workers
from .moving import (
    PATIENCE,
    RETURNER,
    SERVICE,
    TRAVELLER,
    Numbered,
    fresh,
    identity,
    messages_per_second,
    open_link,
    small_request,
)

# Twins that exchange messages with themselves while another floods, each thread one at a time; how
# often quiet and flood alternate; and how many such groups of twins there are, which take turns so
# that none reaches the limit.
OTHERS, THREADS, TURNS, GROUPS = 100, 4, 8, 9

# Seconds beside those in which times are taken: flooders begin and end.
BESIDE = 5.0

# The first twin of those that are idle.
IDLE = 1000


class Trips:
    """Exchange messages on one link, one at a time, in the thread that asks for it."""

    def __init__(self, url: str, address: Address, to: Address) -> None:
        self._link: Link = open_link(url, address)
        self._messages = self._link.messages()
        self._message = small_request(address, to)
        self._length = len(small_request(to, address))

    def exchange(self) -> None:
        """Send a message and wait for the one that comes back."""
        if not self._link.send_nowait(self._message):
            raise RuntimeError("a link has no room for one message")
        if len(next(self._messages, b"")) != self._length:
            raise RuntimeError(f"another message came back: {self._link!r}")

    def close(self) -> None:
        """Cut the link."""
        self._messages.close()
        self._link.discard()


class EchoClient(Workers):
    """Measure what sends everything back."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self._url = url

    def messages(self, twins: int, seconds: float) -> float:
        """Return how many messages a second come to so many twins."""
        return messages_per_second(self._url, twins, seconds)

    def trip_p50(self, seconds: float) -> float:
        """Return the median of the microseconds that a message and one back take."""
        address = fresh(1)
        return self._median_trip(address, address, seconds)

    def _median_trip(self, address: Address, to: Address, seconds: float) -> float:
        with closing(Trips(self._url, address, to)) as trips:
            return median_us(trips.exchange, seconds)


class RelayClient(EchoClient):
    """Measure a relay."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._groups = cycle(range(GROUPS))

    def _companion(self, name: str) -> Worker:
        return self.worker("bus.moving", name, self._url)

    def trip_p50(self, seconds: float) -> float:
        self._companion("returner")
        return self._median_trip(TRAVELLER, RETURNER, seconds)

    @cached_property
    def _caller(self) -> Client:
        self._companion("service")
        caller = self.enter_context(Client(identity(1), self._url, Numbered(), twin=1))
        caller.wait_connected(PATIENCE)
        return caller

    def call_p50(self, seconds: float) -> float:
        """Return the median of the microseconds that a call takes, encrypted and signed."""
        call, payload = self._caller.call, {"number": 1}

        def trip() -> None:
            if call(SERVICE, "same", payload, timeout=PATIENCE) != payload:
                raise RuntimeError("the answer is not what was sent")

        return median_us(trip, seconds)

    def kept(self, count: int) -> float:
        """Send messages to a twin that is away and comes then; return the seconds for all that."""
        source, away = fresh(1), fresh(2)
        message, probe = small_request(source, away), small_request(source, source)
        sender = open_link(self._url, source)
        own = sender.messages()
        reader = threading.Thread(target=lambda: next(own, None))  # which is its I/O thread
        reader.start()
        start = time.perf_counter()
        try:
            for _ in range(count):
                sender.send(message, Deadline(PATIENCE))
            sender.send(probe, Deadline(PATIENCE))
            reader.join(PATIENCE)  # messages of one twin are taken in order: all are in the queue
            took = _receive(self._url, away, message, count)
        finally:
            sender.abort()
            reader.join()
            own.close()
        return took - start

    def idle(self, count: int) -> float:
        """Connect twins that then do nothing; return by how many bytes for each it has grown."""
        held = [open_link(self._url, fresh(IDLE))]  # whatever is only loaded once
        try:
            before = self._memory()
            held += [open_link(self._url, fresh(IDLE + 1 + n)) for n in range(count)]
            return (self._memory() - before) / count
        finally:
            for link in held:
                link.discard()

    def flooded(self, seconds: float) -> float:
        """Return the p99 of round trips while another twin floods, in percent of it without."""
        flooder, quiet, loud = self._companion("flooder"), list[float](), list[float]()
        first = 1 + OTHERS * next(self._groups)
        addresses = [fresh(number) for number in range(first, first + OTHERS)]
        _wait_for_window(2 * TURNS * seconds + BESIDE)
        with ExitStack() as stack:
            others = [stack.enter_context(closing(Trips(self._url, at, at))) for at in addresses]
            for _ in range(TURNS):
                quiet += _together(others, seconds)
                flooder.ask()
                loud += _together(others, seconds)
                flooder.ask()
        return 100 * quantiles(loud, n=100)[-1] / quantiles(quiet, n=100)[-1]

    def _memory(self) -> float:
        with urlopen(f"http://{urlsplit(self._url).netloc}/metrics", timeout=PATIENCE) as answer:
            lines = answer.read().decode().splitlines()
        name = "process_resident_memory_bytes "
        return float(next(line for line in lines if line.startswith(name)).removeprefix(name))


def _receive(url: str, address: Address, message: bytes, count: int) -> float:
    """Connect, take so many messages, and return when the last had come."""
    link = open_link(url, address)
    with closing(link.messages()) as messages:
        found = sum(data == message for data in islice(messages, count))
        end = time.perf_counter()
    link.discard()
    if found < count:
        raise RuntimeError(f"{found} of {count} messages came as they were sent: {link!r}")
    return end


def _wait_for_window(seconds: float) -> None:
    """Wait for a new minute if this one ends within so many seconds.

    The relay counts by minutes: with a new one, a flooder may send once more what it may.
    """
    left = WINDOW - time.time() % WINDOW
    if left < min(seconds, WINDOW):
        time.sleep(left)


def _together(others: list[Trips], seconds: float) -> list[float]:
    """Time round trips, each thread those of twins of its own, in turn."""

    def work(mine: list[Trips]) -> list[float]:
        turns = cycle(mine)
        return repeated(lambda: next(turns).exchange(), seconds)

    with ThreadPoolExecutor(THREADS) as pool:
        return [*chain(*pool.map(work, (others[first::THREADS] for first in range(THREADS))))]
