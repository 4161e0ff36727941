"""Take the carriers of a session away: what every call sees meanwhile, and how it ends."""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import wsmux
from wsmux.protocols.resumption import Hello, Welcome, parse_answer
from wsmux.runtime import clock
from wsmux.transport.message_transport import MessageTransport
from wsmux.transport.resumable_transport import Carrier, ResumableTransport

from ..helpers.inside import multiplexer_of, on_end, send_lock_of
from ..helpers.raw_peer import (
    ACK,
    BINARY,
    CLOSE_FRAME,
    DATA,
    PING,
    PONG,
    RawPeer,
    close_payload,
    in_thread,
    message,
    raw_client,
    uint32,
)
from ..helpers.resumed import MIB, Pair, check_bulk_over_cuts, joined, pair, read_all
from ..helpers.timeouts import WAIT
from ..helpers.waiting import wait_for, wait_for_reader
from ..helpers.wires import NAMES

SUBPROTOCOL = "wsmux.resume.v1+wsmux"
ID = b"sixteen bytes id"
END = b"\6"


@pytest.mark.parametrize("protocol", NAMES)
@pytest.mark.parametrize("how", ["rst", "fin"])
def test_streams_go_on_over_another_carrier(protocol: str, how: Any) -> None:
    with pair(protocol=protocol) as ends:
        check_bulk_over_cuts(ends, "up", how, 7)


@pytest.mark.parametrize("protocol", NAMES)
def test_both_ends_that_fill_all_buffers_go_on(protocol: str) -> None:
    fill_all_buffers(protocol)


@pytest.mark.long
@pytest.mark.hang_bound(600)
@pytest.mark.parametrize("protocol", NAMES)
def test_both_ends_that_fill_all_buffers_go_on_200_times(protocol: str) -> None:
    for _ in range(200):
        fill_all_buffers(protocol)


def fill_all_buffers(protocol: str) -> None:
    """Let both ends write until neither session nor socket takes more, and go on over another."""
    data = os.urandom(MIB)
    with pair(protocol=protocol, buffer=256 * 1024) as ends:
        streams = [*joined(ends), *joined(ends)]  # one has no more credit than is kept
        ends.proxy.freeze()
        writing = [in_thread(stream.write, data) for stream in streams]
        for end in (ends.client, ends.server):
            wait_for(lambda end=end: end.stats().unacknowledged_bytes > 128 * 1024)
            wait_for(lambda end=end: end.stats().waiting_writers)
        ends.outage()
        ends.proxy.thaw()
        ends.over()
        reading = [in_thread(read_all, stream, len(data)) for stream in streams]
        for each in reading:
            assert each.result(WAIT) == data
        for each in writing:
            each.result(WAIT)


@pytest.mark.parametrize("code", [1000, 1001, 1012])
def test_a_close_frame_without_an_end_is_only_a_lost_carrier(code: int) -> None:
    """So API gateways end WebSockets that are an hour old."""
    with server_alone() as (server, peer, welcome):
        (connection,) = server.connections
        peer.send_frame(CLOSE_FRAME, close_payload(code))
        wait_for(lambda: connection.stats().detached is not None)
        text = str(connection.explain())
        assert f"closed with code {code}" in text
        with raw_client(server.port, subprotocol=SUBPROTOCOL) as again:
            again.send_frame(BINARY, Hello(ID, welcome.epoch, 1, True).encode(welcome.key))
            assert isinstance(parse_answer(again.recv_message()), Welcome)
            wait_for(lambda: connection.stats().reconnects == 1)
            assert not connection.closed


@contextmanager
def server_alone(**options: Any) -> Iterator[tuple[wsmux.Server, RawPeer, Welcome]]:
    """Serve a client by hand that has begun a session."""
    with wsmux.serve(lambda connection: connection.wait_closed(), resume=True, **options) as server:
        try:
            with raw_client(server.port, subprotocol=SUBPROTOCOL) as peer:
                peer.send_frame(BINARY, Hello(ID).encode(None))
                welcome = parse_answer(peer.recv_message())
                assert isinstance(welcome, Welcome)
                wait_for(lambda: server.connections)
                yield server, peer, welcome
        finally:
            server.shutdown(0)


@pytest.mark.parametrize("how", ["silent", "fin", "rst"])
def test_the_end_that_a_peer_told_is_the_reason_however_its_carrier_ends(how: str) -> None:
    config = wsmux.Config(ping_interval=0.1, ping_timeout=0.1)
    with server_alone(config=config) as (server, peer, _):
        (connection,) = server.connections
        peer.send_frame(BINARY, END + struct.pack(">H", 1001) + b"bye")
        if how == "fin":
            peer.sock.close()
        elif how == "rst":
            wait_for(lambda: connection.stats().bytes_received)
            peer.reset()
        assert connection.wait_closed(WAIT)
        assert isinstance(connection.error, wsmux.ConnectionClosed)
        assert (connection.close_code, connection.error.side) == (1001, "remote")


def test_one_acknowledgement_waits_behind_a_full_socket() -> None:
    """A peer that reads nothing must not make this side queue one for each byte it sends."""
    with server_alone() as (server, peer, _):
        (connection,) = server.connections
        transport = multiplexer_of(connection).transport
        assert isinstance(transport, ResumableTransport)
        session = transport.session
        peer.send_frame(BINARY, b"\0" + message(peer.id(), ACK, uint32(1 << 16)))
        peer.recv_message()
        sent = session.received
        with send_lock_of(connection):  # as a writer that waits for the socket
            for size in (session.acknowledge_after, *[1] * 100):
                data = message(peer.id(), DATA, bytes(size))
                peer.send_frame(BINARY, b"\0" + data)
                sent += len(data)
                wait_for(lambda sent=sent: session.received == sent)
        peer.send_frame(PING, b"?")
        told = []
        while (got := peer.recv_frame()).opcode != PONG:
            told += [got.payload] if got.payload[:1] == b"\5" else []
        assert 1 <= len(told) <= 2
        assert int.from_bytes(told[-1][1:], "big") == sent


def test_a_peer_that_acknowledges_nothing_loses_its_carrier_only() -> None:
    # The credit of a stream must not end first: then nothing would wait for the peer's system.
    config = wsmux.Config(stall_timeout=0.3, ping_interval=None, receive_window=4 * MIB)
    with pair(config=config, buffer=256 * 1024) as ends:
        ours, _ = joined(ends)
        ends.proxy.lose("down")
        writing = in_thread(ours.write, bytes(MIB))
        wait_for(lambda: ends.client.stats().reconnects or ends.client.stats().detached)
        ends.proxy.reset()
        assert ends.client.stats().unacknowledged_bytes <= 256 * 1024 + 64 * 1024
        taken = ends.server
        assert not taken.closed
        assert not writing.done() or writing.result() == MIB


def test_a_black_hole_is_found_by_pings() -> None:
    config = wsmux.Config(ping_interval=0.1, ping_timeout=0.2)
    with pair(config=config) as ends:
        ours, theirs = joined(ends)
        ends.proxy.lose("up", "down")
        wait_for(lambda: ends.client.stats().detached is not None)
        ends.proxy.reset()
        ours.write(b"after")
        assert theirs.read(5) == b"after"


# During an outage

Call = Callable[[Pair, wsmux.Stream], object]

WAITING: dict[str, Call] = {
    "read": lambda ends, stream: stream.read(1),
    "write": lambda ends, stream: stream.write(bytes(8 * MIB)),
    "accept_stream": lambda ends, stream: ends.client.accept_stream(),
    "ping": lambda ends, stream: ends.client.ping(WAIT),
    "wait_drained": lambda ends, stream: ends.client.wait_drained(),
}


@pytest.mark.parametrize("name", [name for name in WAITING if name != "wait_drained"])
def test_a_lost_session_ends_every_call_that_waits(name: str) -> None:
    with pair(grace=1.0) as ends:
        ours, _ = joined(ends)
        ends.outage()
        waiting = in_thread(WAITING[name], ends, ours)
        with pytest.raises(wsmux.ResumeLost) as error:
            waiting.result(WAIT)
        assert error.value.code == 1006
        assert "there was no connection for 1 s" in error.value.why
        assert error.value.acknowledged + error.value.unacknowledged > 0
        assert ends.server.wait_closed(WAIT)
        assert isinstance(ends.server.error, wsmux.ResumeLost)
        with pytest.raises(wsmux.ResumeLost):
            ends.client.open_stream(timeout=WAIT)


def test_timeouts_and_deadlines_run_on() -> None:
    with pair() as ends:
        ours, theirs = joined(ends)
        ends.outage()
        ours.timeout = 0.05
        with pytest.raises(TimeoutError):
            ours.read(1)
        ours.timeout = WAIT
        with wsmux.deadline(0.05), pytest.raises(TimeoutError):
            ours.read(1)
        with pytest.raises(TimeoutError):
            ends.client.ping(0.05)
        ends.over()
        theirs.write(b"x")
        assert ours.read(1) == b"x"


def test_a_half_close_and_a_reset_arrive_after_it() -> None:
    with pair() as ends:
        one, other = joined(ends)
        two, another = joined(ends)
        ends.outage()
        one.write(b"last")
        one.close_write()
        two.reset(77)
        ends.over()
        assert other.read() == b"last"
        with pytest.raises(wsmux.StreamReset) as error:
            another.read(1)
        assert error.value.code == 77


def test_streams_opened_and_going_away_are_told_after_it() -> None:
    with pair() as ends:
        joined(ends)  # until the first answer, nothing can be written before one
        ends.outage()
        stream = ends.client.open_stream(timeout=WAIT)
        stream.write(b"new")
        ends.client.go_away()
        ends.over()
        assert ends.server.accept_stream(WAIT).read(3) == b"new"
        with pytest.raises(wsmux.WsmuxError):
            ends.server.open_stream(timeout=WAIT)
        stream.reset()


@pytest.mark.parametrize("closer", ["client", "server"])
def test_a_close_is_told_after_it(closer: str) -> None:
    with pair() as ends:
        ours, theirs = joined(ends)
        ends.outage()
        end, other = ends.client, ends.server
        stream, reader = ours, theirs
        if closer == "server":
            end, other, stream, reader = other, end, theirs, ours
        stream.write(b"last words")
        stream.close_write()
        closing = in_thread(end.close, WAIT, code=1000, reason="enough")
        wait_for(lambda: end.closed)
        ends.over()
        assert reader.read() == b"last words"
        closing.result(WAIT)
        assert other.wait_closed(WAIT)
        assert (other.close_code, other.close_reason) == (1000, "enough")


def test_a_close_in_it_is_not_over_before_it_is_queued(monkeypatch: pytest.MonkeyPatch) -> None:
    """The I/O thread may look between the two, and must not leave without a word."""
    left: list[float] = []

    def look(transport: MessageTransport) -> None:
        outage = transport.outage_locked(clock.monotonic())
        if outage is not None:
            left.append(outage.grace_left)

    with pair() as ends:
        ends.outage()
        on_end(monkeypatch, look)
        ends.client.begin_close()
    assert left
    assert min(left) > 0


def test_a_close_in_it_takes_no_longer_than_told() -> None:
    with pair() as ends:
        ends.outage()
        ends.client.close(0.05)
        assert ends.client.wait_closed(WAIT)
        assert ends.client.close_code == 1000


@pytest.mark.parametrize("handed_over", [False, True], ids=["queued", "in the socket"])
def test_a_close_in_it_has_the_time_that_it_is_told(handed_over: bool) -> None:
    """It is longer than the config gives, for what was in the socket of the lost carrier, too."""
    with pair(config=wsmux.Config(close_timeout=0.3)) as ends:
        ours, theirs = joined(ends)
        if handed_over:
            ends.proxy.freeze("up")
        else:
            ends.outage()
        ours.write(b"last words")
        ours.close_write()
        closing = in_thread(ends.client.close, WAIT, code=1000, reason="enough")
        wait_for(lambda: ends.client.closed)
        time.sleep(0.6)
        if handed_over:
            ends.proxy.reset()
            ends.proxy.thaw()
        ends.over()
        assert theirs.read() == b"last words"
        closing.result(WAIT)
        assert ends.server.wait_closed(WAIT)
        assert (ends.server.close_code, ends.server.close_reason) == (1000, "enough")


def test_it_is_explained() -> None:
    with pair() as ends:
        ours, _ = joined(ends)
        ends.outage()
        ours.write(b"12345")
        text = str(ends.client.explain())
        assert "no connection for" in text
        stats = ends.client.stats()
        assert stats.detached is not None
        assert stats.reconnects == 0
        ends.over()
        wait_for(lambda: ends.client.stats().reconnects == 1)
        assert ends.client.stats().detached is None


def test_reconnect_now_leaves_a_carrier_that_works() -> None:
    with pair() as ends:
        ours, theirs = joined(ends)
        for count in (1, 2, 3):
            ends.client.reconnect_now()
            wait_for(lambda count=count: ends.client.stats().reconnects == count)
            ours.write(b"x")
            assert theirs.read(1) == b"x"
        ends.server.reconnect_now()  # a server cannot, and does nothing
        assert ends.server.stats().detached is None


def test_abort_ends_it() -> None:
    with pair() as ends:
        ours, _ = joined(ends)
        ends.outage()
        reading = in_thread(ours.read, 1)
        wait_for_reader(ends.client)
        ends.client.abort()
        with pytest.raises(wsmux.ConnectionClosedError):
            reading.result(WAIT)
        assert ends.client.wait_closed(WAIT)


@pytest.mark.parametrize("outage", [False, True])
def test_a_forked_child_gets_typed_errors_and_its_parent_goes_on(outage: bool) -> None:
    with pair() as ends:
        ours, theirs = joined(ends)
        if outage:
            ends.outage()
        if (child := os.fork()) == 0:
            try:
                ends.client.reconnect_now()
                ends.server.reconnect_now()
                try:
                    ours.read(1)
                except wsmux.ForkedError:
                    os._exit(0)
            finally:
                os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        ends.over()
        theirs.write(b"x")
        assert ours.read(1) == b"x"


# Carriers that are offered


def test_a_carrier_that_comes_while_another_is_attached_replaces_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with server_alone() as (server, peer, welcome):
        (connection,) = server.connections
        transport = multiplexer_of(connection).transport
        assert isinstance(transport, ResumableTransport)
        late, other = socket.socketpair()
        session = transport.session
        check = session.check_oldest

        def check_oldest(oldest: int) -> None:
            check(oldest)
            if transport.reconnects == 0:  # the first time
                monkeypatch.undo()
                assert transport.offer(Carrier(late, 0, 0, True, generation=1))

        monkeypatch.setattr(session, "check_oldest", check_oldest)
        with (
            RawPeer(other, masks=True) as second,
            raw_client(server.port, subprotocol=SUBPROTOCOL) as first,
        ):
            first.send_frame(BINARY, Hello(ID, welcome.epoch, 1, True).encode(welcome.key))
            assert isinstance(parse_answer(second.recv_message()), Welcome)
            wait_for(lambda: transport.reconnects == 2)
            first.recv_to_end()


def test_an_abort_while_a_carrier_is_attached_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with server_alone() as (server, peer, welcome):
        (connection,) = server.connections
        transport = multiplexer_of(connection).transport
        attach = transport.queue.attach

        def abort_behind(*args: Any) -> int:
            sent_again = attach(*args)
            transport.abort()
            return sent_again

        monkeypatch.setattr(transport.queue, "attach", abort_behind)
        stream = connection.open_stream(timeout=WAIT)  # what it sends is sent again
        peer.sock.close()
        wait_for(lambda: connection.stats().detached is not None)
        with raw_client(server.port, subprotocol=SUBPROTOCOL) as again:
            again.send_frame(BINARY, Hello(ID, welcome.epoch, 1, True).encode(welcome.key))
            assert again.recv_to_end() == b""
        assert connection.wait_closed(WAIT)
        assert stream.id == 1


def test_a_carrier_that_is_refused_is_closed_under_the_mutex() -> None:
    """Otherwise an abort that shuts it down meanwhile could meet the next owner of its number."""
    with server_alone() as (server, _, _):
        (connection,) = server.connections
        transport = multiplexer_of(connection).transport
        assert isinstance(transport, ResumableTransport)
        held: list[bool] = []

        class Noting(socket.socket):
            def close(self) -> None:
                if self.fileno() >= 0:
                    held.append(transport.mutex.locked())
                super().close()

        ours, theirs = socket.socketpair()
        with theirs:
            assert transport.offer(Carrier(Noting(fileno=ours.detach()), 1 << 40, 0, True))
            assert connection.wait_closed(WAIT)
            assert held == [True]
        assert "the peer says that it has received up to" in str(connection.error)


def test_a_transport_that_has_ended_takes_no_carrier() -> None:
    with server_alone() as (server, _, _):
        (connection,) = server.connections
        transport = multiplexer_of(connection).transport
        assert isinstance(transport, ResumableTransport)
        connection.abort()
        ours, theirs = socket.socketpair()
        with ours, theirs:
            assert not transport.offer(Carrier(ours, 0))
