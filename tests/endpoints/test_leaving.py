"""A server that shuts down tells clients that return to it that their connections are lost."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import pytest

import wsmux
from wsmux.testing import FaultProxy

from ..helpers.raw_peer import in_thread
from ..helpers.resumed import cut_off, draining
from ..helpers.timeouts import WAIT
from ..helpers.waiting import wait_for

# Nothing here waits for it.
GRACE = wsmux.Resume(grace=1000.0)


def echo(stream: wsmux.Stream) -> None:
    while data := stream.read(65536):
        stream.write(data)


@contextmanager
def site(
    transport: Literal["websocket", "tcp"] = "websocket", **options: Any
) -> Iterator[tuple[wsmux.Server, FaultProxy, str]]:
    """Serve an echo that resumes, behind a proxy; yield the URL to connect to, too."""
    options = {"resume": GRACE, **options}
    with (
        wsmux.serve(stream_handler=echo, transport=transport, **options) as server,
        FaultProxy(server.port) as proxy,
    ):
        try:
            yield server, proxy, proxy.url.replace("ws:", f"{server.url.partition(':')[0]}:")
        finally:
            server.shutdown(0)


def check_lost(connection: wsmux.Connection) -> None:
    assert connection.wait_closed(WAIT)
    assert isinstance(connection.error, wsmux.ResumeLost)
    assert connection.error.why == "the server shuts down"


@pytest.mark.parametrize("transport", ["websocket", "tcp"])
def test_a_client_that_was_cut_before_learns_it_at_once(
    transport: Literal["websocket", "tcp"],
) -> None:
    with (
        site(transport) as (server, proxy, url),
        wsmux.connect(url, timeout=WAIT, resume=GRACE) as connection,
    ):
        wait_for(lambda: server.connections)
        cut_off(proxy, connection, *server.connections)
        shutdown = in_thread(server.shutdown, 10 * WAIT)
        wait_for(lambda: server.stopping)
        proxy.refusing = False
        check_lost(connection)
        shutdown.result(WAIT)


@pytest.mark.parametrize("transport", ["websocket", "tcp"])
def test_a_client_that_is_cut_meanwhile_learns_it_at_once(
    transport: Literal["websocket", "tcp"],
) -> None:
    with (
        site(transport) as (server, proxy, url),
        draining(url, server.shutdown, resume=GRACE) as connection,
    ):
        proxy.reset()
        check_lost(connection)


@pytest.mark.parametrize("resume", [True, False])
def test_a_client_that_begins_meanwhile_is_refused_before_the_upgrade(resume: bool) -> None:
    with site() as (server, _, url), draining(url, server.shutdown, resume=GRACE):
        with pytest.raises(wsmux.HandshakeError, match="the server shuts down") as caught:
            wsmux.connect(server.url, timeout=WAIT, resume=resume)
        assert caught.value.status == 503


@pytest.mark.parametrize("resume", [True, False])
def test_a_client_that_begins_meanwhile_over_tcp_is_let_go(resume: bool) -> None:
    with (
        site("tcp") as (server, _, url),
        draining(url, server.shutdown, resume=GRACE),
        pytest.raises((wsmux.ConnectionClosed, wsmux.HandshakeError, OSError)),
    ):
        wsmux.connect(server.url, timeout=WAIT, resume=resume).ping(WAIT)


def test_nobody_waits_long_for_a_client_that_does_not_return(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("wsmux.server.FAREWELL", 0.01)
    with site() as (server, proxy, url):
        connection = wsmux.connect(url, timeout=WAIT, resume=GRACE)
        wait_for(lambda: server.connections)
        cut_off(proxy, connection, *server.connections)
        connection.abort()
        in_thread(server.shutdown, None).result(WAIT)


def test_one_who_has_no_time_waits_for_nobody() -> None:
    with site() as (server, proxy, url):
        connection = wsmux.connect(url, timeout=WAIT, resume=GRACE)
        wait_for(lambda: server.connections)
        cut_off(proxy, connection, *server.connections)
        server.shutdown(0)
        connection.abort()


@pytest.mark.parametrize("options", [{"resume": False}, {"reuse_port": True, "resume": False}])
def test_a_port_at_which_nobody_can_return_closes_first(options: dict[str, Any]) -> None:
    with site(**options) as (server, _, _), draining(server.url, server.shutdown, resume=GRACE):
        wait_for(lambda: refuses(server.port))


def refuses(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), WAIT).close()
    except ConnectionError:
        return True
    return False
