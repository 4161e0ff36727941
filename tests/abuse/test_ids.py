"""Name streams that cannot be, and open them until no id is left (H11).

Every wrong id of every wire is in the tables of the unit tests (``test_native_bad_input``,
``test_yamux_malformed``, ``test_bymux_malformed``); here they end real connections.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest

import wsmux

from ..helpers import bymux_wire, yamux_wire
from ..helpers.inside import open_next
from ..helpers.raw_peer import (
    ACK,
    BINARY,
    CLOSE,
    DATA,
    ERROR,
    ROLES,
    WAIT,
    RawPeer,
    in_thread,
    meet,
    message,
    uint32,
)
from ..helpers.tables import each_case
from ..helpers.wires import NAMES, WIRES

# The last ids of each wire: the highest that the client's parity and the server's can have.
LAST = {
    "wsmux": (2**62 - 2, 2**62 - 1),
    "js-ws": (2**62 - 2, 2**62 - 1),
    "yamux": (2**32 - 1, 2**32 - 2),
    "bymux": (2**64 - 2, 2**64 - 1),
}


def near_the_end(end: wsmux.Connection) -> int:
    """Let a connection have two ids left; return the last one."""
    last = LAST[end.protocol][end.role is wsmux.Role.SERVER]
    open_next(end, last - 2)
    return last


@pytest.fixture(params=NAMES)
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[wsmux.Connection, wsmux.Connection]]:
    client, server = wsmux.pair(protocol=request.param)
    with client, server:
        yield client, server


@pytest.mark.parametrize("role", ROLES)
def test_the_last_ids_work_and_then_the_error_names_the_way_out(
    pair: tuple[wsmux.Connection, wsmux.Connection], role: str
) -> None:
    ours, theirs = pair if role == "client" else pair[::-1]
    last = near_the_end(ours)
    streams = []
    for expected in (last - 2, last):
        stream = ours.open_stream(WAIT)
        stream.timeout = WAIT
        assert stream.id == expected
        stream.write(b"hello")
        taken = theirs.accept_stream(WAIT)
        taken.timeout = WAIT
        assert (taken.id, taken.read(5)) == (expected, b"hello")
        streams.append((stream, taken))
    for _ in range(3):
        with pytest.raises(wsmux.StreamsExhausted, match="another connection") as raised:
            ours.open_stream(WAIT)
        assert raised.value.retry_safe
        assert isinstance(raised.value, wsmux.LocalProtocolError)
    check_goes_on(ours, theirs)
    for stream, taken in streams:
        taken.write(b"drained")
        taken.close()
        assert stream.read() == b"drained"
        stream.close()
    assert ours.wait_drained(WAIT)
    assert ours.stats().streams == 0
    assert not ours.closed


def check_goes_on(ours: wsmux.Connection, theirs: wsmux.Connection) -> None:
    """Check that the other side still opens streams."""
    with theirs.open_stream(WAIT) as opened:
        opened.timeout = WAIT
        opened.write(b"x")
        opened.close_write()
        with ours.accept_stream(WAIT) as taken:
            taken.timeout = WAIT
            assert taken.read() == b"x"


def test_a_stream_that_the_peer_opens_with_its_last_id_is_served(
    pair: tuple[wsmux.Connection, wsmux.Connection],
) -> None:
    client, server = pair
    near_the_end(client)
    near_the_end(server)
    for _ in range(2):
        check_goes_on(client, server)
        check_goes_on(server, client)
    with pytest.raises(wsmux.StreamsExhausted):
        client.open_stream(WAIT)
    with pytest.raises(wsmux.StreamsExhausted):
        server.open_stream(WAIT)


def test_going_away_after_the_last_id_ends_cleanly(
    pair: tuple[wsmux.Connection, wsmux.Connection],
) -> None:
    client, server = pair
    near_the_end(client)
    check_goes_on(server, client)
    check_goes_on(server, client)
    server.go_away()
    with pytest.raises((wsmux.StreamRefused, wsmux.StreamsExhausted)):
        client.open_stream(WAIT)
    client.close(WAIT)
    assert server.wait_closed(WAIT)
    assert isinstance(server.error, wsmux.ConnectionClosedOK)


class Wrong(NamedTuple):
    """Say what a peer sends that has opened no stream, or one."""

    protocol: str
    name: str
    frames: tuple[bytes, ...]

    def __str__(self) -> str:
        return f"{self.protocol}-{self.name}"


def wrong_ids(role: str) -> Iterator[Wrong]:
    """Yield wrong uses of ids by the peer of a connection in ``role``."""
    peer_is_server = role == "client"
    for name in ("wsmux", "yamux", "bymux"):
        wire = WIRES[name]
        own = wire.server_id if peer_is_server else wire.client_id  # of the peer
        theirs = wire.client_id if peer_is_server else wire.server_id
        if name == "wsmux":
            opening = message(own + 8, ACK, uint32(9))
            yield Wrong(name, "parity", (message(theirs + 40, ACK, uint32(9)),))
            yield Wrong(name, "decreasing", (opening, message(own + 4, ACK, uint32(9))))
            yield Wrong(name, "never-opened-data", (message(own, DATA, b"x"),))
            yield Wrong(name, "never-opened-error", (message(own, ERROR, b"\0\0"),))
            yield Wrong(name, "never-opened-close", (message(own, CLOSE, b"\0"),))
            yield Wrong(name, "not-ours-yet", (message(theirs, DATA, b"x"),))
        elif name == "yamux":
            opening = yamux_wire.window(own, 0, yamux_wire.SYN)
            yield Wrong(name, "parity", (yamux_wire.window(theirs, 0, yamux_wire.SYN),))
            yield Wrong(name, "reused", (opening, opening))
            yield Wrong(name, "zero", (yamux_wire.window(0, 0, yamux_wire.SYN),))
            yield Wrong(name, "zero-data", (yamux_wire.data_frame(0, b"x"),))
        else:
            opening = bymux_wire.overall(bymux_wire.WRITE, own)
            yield Wrong(name, "parity", (bymux_wire.overall(bymux_wire.WRITE, theirs),))
            yield Wrong(name, "reused", (opening, opening))
            yield Wrong(name, "never-opened", (bymux_wire.write(own, b"x"),))
            yield Wrong(name, "not-ours-yet", (bymux_wire.packet(bymux_wire.CREDIT, theirs, 5),))


CASES = [
    pytest.param(role, case, id=f"{role}-{case}") for role in ROLES for case in wrong_ids(role)
]


@each_case
@pytest.mark.parametrize(("role", "case"), CASES)
def test_a_wrong_id_ends_the_connection_with_1002(role: str, case: Wrong) -> None:
    with meet(role, protocol=case.protocol) as met:
        peer: RawPeer = met.peer
        pinging = in_thread(met.connection.ping)
        for frame in case.frames:
            peer.send_frame(BINARY, frame)
        code, reason = peer.recv_close()
        assert code == 1002
        assert reason.isprintable()
        error = pinging.exception(WAIT)
        assert isinstance(error, wsmux.ConnectionClosedError)
        assert isinstance(error.__cause__, wsmux.RemoteProtocolError)
        assert met.connection.stats().unread_bytes == 0
        met.check_bystanders()
