"""Keep cleartext and ciphertext apart when a TLS connection is cut."""

from __future__ import annotations

import select
import socket
import threading

from wsmux.sockio import take_over

from ..certificates import Certificates


def test_a_cut_tls_socket_neither_reads_ciphertext_nor_writes_cleartext(
    certificates: Certificates,
) -> None:
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
        sock = take_over(tls)
        accepted[0].sendall(b"secret")
        wait_readable(tls)
        sock.shutdown()
        target = bytearray(1000)
        try:
            count = sock.recv_into(memoryview(target)) or 0
        except OSError:
            count = 0
        assert bytes(target[:count]) in (b"", b"secret")


def wait_readable(sock: socket.socket) -> None:
    """Wait until bytes are there to be read."""
    poller = select.poll()
    poller.register(sock.fileno(), select.POLLIN)
    poller.poll(5000)
