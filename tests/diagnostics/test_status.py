"""Describe connections in one document, bounded, and look up those that somebody named."""

from __future__ import annotations

import gc
import json
import os
import time
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest

import wsmux
from wsmux.diagnostics import status as live
from wsmux.diagnostics.status import Connections, Watched, document

from ..helpers.carriers import Ends
from ..helpers.inside import record_of
from ..helpers.joined_streams import fill, open_pair
from ..helpers.waiting import wait_for


@pytest.fixture
def ends() -> Iterator[Ends]:
    client, server = wsmux.pair()
    with client, server:
        yield Ends(client, server)


def told_of(named: Connections, after: float = live.STALLED_AFTER) -> dict[str, Any]:
    """Return the document of these connections as its reader gets it."""
    told: dict[str, Any] = json.loads(json.dumps(document(Watched(named).all(), after)))
    return told


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
