"""Start ``bymux`` connections with what both ends have agreed on before the first byte."""

from __future__ import annotations

import socket

import pytest

import wsmux
from wsmux import BymuxState
from wsmux.protocols.bymux_state import HalfState, StreamState

from ..helpers.carriers import SOME, Ends
from ..helpers.connections import Join, Spawn
from ..helpers.scripted import WAIT
from ..helpers.waiting import wait_for, wait_for_writer

OVER = HalfState(closed=True, stopped=True)

# An own stream of the client, one of the server with unlimited credit one way, one that only the
# server writes; nobody opens another.
THREE = BymuxState(
    streams=(
        StreamState(stream_id=0, outgoing=HalfState(credit=4)),
        StreamState(stream_id=1, outgoing=HalfState(credit=2**64 - 1)),
        StreamState(stream_id=4, outgoing=OVER, incoming=HalfState(credit=10)),
    ),
    opening=OVER,
    accepting=OVER,
)

IN_BYMUX = pytest.mark.parametrize(
    "carrier", [carrier for carrier in SOME if carrier.protocol == "bymux"], ids=str
)


def three() -> Ends:
    return Ends(*wsmux.pair(protocol="bymux", bymux_state=THREE))


def test_a_pair_starts_with_three_streams_and_both_globals_closed() -> None:
    client, server = three()
    with client, server:
        for end in (client, server):
            assert [stream.id for stream in end.initial_streams] == [0, 1, 4]
            assert end.stats().streams == 3
            with pytest.raises(wsmux.StreamRefused):
                end.open_stream(WAIT)


@pytest.mark.parametrize("index", [0, 1])
def test_streams_of_the_start_carry_bytes_both_ways(index: int) -> None:
    client, server = three()
    with client, server:
        ours, theirs = client.initial_streams[index], server.initial_streams[index]
        ours.write(b"from the client")
        theirs.write(b"from the server")
        ours.close_write()
        theirs.close_write()
        assert theirs.read() == b"from the client"
        assert ours.read() == b"from the server"


def test_a_half_that_was_over_before_the_start_is_closed_on_both_sides() -> None:
    client, server = three()
    with client, server:
        ours, theirs = client.initial_streams[2], server.initial_streams[2]
        with pytest.raises(ValueError, match="writing half"):
            ours.write(b"x")
        with pytest.raises(ValueError, match="reading half"):
            theirs.read()
        theirs.write(b"one way")
        theirs.close_write()
        assert ours.read() == b"one way"


@pytest.mark.parametrize(
    ("half", "written", "read"),
    [
        (HalfState(closed=True), ValueError, None),
        (HalfState(stopped=True), wsmux.StreamWriteClosed, ValueError),
    ],
    ids=["closed", "stopped"],
)
def test_a_half_that_one_side_had_ended_is_known_to_both(
    half: HalfState, written: type[Exception], read: type[Exception] | None
) -> None:
    state = BymuxState(streams=(StreamState(stream_id=0, outgoing=half),))
    client, server = wsmux.pair(protocol="bymux", bymux_state=state)
    with client, server:
        with pytest.raises(written):
            client.initial_streams[0].write(b"x")
        if read is None:
            assert server.initial_streams[0].read() == b""
        else:
            with pytest.raises(read):
                server.initial_streams[0].read()


def test_streams_of_the_start_end_as_others_do() -> None:
    client, server = three()
    with client, server:
        for stream in (*client.initial_streams, *server.initial_streams):
            stream.close()
        wait_for(lambda: client.stats().streams == server.stats().streams == 0)
        assert client.wait_drained(0)


def test_credit_of_the_start_is_all_there_is_before_the_peer_gives_more(spawn: Spawn) -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        client = wsmux.from_socket(ours, role="client", protocol="bymux", bymux_state=THREE)
        writing = spawn(client.initial_streams[0].write, b"hello")
        wait_for_writer(client)
        received = bytearray()
        while b"hell" not in received:
            received += theirs.recv(100)
        assert bytes.fromhex("20 00 04") + b"hell" in received
        theirs.sendall(bytes.fromhex("00 00 01"))
        assert writing.result(WAIT) == 5
        client.abort()
        assert client.wait_closed(WAIT)


def test_who_opens_a_stream_may_write_before_any_round_trip() -> None:
    state = BymuxState(opening=HalfState(credit=1), starting_credit=1000)
    ours, theirs = socket.socketpair()
    with theirs:
        client = wsmux.from_socket(ours, role="client", protocol="bymux", bymux_state=state)
        stream = client.open_stream(timeout=0)
        stream.timeout = 0
        assert stream.write(bytes(1000)) == 1000
        with pytest.raises(wsmux.WriteTimeout):
            stream.write(b"x")
        client.abort()
        assert client.wait_closed(WAIT)


@IN_BYMUX
def test_both_sides_may_start_with_credit(join_ends: Join) -> None:
    state = BymuxState(
        opening=HalfState(credit=2),
        accepting=HalfState(credit=3),
        starting_credit=100,
        peer_starting_credit=200,
    )
    ends = join_ends(client={"bymux_state": state}, server={"bymux_state": state.mirrored()})
    for opener, other, size in ((ends.client, ends.server, 100), (ends.server, ends.client, 200)):
        with opener.open_stream(WAIT) as near:
            near.write(bytes(size))
            with other.accept_stream(WAIT) as far:
                far.write(b"answer")
                near.close_write()
                assert far.read() == bytes(size)
            assert near.read() == b"answer"


@IN_BYMUX
def test_there_are_no_streams_at_the_start_without_a_state(ends: Ends) -> None:
    assert [end.initial_streams for end in ends] == [(), ()]
    assert [end.stats().streams for end in ends] == [0, 0]


@pytest.mark.parametrize("protocol", ["wsmux", "js-ws", "yamux"])
def test_other_wires_have_no_state_to_agree_on(protocol: str) -> None:
    client, server = wsmux.pair(protocol=protocol, bymux_state=THREE)
    with client, server:
        assert client.initial_streams == server.initial_streams == ()
