"""Drive one connection: windows grow, timers are kept, and whatever fails ends it as it must."""

from __future__ import annotations

import gc
import logging
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

import wsmux
from wsmux.mux import multiplexer
from wsmux.mux.stream import drop
from wsmux.runtime.deadline import Deadline
from wsmux.runtime.parking import Parker

from ..helpers.carriers import Ends
from ..helpers.inside import multiplexer_of, record_of, send_lock_of
from ..helpers.joined_streams import fill, open_pair, read_exactly
from ..helpers.scripted import WAIT
from ..helpers.waiting import wait_for
from ..helpers.wires import NAMES

WINDOW = 64 * 1024
LONG = 20_000  # bytes of a write that overtakes nothing


class Still:
    """The module ``time``, standing still: every half of a window is read in no time."""

    def __init__(self) -> None:
        self._now = time.monotonic()

    def monotonic(self) -> float:
        return self._now


@pytest.mark.parametrize(
    ("near", "most", "grows"),
    [
        (WINDOW + 1, None, True),
        (WINDOW, None, False),
        (WINDOW + 1, 2 * WINDOW, True),
        (WINDOW + 1, 2 * WINDOW - 1, False),
    ],
)
def test_bulk_makes_the_window_grow_and_the_reader_wait_for_more(
    monkeypatch: pytest.MonkeyPatch, near: int, most: int | None, grows: bool
) -> None:
    monkeypatch.setattr("wsmux.mux.multiplexer.NEAR", 3600.0)
    monkeypatch.setattr("wsmux.mux.multiplexer.NEAR_WINDOW", near)
    config = wsmux.Config(receive_window=WINDOW, max_window_bytes=most)
    client, server = wsmux.pair(config=config)
    with client, server:
        sender = server.open_stream()
        reader = client.accept_stream()
        record, alive = record_of(reader), multiplexer_of(client).transport.keep_alive
        stop = threading.Event()

        def send() -> None:
            while not stop.is_set():
                sender.write(bytes(WINDOW))
            sender.close_write()

        thread = threading.Thread(target=send)
        thread.start()
        try:
            while alive.least is None:
                assert reader.read(WINDOW)
            monkeypatch.setattr("wsmux.mux.multiplexer.clock", Still())
            for _ in range(50):
                assert reader.read(WINDOW)
            assert record.window == (2 * WINDOW if grows else WINDOW)
            assert record.low_water == record.window // 4
        finally:
            stop.set()
            while reader.read(WINDOW):
                pass
            thread.join()


class Clock:
    """Replace the module ``clock`` where a connection keeps its timers; it stands still."""

    replaced = None

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.mark.parametrize("protocol", NAMES)
def test_an_idle_connection_is_closed_at_its_time_and_not_before(
    protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, looks = Clock(), list[float]()
    monkeypatch.setattr("wsmux.transport.message_transport.clock", clock)
    monkeypatch.setattr("wsmux.mux.multiplexer.clock", clock)
    keep_time = multiplexer.Multiplexer._keep_time_locked

    def look(of: multiplexer.Multiplexer, now: float, wakes: list[Parker]) -> None:
        keep_time(of, now, wakes)
        looks.append(now)

    monkeypatch.setattr(multiplexer.Multiplexer, "_keep_time_locked", look)
    ours, theirs = socket.socketpair()
    with theirs:
        config = wsmux.Config(idle_timeout=50.0, ping_interval=None)
        connection = wsmux.from_socket(ours, role="client", protocol=protocol, config=config)
        assert multiplexer_of(connection).transport.owner_timer == 1050.0
        for clock.now, reason in ((1049.999, None), (1050.0, "idle")):
            multiplexer_of(connection).wake()
            wait_for(lambda: clock.now in looks)
            assert getattr(connection.error, "reason", None) == reason
        connection.abort()
        assert connection.wait_closed(WAIT)


def test_a_failure_in_the_io_thread_is_an_internal_error(
    ends: Ends, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise ArithmeticError("a bug")

    monkeypatch.setattr(multiplexer_of(ends.server), "_feed_locked", fail)
    with caplog.at_level(logging.CRITICAL, "wsmux"):
        with suppress(wsmux.ConnectionClosed):  # the first words of the wire may do it before
            ends.client.open_stream()
        with pytest.raises(wsmux.ConnectionClosed) as error:
            ends.server.accept_stream()
        assert error.value.code == 1011


# Changes that are interrupted


class Interrupt(BaseException):
    """What a signal handler raises."""


@pytest.fixture
def pair() -> Iterator[Ends]:
    client, server = wsmux.pair()
    with client, server:
        yield Ends(client, server)


def hears_of_going_away(connection: wsmux.Connection) -> bool:
    """Return whether the peer takes no further streams."""
    return multiplexer_of(connection).table.peer_refuses_from is not None


def test_a_change_wakes_whom_it_collects_and_sends_what_it_queues(pair: Ends) -> None:
    inside, woken = multiplexer_of(pair.client), threading.Event()

    class Noting(Parker):
        def unpark(self) -> None:
            assert not inside.mutex.locked()
            woken.set()

        def park(self, deadline: Deadline) -> None:
            assert woken.wait(deadline.remaining())

    def change(wakes: list[Parker]) -> None:
        assert inside.mutex.locked()
        inside.protocol.go_away(0)
        inside.queue_locked()
        wakes.append(Noting())

    inside.change(change)
    assert woken.is_set()
    assert not inside.mutex.locked()
    wait_for(lambda: hears_of_going_away(pair.server))


def test_a_change_that_is_cut_in_the_middle_ends_the_connection(pair: Ends) -> None:
    def cut(_: list[Parker]) -> None:
        raise Interrupt

    with pytest.raises(Interrupt):
        multiplexer_of(pair.client).change(cut)
    with pytest.raises(wsmux.ConnectionClosedError) as error:
        pair.client.open_stream()
    assert (error.value.code, error.value.side) == (1006, "local")
    assert "interrupted in the middle of a change" in error.value.reason
    assert pair.server.wait_closed(WAIT)


def test_a_change_that_refuses_with_an_error_harms_nothing(pair: Ends) -> None:
    inside = multiplexer_of(pair.client)
    with pytest.raises(wsmux.LocalProtocolError, match="no protocol-level ping"):
        inside.change(inside.protocol.ping)  # as whatever the library itself raises
    assert pair.client.ping(WAIT) >= 0


def test_a_call_that_is_interrupted_behind_its_change_is_made_good(
    pair: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside = multiplexer_of(pair.client)

    def cut() -> None:
        monkeypatch.undo()
        raise Interrupt

    def change(_: list[Parker]) -> None:
        inside.protocol.go_away(0)
        inside.queue_locked()

    monkeypatch.setattr(inside, "flush", cut)
    with pytest.raises(Interrupt):
        inside.change(change)
    wait_for(lambda: hears_of_going_away(pair.server))  # the I/O thread has sent what was queued
    assert pair.client.error is None


# Streams


def test_a_stream_that_is_abandoned_is_reset_by_the_io_thread_without_a_lock(pair: Ends) -> None:
    near, far = open_pair(*pair)
    inside = multiplexer_of(pair.client)
    with inside.mutex:  # as where a garbage collection finds it
        inside.abandon(record_of(near))
    with pytest.raises(wsmux.StreamReset):
        far.read(1)


def test_one_that_is_dropped_whole_is_closed_instead(pair: Ends) -> None:
    near, far = open_pair(*pair)
    with multiplexer_of(pair.client).mutex:
        drop(near, whole=True)
    assert near.closed
    assert far.read() == b""


def test_one_that_is_dropped_whole_with_unread_bytes_is_reset(pair: Ends) -> None:
    near, far = open_pair(*pair)
    far.write(b"unread")
    wait_for(lambda: record_of(near).buffer.size)
    drop(near, whole=True)
    with pytest.raises(wsmux.StreamReset):
        far.read(1)


def test_a_drop_that_is_interrupted_is_repeated_by_the_finalizer(
    pair: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    near, far = open_pair(*pair)

    def interrupt(*_: object) -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(multiplexer_of(pair.client), "abandon", interrupt)
    with suppress(KeyboardInterrupt):
        drop(near)
    del near
    gc.collect()
    with pytest.raises(wsmux.StreamReset):
        far.read(1)


def test_the_end_of_one_that_is_dropped_overtakes_nothing_of_another() -> None:
    client, server = wsmux.pair()
    with client, server:
        (first, _far), (second, _other) = open_pair(client, server), open_pair(client, server)
        inside = multiplexer_of(client)
        sizes: list[int] = []
        inside.queue.tap = lambda frames: sizes.extend(size for _, _, size in frames)
        with send_lock_of(client):  # as a writer that waits for the socket
            first.write(bytes(LONG))
            with inside.mutex:  # so that both are ended in one round
                drop(first)
                drop(second, whole=True)
            wait_for(lambda: record_of(second).closed)
        inside.flush()
        wait_for(lambda: not inside.queue.has_output())
        # The second may be closed before; the reset of the first comes behind its bytes.
        assert max(sizes) > LONG > sizes[-1]


def test_streams_that_were_dropped_end_before_the_connection_closes(
    pair: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    near, far = open_pair(*pair)
    inside = multiplexer_of(pair.client)
    monkeypatch.setattr(inside, "wake", lambda: None)
    monkeypatch.setattr(inside.transport, "wake", lambda: None)  # the I/O thread is busy
    drop(near, whole=True)
    inside.close(1000, "", None)
    assert far.read() == b""


def test_without_credit_nothing_is_queued_and_no_ticket_is_given(pair: Ends) -> None:
    near, _ = open_pair(*pair)
    fill(near)
    inside = multiplexer_of(pair.client)
    with inside.mutex:
        assert inside.credit_locked(record_of(near)) == 0
        assert inside.send_locked(record_of(near), memoryview(b"more"), False) == (0, None)


def test_a_frame_is_one_quantum_of_what_is_to_be_sent(pair: Ends) -> None:
    near, far = open_pair(*pair)
    inside, data = multiplexer_of(pair.client), memoryview(bytes(2**20))
    near.write(b"")
    wait_for(lambda: inside.credit_locked(record_of(near)))
    with inside.mutex:
        size, ticket = inside.send_locked(record_of(near), data, False)
    assert 0 < size <= inside.config.max_frame_size
    assert ticket is not None
    inside.flush()
    assert read_exactly(far, size) == bytes(size)


def test_one_whose_making_a_signal_interrupts_has_no_thread_that_counts(
    pair: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise those that come later would share one for nothing."""
    counted: set[object] = set()

    def interrupted(each: object) -> bool:
        counted.add(each)
        raise KeyboardInterrupt

    inside = multiplexer_of(pair.client)
    with monkeypatch.context() as patch:
        patch.setattr(multiplexer.shared_io, "take_own", interrupted)
        patch.setattr(multiplexer.shared_io, "leave_own", counted.discard)
        with pytest.raises(KeyboardInterrupt):
            inside._begin_steps()
    assert not counted
