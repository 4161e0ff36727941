"""Let both ends write bulk over tiny socket buffers while both ping: nobody may hang.

In the four wires, over TCP with and without TLS.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

import pytest

import wsmux

from ..helpers.certificates import Certificates
from ..helpers.raw_peer import WAIT, in_thread
from ..helpers.tables import each_case
from ..helpers.wires import NAMES

BUFFERS = 4096
PAYLOAD = bytes(range(256)) * 256
CONFIG = wsmux.Config(receive_window=20_000, max_send_queue=16_384, ping_interval=None)

Join = Callable[[str, Certificates], tuple[wsmux.Connection, wsmux.Connection]]


def narrow_pair() -> tuple[socket.socket, socket.socket]:
    """Return two joined TCP sockets with buffers as small as the kernel makes them."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            listener.setsockopt(socket.SOL_SOCKET, option, BUFFERS)
        client = socket.socket()
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            client.setsockopt(socket.SOL_SOCKET, option, BUFFERS)
        client.settimeout(WAIT)
        client.connect(listener.getsockname())
        listener.settimeout(WAIT)
        server, _ = listener.accept()
        server.settimeout(WAIT)
        return client, server


def take(protocol: str, client: Any, server: Any) -> tuple[wsmux.Connection, wsmux.Connection]:
    return (
        wsmux.from_socket(client, role="client", protocol=protocol, config=CONFIG),
        wsmux.from_socket(server, role="server", protocol=protocol, config=CONFIG),
    )


def plain(protocol: str, _: Certificates) -> tuple[wsmux.Connection, wsmux.Connection]:
    return take(protocol, *narrow_pair())


def tls(protocol: str, certificates: Certificates) -> tuple[wsmux.Connection, wsmux.Connection]:
    client, server = narrow_pair()
    accepting = in_thread(certificates.server.wrap_socket, server, server_side=True)
    wrapped = certificates.client.wrap_socket(client, server_hostname="localhost")
    return take(protocol, wrapped, accepting.result(WAIT))


def both_ways(join: Join, protocol: str, certificates: Certificates) -> None:
    """Carry two streams of bulk each way at once, with pings, and check every byte."""
    ends = join(protocol, certificates)
    try:
        calls = []
        for end in ends:
            for _ in range(2):
                stream = end.open_stream(WAIT)
                stream.timeout = WAIT
                calls.append(in_thread(write_all, stream))
        for end in ends:
            for _ in range(2):
                stream = end.accept_stream(WAIT)
                stream.timeout = WAIT
                calls.append(in_thread(check_all, stream))
            calls.append(in_thread(ping_often, end))
        for call in calls:
            call.result(WAIT)
    finally:
        closings = [in_thread(end.close, WAIT) for end in ends]
        for closing in closings:
            closing.result(WAIT)


def write_all(stream: wsmux.Stream) -> None:
    assert stream.write(PAYLOAD) == len(PAYLOAD)
    stream.close_write()
    assert stream.read() == b""


def check_all(stream: wsmux.Stream) -> None:
    assert stream.read() == PAYLOAD
    stream.close_write()


def ping_often(connection: wsmux.Connection) -> None:
    for _ in range(20):
        connection.ping(WAIT)


@each_case
@pytest.mark.parametrize("protocol", NAMES)
@pytest.mark.parametrize("join", [plain, tls])
@pytest.mark.parametrize("run", range(10))
def test_bulk_both_ways_over_tiny_buffers_with_pings_does_not_hang(
    run: int, join: Join, protocol: str, certificates: Certificates
) -> None:
    both_ways(join, protocol, certificates)


@pytest.mark.long
@pytest.mark.parametrize("protocol", NAMES)
@pytest.mark.parametrize("join", [plain, tls])
def test_200_runs_of_bulk_both_ways_do_not_hang(
    join: Join, protocol: str, certificates: Certificates
) -> None:
    for _ in range(200):
        both_ways(join, protocol, certificates)
