"""Pin the names that users may rely on; adding or losing one is a decision, not an accident."""

from __future__ import annotations

import io

import wsmux
import wsmux.durable
import wsmux.flask
import wsmux.testing

ALL = {
    "BymuxState",
    "Cause",
    "ConcurrencyError",
    "Config",
    "Connection",
    "ConnectionClosed",
    "ConnectionClosedError",
    "ConnectionClosedOK",
    "ConnectionStats",
    "Finding",
    "FileOffsets",
    "FlowControlError",
    "ForkedError",
    "FrameError",
    "HalfState",
    "HalfStatus",
    "HandshakeError",
    "Journal",
    "LiveSocket",
    "LocalProtocolError",
    "NoThreadError",
    "ProtocolError",
    "Recording",
    "RemoteProtocolError",
    "Request",
    "Resume",
    "ResumeLost",
    "Role",
    "Server",
    "Stall",
    "StallWatch",
    "Stream",
    "StreamError",
    "StreamIdError",
    "StreamRefused",
    "StreamReset",
    "StreamState",
    "StreamStats",
    "StreamWriteClosed",
    "StreamsExhausted",
    "UserLimits",
    "Wait",
    "WriteTimeout",
    "WsmuxError",
    "bridge",
    "connect",
    "deadline",
    "from_socket",
    "pair",
    "serve",
}

CONNECTION = {
    "abort",
    "accept_stream",
    "begin_close",
    "close",
    "close_code",
    "close_reason",
    "closed",
    "config",
    "dump_recording",
    "error",
    "explain",
    "go_away",
    "initial_streams",
    "name",
    "open_stream",
    "ping",
    "protocol",
    "reconnect_now",
    "request",
    "resumable",
    "role",
    "stats",
    "stream_stats",
    "user",
    "wait_closed",
    "wait_drained",
}

STREAM = {
    "as_socket",
    "close",
    "close_read",
    "close_write",
    "closed",
    "connection",
    "fill",
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

DURABLE = {
    "DurableError",
    "DurableHandler",
    "DurableInterrupted",
    "DurableLost",
    "DurableRefused",
    "DurableStream",
    "FileOffsets",
    "Journal",
    "JournalDamaged",
    "JournalError",
    "JournalFull",
    "Offsets",
    "ReceivedStream",
    "RedisOffsets",
    "Refusal",
    "SqlOffsets",
}

SERVER = {"connections", "host", "port", "serve_forever", "shutdown", "stopping", "url"}

TESTING = {
    "Counters",
    "End",
    "FaultProxy",
    "Faults",
    "FaultyPair",
    "Held",
    "LeakError",
    "LockOrder",
    "LockOrderError",
    "MuxEnd",
    "Network",
    "faulty_pair",
    "hang_bound",
    "held",
    "leaks",
    "nothing_left",
    "restless",
}

FAULTY_NET = {
    "chance",
    "connections",
    "corrupt_after",
    "counters",
    "cut",
    "cut_after",
    "cutting",
    "freeze",
    "half_close",
    "lose",
    "reset",
    "seed",
    "set",
    "thaw",
}
PROXY = {"accepted", "close", "host", "port", "refused", "refusing", "target", "url"}
NETWORK = {"join", "now", "run", "sleep"}

# What a server offers the hooks that run after a fork, and before a sub-interpreter ends.
FOR_HOOKS = {"forked", "leave"}


def public_names(thing: object) -> set[str]:
    """Return the names of an object and its class, without those of the standard library."""
    classes = (cls for cls in type(thing).__mro__ if cls.__module__.startswith("wsmux"))
    names = {*vars(thing), *(name for cls in classes for name in vars(cls))}
    return {name for name in names if not name.startswith("_")}


def test_the_package_exports_what_it_promises() -> None:
    assert set(wsmux.__all__) == ALL
    assert all(hasattr(wsmux, name) for name in ALL)
    assert wsmux.__version__


def test_the_flask_module_exports_what_it_promises() -> None:
    assert wsmux.flask.__all__ == ["Bus", "Mux", "debug_blueprint", "script_blueprint", "uploads"]
    names = {name for name in vars(wsmux.flask.Mux) if not name.startswith("_")}
    assert names == {
        "around",
        "connections",
        "drain_on_sigterm",
        "durable_route",
        "init_app",
        "route",
        "shutdown",
        "stopping",
        "stream_route",
    }


def test_the_durable_module_exports_what_it_promises() -> None:
    assert set(wsmux.durable.__all__) == DURABLE
    assert all(hasattr(wsmux.durable, name) for name in DURABLE)
    names = {name for name in vars(wsmux.durable.DurableStream) if not name.startswith("_")}
    assert names == {
        *("begin", "close", "closed", "committed", "flush", "offset", "suspend"),
        *("wait_committed", "writable", "write"),
    }


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
        assert public_names(server) - FOR_HOOKS == SERVER


def test_the_test_kit_exports_what_it_promises() -> None:
    assert set(wsmux.testing.__all__) == TESTING
    assert all(hasattr(wsmux.testing, name) for name in TESTING)


def test_a_proxy_and_a_network_offer_the_same_faults() -> None:
    with wsmux.testing.FaultProxy(1) as proxy:
        assert public_names(proxy) == FAULTY_NET | PROXY
    assert public_names(wsmux.testing.Network()) == FAULTY_NET | NETWORK


def test_stats_name_their_numbers() -> None:
    assert set(wsmux.ConnectionStats._fields) == {
        "bytes_received",
        "bytes_sent",
        "detached",
        "queued_bytes",
        "reconnects",
        "rtt",
        "streams",
        "streams_accepted",
        "streams_opened",
        "streams_refused",
        "unaccepted",
        "unacknowledged_bytes",
        "unread_bytes",
        "waiting_for_room",
        "waiting_readers",
        "waiting_writers",
    }
