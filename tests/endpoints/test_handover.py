"""Clients return to their sessions over any process of a server; here two servers of one folder."""

from __future__ import annotations

import os
import random
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

import wsmux
from wsmux.config import LONGEST_WORKERS
from wsmux.endpoints import acceptor, handover
from wsmux.endpoints.acceptor import BACKLOG
from wsmux.endpoints.handover import GIVE, TakeOver, receive_socket
from wsmux.endpoints.resumable_sessions import ResumableSessions, origin_of
from wsmux.exceptions import HandshakeError
from wsmux.handshake.greeting import receive_greeting, send_greeting
from wsmux.handshake.request import Request
from wsmux.protocols.base import Role
from wsmux.protocols.resumption import Hello, Refusal, Session, Welcome, parse_answer
from wsmux.runtime.deadline import Deadline
from wsmux.runtime.parking import OneShotEvent
from wsmux.testing import FaultProxy

from ..helpers.certificates import Certificates
from ..helpers.raw_peer import BINARY, RawPeer, in_thread, raw_client
from ..helpers.raw_sessions import ID, welcomed
from ..helpers.timeouts import WAIT
from ..helpers.waiting import wait_for

SUBPROTOCOL = "wsmux.resume.v1+wsmux"
GONE = "the process that had the session has ended"
PIECE = 100_000
CUTS = 50


# What clients by hand ask for.
ROOT_PATH = Request("/", "", {}, "")


def echo(stream: wsmux.Stream) -> None:
    stream.timeout = WAIT
    while data := stream.read(65536):
        stream.write(data)
    stream.close_write()


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="wsmux-") as name:  # a short path, for its sockets
        yield Path(name, "workers")


@contextmanager
def worker(
    folder: Path, transport: str = "websocket", limits: wsmux.UserLimits | None = None
) -> Iterator[wsmux.Server]:
    with wsmux.serve(
        stream_handler=echo,
        transport=transport,  # type: ignore[arg-type]
        resume=wsmux.Resume(workers=folder),
        authorize=None if limits is None else lambda request: "anna",
        user_limits=limits,
        config=wsmux.Config(close_timeout=0.1),  # peers by hand answer no closing handshake
    ) as server:
        try:
            yield server
        finally:
            server.shutdown(0)


class Site(NamedTuple):
    """Two servers of one folder, and a session of the first, begun by hand."""

    owner: wsmux.Server
    other: wsmux.Server
    welcome: Welcome

    @property
    def connection(self) -> wsmux.Connection:
        (connection,) = self.owner.connections
        return connection

    def hello(self, **changed: bytes | int) -> Hello:
        return Hello(ID, self.welcome.epoch, 1, True)._replace(**changed)

    @contextmanager
    def answered(self, hello: Hello, key: bytes | None = None) -> Iterator[RawPeer]:
        """Say a HELLO to the server that has no session."""
        with raw_client(self.other.port, subprotocol=SUBPROTOCOL) as peer:
            peer.send_frame(BINARY, hello.encode(self.welcome.key if key is None else key))
            yield peer

    def check_it_stays(self) -> None:
        """Check that the client can still return, with what it would have said next."""
        assert self.connection.stats().reconnects == 0
        with self.answered(self.hello()) as peer:
            assert isinstance(parse_answer(peer.recv_message()), Welcome)


@pytest.fixture
def site(folder: Path) -> Iterator[Site]:
    with (
        worker(folder) as owner,
        worker(folder) as other,
        raw_client(owner.port, subprotocol=SUBPROTOCOL) as peer,
    ):
        peer.send_frame(BINARY, Hello(ID).encode(None))
        welcome = parse_answer(peer.recv_message())
        assert isinstance(welcome, Welcome)
        wait_for(lambda: owner.connections)
        yield Site(owner, other, welcome)


def path_of(folder: Path, epoch: bytes) -> str:
    return str(folder / f"{epoch.hex()}.sock")


@contextmanager
def listening(path: str) -> Iterator[socket.socket]:
    """The process of an epoch, which answers nothing by itself."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(1)
        listener.settimeout(WAIT)
        yield listener


# Clients go on


@pytest.mark.parametrize("transport", ["websocket", "tcp"])
def test_a_client_goes_on_over_whichever_server_it_reaches(folder: Path, transport: str) -> None:
    with (
        worker(folder, transport) as owner,
        worker(folder, transport) as other,
        FaultProxy(owner.port) as proxy,
    ):
        url = proxy.url.replace("ws:", "tcp:") if transport == "tcp" else proxy.url
        with wsmux.connect(url, resume=True) as connection, connection.open_stream() as stream:
            stream.timeout = WAIT
            for count in range(1, CUTS + 1):
                proxy.target = (other, owner, other)[count % 3].port
                data = random.Random(count).randbytes(PIECE)
                writing = in_thread(stream.write, data)
                proxy.reset()
                received = b""
                while len(received) < PIECE:
                    received += stream.read(PIECE)
                assert received == data
                writing.result(WAIT)
                wait_for(lambda count=count: connection.stats().reconnects >= count)
            assert len(owner.connections) == 1
            assert not other.connections


def test_a_user_with_no_place_left_at_the_other_server_returns_over_it(folder: Path) -> None:
    limits = wsmux.UserLimits(connections=1)
    with (
        worker(folder, limits=limits) as owner,
        worker(folder, limits=limits) as other,
        wsmux.connect(other.url),
        FaultProxy(owner.port) as proxy,
        wsmux.connect(proxy.url, resume=True) as connection,
    ):
        proxy.target = other.port
        proxy.reset()
        assert connection.ping(WAIT) > 0
        assert connection.stats().reconnects == 1


def test_bytes_behind_hello_reach_the_session(site: Site) -> None:
    connection = site.connection
    with raw_client(site.other.port, subprotocol=SUBPROTOCOL) as peer:
        end = b"\6" + (1000).to_bytes(2, "big")
        hello = peer.frame(BINARY, site.hello().encode(site.welcome.key))
        peer.sock.sendall(hello + peer.frame(BINARY, end))
        assert isinstance(parse_answer(peer.recv_message()), Welcome)
        peer.sock.close()
        assert connection.wait_closed(WAIT)
        assert connection.close_code == 1000


def test_a_server_that_has_no_session_listens_to_nobody(folder: Path) -> None:
    with worker(folder) as owner, worker(folder), wsmux.connect(owner.url, resume=True):
        assert len(list(folder.iterdir())) == 1
        assert folder.stat().st_mode & 0o777 == 0o700
    assert not list(folder.iterdir())


def test_a_forked_process_has_an_epoch_of_its_own(folder: Path) -> None:
    sessions = ResumableSessions(wsmux.Resume(workers=folder))
    epochs = set()
    for _ in range(2):
        epochs.add(welcomed(sessions).epoch)
        sessions.stop()
        sessions.forked()
    assert len(epochs) == 2


# Nobody else does


@pytest.mark.parametrize(
    ("changed", "key", "lost", "reason"),
    [
        ({}, b"\1" * 32, False, "not signed"),
        ({"session": b"another session!"}, None, True, "does not have the session"),
        ({"epoch": b"restart!"}, None, True, GONE),
        ({"generation": 2**32 - 1, "received": 1}, b"\1" * 32, False, "not signed"),
    ],
)
def test_a_forged_hello_moves_nothing(
    site: Site, changed: dict[str, bytes], key: bytes | None, lost: bool, reason: str
) -> None:
    with site.answered(site.hello(**changed), key) as peer:
        answer = parse_answer(peer.recv_message())
        assert isinstance(answer, Refusal)
        assert answer.lost is lost
        assert reason in answer.reason
        assert peer.recv_to_end() == b""
    site.check_it_stays()


def test_a_hello_is_passed_once(site: Site) -> None:
    with site.answered(site.hello()) as peer:
        assert isinstance(parse_answer(peer.recv_message()), Welcome)
        with site.answered(site.hello()) as again:
            refused = parse_answer(again.recv_message())
            assert refused == Refusal(False, "a later carrier was there before")
        assert site.connection.stats().reconnects == 1


# The owner


def test_an_owner_that_shuts_down_loses_its_sessions(site: Site) -> None:
    site.owner.shutdown(0)
    with site.answered(site.hello()) as peer:
        assert parse_answer(peer.recv_message()) == Refusal(True, GONE)


def test_an_owner_that_was_killed_has_lost_its_sessions(site: Site, folder: Path) -> None:
    epoch = b"killed!!"
    with listening(path_of(folder, epoch)):
        pass  # the name stays, as behind a kill
    with site.answered(site.hello(epoch=epoch)) as peer:
        assert parse_answer(peer.recv_message()) == Refusal(True, GONE)


@pytest.mark.parametrize("full", [False, True])
def test_while_an_owner_stands_still_its_clients_are_told_nothing(
    site: Site, folder: Path, monkeypatch: pytest.MonkeyPatch, full: bool
) -> None:
    monkeypatch.setattr(handover, "ANSWER_TIME", 0.1)
    epoch = b"stopped!"
    with listening(path_of(folder, epoch)) as listener:
        waiting = []
        try:
            for _ in range(BACKLOG if full else 0):
                waiting.append(socket.socket(socket.AF_UNIX))
                waiting[-1].setblocking(False)
                try:
                    waiting[-1].connect(listener.getsockname())
                except BlockingIOError:
                    break
            with site.answered(site.hello(epoch=epoch)) as peer:
                assert peer.recv_to_end() == b""
        finally:
            for each in waiting:
                each.close()


def test_an_owner_that_dies_leaves_its_clients_to_try_again(site: Site, folder: Path) -> None:
    epoch = b"mortal!!"
    with (
        listening(path_of(folder, epoch)) as listener,
        site.answered(site.hello(epoch=epoch)) as peer,
    ):
        listener.accept()[0].close()
        assert peer.recv_to_end() == b""


def test_an_owner_cannot_have_its_client_welcomed(site: Site, folder: Path) -> None:
    epoch = b"mistaken"
    with (
        listening(path_of(folder, epoch)) as listener,
        site.answered(site.hello(epoch=epoch)) as peer,
    ):
        owner, _ = listener.accept()
        with owner:
            receive_greeting(owner, Role.SERVER, Deadline(WAIT))
            send_greeting(owner, Role.SERVER, site.welcome.encode(), Deadline(WAIT))
            assert peer.recv_to_end() == b""


def test_a_client_that_is_back_before_its_session_is_made_tries_again(
    site: Site, folder: Path
) -> None:
    sessions = ResumableSessions(wsmux.Resume(workers=folder))
    ours, theirs = socket.socketpair()
    try:
        with ours, RawPeer(theirs, masks=True) as peer:
            peer.send_frame(BINARY, Hello(ID).encode(None))
            assert isinstance(sessions.greet(ours, Deadline(WAIT), request=ROOT_PATH), Session)
            welcome = parse_answer(peer.recv_message())
        assert isinstance(welcome, Welcome)
        with site.answered(site.hello(epoch=welcome.epoch), welcome.key) as peer:
            assert peer.recv_to_end() == b""
    finally:
        sessions.stop()


# The process that accepted


@contextmanager
def giving(folder: Path, site: Site) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as giver:
        giver.settimeout(WAIT)
        giver.connect(path_of(folder, site.welcome.epoch))
        yield giver


def ask(giver: socket.socket, hello: Hello, key: bytes) -> bytes:
    origin = origin_of(ROOT_PATH)
    send_greeting(giver, Role.CLIENT, origin + hello.encode(key), Deadline(WAIT))
    return receive_greeting(giver, Role.CLIENT, Deadline(WAIT))


def test_one_that_dies_has_moved_nothing(site: Site, folder: Path) -> None:
    with giving(folder, site) as giver:
        assert ask(giver, site.hello(), site.welcome.key) == GIVE
    site.check_it_stays()


def test_one_that_passes_nothing_has_moved_nothing(site: Site, folder: Path) -> None:
    with giving(folder, site) as giver:
        assert ask(giver, site.hello(), site.welcome.key) == GIVE
        giver.sendall(b"\0")
        assert giver.recv(1) == b""
    site.check_it_stays()


def test_a_later_client_wins_that_came_while_one_was_passed(site: Site, folder: Path) -> None:
    ours, theirs = socket.socketpair()
    with giving(folder, site) as giver, RawPeer(theirs, masks=True) as early:
        assert ask(giver, site.hello(), site.welcome.key) == GIVE
        with site.answered(site.hello(generation=2)) as late:
            assert isinstance(parse_answer(late.recv_message()), Welcome)
            socket.send_fds(giver, [b"\0"], [ours.fileno()])
            ours.close()
            refused = parse_answer(early.recv_message())
            assert refused == Refusal(False, "a later carrier was there before")
            late.send_frame(9, b"still there")
            assert late.recv_frame().payload == b"still there"


def test_only_sessions_that_exist_are_passed(site: Site, folder: Path) -> None:
    with giving(folder, site) as giver:
        refused = parse_answer(ask(giver, Hello(os.urandom(16)), bytes(32)))
        assert refused == Refusal(False, "only sessions that exist are passed on")
    with giving(folder, site) as giver:
        send_greeting(giver, Role.CLIENT, b"no HELLO", Deadline(WAIT))
        assert giver.recv(1) == b""
    site.check_it_stays()


def test_processes_of_other_users_are_not_asked(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(sock: socket.socket) -> None:
        raise HandshakeError("its socket is of user 17, and not of 1000")

    monkeypatch.setattr(handover, "check_same_user", refuse)
    with site.answered(site.hello()) as peer:
        assert peer.recv_to_end() == b""
    monkeypatch.undo()
    site.check_it_stays()


# Descriptors


@pytest.mark.parametrize("kind", ["none", "two", "file", "datagrams"])
def test_what_is_no_socket_of_one_connection_is_closed(kind: str, tmp_path: Path) -> None:
    """That nothing stays open is for the guards of every test to see."""
    giver, taker = socket.socketpair()
    first, second = socket.socketpair(type=socket.SOCK_DGRAM if kind == "datagrams" else 1)
    with giver, taker, first, second, (tmp_path / "file").open("w") as file:
        taker.settimeout(WAIT)
        passed = {"none": [], "two": [first, second], "file": [file], "datagrams": [first]}[kind]
        if passed:
            socket.send_fds(giver, [b"\0"], [each.fileno() for each in passed])
        else:
            giver.sendall(b"\0")
        with pytest.raises((HandshakeError, OSError), match="descriptor|not the socket|non-socket"):
            receive_socket(taker)


def test_no_program_inherits_what_was_passed() -> None:
    giver, taker = socket.socketpair()
    first, second = socket.socketpair()
    with giver, taker, first, second:
        socket.send_fds(giver, [b"\0"], [first.fileno()])
        with receive_socket(taker) as same:
            assert not same.get_inheritable()
            same.sendall(b"through")
            assert second.recv(7) == b"through"


# What cannot be passed, and where


def test_a_socket_that_cannot_be_passed_loses_its_session(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sessions = ResumableSessions(wsmux.Resume(workers=folder))
    for _ in range(2):
        ours, theirs = socket.socketpair()
        with RawPeer(theirs, masks=True) as peer:
            hello = Hello(ID, b"another!", 1, True)
            peer.send_frame(BINARY, hello.encode(bytes(32)))
            with pytest.raises(HandshakeError, match="does not have the session"):
                sessions.greet(ours, Deadline(WAIT), passes=False)
            answer = parse_answer(peer.recv_message())
            assert answer == Refusal(True, "this server does not have the session")
    assert [record.message[:43] for record in caplog.records] == [
        "a client of another worker loses its session"[:43]
    ]


def test_a_server_that_ends_tls_passes_nothing(folder: Path, certificates: Certificates) -> None:
    with pytest.raises(ValueError, match=r"leave out Resume\.workers, or let a proxy end TLS"):
        wsmux.serve(
            stream_handler=echo,
            ssl_context=certificates.server,
            resume=wsmux.Resume(workers=folder),
        )


def test_a_folder_of_others_is_refused_at_once(folder: Path) -> None:
    folder.mkdir(mode=0o755)
    with pytest.raises(PermissionError, match="only this user can access"):
        wsmux.serve(stream_handler=echo, resume=wsmux.Resume(workers=folder))


def test_a_server_that_can_no_longer_listen_keeps_its_sessions_to_itself(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with worker(folder) as server, FaultProxy(server.port) as proxy:
        folder.rmdir()
        folder.write_text("no folder")
        with wsmux.connect(proxy.url, resume=True) as connection:
            assert "it cannot listen in Resume.workers" in caplog.text
            proxy.reset()
            wait_for(lambda: connection.stats().reconnects == 1)


def test_one_that_cannot_begin_leaves_no_socket(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(thread: object) -> None:
        raise wsmux.NoThreadError("no thread")

    monkeypatch.setattr(acceptor, "start_thread", fail)
    with pytest.raises(wsmux.NoThreadError):
        TakeOver(folder, b"an epoch", lambda *_: False, lambda *_: None)
    assert not list(folder.iterdir())


def test_the_name_of_a_socket_fits_its_address(folder: Path) -> None:
    longest = folder / ("x" * (LONGEST_WORKERS - len(str(folder)) - 1))
    folder.mkdir()
    with worker(longest) as server, wsmux.connect(server.url, resume=True):
        assert list(longest.iterdir())


def test_an_event_of_a_client_that_was_passed_is_set(site: Site, folder: Path) -> None:
    sessions = ResumableSessions(wsmux.Resume(workers=folder))
    ours, theirs = socket.socketpair()
    with RawPeer(theirs, masks=True) as peer:
        peer.send_frame(BINARY, site.hello().encode(site.welcome.key))
        released = sessions.greet(ours, Deadline(WAIT), request=ROOT_PATH)
        assert isinstance(released, OneShotEvent)
        assert released.is_set()
        assert ours.fileno() == -1
        assert isinstance(parse_answer(peer.recv_message()), Welcome)
