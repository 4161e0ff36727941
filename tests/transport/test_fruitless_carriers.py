"""Carriers that end before anything gets through are no reason to go on for ever, or in a hurry."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import pytest

import wsmux
from wsmux.config import LEAST_RESUME_BUFFER, Config
from wsmux.endpoints.reconnector import FIRST_DELAY, pause_after
from wsmux.protocols.base import Role
from wsmux.protocols.resumable_framing import ResumableFraming
from wsmux.protocols.resumption import Session
from wsmux.runtime import clock
from wsmux.transport.resumable_transport import STANDS, Carrier, ResumableTransport

from ..helpers.broken_setups import echo
from ..helpers.frame_limit import FrameLimit
from ..helpers.raw_peer import in_thread
from ..helpers.resumed import read_all
from ..helpers.timeouts import CONNECTS, WAIT
from ..helpers.waiting import wait_for

KIB = 1024
DATA = os.urandom(64 * KIB)  # one frame, by default

# More carriers than the growing pauses leave room for within the grace, of which a hot loop takes
# hundreds.
MOST = 30

CONFIG = Config()


@contextmanager
def joined(
    grace: float, handler: Callable[[wsmux.Stream], object] = echo
) -> Iterator[tuple[wsmux.Connection, wsmux.Server, FrameLimit]]:
    """Yield a client behind a gateway, its server, and the gateway."""
    resume = wsmux.Resume(grace=grace)
    with (
        wsmux.serve(stream_handler=handler, resume=resume) as server,
        FrameLimit(server.port, 32 * KIB) as gateway,
    ):
        client = wsmux.connect(gateway.url, resume=resume)
        try:
            yield client, server, gateway
        finally:
            client.abort()
            server.shutdown(0)


def test_a_message_that_a_gateway_refuses_ends_the_session_with_its_grace() -> None:
    with joined(CONNECTS) as (client, _, gateway):
        stream = client.open_stream(timeout=WAIT)
        stream.write(DATA)
        with pytest.raises(wsmux.ResumeLost) as error:
            in_thread(stream.read, 1).result(WAIT)
        assert "nothing was acknowledged for 3 s over" in error.value.why
        assert "it was closed with code 1009" in error.value.why
        assert error.value.unacknowledged > len(DATA)
        assert 3 <= gateway.accepted <= MOST


def test_one_of_the_server_ends_it_too() -> None:
    """Its client keeps nothing, and only sees that carriers come to nothing."""

    def answer(stream: wsmux.Stream) -> None:
        stream.read(1)
        stream.write(DATA)

    with joined(CONNECTS, answer) as (client, server, gateway):
        stream = client.open_stream(timeout=WAIT)
        stream.write(b"?")
        (connection,) = server.connections
        with pytest.raises(wsmux.ResumeLost):
            in_thread(stream.read, 1).result(WAIT)
        assert connection.wait_closed(WAIT)
        assert "it was closed with code 1009" in str(connection.error)
        assert 3 <= gateway.accepted <= MOST


def test_it_goes_on_once_the_message_gets_through() -> None:
    with joined(WAIT) as (client, _, gateway):
        stream = client.open_stream(timeout=WAIT)
        stream.timeout = WAIT
        stream.write(DATA)
        wait_for(lambda: gateway.accepted > 4)
        gateway.limit = 1024 * KIB
        client.reconnect_now()
        assert read_all(stream, len(DATA)) == DATA


# What counts


class Flapping:
    """Bring a carrier at once whenever one is lost, whose peer has gone already.

    Attributes:
        now: the time; an outage takes ``outage`` seconds, and a carrier stands for ``stands``.
        arrived: the peers say that they have received all.
        seen: at each loss, how many carriers in a row were fruitless, and the grace left.
    """

    def __init__(self, outage: float = 1.0, stands: float = 0.0, arrived: bool = False) -> None:
        self.now = time.monotonic()
        self.outage, self.stands, self.arrived = outage, stands, arrived
        self.seen: list[tuple[int, int]] = []

    def started(self, transport: ResumableTransport) -> None: ...

    def lost(self, transport: ResumableTransport) -> None:
        self.seen.append((transport.fruitless, round(transport.grace_left())))
        ours, theirs = socket.socketpair()
        theirs.close()
        assert transport.offer(Carrier(ours, transport.session.sent if self.arrived else 0))
        self.now += self.outage

    def found(self, transport: ResumableTransport) -> None:
        self.now += self.stands

    def ended(self, transport: ResumableTransport) -> None: ...

    def hurry(self) -> None: ...

    def next_attempt(self) -> float | None:
        return None


def flap(
    carriers: Flapping, monkeypatch: pytest.MonkeyPatch, sends: bool = True
) -> wsmux.WsmuxError | None:
    """Lose carriers until there were five, or the session is lost; return why it was.

    Args:
        sends: there is a message that the first of them takes.
    """
    monkeypatch.setattr(clock, "monotonic", lambda: carriers.now)
    ours, theirs = socket.socketpair()
    session = Session(bytes(16), LEAST_RESUME_BUFFER, 60.0)
    framing = ResumableFraming(Role.CLIENT, CONFIG.max_message_size, 8, session)
    transport = ResumableTransport(ours, framing, Role.CLIENT, CONFIG, carriers)
    if sends:
        with transport.mutex:
            transport.queue.add_data_locked([(b"\x00x", b"")])
        transport.flush()
    theirs.close()
    with closing(transport.batches()) as batches:
        for _ in batches:
            if len(carriers.seen) == 5:
                return transport.error
    return transport.error


@pytest.mark.parametrize(
    ("carriers", "sends", "wanted"),
    [
        # The peer acknowledges nothing: of the grace less is left each time from the third on. Over
        # the first carrier nothing was sent again.
        (Flapping(), True, [(1, 60), (2, 60), (3, 59), (4, 58), (5, 57)]),
        # It says with the second carrier that the first one had brought the message.
        (Flapping(arrived=True), True, [(1, 60), (1, 60), (2, 60), (3, 60), (4, 60)]),
        # Nobody waits for a message of this side, and the other one has a grace of its own.
        (Flapping(), False, [(1, 60), (2, 60), (3, 60), (4, 60), (5, 60)]),
        # Each stands for so long that no message can be what ends it.
        (Flapping(stands=STANDS), True, [(1, 60), (0, 60), (0, 60), (0, 60), (0, 60)]),
    ],
    ids=["nothing arrives", "arrived", "idle", "stands"],
)
def test_a_carrier_is_fruitless_if_it_ends_before_anything_gets_through(
    carriers: Flapping,
    sends: bool,
    wanted: list[tuple[int, int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert flap(carriers, monkeypatch, sends) is None
    assert carriers.seen == wanted


def test_one_that_comes_behind_the_grace_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a session went on for ever whose carriers are replaced before their end is seen."""
    carriers = Flapping(outage=31.0)
    error = flap(carriers, monkeypatch)
    assert isinstance(error, wsmux.ResumeLost)
    assert error.why == (
        "nothing was acknowledged for 60 s over 2 connections; the last ended: Broken pipe"
    )
    assert carriers.seen == [(1, 60), (2, 60), (3, 29)]


def test_one_fruitless_carrier_behind_a_long_outage_has_a_whole_grace_behind_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The network that has come back may go once more, before anything gets through."""

    class Once(Flapping):
        def lost(self, transport: ResumableTransport) -> None:
            super().lost(transport)
            self.outage = 1.0

    carriers = Once(outage=59.0)
    assert flap(carriers, monkeypatch) is None
    assert carriers.seen == [(1, 60), (2, 60), (3, 59), (4, 58), (5, 57)]


def test_one_that_ends_before_it_is_used_counts_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a client whose carriers end that soon would connect again without a pause."""

    class Closed(Flapping):
        def lost(self, transport: ResumableTransport) -> None:
            self.seen.append((transport.fruitless, round(transport.grace_left())))
            ours, theirs = socket.socketpair()
            ours.close()
            theirs.close()
            assert transport.offer(Carrier(ours, 0))
            self.now += self.outage

    carriers = Closed()
    flap(carriers, monkeypatch)
    assert carriers.seen == [(1, 60), (2, 59), (3, 58), (4, 57), (5, 56)]


# The pauses of a client


def test_a_server_that_asks_for_patience_is_left_alone_for_that_long() -> None:
    for failures in range(1, 10):
        assert 5 < pause_after(failures, 5.0, 60.0) <= 7


@pytest.mark.parametrize(("grace", "within"), [(600.0, (22.5, 25.0)), (36.0, (13.5, 18.0))])
def test_the_clients_that_a_server_asks_for_patience_do_not_come_together(
    grace: float, within: tuple[float, float]
) -> None:
    """Nor where they cannot wait for so long."""
    pauses = [pause_after(1, 20.0, grace) for _ in range(100)]
    assert within[0] <= min(pauses) < max(pauses) <= within[1]
    assert max(pauses) - min(pauses) > 1


def test_a_pause_leaves_time_for_more_attempts_within_the_grace() -> None:
    assert pause_after(1, 3600.0, 60.0) <= 30
    assert pause_after(9, 0.0, 1.0) <= 0.5
    assert 0 < pause_after(9, 0.0, 0.001) <= FIRST_DELAY
