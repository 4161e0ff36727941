"""Fill buffers from streams: all that is asked for, or what there is at the end."""

from __future__ import annotations

import random

import pytest

import wsmux

from ..helpers.carriers import SOME
from ..helpers.connections import Join, Spawn
from ..helpers.inside import record_of
from ..helpers.joined_streams import Joined, open_pair
from ..helpers.scripted import WAIT, pattern
from ..helpers.stream_outcomes import check_read_of_reset
from ..helpers.waiting import wait_for, wait_for_reader

KIB = 1024
WINDOW = wsmux.Config().receive_window


@pytest.fixture(params=SOME, ids=str)
def streams(request: pytest.FixtureRequest, join_over: Join) -> Joined:
    return open_pair(*join_over(request.param))


def filled(stream: wsmux.Stream, size: int) -> bytes:
    target = bytearray(size)
    return bytes(target[: stream.fill(target)])


def send(stream: wsmux.Stream, data: bytes, seed: int) -> None:
    """Write in pieces of any size, and end."""
    chosen, start = random.Random(seed), 0
    while start < len(data):
        size = int(2 ** chosen.uniform(0, 20))
        stream.write(data[start : start + size])
        start += size
    stream.close_write()


def receive(stream: wsmux.Stream, sizes: list[int]) -> bytes:
    return b"".join(filled(stream, size) for size in sizes)


def test_buffers_of_any_size_are_filled_both_ways_at_once(streams: Joined, spawn: Spawn) -> None:
    """Several windows at once, too: more than the peer may send before it is read."""
    sizes = [1, 7, 64 * KIB, 3 * WINDOW, WINDOW // 4, WINDOW // 4 + 1, 5, WINDOW]
    there, back = pattern(sum(sizes), 1), pattern(sum(sizes), 2)
    sending = [spawn(send, streams.near, there, 3), spawn(send, streams.far, back, 4)]
    receiving = [spawn(receive, streams.far, sizes), spawn(receive, streams.near, sizes)]
    assert receiving[0].result(WAIT) == there
    assert receiving[1].result(WAIT) == back
    for each in sending:
        each.result(WAIT)
    assert filled(streams.near, 10) == b""


def test_a_clean_end_leaves_the_rest_of_the_buffer(streams: Joined, spawn: Spawn) -> None:
    reading = spawn(filled, streams.far, 2 * WINDOW)
    wait_for_reader(streams.far.connection)
    streams.near.write(b"all there is")
    streams.near.close_write()
    assert reading.result(WAIT) == b"all there is"
    assert filled(streams.far, 10) == b""


def test_a_reader_is_woken_when_enough_is_there(streams: Joined, spawn: Spawn) -> None:
    reading = spawn(filled, streams.far, 4)
    wait_for_reader(streams.far.connection)
    streams.near.write(b"abc")
    wait_for(lambda: record_of(streams.far).buffer.size == 3)
    assert streams.far.connection.stats().waiting_readers == 1
    streams.near.write(b"de")
    assert reading.result(WAIT) == b"abcd"
    assert streams.far.read(10) == b"e"


def test_a_plain_read_takes_what_is_there_after_one_that_wanted_more(
    streams: Joined, spawn: Spawn
) -> None:
    streams.far.timeout = 0.01
    with pytest.raises(TimeoutError):
        filled(streams.far, WINDOW)
    streams.far.timeout = WAIT
    reading = spawn(streams.far.read, 100)
    wait_for_reader(streams.far.connection)
    streams.near.write(b"a")
    assert reading.result(WAIT) == b"a"


def test_the_timeout_is_for_further_bytes(streams: Joined) -> None:
    streams.near.write(b"some")
    wait_for(lambda: record_of(streams.far).buffer.size == 4)
    streams.far.timeout = 0.01
    with pytest.raises(TimeoutError):
        filled(streams.far, 5)
    streams.near.write(b"more")
    streams.far.timeout = WAIT
    assert filled(streams.far, 4) == b"more"  # what was read before is lost


def test_a_reset_ends_the_wait(streams: Joined, spawn: Spawn) -> None:
    reading = spawn(check_read_of_reset, streams.far, lambda: filled(streams.far, WINDOW))
    wait_for_reader(streams.far.connection)
    streams.near.reset()
    reading.result(WAIT)


def test_a_lost_connection_ends_the_wait(streams: Joined, spawn: Spawn) -> None:
    streams.near.write(b"some")
    wait_for(lambda: record_of(streams.far).buffer.size == 4)
    reading = spawn(filled, streams.far, WINDOW)
    wait_for_reader(streams.far.connection)
    streams.far.connection.abort()
    with pytest.raises(wsmux.ConnectionClosed):
        reading.result(WAIT)


def test_a_second_reader_is_refused(streams: Joined, spawn: Spawn) -> None:
    reading = spawn(filled, streams.far, 10)
    wait_for_reader(streams.far.connection)
    with pytest.raises(wsmux.ConcurrencyError):
        filled(streams.far, 10)
    streams.near.write(bytes(10))
    assert reading.result(WAIT) == bytes(10)


def test_nothing_is_wanted_of_an_empty_buffer(streams: Joined) -> None:
    assert streams.far.fill(bytearray()) == 0


def test_a_second_reader_does_not_get_what_the_first_one_waits_with(
    streams: Joined, spawn: Spawn
) -> None:
    reading = spawn(filled, streams.far, 10)
    wait_for_reader(streams.far.connection)
    streams.near.write(b"01234")
    wait_for(lambda: record_of(streams.far).buffer.size == 5)
    with pytest.raises(wsmux.ConcurrencyError):
        streams.far.read(1)
    streams.near.write(b"56789")
    assert reading.result(WAIT) == b"0123456789"


def test_a_buffer_is_filled_where_the_wire_announces_less_than_the_configured_window(
    spawn: Spawn,
) -> None:
    config = wsmux.Config(receive_window=4 * KIB * KIB)
    data = pattern(2 * KIB * KIB, 1)
    client, server = wsmux.pair(protocol="js-ws", config=config)
    with client, server:
        streams = open_pair(client, server)
        streams.far.timeout = WAIT
        writing = spawn(streams.near.write, data)
        assert spawn(filled, streams.far, len(data)).result(WAIT / 2) == data
        assert writing.result(WAIT) == len(data)
