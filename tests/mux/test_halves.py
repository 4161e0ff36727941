"""End streams in every way, from both sides and from other threads.

Every test runs in the four wires over every carrier with both ends here.
"""

from __future__ import annotations

import gc
import socket
import weakref
from types import SimpleNamespace

import pytest

import wsmux

from ..helpers.bymux_wire import CLOSE, CREDIT, STOP_READ, WRITE, overall, packet
from ..helpers.carriers import Ends
from ..helpers.connections import Join, Spawn
from ..helpers.inside import multiplexer_of, record_of
from ..helpers.joined_streams import Joined, fill, open_pair, read_exactly
from ..helpers.scripted import WAIT, pattern
from ..helpers.stream_outcomes import (
    check_no_further_reading,
    check_read_of_reset,
    check_reset,
    check_write_of_reset,
)
from ..helpers.waiting import polls, wait_for, wait_for_reader, wait_for_writer
from ..helpers.wires import NAMES, wire_of

KIB = 1024
WINDOW = wsmux.Config().receive_window


@pytest.fixture(params=["client-opens", "server-opens"])
def streams(ends: Ends, request: pytest.FixtureRequest) -> Joined:
    """Return a stream that either side opened."""
    return open_pair(*(ends if request.param == "client-opens" else reversed(ends)))


# Clean ends


def test_either_side_may_open_and_end_first(streams: Joined) -> None:
    streams.far.write(b"from the far side")
    streams.far.close_write()
    assert streams.near.read() == b"from the far side"
    streams.near.write(b"still open")
    streams.near.close_write()
    assert streams.far.read() == b"still open"


def test_a_stream_that_both_sides_ended_is_forgotten(ends: Ends) -> None:
    near, far = open_pair(*ends)
    near.close()
    far.close()
    wait_for(lambda: all(end.stats().streams == 0 for end in ends))


def test_close_lets_written_bytes_arrive(streams: Joined) -> None:
    streams.near.write(pattern(WINDOW, 1))
    streams.near.close()
    assert streams.far.read() == pattern(WINDOW, 1)


def test_close_tells_a_writer_that_nobody_reads(streams: Joined, spawn: Spawn) -> None:
    writing = spawn(streams.far.write, bytes(2 * WINDOW))
    wait_for_writer(streams.far.connection)
    streams.near.close()
    check_no_further_reading(streams.far, lambda: writing.result(WAIT), 2 * WINDOW)


def test_close_read_drops_what_is_unread(streams: Joined) -> None:
    fill(streams.near)
    wait_for(lambda: streams.far.connection.stats().unread_bytes == WINDOW)
    streams.far.close_read()
    assert streams.far.connection.stats().unread_bytes == 0


def test_closing_twice_is_fine(streams: Joined) -> None:
    streams.near.close()
    streams.near.close()
    assert streams.near.closed


@pytest.mark.parametrize("call", ["read", "readall", "readline"])
def test_reading_after_close_is_a_value_error(streams: Joined, call: str) -> None:
    streams.near.close()
    with pytest.raises(ValueError, match="closed"):
        getattr(streams.near, call)()


def test_reading_after_close_is_a_value_error_behind_the_end_of_the_peer_too(
    streams: Joined,
) -> None:
    streams.far.close_write()
    assert streams.near.read() == b""
    streams.near.close()
    with pytest.raises(ValueError, match="closed"):
        streams.near.read()


@pytest.mark.parametrize("data", [b"x", b""])
def test_writing_after_close_is_a_value_error(streams: Joined, data: bytes) -> None:
    streams.near.close()
    with pytest.raises(ValueError, match="closed"):
        streams.near.write(data)


def test_halves_close_one_by_one(streams: Joined) -> None:
    streams.near.close_write()
    with pytest.raises(ValueError, match="writing half"):
        streams.near.write(b"x")
    streams.near.close_read()
    with pytest.raises(ValueError, match="reading half"):
        streams.near.read(1)


def test_streams_that_use_an_id_one_after_the_other_both_have_it() -> None:
    """As a peer of Bymux may."""
    ours, theirs = socket.socketpair()
    with theirs, wsmux.from_socket(ours, role="server", protocol="bymux") as connection:
        theirs.sendall(overall(CREDIT, 9))
        for _ in range(2):
            theirs.sendall(overall(WRITE, 6) + packet(CLOSE, 6) + packet(STOP_READ, 6))
            with connection.accept_stream(WAIT) as stream:
                assert stream.id == 6
                assert stream.read() == b""
            wait_for(lambda: connection.stats().streams == 0)
        connection.abort()


def test_halves_closed_here_say_so_when_the_connection_has_ended_too(streams: Joined) -> None:
    streams.near.close_write()
    streams.near.close_read()
    streams.near.connection.abort()
    assert streams.near.connection.wait_closed(WAIT)
    with pytest.raises(ValueError, match="writing half"):
        streams.near.write(b"x")
    with pytest.raises(ValueError, match="reading half"):
        streams.near.read(1)


# From another thread


def test_close_ends_a_blocked_read(streams: Joined, spawn: Spawn) -> None:
    reading = spawn(streams.near.read, 1)
    wait_for_reader(streams.near.connection)
    streams.near.close()
    with pytest.raises(ValueError, match="closed by this side"):
        reading.result(WAIT)


def test_close_ends_a_blocked_write(streams: Joined, spawn: Spawn) -> None:
    writing = spawn(streams.near.write, bytes(2 * WINDOW))
    wait_for_writer(streams.near.connection)
    streams.near.close()
    with pytest.raises(ValueError, match="closed by this side"):
        writing.result(WAIT)


def test_reset_ends_a_blocked_read(streams: Joined, spawn: Spawn) -> None:
    reading = spawn(streams.near.read, 1)
    wait_for_reader(streams.near.connection)
    streams.near.reset(70)
    with pytest.raises(wsmux.StreamReset) as error:
        reading.result(WAIT)
    assert (error.value.code, error.value.side) == (70, "local")


def test_reset_ends_a_blocked_write(streams: Joined, spawn: Spawn) -> None:
    writing = spawn(streams.near.write, bytes(2 * WINDOW))
    wait_for_writer(streams.near.connection)
    streams.near.reset(70)
    with pytest.raises(wsmux.StreamReset) as error:
        writing.result(WAIT)
    assert (error.value.code, error.value.side) == (70, "local")


def test_a_second_reader_is_refused(streams: Joined, spawn: Spawn) -> None:
    reading = spawn(streams.near.read, 1)
    wait_for_reader(streams.near.connection)
    with pytest.raises(wsmux.ConcurrencyError):
        streams.near.read(1)
    streams.far.write(b"x")
    assert reading.result(WAIT) == b"x"


def test_a_second_writer_is_refused(streams: Joined, spawn: Spawn) -> None:
    data = pattern(2 * WINDOW, 1)
    writing = spawn(streams.near.write, data)
    wait_for_writer(streams.near.connection)
    with pytest.raises(wsmux.ConcurrencyError):
        streams.near.write(b"x")
    reading = spawn(streams.far.read)
    assert writing.result(WAIT) == len(data)
    streams.near.close_write()
    assert reading.result(WAIT) == data


def test_one_reader_and_one_writer_work_at_once(streams: Joined, spawn: Spawn) -> None:
    data = pattern(4 * WINDOW, 1)
    writing = [spawn(stream.write, data) for stream in streams]
    reading = [spawn(read_exactly, stream, len(data)) for stream in streams]
    assert [future.result(WAIT) for future in writing] == [len(data)] * 2
    assert [future.result(WAIT) for future in reading] == [data] * 2


# Resets


@pytest.mark.parametrize("which", ["none", "first", "last"])
def test_a_reset_is_seen_on_both_halves_of_the_other_side(streams: Joined, which: str) -> None:
    wire = wire_of(streams.near)
    code = {"none": 0, "first": wire.first_code, "last": wire.last_code}[which]
    streams.near.reset(code)
    check_reset(streams.far, code)


def test_a_reset_voids_unread_bytes_where_it_is_told(streams: Joined) -> None:
    streams.near.write(b"written")
    server = streams.far.connection
    wait_for(lambda: server.stats().unread_bytes == 7)
    streams.near.reset()
    if wire_of(streams.near).resets:
        wait_for(lambda: server.stats().unread_bytes == 0)
    check_read_of_reset(streams.far, left=b"written")


def test_a_reset_behind_the_own_end_leaves_what_was_ended_whole(streams: Joined) -> None:
    streams.near.write(b"whole")
    streams.near.close_write()
    streams.near.reset(64)
    if wire_of(streams.near).end_waits:
        check_read_of_reset(streams.far, code=64)
    else:
        assert streams.far.read() == b"whole"
    check_write_of_reset(streams.far, code=64)


def test_a_reset_behind_the_end_of_the_peer_is_seen_by_its_reader(streams: Joined) -> None:
    streams.far.write(b"whole")
    streams.far.close_write()
    assert streams.near.read() == b"whole"
    streams.near.reset(64)
    check_read_of_reset(streams.far, code=64)


def test_own_close_wins_over_a_reset_by_the_peer(streams: Joined) -> None:
    streams.far.reset()
    check_read_of_reset(streams.near)
    streams.near.close()
    with pytest.raises(ValueError, match="closed"):
        streams.near.read()


def test_own_close_wins_over_a_writing_half_that_failed(streams: Joined) -> None:
    streams.far.reset()
    check_write_of_reset(streams.near)
    streams.near.close()
    with pytest.raises(ValueError, match="closed"):
        streams.near.write(b"x")


def test_resetting_twice_keeps_the_stream_reset(streams: Joined) -> None:
    streams.near.reset(64)
    streams.near.reset(65)
    assert streams.near.closed
    check_read_of_reset(streams.far, code=64)


def test_a_close_behind_a_reset_leaves_the_stream_reset(streams: Joined) -> None:
    streams.near.reset(64)
    streams.near.close()
    for call in (lambda: streams.near.read(1), lambda: streams.near.write(b"x")):
        with pytest.raises(wsmux.StreamReset) as error:
            call()
        assert (error.value.code, error.value.side) == (64, "local")


def test_an_exception_behind_a_close_leaves_the_stream_closed(streams: Joined) -> None:
    def close_and_fail() -> None:
        with streams.near:
            streams.near.write(b"a whole file")
            streams.near.close()
            raise ArithmeticError

    with pytest.raises(ArithmeticError):
        close_and_fail()
    with pytest.raises(ValueError, match="closed"):
        streams.near.write(b"x")
    assert streams.far.read() == b"a whole file"


def test_a_with_block_left_by_an_exception_resets(streams: Joined) -> None:
    def write_half() -> None:
        with streams.near:
            streams.near.write(b"half a file")
            raise ArithmeticError

    with pytest.raises(ArithmeticError):
        write_half()
    check_read_of_reset(streams.far, left=b"half a file")


def test_a_with_block_left_normally_closes(streams: Joined) -> None:
    with streams.near:
        streams.near.write(b"a whole file")
    assert streams.far.read() == b"a whole file"


# Dropped


def test_a_dropped_stream_is_reset(ends: Ends) -> None:
    near, far = open_pair(*ends)
    near.write(b"x")
    del near
    gc.collect()
    check_read_of_reset(far, left=b"x")
    far.close()
    wait_for(lambda: all(end.stats().streams == 0 for end in ends))


def test_a_stream_dropped_under_the_lock_is_reset_all_the_same(ends: Ends) -> None:
    near, far = open_pair(*ends)
    with multiplexer_of(ends.client).mutex:
        del near
        gc.collect()
    ends.client.ping(WAIT)
    check_read_of_reset(far)


def test_a_stream_dropped_under_the_lock_is_reset_without_further_traffic(ends: Ends) -> None:
    near, far = open_pair(*ends)
    far.timeout = 2
    ends.client.ping(WAIT)
    wait_for(lambda: polls(ends.client))
    with multiplexer_of(ends.client).mutex:
        del near
        gc.collect()
    check_read_of_reset(far)


def test_a_closed_stream_is_not_kept_alive(ends: Ends) -> None:
    near, far = open_pair(*ends)
    gone = weakref.ref(near)
    near.close()
    far.close()
    del near
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("protocol", NAMES)
def test_an_ended_connection_is_not_kept_alive(protocol: str) -> None:
    def use() -> list[weakref.ref[wsmux.Connection]]:
        client, server = wsmux.pair(protocol=protocol)
        with client, server:
            near, far = open_pair(client, server)
            near.close()
            far.close()
        return [weakref.ref(client), weakref.ref(server)]

    gone = use()
    gc.collect()
    assert [reference() for reference in gone] == [None, None]


# Time and credit


def test_a_read_out_of_time_is_a_timeout(streams: Joined) -> None:
    streams.near.timeout = 0.01
    with pytest.raises(TimeoutError):
        streams.near.read(1)
    streams.far.write(b"x")
    streams.near.timeout = WAIT
    assert streams.near.read(1) == b"x"


def test_the_timeout_of_a_read_to_the_end_is_for_all_of_it(
    streams: Joined, spawn: Spawn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second piece comes soon enough behind the first, but not behind the call."""
    now = 0.0
    streams.near.timeout = 10
    connection, record = streams.near.connection, record_of(streams.near)
    with monkeypatch.context() as patch:
        patch.setattr("wsmux.runtime.deadline.clock", SimpleNamespace(monotonic=lambda: now))
        reading = spawn(streams.near.read)
        wait_for_reader(connection)
        now = 8.0
        streams.far.write(b"x")
        wait_for(lambda: record.received == 1 and not record.buffer.size)
        wait_for_reader(connection)
        now = 11.0
        streams.far.write(b"y")
        with pytest.raises(TimeoutError, match="^read of stream"):
            reading.result(WAIT)


def test_a_timeout_of_zero_takes_what_is_there(streams: Joined) -> None:
    streams.far.write(b"abc")
    wait_for(lambda: streams.near.connection.stats().unread_bytes == 3)
    streams.near.timeout = 0
    assert streams.near.read(2) == b"ab"
    assert streams.near.read(2) == b"c"
    with pytest.raises(TimeoutError):
        streams.near.read(2)


def test_a_stalled_reader_is_sent_exactly_its_window(streams: Joined) -> None:
    assert fill(streams.near) == WINDOW
    wait_for(lambda: streams.far.connection.stats().unread_bytes == WINDOW)


def test_a_timed_out_write_can_be_continued_exactly(streams: Joined, spawn: Spawn) -> None:
    data, written = pattern(5 * WINDOW, 7), 0
    reading = None
    streams.near.timeout = 0.01
    while written < len(data):
        try:
            written += streams.near.write(data[written:])
        except wsmux.WriteTimeout as error:
            written += error.bytes_written
            reading = reading or spawn(streams.far.read)
    assert reading is not None
    streams.near.close_write()
    assert reading.result(WAIT) == data


def test_a_blocked_writer_goes_on_when_half_the_window_is_read(
    streams: Joined, spawn: Spawn
) -> None:
    writing = spawn(streams.near.write, bytes(WINDOW + 1))
    wait_for_writer(streams.near.connection)
    read_exactly(streams.far, WINDOW // 2)
    assert writing.result(WAIT) == WINDOW + 1


def test_the_default_timeout_comes_from_the_config(join_ends: Join) -> None:
    ends = join_ends(client={"config": wsmux.Config(stream_timeout=0.01)})
    with ends.client.open_stream() as stream:
        assert stream.timeout == 0.01
        with pytest.raises(TimeoutError):
            stream.read(1)


# What may be written


@pytest.mark.parametrize("size", [0, 1, 64 * KIB])
def test_every_kind_of_buffer_can_be_written(streams: Joined, size: int) -> None:
    data = pattern(size, 3)
    for kind in (bytes, bytearray, memoryview):
        assert streams.near.write(kind(data)) == size
    streams.near.close_write()
    assert streams.far.read() == 3 * data


def test_a_buffer_may_be_changed_once_write_has_returned(streams: Joined) -> None:
    data = bytearray(pattern(WINDOW, 3))
    streams.near.write(data)
    data[:] = bytes(len(data))
    streams.near.close_write()
    assert streams.far.read() == pattern(WINDOW, 3)
