"""Without a thread what needs one fails typed; what has threads ends before its interpreter."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable
from contextvars import copy_context
from typing import NoReturn

import pytest

import wsmux
from wsmux.runtime import threads
from wsmux.runtime.deadline import block_end

from ..helpers.inside import watch_apart
from ..helpers.scripted import WAIT
from ..helpers.waiting import wait_for

# What CPython 3.12 says in atexit.
EXITING = "can't create new thread at interpreter shutdown"


@pytest.fixture
def exiting(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Return what makes threads unavailable, as they are when 3.12 exits."""

    def start(_: threading.Thread) -> NoReturn:
        raise RuntimeError(EXITING)

    return lambda: monkeypatch.setattr(threading.Thread, "start", start)


@pytest.mark.parametrize(
    "make",
    [
        wsmux.pair,
        lambda: wsmux.serve(stream_handler=print),
        lambda: wsmux.StallWatch([]),
        lambda: wsmux.LiveSocket([]),
    ],
    ids=["pair", "serve", "StallWatch", "LiveSocket"],
)
def test_what_needs_a_thread_says_why_there_is_none(
    exiting: Callable[[], None], make: Callable[[], object]
) -> None:
    exiting()
    with pytest.raises(wsmux.NoThreadError, match=EXITING) as error:
        make()
    assert str(error.value).startswith("wsmux-")


def test_a_stream_that_gets_no_thread_for_its_socket_stays_usable(
    exiting: Callable[[], None],
) -> None:
    client, server = wsmux.pair()
    with client, server, client.open_stream() as stream:
        exiting()
        with pytest.raises(wsmux.NoThreadError, match=EXITING):
            stream.as_socket()
        stream.write(b"x")
        assert server.accept_stream(WAIT).read(1) == b"x"


def test_a_worker_that_cannot_be_started_is_one_line_of_the_log(
    exiting: Callable[[], None], caplog: pytest.LogCaptureFixture
) -> None:
    with (
        wsmux.serve(stream_handler=lambda stream: stream.write(b"x")) as server,
        wsmux.connect(server.url) as connection,
    ):
        wait_for(lambda: server.connections)
        exiting()
        for _ in range(3):
            with connection.open_stream() as stream:
                stream.timeout = WAIT
                assert stream.read() == b"x"
    lines = [record for record in caplog.records if EXITING in record.getMessage()]
    assert lines
    assert all(line.levelno == logging.WARNING and not line.exc_info for line in lines)


@pytest.fixture
def leaving(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Return what the end of a sub-interpreter does; what is made meanwhile belongs to it."""
    known: weakref.WeakSet[threads.Threaded] = weakref.WeakSet()
    monkeypatch.setattr(threads, "_known", known)
    monkeypatch.setattr(threads, "_registers", True)
    return threads._leave


def ours() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("wsmux")]


def test_the_end_of_a_subinterpreter_ends_every_thread_there(
    leaving: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    watch_apart(monkeypatch)
    server = wsmux.serve(stream_handler=lambda stream: stream.read())
    connection = wsmux.connect(server.url)
    client, other = wsmux.pair()
    sock = client.open_stream().as_socket()
    wsmux.StallWatch([client, other])
    stream = connection.open_stream()  # which ends when nobody holds it, perhaps before it is taken
    stream.write(b"x")
    wait_for(lambda: any("-worker-" in thread.name for thread in ours()))
    with wsmux.LiveSocket(server), sock:
        leaving()
        assert ours() == []
    with pytest.raises(wsmux.ConnectionClosed, match="1006"):
        client.open_stream()


def test_what_fails_to_leave_is_logged_and_keeps_nothing_else(
    leaving: Callable[[], None], caplog: pytest.LogCaptureFixture
) -> None:
    class Failing:
        def leave(self) -> None:
            raise LookupError("lost")

    failing = Failing()
    threads.register(failing)
    client, other = wsmux.pair()
    leaving()
    assert client.closed
    assert other.closed
    assert "did not end with its interpreter" in caplog.text


def test_in_the_main_interpreter_nothing_is_registered() -> None:
    assert not threads._registers
    before = len(threads._known)
    client, other = wsmux.pair()
    with client, other:
        assert len(threads._known) == before == 0


def test_an_interrupt_of_a_start_is_raised_as_it_is() -> None:
    class Interrupted(threading.Thread):
        def start(self) -> None:
            try:
                raise KeyboardInterrupt
            finally:  # as the event does in which a start waits
                raise RuntimeError("release unlocked lock")

    try:
        raise LookupError("being handled")
    except LookupError:
        with pytest.raises(KeyboardInterrupt):
            threads.start_thread(Interrupted())


def test_a_deadline_does_not_reach_threads_started_within_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Even where threads inherit the context, as in free-threaded Pythons from 3.14 on."""

    class Heir(threading.Thread):
        def start(self) -> None:
            self._inherited = copy_context()
            super().start()

        def run(self) -> None:
            self._inherited.run(super().run)

    monkeypatch.setattr(threading, "Thread", Heir)
    ends: list[float | None] = []
    with wsmux.deadline(WAIT):
        thread = threads.daemon_thread(lambda: ends.append(block_end()), name="heir")
        thread.start()
        thread.join(WAIT)
    assert ends == [None]
