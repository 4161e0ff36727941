"""A thread that waits in a read receives in the place of the I/O thread."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

import wsmux
from wsmux.protocols.base import Role
from wsmux.runtime.deadline import Deadline
from wsmux.runtime.parking import EventParker, Waiter

from ..helpers.carriers import ON_SOME, Carrier, Ends
from ..helpers.connections import Join, Spawn
from ..helpers.inside import is_led, on_led_round, on_poll, plain_socket_of
from ..helpers.interrupts import interrupted_at, interrupted_by
from ..helpers.joined_streams import Joined, open_pair, read_exactly
from ..helpers.resumed import joined, pair
from ..helpers.scripted import WAIT
from ..helpers.waiting import wait_for, wait_for_reader

OVER_SOCKETS = pytest.mark.parametrize("carrier", [Carrier("socketpair", "wsmux")], ids=str)


def leads(connection: wsmux.Connection) -> None:
    wait_for(lambda: is_led(connection))


@ON_SOME
def test_one_waiting_reader_receives_for_itself(
    ends: Ends, spawn: Spawn, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds: list[int] = []
    on_led_round(monkeypatch, lambda: rounds.append(threading.get_ident()))
    near, far = open_pair(*ends)

    def ask() -> int:
        for size in (1, 1000, 100_000):
            near.write(bytes(size))
            assert read_exactly(near, size) == bytes(size)
        return threading.get_ident()

    def answer() -> int:
        while data := far.read(65_536):
            far.write(data)
        return threading.get_ident()

    answering = spawn(answer)
    asking = spawn(ask).result(WAIT)
    near.close()
    assert {asking, answering.result(WAIT)} >= set(rounds) != set()
    assert not any(is_led(end) for end in ends)


@OVER_SOCKETS
def test_the_main_thread_receives_for_itself_too(
    ends: Ends, spawn: Spawn, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds: list[int] = []
    on_led_round(monkeypatch, lambda: rounds.append(threading.get_ident()))
    near, far = open_pair(*ends)

    def write() -> None:
        leads(ends.client)
        far.write(b"x")

    writing = spawn(write)
    assert near.read(1) == b"x"
    writing.result(WAIT)
    assert threading.get_ident() in rounds


@OVER_SOCKETS
def test_the_first_read_of_a_connection_receives_for_itself(
    join_ends: Join, spawn: Spawn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may begin before the I/O thread has come to anything."""
    led = threading.Event()
    with monkeypatch.context() as patch:
        on_poll(patch, lambda transport: transport.role is Role.SERVER or led.wait(WAIT))
        client, server = join_ends()
        stream = client.open_stream(WAIT)
        reading = spawn(stream.read, 1)
        leads(client)
        led.set()
    stream.write(b"x")
    with server.accept_stream(WAIT) as far:
        far.timeout = WAIT
        far.write(far.read(1))
        assert reading.result(WAIT) == b"x"


@OVER_SOCKETS
def test_an_interrupt_of_a_main_thread_that_receives_loses_nothing(
    join_ends: Join, spawn: Spawn
) -> None:
    """At no step; its round is finished first."""
    number = led = whole = 0
    while whole < 3:  # how many steps a read takes differs: the I/O thread may come first
        ends = join_ends()
        wanted, other = open_pair(*ends), open_pair(*ends)
        while whole < 3 and not ends.client.closed:
            number += 1
            over = threading.Event()

            def write(
                ends: Ends = ends,
                wanted: Joined = wanted,
                other: Joined = other,
                over: threading.Event = over,
            ) -> bool:
                wait_for(lambda: over.is_set() or is_led(ends.client))
                led = not over.is_set()
                with suppress(wsmux.ConnectionClosedError):  # where the interrupt has ended it
                    other.far.write(b"y")
                    wanted.far.write(b"x")
                return led

            writing = spawn(write)
            try:
                fired = interrupted_at(number, lambda wanted=wanted: wanted.near.read(1))
            finally:
                over.set()
            whole = 0 if fired else whole + 1
            led += writing.result(WAIT)
            if ends.client.closed:
                assert "in the middle of receiving" not in str(ends.client.error)
            else:
                assert read_exactly(other.near, 1) == b"y"
                wait_for(lambda ends=ends: not is_led(ends.client))
                wanted.near.reset()
                wanted = open_pair(*ends)
        ends.client.abort()
        ends.server.abort()
    assert led > 10


IN_HANDLERS: dict[str, Callable[[Ends, Joined], object]] = {
    "ping": lambda ends, other: ends.client.ping(WAIT),
    "read": lambda ends, other: read_exactly(other.near, 1),
    "open a stream": lambda ends, other: ends.client.open_stream(WAIT).reset(),
    "close": lambda ends, other: ends.client.close(WAIT),
}


@OVER_SOCKETS
@pytest.mark.parametrize("action", IN_HANDLERS)
def test_a_signal_handler_may_use_the_connection_of_the_read_it_interrupts(
    ends: Ends, spawn: Spawn, action: str
) -> None:
    """It finds the socket with the I/O thread, which answers it."""
    near, far = open_pair(*ends)
    other = open_pair(*ends)
    done = threading.Event()

    def handle() -> None:
        IN_HANDLERS[action](ends, other)
        done.set()

    def send(interrupt: Callable[[], None]) -> None:
        leads(ends.client)
        interrupt()
        if action == "read":
            other.far.write(b"y")
        assert done.wait(WAIT)
        if action != "close":
            far.write(b"x")

    with interrupted_by(signal.SIGALRM, handle) as interrupt:
        sending = spawn(send, interrupt)
        if action == "close":
            with pytest.raises(wsmux.ConnectionClosedOK):
                near.read(1)
        else:
            assert near.read(1) == b"x"
        sending.result(WAIT)


@OVER_SOCKETS
def test_others_are_served_by_the_one_that_leads_and_behind_it(ends: Ends, spawn: Spawn) -> None:
    """It receives for all, until its own wait is over; the I/O thread goes on."""
    first, second = open_pair(*ends), open_pair(*ends)
    leading = spawn(first.near.read, 1)
    leads(ends.client)
    waiting = spawn(second.near.read, 1)
    wait_for_reader(ends.client, 2)
    second.far.write(b"2")
    assert waiting.result(WAIT) == b"2"
    assert is_led(ends.client)
    waiting = spawn(second.near.read, 1)
    wait_for_reader(ends.client, 2)
    first.far.write(b"1")
    assert leading.result(WAIT) == b"1"
    wait_for(lambda: not is_led(ends.client))
    second.far.write(b"3")
    assert waiting.result(WAIT) == b"3"


def abort(ends: Ends) -> None:
    ends.client.abort()


def close(ends: Ends) -> None:
    ends.client.close(WAIT)


def close_far(ends: Ends) -> None:
    ends.server.close(WAIT)


def abort_far(ends: Ends) -> None:
    ends.server.abort()


def break_protocol(ends: Ends) -> None:
    plain_socket_of(ends.server).send(b"\xff" * 64)


ENDS: dict[str, tuple[Callable[[Ends], object], type[wsmux.WsmuxError]]] = {
    "this side aborts": (abort, wsmux.ConnectionClosedError),
    "this side closes": (close, wsmux.ConnectionClosedOK),
    "the peer aborts": (abort_far, wsmux.ConnectionClosedError),
    "the peer closes": (close_far, wsmux.ConnectionClosedOK),
    "the peer breaks the protocol": (break_protocol, wsmux.ConnectionClosedError),
}


@OVER_SOCKETS
@pytest.mark.parametrize(("end", "error"), ENDS.values(), ids=ENDS)
def test_every_end_of_the_connection_reaches_the_one_that_leads(
    ends: Ends,
    spawn: Spawn,
    end: Callable[[Ends], object],
    error: type[wsmux.WsmuxError],
) -> None:
    near, _ = open_pair(*ends)
    reading = spawn(near.read, 1)
    leads(ends.client)
    ending = spawn(end, ends)
    with pytest.raises(error):
        reading.result(WAIT)
    ending.result(WAIT)
    assert ends.client.wait_closed(WAIT)


STREAM_ENDS: dict[str, Callable[[wsmux.Stream, wsmux.Stream], object]] = {
    "this side resets": lambda near, far: near.reset(),
    "this side closes": lambda near, far: near.close(),
    "the peer resets": lambda near, far: far.reset(),
    "the peer ends": lambda near, far: far.close_write(),
}


@OVER_SOCKETS
@pytest.mark.parametrize("end", STREAM_ENDS.values(), ids=STREAM_ENDS)
def test_every_end_of_the_stream_reaches_the_one_that_leads(
    ends: Ends, spawn: Spawn, end: Callable[[wsmux.Stream, wsmux.Stream], object]
) -> None:
    near, far = open_pair(*ends)
    reading = spawn(near.read, 1)
    leads(ends.client)
    end(near, far)
    error = reading.exception(WAIT)
    assert error is None or isinstance(error, wsmux.StreamReset | ValueError)
    assert error is not None or reading.result() == b""
    wait_for(lambda: not is_led(ends.client))
    other = open_pair(*ends)
    other.far.write(b"x")
    assert other.near.read(1) == b"x"


@OVER_SOCKETS
def test_its_timeout_holds_while_bytes_arrive_all_the_time(
    ends: Ends, spawn: Spawn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A socket that is always readable must not keep a thread from looking at its clock."""
    park = EventParker.park_beside
    late: list[bool] = []

    def parks(parker: EventParker, deadline: wsmux.runtime.deadline.Deadline) -> bool:
        late.append(deadline.expired())
        park(parker, deadline)
        return True

    monkeypatch.setattr(EventParker, "park_beside", parks)
    near, _ = open_pair(*ends)
    near.timeout = 0.05
    with pytest.raises(TimeoutError):
        spawn(near.read, 1).result(WAIT)
    assert True not in late
    assert not is_led(ends.client)


@OVER_SOCKETS
def test_a_round_that_was_broken_off_ends_the_connection(
    ends: Ends, spawn: Spawn, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Another thread may inject an exception at any step; what was read is lost then."""

    class Injected(BaseException):
        pass

    armed = threading.Event()

    def raises() -> None:
        if armed.is_set():
            raise Injected

    on_led_round(monkeypatch, raises)
    near, far = open_pair(*ends)
    other, _ = open_pair(*ends)
    reading = spawn(near.read, 1)
    leads(ends.client)
    waiting = spawn(other.read, 1)
    wait_for_reader(ends.client, 2)
    armed.set()
    with suppress(wsmux.ConnectionClosedError):  # an answer to an opening may have come first
        far.write(b"x")
    with pytest.raises(Injected):
        reading.result(WAIT)
    with pytest.raises(wsmux.ConnectionClosedError, match="in the middle of receiving"):
        waiting.result(WAIT)
    assert ends.client.wait_closed(WAIT)
    name = ends.client.name
    assert caplog.messages[0] == f"a read that received for {name} failed; it ends"
    assert "Injected" in caplog.text
    caplog.clear()  # its traceback holds the connection


@OVER_SOCKETS
def test_a_silent_peer_is_noticed_while_a_reader_leads(join_ends: Join, spawn: Spawn) -> None:
    """The timers stay with the I/O thread."""
    ours, theirs = socket.socketpair()
    options = {"ping_interval": 1.0, "ping_timeout": 1.0}
    client = wsmux.from_socket(
        ours, role="client", protocol="wsmux", config=wsmux.Config(**options)
    )
    with theirs, client:
        reading = spawn(client.open_stream().read, 1)
        leads(client)
        with pytest.raises(wsmux.ConnectionClosedError, match="no byte from the peer"):
            reading.result(WAIT)


@OVER_SOCKETS
def test_a_forked_child_leaves_the_one_that_leads_alone(ends: Ends, spawn: Spawn) -> None:
    near, far = open_pair(*ends)
    reading = spawn(near.read, 1)
    leads(ends.client)
    child = os.fork()
    if not child:
        try:
            near.write(b"x")
        except wsmux.ForkedError:
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    assert is_led(ends.client)
    far.write(b"x")
    assert reading.result(WAIT) == b"x"


@pytest.mark.parametrize("protocol", ["wsmux", "yamux"])
def test_one_that_leads_waits_through_an_outage(protocol: str, spawn: Spawn) -> None:
    with pair(protocol=protocol) as ends:
        near, far = joined(ends)
        for _ in range(3):
            reading = spawn(read_exactly, near, 4)
            leads(ends.client)
            ends.outage()
            assert not is_led(ends.client)
            far.write(b"kept")
            ends.over()
            assert reading.result(WAIT) == b"kept"


def test_a_read_that_begins_in_an_outage_waits_without_looking_again_and_again(
    spawn: Spawn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also behind one that led, and whose own round ended its wait."""
    waits: list[int] = []
    wait = Waiter.wait

    def counts(waiter: Waiter, *arguments: Any) -> None:
        waits.append(threading.get_ident())
        wait(waiter, *arguments)

    monkeypatch.setattr(Waiter, "wait", counts)
    with pair() as ends:
        near, far = joined(ends)
        begun = threading.Event()
        cut = threading.Event()

        def read() -> int:
            assert read_exactly(near, 1) == b"1"
            begun.set()
            assert cut.wait(WAIT)
            assert read_exactly(near, 1) == b"2"
            return threading.get_ident()

        reading = spawn(read)
        leads(ends.client)
        far.write(b"1")
        assert begun.wait(WAIT)
        ends.outage()
        cut.set()
        wait_for_reader(ends.client)
        far.write(b"2")
        ends.over()
        assert waits.count(reading.result(WAIT)) < 20


def test_no_peer_is_called_silent_whose_bytes_were_not_looked_for(
    spawn: Spawn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that has borrowed the socket may stand still, as in a call of C."""
    ours, theirs = socket.socketpair()
    config = wsmux.Config(ping_interval=0.05, ping_timeout=1.0)
    near = wsmux.from_socket(ours, role="client", protocol="wsmux", config=config)
    far = wsmux.from_socket(theirs, role="server", protocol="wsmux")
    free = threading.Event()
    park = EventParker.park_beside

    def stands(parker: EventParker, deadline: Deadline) -> bool:
        assert free.wait(WAIT)
        return park(parker, deadline)

    with near, far:
        stream = near.open_stream(WAIT)
        with monkeypatch.context() as patch:
            patch.setattr(EventParker, "park_beside", stands)
            reading = spawn(stream.read, 1)
            leads(near)
            pings = near.stats().bytes_received
            wait_for(lambda: near.closed or near.stats().bytes_received > pings + 8)
            free.set()
        assert not near.closed
        other = far.accept_stream(WAIT)
        other.write(b"x")
        assert reading.result(WAIT) == b"x"


@OVER_SOCKETS
@pytest.mark.parametrize("name", ["begin_beside", "end_beside"])
def test_an_injected_exception_leaves_the_socket_to_the_io_thread(
    ends: Ends, spawn: Spawn, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """And the parker as it was."""

    class Injected(BaseException):
        pass

    original = getattr(EventParker, name)
    calls: list[str] = []

    def raises(parker: EventParker, *arguments: Any) -> Any:
        calls.append(name)
        if len(calls) == 1:
            raise Injected
        return original(parker, *arguments)

    near, far = open_pair(*ends)
    near.timeout = 0.01 if name == "end_beside" else WAIT
    with monkeypatch.context() as patch:
        patch.setattr(EventParker, name, raises)
        with pytest.raises(Injected):
            spawn(near.read, 1).result(WAIT)
    assert not is_led(ends.client)
    near.timeout = WAIT
    far.write(b"x")
    assert near.read(1) == b"x"
