"""Ports are forwarded here and there, and come back with the connection."""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import wsmux
from wsmux.exceptions import HandshakeError
from wsmux.tunnel import (
    Forwarder,
    TunnelError,
    TunnelServer,
    listening,
    parse_forward,
    parse_place,
    remote_listening,
)
from wsmux.tunnel.request_head import Request
from wsmux.tunnel.supervisor import Supervisor

from ..helpers.inside import lost_within, multiplexer_of, request_kinds_of, stopping_of
from ..helpers.ports import free_port
from ..helpers.scripted import WAIT
from ..helpers.tunnel_inputs import GREETING, reply
from ..helpers.tunnel_server import (
    Echo,
    connected,
    forwarding,
    receive_all,
    served_by,
    tunnels,
)
from ..helpers.waiting import wait_for

DATA = random.Random(3).randbytes(777_777)
AT_ONCE = 50


@pytest.fixture
def echo() -> Iterator[Echo]:
    with Echo() as running:
        yield running


def through(place: object, data: bytes = DATA) -> bytes:
    """Return what an echo at a place sends back."""
    with connected(place) as sock, ThreadPoolExecutor(1) as sender:
        sent = sender.submit(lambda: (sock.sendall(data), sock.shutdown(socket.SHUT_WR)))
        back = receive_all(sock)
        sent.result(WAIT)
    return back


def test_a_local_port_reaches_a_place_of_the_server(echo: Echo) -> None:
    with (
        tunnels() as server,
        forwarding(server, local=[parse_forward(f"0:{echo.place}")]) as forwarder,
    ):
        (forward,) = forwarder.local
        assert through(forward.listen) == DATA
        assert repr(forwarder) == f"<Forwarder {forward}>"


def test_a_port_of_the_server_reaches_a_place_here(echo: Echo) -> None:
    with (
        tunnels() as server,
        forwarding(server, remote=[parse_forward(f"0:{echo.place}")]) as forwarder,
    ):
        (forward,) = forwarder.remote
        assert forward.to == parse_place(echo.place)
        assert through(forward.listen) == DATA


def test_unix_sockets_are_forwarded_at_both_ends(tmp_path: Path) -> None:
    far, near, back = tmp_path / "far", tmp_path / "near", tmp_path / "back"
    with (
        Echo(far) as echo,
        tunnels(connect=[echo.place], listen=[f"unix:{back}"]) as server,
        forwarding(
            server,
            local=[parse_forward(f"{near}:{echo.place}")],
            remote=[parse_forward(f"{back}:{echo.place}")],
        ),
    ):
        assert through(f"unix:{near}") == DATA
        assert through(f"unix:{back}") == DATA
    assert not near.exists()
    wait_for(lambda: not back.exists())


def test_many_connections_at_once_keep_apart(echo: Echo) -> None:
    with (
        tunnels() as server,
        forwarding(server, local=[parse_forward(f"0:{echo.place}")]) as forwarder,
        ThreadPoolExecutor(AT_ONCE) as pool,
    ):
        sent = [random.Random(seed).randbytes(20_000) for seed in range(AT_ONCE)]
        place = forwarder.local[0].listen
        assert list(pool.map(lambda data: through(place, data), sent)) == sent


def test_a_place_that_is_not_allowed_resets_the_connection(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with (
        tunnels() as server,
        forwarding(server, local=[parse_forward("0:192.0.2.1:80")]) as forwarder,
        connected(forwarder.local[0].listen) as sock,
    ):
        with pytest.raises(ConnectionResetError):
            sock.recv(1)
        assert "192.0.2.1:80 is not on the list" in caplog.text


def test_a_port_that_the_server_may_not_listen_at_is_told_at_once() -> None:
    with (
        tunnels(connect=["127.0.0.1:*"]) as server,
        pytest.raises(TunnelError, match="addresses to listen on"),
        forwarding(server, remote=[parse_forward("0:127.0.0.1:1")]),
    ):
        raise AssertionError("it forwards")


def test_a_port_in_use_here_leaves_nothing_behind(echo: Echo) -> None:
    with (
        tunnels() as server,
        pytest.raises(OSError, match="in use"),
        forwarding(server, local=[parse_forward(f"{echo.place}:{echo.place}")]),
    ):
        raise AssertionError("it forwards")


def test_a_server_that_is_not_there_is_told_at_once() -> None:
    with tunnels() as server:
        url = server.url
    with pytest.raises(ConnectionRefusedError):
        Forwarder(lambda **options: wsmux.connect(url, **options))


def test_more_connections_than_allowed_are_closed(echo: Echo) -> None:
    with (
        tunnels() as server,
        forwarding(server, local=[parse_forward(f"0:{echo.place}")], max_tunnels=1) as forwarder,
    ):
        place = forwarder.local[0].listen
        with connected(place) as first:
            first.sendall(b"x")
            assert first.recv(1) == b"x"
            with connected(place) as second:
                assert second.recv(1) == b""


def test_a_brought_connection_that_nobody_asked_for_is_refused() -> None:
    def bring(connection: wsmux.Connection) -> None:
        control = connection.accept_stream(WAIT)
        control.read(1000)
        control.write(b"HTTP/1.1 200 127.0.0.1:1\r\n\r\n")
        stream = connection.open_stream(WAIT)
        stream.timeout = WAIT
        stream.write(b"CONNECT 127.0.0.1:1 HTTP/1.1\r\nArg: 7\r\n\r\n")
        answers.append(stream.read())
        connection.wait_closed(WAIT)

    answers: list[bytes] = []
    with (
        wsmux.serve(bring) as server,
        forwarding(server, remote=[parse_forward("0:127.0.0.1:1")]),
    ):
        wait_for(lambda: answers)
    assert answers[0].startswith(b"HTTP/1.1 403 ")


def test_a_server_that_does_not_say_where_it_listens_is_refused() -> None:
    def serve(stream: wsmux.Stream) -> None:
        stream.read(1000)
        stream.write(b"HTTP/1.1 200 OK\r\n\r\n")

    with (
        wsmux.serve(stream_handler=serve) as server,
        pytest.raises(TunnelError, match="where it listens"),
        forwarding(server, remote=[parse_forward("0:127.0.0.1:1")]),
    ):
        raise AssertionError("it forwards")


# SOCKS


def socks_request(place: str) -> bytes:
    host, _, port = place.rpartition(":")
    return bytes([5, 1, 0, 3, len(host)]) + host.encode() + int(port).to_bytes(2, "big")


@pytest.fixture
def socks() -> Iterator[object]:
    listen = parse_place("127.0.0.1:0", listening=True)
    with tunnels() as server, forwarding(server, socks=[listen]) as forwarder:
        yield forwarder.socks[0]


def received(sock: socket.socket, size: int) -> bytes:
    return sock.recv(size, socket.MSG_WAITALL)


def test_a_socks_client_says_where_it_goes(socks: object, echo: Echo) -> None:
    with connected(socks) as sock:
        sock.sendall(GREETING)
        assert received(sock, 2) == b"\x05\x00"
        sock.sendall(socks_request(echo.place))
        assert received(sock, 10) == reply(0)
        sock.sendall(b"there and back")
        sock.shutdown(socket.SHUT_WR)
        assert receive_all(sock) == b"there and back"


def test_a_hasty_socks_client_is_understood(socks: object, echo: Echo) -> None:
    with connected(socks) as sock:
        sock.sendall(GREETING + socks_request(echo.place) + b"early")
        sock.shutdown(socket.SHUT_WR)
        assert receive_all(sock) == b"\x05\x00" + reply(0) + b"early"


def test_a_socks_client_is_told_of_a_refusal(socks: object) -> None:
    with connected(socks) as sock:
        sock.sendall(GREETING + socks_request("192.0.2.1:80"))
        assert receive_all(sock) == b"\x05\x00" + reply(2)


def test_a_socks_client_is_told_that_nobody_answers(socks: object) -> None:
    port = free_port()
    with connected(socks) as sock:
        sock.sendall(GREETING + socks_request(f"127.0.0.1:{port}"))
        assert receive_all(sock) == b"\x05\x00" + reply(5)


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n\r\n", b"\x04\x01\x00\x50", b"\x05\x01\x02"])
def test_what_speaks_no_socks_is_dropped(socks: object, data: bytes) -> None:
    with connected(socks) as sock:
        sock.sendall(data)
        assert receive_all(sock) in (b"", b"\x05\xff")


def test_a_socks_client_that_says_nothing_is_dropped(
    socks: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listening, "SOCKS_TIMEOUT", 0.01)
    with connected(socks) as sock, pytest.raises(ConnectionResetError):
        sock.recv(1)


def test_a_socks_client_that_leaves_is_forgotten(
    socks: object, caplog: pytest.LogCaptureFixture
) -> None:
    with connected(socks) as sock:
        sock.sendall(GREETING)
        assert received(sock, 2) == b"\x05\x00"
    wait_for(lambda: "disconnected before" in caplog.text)


# Reconnecting


def test_what_comes_while_there_is_no_connection_waits_for_it(echo: Echo) -> None:
    told: list[str] = []
    with (
        tunnels() as server,
        forwarding(
            server,
            local=[parse_forward(f"0:{echo.place}")],
            remote=[parse_forward(f"0:{echo.place}")],
            tell=told.append,
        ) as forwarder,
    ):
        place = forwarder.local[0].listen
        with connected(place) as cut:
            cut.sendall(b"x")
            assert cut.recv(1) == b"x"
            served_by(server).abort()
            with pytest.raises(ConnectionResetError):
                cut.recv(1)
        assert through(place) == DATA
        assert through(forwarder.remote[0].listen) == DATA
    assert any("connecting again" in text for text in told)
    assert "connected again" in told


class Moody:
    """Serve tunnels, and listen for clients only as long as ``refusal`` is ``None``."""

    def __init__(self) -> None:
        self._offered = TunnelServer(connect=["127.0.0.1:*"], listen=["127.0.0.1:*"])
        kinds = request_kinds_of(self._offered)
        self._listen, kinds["LISTEN"] = kinds["LISTEN"], self._answer
        self.refusal: Callable[[wsmux.Stream], object] | None = None
        self.serve = self._offered.serve

    def _answer(self, stream: wsmux.Stream, request: Request) -> None:
        if self.refusal is None:
            self._listen(stream, request)
        else:
            self.refusal(stream)


def refuse(stream: wsmux.Stream) -> None:
    raise TunnelError(502, "in use")


REFUSALS: dict[str, tuple[Callable[[wsmux.Stream], object], str]] = {
    "refused": (refuse, "in use"),
    "reset": (wsmux.Stream.reset, "reset the request"),
    "not answered": (wsmux.Stream.read, "no answer to LISTEN"),
}


@pytest.mark.parametrize("kind", REFUSALS)
def test_listening_refused_after_a_reconnect_is_told_and_asked_again_while_the_rest_goes_on(
    echo: Echo, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusal, words = REFUSALS[kind]
    monkeypatch.setattr(remote_listening, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(remote_listening, "LONGEST_PAUSE", 0.05)
    told: list[str] = []
    moody = Moody()
    with (
        wsmux.serve(stream_handler=moody.serve, workers=256) as server,
        forwarding(
            server,
            local=[parse_forward(f"0:{echo.place}")],
            remote=[parse_forward(f"0:{echo.place}")] * 2,
            socks=[parse_place("127.0.0.1:0", listening=True)],
            tell=told.append,
        ) as forwarder,
    ):
        assert len(forwarder.remote) == 2
        if kind == "not answered":
            monkeypatch.setattr(remote_listening, "HEAD_TIMEOUT", 0.1)
        moody.refusal = refusal
        served_by(server).abort()
        wait_for(lambda: "connected again" in told)
        assert forwarder.remote == []
        assert through(forwarder.local[0].listen) == DATA
        with connected(forwarder.socks[0]) as sock:
            sock.sendall(GREETING + socks_request(echo.place) + b"early")
            sock.shutdown(socket.SHUT_WR)
            assert receive_all(sock) == b"\x05\x00" + reply(0) + b"early"
        refused = [text for text in told if text.startswith("the server does not listen at")]
        assert len(refused) == 2  # one each, however often it was asked
        assert all(words in text for text in refused)

        moody.refusal = None
        monkeypatch.setattr(remote_listening, "HEAD_TIMEOUT", WAIT)
        wait_for(lambda: len(forwarder.remote) == 2)
        for forward in forwarder.remote:
            assert through(forward.listen) == DATA
            wait_for(lambda: f"the server listens at {forward.listen} again" in told)  # noqa: B023


def test_what_is_refused_is_asked_for_on_the_next_connection_too(
    echo: Echo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_listening, "FIRST_PAUSE", 3600.0)
    monkeypatch.setattr(remote_listening, "LONGEST_PAUSE", 3600.0)
    told: list[str] = []
    moody = Moody()
    with (
        wsmux.serve(stream_handler=moody.serve, workers=256) as server,
        forwarding(
            server, remote=[parse_forward(f"0:{echo.place}")], tell=told.append
        ) as forwarder,
    ):
        for listens in (False, True):
            told.clear()
            moody.refusal = None if listens else refuse
            served_by(server).abort()
            wait_for(lambda: "connected again" in told)
            assert len(forwarder.remote) == listens
        assert through(forwarder.remote[0].listen) == DATA


def test_attempts_go_on_until_one_is_made() -> None:
    told: list[str] = []
    with tunnels() as server:
        outcomes = iter([None, ConnectionRefusedError("away"), ValueError("odd"), None])

        def connect() -> wsmux.Connection:
            failure = next(outcomes)
            if failure is not None:
                raise failure
            return wsmux.connect(server.url)

        supervisor = Supervisor(connect, tell=told.append)
        served_by(server).abort()
        assert lost_within(supervisor, WAIT)
        assert not wait_for_answer(supervisor)
        supervisor.close()
    assert "no connection: away" in told


def unread(sentence: str) -> None:
    raise BrokenPipeError("nobody reads this any more")


def test_who_cannot_be_told_of_a_change_does_not_end_reconnecting(
    caplog: pytest.LogCaptureFixture,
) -> None:
    made: list[wsmux.Connection] = []
    with tunnels() as server:
        supervisor = Supervisor(lambda: wsmux.connect(server.url), prepare=made.append, tell=unread)
        for count in (2, 3):
            served_by(server).abort()
            wait_for(lambda: len(made) == count)  # noqa: B023
            assert not wait_for_answer(supervisor)
        supervisor.close()
    assert "nobody reads this any more" in caplog.text


def test_who_cannot_be_told_of_a_refusal_does_not_end_asking_again(
    echo: Echo, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(remote_listening, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(remote_listening, "LONGEST_PAUSE", 0.05)
    moody = Moody()
    with (
        wsmux.serve(stream_handler=moody.serve, workers=256) as server,
        forwarding(server, remote=[parse_forward(f"0:{echo.place}")], tell=unread) as forwarder,
    ):
        moody.refusal = refuse
        served_by(server).abort()
        wait_for(lambda: forwarder.remote == [])
        moody.refusal = None
        wait_for(lambda: forwarder.remote)
        assert through(forwarder.remote[0].listen) == DATA


def test_closing_between_a_connection_and_telling_of_it_ends_both() -> None:
    made: list[wsmux.Connection] = []
    closing = threading.Event()
    with tunnels() as server:

        def connect() -> wsmux.Connection:
            made.append(wsmux.connect(server.url))
            return made[-1]

        def tell(sentence: str) -> None:
            if sentence == "connected again":
                closer.start()
                assert closing.wait(WAIT)

        supervisor = Supervisor(connect, tell=tell)
        stopping = stopping_of(supervisor)
        closer = threading.Thread(target=supervisor.close)
        served_by(server).abort()
        wait_for(lambda: stopping.is_set())
        closing.set()
        assert made[1].wait_closed(WAIT)
        closer.join(WAIT)
        assert not closer.is_alive()


@pytest.mark.parametrize("step", ["connecting", "connected"])
def test_closing_while_a_connection_is_made_leaves_none(step: str) -> None:
    made: list[wsmux.Connection] = []
    with tunnels() as server:

        def connect() -> wsmux.Connection:
            if made and step == "connecting":
                closer.start()
                wait_for(stopping_of(supervisor).is_set)
            made.append(wsmux.connect(server.url))
            return made[-1]

        def prepare(connection: wsmux.Connection) -> None:
            if len(made) > 1 and step == "connected":
                closer.start()
                wait_for(stopping_of(supervisor).is_set)

        supervisor = Supervisor(connect, prepare=prepare, tell=lambda text: None)
        closer = threading.Thread(target=supervisor.close)
        served_by(server).abort()
        wait_for(lambda: len(made) > 1)
        assert made[1].wait_closed(WAIT)
        closer.join(WAIT)
        assert not closer.is_alive()


def wait_for_answer(supervisor: Supervisor) -> bool:
    """Ask for what is not allowed; tell whether that was granted."""
    with pytest.raises(TunnelError) as caught:
        supervisor.open(Request("CONNECT", "192.0.2.1:80"), WAIT)
    return caught.value.status != 403


def test_who_waits_for_a_connection_does_so_for_a_bounded_time() -> None:
    with tunnels() as server:
        outcomes = iter([wsmux.connect(server.url)])

        def connect() -> wsmux.Connection:
            for connection in outcomes:
                return connection
            raise HandshakeError("away")

        supervisor = Supervisor(connect, tell=lambda text: None)
        served_by(server).abort()
        assert lost_within(supervisor, WAIT)
        with pytest.raises(TunnelError) as caught:
            supervisor.open(Request("CONNECT", "127.0.0.1:1"), 0.05)
        assert caught.value.status == 504
        supervisor.close()
        with pytest.raises(TunnelError) as caught:
            supervisor.open(Request("CONNECT", "127.0.0.1:1"), WAIT)
        assert caught.value.status == 503


def test_a_connection_that_takes_no_streams_is_no_reason_to_wait_for_ever() -> None:
    made: list[wsmux.Connection] = []
    with tunnels() as server:
        supervisor = Supervisor(lambda: wsmux.connect(server.url), prepare=made.append)
        served_by(server).go_away()
        wait_for(lambda: multiplexer_of(made[0]).table.peer_refuses_from is not None)
        with pytest.raises(TunnelError) as caught:
            supervisor.open(Request("CONNECT", "192.0.2.1:80"), 0.05)
        assert caught.value.status == 504
        supervisor.close()


def test_a_failed_preparation_closes_the_connection() -> None:
    def prepare(connection: wsmux.Connection) -> None:
        made.append(connection)
        raise TunnelError(403, "no")

    made: list[wsmux.Connection] = []
    with tunnels() as server, pytest.raises(TunnelError):
        Supervisor(lambda: wsmux.connect(server.url), prepare=prepare)
    assert made[0].closed


def test_closing_resets_what_runs(echo: Echo) -> None:
    with (
        tunnels() as server,
        forwarding(server, local=[parse_forward(f"0:{echo.place}")]) as forwarder,
        connected(forwarder.local[0].listen) as sock,
    ):
        sock.sendall(b"x")
        assert sock.recv(1) == b"x"
        forwarder.close()
        with pytest.raises(ConnectionResetError):
            sock.recv(1)
