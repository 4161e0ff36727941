"""Clients on their connections: who hears whom, who is hung up on, and who is told."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from wsmux import rpc
from wsmux.transport.message_transport import MessageTransport

from ..helpers.inside import connections_of
from ..helpers.rpc.clients import cut
from ..helpers.rpc.four_kinds import Gathered, staged
from ..helpers.rpc.procedures import WAIT, Gate, offered
from ..helpers.rpc.raw_river import RawRiver
from ..helpers.waiting import wait_for

# No attempt fails, however slow the machine.
PATIENT = rpc.Options(handshake_timeout=WAIT, connection_timeout=WAIT, heartbeat_interval=WAIT)


@pytest.fixture
def server() -> Iterator[rpc.RpcServer]:
    gate = Gate()
    with rpc.serve([offered(gate)], options=PATIENT) as server:
        yield server
        gate.opened.set()


def test_clients_hear_what_is_for_them() -> None:
    """Both have a call of the same stream id, and each gets its own answers."""
    service = rpc.Service("test")

    @service.stream()
    def named(ctx: rpc.Context, init: object, requests: rpc.Readable[str]) -> Iterator[str]:
        for request in requests:
            yield f"{request} to {ctx.client_id}"

    with (
        rpc.serve([service], options=rpc.Options(heartbeat_interval=WAIT)) as server,
        RawRiver.dial(server.port, "msgpack", websocket=True, own="one") as one,
        RawRiver.dial(server.port, "msgpack", websocket=True, own="other") as other,
    ):
        for peer in (one, other):
            peer.attach(f"session of {peer.own}")
            peer.open("same stream", "named")
        for text in ("hello", "again"):
            for peer in (one, other):
                peer.send({"streamId": "same stream", "payload": text})
            for peer in (one, other):
                assert peer.recv()["payload"]["payload"] == f"{text} to {peer.own}"


def test_a_connection_that_is_late_leaves_its_successor_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its thread stands still from the moment it has the session until another has it."""
    service = rpc.Service("test")

    @service.stream()
    def echo(ctx: rpc.Context, init: object, requests: rpc.Readable[str]) -> Iterator[str]:
        yield from requests

    flush, stands, go = MessageTransport.flush, threading.Event(), threading.Event()

    def late(self: MessageTransport, *arguments: Any) -> None:  # once it has answered
        flush(self, *arguments)
        if not stands.is_set():
            stands.set()
            assert go.wait(WAIT)

    monkeypatch.setattr(MessageTransport, "flush", late)
    with (
        rpc.serve([service], options=rpc.Options(heartbeat_interval=WAIT)) as server,
        RawRiver.dial(server.port, "msgpack", websocket=True) as first,
        RawRiver.dial(server.port, "msgpack", websocket=True) as second,
    ):
        first.attach("session")
        assert stands.wait(WAIT)
        (session,) = server.handler.list_sessions()
        assert session.connections == 1
        second.attach("session")
        go.set()
        first.recv_end()
        wait_for(lambda: connections_of(server.handler) == 1)
        second.open("stream", "echo")
        second.send({"streamId": "stream", "payload": "hello"})
        assert second.recv()["payload"]["payload"] == "hello"


@pytest.mark.parametrize("websocket", [True, False], ids=["websocket", "tcp"])
def test_who_does_not_greet_is_hung_up_on(websocket: bool) -> None:
    options = rpc.Options(handshake_timeout=0.05)
    transport = "websocket" if websocket else "tcp"
    with (
        rpc.serve([offered(Gate())], options=options, transport=transport) as server,
        RawRiver.dial(server.port, "msgpack", websocket=websocket) as silent,
    ):
        assert silent.recv_end() == silent.clean
        assert server.handler.sessions == 0


@pytest.mark.parametrize("how", ["closes", "resets"])
def test_who_leaves_without_a_greeting_leaves_nothing(how: str) -> None:
    with rpc.serve([offered(Gate())]) as server:
        with RawRiver.dial(server.port, "msgpack", websocket=True) as hasty:
            wait_for(lambda: connections_of(server.handler))
            if how == "resets":
                hasty.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        wait_for(lambda: connections_of(server.handler) == 0)
        assert server.handler.sessions == 0


# Callbacks


def test_a_client_hears_of_its_connections_in_order(server: rpc.RpcServer) -> None:
    told = Gathered()
    with rpc.connect(
        server.url,
        options=PATIENT,
        on_session_status=lambda status, session: told(status),
        on_connection_status=told,
    ) as client:
        assert client.rpc("test", "same", 1, WAIT) == 1
        made = ["created", "backing_off", "connecting", "handshaking", "connected"]
        assert told.first(5) == made
        assert cut(client)
        again = ["no_connection", "backing_off", "connecting", "handshaking", "connected"]
        assert told.first(10) == made + again
        assert client.rpc("test", "same", 2, WAIT) == 2
    assert told.first(12) == [*made, *again, "closed", "closed"]


def test_a_server_hears_of_its_sessions() -> None:
    told = Gathered()
    options = rpc.Options(session_disconnect_grace=0.01)
    with rpc.serve(
        [staged(lambda part: part.ctx.session_id)],
        options=options,
        on_session_status=lambda *status: told(status),
    ) as server:
        with rpc.connect(server.url) as client:
            session = client.rpc("test", "rpc", None, WAIT)
        assert told.first(2) == [("created", session), ("closed", session)]


def test_a_callback_that_fails_is_called_again(
    server: rpc.RpcServer, caplog: pytest.LogCaptureFixture
) -> None:
    told = Gathered()

    def fails(status: str) -> None:
        told(status)
        raise LookupError("on purpose")

    with rpc.connect(server.url, on_connection_status=fails) as client:
        assert client.rpc("test", "same", 1, WAIT) == 1
        assert told.first(4)[-1] == "connected"
    assert "the callback for connection_status failed" in caplog.text


def test_a_callback_may_block_and_call(server: rpc.RpcServer) -> None:
    go, told = threading.Event(), Gathered()

    def calls(status: str) -> None:
        if status == "connected":
            assert go.wait(WAIT)
            told(client.rpc("test", "same", "from a callback", WAIT))

    with rpc.connect(server.url, on_connection_status=calls) as client:
        assert client.rpc("test", "same", "meanwhile", WAIT) == "meanwhile"
        go.set()
        assert told.first(1) == ["from a callback"]


def test_a_callback_may_close_the_client(server: rpc.RpcServer) -> None:
    told = Gathered()

    def closes(status: str) -> None:
        told(status)
        if status == "connected":
            client.close()

    client = rpc.connect(server.url, eager=True, on_connection_status=closes)
    assert told.first(5)[-2:] == ["connected", "closed"]
    client.close()
    assert told.first(5) == told.said  # and nothing after that


def test_closing_tells_once(server: rpc.RpcServer) -> None:
    told = Gathered()
    client = rpc.connect(server.url, on_session_status=lambda status, session: told(status))
    with client.subscribe("test", "watch", None, WAIT) as watch:
        assert watch.read() == "first"
        client.close()
        client.close()
    assert told.first(2) == ["created", "closed"]
    wait_for(lambda: not any("callbacks" in thread.name for thread in threading.enumerate()))
    assert told.said == ["created", "closed"]
