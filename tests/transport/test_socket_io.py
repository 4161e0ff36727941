"""Read TLS records as they come, and keep cleartext and ciphertext apart when they are cut."""

from __future__ import annotations

import array
import fcntl
import os
import select
import socket
import ssl
import struct
import termios
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from wsmux.transport import socket_io
from wsmux.transport.socket_io import TLS_RECORD, TlsSocket, Wakeup

from ..helpers.certificates import Certificates
from ..helpers.raw_peer import wait_for

# Full records, and a short one behind them.
FULL, SHORT = 3 * TLS_RECORD, 100


@pytest.fixture
def pair(certificates: Certificates) -> Iterator[tuple[TlsSocket, ssl.SSLSocket]]:
    """Yield the socket under test, and the other end."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ours = socket.create_connection(listener.getsockname())
        theirs = listener.accept()[0]
    context = certificates.server
    accepted = []
    handshake = threading.Thread(
        target=lambda: accepted.append(context.wrap_socket(theirs, server_side=True))
    )
    handshake.start()
    tls = certificates.client.wrap_socket(ours, server_hostname="127.0.0.1")
    handshake.join()
    with accepted[0], tls:
        sock = TlsSocket(tls)
        while sock.recv_into(memoryview(bytearray(1))) is not None:
            pass  # tickets of the session may have come
        yield sock, accepted[0]


def send(sock: TlsSocket, peer: ssl.SSLSocket, size: int) -> None:
    """Have the peer send bytes, and wait until all of them are here."""
    before = waiting(sock)
    peer.sendall(bytes(size))
    wait_for(lambda: waiting(sock) >= before + size)


def waiting(sock: TlsSocket) -> int:
    """Return how many bytes the system has received and nobody has read."""
    count = array.array("i", [0])
    fcntl.ioctl(sock.fileno(), termios.FIONREAD, count)
    return count[0]


def test_a_cut_tls_socket_neither_reads_ciphertext_nor_writes_cleartext(
    pair: tuple[TlsSocket, ssl.SSLSocket],
) -> None:
    sock, peer = pair
    peer.sendall(b"secret")
    wait_readable(sock)
    sock.shutdown()
    target = bytearray(1000)
    try:
        count = sock.recv_into(memoryview(target)) or 0
    except OSError:
        count = 0
    assert bytes(target[:count]) in (b"", b"secret")


def wait_readable(sock: TlsSocket) -> None:
    """Wait until bytes are there to be read."""
    poller = select.poll()
    poller.register(sock.fileno(), select.POLLIN)
    poller.poll(5000)


def test_all_records_that_have_come_are_received_at_once(
    pair: tuple[TlsSocket, ssl.SSLSocket],
) -> None:
    sock, peer = pair
    target = memoryview(bytearray(FULL + SHORT + 1))
    send(sock, peer, FULL)
    assert (sock.recv_into(target), sock.recv_into(target)) == (FULL, None)
    send(sock, peer, FULL + SHORT)
    assert (sock.recv_into(target), sock.recv_into(target)) == (FULL + SHORT, None)


def test_what_does_not_fit_is_said_to_be_there(pair: tuple[TlsSocket, ssl.SSLSocket]) -> None:
    sock, peer = pair
    send(sock, peer, FULL)
    assert sock.recv_into(memoryview(bytearray(FULL - SHORT))) == FULL - SHORT
    assert sock.pending()
    assert sock.recv_into(memoryview(bytearray(FULL))) == SHORT
    assert not sock.pending()


def say_goodbye(peer: ssl.SSLSocket) -> None:
    peer.setblocking(False)
    with pytest.raises(ssl.SSLWantReadError):
        peer.unwrap()


def hang_up(peer: ssl.SSLSocket) -> None:
    socket.socket.shutdown(peer, socket.SHUT_WR)


def reset(peer: ssl.SSLSocket) -> None:
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.close()


def forge(peer: ssl.SSLSocket) -> None:
    socket.socket.sendall(peer, b"\x17\x03\x03\x00\x20" + bytes(32))


@pytest.mark.parametrize("end", [say_goodbye, hang_up, reset, forge])
def test_an_end_behind_full_records_is_told_after_them(
    end: Callable[[ssl.SSLSocket], None], pair: tuple[TlsSocket, ssl.SSLSocket]
) -> None:
    sock, peer = pair
    send(sock, peer, FULL)
    before = waiting(sock)
    end(peer)
    poller = select.poll()
    poller.register(sock.fileno(), select.POLLRDHUP)
    wait_for(lambda: waiting(sock) > before or bool(poller.poll(0)))
    target = memoryview(bytearray(2 * FULL))
    assert sock.recv_into(target) == FULL
    assert sock.pending()  # a poll may not tell
    if end is forge:
        with pytest.raises(ssl.SSLError, match="bad record mac|decryption failed"):
            sock.recv_into(target)
    elif end is reset:
        with suppress(ConnectionResetError):  # as some versions have it, as others an end of file
            assert sock.recv_into(target) == 0
    else:
        assert sock.recv_into(target) == 0


def test_a_wakeup_is_set_after_the_globals_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the GIL, streams may be freed so late when the interpreter exits."""
    wakeup = Wakeup()
    with monkeypatch.context() as exiting:
        exiting.setattr(socket_io, "os", None)
        wakeup.set()
    assert select.select([wakeup.fd], [], [], 0)[0]
    wakeup.close()


def test_a_child_forked_while_a_wakeup_closes_leaves_the_next_owner_of_its_number_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wakeup = Wakeup()
    copies: list[int] = []
    close = os.close

    def close_and_fork(fd: int) -> None:
        """Close, let the number be used again, and do what a child does that is forked now."""
        monkeypatch.undo()
        close(fd)
        copies.append(os.dup2(0, fd))
        wakeup.forked()

    monkeypatch.setattr(os, "close", close_and_fork)
    wakeup.close()
    os.fstat(copies[0])
    os.close(copies[0])
