"""A client finds the next carrier of its connection: with what headers, how often, and how long."""

from __future__ import annotations

import logging
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import wsmux
from wsmux.endpoints import reconnector
from wsmux.runtime import logs
from wsmux.testing import FaultProxy
from wsmux.transport.resumable_transport import ResumableTransport

from ..helpers.certificates import Certificates
from ..helpers.inside import multiplexer_of
from ..helpers.raw_peer import in_thread, read_head, response
from ..helpers.timeouts import CONNECTS, WAIT
from ..helpers.waiting import wait_for

Headers = dict[str, str]


@contextmanager
def joined(grace: float = WAIT, **options: Any) -> Iterator[tuple[wsmux.Connection, FaultProxy]]:
    """Yield a resumable connection, and the proxy that it goes through."""
    served = {"token": options.pop("token", None)}
    resume = wsmux.Resume(grace=grace)
    with (
        wsmux.serve(lambda each: each.wait_closed(), resume=resume, **served) as server,
        FaultProxy(server.port) as proxy,
    ):
        connection = wsmux.connect(proxy.url, resume=resume, **options)
        try:
            yield connection, proxy
        finally:
            connection.abort()
            server.shutdown(0)


def test_it_connects_again_at_once_after_a_cut() -> None:
    with joined() as (connection, proxy):
        proxy.reset()
        wait_for(lambda: connection.stats().reconnects == 1)
        assert connection.ping(WAIT) > 0
        assert proxy.accepted == 2


def test_headers_are_asked_for_with_each_attempt() -> None:
    asked: list[Headers] = []

    def headers() -> Headers:
        asked.append({"Authorization": f"Bearer {'old' if len(asked) < 2 else 'new'}"})
        return asked[-1]

    accepted = {"old"}
    with joined(headers=headers, token=accepted.__contains__) as (connection, proxy):
        assert len(asked) == 1
        accepted.clear()
        accepted.add("new")
        proxy.reset()
        wait_for(lambda: connection.stats().reconnects == 1)
        assert [each["Authorization"] for each in asked] == [
            "Bearer old",
            "Bearer old",
            "Bearer new",
        ]


class OfGevent(BaseException):
    """As gevent's timeouts, which are no ``Exception``."""


@pytest.mark.parametrize("error", [KeyError, SystemExit, OfGevent])
def test_headers_that_cannot_be_had_for_a_moment_fail_one_attempt(
    error: type[BaseException],
) -> None:
    calls = 0

    def headers() -> Headers:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise error("the vault is sealed")
        return {}

    with joined(headers=headers) as (connection, proxy):
        proxy.reset()
        wait_for(lambda: connection.stats().reconnects == 1)
        assert calls == 3


def test_an_attempt_that_failed_is_told_while_the_next_one_waits() -> None:
    with joined() as (connection, proxy):
        proxy.refusing = True
        proxy.reset()
        wait_for(lambda: "the last attempt failed" in str(connection.explain()))
        proxy.refusing = False
        connection.reconnect_now()
        wait_for(lambda: connection.stats().reconnects == 1)


def test_a_server_that_says_when_to_come_again_is_not_asked_before() -> None:
    busy = False

    def headers() -> Headers:
        if busy:
            raise wsmux.HandshakeError("the server is busy", 503, 20.0)
        return {}

    with joined(headers=headers) as (connection, proxy):
        transport = multiplexer_of(connection).transport
        assert isinstance(transport, ResumableTransport)
        busy = True
        proxy.reset()
        wait_for(lambda: (transport.carriers.next_attempt() or 0) > time.monotonic() + 10)
        busy = False
        connection.reconnect_now()
        wait_for(lambda: connection.stats().reconnects == 1)


CALLS = {
    "read": lambda connection, stream: stream.read(1),
    "write": lambda connection, stream: stream.write(bytes(8 << 20)),
    "open": lambda connection, stream: [connection.open_stream() for _ in range(10_000)],
    "accept": lambda connection, stream: connection.accept_stream(),
    "ping": lambda connection, stream: connection.ping(),
}


@pytest.mark.parametrize("call", CALLS)
def test_after_the_grace_each_waiting_call_raises_how_much_was_acknowledged(call: str) -> None:
    with joined(grace=2.0) as (connection, proxy):
        stream = connection.open_stream(WAIT)
        stream.write(b"x")
        wait_for(lambda: not connection.stats().queued_bytes)
        proxy.refusing = True
        proxy.reset()
        waiting = in_thread(CALLS[call], connection, stream)
        with pytest.raises(wsmux.ResumeLost) as error:
            waiting.result(WAIT)
        assert "there was no connection for 2 s (the last attempt: " in str(error.value)
        assert error.value.acknowledged + error.value.unacknowledged > 0
        assert connection.closed
        assert connection.close_code == 1006


def test_another_server_does_not_know_the_session_and_that_is_final() -> None:
    with joined() as (connection, proxy), wsmux.serve(lambda each: None, resume=True) as other:
        proxy.target = ("127.0.0.1", other.port)
        proxy.reset()
        assert connection.wait_closed(WAIT)
        assert "this server does not have the session" in str(connection.error)


def test_a_server_that_does_not_resume_any_more_is_asked_until_the_grace_is_over() -> None:
    with joined(grace=CONNECTS) as (connection, proxy), wsmux.serve(lambda each: None) as other:
        proxy.target = ("127.0.0.1", other.port)
        proxy.reset()
        assert connection.wait_closed(WAIT)
        assert isinstance(connection.error, wsmux.ResumeLost)
        assert "no common subprotocol" in str(connection.error)


# An attempt that hangs

# Longer than any test waits for a thread to end.
PATIENT = wsmux.Config(handshake_timeout=10 * WAIT)


def searches(connection: wsmux.Connection) -> bool:
    """Return whether there is a thread that connects again."""
    name = f"{connection.name}-reconnect"
    return any(thread.name == name for thread in threading.enumerate())


def is_in(function: str) -> bool:
    """Return whether that thread is in a function of this name."""
    found = [each.ident for each in threading.enumerate() if each.name.endswith("-reconnect")]
    frames = sys._current_frames()
    frame = next((frames.get(ident or 0) for ident in found), None)
    while frame is not None and frame.f_code.co_name != function:
        frame = frame.f_back
    return frame is not None


def upgrade(sock: socket.socket) -> None:
    key = read_head(sock)[1]["sec-websocket-key"]
    chosen: dict[str, str | None] = {"Sec-WebSocket-Protocol": "wsmux.resume.v1+wsmux"}
    sock.sendall(response(key, chosen))


@pytest.mark.parametrize(
    ("stage", "where", "answer"),
    [
        ("TLS", "do_handshake", None),
        ("the request", "recv_line", None),
        ("HELLO", "receive_greeting", upgrade),
    ],
)
def test_an_abort_ends_an_attempt_that_gets_no_answer(
    stage: str,
    where: str,
    answer: Callable[[socket.socket], None] | None,
    certificates: Certificates,
) -> None:
    tls = stage == "TLS"
    with (
        wsmux.serve(
            lambda each: each.wait_closed(),
            resume=True,
            ssl_context=certificates.server if tls else None,
        ) as server,
        FaultProxy(server.port) as proxy,
        socket.create_server(("127.0.0.1", 0)) as silent,
    ):
        connection = wsmux.connect(
            proxy.url.replace("ws:", "wss:") if tls else proxy.url,
            resume=True,
            ssl_context=certificates.client if tls else None,
            config=PATIENT,
        )
        proxy.target = silent.getsockname()
        proxy.reset()
        silent.settimeout(WAIT)
        accepted, _ = silent.accept()
        with accepted:
            accepted.settimeout(WAIT)
            if answer is not None:
                answer(accepted)
            wait_for(lambda: is_in(where))
            connection.abort()
            wait_for(lambda: not searches(connection))
        server.shutdown(0)


def test_a_close_ends_an_attempt_once_its_time_is_up() -> None:
    with (
        joined(config=PATIENT) as (connection, proxy),
        socket.create_server(("127.0.0.1", 0)) as silent,
    ):
        proxy.target = silent.getsockname()
        proxy.reset()
        wait_for(lambda: searches(connection) and is_in("recv_line"))
        connection.close(0.05)
        wait_for(lambda: not searches(connection))


def test_an_attempt_that_gets_no_answer_is_left_when_the_network_has_changed() -> None:
    with (
        joined(config=PATIENT) as (connection, proxy),
        socket.create_server(("127.0.0.1", 0)) as silent,
    ):
        there, proxy.target = proxy.target, silent.getsockname()
        proxy.reset()
        wait_for(lambda: is_in("recv_line"))
        proxy.target = there
        connection.reconnect_now()
        wait_for(lambda: connection.stats().reconnects == 1)
        assert connection.ping(WAIT) > 0


def test_an_attempt_begun_at_the_end_is_given_up() -> None:
    """The connection ends between two sockets of an attempt."""
    begun = threading.Event()

    def headers() -> Headers:
        if begun.is_set():  # not the first request
            connection.abort()
            wait_for(lambda: connection.wait_closed(WAIT))
        begun.set()
        return {}

    with joined(headers=headers, config=PATIENT) as (connection, proxy):
        proxy.reset()
        wait_for(lambda: connection.closed and not searches(connection))
        assert proxy.accepted == 1


# Without threads


def test_a_thread_that_cannot_be_had_is_asked_for_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real, refused = reconnector.start_thread, 0

    def start(thread: threading.Thread) -> None:
        nonlocal refused
        if refused < 3:
            refused += 1
            raise wsmux.NoThreadError("the system has no thread left")
        real(thread)

    monkeypatch.setattr(reconnector, "start_thread", start)
    monkeypatch.setattr(reconnector, "THREAD_DELAY", 0.01)
    monkeypatch.setattr(logs, "PAUSE", WAIT)
    caplog.set_level(logging.WARNING, "wsmux")
    with joined() as (connection, proxy):
        proxy.reset()
        wait_for(lambda: connection.stats().reconnects == 1)
        assert refused == 3
        assert connection.ping(WAIT) > 0
    (record,) = caplog.records
    assert "tries to connect again later: the system has no thread left" in record.getMessage()


def test_without_a_thread_until_the_grace_is_over_the_loss_tells_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def start(thread: threading.Thread) -> None:
        raise wsmux.NoThreadError("the system has no thread left")

    monkeypatch.setattr(reconnector, "start_thread", start)
    with joined(grace=0.5) as (connection, proxy):
        proxy.reset()
        wait_for(lambda: "the next attempt in" in str(connection.explain()) or connection.closed)
        assert connection.wait_closed(WAIT)
        assert isinstance(connection.error, wsmux.ResumeLost)
        assert "(the last attempt: the system has no thread left)" in connection.error.why


def test_an_attempt_that_the_end_of_the_grace_cuts_hides_no_reason() -> None:
    with (
        joined(grace=CONNECTS) as (connection, proxy),
        socket.create_server(("127.0.0.1", 0)) as silent,
    ):
        transport = multiplexer_of(connection).transport
        assert isinstance(transport, ResumableTransport)
        proxy.refusing = True
        proxy.reset()
        wait_for(lambda: transport.attempt)
        reason = transport.attempt
        proxy.target = silent.getsockname()
        proxy.refusing = False
        assert connection.wait_closed(WAIT)
        assert isinstance(connection.error, wsmux.ResumeLost)
        assert f"(the last attempt: {reason})" in connection.error.why


def test_without_resuming_the_connection_is_an_ordinary_one() -> None:
    with wsmux.serve(lambda each: each.wait_closed()) as server:
        with wsmux.connect(server.url, resume=True) as connection:
            assert not connection.resumable
            connection.reconnect_now()
            assert connection.ping(WAIT) > 0
        server.shutdown(0)


@pytest.mark.parametrize(
    ("wrong", "error", "text"),
    [
        ({"resume": 60}, TypeError, "resume must be True, False or a wsmux.Resume, not 60"),
        ({"resume": True, "subprotocol": "mine"}, ValueError, "leave subprotocol= out"),
        (
            {
                "resume": True,
                "url": "tcp://127.0.0.1:9",
                "ssl_context": ssl.create_default_context(),
            },
            ValueError,
            "with TLS is not resumable",
        ),
    ],
)
def test_what_cannot_be_resumed_is_refused_before_connecting(
    wrong: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text.replace(".", r"\.").replace("(", r"\(")):
        wsmux.connect(**{"url": "ws://127.0.0.1:9", **wrong})
