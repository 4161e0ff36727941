"""Use streams as an application does; the peer runs ``scripted.handle``.

Every test runs in the four wires over every carrier.
"""

from __future__ import annotations

import hashlib
import json
import random
from contextlib import suppress
from typing import Any

import pytest

import wsmux

from ..helpers import scripted
from ..helpers.carriers import Carrier
from ..helpers.connections import Connect, Spawn
from ..helpers.scripted import WAIT, call, command, digest, pattern
from ..helpers.stream_outcomes import (
    check_no_further_reading,
    check_read_of_reset,
    check_reset,
    check_write_of_reset,
)
from ..helpers.waiting import wait_for, wait_for_reader, wait_for_writer
from ..helpers.wires import wire_of

KIB = 1024
MIB = 1024 * KIB
WINDOW = wsmux.Config().receive_window


def open_with(connection: wsmux.Connection, *words: object) -> wsmux.Stream:
    """Open a stream and give its command."""
    stream = connection.open_stream(timeout=WAIT)
    stream.timeout = WAIT
    stream.write(command(*words))
    return stream


def write_whole(stream: wsmux.Stream, data: bytes) -> None:
    stream.write(data)
    stream.close_write()


def open_last(connection: wsmux.Connection, *words: object) -> wsmux.Stream:
    """Give a command that may end the connection before it is written."""
    stream = connection.open_stream(timeout=WAIT)
    with suppress(wsmux.ConnectionClosed):
        stream.write(command(*words))
    return stream


def peer_stats(connection: wsmux.Connection) -> dict[str, Any]:
    stats: dict[str, Any] = json.loads(call(connection, "stats"))
    return stats


def quiet(connection: wsmux.Connection) -> bool:
    """Return whether no stream is open on either side, but for the one that asks."""
    return connection.stats().streams == 0 and peer_stats(connection)["streams"] == 1


# Bytes


def test_what_is_written_comes_back(connection: wsmux.Connection) -> None:
    with open_with(connection, "echo") as stream:
        stream.write(b"hello")
        assert stream.read(100) == b"hello"


def test_nothing_written_is_an_empty_stream(connection: wsmux.Connection) -> None:
    with open_with(connection, "echo") as stream:
        stream.close_write()
        assert stream.read() == b""


@pytest.mark.parametrize("size", [1, 64 * KIB, WINDOW + 1, 3 * MIB])
def test_bulk_arrives_whole(connection: wsmux.Connection, size: int) -> None:
    data = pattern(size, size)
    with open_with(connection, "sink") as stream:
        assert stream.write(data) == size
        stream.close_write()
        assert stream.read().decode() == digest(data)


def test_bulk_comes_whole(connection: wsmux.Connection) -> None:
    assert call(connection, "source", 3 * MIB, 5) == pattern(3 * MIB, 5)


def test_both_directions_at_once_carry_every_byte(
    connection: wsmux.Connection, spawn: Spawn
) -> None:
    data = pattern(2 * MIB, 9)
    with open_with(connection, "echo") as stream:
        writing = spawn(write_whole, stream, data)
        assert digest(stream.read()) == digest(data)
        writing.result(WAIT)


def test_sixty_four_streams_from_thirty_two_threads_stay_apart(
    connection: wsmux.Connection, spawn: Spawn
) -> None:
    def one_after_the_other(seed: int) -> None:
        sizes = random.Random(seed)
        for _ in range(2):
            data = pattern(sizes.randrange(100 * KIB), seed)
            with open_with(connection, "sink") as stream:
                stream.write(data)
                stream.close_write()
                assert stream.read().decode() == digest(data)

    for future in [spawn(one_after_the_other, seed) for seed in range(32)]:
        future.result(WAIT)


def test_the_server_opens_streams_too(connection: wsmux.Connection) -> None:
    with open_with(connection, "call-back"), connection.accept_stream(WAIT) as back:
        back.timeout = WAIT
        back.write(pattern(100 * KIB, 2))
        back.close_write()
        assert back.read() == pattern(100 * KIB, 2)
        assert back.id == wire_of(back).server_id


def test_streams_leave_nothing_in_the_tables(connection: wsmux.Connection) -> None:
    for seed in range(20):
        call(connection, "source", 1000, seed)
    wait_for(lambda: quiet(connection))


# Clean ends


def test_the_client_may_end_its_half_first(connection: wsmux.Connection) -> None:
    with open_with(connection, "sink") as stream:
        stream.close_write()
        assert stream.read().decode() == digest(b"")


def test_the_server_may_end_its_half_first(connection: wsmux.Connection) -> None:
    with open_with(connection, "close-write") as stream:
        assert stream.read() == b""
        stream.write(pattern(WINDOW + 1, 4))
        stream.close_write()
        with connection.accept_stream(WAIT) as report:
            assert report.read().decode() == digest(pattern(WINDOW + 1, 4))


def test_a_clean_end_stays_the_end(connection: wsmux.Connection) -> None:
    with open_with(connection, "source", 10, 1) as stream:
        assert [len(stream.read(100)) for _ in range(3)] == [10, 0, 0]


def test_a_peer_that_reads_no_further_stops_the_writer(connection: wsmux.Connection) -> None:
    with open_with(connection, "close-read") as stream:
        assert stream.read() == b"not reading"
        check_no_further_reading(stream, lambda: stream.write(bytes(4 * WINDOW)), 4 * WINDOW)


# Resets


def test_a_reset_carries_its_code_to_reader_and_writer(connection: wsmux.Connection) -> None:
    with open_with(connection, "reset", 77) as stream:
        check_reset(stream, 77)


def test_a_reset_wakes_a_blocked_reader(connection: wsmux.Connection, spawn: Spawn) -> None:
    with open_with(connection, "stall-reset", 1, 78) as stream:
        reading = spawn(stream.read)
        wait_for_reader(connection)
        call(connection, "go", 1)
        check_read_of_reset(stream, lambda: reading.result(WAIT), code=78)


def test_a_reset_wakes_a_blocked_writer(connection: wsmux.Connection, spawn: Spawn) -> None:
    with open_with(connection, "stall-reset", 2, 79) as stream:
        writing = spawn(stream.write, bytes(2 * WINDOW))
        wait_for_writer(connection)
        call(connection, "go", 2)
        check_write_of_reset(stream, lambda: writing.result(WAIT), code=79)


def test_a_reset_in_the_middle_leaves_other_streams_alone(connection: wsmux.Connection) -> None:
    with open_with(connection, "echo") as other, open_with(connection, "reset-after", 5, 80) as one:
        one.write(b"12345")
        check_read_of_reset(one, code=80)
        other.write(b"still here")
        assert other.read(100) == b"still here"


def test_a_handler_that_raises_resets_its_stream_only(connection: wsmux.Connection) -> None:
    with open_with(connection, "echo") as other:
        with open_with(connection, "raise") as stream:
            check_reset(stream)
        other.write(b"still here")
        assert other.read(100) == b"still here"


def test_own_reset_ends_the_handler(connection: wsmux.Connection) -> None:
    stream = open_with(connection, "sink")
    stream.reset(81)
    with pytest.raises(wsmux.StreamReset) as error:
        stream.read()
    assert (error.value.code, error.value.side) == (81, "local")
    wait_for(lambda: quiet(connection))


# Credit


def test_a_writer_waits_until_credit_comes(connection: wsmux.Connection, spawn: Spawn) -> None:
    data = pattern(4 * WINDOW, 6)
    with open_with(connection, "stall", 3) as stream:
        writing = spawn(stream.write, data)
        wait_for_writer(connection)
        call(connection, "go", 3)
        assert writing.result(WAIT) == len(data)
        stream.close_write()
        assert stream.read().decode() == digest(data)


def test_others_go_on_while_one_reader_stalls(connection: wsmux.Connection, spawn: Spawn) -> None:
    with open_with(connection, "stall", 5) as stream:
        writing = spawn(stream.write, bytes(2 * WINDOW))
        wait_for_writer(connection)
        assert call(connection, "source", MIB, 8) == pattern(MIB, 8)
        assert connection.stats().waiting_writers == 1
        call(connection, "go", 5)
        writing.result(WAIT)


# Time


def test_a_read_out_of_time_leaves_the_stream_usable(connection: wsmux.Connection) -> None:
    with open_with(connection, "echo") as stream:
        stream.timeout = 0.01
        with pytest.raises(TimeoutError):
            stream.read(1)
        stream.timeout = WAIT
        stream.write(b"late")
        assert stream.read(100) == b"late"


def test_a_write_out_of_time_goes_on_where_it_stopped(connection: wsmux.Connection) -> None:
    data = pattern(2 * WINDOW, 10)
    with open_with(connection, "stall", 6) as stream:
        stream.timeout = 0.05
        with pytest.raises(wsmux.WriteTimeout) as error:
            stream.write(data)
        assert 0 < error.value.bytes_written <= WINDOW
        call(connection, "go", 6)
        stream.timeout = WAIT
        stream.write(data[error.value.bytes_written :])
        stream.close_write()
        assert stream.read().decode() == digest(data)


def test_both_sides_ping(connection: wsmux.Connection) -> None:
    assert 0 < connection.ping(WAIT) < WAIT
    call(connection, "ping")
    assert connection.stats().rtt is not None


def test_pings_pass_bulk_in_both_directions(connection: wsmux.Connection, spawn: Spawn) -> None:
    data = pattern(4 * MIB, 11)
    with open_with(connection, "echo") as stream:
        writing = spawn(write_whole, stream, data)
        reading = spawn(lambda: hashlib.sha256(stream.read()).hexdigest())
        while not reading.done():
            connection.ping(WAIT)
            call(connection, "ping")
        writing.result(WAIT)
        assert reading.result(WAIT) == digest(data)


# Calls and the end of the connection


def test_calls_nest_eight_deep(connect: Connect) -> None:
    connection = connect(stream_handler=scripted.handle, workers=8)
    assert call(connection, "nest", 8) == b"." * 9


def test_a_server_that_goes_away_finishes_what_runs(connection: wsmux.Connection) -> None:
    with open_with(connection, "echo") as running:
        running.write(b"before")
        assert running.read(100) == b"before"
        assert call(connection, "go-away") == b"gone"
        tells = wire_of(connection).tells_going_away
        with pytest.raises(wsmux.StreamRefused if tells else wsmux.StreamReset):
            call(connection, "source", 10, 1)
        running.write(b"after")
        assert running.read(100) == b"after"


def test_a_closing_server_ends_calls_cleanly(
    connection: wsmux.Connection, anywhere: Carrier, spawn: Spawn
) -> None:
    stream = open_with(connection, "stall", 7)
    reading = spawn(stream.read)
    wait_for_reader(connection)
    _last = open_last(connection, "close-connection", 1000)
    with pytest.raises(wsmux.ConnectionClosedOK) as error:
        reading.result(WAIT)
    code, reason = anywhere.wire.seen_close(anywhere.websocket, 1000, "as the test asked")
    assert (error.value.code, error.value.reason) == (code, reason)
    assert error.value.side == "remote"


def test_a_close_for_a_failure_is_seen_with_what_the_wire_can_say(
    connection: wsmux.Connection, anywhere: Carrier
) -> None:
    _last = open_last(connection, "close-connection", 4321)
    with pytest.raises(wsmux.ConnectionClosed) as error:
        connection.accept_stream(WAIT)
    code, reason = anywhere.wire.seen_close(anywhere.websocket, 4321, "as the test asked")
    assert error.value.code == code
    assert reason in (None, error.value.reason)


def test_a_lost_connection_is_never_an_end_of_file(
    connection: wsmux.Connection, spawn: Spawn
) -> None:
    stream = open_with(connection, "stall", 8)
    reading = spawn(stream.read)
    wait_for_reader(connection)
    _last = open_last(connection, "abort")
    with pytest.raises(wsmux.ConnectionClosedError, match="1006"):
        reading.result(WAIT)
