"""Fill a server from one address: others are served, and nobody is counted when all have left.

Clients connect from ``127.0.0.2`` and on, which count as addresses of their own; ``127.0.0.1``
itself is not counted.
"""

from __future__ import annotations

import logging
import os
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from typing import Any

import pytest
from flask import Flask

import wsmux
from wsmux import rpc
from wsmux.bus.wire.tokens import make_token
from wsmux.endpoints.acceptor import Acceptor, listen
from wsmux.flask import Mux
from wsmux.handshake import admission
from wsmux.runtime import logs
from wsmux.spark.server.data_server import DataServer
from wsmux.testing import LockOrder

from ..helpers.bus.relays import identity, relay, served
from ..helpers.certificates import Certificates
from ..helpers.every_server import NO_SUBPROTOCOL, Place, memory
from ..helpers.inside import counted, waited_for
from ..helpers.raw_peer import WAIT, in_thread, read_head, request, wait_for
from ..helpers.rpc.procedures import Gate, offered
from ..helpers.tables import each_case
from ..helpers.waiting import threads_of
from ..helpers.werkzeug_server import serving

HALF = b"GET / HTTP/1.1\r\nHost: x\r\nX-Half: "
ATTACKER, HONEST, THIRD = "127.0.0.2", "127.0.0.3", "127.0.0.4"
FEW = wsmux.Config(max_handshakes_per_address=3, max_connections_per_address=5)
PROXIED = wsmux.Config(max_connections_per_address=2, trusted_proxies=[ATTACKER, THIRD])


@contextmanager
def mux_server(config: wsmux.Config, **limits: Any) -> Iterator[tuple[Acceptor, Place]]:
    with wsmux.serve(wsmux.Connection.wait_closed, config=config, **limits) as server:
        yield server, Place(server.port)


@contextmanager
def rpc_server(config: wsmux.Config, **limits: Any) -> Iterator[tuple[Acceptor, Place]]:
    with rpc.serve([offered(Gate())], config=config, **limits) as server:
        yield server, Place(server.port, headers=NO_SUBPROTOCOL)


@contextmanager
def relay_server(config: wsmux.Config, **limits: Any) -> Iterator[tuple[Acceptor, Place]]:
    with served(relay(), config=config, **limits) as server:
        token = make_token(identity(1), 1, None, int(time.time()))
        yield server, Place(server.port, f"/?{token}", NO_SUBPROTOCOL)


@contextmanager
def data_server(config: wsmux.Config, **limits: Any) -> Iterator[tuple[Acceptor, Place]]:
    with DataServer(listen("127.0.0.1", 0), config=config, **limits) as server:
        yield server, Place(server.port)


Kind = Callable[..., AbstractContextManager[tuple[Acceptor, Place]]]
KINDS: dict[str, Kind] = {
    "mux": mux_server,
    "rpc": rpc_server,
    "relay": relay_server,
    "data": data_server,
}


def dial(port: int, source: str) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), WAIT, (source, 0))


def half(stack: ExitStack, port: int, source: str) -> socket.socket:
    """Send half a request head."""
    sock = stack.enter_context(dial(port, source))
    sock.sendall(HALF)
    return sock


def ask(
    stack: ExitStack, place: Place, source: str, headers: dict[str, str | None] | None = None
) -> tuple[int, socket.socket]:
    """Ask for an upgrade; return the status that answers, and the socket."""
    sock = stack.enter_context(dial(place.port, source))
    text = {**place.headers, **(headers or {})}
    sock.sendall(request(place.host, text, f"GET {place.target} HTTP/1.1"))
    return int(read_head(sock)[0].split()[1]), sock


def answer_of(sock: socket.socket) -> tuple[int, str]:
    """Return status and sentence of a refusal, which ends the connection."""
    data = b""
    while chunk := _received(sock):
        data += chunk
    head, _, body = data.decode().partition("\r\n\r\n")
    return int(head.split()[1]), body


def _received(sock: socket.socket) -> bytes:
    try:
        return sock.recv(4096)
    except ConnectionResetError:  # what it had sent was not read
        return b""


def nobody(server: Acceptor) -> bool:
    """Return whether nothing is counted."""
    return not any(counted(server))


# Handshakes


@pytest.mark.parametrize("kind", KINDS)
def test_others_are_served_while_one_address_holds_its_half_requests(kind: str) -> None:
    with KINDS[kind](FEW) as (server, place), ExitStack() as stack:
        for _ in range(3):
            half(stack, place.port, ATTACKER)
        wait_for(lambda: counted(server).unfinished == 3)
        beyond = stack.enter_context(dial(place.port, ATTACKER))
        status, sentence = answer_of(beyond)
        assert (status, sentence) == (
            429,
            "3 requests from your address are unfinished; finish them, or try again later\n",
        )
        assert ask(stack, place, HONEST)[0] == 101
        assert threads_of(server) == 4, "no thread is spent on who is refused"
        stack.close()
        wait_for(lambda: nobody(server), "everybody to be counted down")


# Each with at most four connections, and else as it is.
SMALL: dict[str, Callable[[], AbstractContextManager[Acceptor]]] = {
    "mux": lambda: wsmux.serve(wsmux.Connection.wait_closed, max_connections=4),
    "rpc": lambda: rpc.serve([offered(Gate())], max_connections=4),
    "relay": lambda: served(relay(), max_connections=4),
    "data": lambda: DataServer(listen("127.0.0.1", 0), max_connections=4),
}


@pytest.mark.parametrize("kind", SMALL)
def test_one_address_does_not_fill_a_small_server(kind: str) -> None:
    with SMALL[kind]() as server, ExitStack() as stack:
        for _ in range(2):
            half(stack, server.port, ATTACKER)
        wait_for(lambda: counted(server).unfinished == 2)
        assert answer_of(stack.enter_context(dial(server.port, ATTACKER)))[0] == 429
        half(stack, server.port, HONEST)
        wait_for(lambda: counted(server).unfinished == 3)


@pytest.mark.parametrize("kind", KINDS)
def test_one_address_has_as_many_connections_as_it_may(kind: str) -> None:
    config = wsmux.Config(max_connections_per_address=2)
    with KINDS[kind](config) as (server, place), ExitStack() as stack:
        assert [ask(stack, place, ATTACKER)[0] for _ in range(3)] == [101, 101, 429]
        assert ask(stack, place, HONEST)[0] == 101
        stack.close()
        wait_for(lambda: nobody(server), "everybody to be counted down")
        with ExitStack() as again:
            assert [ask(again, place, ATTACKER)[0] for _ in range(3)] == [101, 101, 429]
        wait_for(lambda: nobody(server), "everybody to be counted down")


def test_a_client_of_the_library_is_told_and_may_try_again() -> None:
    config = wsmux.Config(max_connections_per_address=1, trusted_proxies=["127.0.0.1"])
    headers = {"X-Forwarded-For": "192.0.2.1"}
    with wsmux.serve(wsmux.Connection.wait_closed, config=config) as server:
        with wsmux.connect(server.url, headers=headers):
            with pytest.raises(wsmux.HandshakeError) as caught:
                wsmux.connect(server.url, headers=headers)
            assert (caught.value.status, caught.value.retry_safe) == (429, True)
        wait_for(lambda: nobody(server))
        wsmux.connect(server.url, headers=headers).close()


def test_this_machine_s_own_address_is_not_counted() -> None:
    with mux_server(FEW) as (server, place), ExitStack() as stack:
        for _ in range(10):
            half(stack, place.port, "127.0.0.1")
        wait_for(lambda: counted(server).unfinished == 10)
        assert [ask(stack, place, "127.0.0.1")[0] for _ in range(10)] == [101] * 10


def test_a_connection_that_is_served_counts_as_no_handshake() -> None:
    with mux_server(FEW) as (_, place), ExitStack() as stack:
        assert [ask(stack, place, ATTACKER)[0] for _ in range(5)] == [101] * 5


def test_clients_beyond_a_limit_cost_one_line_of_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    logs.forget()
    with caplog.at_level(logging.INFO, "wsmux"), mux_server(FEW) as (server, place):
        with ExitStack() as stack:
            for _ in range(3):
                half(stack, place.port, ATTACKER)
            wait_for(lambda: counted(server).unfinished == 3)
            caplog.clear()
            started = time.monotonic()
            for _ in range(50):
                assert answer_of(stack.enter_context(dial(place.port, ATTACKER)))[0] == 429
            seconds = time.monotonic() - started
        lines = [record for record in caplog.records if "max_handshakes" in record.getMessage()]
        assert 1 <= len(lines) <= seconds + 2
        assert f"{server.url} refuses {ATTACKER}: 3 of its requests" in lines[0].getMessage()


# Behind proxies


def named(client: str) -> dict[str, str | None]:
    return {"X-Forwarded-For": client}


@pytest.mark.parametrize("kind", KINDS)
def test_behind_trusted_proxies_clients_count_by_the_address_that_they_name(kind: str) -> None:
    with KINDS[kind](PROXIED) as (server, place), ExitStack() as stack:
        got = [ask(stack, place, ATTACKER, named("192.0.2.1"))[0] for _ in range(3)]
        assert got == [101, 101, 429]
        assert ask(stack, place, THIRD, named("203.0.113.9, 192.0.2.1"))[0] == 429
        assert ask(stack, place, THIRD, {"Forwarded": "for=192.0.2.1;proto=http"})[0] == 429
        assert ask(stack, place, ATTACKER, named("192.0.2.2"))[0] == 101
        assert ask(stack, place, ATTACKER, {"Forwarded": 'for="[2001:db8::1]"'})[0] == 101
        stack.close()
        wait_for(lambda: nobody(server), "everybody to be counted down")


def test_who_is_no_trusted_proxy_cannot_count_as_somebody_else() -> None:
    with mux_server(PROXIED) as (_, place), ExitStack() as stack:
        got = [ask(stack, place, HONEST, named(f"192.0.2.{n}"))[0] for n in range(3)]
        assert got == [101, 101, 429]


def test_a_trusted_proxy_may_have_any_number_of_half_requests() -> None:
    config = wsmux.Config(max_handshakes_per_address=1, trusted_proxies=[ATTACKER])
    with mux_server(config) as (server, place), ExitStack() as stack:
        for _ in range(5):
            half(stack, place.port, ATTACKER)
        wait_for(lambda: counted(server).unfinished == 5)
        assert ask(stack, place, ATTACKER, named("192.0.2.1"))[0] == 101


def test_a_handler_is_told_the_client_s_address_beside_the_proxy_s() -> None:
    seen: list[tuple[str, str]] = []

    def handler(connection: wsmux.Connection) -> None:
        asked = connection.request
        assert asked is not None
        seen.append((asked.remote_address.partition(":")[0], asked.client_address))

    with wsmux.serve(handler, config=PROXIED) as server:
        place = Place(server.port)
        for source, headers in (
            (ATTACKER, named("203.0.113.9, 192.0.2.1")),
            (ATTACKER, {}),
            (HONEST, named("192.0.2.1")),
        ):
            with ExitStack() as stack:
                assert ask(stack, place, source, headers)[0] == 101
            wait_for(lambda: nobody(server))
    assert seen == [(ATTACKER, "192.0.2.1"), (ATTACKER, ATTACKER), (HONEST, HONEST)]


def test_a_header_with_an_underscore_is_not_taken_for_a_proxy_s() -> None:
    """A proxy that knows one with hyphens passes the other on as the client wrote it."""
    with mux_server(PROXIED) as (_, place), ExitStack() as stack:
        got = []
        for number in range(3):
            headers = {**named("192.0.2.1"), "X_Forwarded_For": f"203.0.113.{number}"}
            got.append(ask(stack, place, ATTACKER, headers)[0])
        assert got == [101, 101, 429]


def flask_app(config: wsmux.Config) -> tuple[Flask, Mux, rpc.RpcHandler]:
    app = Flask("app")
    mux = Mux(app, config=config)
    mux.route("/mux")(wsmux.Connection.wait_closed)
    return app, mux, rpc.flask(app, "/river", [offered(Gate())], config=config)


@pytest.mark.parametrize("target", ["/mux", "/river"])
def test_routes_of_flask_count_connections_by_address_too(target: str) -> None:
    app, _, river = flask_app(wsmux.Config(max_connections_per_address=2))
    with river, serving(app) as port:
        place = Place(port, target, NO_SUBPROTOCOL if target == "/river" else {})
        for _ in range(2):  # the second time everybody has left
            with ExitStack() as stack:
                assert [ask(stack, place, ATTACKER)[0] for _ in range(3)] == [101, 101, 429]
                assert ask(stack, place, HONEST)[0] == 101
            wait_for(lambda: not requests_running(), "the requests to end")


@pytest.mark.parametrize("target", ["/mux", "/river"])
def test_routes_of_flask_take_a_trusted_proxy_s_word(target: str) -> None:
    app, _, river = flask_app(PROXIED)
    with river, serving(app) as port, ExitStack() as stack:
        place = Place(port, target, NO_SUBPROTOCOL if target == "/river" else {})
        got = [ask(stack, place, ATTACKER, named("192.0.2.1"))[0] for _ in range(3)]
        assert got == [101, 101, 429]
        assert ask(stack, place, ATTACKER, named("192.0.2.2"))[0] == 101


def requests_running() -> int:
    return sum("process_request_thread" in thread.name for thread in threading.enumerate())


# Memory


@pytest.mark.parametrize("kind", KINDS)
def test_half_read_heads_of_all_clients_together_are_bounded(kind: str) -> None:
    config = wsmux.Config(max_handshake_buffer=32_768)
    with KINDS[kind](config) as (server, place), ExitStack() as stack:
        first = half(stack, place.port, ATTACKER)
        first.sendall(b"x" * 20_000)
        wait_for(lambda: counted(server).held == len(HALF) + 20_000)
        second = half(stack, place.port, THIRD)
        second.sendall(b"x" * 13_000)
        assert answer_of(first)[0] == 503
        wait_for(lambda: counted(server).held == len(HALF) + 13_000)
        assert ask(stack, place, HONEST)[0] == 101
        stack.close()
        wait_for(lambda: nobody(server), "everybody to be counted down")


def test_a_client_that_goes_on_sending_after_it_was_let_go_ends_all_the_same() -> None:
    config = wsmux.Config(max_handshake_buffer=16_384)
    with mux_server(config) as (server, place), ExitStack() as stack:
        first = half(stack, place.port, ATTACKER)
        first.sendall(b"x" * 10_000)
        wait_for(lambda: counted(server).held > 10_000)
        half(stack, place.port, THIRD).sendall(b"x" * 10_000)
        wait_for(lambda: counted(server).unfinished == 1)
        with pytest.raises(OSError, match=r"reset|Broken pipe"):
            first.sendall(b"x" * (64 * 1024 * 1024))


def test_over_tls_a_head_is_let_go_without_a_word(certificates: Certificates) -> None:
    """What wakes the thread that reads it is an end of file to TLS, which says no more after."""
    config = wsmux.Config(max_handshake_buffer=16_384)
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with (
        wsmux.serve(
            wsmux.Connection.wait_closed, config=config, ssl_context=certificates.server
        ) as server,
        ExitStack() as stack,
    ):
        ends = [
            stack.enter_context(context.wrap_socket(dial(server.port, source)))
            for source in (ATTACKER, THIRD)
        ]
        for end in ends:
            end.sendall(HALF + b"x" * 10_000)
            wait_for(lambda: counted(server).held > 10_000)
        with pytest.raises(ssl.SSLError):
            ends[0].recv(100)
        stack.close()
        wait_for(lambda: nobody(server), "everybody to be counted down")


# A full server, whoever fills it


@pytest.mark.parametrize("kind", KINDS)
def test_a_full_server_lets_an_old_half_request_go_for_a_client(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when many addresses fill it, or this machine's own, which is not counted."""
    monkeypatch.setattr(admission, "PATIENCE", 0.0)
    config = wsmux.Config()
    with KINDS[kind](config, max_connections=3) as (server, place), ExitStack() as stack:
        oldest, _, _ = (half(stack, place.port, "127.0.0.1") for _ in range(3))
        wait_for(lambda: counted(server).held == 3 * len(HALF))
        assert ask(stack, place, "127.0.0.1")[0] == 101
        assert answer_of(oldest)[0] == 503
        assert [ask(stack, place, "127.0.0.1")[0] for _ in range(3)] == [101, 101, 503]
        stack.close()
        wait_for(lambda: nobody(server), "everybody to be counted down")


def test_a_full_server_refuses_a_client_while_all_handshakes_are_young() -> None:
    with (
        wsmux.serve(wsmux.Connection.wait_closed, max_connections=1) as server,
        ExitStack() as stack,
    ):
        half(stack, server.port, "127.0.0.1")
        wait_for(lambda: counted(server).unfinished == 1)
        assert answer_of(stack.enter_context(dial(server.port, HONEST)))[0] == 503


def test_a_full_server_ends_a_tls_handshake_that_takes_long(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "PATIENCE", 0.0)
    with (
        wsmux.serve(
            wsmux.Connection.wait_closed, max_connections=1, ssl_context=certificates.server
        ) as server,
        ExitStack() as stack,
    ):
        silent = stack.enter_context(dial(server.port, ATTACKER))
        wait_for(lambda: waited_for(server) == 1)
        with wsmux.connect(server.url, ssl_context=certificates.client) as connection:
            connection.ping(WAIT)
        while _received(silent):  # an alert of TLS, at most
            pass


# Counting down, whatever the end


def no_thread(*_: object) -> None:
    raise RuntimeError("can't start new thread")


def test_a_thread_that_cannot_start_is_counted_down(monkeypatch: pytest.MonkeyPatch) -> None:
    with mux_server(FEW) as (server, place), ExitStack() as stack:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", no_thread)
            for _ in range(6):
                assert answer_of(stack.enter_context(dial(place.port, ATTACKER)))[0] == 503
        assert nobody(server)


def test_a_full_server_counts_nobody_whom_it_refuses() -> None:
    with wsmux.serve(wsmux.Connection.wait_closed, max_connections=1) as server:
        place = Place(server.port)
        with ExitStack() as stack:
            assert ask(stack, place, HONEST)[0] == 101
            for _ in range(3):
                assert answer_of(stack.enter_context(dial(place.port, ATTACKER)))[0] == 503
            assert counted(server).connections == {HONEST: 1}
        wait_for(lambda: nobody(server))


FAILURES = {
    "leaves": b"",
    "no request": b"nonsense\r\n\r\n",
    "no upgrade": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "too long": b"GET / HTTP/1.1\r\nA: " + b"b" * 70_000,
}


@each_case
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("said", FAILURES.values(), ids=FAILURES.keys())
def test_whoever_fails_is_counted_down(kind: str, said: bytes) -> None:
    with KINDS[kind](FEW) as (server, place):
        for _ in range(2 * FEW.max_connections_per_address):  # type: ignore[operator]
            with dial(place.port, ATTACKER) as sock:
                try:
                    sock.sendall(said)
                    sock.shutdown(socket.SHUT_WR)
                except OSError:  # it was refused before it had said all
                    pass
                while _received(sock):
                    pass
            wait_for(lambda: nobody(server), "the client to be counted down")


def test_a_failed_tls_handshake_is_counted_down(certificates: Certificates) -> None:
    context = certificates.server
    with wsmux.serve(wsmux.Connection.wait_closed, config=FEW, ssl_context=context) as server:
        for _ in range(6):
            with dial(server.port, ATTACKER) as sock:
                sock.sendall(b"no TLS at all, but long enough to be looked at\r\n\r\n")
                while _received(sock):
                    pass
            wait_for(lambda: nobody(server), "the client to be counted down")


def test_a_handshake_that_runs_out_of_time_is_counted_down() -> None:
    config = wsmux.Config(handshake_timeout=0.1)
    with mux_server(config) as (server, place), ExitStack() as stack:
        half(stack, place.port, ATTACKER)
        wait_for(lambda: counted(server).unfinished == 1)
        wait_for(lambda: nobody(server))


def test_a_shutdown_counts_everybody_down() -> None:
    config = wsmux.Config(max_connections_per_address=5, close_timeout=0.1)
    with mux_server(config) as (server, place), ExitStack() as stack:
        assert ask(stack, place, ATTACKER)[0] == 101
        half(stack, place.port, ATTACKER)
        wait_for(lambda: counted(server).unfinished == 1)
        server.shutdown(timeout=0)
        wait_for(lambda: nobody(server))


def test_a_plain_socket_counts_as_a_handshake_no_longer_than_tls_takes() -> None:
    with (
        wsmux.serve(wsmux.Connection.wait_closed, config=FEW, transport="tcp") as server,
        ExitStack() as stack,
    ):
        for count in range(1, 6):
            stack.enter_context(dial(server.port, ATTACKER))
            wait_for(lambda count=count: len(server.connections) == count)  # type: ignore[misc]
        assert counted(server).unfinished == 0
        assert stack.enter_context(dial(server.port, ATTACKER)).recv(1) == b""
        stack.close()
        wait_for(lambda: nobody(server))


def test_a_forked_child_counts_nobody_and_the_parent_goes_on() -> None:
    with mux_server(FEW) as (server, place), ExitStack() as stack:
        assert ask(stack, place, ATTACKER)[0] == 101
        pid = os.fork()
        if pid == 0:
            os._exit(0 if nobody(server) else 1)
        assert os.waitpid(pid, 0)[1] == 0
        assert counted(server).connections == {ATTACKER: 1}


def test_clients_that_come_and_go_from_many_threads_leave_nothing_counted() -> None:
    """Nor is a lock held while a socket is waited for, or taken in another order."""
    config = wsmux.Config(
        max_handshakes_per_address=2,
        max_connections_per_address=3,
        max_handshake_buffer=2_000,
        trusted_proxies=[THIRD],
    )

    def come_and_go(place: Place, seed: int) -> None:
        for turn in range(seed, seed + 12):
            source = (ATTACKER, HONEST, THIRD)[turn % 3]
            with ExitStack() as stack:
                try:
                    if turn % 4 == 0:
                        half(stack, place.port, source)
                    elif turn % 4 == 1:
                        half(stack, place.port, source).sendall(b"x" * 900)
                    else:
                        ask(stack, place, source, named(f"192.0.2.{turn % 2}"))
                except (OSError, IndexError):  # refused before it had asked, and told nothing
                    continue

    with LockOrder(), mux_server(config) as (server, place):
        threads = [in_thread(come_and_go, place, seed) for seed in range(6)]
        for thread in threads:
            thread.result(WAIT)
        wait_for(lambda: nobody(server), "everybody to be counted down")
        wait_for(lambda: not threads_of(server))
        with ExitStack() as stack:
            got = [ask(stack, place, ATTACKER)[0] for _ in range(4)]
            assert got == [101, 101, 101, 429]


# As many as it takes

CROWD = 1100


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_1100_half_requests_of_one_address_hold_up_nobody_else(
    kind: str, figure: Callable[[str], None]
) -> None:
    with KINDS[kind](wsmux.Config()) as (server, place), ExitStack() as stack:
        before = memory()
        alone = timed(place, HONEST)
        refused = 0
        for _ in range(CROWD):
            sock = stack.enter_context(dial(place.port, ATTACKER))
            try:
                sock.sendall(HALF)
            except OSError:
                refused += 1
        wait_for(lambda: counted(server).unfinished == 128, "the half-requests to be counted")
        beside = [timed(place, source) for source in (HONEST, THIRD, "127.0.0.1")]
        growth = (memory() - before) / 1024 / 1024
        figure(
            f"{kind}: {CROWD} half-requests, {threads_of(server)} threads, +{growth:.1f} MiB; an "
            f"upgrade alone {1000 * alone:.1f} ms, beside them {1000 * max(beside):.1f} ms at most"
        )
        assert max(beside) < 1.0
        stack.close()
        wait_for(lambda: nobody(server), "everybody to be counted down")


@pytest.mark.long
def test_1100_half_requests_that_are_not_counted_hold_up_nobody_for_long(
    figure: Callable[[str], None],
) -> None:
    """They fill the server, and give way when they have had their time."""
    with mux_server(wsmux.Config(handshake_timeout=WAIT * 3)) as (server, place):
        with ExitStack() as stack:
            for _ in range(CROWD):
                with suppress(OSError):  # it is one too many
                    stack.enter_context(dial(place.port, "127.0.0.1")).sendall(HALF)
            wait_for(lambda: counted(server).held == 1024 * len(HALF))
            ready = time.monotonic() + admission.PATIENCE
            wait_for(lambda: time.monotonic() >= ready, "the handshakes to have had their time")
            beside = [timed(place, source) for source in (HONEST, THIRD, "127.0.0.1")]
            figure(f"{1000 * max(beside):.1f} ms at most beside {threads_of(server)} of them")
            assert max(beside) < 1.0
        wait_for(lambda: nobody(server), "everybody to be counted down")


def timed(place: Place, source: str) -> float:
    """Return the seconds that an upgrade takes."""
    started = time.monotonic()
    with ExitStack() as stack:
        assert ask(stack, place, source)[0] == 101
        return time.monotonic() - started


@pytest.mark.long
def test_long_heads_of_many_addresses_hold_no_more_than_the_bound(
    figure: Callable[[str], None],
) -> None:
    """Nine addresses send 1,008 heads of 60 KiB that never end, 59 MiB in all."""
    with mux_server(wsmux.Config()) as (server, place), ExitStack() as stack:
        before, most = memory(), 0
        for number in range(1008):
            sock = stack.enter_context(dial(place.port, f"127.0.1.{number // 112 + 1}"))
            try:
                sock.sendall(HALF + b"x" * (60 * 1024))
            except OSError:  # it is one too many
                continue
            most = max(most, counted(server).held)
        growth = (memory() - before) / 1024 / 1024
        figure(f"{most / 1024 / 1024:.2f} MiB of heads held at most, RSS +{growth:.1f} MiB")
        assert most <= 4 * 1024 * 1024
        assert timed(place, HONEST) < 1.0
