"""End plain sockets in every way: what the wire says, and what the end of the bytes means then.

``yamux`` says GO_AWAY, ``bymux`` its two global packets, and then the socket is ended. An end of
the bytes without those words is a lost connection.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import wsmux
from wsmux.protocols.base import Role

from ..helpers.connections import Spawn
from ..helpers.inside import multiplexer_of
from ..helpers.pure_peer import PurePeer
from ..helpers.scripted import WAIT
from ..helpers.waiting import wait_for, wait_for_reader

WIRES = pytest.mark.parametrize("protocol", ["yamux", "bymux"])
ROLES = pytest.mark.parametrize("role", list(Role))

# What each side says of the connection as a whole, less what bymux grants at the start.
GRANTS = {"yamux": b"", "bymux": bytes.fromhex("1104 00")}
GO_AWAY = {"yamux": bytes.fromhex("0003 0000 00000000 00000000"), "bymux": b"\x90\xb0"}
FAILED = {"yamux": bytes.fromhex("0003 0000 00000000 00000002"), "bymux": b""}
BROKEN = {"yamux": bytes.fromhex("0003 0000 00000000 00000001"), "bymux": b""}

# The beginning of a frame that the peer may send.
HALF_A_FRAME = {"yamux": b"\x00\x01\x00", "bymux": b"\x33\x00\x00"}

# What nobody may send.
GARBAGE = b"\xff" * 12


@contextmanager
def facing_a_peer(
    protocol: str, role: Role = Role.CLIENT
) -> Iterator[tuple[wsmux.Connection, PurePeer]]:
    """Return a connection, and a peer that has said what it says at first."""
    ours, theirs = socket.socketpair()
    other = Role.SERVER if role is Role.CLIENT else Role.CLIENT
    config = wsmux.Config(ping_interval=None, close_timeout=WAIT)
    with PurePeer(theirs, protocol, other) as peer:
        connection = wsmux.from_socket(ours, role=role, protocol=protocol, config=config)
        peer.send()
        yield connection, peer
        connection.abort()
        assert connection.wait_closed(WAIT)


def to_the_end(sock: socket.socket) -> bytes:
    """Return every byte that comes before the end of them."""
    data = bytearray()
    while chunk := sock.recv(1000):
        data += chunk
    return bytes(data)


def ended(connection: wsmux.Connection) -> wsmux.ConnectionClosed:
    """Return what the next call raises once the connection has ended."""
    with pytest.raises(wsmux.ConnectionClosed) as error:
        connection.accept_stream(WAIT)
    return error.value


def seen(error: wsmux.ConnectionClosed) -> tuple[type[wsmux.ConnectionClosed], int, str | None]:
    return type(error), error.code, error.side


CLEAN = (wsmux.ConnectionClosedOK, 1000, "remote")
LOST = (wsmux.ConnectionClosedError, 1006, None)


# The end of the bytes


@WIRES
@ROLES
def test_an_end_behind_the_farewell_is_clean(protocol: str, role: Role) -> None:
    with facing_a_peer(protocol, role) as (connection, peer):
        peer.sock.sendall(GO_AWAY[protocol])
        peer.sock.shutdown(socket.SHUT_WR)
        assert seen(ended(connection)) == CLEAN
        to_the_end(peer.sock)
        assert connection.wait_closed(WAIT)


@WIRES
@ROLES
def test_an_end_without_a_farewell_is_a_lost_connection(protocol: str, role: Role) -> None:
    with facing_a_peer(protocol, role) as (connection, peer):
        peer.sock.shutdown(socket.SHUT_WR)
        error = ended(connection)
        assert seen(error) == LOST
        assert "the peer ended the connection" in str(error)


@WIRES
@pytest.mark.parametrize("close_notice", [False, True], ids=["unsaid", "said"])
def test_an_end_within_a_frame_is_a_lost_connection(protocol: str, close_notice: bool) -> None:
    with facing_a_peer(protocol) as (connection, peer):
        stream = connection.open_stream(WAIT)
        (stream_id,) = peer.accept(1)
        if close_notice:
            peer.sock.sendall(GO_AWAY[protocol])
        peer.machine.send_data(stream_id, b"word")
        peer.sock.sendall(peer.output()[:-1])
        peer.sock.shutdown(socket.SHUT_WR)
        assert seen(ended(connection)) == LOST
        with pytest.raises(wsmux.ConnectionClosedError):
            stream.read()


@WIRES
def test_an_end_within_the_first_head_is_a_lost_connection(protocol: str) -> None:
    with facing_a_peer(protocol) as (connection, peer):
        peer.sock.sendall(HALF_A_FRAME[protocol])
        peer.sock.shutdown(socket.SHUT_WR)
        assert seen(ended(connection)) == LOST


@WIRES
@pytest.mark.parametrize("close_notice", [False, True], ids=["lost", "clean"])
def test_no_end_of_the_connection_is_an_end_of_file(
    protocol: str, close_notice: bool, spawn: Spawn
) -> None:
    with facing_a_peer(protocol) as (connection, peer):
        stream = connection.open_stream(WAIT)
        (stream_id,) = peer.accept(1)
        peer.machine.send_data(stream_id, b"before")
        peer.send()
        assert stream.read(6) == b"before"
        reading = spawn(stream.read)
        wait_for_reader(connection)
        if close_notice:
            peer.sock.sendall(GO_AWAY[protocol])
        peer.sock.shutdown(socket.SHUT_WR)
        with pytest.raises(wsmux.ConnectionClosed) as error:
            reading.result(WAIT)
        assert seen(error.value) == (CLEAN if close_notice else LOST)


@WIRES
def test_what_came_before_the_end_stays_readable(protocol: str) -> None:
    with facing_a_peer(protocol) as (connection, peer):
        whole, cut = connection.open_stream(WAIT), connection.open_stream(WAIT)
        for stream_id in peer.accept(2):
            peer.machine.send_data(stream_id, b"before")
        peer.machine.close_write(whole.id, 0.0)
        peer.send()
        peer.sock.shutdown(socket.SHUT_WR)
        assert connection.wait_closed(WAIT)
        assert whole.read() == b"before"
        assert cut.read(6) == b"before"
        with pytest.raises(wsmux.ConnectionClosedError):
            cut.read(1)


# The own end


@WIRES
@ROLES
@pytest.mark.parametrize("code", [1000, 1001])
def test_a_clean_close_says_so_and_ends_the_bytes(
    protocol: str, role: Role, code: int, spawn: Spawn
) -> None:
    with facing_a_peer(protocol, role) as (connection, peer):
        closing = spawn(lambda: connection.close(code=code))
        assert to_the_end(peer.sock) == GRANTS[protocol] + GO_AWAY[protocol]
        peer.sock.close()
        closing.result(WAIT)
        assert seen(ended(connection)) == (wsmux.ConnectionClosedOK, code, "local")


@WIRES
@pytest.mark.parametrize("code", [1011, 4000])
def test_a_close_for_a_failure_says_so_where_it_can(protocol: str, code: int, spawn: Spawn) -> None:
    with facing_a_peer(protocol) as (connection, peer):
        closing = spawn(lambda: connection.close(code=code))
        assert to_the_end(peer.sock) == GRANTS[protocol] + FAILED[protocol]
        peer.sock.close()
        closing.result(WAIT)
        assert seen(ended(connection)) == (wsmux.ConnectionClosedError, code, "local")


@WIRES
def test_a_broken_rule_is_answered_where_it_can_be_and_ends_the_bytes(protocol: str) -> None:
    with facing_a_peer(protocol) as (connection, peer):
        peer.sock.sendall(GARBAGE)
        assert to_the_end(peer.sock) == GRANTS[protocol] + BROKEN[protocol]
        error = ended(connection)
        assert seen(error) == (wsmux.ConnectionClosedError, 1002, "local")
        assert isinstance(error.__cause__, wsmux.RemoteProtocolError)


@pytest.mark.parametrize(("said", "code"), [(1, 1002), (2, 1011), (77, 1011)])
def test_a_going_away_of_yamux_with_a_code_is_an_error_of_the_peers(said: int, code: int) -> None:
    with facing_a_peer("yamux") as (connection, peer):
        stream = connection.open_stream(WAIT)
        peer.sock.sendall(GO_AWAY["yamux"][:-1] + bytes((said,)))
        error = ended(connection)
        assert seen(error) == (wsmux.ConnectionClosedError, code, "remote")
        assert f"GO_AWAY code {said}" in error.reason
        with pytest.raises(wsmux.ConnectionClosedError):
            stream.read()
        opening = bytes.fromhex("0001 0001 00000001 00000000")
        measuring = bytes.fromhex("0002 0001 00000000 ffffffff")
        assert to_the_end(peer.sock).replace(measuring, b"") == opening  # it is not answered


@WIRES
def test_the_own_end_stays_the_cause_when_the_peer_ends_as_soon_as_it_hears(
    protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with facing_a_peer(protocol) as (connection, peer):
        flush = multiplexer_of(connection).transport.flush

        def flush_and_be_overtaken(*args: object) -> None:
            flush(*args)  # type: ignore[arg-type]
            peer.sock.shutdown(socket.SHUT_WR)
            wait_for(lambda: multiplexer_of(connection).transport.frame_reader.ended)

        monkeypatch.setattr(multiplexer_of(connection).transport, "flush", flush_and_be_overtaken)
        connection.close(WAIT, code=1011)
        assert seen(ended(connection)) == (wsmux.ConnectionClosedError, 1011, "local")


# Going away


@WIRES
def test_going_away_is_not_the_end(protocol: str, spawn: Spawn) -> None:
    with facing_a_peer(protocol) as (connection, peer):
        stream = connection.open_stream(WAIT)
        (stream_id,) = peer.accept(1)
        peer.machine.go_away(0)
        peer.send()
        wait_for(lambda: multiplexer_of(connection).table.peer_refuses_from is not None)
        with pytest.raises(wsmux.StreamRefused) as error:
            connection.open_stream()
        assert error.value.retry_safe
        stream.write(b"running")
        peer.machine.send_data(stream_id, b"on")
        peer.send()
        assert stream.read(2) == b"on"
        assert not connection.closed


@WIRES
def test_the_farewell_of_a_close_behind_going_away_is_the_one_that_was_said(
    protocol: str, spawn: Spawn
) -> None:
    with facing_a_peer(protocol) as (connection, peer):
        connection.go_away()
        closing = spawn(connection.close)
        assert to_the_end(peer.sock) == GRANTS[protocol] + GO_AWAY[protocol]
        peer.sock.close()
        closing.result(WAIT)
