"""The two halves of a call by themselves: what the endpoint puts in, and what a user takes out."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from wsmux import rpc
from wsmux.rpc.engine.call_streams import CallBase
from wsmux.runtime.deadline import Deadline
from wsmux.runtime.parking import Parker, wake

from ...helpers.rpc.four_kinds import Part, begun, joined, staged
from ...helpers.rpc.procedures import WAIT
from ...helpers.waiting import wait_for


class Alone(CallBase):
    """A call without an endpoint; the test is the endpoint."""

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


def waiting(call: Alone) -> int:
    """Return how many threads wait to read."""
    with call.mutex:
        readers = call.reader._readers  # made when somebody first waits
        return 0 if readers is None else len(readers.parked)


def drained(call: Alone) -> list[Any]:
    """Read to the end, waiting for it."""
    values = []
    while True:
        try:
            values.append(call.reader.read(WAIT))
        except EOFError:
            return values


# Reading


def test_an_ended_half_ends_a_loop() -> None:
    call = Alone()
    call.end()
    assert list(call.reader) == []
    with pytest.raises(EOFError, match="the peer has ended"):
        call.reader.read()


def test_what_was_pushed_is_read_in_order() -> None:
    call = Alone()
    call.push(1, 2, 3)
    call.end()
    assert list(call.reader) == [1, 2, 3]


def test_a_reader_waits_for_a_value() -> None:
    call = Alone()
    with ThreadPoolExecutor(1) as pool:
        value = pool.submit(call.reader.read, WAIT)
        wait_for(lambda: waiting(call))
        assert not value.done()
        call.push("late")
        assert value.result(WAIT) == "late"


def test_a_reader_waits_for_the_end() -> None:
    call = Alone()
    with ThreadPoolExecutor(1) as pool:
        values = pool.submit(drained, call)
        call.push(1, 2)
        wait_for(lambda: waiting(call))
        assert not values.done()
        call.end()
        assert values.result(WAIT) == [1, 2]


def test_a_reader_out_of_time_may_read_on() -> None:
    call = Alone()
    with pytest.raises(TimeoutError, match="no message arrived in time"):
        call.reader.read(0.01)
    call.push(1)
    assert call.reader.read(WAIT) == 1


def test_what_comes_behind_the_end_is_dropped() -> None:
    call = Alone()
    call.push(1)
    call.end()
    call.push(2)
    assert list(call.reader) == [1]


def test_ending_twice_is_fine() -> None:
    call = Alone()
    call.end()
    call.end()
    assert list(call.reader) == []


def test_a_loop_that_was_left_may_be_taken_up_again() -> None:
    """No loop locks the half, and leaving one loses nothing."""
    call = Alone()
    call.push(1, 2, 3)
    call.end()
    for value in call.reader:
        assert value == 1
        break
    assert next(iter(call.reader)) == 2
    assert call.reader.read() == 3
    assert list(call.reader) == []


def test_readers_at_once_share_what_comes() -> None:
    """Each value goes to one of them, and all of them see the end."""
    call = Alone()
    with ThreadPoolExecutor(3) as pool:
        shares = [pool.submit(drained, call) for _ in range(3)]
        wait_for(lambda: waiting(call) == 3)
        call.push(*range(100))
        call.end()
        read = [value for share in shares for value in share.result(WAIT)]
    assert sorted(read) == list(range(100))


def test_errors_are_raised_and_reading_goes_on() -> None:
    call = Alone()
    call.push(1, rpc.RiverError("BAD", "odd"), 2)
    call.end()
    assert call.reader.read() == 1
    with pytest.raises(rpc.RiverError, match="BAD: odd"):
        call.reader.read()
    assert list(call.reader) == [2]


def test_errors_are_values_for_those_who_want_results() -> None:
    call = Alone(raises=False)
    error = rpc.RiverError("BAD", "odd")
    call.push(1, error, 2)
    call.end()
    assert list(call.reader) == [rpc.Ok(1), rpc.Err(error), rpc.Ok(2)]
    assert [rpc.Ok(1).ok, rpc.Err(error).ok] == [True, False]


def test_a_cancelled_half_tells_so_once() -> None:
    call = Alone()
    call.push(1)
    call.cancel()
    assert call.reader.read() == 1
    with pytest.raises(rpc.RiverError, match="CANCEL: enough"):
        call.reader.read()
    assert list(call.reader) == []


# Reading no more


def check_broken(call: Alone) -> None:
    """Check that the half says once that this side has stopped, and then ends."""
    with pytest.raises(rpc.RiverError, match="READABLE_BROKEN"):
        call.reader.read(WAIT)
    with pytest.raises(EOFError, match="this side has stopped reading"):
        call.reader.read()
    assert list(call.reader) == []


def test_the_next_read_tells_of_stopping() -> None:
    call = Alone()
    call.reader.stop()
    check_broken(call)


def test_a_waiting_read_tells_of_stopping() -> None:
    call = Alone()
    with ThreadPoolExecutor(1) as pool:
        read = pool.submit(call.reader.read, WAIT)
        wait_for(lambda: waiting(call))
        call.reader.stop()
        with pytest.raises(rpc.RiverError, match="READABLE_BROKEN"):
            read.result(WAIT)


@pytest.mark.parametrize("ended", [False, True])
def test_stopping_drops_what_is_unread(ended: bool) -> None:
    call = Alone()
    call.push(1, 2)
    if ended:
        call.end()
    call.reader.stop()
    check_broken(call)


def test_stopping_behind_the_end_says_nothing() -> None:
    call = Alone()
    call.push(1)
    call.end()
    assert list(call.reader) == [1]
    call.reader.stop()
    assert list(call.reader) == []


def test_the_newest_message_may_be_of_any_size() -> None:
    options = rpc.Options(unread_bytes=10)
    text = "reader fell behind: Options.unread_bytes is 10"
    call = Alone()
    sizes = [(3, False), (1000, False), (1, True)]
    for size, behind in sizes:
        call.reader.push_locked("x", size, [])
        assert call.reader.fell_behind(options) == (text if behind else None)
    assert [call.reader.read(0) for _ in range(2)] == ["x", "x"]
    assert not call.reader.fell_behind(options)


def test_messages_are_bounded_by_number_only_if_that_is_asked_for() -> None:
    call = Alone()
    call.push(*range(20_000))
    assert call.reader.fell_behind(rpc.Options()) is None
    text = "reader fell behind: Options.unread_messages is 19999"
    assert call.reader.fell_behind(rpc.Options(unread_messages=19_999)) == text
    assert call.reader.fell_behind(rpc.Options(unread_messages=20_000)) is None


def test_stopping_within_a_loop_ends_it() -> None:
    call = Alone()
    call.push(1, 2, 3)
    loop = iter(call.reader)
    assert next(loop) == 1
    call.reader.stop()
    with pytest.raises(rpc.RiverError, match="READABLE_BROKEN"):
        next(loop)


def test_stopping_drops_what_comes_later_and_leaves_the_peers_half_open() -> None:
    call = Alone()
    call.reader.stop()
    call.reader.stop()
    call.push(1)
    assert not call.reader.ended
    assert (call.reader.unread_messages, call.reader.unread_bytes) == (0, 0)
    call.end()
    assert call.reader.ended
    check_broken(call)


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
    call = Alone()
    call.writer.write(1)
    call.writer.write(2)
    assert call.sent == [1, 2]
    assert not call.writer.closed


def test_closing_tells_the_peer_once() -> None:
    call = Alone()
    call.writer.write(1)
    call.writer.close()
    call.writer.close()
    assert call.sent == [1, "CLOSE"]
    assert call.writer.closed


def test_nothing_is_written_behind_the_end() -> None:
    call = Alone()
    with call.writer:
        call.writer.write(1)
    with pytest.raises(ValueError, match="whose requests this side has closed"):
        call.writer.write(2)
    assert call.sent == [1, "CLOSE"]


def test_a_cancelled_half_takes_nothing_and_tells_nobody() -> None:
    call = Alone()
    call.cancel()
    assert call.writer.closed
    with pytest.raises(rpc.RiverError, match="CANCEL: enough"):
        call.writer.write(1)
    call.writer.close()
    assert call.sent == []
