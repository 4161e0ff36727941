"""The two halves of a call by themselves: what the endpoint puts in, and what a user takes out."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from wsmux import rpc
from wsmux.rpc.engine.call_streams import Line
from wsmux.runtime.deadline import Deadline
from wsmux.runtime.parking import Parker, wake

from ..threads.waiting import wait_for
from .offers import WAIT
from .stage import Part, begun, joined, staged


class Alone(Line):
    """Be a call without an endpoint; the test is the endpoint."""

    def __init__(self, raises: bool = True) -> None:
        super().__init__(threading.Lock(), raises)
        self.sent: list[Any] = []

    def send(self, value: Any, deadline: Deadline) -> None:
        with self.mutex:
            self.writer.check_locked()
            self.sent.append(value)

    def close_writing(self) -> None:
        with self.mutex:
            if self.writer.close_locked():
                self.sent.append("CLOSE")

    def push(self, *values: Any) -> None:
        wakes: list[Parker] = []
        with self.mutex:
            for value in values:
                self.reader.push_locked(value, 1, wakes)
        wake(wakes)

    def end(self) -> None:
        wakes: list[Parker] = []
        with self.mutex:
            self.reader.end_locked(wakes)
        wake(wakes)

    def cancel(self) -> None:
        wakes: list[Parker] = []
        with self.mutex:
            self.end_locked(rpc.RiverError("CANCEL", "enough"), wakes)
        wake(wakes)


def waiting(line: Alone) -> int:
    """Return how many threads wait to read."""
    with line.mutex:
        readers = line.reader._readers  # made when somebody first waits
        return 0 if readers is None else len(readers.parked)


def drained(line: Alone) -> list[Any]:
    """Read to the end, waiting for it."""
    values = []
    while True:
        try:
            values.append(line.reader.read(WAIT))
        except EOFError:
            return values


# Reading


def test_an_ended_half_ends_a_loop() -> None:
    line = Alone()
    line.end()
    assert list(line.reader) == []
    with pytest.raises(EOFError, match="the peer has ended"):
        line.reader.read()


def test_what_was_pushed_is_read_in_order() -> None:
    line = Alone()
    line.push(1, 2, 3)
    line.end()
    assert list(line.reader) == [1, 2, 3]


def test_a_reader_waits_for_a_value() -> None:
    line = Alone()
    with ThreadPoolExecutor(1) as pool:
        value = pool.submit(line.reader.read, WAIT)
        wait_for(lambda: waiting(line))
        assert not value.done()
        line.push("late")
        assert value.result(WAIT) == "late"


def test_a_reader_waits_for_the_end() -> None:
    line = Alone()
    with ThreadPoolExecutor(1) as pool:
        values = pool.submit(drained, line)
        line.push(1, 2)
        wait_for(lambda: waiting(line))
        assert not values.done()
        line.end()
        assert values.result(WAIT) == [1, 2]


def test_a_reader_out_of_time_may_read_on() -> None:
    line = Alone()
    with pytest.raises(TimeoutError, match="no message arrived in time"):
        line.reader.read(0.01)
    line.push(1)
    assert line.reader.read(WAIT) == 1


def test_what_comes_behind_the_end_is_dropped() -> None:
    line = Alone()
    line.push(1)
    line.end()
    line.push(2)
    assert list(line.reader) == [1]


def test_ending_twice_is_fine() -> None:
    line = Alone()
    line.end()
    line.end()
    assert list(line.reader) == []


def test_a_loop_that_was_left_may_be_taken_up_again() -> None:
    """No loop locks the half, and leaving one loses nothing."""
    line = Alone()
    line.push(1, 2, 3)
    line.end()
    for value in line.reader:
        assert value == 1
        break
    assert next(iter(line.reader)) == 2
    assert line.reader.read() == 3
    assert list(line.reader) == []


def test_readers_at_once_share_what_comes() -> None:
    """Each value goes to one of them, and all of them see the end."""
    line = Alone()
    with ThreadPoolExecutor(3) as pool:
        shares = [pool.submit(drained, line) for _ in range(3)]
        wait_for(lambda: waiting(line) == 3)
        line.push(*range(100))
        line.end()
        read = [value for share in shares for value in share.result(WAIT)]
    assert sorted(read) == list(range(100))


def test_errors_are_raised_and_reading_goes_on() -> None:
    line = Alone()
    line.push(1, rpc.RiverError("BAD", "odd"), 2)
    line.end()
    assert line.reader.read() == 1
    with pytest.raises(rpc.RiverError, match="BAD: odd"):
        line.reader.read()
    assert list(line.reader) == [2]


def test_errors_are_values_for_those_who_want_results() -> None:
    line = Alone(raises=False)
    error = rpc.RiverError("BAD", "odd")
    line.push(1, error, 2)
    line.end()
    assert list(line.reader) == [rpc.Ok(1), rpc.Err(error), rpc.Ok(2)]
    assert [rpc.Ok(1).ok, rpc.Err(error).ok] == [True, False]


def test_a_cancelled_half_tells_so_once() -> None:
    line = Alone()
    line.push(1)
    line.cancel()
    assert line.reader.read() == 1
    with pytest.raises(rpc.RiverError, match="CANCEL: enough"):
        line.reader.read()
    assert list(line.reader) == []


# Reading no more


def check_broken(line: Alone) -> None:
    """Check that the half says once that this side has stopped, and then ends."""
    with pytest.raises(rpc.RiverError, match="READABLE_BROKEN"):
        line.reader.read(WAIT)
    with pytest.raises(EOFError, match="this side has stopped reading"):
        line.reader.read()
    assert list(line.reader) == []


def test_the_next_read_tells_of_stopping() -> None:
    line = Alone()
    line.reader.stop()
    check_broken(line)


def test_a_waiting_read_tells_of_stopping() -> None:
    line = Alone()
    with ThreadPoolExecutor(1) as pool:
        read = pool.submit(line.reader.read, WAIT)
        wait_for(lambda: waiting(line))
        line.reader.stop()
        with pytest.raises(rpc.RiverError, match="READABLE_BROKEN"):
            read.result(WAIT)


@pytest.mark.parametrize("ended", [False, True])
def test_stopping_drops_what_is_unread(ended: bool) -> None:
    line = Alone()
    line.push(1, 2)
    if ended:
        line.end()
    line.reader.stop()
    check_broken(line)


def test_stopping_behind_the_end_says_nothing() -> None:
    line = Alone()
    line.push(1)
    line.end()
    assert list(line.reader) == [1]
    line.reader.stop()
    assert list(line.reader) == []


def test_stopping_within_a_loop_ends_it() -> None:
    line = Alone()
    line.push(1, 2, 3)
    loop = iter(line.reader)
    assert next(loop) == 1
    line.reader.stop()
    with pytest.raises(rpc.RiverError, match="READABLE_BROKEN"):
        next(loop)


def test_stopping_drops_what_comes_later_and_leaves_the_peers_half_open() -> None:
    line = Alone()
    line.reader.stop()
    line.reader.stop()
    line.push(1)
    assert not line.reader.ended
    assert (line.reader.unread_messages, line.reader.unread_bytes) == (1, 0)
    line.end()
    assert line.reader.ended
    check_broken(line)


def test_a_client_may_go_on_sending_to_a_handler_that_reads_no_more() -> None:
    stopped, go = threading.Event(), threading.Event()

    def act(part: Part) -> Any:
        if part.requests is None:
            return "messages before this one were handled"
        number = part.requests.read(WAIT)
        part.requests.stop()
        stopped.set()
        assert go.wait(WAIT)
        return number

    with joined(staged(act)) as client, begun(client, rpc.Kind.UPLOAD) as upload:
        assert isinstance(upload, rpc.Upload)
        upload.write(1)
        assert stopped.wait(WAIT)
        upload.write(2)
        client.rpc("test", "rpc", None, WAIT)
        go.set()
        assert upload.finish() == 1


# Writing


def test_what_is_written_is_sent() -> None:
    line = Alone()
    line.writer.write(1)
    line.writer.write(2)
    assert line.sent == [1, 2]
    assert not line.writer.closed


def test_closing_tells_the_peer_once() -> None:
    line = Alone()
    line.writer.write(1)
    line.writer.close()
    line.writer.close()
    assert line.sent == [1, "CLOSE"]
    assert line.writer.closed


def test_nothing_is_written_behind_the_end() -> None:
    line = Alone()
    with line.writer:
        line.writer.write(1)
    with pytest.raises(ValueError, match="whose requests this side has closed"):
        line.writer.write(2)
    assert line.sent == [1, "CLOSE"]


def test_a_cancelled_half_takes_nothing_and_tells_nobody() -> None:
    line = Alone()
    line.cancel()
    assert line.writer.closed
    with pytest.raises(rpc.RiverError, match="CANCEL: enough"):
        line.writer.write(1)
    line.writer.close()
    assert line.sent == []
