"""Routes count the connections and streams of each user, over all routes of a ``Mux``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from typing import Any

import pytest
from flask import Flask

import wsmux
from wsmux.flask import Mux
from wsmux.testing import FaultProxy

from ..helpers.scripted import WAIT
from ..helpers.waiting import wait_for
from ..helpers.werkzeug_server import serving

UPGRADE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
    "Sec-WebSocket-Protocol": "wsmux.v1",
    "X-User": "ann",
}


@contextmanager
def site(limits: wsmux.UserLimits, **options: Any) -> Iterator[tuple[Mux, FaultProxy]]:
    """Serve two routes to users that are named by a header, behind a proxy."""
    app = Flask("app")
    mux = Mux(
        app, authorize=lambda request: request.headers["x-user"], user_limits=limits, **options
    )

    @mux.stream_route("/echo")
    def echo(stream: wsmux.Stream) -> None:
        while data := stream.read(65536):
            stream.write(data)

    mux.route("/held")(wsmux.Connection.wait_closed)
    with serving(app) as port, FaultProxy(port) as proxy:
        try:
            yield mux, proxy
        finally:
            mux.shutdown(0)


def connect(url: str, user: str = "ann", **options: Any) -> wsmux.Connection:
    return wsmux.connect(url, timeout=WAIT, headers={"X-User": user}, **options)


def test_all_routes_count_together_and_users_apart() -> None:
    with (
        site(wsmux.UserLimits(connections=2)) as (mux, proxy),
        connect(f"{proxy.url}/echo"),
        connect(f"{proxy.url}/held"),
        connect(f"{proxy.url}/held", "bob"),
    ):
        for path in ("echo", "held"):
            with pytest.raises(wsmux.HandshakeError, match="2 connections of this user") as caught:
                connect(f"{proxy.url}/{path}")
            assert (caught.value.status, caught.value.retry_after) == (429, 5)
        wait_for(lambda: len(mux.connections) == 3)


def test_a_connection_that_has_ended_frees_its_place() -> None:
    with site(wsmux.UserLimits(connections=1)) as (mux, proxy):
        connect(f"{proxy.url}/held").close()
        wait_for(lambda: accepted(f"{proxy.url}/echo"))


def accepted(url: str) -> bool:
    try:
        connect(url).close()
    except wsmux.HandshakeError:
        return False
    return True


def test_who_comes_too_often_is_told_when_to_come_again() -> None:
    with site(wsmux.UserLimits(connects_per_minute=1)) as (_, proxy):
        connect(f"{proxy.url}/echo").close()
        asking = HTTPConnection("127.0.0.1", proxy.port, timeout=WAIT)
        asking.request("GET", "/echo", headers=UPGRADE)
        answer = asking.getresponse()
        assert answer.status == 429
        assert 1 <= int(answer.headers["Retry-After"]) <= 60
        assert answer.read().startswith(b"more than 1 connections in a minute; try again in ")
        asking.close()


def test_a_stream_too_many_is_refused_to_its_opener() -> None:
    with (
        site(wsmux.UserLimits(streams_per_minute=1)) as (_, proxy),
        connect(f"{proxy.url}/echo") as connection,
        connection.open_stream() as stream,
    ):
        stream.write(b"hello")
        assert stream.read(5) == b"hello"
        beyond = connection.open_stream()
        beyond.timeout = WAIT
        with pytest.raises(wsmux.StreamRefused):
            beyond.read(1)
        stream.write(b"again")
        assert stream.read(5) == b"again"


def test_a_resumed_connection_needs_no_second_place() -> None:
    with (
        site(wsmux.UserLimits(connections=1), resume=True) as (mux, proxy),
        connect(f"{proxy.url}/echo", resume=True) as connection,
        connection.open_stream() as stream,
    ):
        for count in range(1, 4):
            stream.write(b"hello")
            assert stream.read(5) == b"hello"
            proxy.reset()
            wait_for(lambda count=count: connection.stats().reconnects == count)
        assert len(mux.connections) == 1
        for resume in (True, False):
            with pytest.raises(wsmux.HandshakeError, match="of this user are open") as caught:
                connect(f"{proxy.url}/echo", resume=resume)
            assert caught.value.status == 429
        connect(f"{proxy.url}/echo", "bob", resume=True).close()


def test_a_resumed_connection_is_not_one_more_in_a_minute() -> None:
    with (
        site(wsmux.UserLimits(connects_per_minute=1), resume=True) as (_, proxy),
        connect(f"{proxy.url}/echo", resume=True) as connection,
    ):
        for count in range(1, 4):
            proxy.reset()
            wait_for(lambda count=count: connection.stats().reconnects == count)
        for resume in (True, False):
            with pytest.raises(wsmux.HandshakeError, match="1 connections in a minute") as caught:
                connect(f"{proxy.url}/echo", resume=resume)
            assert caught.value.status == 429


def test_a_route_whose_users_have_no_names_is_an_error() -> None:
    mux = Mux(user_limits=wsmux.UserLimits(connections=1))
    mux.route("/", authorize=lambda request: "ann")(wsmux.Connection.wait_closed)
    for route in (mux.route, mux.stream_route):
        with pytest.raises(ValueError, match="^the route /open of a Mux with user_limits= needs"):
            route("/open")(wsmux.Connection.wait_closed)
