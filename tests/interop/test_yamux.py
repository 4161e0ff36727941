"""Move bytes to and from two published Yamux peers, as their client and their server.

npm `@libp2p/yamux` (once `@chainsafe/libp2p-yamux`) and PyPI `libp2p` stand at the other end, over
plain TCP and over a WebSocket whose binary messages are a byte stream. Every test of `link` runs
for both, in both roles, on both carriers. After each, the frames that the peer received are looked
through: see `finish_yamux`. How streams and connections end is in `test_yamux_endings`.

What the peers do differently, or cannot do:

- npm accepts a stream with ACK on the next frame that it happens to send on it: a window update
  when data come, or its own FIN. A stream that says nothing is not acknowledged at all. PyPI
  acknowledges at once, with a frame of its own.
- npm sends as much as the window has in one frame, on a WebSocket in one message; PyPI sends
  64 KiB less the head.
- PyPI cannot be told to ping: it measures the round trip by itself, for the first time after half
  a second. npm pings when told, and at once after connecting, so that its server speaks first.

Read in their sources, and shown by no test here:

- npm gives credit back as data arrive, read or not, unless the stream is paused; then nothing is
  acknowledged either. PyPI gives it back as somebody reads.
- PyPI counts a round trip from the start of the machine if the answer is very quick.
- PyPI gives up a write that gets no credit for 5 s. No test makes it wait that long.
- PyPI takes 10 streams that nobody has accepted, then it stops reading; npm takes 1000.
- PyPI overlooks a FIN or RST in one frame with ACK, which npm sends and we do not.
"""

from __future__ import annotations

import socket

import pytest

import wsmux

from ..helpers.interop.link import (
    BULK_WAIT,
    HOST,
    KIB,
    LARGE,
    MIB,
    SMALL,
    WAIT,
    Connector,
    Link,
    by_either,
    digests,
    good,
    node_only,
    server_only,
    spawn,
    tcp_only,
    websocket_only,
    write_and_close,
    write_in_chunks,
    yamux_marks,
)
from ..helpers.interop.peer_process import PeerProcess, generate, sha256

pytestmark = yamux_marks

WINDOW = 256 * KIB  # what each side may send on a stream before it has heard anything

STREAMS = 100
STREAM_SIZE = 300_000

BULK = 16 * MIB  # the size beyond which no window grows

WIDE = 4 * MIB
HEAD = 12  # bytes before the data of a frame


@pytest.fixture
def connector(yamux_connector: Connector) -> Connector:
    """Return the function that makes a link to a Yamux peer."""
    return yamux_connector


def exchange(stream: wsmux.Stream, data: bytes) -> str:
    """Write `data` and return the digest of what comes back."""
    writing = spawn(write_in_chunks, stream, data, MIB)
    received = sha256(stream.read())
    writing.result(WAIT)
    return received


def read_exactly(stream: wsmux.Stream, size: int) -> bytes:
    """Return the next `size` bytes."""
    received: list[bytes] = []
    while size > 0:
        received.append(stream.read(size))
        assert received[-1] != b""
        size -= len(received[-1])
    return b"".join(received)


# Echo, and who opens


@websocket_only
def test_subprotocol_is_yamux(link: Link) -> None:
    assert link.peer.call("report")["subprotocol"] == "yamux"


@websocket_only
def test_peer_that_negotiates_no_subprotocol_is_understood(connector: Connector) -> None:
    link = connector(named={"subprotocol": None})
    assert not link.peer.call("report")["subprotocol"]
    link.assert_alive()


@server_only
@websocket_only
def test_peer_that_calls_the_wire_by_another_name_is_understood(connector: Connector) -> None:
    link = connector(named={"subprotocol": "other-name"})
    assert link.peer.call("report")["subprotocol"] == "other-name"
    link.assert_alive()


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_stream_opened_here_is_echoed_by_the_peer(link: Link, size: int) -> None:
    link.peer.call("incoming", mode="echo")
    data = generate("here", size)
    assert exchange(link.open(), data) == sha256(data)


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_stream_opened_by_the_peer_is_echoed_here(link: Link, size: int) -> None:
    link.echo_all()
    args = {"count": 1, "seed": "there", "size": size, "chunk": MIB}
    answers = link.peer.call("exchangeMany", BULK_WAIT, **args)
    assert good(answers) == digests("there", 1, size)


def test_ids_have_the_parity_of_the_opener(link: Link) -> None:
    ours = [link.open_pair()[0].id for _ in range(3)]
    theirs = [link.accept_pair()[0].id for _ in range(3)]
    odd, even = [1, 3, 5], [2, 4, 6]
    assert (theirs, ours) == ((odd, even) if link.peer_is_client else (even, odd))


def test_both_sides_open_streams_at_the_same_time(link: Link) -> None:
    link.peer.call("incoming", mode="echo")
    link.echo_all()
    args = {"count": 20, "seed": "theirs", "size": 50_000, "chunk": 5_000}
    theirs = link.peer.submit("exchangeMany", BULK_WAIT, **args)
    data = generate("ours", 50_000)
    ours = [spawn(exchange, link.open(), data) for _ in range(20)]
    assert {exchanging.result(WAIT) for exchanging in ours} == {sha256(data)}
    assert good(link.peer.answer(theirs, BULK_WAIT)) == digests("theirs", 20, 50_000)


# Many streams


def test_a_hundred_streams_opened_here_are_echoed_whole(connector: Connector) -> None:
    link = connector()
    link.peer.call("incoming", mode="echo")
    exchanges = [
        spawn(exchange, link.open(), generate(f"down-{index}", STREAM_SIZE))
        for index in range(STREAMS)
    ]
    received = [exchanging.result(BULK_WAIT) for exchanging in exchanges]
    assert received == digests("down", STREAMS, STREAM_SIZE)


def test_a_hundred_streams_opened_by_the_peer_are_echoed_whole(connector: Connector) -> None:
    link = connector()
    link.echo_all()
    args = {"count": STREAMS, "seed": "up", "size": STREAM_SIZE, "chunk": 50_000}
    answers = link.peer.call("exchangeMany", BULK_WAIT, **args)
    assert good(answers) == digests("up", STREAMS, STREAM_SIZE)


def test_two_hundred_streams_one_after_the_other_leave_nothing_behind(link: Link) -> None:
    link.peer.call("incoming", mode="echo")
    link.echo_all()
    data = generate("turn", KIB)
    assert {exchange_and_close(link.open(), data) for _ in range(200)} == {sha256(data)}
    args = {"count": 200, "seed": "turn", "size": KIB}
    answers = link.peer.call("exchangeInSequence", BULK_WAIT, **args)
    assert good(answers) == digests("turn", 200, KIB)
    assert link.connection.wait_drained(WAIT)
    assert link.peer.call("report")["live"] == 0


def exchange_and_close(stream: wsmux.Stream, data: bytes) -> str:
    with stream:
        return exchange(stream, data)


# Each half ends by itself


@by_either
def test_peer_writes_on_after_our_half_has_ended(link: Link, opener: str) -> None:
    stream, handle = link.pair(opener)
    stream.write(b"question")
    stream.close_write()
    asked = link.peer.call("readAll", stream=handle)
    assert (asked["sha256"], asked["end"]) == (sha256(b"question"), "fin")
    link.peer.submit("write", BULK_WAIT, stream=handle, seed="answer", size=MIB)
    reading = spawn(stream.read)
    link.peer.call("waitData", BULK_WAIT, way="sent", atLeast=MIB)
    link.peer.call("close", stream=handle)
    assert sha256(reading.result(WAIT)) == sha256(generate("answer", MIB))


@by_either
def test_we_write_on_after_the_half_of_the_peer_has_ended(link: Link, opener: str) -> None:
    stream, handle = link.pair(opener)
    link.peer.call("write", stream=handle, hex=b"question".hex())
    link.peer.call("close", stream=handle)
    assert stream.read() == b"question"
    reading = link.peer.submit("readAll", BULK_WAIT, stream=handle)
    data = generate("answer", MIB)
    write_in_chunks(stream, data, 64 * KIB)
    assert link.peer.answer(reading, BULK_WAIT)["sha256"] == sha256(data)


@by_either
def test_half_that_ends_without_a_byte_leaves_the_other_open(link: Link, opener: str) -> None:
    stream, handle = link.pair(opener)
    link.peer.call("close", stream=handle)
    assert stream.read() == b""
    if (link.peer.name, opener) == ("node", "wsmux"):
        ends = link.peer.call("waitFrames", way="sent", type="window", flag="FIN", count=1)
        assert ends["frames"][0]["flags"] == ["ACK", "FIN"]
    write_in_chunks(stream, b"still open", KIB)
    read = link.peer.call("readAll", stream=handle)
    assert (read["sha256"], read["end"]) == (sha256(b"still open"), "fin")


@by_either
def test_stream_written_and_closed_at_once_arrives_whole(link: Link, opener: str) -> None:
    data = generate("at once", 100_000)
    stream, handle = link.pair(opener)
    write_and_close(stream, data)
    read = link.peer.call("readAll", stream=handle)
    assert (read["sha256"], read["end"]) == (sha256(data), "fin")


# Flow control


@by_either
def test_reader_that_stalls_in_the_peer_stops_our_writer(link: Link, opener: str) -> None:
    stream, handle = link.pair(opener)
    link.peer.call("stall", stream=handle)
    data = generate("patience", LARGE)
    writing = spawn(write_in_chunks, stream, data, MIB)
    link.peer.call("waitData", way="received", atLeast=WINDOW)
    link.assert_alive()
    assert not writing.done()
    assert link.peer.call("report")["received"]["dataBytes"] < WINDOW + KIB
    assert link.peer.call("readAll", BULK_WAIT, stream=handle)["sha256"] == sha256(data)
    writing.result(WAIT)


@by_either
def test_reader_that_stalls_here_stops_the_writer_of_the_peer(link: Link, opener: str) -> None:
    stream, handle = link.pair(opener)
    args = {"seed": "patience", "size": LARGE, "chunk": LARGE}
    writing = link.peer.submit("write", BULK_WAIT, stream=handle, **args)
    link.peer.call("waitData", way="sent", atLeast=WINDOW)
    link.assert_alive()
    assert not writing.done()
    assert link.peer.call("report")["sent"]["dataBytes"] < WINDOW + KIB
    reading = spawn(stream.read)
    link.peer.answer(writing, BULK_WAIT)
    link.peer.call("close", stream=handle)
    assert sha256(reading.result(WAIT)) == sha256(generate("patience", LARGE))


def test_bulk_goes_both_ways_while_windows_grow(link: Link) -> None:
    stream, handle = link.open_pair()
    link.connection.ping(WAIT)  # both sides know the round trip, by which windows grow
    link.peer.call("ping")
    data = generate("down", BULK)
    reading = link.peer.submit("readAll", BULK_WAIT, stream=handle)
    writing = spawn(write_in_chunks, stream, data, MIB)
    args = {"seed": "up", "size": BULK, "chunk": BULK}
    sending = link.peer.submit("write", BULK_WAIT, stream=handle, **args)
    received = read_exactly(stream, BULK)
    link.peer.answer(sending, BULK_WAIT)
    writing.result(BULK_WAIT)
    assert link.peer.answer(reading, BULK_WAIT)["sha256"] == sha256(data)
    assert sha256(received) == sha256(generate("up", BULK))


@by_either
def test_wide_window_is_used_by_the_peer_from_the_start(connector: Connector, opener: str) -> None:
    link = connector(config=wsmux.Config(receive_window=WIDE))
    stream, handle = link.pair(opener)
    link.peer.call("waitFrames", way="received", type="window", count=1)
    args = {"seed": "gulp", "size": WIDE, "chunk": WIDE}
    link.peer.call("write", BULK_WAIT, stream=handle, **args)  # although nobody reads
    sent = link.peer.call("report")["sent"]
    assert sent["largest"] == (WIDE - HEAD if link.peer.name == "node" else 64 * KIB - HEAD)
    link.assert_alive()
    assert sha256(read_exactly(stream, WIDE)) == sha256(generate("gulp", WIDE))


@node_only  # PyPI never sends that much at once
def test_window_above_16_mib_is_one_that_a_frame_can_fill(connector: Connector) -> None:
    config = wsmux.Config(receive_window=24 * MIB, max_connection_buffer=64 * MIB)
    link = connector(config=config)
    stream, handle = link.accept_pair()
    link.peer.call("waitFrames", way="received", type="window", flag="ACK", count=1)
    args = {"seed": "gulp", "size": BULK, "chunk": BULK}
    link.peer.call("write", BULK_WAIT, stream=handle, **args)
    assert link.peer.call("report")["sent"]["largest"] == BULK - HEAD
    assert sha256(read_exactly(stream, BULK)) == sha256(generate("gulp", BULK))


# Silent streams

SILENT = 5


@node_only  # PyPI acknowledges every stream at once
def test_streams_that_say_nothing_are_not_acknowledged_by_node(connector: Connector) -> None:
    link = connector(config=wsmux.Config(max_pending_opens=SILENT))
    pairs = [link.open_pair() for _ in range(SILENT)]
    with pytest.raises(TimeoutError):
        link.connection.open_stream(timeout=0.01)
    opening = spawn(link.connection.open_stream)
    pairs[0][0].write(b"hello")
    opening.result(WAIT)


# Streams opened in the moment of connecting

GREETINGS = {"count": 3, "seed": "hello", "size": KIB, "chunk": KIB}


def greet(connection: wsmux.Connection) -> None:
    """Open streams and send on them, without waiting for anything from the peer."""
    for index in range(3):
        stream = connection.open_stream(timeout=WAIT)
        spawn(write_and_close, stream, generate(f"hello-{index}", KIB))


def test_streams_opened_here_on_connect_reach_the_peer(connector: Connector) -> None:
    link = connector(greet=greet)
    assert good(link.peer.call("readMany", count=3)) == digests("hello", 3, KIB)


@server_only
def test_streams_opened_by_the_server_on_connect_reach_our_client(connector: Connector) -> None:
    link = connector(listen={"openOnConnect": GREETINGS})
    received = {sha256(link.accept().read()) for _ in range(3)}
    assert received == set(digests("hello", 3, KIB))


@node_only
@server_only
@websocket_only
def test_frames_behind_the_response_of_the_handshake_reach_our_client(
    connector: Connector,
) -> None:
    link = connector(listen={"openOnConnect": GREETINGS, "glued": True})
    received = [sha256(link.accept().read()) for _ in range(3)]
    assert received == digests("hello", 3, KIB)


# A socket of one's own


@server_only
@tcp_only
def test_connected_socket_carries_yamux(
    carrier: str, yamux_role: str, yamux_process: PeerProcess
) -> None:
    yamux_process.call("fresh")
    port = yamux_process.call("listen", carrier=carrier, host=HOST)["port"]
    yamux_process.call("incoming", mode="echo")
    sock = socket.create_connection((HOST, port))
    with wsmux.from_socket(sock, role="client", protocol="yamux") as connection:
        data = generate("socket", LARGE)
        assert exchange(connection.open_stream(), data) == sha256(data)
    yamux_process.call("fresh")


# Pings


def test_ping_measures_the_way_to_the_peer_and_back(link: Link) -> None:
    assert 0 < link.connection.ping(timeout=WAIT) < WAIT
    pings = link.peer.call("waitFrames", way="received", type="ping", flag="SYN", count=1)
    assert pings["frames"]


def test_ping_of_the_peer_is_answered(link: Link) -> None:
    assert link.peer.call("ping")["milliseconds"] >= 0


def test_pings_keep_an_idle_connection_alive(connector: Connector) -> None:
    link = connector(config=wsmux.Config(ping_interval=0.05, ping_timeout=5.0))
    if link.carrier == "tcp":  # a WebSocket has pings of its own
        link.peer.call("waitFrames", way="received", type="ping", flag="SYN", count=5)
    link.assert_alive()
