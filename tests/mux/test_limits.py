"""Run into every limit of ``Config``, and find what it says there.

The limits are above the carrier: the tests run in the four wires over a socketpair and a WebSocket,
and over every carrier with both ends here in one wire. What is kept alive runs in all over all.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

import wsmux
from wsmux.runtime.memory import Holder, Verdict, process_memory

from ..helpers.carriers import IN_PROCESS, SOME, Carrier, Ends
from ..helpers.connections import Join, Spawn
from ..helpers.inside import multiplexer_of
from ..helpers.joined_streams import fill, open_pair
from ..helpers.pure_peer import PurePeer
from ..helpers.scripted import WAIT
from ..helpers.stream_outcomes import (
    check_late_refusal,
    check_read_of_reset,
    check_refusal,
    check_reset,
)
from ..helpers.waiting import wait_for, wait_for_reader
from ..helpers.wires import NAMES, wire_of

KIB = 1024
WINDOW = wsmux.Config().receive_window


@pytest.fixture(params=SOME, ids=str)
def carrier(request: pytest.FixtureRequest) -> Carrier:
    chosen: Carrier = request.param
    return chosen


def limited(join_ends: Join, **limits: Any) -> Ends:
    """Return ends whose server has other limits."""
    return join_ends(server={"config": wsmux.Config(**limits)})


# Opening


def test_opening_waits_while_too_many_opens_are_unanswered(
    peerless: wsmux.Connection, spawn: Spawn
) -> None:
    streams = [peerless.open_stream(timeout=WAIT) for _ in range(2)]
    with pytest.raises(TimeoutError):
        peerless.open_stream(timeout=0.01)
    assert len(streams) == peerless.stats().streams_opened == 2


@pytest.fixture(params=NAMES)
def peerless(request: pytest.FixtureRequest) -> Iterator[wsmux.Connection]:
    """Return a connection that may open two streams, and whose peer answers none."""
    ours, theirs = socket.socketpair()
    config = wsmux.Config(max_pending_opens=2)
    with PurePeer(theirs, request.param, config=wsmux.Config(max_streams=2)) as peer:
        connection = wsmux.from_socket(ours, role="client", protocol=request.param, config=config)
        peer.send()
        yield connection
        connection.abort()
        connection.close()


def test_opening_goes_on_when_an_answer_comes(join_ends: Join, spawn: Spawn) -> None:
    ends = join_ends(client={"config": wsmux.Config(max_pending_opens=1)})
    futures = [spawn(ends.client.open_stream, WAIT) for _ in range(20)]
    streams = [future.result(WAIT) for future in futures]
    assert sorted(stream.id for stream in streams) == wire_of(ends.client).ids(20)
    wait_for(lambda: ends.server.stats().unaccepted == 20)


def test_a_closed_connection_ends_a_blocked_open(peerless: wsmux.Connection, spawn: Spawn) -> None:
    streams = [peerless.open_stream(timeout=WAIT) for _ in range(2)]
    opening = spawn(peerless.open_stream)
    wait_for(lambda: len(multiplexer_of(peerless).table.openers.parked) == 1)
    peerless.abort()
    with pytest.raises(wsmux.ConnectionClosedError):
        opening.result(WAIT)
    assert len(streams) == 2


# Accepting


def test_accepting_runs_out_of_time(join_ends: Join) -> None:
    ends = join_ends()
    with pytest.raises(TimeoutError):
        ends.server.accept_stream(timeout=0.01)
    assert ends.client.open_stream().id == ends.server.accept_stream(WAIT).id


def test_streams_are_accepted_in_the_order_they_were_opened(join_ends: Join) -> None:
    ends = join_ends()
    opened = [ends.client.open_stream() for _ in range(10)]
    accepted = [ends.server.accept_stream(WAIT) for _ in opened]
    assert [stream.id for stream in accepted] == [stream.id for stream in opened]


def test_every_acceptor_gets_a_stream(join_ends: Join, spawn: Spawn) -> None:
    ends = join_ends()
    accepting = [spawn(ends.server.accept_stream, WAIT) for _ in range(10)]
    opened = [ends.client.open_stream() for _ in accepting]
    accepted = [future.result(WAIT) for future in accepting]
    assert sorted(s.id for s in accepted) == [s.id for s in opened]


def test_more_unaccepted_streams_than_allowed_are_refused(join_ends: Join) -> None:
    ends = limited(join_ends, max_unaccepted=2)
    kept = [ends.client.open_stream() for _ in range(2)]
    check_refusal(ends.client.open_stream())
    assert ends.server.stats().streams_refused == 1
    accepted = [ends.server.accept_stream(WAIT) for _ in kept]
    opened, again = open_pair(*ends)
    assert opened.id == again.id
    assert [s.id for s in accepted] == [s.id for s in kept]


def test_more_streams_than_allowed_are_refused_or_have_to_wait(join_ends: Join) -> None:
    ends = limited(join_ends, max_streams=2)
    kept = [open_pair(*ends) for _ in range(2)]
    if wire_of(ends.client).opening_costs:
        with pytest.raises(TimeoutError):
            ends.client.open_stream(timeout=0.01)
    else:
        check_refusal(ends.client.open_stream())
    for stream in kept.pop():
        stream.close()
    wait_for(lambda: ends.server.stats().streams == 1)
    kept.append(open_pair(*ends))


def test_own_streams_do_not_count_as_the_peers(join_ends: Join) -> None:
    ends = limited(join_ends, max_streams=1)
    own = [open_pair(ends.server, ends.client) for _ in range(3)]
    own.append(open_pair(ends.client, ends.server))
    assert ends.server.stats().streams == 4


def test_a_connection_may_take_no_streams_at_all(join_ends: Join) -> None:
    ends = join_ends(client={"accept_streams": False})
    check_refusal(ends.server.open_stream())
    assert ends.client.stats().unaccepted == 0
    open_pair(ends.client, ends.server)


def test_streams_that_wait_too_long_are_refused(join_ends: Join) -> None:
    ends = limited(join_ends, open_timeout=0.02)
    stream = ends.client.open_stream()
    with suppress(wsmux.StreamError):  # already, in the words of its wire
        stream.write(b"nobody reads this")
    check_late_refusal(stream)
    with pytest.raises(TimeoutError):
        ends.server.accept_stream(timeout=0)
    assert ends.server.stats().unread_bytes == 0


def test_a_stream_that_was_reset_before_it_was_accepted_is_not_offered(join_ends: Join) -> None:
    """Where a reset is not told, it is offered: it looks like an empty stream."""
    ends = join_ends()
    first = ends.client.open_stream()
    first.reset()
    kept = ends.client.open_stream()
    ends.client.ping(WAIT)
    if not wire_of(ends.client).resets:
        assert ends.server.accept_stream(WAIT).id == first.id
    assert ends.server.accept_stream(WAIT).id == kept.id
    assert ends.server.stats().unaccepted == 0


# Start on data


def test_start_on_data_offers_a_stream_once_it_has_bytes(join_ends: Join) -> None:
    ends = join_ends(server={"start_on": "data"})
    silent = ends.client.open_stream()
    talking = ends.client.open_stream()
    talking.write(b"x")
    assert ends.server.accept_stream(WAIT).id == talking.id
    with pytest.raises(TimeoutError):
        ends.server.accept_stream(timeout=0)
    assert ends.server.stats().unaccepted == 1
    silent.write(b"x")
    assert ends.server.accept_stream(WAIT).id == silent.id


def test_start_on_data_offers_an_empty_stream_when_it_has_ended(join_ends: Join) -> None:
    ends = join_ends(server={"start_on": "data"})
    with ends.client.open_stream() as stream:
        stream.close_write()
        assert ends.server.accept_stream(WAIT).read() == b""


def test_start_on_data_forgets_a_stream_that_was_reset_first(join_ends: Join) -> None:
    ends = join_ends(server={"start_on": "data"})
    ends.client.open_stream().reset()
    if wire_of(ends.client).resets:
        wait_for(lambda: ends.server.stats().streams_refused == 1)
    else:
        assert ends.server.accept_stream(WAIT).read() == b""
    assert ends.server.stats().unaccepted == 0


@pytest.mark.parametrize(
    ("name", "value"), [("start_on", "later"), ("workers", 0), ("protocol", "http")]
)
def test_bad_options_are_refused(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=name):
        wsmux.connect("ws://127.0.0.1:9", **{name: value})


# Memory


def test_too_much_unread_resets_the_stream_that_holds_most(join_ends: Join) -> None:
    ends = limited(join_ends, max_connection_buffer=3 * WINDOW // 2, receive_window=2 * WINDOW)
    modest, modest_far = open_pair(*ends)
    greedy, greedy_far = open_pair(*ends)
    limit = max(3 * WINDOW // 2, 2 * wire_of(modest).min_window)
    greedy.write(bytes(limit - WINDOW // 2))
    modest.write(bytes(WINDOW // 2 + 1))
    check_reset(greedy, code=2)
    with pytest.raises(wsmux.StreamReset, match="max_connection_buffer") as error:
        greedy_far.read()
    assert (error.value.code, error.value.side) == (2, None)
    modest.close_write()
    assert len(modest_far.read()) == WINDOW // 2 + 1


def test_a_blocked_reader_of_another_stream_is_not_disturbed(join_ends: Join, spawn: Spawn) -> None:
    ends = limited(join_ends, max_connection_buffer=WINDOW, receive_window=2 * WINDOW)
    quiet, quiet_far = open_pair(*ends)
    reading = spawn(quiet_far.read, 1)
    wait_for_reader(ends.server)
    limit = max(WINDOW, 3 * wire_of(quiet).min_window)
    greedy = [open_pair(*ends) for _ in range(2)]
    for near, _ in greedy:
        near.write(bytes(limit // 2 + 1))
    wait_for(lambda: 0 < ends.server.stats().unread_bytes <= limit)
    quiet.write(b"x")
    assert reading.result(WAIT) == b"x"


def test_streams_opened_under_pressure_get_the_smallest_window(join_ends: Join) -> None:
    ends = limited(join_ends, max_connection_buffer=4 * WINDOW)
    greedy = [open_pair(*ends) for _ in range(3)]
    for near, _ in greedy:
        near.write(bytes(WINDOW))
    wait_for(lambda: ends.server.stats().unread_bytes == 3 * WINDOW)
    late, late_far = open_pair(*ends)
    assert fill(late) == wire_of(late).smallest_window
    for near, far in greedy:
        near.close_write()
        far.read()
    late_far.close()
    assert fill(open_pair(*ends).near) == WINDOW


def test_the_process_limit_resets_the_stream_that_holds_most_anywhere(join_ends: Join) -> None:
    config = wsmux.Config(max_process_buffer=3 * WINDOW // 2)
    first, second = (join_ends(server={"config": config}) for _ in range(2))
    greedy, greedy_far = open_pair(*first)
    greedy.write(bytes(WINDOW))
    wait_for(lambda: first.server.stats().unread_bytes == WINDOW)
    modest, modest_far = open_pair(*second)
    modest.write(bytes(WINDOW * 3 // 4))
    check_read_of_reset(greedy, code=2)
    with pytest.raises(wsmux.StreamReset, match="max_process_buffer"):
        greedy_far.read()
    modest.close_write()
    assert len(modest_far.read()) == WINDOW * 3 // 4


def test_a_stream_that_was_read_just_in_time_is_not_reset(
    join_ends: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit, size = 160 * KIB, 192 * KIB
    config = wsmux.Config(max_process_buffer=limit)
    ends = join_ends(server={"config": config})
    near, far = open_pair(*ends)
    read, taken = bytearray(), threading.Event()
    report = process_memory.report

    def read_after(owner: Holder, held: int, limit: int, **how: bool) -> Verdict:
        verdict = report(owner, held, limit, **how)
        if verdict is Verdict.GIVE_UP and not taken.is_set():
            while len(read) < held:
                read.extend(far.read(size))
            taken.set()
        return verdict

    monkeypatch.setattr(process_memory, "report", read_after)
    near.write(bytes(size))
    near.close_write()
    assert taken.wait(WAIT)
    read.extend(far.read())
    assert len(read) == size


def test_unread_bytes_of_ended_connections_do_not_count(join_ends: Join) -> None:
    config = wsmux.Config(max_process_buffer=3 * WINDOW // 2)
    for _ in range(4):
        ends = join_ends(server={"config": config})
        near, far = open_pair(*ends)
        near.write(bytes(WINDOW))
        near.close_write()
        wait_for(lambda: ends.server.stats().unread_bytes == WINDOW)  # noqa: B023 -- called now
        ends.client.close()
        ends.server.close()
        assert len(far.read()) == WINDOW


# Time


def check_idle_end(ends: Ends, carrier: Carrier) -> None:
    """Check that the client hears of a close for being idle."""
    with pytest.raises(wsmux.ConnectionClosedOK) as error:
        ends.client.accept_stream(WAIT)
    seen = carrier.wire.seen_close(carrier.websocket, 1000, "idle")
    assert (error.value.code, error.value.reason) == seen


def test_an_idle_connection_is_closed(join_ends: Join, carrier: Carrier) -> None:
    check_idle_end(limited(join_ends, idle_timeout=0.05), carrier)


def test_a_connection_with_a_stream_is_not_idle(join_ends: Join, carrier: Carrier) -> None:
    ends = limited(join_ends, idle_timeout=1.0)
    near, far = open_pair(*ends)
    with pytest.raises(TimeoutError):
        ends.client.accept_stream(timeout=1.3)
    near.close()
    far.close()
    check_idle_end(ends, carrier)


@pytest.mark.parametrize("carrier", IN_PROCESS, ids=str)
def test_pings_keep_a_quiet_connection_alive(join_ends: Join, carrier: Carrier) -> None:
    config = wsmux.Config(ping_interval=0.02, ping_timeout=WAIT)
    ends = join_ends(client={"config": config}, server={"config": config})
    wait_for(lambda: all(end.stats().rtt is not None for end in ends))
    assert not ends.client.closed


@pytest.mark.parametrize("protocol", NAMES)
def test_a_frozen_peer_is_found(protocol: str) -> None:
    ours, theirs = socket.socketpair()
    config = wsmux.Config(ping_interval=0.02, ping_timeout=0.02, close_timeout=0.1)
    with theirs:
        connection = wsmux.from_socket(ours, role="client", protocol=protocol, config=config)
        with pytest.raises(wsmux.ConnectionClosedError, match="no byte from the peer") as error:
            connection.accept_stream(WAIT)
        assert (error.value.code, error.value.side) == (1011, "local")
        connection.close()


@pytest.mark.parametrize("protocol", NAMES)
def test_a_frozen_peer_that_reads_nothing_is_found_by_a_blocked_writer(
    protocol: str, spawn: Spawn
) -> None:
    ours, theirs = socket.socketpair()
    config = wsmux.Config(ping_interval=1.0, ping_timeout=1.0, close_timeout=0.1)
    generous = wsmux.Config(receive_window=2**24)
    with PurePeer(theirs, protocol, config=generous) as peer:
        connection = wsmux.from_socket(ours, role="client", protocol=protocol, config=config)
        peer.send()
        stream = connection.open_stream(timeout=WAIT)
        peer.accept(1)
        with pytest.raises(wsmux.ConnectionClosedError, match="no byte from the peer"):
            spawn(stream.write, bytes(8 * 1024 * KIB)).result(WAIT)
        connection.close()


def test_a_ping_without_an_answer_is_a_timeout(peerless: wsmux.Connection) -> None:
    with pytest.raises(TimeoutError, match="pong"):
        peerless.ping(timeout=0.01)
    assert not peerless.closed
