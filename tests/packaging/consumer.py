"""Use the public names as a program that depends on wsmux does.

``test_distributions.py`` runs it beside an installed wheel, and checks its types there: every
``assert_type`` says what a checker must know of a call, with no setting but ``strict``.
"""

from __future__ import annotations

import io
import json
import secrets
import socket
import sys
import tempfile
from collections.abc import Callable, Collection
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Literal, assert_type

from flask import Flask

import wsmux
import wsmux.flask
import wsmux.testing
import wsmux.wsgi
from wsmux import bus, rpc

TEXT = {"type": "string"}


def echo(stream: wsmux.Stream) -> None:
    while data := stream.read(65536):
        assert_type(data, bytes)
        assert_type(stream.write(data), int)


def streams(connection: wsmux.Connection) -> None:
    """Move bytes in each of the ways that a stream has."""
    with connection.open_stream(timeout=5) as stream:
        assert_type(stream, wsmux.Stream)
        assert_type(stream.id, int)
        assert_type(stream.connection, wsmux.Connection)
        assert_type(stream.timeout, float | None)
        with wsmux.deadline(5):
            stream.write(b"hello")
            target = bytearray(2)
            assert_type(stream.readinto(target), int)
            stream.close_write()
            assert_type(stream.readall(), bytes)
        assert isinstance(stream, io.RawIOBase)

    with connection.open_stream() as stream, stream.makefile() as file:
        assert_type(file, io.BufferedRWPair)
    with connection.open_stream() as stream, stream.makefile("rb") as reader:
        assert_type(reader, io.BufferedReader)
    with connection.open_stream() as stream, stream.makefile("wb") as writer:
        assert_type(writer, io.BufferedWriter)
    with connection.open_stream() as stream, stream.makefile("rw", encoding="utf-8") as text:
        assert_type(text, io.TextIOWrapper)
        text.write("a line\n")
        text.flush()
        assert_type(text.readline(), str)

    stream = connection.open_stream()
    with stream.as_socket() as sock:
        assert_type(sock, socket.socket)
        sock.sendall(b"x")
        assert_type(sock.recv(1), bytes)


def connections(connection: wsmux.Connection) -> None:
    """Ask a connection for everything that it tells."""
    assert_type(connection.role, wsmux.Role)
    assert_type(connection.protocol, str)
    assert_type(connection.config, wsmux.Config)
    assert_type(connection.request, wsmux.Request | None)
    assert_type(connection.closed, bool)
    assert_type(connection.error, wsmux.WsmuxError | None)
    assert_type(connection.close_code, int | None)
    assert_type(connection.close_reason, str | None)
    assert_type(connection.initial_streams, tuple[wsmux.Stream, ...])
    assert_type(connection.ping(timeout=5), float)
    stats = connection.stats()
    assert_type(stats, wsmux.ConnectionStats)
    assert_type(stats.unread_bytes, int)
    assert_type(stats.rtt, float | None)
    for one in connection.stream_stats():
        assert_type(one, wsmux.StreamStats)
        assert_type(one.reading, wsmux.HalfStatus)
        assert_type(one.reader, wsmux.Wait | None)
    for finding in connection.explain():
        assert_type(finding, wsmux.Finding)
        assert_type(finding.cause, wsmux.Cause)
    assert_type(connection.wait_drained(0), bool)


def errors(connection: wsmux.Connection) -> None:
    """Catch what a call may raise, and read what it tells."""
    try:
        with connection.open_stream() as stream:
            stream.timeout = 5
            stream.reset(64)
            stream.read()
    except wsmux.StreamReset as error:
        assert_type(error.stream_id, int)
        assert_type(error.code, int)
        assert_type(error.side, Literal["local", "remote"] | None)
        also: ConnectionResetError = error
        assert_type(also.errno, int | None)
    except wsmux.WriteTimeout as error:
        assert_type(error.bytes_written, int)
    except wsmux.ConnectionClosed as error:
        assert_type(error.code, int)
        assert_type(error.reason, str)
        assert_type(error.side, Literal["local", "remote"] | None)
    except wsmux.HandshakeError as error:
        assert_type(error.status, int | None)
    except wsmux.RemoteProtocolError as error:
        assert_type(error.code, int)
        assert_type(error.ended_by, Literal["local", "remote"])


def mux() -> None:
    """Serve from a socket, and within this process."""
    config = wsmux.Config(receive_window=65536, recording=wsmux.Recording())
    assert_type(config.receive_window, int)
    assert_type(config.idle_timeout, float | None)
    assert_type(config.trusted_proxies, Collection[str])
    with wsmux.serve(stream_handler=echo, config=config) as server:
        assert_type(server, wsmux.Server)
        assert_type(server.url, str)
        assert_type(server.port, int)
        assert_type(server.connections, list[wsmux.Connection])
        with wsmux.connect(server.url, protocol=["wsmux"], timeout=5) as connection:
            assert_type(connection, wsmux.Connection)
            streams(connection)
            connections(connection)
            errors(connection)
            with wsmux.StallWatch(server, after=30) as watch:
                assert_type(watch, wsmux.StallWatch)
    assert_type(wsmux.pair(), tuple[wsmux.Connection, wsmux.Connection])
    ours, theirs = wsmux.pair(protocol="yamux")
    with ours, theirs, ours.open_stream() as stream:
        stream.close()
        for accepted in theirs:
            assert_type(accepted, wsmux.Stream)
            break


def in_flask() -> None:
    """Add routes to an application; a handler keeps its own type."""
    app = Flask(__name__)
    routes = wsmux.flask.Mux(app, origins=["https://example.org"])

    @routes.route("/files/<name>")
    def files(connection: wsmux.Connection, name: str) -> int:
        return len(name) + sum(1 for _ in connection)

    @routes.stream_route("/echo")
    def serve(stream: wsmux.Stream) -> None:
        echo(stream)

    app.register_blueprint(wsmux.flask.script_blueprint())
    assert_type(routes.connections, list[wsmux.Connection])
    assert_type(files(wsmux.pair()[0], "") if routes.stopping else 0, int)
    serve  # noqa: B018  it is there, and no checker says that nobody calls it
    routes.shutdown(0)


words = rpc.Service("words")


@words.rpc(init=TEXT, response={"type": "integer"})
def length(ctx: rpc.Context, init: str) -> int:
    return len(init)


@words.upload(request=TEXT, response=TEXT)
def join(ctx: rpc.Context, init: None, requests: rpc.Readable[str]) -> str:
    for request in requests:
        assert_type(request, str)
    return "joined"


def remote_calls() -> None:
    """Call procedures by their names, and by strings."""
    handler: Callable[[rpc.Context, str], int] = length  # a decorator changes no function
    assert handler is length
    with rpc.serve([words]) as server, rpc.connect(server.url, schema=[words]) as client:
        assert_type(server, rpc.RpcServer)
        assert_type(client, rpc.Client)
        assert client.words.length("River", timeout=5) == 5
        assert_type(client.submit("words", "length", "River"), rpc.PendingCall)
        with client.upload("words", "join", None, timeout=5) as upload:
            assert_type(upload, rpc.Upload[Any, Any])
            upload.write("one")
            upload.finish()
        try:
            client.rpc("words", "nothing", None, timeout=5)
        except rpc.RiverError as error:
            assert_type(error.code, str)
            assert_type(error.message, str)


def on_the_bus() -> None:
    """Call a twin over a relay of this process."""
    keys = [bus.Identity.from_secret(f"0x{secrets.token_hex(32)}", "ed25519") for _ in range(2)]
    assert_type(keys, list[bus.Identity])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "twins.json")
        path.write_text(
            json.dumps(
                [
                    {
                        "id": number,
                        "account": each.address,
                        "relays": ["relay.test"],
                        "pk": f"0x{each.e2e_public.hex()}",
                    }
                    for number, each in enumerate(keys, 1)
                ]
            )
        )
        twins = bus.FileTwins(path)
        with (
            bus.serve_relay(["relay.test"], twins) as relay,
            bus.Client(keys[0], relay.url, twins) as caller,
            bus.Client(keys[1], relay.url, twins, gateway=True) as adder,
        ):
            assert_type(relay, bus.RelayServer)
            assert_type(caller.address, bus.Address)
            adder.serve({"add": sum})
            assert caller.call(2, "add", [1, 2, 3], timeout=5) == 6
            assert_type(caller.submit(2, "add", [1]), Future[Any])
            assert_type(caller.call_raw(2, "add", b"[4]"), bus.Reply)
            try:
                caller.call(3, "add", timeout=5)
            except bus.BusError as error:
                assert_type(error.code, int)


def test_kit() -> None:
    with wsmux.testing.FaultProxy(1) as proxy:
        assert_type(proxy, wsmux.testing.FaultProxy)
        assert_type(proxy.port, int)


if __name__ == "__main__":
    mux()
    in_flask()
    remote_calls()
    on_the_bus()
    test_kit()
    sys.stdout.write(f"{wsmux.__file__}\n")
