"""Every server listens, gives each connection a thread, refuses what is too many, and stops."""

from __future__ import annotations

import itertools
import logging
import os
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

import wsmux
from wsmux import rpc
from wsmux.endpoints import acceptor
from wsmux.endpoints.acceptor import DRAIN, Acceptor, listen, listen_unix
from wsmux.runtime import logs
from wsmux.runtime.deadline import Deadline
from wsmux.runtime.parking import borrow, give_back

from ..helpers.certificates import Certificates
from ..helpers.commands import PATIENCE
from ..helpers.connections import Spawn
from ..helpers.interrupts import interrupted_at
from ..helpers.load.measuring import CHECKOUT
from ..helpers.raw_peer import RawPeer, read_head, request
from ..helpers.request_heads import descriptors, dial, serving, uncaught
from ..helpers.scripted import WAIT
from ..helpers.timeouts import CONNECTS
from ..helpers.waiting import threads_of, wait_for

IDLE = wsmux.Connection.wait_closed


class Greeter(Acceptor):
    """Greet whoever connects, and end."""

    def __init__(self, listener: socket.socket) -> None:
        self.names: list[str] = []
        super().__init__(
            listener, wsmux.Config(), scheme="test", http=False, ssl_context=None, max_connections=4
        )

    def shutdown(self, timeout: float | None = DRAIN) -> None:
        self._shut_down_once(timeout)

    def _end(self, deadline: Deadline) -> None:
        self._join_threads(deadline)

    def _serve(self, sock: socket.socket, address: Any) -> None:
        self.names.append(threading.current_thread().name)
        with sock:
            sock.sendall(b"hello")


def greeting_of(sock: socket.socket) -> bytes:
    """Return all that comes on a socket."""
    sock.settimeout(WAIT)
    return b"".join(iter(lambda: sock.recv(100), b""))


# Listening


def test_port_0_takes_a_free_one_and_the_address_is_told() -> None:
    with Greeter(listen("127.0.0.1", 0)) as server:
        assert server.port > 0
        assert server.url == f"test://127.0.0.1:{server.port}"
        with socket.create_connection((server.host, server.port), WAIT) as sock:
            own = sock.getsockname()[1]
            assert greeting_of(sock) == b"hello"
    assert server.names == [f"wsmux-{server.port}-{own}"]


def test_an_address_of_ipv6_stands_in_brackets() -> None:
    try:
        listener = listen("::1", 0)
    except OSError as error:
        pytest.skip(f"no IPv6 here: {error}")
    with Greeter(listener) as server:
        assert server.url == f"test://[::1]:{server.port}"


def test_several_may_listen_on_a_port_that_is_shared() -> None:
    with listen("127.0.0.1", 0, shared=True) as first:
        port = first.getsockname()[1]
        with listen("127.0.0.1", port, shared=True) as second:
            assert second.getsockname()[1] == port


def test_a_unix_socket_is_served_and_goes_with_the_server(tmp_path: Path) -> None:
    path = str(tmp_path / "a socket")
    with Greeter(listen_unix(path)) as server:
        assert (server.host, server.port) == (path, 0)
        assert server.url == f"unix://{tmp_path}/a%20socket"
        with socket.socket(socket.AF_UNIX) as sock:
            sock.connect(path)
            assert greeting_of(sock) == b"hello"
    assert server.names == ["wsmux-0-unix"]
    assert not os.path.exists(path)


def test_a_unix_socket_that_somebody_tidied_up_harms_no_shutdown(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with Greeter(listen_unix(str(path))):
        path.unlink()


def test_a_unix_socket_that_nobody_listens_on_is_replaced(tmp_path: Path) -> None:
    path = str(tmp_path / "socket")
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(path)
    with listen_unix(path), socket.socket(socket.AF_UNIX) as sock:
        sock.connect(path)


def test_a_unix_socket_that_somebody_listens_on_is_left_to_them(tmp_path: Path) -> None:
    path = str(tmp_path / "socket")
    with listen_unix(path):
        with pytest.raises(OSError, match="in use"):
            listen_unix(path)
        with socket.socket(socket.AF_UNIX) as sock:
            sock.connect(path)


def test_a_file_that_is_no_socket_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("kept")
    with pytest.raises(OSError, match="in use"):
        listen_unix(str(path))
    assert path.read_text() == "kept"


def test_without_a_thread_to_accept_nothing_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    listener = listen("127.0.0.1", 0)
    monkeypatch.setattr(threading.Thread, "start", fail)
    with pytest.raises(wsmux.NoThreadError):
        Greeter(listener)
    assert listener.fileno() == -1


# Connections


def test_more_connections_than_allowed_get_503() -> None:
    with wsmux.serve(IDLE, max_connections=1) as server:
        with wsmux.connect(server.url):
            with pytest.raises(wsmux.HandshakeError) as error:
                wsmux.connect(server.url)
            assert (error.value.status, error.value.retry_safe) == (503, True)
        wait_for(lambda: not server.connections)
        wait_for(lambda: not threads_of(server))
        wsmux.connect(server.url).close()


# Serves in a process of 128 descriptors, of which it has opened so many itself.
FEW_DESCRIPTORS = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
import wsmux
taken = [open("/dev/null") for _ in range(int(sys.argv[1]))]
with wsmux.serve(wsmux.Connection.wait_closed) as server:
    print(server.url, flush=True)
    sys.stdin.read()
"""


@contextmanager
def few_descriptors(taken: int) -> Iterator[int]:
    """Serve in another process that has few descriptors; yield the port."""
    with subprocess.Popen(
        [sys.executable, "-c", FEW_DESCRIPTORS, str(taken)],
        cwd=CHECKOUT,
        env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            port = urlsplit(process.stdout.readline().strip()).port
            assert port is not None
            yield port
        finally:
            process.kill()


def upgraded(stack: ExitStack, port: int, source: str) -> int:
    """Ask for a WebSocket from an address, and keep it; return the status of the answer."""
    sock = socket.create_connection(("127.0.0.1", port), PATIENCE, (source, 0))
    stack.enter_context(sock).sendall(request(f"127.0.0.1:{port}"))
    return int(read_head(sock)[0].split()[1])


def test_one_address_leaves_descriptors_to_others_and_all_of_them_to_the_process() -> None:
    with few_descriptors(0) as port, ExitStack() as stack:
        assert [upgraded(stack, port, "127.0.0.2") for _ in range(13)] == [101] * 12 + [429]
        assert [upgraded(stack, port, "127.0.0.3") for _ in range(12)] == [101] * 12
        assert upgraded(stack, port, "127.0.0.4") == 503


def test_a_client_is_answered_though_the_process_has_taken_its_descriptors_itself() -> None:
    with few_descriptors(110) as port, ExitStack() as stack:
        assert upgraded(stack, port, "127.0.0.1") == 503


def test_a_full_server_says_nothing_to_a_client_before_tls(certificates: Certificates) -> None:
    with wsmux.serve(IDLE, ssl_context=certificates.server, max_connections=1) as server:
        place = server.host, server.port
        with socket.create_connection(place, timeout=WAIT):
            wait_for(lambda: threads_of(server) == 1)
            with socket.create_connection(place, timeout=WAIT) as late:
                assert late.recv(100) == b""


def test_a_connection_that_is_served_is_no_longer_in_its_opening(
    certificates: Certificates,
) -> None:
    with (
        wsmux.serve(IDLE, ssl_context=certificates.server) as server,
        wsmux.connect(server.url, ssl_context=certificates.client),
    ):
        wait_for(lambda: len(server.connections) == 1)
        assert not server._opening


def test_a_port_where_somebody_listens_is_not_shared_unasked() -> None:
    with wsmux.serve(IDLE) as server, pytest.raises(OSError, match="in use"):
        wsmux.serve(IDLE, port=server.port)


def test_a_slow_client_holds_up_nobody() -> None:
    config = wsmux.Config(handshake_timeout=CONNECTS)
    with wsmux.serve(IDLE, config=config) as server:
        with socket.create_connection((server.host, server.port), timeout=WAIT) as slow:
            slow.sendall(b"GET / HTTP/1.1\r\n")
            wsmux.connect(server.url).close()
            assert not slow.recv(100).startswith(b"HTTP/1.1 101")
        wait_for(lambda: not threads_of(server))


# Shutdown


def test_shutdown_stops_listening() -> None:
    server = wsmux.serve(IDLE)
    server.shutdown()
    with pytest.raises(ConnectionRefusedError):
        wsmux.connect(server.url)


@pytest.mark.parametrize("served", ["streams", "river"])
@pytest.mark.parametrize(
    ("said", "tls"), [(b"", False), (b"GET / HT", False), (b"", True), (b"\x16", True)]
)
def test_shutdown_does_not_wait_for_clients_that_do_not_finish_their_opening(
    said: bytes, tls: bool, served: str, certificates: Certificates
) -> None:
    context = certificates.server if tls else None
    server: Acceptor
    if served == "river":
        server = rpc.serve([], ssl_context=context)
    else:
        server = wsmux.serve(IDLE, ssl_context=context)
    with socket.create_connection((server.host, server.port), timeout=WAIT) as silent:
        silent.sendall(said)
        wait_for(lambda: server._opening)
        server.shutdown(2 * server._config.handshake_timeout)
        assert not threads_of(server)
        assert silent.recv(100) == b""


def test_serve_forever_returns_at_the_shutdown(spawn: Spawn) -> None:
    server = wsmux.serve(IDLE)
    serving = spawn(server.serve_forever)
    server.shutdown()
    serving.result(WAIT)


def test_ctrl_c_at_any_step_of_serve_forever_ends_the_server(spawn: Spawn) -> None:
    main = threading.get_ident()

    def serve() -> None:
        with server:
            server.serve_forever()

    def end() -> None:  # once it waits, or is interrupted before that
        wait_for(lambda: ended or sys._current_frames()[main].f_code.co_name == "park")
        server.shutdown()

    for number in itertools.count(1):
        give_back(borrow())  # a descriptor that is made just then is lost
        server, ended = Greeter(listen("127.0.0.1", 0)), False
        ending = spawn(end)
        interrupted = interrupted_at(number, serve)
        ended = True
        ending.result(WAIT)
        if not interrupted:
            break
    assert number > 10


def test_a_with_block_gives_time_to_what_runs_unless_an_exception_leaves_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: list[float | None] = []
    shutdown = wsmux.Server.shutdown

    def noted(server: wsmux.Server, timeout: float | None) -> None:
        given.append(timeout)
        shutdown(server, timeout)

    monkeypatch.setattr(wsmux.Server, "shutdown", noted)
    with wsmux.serve(IDLE):
        pass
    with pytest.raises(ArithmeticError), wsmux.serve(IDLE):
        raise ArithmeticError
    assert given == [DRAIN, 0.0]


def test_a_shutdown_that_fails_has_ended_all_the_same(
    monkeypatch: pytest.MonkeyPatch, spawn: Spawn
) -> None:
    def fail(*_: object) -> None:
        raise ArithmeticError

    server = wsmux.serve(IDLE)
    with monkeypatch.context() as patch:
        patch.setattr(wsmux.Server, "_end", fail)
        with pytest.raises(ArithmeticError):
            server.shutdown()
    try:
        spawn(server.serve_forever).result(WAIT)
    finally:
        server.shutdown()


# Errors


class Odd(Exception):
    """An error of a library."""


def odd(*_: object, **__: object) -> None:
    raise Odd("not\nforeseen")


@pytest.mark.parametrize("name", ["read_request", "accept"])
@pytest.mark.parametrize("secure", [False, True], ids=["plain", "tls"])
def test_an_error_that_nobody_foresaw_closes_the_socket_and_is_one_line(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    certificates: Certificates,
    name: str,
    secure: bool,
) -> None:
    monkeypatch.setattr(logs, "PAUSE", WAIT)
    monkeypatch.setattr(acceptor, name, odd)
    seen = uncaught(monkeypatch)
    with serving(ssl_context=certificates.server if secure else None) as server:
        before = descriptors()
        for _ in range(5):
            sock: socket.socket = dial(server)
            if secure:
                sock = certificates.client.wrap_socket(sock, server_hostname="localhost")
            with RawPeer(sock, masks=True) as peer:
                try:
                    peer.send(request("a"))
                    assert peer.recv_to_end() == b""
                except (ssl.SSLError, ConnectionError):  # closed over what was not read
                    pass
        wait_for(lambda: not threads_of(server))
        assert descriptors() == before
    errors = [record for record in caplog.records if record.levelno > logging.INFO]
    assert len(errors) == 1
    text = errors[0].getMessage()
    assert text.isprintable()
    assert "Odd: not" in text
    assert Path(__file__).name in text
    assert errors[0].exc_info is None
    assert not seen
