"""Send frames that no peer may send, to everything that takes a WebSocket (H12, H14, H16).

What each broken rule of a frame is answered with, in both roles, is in ``faults/test_malformed``.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

import wsmux

from ..helpers.carriers import ONE_SERVER, WsgiServers
from ..helpers.every_server import KINDS, Place, memory, under_wsgi
from ..helpers.raw_peer import (
    ACK,
    BINARY,
    CONTINUATION,
    PING,
    ROLES,
    TEXT,
    WAIT,
    Meeting,
    RawPeer,
    in_thread,
    meet,
    message,
    uint32,
)

MIB = 1024 * 1024

# Longest header of a frame: 2 bytes, a length of 8 and a mask of 4.
HEADER = 14

GIANTS = {"1 GiB": 2**30, "1 TiB": 2**40, "2^62": 2**62, "2^63-1": 2**63 - 1}


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    with KINDS[request.param](None) as made:
        yield made


def giant(peer: RawPeer, size: int, **how: int) -> bytes:
    """Return the header alone of a frame that claims so many bytes."""
    header = peer.frame(BINARY, declared=size, **how)
    assert len(header) <= HEADER
    return header


def push(peer: RawPeer, size: int) -> None:
    """Send what the header claimed, up to ``size`` bytes, until nobody takes it any more."""
    chunk = bytes(64 * 1024)
    try:
        for _ in range(size // len(chunk)):
            peer.send(chunk)
    except (OSError, TimeoutError):
        return


def test_a_giant_is_refused_by_its_header(place: Place) -> None:
    for size in GIANTS.values():
        with place.peer() as peer:
            peer.send(giant(peer, size))
            assert peer.recv_close()[0] == 1009


def test_a_giant_costs_no_memory_however_much_of_it_is_sent(place: Place) -> None:
    check_giants(place, attacks=3, size=4 * MIB, most=4 * MIB)


@pytest.mark.long
def test_64_mib_of_each_of_20_giants_cost_a_mib_at_most(
    place: Place, figure: Callable[[str], None]
) -> None:
    grown = check_giants(place, attacks=20, size=64 * MIB, most=MIB)
    figure(f"grew by {grown / MIB:.2f} MiB")


def check_giants(place: Place, attacks: int, size: int, most: int) -> int:
    def attack() -> None:
        with place.peer() as peer:
            peer.send(giant(peer, 2**40))
            pushing = in_thread(push, peer, size)
            code, _ = peer.recv_close()
            assert code == 1009
            peer.sock.close()
            pushing.result(WAIT)

    for _ in range(attacks):
        attack()  # what is only made once, and what the allocator keeps
    gc.collect()
    before = memory()
    for _ in range(attacks):
        attack()
    gc.collect()
    grown = memory() - before
    assert grown <= most
    return grown


@pytest.mark.parametrize("role", ROLES)
def test_a_giant_first_fragment_or_continuation_is_refused_too(role: str) -> None:
    for first in (b"", b"\0"):
        with meet(role) as met:
            peer = met.peer
            if first:
                peer.send_frame(BINARY, first, fin=False)
            opcode = CONTINUATION if first else BINARY
            header = peer.frame(opcode, declared=2**40, fin=False)
            peer.send(header)
            assert peer.recv_close()[0] == 1009


@pytest.mark.parametrize("protocol", ["yamux", "bymux"])
@pytest.mark.parametrize("role", ROLES)
def test_a_giant_that_is_a_part_of_a_stream_of_bytes_is_not_stored(
    protocol: str, role: str
) -> None:
    """There the boundaries of messages mean nothing; what the wire finds in it is what counts."""
    with meet(role, protocol=protocol) as met:
        met.peer.send(giant(met.peer, 2**40) + b"\xff" * 64)
        assert met.peer.recv_close()[0] == 1002
        assert met.connection.stats().unread_bytes == 0


# Compression

OFFERS = [
    "permessage-deflate",
    "permessage-deflate; client_max_window_bits; server_max_window_bits=8",
    "permessage-deflate; server_no_context_takeover, permessage-deflate",
    "x-webkit-deflate-frame",
    "permessage-bzip2, deflate-stream",
]


def check_not_negotiated(place: Place) -> None:
    for offer in OFFERS:
        with place.asked({"Sec-WebSocket-Extensions": offer}) as (sock, first, headers):
            assert first.startswith("HTTP/1.1 101 ")
            assert "sec-websocket-extensions" not in headers
            peer = RawPeer(sock, masks=True)
            peer.send_frame(BINARY, b"\x4b\x4c\x04\x00", reserved=4)  # as if it were agreed on
            assert peer.recv_close()[0] == 1002


def test_compression_is_negotiated_nowhere(place: Place) -> None:
    check_not_negotiated(place)


@pytest.mark.long
@pytest.mark.parametrize("target", ["/", "/river"])
@pytest.mark.parametrize("server", ONE_SERVER)
def test_compression_is_negotiated_under_no_wsgi_server(
    server: str, target: str, wsgi_servers: WsgiServers
) -> None:
    check_not_negotiated(under_wsgi(wsgi_servers.url(server), target))


# Masks and texts


@pytest.mark.parametrize("kind", ["binary", "ping", "text", "empty"])
def test_a_frame_of_a_client_without_a_mask_is_refused(place: Place, kind: str) -> None:
    opcode = {"binary": BINARY, "ping": PING, "text": TEXT, "empty": BINARY}[kind]
    with place.peer() as peer:
        peer.send_frame(opcode, b"" if kind == "empty" else b"hello", masked=False)
        assert peer.recv_close()[0] == 1002


@pytest.fixture
def client() -> Iterator[Meeting]:
    with meet("client") as met:
        yield met


@pytest.mark.parametrize("opcode", [BINARY, PING, TEXT])
def test_a_masked_frame_of_a_server_is_refused(client: Meeting, opcode: int) -> None:
    client.peer.send_frame(opcode, b"hello", masked=True)
    assert client.peer.recv_close()[0] == 1002


@pytest.mark.parametrize("protocol", ["wsmux", "yamux", "bymux"])
@pytest.mark.parametrize("role", ROLES)
def test_a_text_is_refused(protocol: str, role: str) -> None:
    with meet(role, protocol=protocol) as met:
        met.peer.send_frame(TEXT, b"hello")
        assert met.peer.recv_close()[0] == 1003


def test_a_text_ends_a_connection_of_each_kind(place: Place) -> None:
    with place.peer() as peer:
        peer.send_frame(TEXT, b'{"a": "text"}')
        code, _ = peer.recv_close()
        # River says nothing to what it cannot read; a relay that the envelope is bad.
        assert code in (1000, 1003, 1007, 4000)


def test_others_go_on_beside_all_of_it() -> None:
    with ExitStack() as stack:
        server = stack.enter_context(
            wsmux.serve(stream_handler=lambda stream: stream.write(stream.read()))
        )
        client = stack.enter_context(wsmux.connect(server.url))
        place = Place(server.port)
        for number in range(30):
            with place.peer() as peer:
                if number % 3 == 0:
                    peer.send(giant(peer, 2**40))
                elif number % 3 == 1:
                    peer.send_frame(BINARY, b"x", masked=False)
                else:
                    peer.send_frame(BINARY, message(0, ACK, uint32(1)), reserved=4)
                assert peer.recv_close()[0] in (1002, 1009)
            with client.open_stream(WAIT) as stream:
                stream.timeout = WAIT
                stream.write(b"still here")
                stream.close_write()
                assert stream.read() == b"still here"
