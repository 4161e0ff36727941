"""Describe connections and sessions in one document, bounded, and look up those named."""

from __future__ import annotations

import gc
import json
import os
import threading
import time
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest

import wsmux
from wsmux import rpc
from wsmux.diagnostics import status as live
from wsmux.diagnostics.status import (
    Connections,
    Sources,
    Watched,
    document,
    fitting_document,
    sessions_of,
)
from wsmux.rpc.session.session_info import SessionInfo

from ..helpers.carriers import Ends
from ..helpers.inside import record_of
from ..helpers.joined_streams import fill, open_pair
from ..helpers.rpc.four_kinds import Held, begun
from ..helpers.rpc.raw_river import RawRiver
from ..helpers.timeouts import WAIT
from ..helpers.waiting import wait_for


@pytest.fixture
def ends() -> Iterator[Ends]:
    client, server = wsmux.pair()
    with client, server:
        yield Ends(client, server)


def told_of(named: Sources, after: float = live.STALLED_AFTER) -> dict[str, Any]:
    """Return the document of these connections and sessions as its reader gets it."""
    watched = Watched(named, sessions=True)
    told: dict[str, Any] = json.loads(json.dumps(document(watched.sources(), after)))
    return told


def session(number: int, **fields: Any) -> SessionInfo:
    """Return a snapshot of a session that does nothing, but for some fields."""
    told = {"role": "server", "server_id": "SERVER", "state": "connected", "ends_in": None}
    plain = dict.fromkeys(SessionInfo._fields, 0) | {"client_id": "c", "session_id": "a secret"}
    return SessionInfo(**plain | told | {"number": number} | fields)  # type: ignore[arg-type]


class Listed:
    """Have sessions, as servers and clients of River do."""

    def __init__(self, *sessions: SessionInfo) -> None:
        self._sessions = sessions

    def list_sessions(self) -> list[SessionInfo]:
        return [*self._sessions]


# The document


def test_no_connection_is_told_as_none() -> None:
    told = told_of([])
    assert told["version"] == live.VERSION
    assert told["connections"] == []
    assert told["connections_left_out"] == told["totals"]["streams"] == 0


def test_what_has_not_lasted_is_not_stalled(ends: Ends) -> None:
    near, far = open_pair(*ends)
    fill(near)
    [told] = told_of(ends.server, after=3600.0)["connections"]
    assert told["stalled"] is None
    assert not any(finding["stalled"] for finding in told["findings"])
    assert far.id == near.id


def test_who_asked_is_told_without_the_query_and_the_headers() -> None:
    with (
        wsmux.serve(lambda connection: connection.wait_closed()) as server,
        wsmux.connect(f"{server.url}/a?secret=1", headers=["X-Secret: 2"]),
    ):
        wait_for(lambda: server.connections)
        told = told_of(server)
    [connection] = told["connections"]
    assert connection["path"] == "/a"
    assert connection["remote_address"].startswith("127.0.0.1")
    assert "ecret" not in json.dumps(told)


def test_a_long_path_is_cut_and_what_does_not_print_is_escaped() -> None:
    with (
        wsmux.serve(lambda connection: connection.wait_closed()) as server,
        wsmux.connect(f"{server.url}/%1b[2J{'x' * 1000}"),
    ):
        wait_for(lambda: server.connections)
        [told] = told_of(server)["connections"]
    assert told["path"].startswith("/\\x1b[2Jxxx")
    assert len(told["path"]) < 2 * live.MAX_TEXT


def test_streams_beyond_the_most_are_left_out_but_those_that_wait(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "MAX_STREAMS", 3)
    streams = [open_pair(*ends) for _ in range(6)]
    streams[5].near.write(b"x")
    wait_for(lambda: record_of(streams[5].far).buffer.size == 1)
    [told] = told_of(ends.server)["connections"]
    assert len(told["shown_streams"]) == 3
    assert told["streams_left_out"] == 3
    assert str(streams[5].near.id) in {stream["id"] for stream in told["shown_streams"]}


def test_findings_beyond_the_most_are_counted(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "MAX_FINDINGS", 2)
    opened = [ends.client.open_stream() for _ in range(5)]
    wait_for(lambda: ends.server.stats().unaccepted == len(opened))
    [told] = told_of(ends.server)["connections"]
    assert (len(told["findings"]), told["findings_left_out"]) == (2, 3)


def test_connections_beyond_the_most_are_counted_in_the_sums(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "MAX_CONNECTIONS", 1)
    streams = open_pair(*ends)
    streams.near.write(b"x")
    wait_for(lambda: ends.server.stats().unread_bytes == 1)
    told = told_of([*ends])
    assert [each["name"] for each in told["connections"]] == [ends.server.name]
    assert told["connections_left_out"] == 1
    assert told["totals"]["streams"] == 2


@pytest.mark.parametrize("size", [1_500, 8_000, 10**6])
def test_a_document_fits_and_still_tells_what_stalls(ends: Ends, size: int) -> None:
    streams = [open_pair(*ends) for _ in range(5)]
    held = fill(streams[3].near)
    wait_for(lambda: ends.server.stats().unread_bytes == held)
    wait_for(lambda: ends.server.explain()[0].seconds > 0)
    sources = [ends.server, Listed(*map(session, range(100)))]
    text = fitting_document(sources, 1e-9, size)
    assert len(text) <= size
    told = json.loads(text)
    assert len(told["sessions"]) + told["sessions_left_out"] == 100
    assert len(told["connections"]) + told["connections_left_out"] == 1
    assert told["totals"]["unread_bytes"] == held
    assert (len(told["connections"]), len(told["sessions"])) == {
        1_500: (0, 0),
        8_000: (1, 10),
        10**6: (1, 20),
    }[size]
    for each in told["connections"]:
        assert each["stalled"] > 0


def test_the_document_says_whose_and_of_when_it_is() -> None:
    told = told_of([], after=7.0)
    assert (told["version"], told["process"]) == (live.VERSION, os.getpid())
    assert told["time"] == pytest.approx(time.time(), abs=60.0)
    assert told["clock"] <= time.monotonic()
    assert told["stalled_after"] == 7.0


def test_every_sum_is_that_of_the_connections(ends: Ends) -> None:
    near, far = open_pair(*ends)
    near.write(b"x" * 100)
    wait_for(lambda: record_of(far).buffer.size == 100)
    told = told_of([*ends])
    for name in live.TOTALS:
        assert told["totals"][name] == sum(each[name] for each in told["connections"])
    assert told["totals"]["unread_bytes"] == 100


def test_connections_stand_in_the_order_of_their_age_and_not_of_their_names() -> None:
    pairs = [wsmux.pair() for _ in range(6)]  # so that the numbers are of one digit and of two
    ends = [end for pair in pairs for end in pair]
    try:
        names = [each["name"] for each in told_of(reversed(ends))["connections"]]
        numbers = [int(name.rpartition("-")[2]) for name in names]
        assert numbers == sorted(numbers)
        assert {*names} == {end.name for end in ends}
    finally:
        for end in ends:
            end.abort()


def test_a_connection_that_has_ended_is_not_told(ends: Ends) -> None:
    ends.client.abort()
    wait_for(lambda: ends.server.closed)
    assert told_of([*ends])["connections"] == []


# Sessions in the document


def test_no_session_is_told_as_none(ends: Ends) -> None:
    told = told_of([*ends])
    assert (told["sessions"], told["sessions_left_out"]) == ([], 0)
    assert told["session_totals"] == dict.fromkeys(live.SESSION_TOTALS, 0)


def test_both_ends_of_a_session_are_told_without_its_id() -> None:
    held = Held()
    with (
        rpc.serve([held.service], server_id="there") as server,
        rpc.connect(server.url, client_id="c", server_id="there") as client,
    ):
        call = begun(client, rpc.Kind.STREAM)
        assert held.part is not None  # its handler runs
        told = told_of([server, client])
        secret = client.list_sessions()[0].session_id
        held.go.set()
        call.cancel()
    here, there = told["sessions"]
    assert (here["role"], there["role"]) == ("client", "server")
    for each in (here, there):
        assert (each["client_id"], each["server_id"]) == ("c", "there")
        assert (each["state"], each["connections"], each["ends_in"]) == ("connected", 1, None)
        assert each["age"] >= each["state_age"] >= 0
        assert each["calls"] == 1
    assert (here["handlers"], there["handlers"]) == (0, 1)
    assert told["session_totals"]["connected"] == told["session_totals"]["calls"] == 2
    assert secret not in json.dumps(told)


def test_no_field_of_a_session_is_shown_that_is_not_named() -> None:
    told = told_of(Listed(session(1)))["sessions"]
    assert [set(each) for each in told] == [set(live.SESSION_FIELDS)]
    assert "session_id" not in live.SESSION_FIELDS


def test_ids_of_a_client_and_of_a_server_are_cut_and_escaped() -> None:
    long = "\x1b[2J" + "x" * 1000
    (told,) = told_of(Listed(session(1, client_id=long, server_id=long)))["sessions"]
    for name in ("client_id", "server_id"):
        assert told[name].startswith("\\x1b[2Jxxx")
        assert len(told[name]) < 2 * live.MAX_TEXT


def test_sessions_beyond_the_most_are_left_out_but_those_that_hold_most(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(live, "MAX_SESSIONS", 3)
    told = told_of(
        Listed(
            session(5),
            session(4, unread_bytes=20, unread_messages=1),
            session(3, unacknowledged_bytes=30, unacknowledged_messages=2),
            session(2, unread_bytes=5, unacknowledged_bytes=5),
            session(1, waiting_calls=1, calls=1),
        )
    )
    assert [each["number"] for each in told["sessions"]] == [1, 3, 4]  # by age
    assert told["sessions_left_out"] == 2
    assert told["session_totals"] == {
        "connected": 0,
        "calls": 1,
        "handlers": 0,
        "waiting_calls": 1,
        "unacknowledged_messages": 2,
        "unacknowledged_bytes": 35,
        "unread_messages": 1,
        "unread_bytes": 25,
    }


def test_the_document_of_300_sessions_stays_small() -> None:
    options = rpc.Options(session_disconnect_grace=10 * WAIT)
    with rpc.serve([rpc.Service("test")], transport="tcp", options=options) as server:
        for number in range(300):
            own = f"client-{number}"
            with RawRiver.dial(server.port, "msgpack", websocket=False, own=own) as client:
                client.attach(f"the secret of {number}")
        wait_for(lambda: not any(each.connected for each in server.list_sessions()))
        told = told_of(server)
    assert (len(told["sessions"]), told["sessions_left_out"]) == (live.MAX_SESSIONS, 200)
    assert {each["state"] for each in told["sessions"]} == {"waiting_for_reconnect"}
    text = json.dumps(told)
    assert len(text) < 100 * 1024
    assert "secret" not in text


def test_sessions_are_told_while_handlers_run_and_a_writer_waits_for_room() -> None:
    held, entered = Held(), threading.Event()

    @held.service.subscription()
    def floods(ctx: rpc.Context, init: Any, responses: rpc.Writable[str]) -> None:
        entered.set()
        for _ in range(4):
            responses.write("x")

    options = rpc.Options(send_buffer_messages=2)
    with rpc.serve([held.service], transport="tcp", options=options) as server:
        with RawRiver.dial(server.port, "msgpack", websocket=False) as client:
            client.attach("a session")  # and acknowledges nothing
            client.open("stream", "floods", None, 8)
            assert entered.wait(WAIT)
            wait_for(lambda: server.list_sessions()[0].unacknowledged_messages >= 2)
            (told,) = told_of(server)["sessions"]
        assert (told["handlers"], told["calls"]) == (1, 1)
        assert told["unacknowledged_messages"] >= 2


# Which connections


def test_a_server_is_watched_until_it_has_shut_down() -> None:
    with wsmux.serve(lambda connection: connection.wait_closed()) as server:
        watched = Watched(server)
        assert watched.living() == []
        with wsmux.connect(server.url):
            wait_for(lambda: watched.living() == server.connections != [])
        wait_for(lambda: watched.living() == [])
    assert watched.living() is None


def test_a_server_is_not_kept_alive() -> None:
    class Server:
        connections = ()
        stopping = False

    server = Server()
    watched = Watched(server)
    assert watched.living() == []
    del server
    gc.collect()
    assert watched.living() is None


def test_servers_in_a_collection_are_asked_each_time_and_not_kept_alive(ends: Ends) -> None:
    class Server:
        connections: ClassVar[list[wsmux.Connection]] = []
        stopping = False

    one, other = Server(), Server()
    watched = Watched([one, ends.client, other])
    assert watched.living() == [ends.client]
    one.connections = [ends.server]  # type: ignore[misc]
    assert watched.living() == [ends.client, ends.server]
    ends.client.abort()
    wait_for(lambda: ends.server.closed)
    assert watched.living() == []
    other.stopping = True
    assert watched.living() == []
    del one
    gc.collect()
    assert watched.living() is None


def test_a_function_may_return_servers(ends: Ends) -> None:
    class Server:
        connections = (ends.client,)
        stopping = False

    server = Server()
    assert Watched(lambda: [server, ends.client]).living() == [ends.client]


def test_a_function_is_asked_each_time(ends: Ends) -> None:
    known: list[wsmux.Connection] = []
    watched = Watched(lambda: known)
    assert watched.living() == []
    known.append(ends.client)
    assert watched.living() == [ends.client]


@pytest.mark.parametrize("several", [False, True])
def test_connections_are_known_until_they_end(ends: Ends, several: bool) -> None:
    named: Connections = [ends.client] if several else ends.client
    watched = Watched(named)
    assert watched.living() == [ends.client]
    ends.client.abort()
    assert watched.living() is None


def test_anything_else_is_refused() -> None:
    with pytest.raises(TypeError, match="expected a connection, a Server or a Mux, not 'ws://"):
        Watched(["ws://127.0.0.1/"])  # type: ignore[list-item]


def test_all_are_those_that_have_ended_too(ends: Ends) -> None:
    watched = Watched([*ends])
    ends.client.abort()
    wait_for(lambda: ends.server.closed)
    assert watched.all() == [*ends]
    assert watched.living() is None


def test_a_connection_that_is_named_twice_is_one(ends: Ends) -> None:
    class Server:
        connections = (ends.client, ends.server)
        stopping = False

    server = Server()
    assert Watched([ends.server, server, ends.server]).all() == [ends.server, ends.client]


@pytest.mark.parametrize("named", [wsmux.Server, [wsmux.Server], 5, None], ids=str)
def test_a_class_and_what_is_no_collection_are_refused(named: Any) -> None:
    with pytest.raises(TypeError, match="^expected a connection"):
        Watched(named)


def test_what_a_function_returns_is_checked_when_it_is_asked(ends: Ends) -> None:
    watched = Watched(lambda: ends.client)  # which is iterable, but yields streams
    with pytest.raises(TypeError, match="a function that returns one"):
        watched.all()


# Which sessions


@pytest.fixture
def server() -> Iterator[rpc.RpcServer]:
    with rpc.serve([rpc.Service("test")]) as server:
        yield server


def test_servers_handlers_and_clients_have_sessions_and_no_connections(
    server: rpc.RpcServer,
) -> None:
    with rpc.connect(server.url) as client:
        client.wait_connected(WAIT)
        for named in (server, server.handler, client):
            for sources in (named, [named], lambda named=named: [named]):
                watched = Watched(sources, sessions=True)
                assert watched.all() == []
                assert len(sessions_of(watched.sources())) == 1


def test_a_session_that_is_named_twice_is_one(server: rpc.RpcServer) -> None:
    with rpc.connect(server.url) as client:
        client.wait_connected(WAIT)
        assert len(told_of([server, server.handler, client, client])["sessions"]) == 2


def test_what_has_connections_and_sessions_is_told_with_both(ends: Ends) -> None:
    class Both(Listed):
        connections = (ends.client,)
        stopping = False

    both = Both(session(1))
    told = told_of(both)
    assert [each["name"] for each in told["connections"]] == [ends.client.name]
    assert [each["number"] for each in told["sessions"]] == [1]


def test_what_has_sessions_is_not_kept_alive() -> None:
    listed = Listed(session(1))
    watched = Watched([listed], sessions=True)
    assert sessions_of(watched.sources()) == [session(1)]
    del listed
    gc.collect()
    assert watched.sources() == []


def test_sessions_are_refused_where_connections_are_wanted(server: rpc.RpcServer) -> None:
    with rpc.connect(server.url) as client:
        for named in (server, server.handler, client):
            for wrong in (named, [named]):
                with pytest.raises(
                    TypeError, match="^expected a connection, a Server or a Mux, no"
                ):
                    Watched(wrong)  # type: ignore[arg-type]
                with pytest.raises(
                    TypeError, match="^expected a connection, a Server or a Mux, no"
                ):
                    wsmux.StallWatch(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("named", [rpc.RpcServer, [rpc.Client], 5, None, ["ws://"]], ids=str)
def test_what_has_no_sessions_is_refused_with_what_may_have_some(named: Any) -> None:
    with pytest.raises(TypeError, match="a server or client of wsmux.rpc"):
        Watched(named, sessions=True)
