"""Cut a resumable conversation at each byte of its carrier: what is read equals what was written.

Plain runs take every few hundredth offset; all of them: ``pytest -m long`` with this file.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from queue import Queue
from typing import Literal, NamedTuple

import pytest

import wsmux
from wsmux.testing import FaultProxy

from ..helpers.js_ws import short_js_ws_close as short_js_ws_close
from ..helpers.raw_peer import in_thread
from ..helpers.timeouts import WAIT
from ..helpers.waiting import wait_for
from ..helpers.wires import NAMES

UP, DOWN = (random.Random(seed).randbytes(1500) for seed in "ud")
PIECE = 300

Way = Literal["up", "down"]
Transport = Literal["websocket", "tcp"]


class Told(NamedTuple):
    """What the server has read: of the client's stream, and as the answer to its own."""

    taken: bytes
    answered: bytes


def write_all(stream: wsmux.Stream, data: bytes) -> None:
    for start in range(0, len(data), PIECE):
        stream.write(data[start : start + PIECE])
    stream.close_write()


@contextmanager
def serving(protocol: str, transport: Transport) -> Iterator[tuple[FaultProxy, Queue[Told]]]:
    """Serve one conversation after another: read a stream while writing, then open one."""
    told: Queue[Told] = Queue()

    def handle(connection: wsmux.Connection) -> None:
        with connection.accept_stream(WAIT) as stream:
            stream.timeout = WAIT
            writing = in_thread(write_all, stream, DOWN)
            taken = stream.read()
            writing.result(WAIT)
        with connection.open_stream(timeout=WAIT) as stream:
            stream.timeout = WAIT
            write_all(stream, DOWN)
            told.put(Told(taken, stream.read()))
        connection.wait_closed(WAIT)

    with (
        wsmux.serve(handle, protocols=[protocol], transport=transport, resume=True) as server,
        FaultProxy(server.port) as proxy,
    ):
        if transport == "tcp":
            proxy.url = proxy.url.replace("ws:", "tcp:")
        yield proxy, told


def converse(connection: wsmux.Connection) -> None:
    with connection.open_stream(timeout=WAIT) as stream:
        stream.timeout = WAIT
        writing = in_thread(write_all, stream, UP)
        assert stream.read() == DOWN
        writing.result(WAIT)
    with connection.accept_stream(WAIT) as stream:
        stream.timeout = WAIT
        assert stream.read() == DOWN
        write_all(stream, UP)


def lengths(proxy: FaultProxy, told: Queue[Told], protocol: str, way: Way) -> range:
    """Return the offsets of a whole conversation, from behind the handshake on."""
    before = proxy.counters(way).forwarded
    connection = wsmux.connect(proxy.url, protocol=protocol, resume=True)
    proxy.cut_after(way=way)  # no cut, but behind it the proxy has counted what has arrived
    begun = proxy.counters(way).forwarded - before
    converse(connection)
    assert told.get(timeout=WAIT) == Told(UP, UP)
    ended = proxy.counters(way).forwarded - before
    connection.close(WAIT)
    return range(begun, ended)


def cut_at(
    proxy: FaultProxy, told: Queue[Told], protocol: str, way: Way, offset: int, how: str
) -> bool:
    """Have a conversation whose first carrier ends behind a byte; return whether it did."""
    proxy.cut_after(offset, way=way, how=how)  # type: ignore[arg-type]
    with wsmux.connect(proxy.url, protocol=protocol, resume=True, timeout=WAIT) as connection:
        assert connection.resumable
        converse(connection)
        assert told.get(timeout=WAIT) == Told(UP, UP)
        was_cut = not proxy.cutting
        proxy.cut_after(way=way)  # none that is still to come
        if was_cut:
            # What was cut off may be nothing that the conversation needed.
            wait_for(lambda: connection.stats().reconnects >= 1)
    return was_cut


def run(protocol: str, way: Way, how: str, stride: int, transport: Transport = "websocket") -> None:
    with serving(protocol, transport) as (proxy, told):
        offsets = lengths(proxy, told, protocol, way)
        cuts = 0
        for offset in offsets[1:-1:stride]:
            cuts += cut_at(proxy, told, protocol, way, offset, how)
        assert cuts


@pytest.mark.parametrize("protocol", NAMES)
@pytest.mark.parametrize(("way", "how", "stride"), [("up", "rst", 197), ("down", "fin", 197)])
def test_a_conversation_goes_on_behind_a_cut(
    protocol: str, way: Way, how: str, stride: int
) -> None:
    run(protocol, way, how, stride)


@pytest.mark.parametrize("protocol", NAMES)
@pytest.mark.parametrize(("way", "how", "stride"), [("up", "fin", 197), ("down", "rst", 197)])
def test_a_conversation_over_plain_sockets_goes_on_behind_a_cut(
    protocol: str, way: Way, how: str, stride: int
) -> None:
    run(protocol, way, how, stride, "tcp")


@pytest.mark.long
@pytest.mark.parametrize("protocol", NAMES)
@pytest.mark.parametrize("way", ["up", "down"])
@pytest.mark.parametrize("how", ["rst", "fin"])
def test_a_conversation_goes_on_behind_a_cut_at_each_byte(
    protocol: str, way: Way, how: str
) -> None:
    run(protocol, way, how, 1)


@pytest.mark.long
@pytest.mark.parametrize("way", ["up", "down"])
def test_a_conversation_over_plain_sockets_goes_on_behind_a_cut_at_each_byte(way: Way) -> None:
    run("yamux", way, "rst", 1, "tcp")
