"""A handshake that a queue has delayed is of a connection that its client has given up long ago."""

from __future__ import annotations

import queue
import select
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from wsmux import rpc

from ..helpers.timeouts import WAIT
from ..helpers.waiting import wait_for

# Nothing is acknowledged before the test is over, however slow the machine.
CALM = rpc.Options(heartbeat_interval=600.0, handshake_timeout=600.0)


class Carried:
    """Hold both ends of a connection; bytes that the client has sent outlive its end of it."""

    def __init__(self) -> None:
        self.client, self.server = socket.socketpair()
        self._copy = self.client.dup()

    def give_up(self) -> None:
        """End the connection, for the client, once it has sent its handshake."""
        assert select.select([self.server], [], [], WAIT)[0]
        self.cut()

    def cut(self) -> None:
        self._copy.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._copy.close()
        self.server.close()


class Front:
    """Stand before servers, as a proxy, and queue connections until a test hands them on."""

    def __init__(self, service: rpc.Service) -> None:
        self.service = service
        self.server = self.new_server()
        self.waiting: queue.Queue[Carried] = queue.Queue()
        self._made: list[Carried] = []
        self._threads: list[threading.Thread] = []

    def new_server(self) -> rpc.RpcHandler:
        return rpc.handler([self.service], options=CALM)

    def dial(self) -> socket.socket:
        carried = Carried()
        self._made.append(carried)
        self.waiting.put(carried)
        return carried.client

    def next(self) -> Carried:
        return self.waiting.get(timeout=WAIT)

    def serve(self, carried: Carried) -> threading.Thread:
        thread = threading.Thread(target=self.server, args=(carried.server,))
        self._threads.append(thread)
        thread.start()
        return thread

    def close(self) -> None:
        self.server.shutdown(WAIT)
        for carried in self._made:
            carried.cut()
        for thread in self._threads:
            thread.join(WAIT)
        for carried in self._made:
            carried.close()


@pytest.fixture
def noted() -> list[Any]:
    return []


@pytest.fixture
def front(noted: list[Any]) -> Iterator[Front]:
    service = rpc.Service("test")

    @service.rpc()
    def note(ctx: rpc.Context, init: Any) -> Any:
        noted.append(init)
        if init == "unanswered":
            assert ctx.ended.wait(WAIT)
        return init

    @service.stream()
    def echo(ctx: rpc.Context, init: Any, requests: rpc.Readable[Any]) -> Iterator[Any]:
        yield from requests

    front = Front(service)
    yield front
    front.close()


def test_the_session_of_a_late_handshake_is_not_taken_for_the_clients_own(
    front: Front, noted: list[Any]
) -> None:
    """The first connection waits in front of the server until that has been started again."""
    with (
        rpc.connect(front.dial, options=CALM) as client,
        ThreadPoolExecutor(1) as pool,
    ):
        call = pool.submit(client.rpc, "test", "note", "unanswered", WAIT)
        late = front.next()
        late.give_up()
        second = front.next()
        front.serve(second)
        wait_for(lambda: noted)
        second.cut()
        front.server.shutdown(WAIT)
        front.server = front.new_server()
        third = front.next()
        front.serve(late)
        wait_for(lambda: front.server.sessions)
        front.serve(third)
        with pytest.raises(rpc.RiverError) as caught:
            call.result(WAIT)
        assert caught.value.code == "UNEXPECTED_DISCONNECT"
        front.serve(front.next())
        assert client.rpc("test", "note", "next", WAIT) == "next"
    assert noted == ["unanswered", "next"]


@pytest.mark.parametrize("kind", ["first", "reconnect"])
def test_a_late_handshake_leaves_the_present_connection_alone(kind: str, front: Front) -> None:
    with rpc.connect(front.dial, options=CALM, eager=True) as client:
        if kind == "reconnect":
            first = front.next()
            front.serve(first)
            client.wait_connected(WAIT)
            first.cut()
        late = front.next()
        late.give_up()
        front.serve(front.next())
        with client.stream("test", "echo", None) as stream:
            stream.write(1, WAIT)
            assert stream.read(WAIT) == 1
            (before,) = front.server.list_sessions()
            front.serve(late).join(WAIT)  # until it was refused
            (after,) = front.server.list_sessions()
            assert (after.number, after.connections) == (before.number, before.connections)
            assert after.connected
            stream.write(2, WAIT)
            assert stream.read(WAIT) == 2
        assert front.waiting.empty()
