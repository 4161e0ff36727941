"""A stream behind a real socket ends, breaks and holds back as the stream does, in every wire."""

from __future__ import annotations

import errno
import gc
import os
import random
import select
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import NoReturn

import pytest

import wsmux
from wsmux.mux import stream_socket
from wsmux.mux.stream_socket import carry, loopback_pair, reset_on_close

from ..helpers.certificates import Certificates
from ..helpers.connections import Spawn
from ..helpers.joined_streams import Joined, open_pair, write_on
from ..helpers.resumed import joined as joined_over
from ..helpers.resumed import pair
from ..helpers.scripted import WAIT
from ..helpers.timeouts import WAIT as PATIENT
from ..helpers.waiting import wait_for
from ..helpers.wires import NAMES, wire_of

DATA = random.Random(5).randbytes(1_234_567)
AT_ONCE = 50


@pytest.fixture(params=NAMES)
def joined(request: pytest.FixtureRequest) -> Iterator[Joined]:
    """Return one stream from both sides, in each wire."""
    client, server = wsmux.pair(protocol=request.param)
    with client, server:
        yield open_pair(client, server)


@pytest.fixture
def native() -> Iterator[Joined]:
    """Return one stream from both sides, where every end can be said."""
    client, server = wsmux.pair()
    with client, server:
        yield open_pair(client, server)


def socket_of(stream: wsmux.Stream) -> socket.socket:
    sock = stream.as_socket()
    sock.settimeout(WAIT)
    return sock


def receive_all(sock: socket.socket) -> bytes:
    return b"".join(iter(lambda: sock.recv(100_000), b""))


def send_and_end(sock: socket.socket, data: bytes) -> None:
    sock.sendall(data)
    sock.shutdown(socket.SHUT_WR)


def send_on(sock: socket.socket) -> NoReturn:
    while True:
        sock.sendall(bytes(100_000))


# Bytes and clean ends


def test_bytes_and_both_ends_pass(joined: Joined, spawn: Spawn) -> None:
    with socket_of(joined.near) as sock:
        sent = spawn(send_and_end, sock, DATA)
        assert joined.far.read() == DATA
        spawn(lambda: (joined.far.write(DATA), joined.far.close_write()))
        assert receive_all(sock) == DATA
        sent.result(WAIT)


def test_each_half_ends_by_itself(joined: Joined) -> None:
    with socket_of(joined.near) as sock:
        joined.far.write(b"all there is")
        joined.far.close_write()
        assert receive_all(sock) == b"all there is"
        send_and_end(sock, b"answer")
        assert joined.far.read() == b"answer"


def test_carry_ends_with_both_directions_and_closes_both(native: Joined, spawn: Spawn) -> None:
    ours, theirs = loopback_pair()
    done = spawn(carry, native.near, theirs)
    with ours:
        native.far.write(b"all there is")
        native.far.close_write()
        assert receive_all(ours) == b"all there is"
    assert native.far.read() == b""
    done.result(WAIT)
    assert native.near.closed
    assert theirs.fileno() < 0


def test_a_socket_that_nobody_reads_holds_up_the_writer(native: Joined) -> None:
    with socket_of(native.near) as sock:
        native.far.timeout = 0.3
        with pytest.raises(wsmux.WriteTimeout) as caught:
            native.far.write(bytes(64 * 1024 * 1024))
        held = caught.value.bytes_written
        assert held < 32 * 1024 * 1024
        native.far.close_write()
        assert len(receive_all(sock)) == held


def test_a_stream_that_nobody_reads_holds_up_the_socket(native: Joined) -> None:
    with socket_of(native.near) as sock:
        sock.settimeout(0.3)
        with pytest.raises(TimeoutError):
            sock.sendall(bytes(64 * 1024 * 1024))


# Every other end


def test_a_reset_of_the_stream_resets_the_socket(joined: Joined) -> None:
    with socket_of(joined.near) as sock:
        joined.far.reset()
        if wire_of(joined.far).resets:
            with pytest.raises(ConnectionResetError):
                sock.recv(1)
        else:
            assert sock.recv(1) == b""


@pytest.mark.parametrize("end", ["near", "far"])
def test_a_lost_connection_is_no_end_of_file(joined: Joined, end: str) -> None:
    with socket_of(joined.near) as sock:
        getattr(joined, end).connection.abort()
        with pytest.raises(ConnectionResetError):
            sock.recv(1)


def test_a_closed_connection_is_no_end_of_file_either(native: Joined) -> None:
    with socket_of(native.near) as sock:
        native.near.connection.close(WAIT)
        with pytest.raises(ConnectionResetError):
            sock.recv(1)


def test_what_arrived_before_the_loss_is_read_first(native: Joined) -> None:
    with socket_of(native.near) as sock:
        native.far.write(b"arrived")
        assert sock.recv(100, socket.MSG_PEEK) == b"arrived"
        native.far.connection.abort()
        wait_for(lambda: native.near.closed)
        assert sock.recv(100) == b"arrived"
        with pytest.raises(ConnectionResetError):
            sock.recv(1)


def test_a_loss_ends_it_while_the_socket_neither_reads_nor_writes(
    native: Joined, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_socket, "LOOK", 0.01)
    with socket_of(native.near):
        native.far.timeout = 0.3
        with pytest.raises(wsmux.WriteTimeout):
            native.far.write(bytes(64 * 1024 * 1024))
        native.far.connection.abort()
        wait_for(lambda: native.near.closed)


def test_a_reset_ends_it_while_the_socket_neither_reads_nor_writes(
    native: Joined, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_socket, "LOOK", 0.01)
    with socket_of(native.near):
        native.far.timeout = 0.3
        with pytest.raises(wsmux.WriteTimeout):
            native.far.write(bytes(64 * 1024 * 1024))
        native.far.reset(77)
        wait_for(lambda: native.near.closed)


def test_a_reset_of_the_socket_resets_the_stream(joined: Joined) -> None:
    sock = socket_of(joined.near)
    reset_on_close(sock)
    sock.close()
    if wire_of(joined.far).resets:
        with pytest.raises(wsmux.StreamReset):
            joined.far.read()
    else:
        assert joined.far.read() == b""


def test_a_closed_socket_says_that_it_reads_no_further(native: Joined) -> None:
    socket_of(native.near).close()
    assert native.far.read() == b""
    with pytest.raises((wsmux.StreamWriteClosed, wsmux.StreamReset)):
        write_on(native.far)


def test_a_peer_that_reads_no_further_can_still_answer(native: Joined, spawn: Spawn) -> None:
    with socket_of(native.near) as sock:
        sock.sendall(b"x")
        assert native.far.read(1) == b"x"
        native.far.close_read()
        sock.sendall(bytes(4_000_000))  # dropped, and holds up nothing
        native.far.write(DATA)
        native.far.close_write()
        assert receive_all(sock) == DATA


def test_a_socket_that_goes_on_sending_what_nobody_reads_is_reset(
    native: Joined, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_socket, "LOOK", 0.01)
    monkeypatch.setattr(stream_socket, "LINGER", 0.05)
    with socket_of(native.near) as sock:
        native.far.close()
        with pytest.raises(ConnectionError):
            send_on(sock)


@pytest.mark.parametrize("end", ["close", "close_read", "close_write", "reset"])
@pytest.mark.parametrize("held", [False, True], ids=["socket closed", "socket held"])
def test_a_stream_that_its_owner_ends_leaves_no_traceback_of_a_thread(
    native: Joined, monkeypatch: pytest.MonkeyPatch, end: str, held: bool
) -> None:
    failed: list[object] = []
    monkeypatch.setattr(threading, "excepthook", failed.append)
    with socket_of(native.near) as sock, native.far:
        if not held:
            sock.close()
        getattr(native.near, end)()
        native.far.close_write()
        if held:
            with suppress(OSError):  # the reset may be there already
                sock.sendall(b"too late")
    wait_for(lambda: not [each for each in threading.enumerate() if "-stream-" in each.name])
    assert failed == []


def test_a_stream_that_times_out_resets_the_socket(native: Joined) -> None:
    native.near.timeout = 0.01
    with socket_of(native.near) as sock, pytest.raises(ConnectionResetError):
        sock.recv(1)


def test_carry_raises_what_failed_first(native: Joined, spawn: Spawn) -> None:
    ours, theirs = loopback_pair()
    done = spawn(carry, native.near, theirs)
    with ours:
        native.far.reset(77)
        with pytest.raises(wsmux.StreamReset) as caught:
            done.result(WAIT)
    assert caught.value.code == 77


# What sockets are wanted for


def test_select_tells_when_there_is_something_to_read(native: Joined) -> None:
    with socket_of(native.near) as sock:
        assert select.select([sock], [sock], [], 0)[:2] == ([], [sock])
        native.far.write(b"x")
        assert select.select([sock], [], [], WAIT)[0] == [sock]
        assert sock.recv(10) == b"x"


def test_a_child_process_takes_it_as_stdin_and_stdout(native: Joined) -> None:
    program = "import shutil, sys; shutil.copyfileobj(sys.stdin.buffer, sys.stdout.buffer)"
    with native.near.as_socket() as sock:
        child = subprocess.Popen([sys.executable, "-c", program], stdin=sock, stdout=sock)
    native.far.write(b"there and back")
    native.far.close_write()
    assert native.far.read() == b"there and back"
    assert child.wait(WAIT) == 0


def test_tls_runs_inside_a_stream_both_ways(
    native: Joined, certificates: Certificates, spawn: Spawn
) -> None:
    def receive(secure: ssl.SSLSocket) -> bytes:
        received = bytearray()
        while len(received) < len(DATA):
            received += secure.recv(100_000)
        return bytes(received)

    def answer() -> bytes:
        with certificates.server.wrap_socket(socket_of(native.far), server_side=True) as secure:
            data = receive(secure)
            secure.sendall(data)
            return data

    # One direction after the other: two threads may not use one SSL object of OpenSSL's at once.
    far = spawn(answer)
    with certificates.client.wrap_socket(
        socket_of(native.near), server_hostname="localhost"
    ) as near:
        near.sendall(DATA)
        assert receive(near) == DATA
    assert far.result(WAIT) == DATA


def test_fifty_at_once_leave_nothing_behind(spawn: Spawn) -> None:
    client, server = wsmux.pair()
    with client, server:

        def digest(number: int) -> bool:
            data = random.Random(number).randbytes(200_000)
            with socket_of(client.open_stream(WAIT)) as sock:
                sender = threading.Thread(target=send_and_end, args=(sock, data))
                sender.start()
                back = receive_all(sock)
                sender.join()
            return back == data

        def echo() -> None:
            with socket_of(server.accept_stream(WAIT)) as sock:
                while data := sock.recv(100_000):
                    sock.sendall(data)

        echoes = [spawn(echo) for _ in range(AT_ONCE)]
        assert all(result.result(WAIT) for result in [spawn(digest, i) for i in range(AT_ONCE)])
        for each in echoes:
            each.result(WAIT)
        wait_for(lambda: client.stats().streams == server.stats().streams == 0)


# What may go wrong


def test_a_strangers_connection_is_turned_away(monkeypatch: pytest.MonkeyPatch) -> None:
    strangers: list[socket.socket] = []
    create = socket.create_server

    def visited(*args: object, **options: object) -> socket.socket:
        listener = create(*args, **options)  # type: ignore[arg-type]
        strangers.append(socket.create_connection(listener.getsockname()))
        return listener

    monkeypatch.setattr(socket, "create_server", visited)
    one, other = loopback_pair()
    with one, other, strangers[0]:
        assert one.getsockname() == other.getpeername()
        one.sendall(b"x")
        assert other.recv(1) == b"x"
        strangers[0].settimeout(WAIT)
        assert strangers[0].recv(1) == b""


def test_without_a_thread_the_stream_is_still_its_callers(
    native: Joined, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError):
            native.near.as_socket()
    native.near.write(b"x")
    assert native.far.read(1) == b"x"


def test_without_a_second_thread_both_are_reset(
    native: Joined, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = loopback_pair()

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with ours, monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError):
            carry(native.near, theirs)
        with pytest.raises(ConnectionResetError):
            ours.recv(1)
    with pytest.raises(wsmux.StreamReset):
        native.far.read()


def test_the_copy_in_a_forked_child_is_closed(native: Joined) -> None:
    with socket_of(native.near) as sock:
        gc.collect()
        child = os.fork()
        if child == 0:
            try:
                sock.recv(1)
            except OSError as error:
                os._exit(0 if error.errno == errno.EBADF else 1)
            os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        native.far.write(b"x")
        assert sock.recv(1) == b"x"
        native.far.connection.abort()
        with pytest.raises(ConnectionResetError):
            sock.recv(1)


@pytest.mark.parametrize("protocol", NAMES)
def test_a_socket_carries_on_behind_cuts_of_the_connection(protocol: str, spawn: Spawn) -> None:
    with pair(protocol=protocol) as ends:
        ours, theirs = joined_over(ends)
        with ours.as_socket() as near, theirs.as_socket() as far:
            for sock in (near, far):
                sock.settimeout(PATIENT)
            for sender, reader, way in ((near, far, "up"), (far, near, "down")):
                ends.proxy.cut_after(300_000, 200_001, way=way, how="rst")  # type: ignore[arg-type]

                def send(sender: socket.socket = sender) -> None:
                    sender.sendall(DATA)
                    sender.shutdown(socket.SHUT_WR)

                sending = spawn(send)
                received = b"".join(iter(lambda reader=reader: reader.recv(65536), b""))
                sending.result(PATIENT)
                assert received == DATA
                assert not ends.proxy.cutting
            assert ends.client.stats().reconnects >= 4
