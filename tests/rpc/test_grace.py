"""A call ends with the grace period of its session, whatever the client is busy with."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from wsmux import rpc
from wsmux.rpc import testing
from wsmux.rpc.session.connector import ConnectorState

from ..helpers.inside import client_engine_of
from ..helpers.rpc.procedures import WAIT
from ..helpers.waiting import wait_for

GRACE = rpc.Options().session_disconnect_grace
LOST = "UNEXPECTED_DISCONNECT"


class Hanging:
    """Connect to nobody, only after a test has said so: like a name that is not resolved."""

    def __init__(self) -> None:
        self.calls = 0
        self.go = threading.Event()

    def __call__(self) -> socket.socket:
        self.calls += 1
        assert self.go.wait(WAIT)
        raise ConnectionRefusedError("nobody there")


@pytest.fixture
def hanging() -> Iterator[Hanging]:
    hanging = Hanging()
    yield hanging
    hanging.go.set()


def test_calls_end_while_a_connection_is_being_made(clock: testing.Clock, hanging: Hanging) -> None:
    with rpc.connect(hanging) as client:
        first = client.submit("test", "rpc", None)
        wait_for(lambda: hanging.calls == 1)
        clock.advance(GRACE - 0.1)
        second = client.submit("test", "rpc", None)  # in the same session
        assert [call.done() for call in (first, second)] == [False, False]
        clock.advance(0.2)
        for call in (first, second):
            with pytest.raises(rpc.RiverError, match=f"{LOST}.*within the grace period"):
                call.result(0)
        third = client.submit("test", "rpc", None)  # begins a session, and a grace period
        clock.advance(GRACE - 0.1)
        assert not third.done()
        clock.advance(0.2)
        with pytest.raises(rpc.RiverError, match=LOST):
            third.result(0)
        assert hanging.calls == 1
        hanging.go.set()


def metadata_threads() -> int:
    return [thread.name for thread in threading.enumerate()].count("wsmux-rpc-metadata")


def state_of(client: rpc.Client) -> ConnectorState:
    """Return its state as of now; those that it tells come later, by a thread of their own."""
    engine = client_engine_of(client)
    with engine.mutex:
        return engine.connector.state


@pytest.fixture
def token() -> Iterator[threading.Event]:
    """Yield what a function for metadata waits for."""
    token = threading.Event()
    yield token
    token.set()


def test_metadata_that_take_long_are_made_by_one_thread(
    clock: testing.Clock, token: threading.Event
) -> None:
    """What it makes at last is for the attempt that waits then, and only for that."""
    made: list[int] = []
    states: list[str] = []

    def metadata() -> int:
        made.append(len(made))
        assert token.wait(WAIT)
        return made[-1]

    seen: list[int] = []
    service = rpc.Service("test")
    service.rpc(name="rpc")(lambda ctx, init: seen.append(ctx.metadata))
    with (
        rpc.serve([service]) as server,
        rpc.connect(
            server.url, metadata=metadata, eager=True, on_connection_status=states.append
        ) as client,
    ):
        wait_for(lambda: made)
        while states.count("handshaking") < 10:
            clock.advance(1)
            assert metadata_threads() == 1
        while state_of(client) is not ConnectorState.HANDSHAKING:
            clock.advance(0.1)
        token.set()
        client.wait_connected(WAIT)
        client.rpc("test", "rpc", None, WAIT)
        assert (made, seen) == ([0], [0])


def test_a_call_made_while_metadata_are_made_ends_with_its_grace(
    clock: testing.Clock, token: threading.Event
) -> None:
    options = rpc.Options(handshake_timeout=60)
    states: list[str] = []
    with (
        rpc.serve([], options=options) as server,
        rpc.connect(
            server.url,
            options=options,
            metadata=lambda: token.wait(WAIT),
            eager=True,
            on_connection_status=states.append,
        ) as client,
    ):
        wait_for(lambda: "handshaking" in states and metadata_threads() == 1)
        call = client.submit("test", "rpc", None)
        clock.advance(GRACE - 0.1)
        assert not call.done()
        clock.advance(0.2)
        with pytest.raises(rpc.RiverError, match=LOST):
            call.result(0)


def test_an_attempt_that_hangs_is_followed_by_one_more(
    clock: testing.Clock, hanging: Hanging
) -> None:
    """However long it takes: the threads that wait for it do not add up."""
    errors: list[str] = []

    def note(kind: str, *_: object) -> None:
        errors.append(kind)

    with rpc.connect(hanging, eager=True, on_protocol_error=note) as client:
        wait_for(lambda: hanging.calls == 1)
        clock.advance(60)
        assert hanging.calls == 1
        wait_for(lambda: errors == ["conn_retry_exceeded"])
        hanging.go.set()
        wait_for(lambda: hanging.calls == 2)
        client.close()
