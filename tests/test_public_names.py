"""Pin the names that users may rely on; adding or losing one is a decision, not an accident."""

from __future__ import annotations

import io

import wsmux
import wsmux.flask

ALL = {
    "BymuxState",
    "ConcurrencyError",
    "Config",
    "Connection",
    "ConnectionClosed",
    "ConnectionClosedError",
    "ConnectionClosedOK",
    "ConnectionStats",
    "FlowControlError",
    "ForkedError",
    "FrameError",
    "HalfState",
    "HandshakeError",
    "LocalProtocolError",
    "ProtocolError",
    "RemoteProtocolError",
    "Request",
    "Role",
    "Server",
    "Stream",
    "StreamError",
    "StreamIdError",
    "StreamRefused",
    "StreamReset",
    "StreamState",
    "StreamWriteClosed",
    "WriteTimeout",
    "WsmuxError",
    "bridge",
    "connect",
    "from_socket",
    "pair",
    "serve",
}

CONNECTION = {
    "abort",
    "accept_stream",
    "begin_close",
    "close",
    "closed",
    "config",
    "error",
    "go_away",
    "initial_streams",
    "name",
    "open_stream",
    "ping",
    "protocol",
    "request",
    "role",
    "stats",
    "wait_closed",
    "wait_drained",
}

STREAM = {
    "close",
    "close_read",
    "close_write",
    "closed",
    "connection",
    "flush",
    "id",
    "makefile",
    "ping",
    "read",
    "readable",
    "readall",
    "readinto",
    "reset",
    "timeout",
    "writable",
    "write",
}

SERVER = {"connections", "host", "port", "serve_forever", "shutdown", "url"}

# What a server offers the hook that runs after a fork.
FOR_FORK = {"forked"}


def public_names(thing: object) -> set[str]:
    """Return the names of an object and its class, without those of the standard library."""
    classes = (cls for cls in type(thing).__mro__ if cls.__module__.startswith("wsmux"))
    names = {*vars(thing), *(name for cls in classes for name in vars(cls))}
    return {name for name in names if not name.startswith("_")}


def test_the_package_exports_what_it_promises() -> None:
    assert set(wsmux.__all__) == ALL
    assert all(hasattr(wsmux, name) for name in ALL)
    assert wsmux.__version__


def test_the_flask_module_exports_one_class() -> None:
    assert wsmux.flask.__all__ == ["Mux"]
    names = {name for name in vars(wsmux.flask.Mux) if not name.startswith("_")}
    assert names == {"init_app", "route", "stream_route"}


def test_a_connection_offers_what_it_promises() -> None:
    client, server = wsmux.pair()
    with client, server:
        assert public_names(client) == CONNECTION


def test_a_stream_offers_what_it_promises_and_is_a_raw_file() -> None:
    client, server = wsmux.pair()
    with client, server, client.open_stream() as stream:
        assert public_names(stream) == STREAM
        assert isinstance(stream, io.RawIOBase)


def test_a_server_offers_what_it_promises() -> None:
    with wsmux.serve(lambda connection: None) as server:
        assert public_names(server) - FOR_FORK == SERVER


def test_stats_name_their_numbers() -> None:
    assert set(wsmux.ConnectionStats._fields) == {
        "bytes_received",
        "bytes_sent",
        "queued_bytes",
        "rtt",
        "streams",
        "streams_accepted",
        "streams_opened",
        "streams_refused",
        "unaccepted",
        "unread_bytes",
        "waiting_for_room",
        "waiting_readers",
        "waiting_writers",
    }
