"""Open a stream together with its first bytes, and close it without waking the I/O thread."""

from __future__ import annotations

import threading
from contextlib import suppress

import pytest

import wsmux
from wsmux.mux import multiplexer
from wsmux.protocols import native
from wsmux.transport.message_transport import MessageTransport

from ..helpers.carriers import IN_PROCESS, ON_SOME, Carrier, Ends
from ..helpers.connections import Join, Spawn
from ..helpers.inside import early_credit_of, multiplexer_of
from ..helpers.interrupts import interrupted_at
from ..helpers.joined_streams import open_pair, read_exactly
from ..helpers.scripted import WAIT
from ..helpers.waiting import wait_for

ON_ALL = pytest.mark.parametrize("carrier", IN_PROCESS, ids=str)

# More than any window.
MUCH = bytes(range(256)) * 64 * 1024


@ON_ALL
def test_the_first_bytes_arrive_with_the_stream(ends: Ends) -> None:
    for opener, other in (ends, reversed(ends)):
        for data in (b"x", b"first words", memoryview(b"a view"), bytearray(b"that may change")):
            with opener.open_stream(WAIT, data=data) as near, other.accept_stream(WAIT) as far:
                assert read_exactly(far, len(data)) == bytes(data)
                far.write(b"answered")
                assert read_exactly(near, 8) == b"answered"


@pytest.mark.parametrize(
    "carrier", [each for each in IN_PROCESS if each.protocol in ("wsmux", "yamux")], ids=str
)
def test_they_are_sent_together(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others have to be told first how much they may send."""
    near, far = open_pair(*ends)
    if ends.client.protocol == "wsmux":
        wait_for(lambda: early_credit_of(ends.client) > 0)
    me, sends = threading.get_ident(), list[bool]()
    flush = MessageTransport.flush

    def counted(transport: MessageTransport, *arguments: object) -> object:
        if threading.get_ident() == me:
            sends.append(transport.queue.has_output())
        return flush(transport, *arguments)  # type: ignore[arg-type]

    near.close()
    far.close()
    monkeypatch.setattr(MessageTransport, "flush", counted)
    with ends.client.open_stream(WAIT, data=b"first words"):
        assert sends == [True]
        with ends.server.accept_stream(WAIT) as accepted:
            assert read_exactly(accepted, 11) == b"first words"


@ON_SOME
def test_more_than_the_peer_takes_unread_is_waited_for(ends: Ends, spawn: Spawn) -> None:
    opening = spawn(lambda: ends.client.open_stream(WAIT, data=MUCH))
    with ends.server.accept_stream(WAIT) as far:
        far.timeout = WAIT
        assert read_exactly(far, len(MUCH)) == MUCH
        opening.result(WAIT).close()


@ON_SOME
def test_a_stream_whose_first_bytes_are_not_taken_in_time_ends(ends: Ends) -> None:
    with pytest.raises(wsmux.WriteTimeout):
        ends.client.open_stream(0.05, data=MUCH)
    wait_for(lambda: not ends.client.stats().streams)
    with ends.client.open_stream(WAIT, data=b"on") as near:
        assert near.timeout is None
        read = b""
        while read != b"on":  # the peer may have had a part of the first stream, or all of its end
            with ends.server.accept_stream(WAIT) as far, suppress(wsmux.StreamReset):
                far.timeout = WAIT
                read = far.read(2)


@pytest.mark.parametrize("carrier", [Carrier("socketpair", "yamux")], ids=str)
def test_an_interrupted_opening_leaves_no_stream(join_ends: Join) -> None:
    def interrupted(number: int) -> bool:
        # The peer may not have taken what was half opened, so its end is only waited for this long.
        client, server = join_ends(client={"config": wsmux.Config(close_timeout=0.2)})
        with client, server:
            opened: list[wsmux.Stream] = []
            found = interrupted_at(
                number, lambda: opened.append(client.open_stream(WAIT, data=b"x"))
            )
            for stream in opened:
                stream.close()
            wait_for(lambda: client.error is not None or not client.stats().streams)
        return found

    number = 1
    while interrupted(number):
        number += 3
    assert number > 100


def test_a_durable_stream_is_written_to_when_it_is_open(ends: Ends) -> None:
    with pytest.raises(ValueError, match="write it afterwards"):
        ends.client.open_stream(WAIT, data=b"x", durable="upload")  # type: ignore[call-overload]


@ON_ALL
def test_closing_a_stream_does_not_wake_the_io_thread_each_time(
    join_ends: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its timer is later than that of another stream."""
    monkeypatch.setattr(native, "JS_WS_CLOSE_DELAY", 30.0)  # later than the end of the test
    monkeypatch.setattr(multiplexer, "MAX_UNAWAITED_TIME", 30.0)
    ends = join_ends(client={"config": wsmux.Config(close_timeout=30.0)})
    woken: list[int] = []
    wake = MessageTransport.wake

    def counted(transport: MessageTransport) -> None:
        if transport is multiplexer_of(ends.client).transport:
            woken.append(threading.get_ident())
        wake(transport)

    kept = open_pair(*ends)
    monkeypatch.setattr(MessageTransport, "wake", counted)
    for _ in range(20):
        with ends.client.open_stream(WAIT, data=b"x"), ends.server.accept_stream(WAIT) as far:
            assert read_exactly(far, 1) == b"x"
        wait_for(lambda: ends.client.stats().streams == 1)
    assert woken.count(threading.get_ident()) <= 2
    kept.near.close()
