"""Say HELLO to a server by hand: who may begin a session, who may resume it, and what stays."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import wsmux
from wsmux.endpoints.resumable_sessions import ResumableSessions
from wsmux.exceptions import HandshakeError
from wsmux.protocols.resumption import Hello, Refusal, Session, Welcome, parse_answer
from wsmux.runtime.deadline import Deadline
from wsmux.runtime.parking import OneShotEvent
from wsmux.testing import FaultProxy
from wsmux.transport.resumable_transport import Carrier, ResumableTransport

from ..helpers.raw_peer import BINARY, RawPeer, raw_client, read_head, request
from ..helpers.raw_sessions import ID, welcomed
from ..helpers.timeouts import WAIT
from ..helpers.waiting import threads_of, wait_for

SUBPROTOCOL = "wsmux.resume.v1+wsmux"
DATA, LOST, ACK, END = b"\0", b"\3", b"\5", b"\6"


@contextmanager
def server(
    resume: wsmux.Resume | bool = True, config: wsmux.Config | None = None
) -> Iterator[wsmux.Server]:
    with wsmux.serve(
        lambda connection: connection.wait_closed(), resume=resume, config=config or wsmux.Config()
    ) as serving:
        try:
            yield serving
        finally:
            serving.shutdown(0)


@contextmanager
def greeted(
    port: int, hello: Hello, key: bytes | None = None
) -> Iterator[tuple[RawPeer, Welcome | Refusal]]:
    """Say a HELLO over a new carrier; yield the carrier and the answer."""
    with raw_client(port, subprotocol=SUBPROTOCOL) as peer:
        peer.send_frame(BINARY, hello.encode(key))
        yield peer, parse_answer(peer.recv_message())


@contextmanager
def begun(serving: wsmux.Server) -> Iterator[tuple[RawPeer, Welcome]]:
    """Begin a session."""
    with greeted(serving.port, Hello(ID)) as (peer, answer):
        assert isinstance(answer, Welcome)
        wait_for(lambda: serving.connections)
        yield peer, answer


def back(welcome: Welcome, generation: int = 1, **changed: bytes | int) -> Hello:
    return Hello(ID, welcome.epoch, generation, True)._replace(**changed)


def test_a_carrier_of_a_higher_generation_replaces_the_one_before() -> None:
    with server() as serving, begun(serving) as (old, welcome):
        (connection,) = serving.connections
        with greeted(serving.port, back(welcome), welcome.key) as (_, answer):
            assert isinstance(answer, Welcome)
            assert answer.epoch == welcome.epoch
            old.recv_to_end()
            wait_for(lambda: connection.stats().reconnects == 1)
            assert serving.connections == [connection]


def test_what_a_replaced_carrier_still_sends_is_not_received() -> None:
    with server() as serving, begun(serving) as (zombie, welcome):
        (connection,) = serving.connections
        with greeted(serving.port, back(welcome), welcome.key) as (peer, answer):
            assert isinstance(answer, Welcome)
            try:
                zombie.send_frame(BINARY, DATA + b"late")
            except OSError:
                zombie.sock.close()  # it is cut already
            peer.send_frame(BINARY, END + (1000).to_bytes(2, "big"))
            peer.sock.close()
            assert connection.wait_closed(WAIT)
            assert connection.close_code == 1000


def test_of_two_carriers_that_race_the_later_one_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though the thread of the earlier one, which had a right to the session, is the slower one."""
    entered, go_on = threading.Event(), threading.Event()
    with server() as serving, begun(serving) as (_, welcome):
        (connection,) = serving.connections
        offer = ResumableTransport.offer

        def late(transport: ResumableTransport, carrier: Carrier) -> bool:
            if not entered.is_set():
                entered.set()
                assert go_on.wait(WAIT)
            return offer(transport, carrier)

        monkeypatch.setattr(ResumableTransport, "offer", late)
        with raw_client(serving.port, subprotocol=SUBPROTOCOL) as zombie:
            zombie.send_frame(BINARY, back(welcome, 1).encode(welcome.key))
            assert entered.wait(WAIT)
            with greeted(serving.port, back(welcome, 2), welcome.key) as (peer, answer):
                assert isinstance(answer, Welcome)
                go_on.set()
                assert zombie.recv_to_end() == b""
                peer.send_frame(9, b"still there")
                assert peer.recv_frame().payload == b"still there"
                assert connection.stats().reconnects == 1


def test_a_session_whose_grace_is_over_is_lost() -> None:
    with server(wsmux.Resume(grace=0.05)) as serving, begun(serving) as (peer, welcome):
        (connection,) = serving.connections
        peer.sock.close()
        assert connection.wait_closed(WAIT)
        with greeted(serving.port, back(welcome), welcome.key) as (_, answer):
            assert answer == Refusal(True, "this server does not have the session")


@pytest.mark.parametrize(
    ("changed", "key", "lost", "reason"),
    [
        ({}, b"\1" * 32, False, "not signed"),
        ({}, None, False, "not signed"),
        ({"session": b"another session!"}, b"", True, "does not have the session"),
        ({"epoch": b"restart!"}, b"", True, "does not have the session"),
    ],
)
def test_nobody_else_resumes_a_session(
    changed: dict[str, bytes], key: bytes | None, lost: bool, reason: str
) -> None:
    with server() as serving, begun(serving) as (peer, welcome):
        hello = back(welcome, **changed)
        with greeted(serving.port, hello, welcome.key if key == b"" else key) as (_, answer):
            assert isinstance(answer, Refusal)
            assert answer.lost is lost
            assert reason in answer.reason
        (connection,) = serving.connections
        assert connection.stats().reconnects == 0
        peer.send_frame(9, b"still there")
        assert peer.recv_frame().payload == b"still there"


def test_a_hello_is_good_for_one_carrier() -> None:
    with server() as serving, begun(serving) as (_, welcome):
        hello = back(welcome, 5)
        with greeted(serving.port, hello, welcome.key) as (_, answer):
            assert isinstance(answer, Welcome)
            for generation in (5, 4):
                again = back(welcome, generation)
                with greeted(serving.port, again, welcome.key) as (_, refused):
                    assert refused == Refusal(False, "a later carrier was there before")


def test_a_session_is_not_begun_twice() -> None:
    with server() as serving, begun(serving):
        with greeted(serving.port, Hello(ID)) as (_, answer):
            assert answer == Refusal(False, "there is a session of this id")
        assert len(serving.connections) == 1


@pytest.mark.parametrize(
    "changed", [{"received": 1}, {"received": 2**63}, {"oldest": 1}, {"oldest": 2**63}]
)
def test_positions_that_cannot_be_lose_the_session(changed: dict[str, int]) -> None:
    with server() as serving, begun(serving) as (_, welcome):
        (connection,) = serving.connections
        with raw_client(serving.port, subprotocol=SUBPROTOCOL) as peer:
            peer.send_frame(BINARY, back(welcome, **changed).encode(welcome.key))
            assert peer.recv_message()[:1] == LOST
            assert connection.wait_closed(WAIT)
        assert isinstance(connection.error, wsmux.ResumeLost)


@pytest.mark.parametrize("size", [0, 1, 51, 82, 84])
def test_what_is_no_hello_is_refused(size: int) -> None:
    hello = Hello(ID).encode(None) + b"?"
    with server() as serving, raw_client(serving.port, subprotocol=SUBPROTOCOL) as peer:
        peer.send_frame(BINARY, hello[:size])
        assert peer.recv_to_end() == b""
        assert not serving.connections
        wait_for(lambda: not threads_of(serving))


def test_a_client_that_sends_no_hello_is_let_go() -> None:
    config = wsmux.Config(handshake_timeout=2.0)
    with (
        server(config=config) as serving,
        raw_client(serving.port, subprotocol=SUBPROTOCOL) as peer,
    ):
        assert peer.recv_to_end() == b""
        wait_for(lambda: not threads_of(serving))


def test_the_session_that_waits_longest_is_lost_first() -> None:
    with server(wsmux.Resume(max_detached=1)) as serving:
        peers, connections = [], []
        for number in b"ab":
            peers.append(raw_client(serving.port, subprotocol=SUBPROTOCOL))
            peers[-1].send_frame(BINARY, Hello(bytes((number,)) * 16).encode(None))
            assert isinstance(parse_answer(peers[-1].recv_message()), Welcome)
            wait_for(lambda: len(serving.connections) == len(peers))
            connections += [each for each in serving.connections if each not in connections]
        peers[0].sock.close()
        wait_for(lambda: connections[0].stats().detached is not None)
        peers[1].sock.close()
        assert connections[0].wait_closed(WAIT)
        assert isinstance(connections[0].error, wsmux.ResumeLost)
        assert "more than 1 sessions have no connection" in connections[0].error.why
        assert not connections[1].closed


def test_a_shutdown_does_not_wait_for_detached_sessions() -> None:
    with server() as serving, begun(serving) as (peer, welcome):
        (connection,) = serving.connections
        peer.sock.close()
        wait_for(lambda: connection.stats().detached is not None)
        serving.shutdown(WAIT)
        assert isinstance(connection.error, wsmux.ResumeLost)
        assert connection.error.why == "the server shuts down"


# The table itself


def test_a_session_whose_welcome_cannot_be_sent_is_forgotten() -> None:
    sessions = ResumableSessions(wsmux.Resume())
    ours, theirs = socket.socketpair()
    peer = RawPeer(theirs, masks=True)
    peer.send_frame(BINARY, Hello(ID).encode(None))
    theirs.close()
    with pytest.raises((BrokenPipeError, ConnectionResetError)):
        sessions.greet(ours, Deadline(WAIT))
    assert len(sessions) == 0


def test_a_full_server_begins_no_session() -> None:
    sessions = ResumableSessions(wsmux.Resume())
    ours, theirs = socket.socketpair()
    with RawPeer(theirs, masks=True) as peer:
        peer.send_frame(BINARY, Hello(ID).encode(None))
        with pytest.raises(HandshakeError, match="as many connections are open"):
            sessions.greet(ours, Deadline(WAIT), returns=True)
        assert isinstance(parse_answer(peer.recv_message()), Refusal)
    assert len(sessions) == 0


def test_two_sessions_of_one_table_have_other_keys() -> None:
    sessions = ResumableSessions(wsmux.Resume())
    keys = set()
    for _ in range(2):
        ours, theirs = socket.socketpair()
        with ours, RawPeer(theirs, masks=True) as peer:
            peer.send_frame(BINARY, Hello(os.urandom(16)).encode(None))
            session = sessions.greet(ours, Deadline(WAIT))
            assert isinstance(session, Session)
            assert not isinstance(session, OneShotEvent)
            keys.add(session.key)
            sessions.forget(session)
    assert len(keys) == 2
    assert len(sessions) == 0


def test_a_client_that_is_back_before_its_session_is_made_tries_again() -> None:
    sessions = ResumableSessions(wsmux.Resume())
    welcome = welcomed(sessions)
    ours, theirs = socket.socketpair()
    with RawPeer(theirs, masks=True) as peer:
        peer.send_frame(BINARY, back(welcome).encode(welcome.key))
        with pytest.raises(HandshakeError, match="still being made"):
            sessions.greet(ours, Deadline(WAIT))
        assert peer.recv_to_end() == b""


@pytest.mark.parametrize("resuming", [True, False])
def test_a_table_that_is_stopped_lets_nobody_in(resuming: bool) -> None:
    """So a client that resumes while its worker drains learns at once that nothing goes on."""
    sessions = ResumableSessions(wsmux.Resume())
    welcome = welcomed(sessions)
    sessions.stop()
    ours, theirs = socket.socketpair()
    with RawPeer(theirs, masks=True) as peer:
        hello = back(welcome) if resuming else Hello(os.urandom(16))
        peer.send_frame(BINARY, hello.encode(welcome.key if resuming else None))
        with pytest.raises(HandshakeError, match="the server shuts down"):
            sessions.greet(ours, Deadline(WAIT))
        assert parse_answer(peer.recv_message()) == Refusal(True, "the server shuts down")


# A server that is full


@pytest.mark.parametrize("limit", ["max_connections", "max_connections_per_address"])
def test_a_full_server_lets_its_own_clients_return(limit: str) -> None:
    """A client is counted twice while it returns, and the first count may have no end yet."""
    config = wsmux.Config()
    most = 1
    if limit == "max_connections_per_address":
        config, most = wsmux.Config(max_connections_per_address=1), 8
    with (
        wsmux.serve(echo, resume=True, max_connections=most, config=config) as serving,
        FaultProxy(serving.port) as proxy,
        wsmux.connect(proxy.url, resume=True) as connection,
        connection.open_stream(timeout=WAIT) as stream,
    ):
        stream.timeout = WAIT
        for word in (b"one", b"two"):
            proxy.reset()
            stream.write(word)
            assert stream.read(3) == word
        assert connection.stats().reconnects == 2
        assert len(serving.connections) == 1
        wait_for(lambda: threads_of(serving) == 1)


def test_a_full_server_takes_nobody_else() -> None:
    with (
        wsmux.serve(echo, resume=True, max_connections=1) as serving,
        wsmux.connect(serving.url, resume=True) as connection,
    ):
        with pytest.raises(HandshakeError, match="503"):
            wsmux.connect(serving.url)
        # Until the one before has gone, there is no room to be asked whether it returns.
        with pytest.raises(HandshakeError, match="as many connections are open|503"):
            wsmux.connect(serving.url, resume=True)
        assert connection.ping(WAIT) > 0
        assert len(serving.connections) == 1


@pytest.mark.parametrize("offers", ["wsmux", f"wsmux, {SUBPROTOCOL}", ""])
def test_who_is_let_in_to_return_gets_no_ordinary_connection(offers: str) -> None:
    with (
        wsmux.serve(echo, resume=True, max_connections=1) as serving,
        wsmux.connect(serving.url, resume=True) as connection,
        socket.create_connection(("127.0.0.1", serving.port), WAIT) as sock,
    ):
        wait_for(lambda: serving.connections)
        sock.sendall(request(f"127.0.0.1:{serving.port}", {"Sec-WebSocket-Protocol": offers}))
        first, _ = read_head(sock)
        assert first.startswith("HTTP/1.1 503 ")
        assert len(serving.connections) == 1
        connection.abort()


def echo(connection: wsmux.Connection) -> None:
    for stream in connection:
        while data := stream.read(65536):
            stream.write(data)
        stream.close_write()
