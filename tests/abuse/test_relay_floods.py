"""Have one identity flood a relay that has a limit: it is told, kept, and alone with it (H20).

That a twin which reads no answers is ended, and holds up nobody, is in ``bus/test_relay_ends``.
"""

from __future__ import annotations

import json
import socket
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path

import pytest

from wsmux.bus.relay import router
from wsmux.bus.relay.rate_limiter import WINDOW, FixedWindow
from wsmux.bus.session.link import dial
from wsmux.bus.twins.records import twin_record
from wsmux.bus.wire.address import Address
from wsmux.bus.wire.tokens import make_token
from wsmux.runtime.deadline import Deadline

from ..helpers.bus.links import Running
from ..helpers.bus.people import DOMAIN, person
from ..helpers.bus.relay_process import RelayProcess
from ..helpers.bus.relays import Node, ask, identity, relay, served
from ..helpers.every_server import NO_SUBPROTOCOL, Place
from ..helpers.raw_peer import BINARY, WAIT, RawPeer, in_thread, wait_for

FLOODER = 9

# Messages that each twin may send; the others send fewer.
LIMIT = 50

# The same in a minute, where times are taken, and what is sent by turns.
ALLOWED = 3000
TURNS = 6
EXCHANGES = 200

# Messages that the flooder has made beforehand, and repeats.
COUNT = 2000


@contextmanager
def flooder(port: int) -> Iterator[RawPeer]:
    """Connect the twin that floods, by hand."""
    token = make_token(identity(FLOODER), FLOODER, None, int(time.time()))
    with Place(port, f"/?{token}", NO_SUBPROTOCOL).peer() as peer:
        yield peer


def flood(peer: RawPeer, count: int) -> bytes:
    """Return the frames of so many requests, for a twin that is not there."""
    source = Address(FLOODER, None)
    made = [ask(source, Address(1, "nobody"), uid=f"flood-{n}") for n in range(count)]
    return b"".join(peer.frame(BINARY, each.SerializeToString()) for each in made)


def test_a_flood_is_dropped_and_told_and_its_connection_kept() -> None:
    made = relay(limiter=FixedWindow(LIMIT, 10**6, window=1e12), pause=lambda _: None)
    with served(made) as server, Node(server, FLOODER) as one, Node(server, 2) as two:
        for number in range(3 * LIMIT):
            one.ask(Address(2), uid=str(number))
        told = [one.refused() for _ in range(2 * LIMIT)]
        assert told == [(str(number), router.LIMITED) for number in range(LIMIT, 3 * LIMIT)]
        assert [two.take().uid for _ in range(LIMIT)] == [str(n) for n in range(LIMIT)]
        two.nothing()
        assert two.ask(one.address) == one.take(), "it still gets what others send"
        assert one.link.error is None


def test_further_sessions_of_the_identity_help_it_nothing() -> None:
    made = relay(limiter=FixedWindow(LIMIT, 10**6, window=1e12), pause=lambda _: None)
    with served(made) as server, ExitStack() as stack:
        sessions = [stack.enter_context(Node(server, FLOODER, str(n))) for n in range(5)]
        two = stack.enter_context(Node(server, 2))
        for number in range(LIMIT):
            for node in sessions:
                node.ask(two.address, uid=f"{node.address.session}-{number}")
        passed = [two.take() for _ in range(LIMIT)]
        two.nothing()
        assert {each.source.twin for each in passed} == {FLOODER}


# The figure: how long others wait beside it


class Flood:
    """Send what the relay takes from one identity."""

    def __init__(self, peer: RawPeer) -> None:
        self._peer = peer
        self.frames = flood(peer, COUNT)
        self._over = threading.Event()
        self.sent = 0
        self._sending = in_thread(self._send)
        self._reading = in_thread(self._read)

    def _send(self) -> None:
        at = 0
        try:
            while not self._over.is_set():
                taken = self._peer.sock.send(self.frames[at : at + 4096])
                at = (at + taken) % len(self.frames)
                self.sent += taken
        except OSError:
            return

    def _read(self) -> None:
        """Take what it is told, or it would be ended for that."""
        try:
            while self._peer.sock.recv(2**16):
                pass
        except OSError:
            return

    def goes_on(self) -> bool:
        """Return whether its connection is kept."""
        return not (self._sending.done() or self._reading.done())

    def close(self) -> None:
        self._over.set()
        self._peer.sock.shutdown(socket.SHUT_RDWR)
        self._sending.result(WAIT)
        self._reading.result(WAIT)


@contextmanager
def flooding(port: int) -> Iterator[Flood]:
    """Flood while the block runs, all of it above the limit."""
    with flooder(port) as peer:
        attack = Flood(peer)
        burnt = ALLOWED * len(attack.frames) / COUNT
        wait_for(lambda: attack.sent > burnt, "the flooder to have used up what it may send")
        try:
            yield attack
            assert attack.goes_on()
        finally:
            attack.close()


class Joined(Node):
    """A twin at a relay in another process."""

    def __init__(self, url: str, twin: int) -> None:
        self.address = Address(twin, None)

        def token() -> str:
            return make_token(identity(twin), twin, None, int(time.time()))

        Running.__init__(self, dial(url, token, Deadline(WAIT)))


def wait_for_window() -> None:
    """Wait until a minute has just begun, as the relay counts by minutes."""
    deadline = Deadline(2 * WINDOW)
    while time.time() % WINDOW > 5 and not deadline.expired():
        time.sleep(0.1)  # there is nothing but the clock to wait for


def waits(one: Node, two: Node, count: int) -> list[float]:
    """Return the seconds of so many messages from one twin to another and back."""
    seconds = []
    for _ in range(count):
        started = time.perf_counter()
        one.ask(two.address)
        two.take()
        two.ask(one.address)
        one.take()
        seconds.append(time.perf_counter() - started)
    return seconds


def ninety_ninth(seconds: list[float]) -> float:
    return statistics.quantiles(seconds, n=100)[98]


@pytest.mark.long
def test_others_wait_at_most_a_fifth_longer_beside_a_flood(
    tmp_path: Path, figure: Callable[[str], None]
) -> None:
    """The relay is a process of its own; turns with and without the flood alternate."""
    file = tmp_path / "twins.json"
    known = [person(number).record(relays=(DOMAIN,), key=False) for number in (1, 2, FLOODER)]
    file.write_text(json.dumps([twin_record(twin) for twin in known]))
    log = tmp_path / "relay.log"
    alone: list[float] = []
    beside: list[float] = []
    with (
        RelayProcess(DOMAIN, file, log, "--limit", str(ALLOWED), "1000000000") as process,
        Joined(process.url, 1) as one,
        Joined(process.url, 2) as two,
    ):
        wait_for_window()
        with flooding(process.port):
            waits(one, two, EXCHANGES)  # to warm up
        for turn in range(TURNS):
            for flooded in (turn % 2 == 0, turn % 2 == 1):
                with flooding(process.port) if flooded else nullcontext():
                    (beside if flooded else alone).extend(waits(one, two, EXCHANGES))
        one.answers()
    share = ninety_ninth(beside) / ninety_ninth(alone) - 1
    middle = statistics.median(beside) / statistics.median(alone) - 1
    figure(f"p99 {share:+.0%}, median {middle:+.0%}, p99 alone {1000 * ninety_ninth(alone):.1f} ms")
    assert share <= 0.2
