"""Calls whose session is lost for good, and what goes on without them."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from wsmux import rpc

from ..helpers.inside import channel_of
from ..helpers.rpc.clients import cut
from ..helpers.rpc.four_kinds import (
    HANDLED,
    Gathered,
    Held,
    Part,
    begun,
    check_caller,
    check_handler,
    staged,
)
from ..helpers.rpc.procedures import WAIT
from ..helpers.waiting import wait_for

BRIEF = rpc.Options(session_disconnect_grace=0.05)  # for servers: it runs when a client is lost
LOST = "UNEXPECTED_DISCONNECT"


@contextmanager
def once(handler: rpc.RpcHandler) -> Iterator[rpc.Client]:
    """Yield a client whose connection can be lost and not be made again."""
    ours, theirs = socket.socketpair()
    thread = threading.Thread(target=handler, args=(theirs,))
    thread.start()
    with rpc.connect(ours, is_fatal=lambda error: True) as client:
        yield client
    thread.join(WAIT)


def lose(client: rpc.Client) -> None:
    """Lose the connection; return when the client knows."""
    channel = channel_of(client)
    assert cut(client)
    wait_for(lambda: channel_of(client) is not channel)


@pytest.fixture
def held() -> Iterator[Held]:
    held = Held()
    yield held
    held.go.set()


@pytest.fixture
def handler(held: Held) -> Iterator[rpc.RpcHandler]:
    held.service.rpc(name="same")(lambda ctx, init: init)
    with rpc.handler([held.service], options=BRIEF) as handler:
        yield handler
        held.go.set()


def check_lost(part: Part, handler: rpc.RpcHandler, other: rpc.Client) -> None:
    """Check what is left of a client that is lost, for the server and for another client."""
    check_handler(part, LOST)
    wait_for(lambda: handler.sessions == 1)
    assert [session.calls for session in handler.list_sessions()] == [0]
    assert other.rpc("test", "same", 1, WAIT) == 1


@pytest.mark.parametrize("kind", HANDLED)
def test_a_call_ends_with_its_session(kind: rpc.Kind, handler: rpc.RpcHandler, held: Held) -> None:
    with once(handler) as client, once(handler) as other:
        assert other.rpc("test", "same", 1, WAIT) == 1
        call = begun(client, kind)
        part = held.part
        lose(client)
        check_caller(call, LOST)
        check_lost(part, handler, other)


def test_an_rpc_ends_with_its_session(handler: rpc.RpcHandler, held: Held) -> None:
    with once(handler) as client, once(handler) as other:
        assert other.rpc("test", "same", 1, WAIT) == 1
        call = client.submit("test", "rpc", None, WAIT)
        part = held.part
        lose(client)
        with pytest.raises(rpc.RiverError, match=LOST):
            call.result(WAIT)
        check_lost(part, handler, other)


def test_a_call_does_not_move_into_the_next_session() -> None:
    """A server that was restarted has lost its sessions; what was for them is not sent to it."""
    told = Gathered()

    def act(part: Part) -> Any:
        for request in part.requests or ():
            told(request)
            assert part.responses is not None
            part.responses.write(request)

    statuses: list[str] = []
    with rpc.serve([staged(act)]) as server:
        client = rpc.connect(server.url, on_session_status=lambda *s: statuses.append(s[0]))
        stream = client.stream("test", "stream", None, WAIT)
        stream.write("first")
        assert stream.read() == "first"
    with client, rpc.serve([staged(act)], port=server.port):
        client.wait_connected(WAIT)
        with pytest.raises(rpc.RiverError, match=LOST):
            stream.read()
        with pytest.raises(rpc.RiverError, match=LOST):
            stream.write("late")
        stream.close_write()
        stream.cancel()
        assert client.rpc("test", "rpc", None, WAIT) is None
        wait_for(lambda: statuses == ["created", "closed", "created"])
    assert told.said == ["first"]


@pytest.mark.parametrize("seconds", [0, 0.1, 0.5, 1.5])
def test_a_restarted_server_runs_no_call_again(seconds: float) -> None:
    """Within the first second nothing was acknowledged: the counters are those of a new session."""
    runs = Gathered()
    go = threading.Event()

    def act(part: Part) -> None:
        runs(part.init)
        go.wait(WAIT)

    with rpc.serve([staged(act)]) as server:
        client = rpc.connect(server.url)
        call = client.submit("test", "rpc", "first", WAIT)
        wait_for(lambda: runs.said == ["first"])
        time.sleep(seconds)  # the row: after the first heartbeat the counters tell
        server.shutdown(0)
    with client, rpc.serve([staged(act)], port=server.port):
        with pytest.raises(rpc.RiverError, match=LOST):
            call.result(WAIT)
        client.wait_connected(WAIT)
        go.set()
        assert client.rpc("test", "rpc", "second", WAIT) is None
    assert runs.said == ["first", "second"]


def test_calls_keep_their_order_over_connections_that_are_cut() -> None:
    """One worker handles them, so that their handlers run as they arrive."""
    arrived: list[int] = []
    service = staged(lambda part: arrived.append(part.init))
    options = rpc.Options(backoff_base=0.01, backoff_jitter=0)
    with (
        rpc.serve([service], workers=1) as server,
        rpc.connect(server.url, options=options) as client,
    ):
        client.wait_connected(WAIT)
        calls = []
        for number in range(50):
            calls.append(client.submit("test", "rpc", number, WAIT))
            if number in (10, 20, 30):
                lose(client)
                client.wait_connected(WAIT)
            elif number == 40:
                lose(client)
        for call in calls:
            assert call.result() is None
    assert arrived == list(range(50))


def test_a_later_call_begins_a_new_session(held: Held) -> None:
    """The last one is over, and nobody had anything to say meanwhile."""
    held.service.rpc(name="same")(lambda ctx, init: init)
    statuses: list[str] = []
    with rpc.serve([held.service]) as server:
        client = rpc.connect(
            server.url,
            is_fatal=lambda error: True,
            on_session_status=lambda *s: statuses.append(s[0]),
        )
        assert client.rpc("test", "same", 1, WAIT) == 1
    with client:
        wait_for(lambda: statuses == ["created", "closed"])
        with rpc.serve([held.service], port=server.port) as again:
            assert client.rpc("test", "same", 2, WAIT) == 2
            assert again.handler.sessions == 1
            wait_for(lambda: statuses[:3] == ["created", "closed", "created"])
