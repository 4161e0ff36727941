"""Routes of a Flask application resume connections; a server that does not is told apart."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from flask import Flask

import wsmux
from wsmux.flask import Mux
from wsmux.testing import FaultProxy

from ..helpers.resumed import cut_off, draining
from ..helpers.timeouts import WAIT
from ..helpers.waiting import wait_for
from ..helpers.werkzeug_server import serving


@contextmanager
def site(resume: bool = True) -> Iterator[tuple[Mux, FaultProxy]]:
    """Serve an application with an echo, behind a proxy."""
    app = Flask("resumed")
    mux = Mux(app, resume=resume)

    @mux.stream_route("/echo")
    def echo(stream: wsmux.Stream) -> None:
        while data := stream.read(65536):
            stream.write(data)

    with serving(app) as port, FaultProxy(port) as proxy:
        try:
            yield mux, proxy
        finally:
            mux.shutdown(0)


def test_a_stream_of_a_route_goes_on_over_another_request() -> None:
    with (
        site() as (mux, proxy),
        wsmux.connect(f"{proxy.url}/echo", resume=True) as connection,
        connection.open_stream() as stream,
    ):
        assert connection.resumable
        for count in range(1, 4):
            stream.write(b"before")
            assert stream.read(6) == b"before"
            proxy.reset()
            stream.write(b"behind")
            assert stream.read(6) == b"behind"
            wait_for(lambda count=count: connection.stats().reconnects == count)
        assert len(mux.connections) == 1
        assert mux.connections[0].stats().reconnects == 3


def test_a_request_ends_with_the_socket_that_came_over_it() -> None:
    """Only the first request, which serves the connection, and the latest have threads."""
    before = set(threading.enumerate())

    def requests() -> int:
        started = set(threading.enumerate()) - before
        return sum("process_request_thread" in each.name for each in started)

    with site() as (_, proxy), wsmux.connect(f"{proxy.url}/echo", resume=True) as connection:
        wait_for(lambda: requests() == 1)
        for count in range(1, 4):
            proxy.reset()
            wait_for(lambda count=count: connection.stats().reconnects == count)
            wait_for(lambda: requests() == 2)
    wait_for(lambda: requests() == 0)


def test_a_shutdown_gives_up_what_waits_for_its_client() -> None:
    with site() as (mux, proxy), wsmux.connect(f"{proxy.url}/echo", resume=True) as connection:
        wait_for(lambda: mux.connections)
        (ours,) = mux.connections
        cut_off(proxy, ours)
        mux.shutdown(WAIT)
        assert isinstance(ours.error, wsmux.ResumeLost)
        assert "the server shuts down" in str(ours.error)
        connection.abort()


def test_a_client_that_returns_to_a_server_that_drains_learns_it_at_once() -> None:
    """Not when the time to drain is over, nor the grace."""
    with (
        site() as (mux, proxy),
        draining(f"{proxy.url}/echo", mux.shutdown) as connection,
    ):
        proxy.reset()
        assert connection.wait_closed(WAIT)
        assert isinstance(connection.error, wsmux.ResumeLost)
        assert connection.error.why == "the server shuts down"


@pytest.mark.parametrize("resume", [True, False])
def test_a_client_that_begins_at_a_server_that_drains_is_refused_before_the_upgrade(
    resume: bool,
) -> None:
    """So that a balancer, or the client, tries another worker."""
    with site() as (mux, proxy), draining(f"{proxy.url}/echo", mux.shutdown):
        with pytest.raises(wsmux.HandshakeError, match="the server shuts down") as caught:
            wsmux.connect(f"{proxy.url}/echo", timeout=WAIT, resume=resume)
        assert caught.value.status == 503


def test_a_route_that_does_not_resume_gives_an_ordinary_connection() -> None:
    with (
        site(resume=False) as (_, proxy),
        wsmux.connect(f"{proxy.url}/echo", resume=True) as connection,
    ):
        assert not connection.resumable
        proxy.reset()
        assert connection.wait_closed(WAIT)
        with pytest.raises(wsmux.ConnectionClosedError):
            connection.open_stream()
