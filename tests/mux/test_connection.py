"""End connections in every way, and see what becomes of their streams and callers.

Every test runs in the four wires over every carrier with both ends here; those of sockets that
are narrow or not read, in the four wires over a socketpair.
"""

from __future__ import annotations

import os
import pickle
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress

import pytest

import wsmux
from wsmux.protocols import native
from wsmux.testing import FaultProxy
from wsmux.transport import message_transport

from ..helpers.carriers import IN_PROCESS, Carrier, Ends
from ..helpers.connections import Spawn
from ..helpers.inside import multiplexer_of, record_of, send_lock_of, sends_until
from ..helpers.joined_streams import fill, open_pair, write_on
from ..helpers.pure_peer import PurePeer
from ..helpers.scripted import WAIT, pattern
from ..helpers.stream_outcomes import check_unseen
from ..helpers.waiting import polls, wait_for, wait_for_reader, wait_for_writer
from ..helpers.wires import NAMES, wire_of

WINDOW = wsmux.Config().receive_window


def credit_of(stream: wsmux.Stream) -> int:
    multiplexer = multiplexer_of(stream.connection)
    with multiplexer.mutex:
        return multiplexer.credit_locked(record_of(stream))


def ended(call: Callable[[], object]) -> wsmux.ConnectionClosed:
    """Return what a call on an ended connection raises."""
    with pytest.raises(wsmux.ConnectionClosed) as error:
        call()
    return error.value


# close


def test_both_sides_see_a_clean_close(ends: Ends) -> None:
    ends.client.close()
    assert ends.server.wait_closed(WAIT)
    near, far = (ended(end.accept_stream) for end in ends)
    assert [type(error) for error in (near, far)] == [wsmux.ConnectionClosedOK] * 2
    assert [(e.code, e.side) for e in (near, far)] == [(1000, "local"), (1000, "remote")]
    assert ends.client.closed
    assert ends.server.closed


@pytest.mark.parametrize("code", [1000, 1001, 1011, 4000])
def test_either_side_may_close_with_a_code_and_a_reason(
    ends: Ends, carrier: Carrier, code: int
) -> None:
    ends.server.close(code=code, reason="enough")
    error = ended(ends.client.accept_stream)
    seen, reason = carrier.wire.seen_close(carrier.websocket, code, "enough")
    clean = seen in (1000, 1001)
    assert type(error) is (wsmux.ConnectionClosedOK if clean else wsmux.ConnectionClosedError)
    assert (error.code, error.side) == (seen, None if seen == 1006 else "remote")
    assert reason in (None, error.reason)
    own = ended(ends.server.accept_stream)
    assert (own.code, own.reason, own.side) == (code, "enough", "local")


UNSENDABLE = [(1006, ""), (1015, ""), (999, ""), (2000, ""), (70000, ""), (1000, "\ud800")]


def test_a_close_that_cannot_be_sent_changes_nothing(ends: Ends, carrier: Carrier) -> None:
    for close in (ends.client.close, ends.client.begin_close):
        for code, reason in UNSENDABLE:
            with pytest.raises(ValueError, match=r"must not carry|as UTF-8"):
                close(code=code, reason=reason)
            assert not ends.client.closed
    ours, theirs = open_pair(ends.client, ends.server)
    ours.write(b"ping")
    assert theirs.read(4) == b"ping"
    ends.client.close(code=4000, reason="enough")
    seen, _ = carrier.wire.seen_close(carrier.websocket, 4000, "enough")
    assert ended(ends.server.accept_stream).code == seen


def test_closing_twice_and_from_both_sides_is_fine(ends: Ends, spawn: Spawn) -> None:
    closing = [spawn(end.close) for end in ends for _ in range(4)]
    for future in closing:
        future.result(WAIT)
    assert {type(ended(end.accept_stream)) for end in ends} == {wsmux.ConnectionClosedOK}


def test_what_arrived_before_the_close_stays_readable(ends: Ends) -> None:
    near, far = open_pair(*ends)
    near.write(pattern(WINDOW, 1))
    ends.client.close()
    assert ends.server.wait_closed(WAIT)
    read = bytearray()
    while len(read) < WINDOW:
        read += far.read(10_000)
    assert read == pattern(WINDOW, 1)
    assert isinstance(ended(far.read), wsmux.ConnectionClosedOK)


def test_a_stream_that_ended_before_the_close_still_ends_cleanly(ends: Ends) -> None:
    near, far = open_pair(*ends)
    near.write(b"whole")
    near.close()
    ends.client.close()
    assert ends.server.wait_closed(WAIT)
    assert far.read() == b"whole"
    assert far.read() == b""


def test_close_wakes_every_blocked_call(ends: Ends, spawn: Spawn) -> None:
    reader, writer = open_pair(*ends), open_pair(*ends)
    for stream in (*reader, *writer):
        stream.timeout = None
    blocked = [spawn(stream.read, 1) for stream in reader]
    blocked += [spawn(stream.write, bytes(2 * WINDOW)) for stream in writer]
    blocked += [spawn(end.accept_stream) for end in ends]
    for end in ends:
        wait_for_reader(end)
        wait_for_writer(end)
        wait_for(lambda: len(end._multiplexer.table.acceptors.parked) == 1)  # noqa: B023 -- called now
    ends.client.close()
    for future in blocked:
        with pytest.raises(wsmux.ConnectionClosedOK):
            future.result(WAIT)


def test_every_call_after_the_close_raises(ends: Ends) -> None:
    near, _ = open_pair(*ends)
    ends.client.close()
    for call in (
        near.read,
        lambda: near.write(b"x"),
        ends.client.open_stream,
        ends.client.accept_stream,
        ends.client.ping,
        ends.client.go_away,
    ):
        assert isinstance(ended(call), wsmux.ConnectionClosedOK)


def test_streams_can_be_closed_and_reset_after_the_close(ends: Ends) -> None:
    streams = [*open_pair(*ends), *open_pair(*ends)]
    ends.client.close()
    for stream in streams[:2]:
        stream.close()
    for stream in streams[2:]:
        stream.reset()
    assert all(stream.closed for stream in streams)


def test_threads_do_not_share_one_exception(ends: Ends) -> None:
    ends.client.close()
    assert ended(ends.client.accept_stream) is not ended(ends.client.accept_stream)


def test_a_with_block_closes_the_connection(ends: Ends) -> None:
    with ends.client:
        pass
    assert isinstance(ended(ends.server.accept_stream), wsmux.ConnectionClosedOK)


def test_begin_close_does_not_wait(ends: Ends, carrier: Carrier) -> None:
    ends.client.begin_close(code=1001, reason="soon")
    error = ended(ends.server.accept_stream)
    assert (error.code, error.reason) == carrier.wire.seen_close(carrier.websocket, 1001, "soon")
    assert ends.client.wait_closed(WAIT)


@pytest.mark.parametrize("protocol", NAMES)
def test_close_never_waits_longer_than_told(protocol: str) -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        connection = wsmux.from_socket(ours, role="client", protocol=protocol)
        start = time.monotonic()
        connection.close(timeout=0.05)
        assert 0.05 <= time.monotonic() - start < WAIT / 2
        assert connection.wait_closed(0)


@pytest.mark.parametrize("begun", [False, True], ids=["close", "begin_close"])
@pytest.mark.parametrize("resume", [False, True])
def test_close_sends_what_is_queued_within_the_time_that_it_is_given(
    spawn: Spawn, resume: bool, begun: bool
) -> None:
    """It is longer than the config gives, also where that has begun."""
    read = []

    def count(stream: wsmux.Stream) -> None:
        with suppress(wsmux.ConnectionClosedOK):
            while chunk := stream.read(65536):
                read.append(len(chunk))

    wide = wsmux.Config(receive_window=2**24, max_connection_buffer=2**26)
    with (
        wsmux.serve(stream_handler=count, config=wide, resume=resume) as server,
        FaultProxy(server.port) as proxy,
    ):
        client = wsmux.connect(
            proxy.url,
            config=wsmux.Config(close_timeout=WAIT / 4),
            resume=resume,
            sockopt=[(socket.SOL_SOCKET, socket.SO_SNDBUF, 64 * 1024)],
        )
        stream = client.open_stream(timeout=WAIT)
        wait_for(lambda: credit_of(stream) > 2**23)
        wait_for(lambda: server.connections)
        (peer,) = server.connections
        proxy.freeze("up")
        stream.timeout = 0.2
        with pytest.raises(wsmux.WriteTimeout) as error:
            stream.write(bytes(2**23))
        if begun:
            client.begin_close()
        closing = spawn(client.close, WAIT)
        wait_for(lambda: client.closed and sends_until(client) > time.monotonic() + WAIT / 2)
        assert not closing.done()
        proxy.thaw()
        closing.result(WAIT)
        assert peer.wait_closed(WAIT)
        wait_for(lambda: sum(read) == error.value.bytes_written)
        assert (peer.close_code, client.close_code) == (1000, 1000)


@pytest.mark.parametrize("carrier", [c for c in IN_PROCESS if c.answers_a_close], ids=str)
def test_a_close_that_another_thread_sends_ends_the_connection_at_once(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_transport, "LINGER", WAIT)
    with send_lock_of(ends.server):  # as a writer that is sending just now
        ends.client.begin_close()
        wait_for(lambda: ends.server.closed and polls(ends.server))
    multiplexer_of(ends.server).flush()
    assert ends.server.wait_closed(WAIT / 2)


@pytest.mark.parametrize("protocol", NAMES)
def test_close_sends_what_was_written_through_a_full_socket(protocol: str) -> None:
    client, server = narrow_pair(protocol)
    near, far = open_pair(client, server)
    near.write(pattern(WINDOW, 3))
    near.close()
    client.close()
    assert far.read() == pattern(WINDOW, 3)
    server.close()


def narrow_pair(protocol: str) -> Ends:
    """Return ends joined by sockets with the smallest buffers the system gives."""
    sockets = socket.socketpair()
    for sock in sockets:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    ours, theirs = sockets
    return Ends(
        wsmux.from_socket(ours, role="client", protocol=protocol),
        wsmux.from_socket(theirs, role="server", protocol=protocol),
    )


def test_js_ws_closes_a_connection_when_its_last_stream_is_acknowledged(
    monkeypatch: pytest.MonkeyPatch, spawn: Spawn
) -> None:
    monkeypatch.setattr(native, "JS_WS_CLOSE_DELAY", WAIT)
    client, server = wsmux.pair(protocol="js-ws")
    near, far = open_pair(client, server)
    near.write(pattern(WINDOW, 3))
    near.close_write()
    closing = spawn(client.close)
    wait_for(lambda: len(client._multiplexer.quiet.parked) == 1)
    assert far.read() == pattern(WINDOW, 3)
    closing.result(WAIT / 2)
    server.close()


def test_js_ws_answers_end_without_a_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "JS_WS_CLOSE_DELAY", WAIT)
    client, server = wsmux.pair(protocol="js-ws")
    with client, server:
        near, far = open_pair(client, server)
        near.close_write()
        assert far.read() == b""
        far.write(b"answer")
        far.close_write()
        near.timeout = WAIT / 2
        try:
            assert near.read() == b"answer"
        finally:
            near.reset()
            far.reset()


# Iterating


def test_iteration_ends_at_a_clean_close(ends: Ends, spawn: Spawn) -> None:
    accepting = spawn(lambda: [stream.id for stream in ends.server])
    opened = [ends.client.open_stream() for _ in range(3)]
    wait_for(lambda: ends.server.stats().streams_accepted == 3)
    ends.client.close()
    assert accepting.result(WAIT) == [stream.id for stream in opened]


@pytest.mark.parametrize("how", ["abort", "code"])
def test_iteration_raises_at_any_other_end(ends: Ends, spawn: Spawn, how: str) -> None:
    accepting = spawn(list, ends.server)
    wait_for(lambda: len(multiplexer_of(ends.server).table.acceptors.parked) == 1)
    if how == "abort":
        ends.client.abort()
    else:
        ends.client.close(code=1011)
    with pytest.raises(wsmux.ConnectionClosedError):
        accepting.result(WAIT)


@pytest.mark.parametrize("code", [1000, 1001])
def test_after_an_iteration_the_close_code_tells_finished_from_going_away(
    ends: Ends, carrier: Carrier, spawn: Spawn, code: int
) -> None:
    seen, reason = carrier.wire.seen_close(carrier.websocket, code, "enough")
    assert [(end.close_code, end.close_reason) for end in ends] == [(None, None)] * 2
    accepting = spawn(list, ends.client)
    ends.server.close(code=code, reason="enough")
    if seen in (1000, 1001):
        assert accepting.result(WAIT) == []
    else:
        with pytest.raises(wsmux.ConnectionClosedError):
            accepting.result(WAIT)
    assert ends.client.close_code == seen
    assert reason in (None, ends.client.close_reason)
    assert (ends.server.close_code, ends.server.close_reason) == (code, "enough")


# Lost


def test_an_aborted_connection_has_the_close_code_1006_on_both_sides(ends: Ends) -> None:
    ends.client.abort()
    assert (ends.client.close_code, ends.client.close_reason) == (1006, "aborted")
    assert ends.server.wait_closed(WAIT)
    assert ends.server.close_code == 1006
    assert ends.server.close_reason


def test_a_forked_child_sees_the_close_code_of_a_lost_connection() -> None:
    client, server = wsmux.pair()
    with client, server:
        child = os.fork()
        if not child:
            told = (
                client.close_code,
                "belongs to the parent process" in (client.close_reason or ""),
            )
            os._exit(0 if told == (1006, True) else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert client.close_code is None


def test_an_aborted_connection_is_lost_on_both_sides(ends: Ends) -> None:
    near, far = open_pair(*ends)
    ends.client.abort()
    for stream, side in ((near, "local"), (far, None)):
        error = ended(stream.read)
        assert isinstance(error, wsmux.ConnectionClosedError)
        assert (error.code, error.side) == (1006, side)


def test_a_lost_connection_wakes_every_blocked_call(ends: Ends, spawn: Spawn) -> None:
    quiet, full = open_pair(*ends), open_pair(*ends)
    blocked = [spawn(stream.read, 1) for stream in quiet]
    blocked += [spawn(stream.write, bytes(2 * WINDOW)) for stream in full]
    for end in ends:
        wait_for_reader(end)
        wait_for_writer(end)
    ends.server.abort()
    for future in blocked:
        with pytest.raises(wsmux.ConnectionClosedError):
            future.result(WAIT)


# Going away


def test_going_away_refuses_new_streams_and_finishes_running_ones(ends: Ends) -> None:
    wire = wire_of(ends.client)
    near, far = open_pair(*ends)
    ends.server.go_away()
    if wire.tells_going_away:
        wait_for(lambda: ends.client._multiplexer.table.peer_refuses_from is not None)
        with pytest.raises(wsmux.StreamRefused) as error:
            ends.client.open_stream()
        assert error.value.retry_safe
    else:
        check_unseen(ends.client.open_stream())
    near.write(b"running")
    assert far.read(100) == b"running"
    far.write(b"on")
    assert near.read(100) == b"on"


def test_who_goes_away_may_open_streams_where_the_wire_lets_it(ends: Ends) -> None:
    with ends.client._multiplexer.mutex:  # it does not answer yet
        ends.server.go_away()
        if not wire_of(ends.client).opens_when_going_away:
            with pytest.raises(wsmux.LocalProtocolError, match="going away"):
                ends.server.open_stream()
    if wire_of(ends.client).opens_when_going_away:
        open_pair(ends.server, ends.client)


def test_streams_the_other_side_has_not_seen_are_refused(ends: Ends, spawn: Spawn) -> None:
    near, _ = open_pair(*ends)
    ends.client.ping(WAIT)  # the right to open another one has come
    with multiplexer_of(ends.server).mutex:  # its I/O thread sees the stream after it went away
        late = ends.client.open_stream()
        reading = spawn(late.read)
        wait_for_reader(ends.client)
        multiplexer_of(ends.server).table.accept_streams = False
        multiplexer_of(ends.server).protocol.go_away(0)
        multiplexer_of(ends.server).queue_locked()
    multiplexer_of(ends.server).flush()
    check_unseen(late, lambda: reading.result(WAIT))
    near.write(b"fine")


@pytest.mark.parametrize("protocol", [name for name in NAMES if name != "js-ws"])
def test_going_away_ends_a_blocked_open(protocol: str, spawn: Spawn) -> None:
    ours, theirs = socket.socketpair()
    config = wsmux.Config(max_pending_opens=1)
    with PurePeer(theirs, protocol, config=wsmux.Config(max_streams=1)) as peer:
        connection = wsmux.from_socket(ours, role="client", protocol=protocol, config=config)
        peer.send()
        kept = connection.open_stream(timeout=WAIT)
        opening = spawn(connection.open_stream)
        wait_for(lambda: len(connection._multiplexer.table.openers.parked) == 1)
        peer.machine.go_away(0)
        peer.send()
        with pytest.raises(wsmux.StreamRefused):
            opening.result(WAIT)
        kept.reset()
        connection.abort()
        assert connection.wait_closed(WAIT)


def test_going_away_twice_is_fine(ends: Ends, carrier: Carrier) -> None:
    near, far = open_pair(*ends)
    ends.server.go_away()
    ends.server.go_away()
    near.write(b"running")
    assert far.read(100) == b"running"


def test_wait_drained_waits_for_the_last_stream(ends: Ends, spawn: Spawn) -> None:
    near, far = open_pair(*ends)
    assert not ends.server.wait_drained(0)
    draining = spawn(ends.server.wait_drained, WAIT)
    near.close()
    far.close()
    assert draining.result(WAIT)


# Names


@pytest.mark.parametrize(
    "roles", [("client", "server"), (wsmux.Role.CLIENT, wsmux.Role.SERVER)], ids=["text", "enum"]
)
def test_roles_may_be_given_as_text(roles: tuple[str, str]) -> None:
    client, server = (
        wsmux.from_socket(sock, role=role)
        for sock, role in zip(socket.socketpair(), roles, strict=True)
    )
    with client, server:
        assert [end.role for end in (client, server)] == list(roles)
        open_pair(client, server)
        open_pair(server, client)


def test_an_unknown_role_is_refused() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, pytest.raises(ValueError, match="peer"):
        wsmux.from_socket(ours, role="peer")


def test_an_unknown_protocol_is_refused() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, pytest.raises(ValueError, match="protocol"):
        wsmux.from_socket(ours, role="client", protocol="http")


def test_a_representation_tells_the_state(ends: Ends) -> None:
    near, _ = open_pair(*ends)
    assert "open streams=1" in repr(ends.client)
    assert f"Stream {near.id} open" in repr(near)
    near.close()
    assert "closed" in repr(near)
    ends.client.close()
    assert "ended: connection closed" in repr(ends.client)


def test_errors_of_every_kind_travel_by_pickle(ends: Ends, spawn: Spawn) -> None:
    near, _ = open_pair(*ends)
    second, second_far = open_pair(*ends)
    errors: list[BaseException] = []

    def keep(call: Callable[[], object]) -> None:
        with pytest.raises(Exception, match=r".") as error:
            call()
        errors.append(error.value)

    near.timeout = 0.01
    keep(lambda: near.write(bytes(2 * WINDOW)))
    reading = spawn(second.read, 1)
    wait_for_reader(ends.client)
    keep(lambda: second.read(1))
    second_far.reset(77)
    if wire_of(second).resets:
        keep(lambda: reading.result(WAIT))
    else:
        keep(lambda: write_on(second))
    ends.server.close(code=4000, reason="enough")
    keep(ends.client.accept_stream)
    for error in errors:
        copied = pickle.loads(pickle.dumps(error))
        assert type(copied) is type(error)
        assert (str(copied), vars(copied)) == (str(error), vars(error))


# Tiny buffers


@pytest.mark.parametrize("protocol", NAMES)
def test_full_duplex_bulk_over_tiny_buffers_does_not_hang(protocol: str, spawn: Spawn) -> None:
    data = pattern(2 * WINDOW, 8)
    ends = narrow_pair(protocol)
    done = threading.Event()

    def send(stream: wsmux.Stream) -> None:
        stream.write(data)
        stream.close_write()

    def ping(connection: wsmux.Connection) -> int:
        count = 0
        while not done.is_set():
            connection.ping(WAIT)
            count += 1
        return count

    streams = [stream for _ in range(4) for stream in open_pair(*ends)]
    pinging = [spawn(ping, end) for end in ends]
    sending = [spawn(send, stream) for stream in streams]
    reading = [spawn(stream.read) for stream in streams]
    assert all(future.result(WAIT) == data for future in reading)
    for future in sending:
        future.result(WAIT)
    done.set()
    assert all(future.result(WAIT) > 0 for future in pinging)
    for end in ends:
        end.close()


def blocked(stats: wsmux.ConnectionStats) -> bool:
    """Return whether writers wait behind a queue that is as good as full: turns are 64 KiB."""
    return stats.waiting_for_room >= 4 and stats.queued_bytes >= wsmux.Config().max_send_queue // 2


@pytest.mark.parametrize("protocol", NAMES)
def test_a_blocked_socket_counts_writers_and_frees_them(protocol: str, spawn: Spawn) -> None:
    ours, theirs = socket.socketpair()
    generous = wsmux.Config(receive_window=2**31, max_connection_buffer=2**31)
    with PurePeer(theirs, protocol, config=generous) as peer:
        connection = wsmux.from_socket(ours, role="client", protocol=protocol)
        peer.send()
        streams = [connection.open_stream(timeout=WAIT) for _ in range(8)]
        peer.accept(8)
        writing = [spawn(stream.write, bytes(2**20)) for stream in streams]
        wait_for(lambda: blocked(connection.stats()))
        connection.abort()
        for future in writing:
            with pytest.raises(wsmux.ConnectionClosedError):
                future.result(WAIT)
        connection.close()


def test_unused_credit_is_not_an_end(ends: Ends) -> None:
    near, far = open_pair(*ends)
    assert fill(near) == WINDOW
    near.close_write()
    assert len(far.read()) == WINDOW
