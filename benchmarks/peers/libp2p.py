"""Measure Yamux of PyPI ``libp2p`` over one WebSocket: a line is a stream.

Its muxer is used alone, without the encryption and the negotiation that a libp2p connection has
below it, and on ``wsproto`` over a socket of trio, which is faster than the WebSocket transport
that comes with it. The loops run in trio, and a thread waits for what they return.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

from .. import words
from ..measures import MEASURES
from ..peer import Peer
from ..words import CHUNK, Talk

T = TypeVar("T")

Work = Callable[[], Awaitable[object]]

# Bytes asked of the socket at a time, as many as wsmux comes to take.
RECEIVE = 256 * 1024


class Libp2pYamux(Peer):
    """Run by a Python of its own, since libp2p wants versions of packages that others do not."""

    @contextmanager
    def serve(self) -> Iterator[str]:
        with _in_trio(_serve) as (_, address):
            yield address

    @contextmanager
    def connect(self, address: str) -> Iterator[Any]:
        with _in_trio(_connect, address) as (portal, muxer):
            yield Trio(portal, muxer)


@contextmanager
def _in_trio(main: Callable[..., Awaitable[None]], *arguments: str) -> Iterator[tuple[Any, Any]]:
    """Run ``main`` in a thread of trio; yield what calls functions there, and what it tells."""
    from anyio.from_thread import start_blocking_portal  # which libp2p needs

    with start_blocking_portal("trio") as portal:
        running, told = portal.start_task(main, *arguments)
        yield portal, told
        running.cancel()


class _Carrier:
    """What the muxer reads and writes: the bytes of the binary messages of a WebSocket."""

    def __init__(self, stream: Any, is_initiator: bool) -> None:
        from wsproto import ConnectionType, WSConnection

        self.is_initiator = is_initiator
        self._stream = stream
        self._socket = WSConnection(
            ConnectionType.CLIENT if is_initiator else ConnectionType.SERVER
        )
        self._unread = bytearray()

    async def _events(self) -> list[Any]:
        """Return what the next bytes mean."""
        from libp2p.io.exceptions import IOException

        data = await self._stream.receive_some(RECEIVE)
        if not data:
            raise IOException("the connection ended")
        self._socket.receive_data(data)
        return list(self._socket.events())

    async def shake_hands(self) -> None:
        from wsproto.events import AcceptConnection, Request

        if self.is_initiator:
            request = Request(host="localhost", target="/", subprotocols=["yamux"])
            await self._stream.send_all(self._socket.send(request))
        while not await self._events():
            pass
        if not self.is_initiator:
            accepted = AcceptConnection(subprotocol="yamux")
            await self._stream.send_all(self._socket.send(accepted))

    async def read(self, size: int) -> bytes:
        from wsproto.events import BytesMessage

        unread = self._unread
        while not unread:
            for event in await self._events():
                if isinstance(event, BytesMessage):
                    unread += event.data
        taken = bytes(unread[:size])
        del unread[:size]
        return taken

    async def write(self, data: bytes) -> None:
        from wsproto.events import BytesMessage

        await self._stream.send_all(self._socket.send(BytesMessage(data)))

    async def close(self) -> None:
        await self._stream.aclose()


def _muxer(carrier: _Carrier) -> Any:
    from libp2p.peer.id import ID
    from libp2p.stream_muxer.yamux.yamux import Yamux

    return Yamux(carrier, ID(b"peer"), carrier.is_initiator)


async def _read(stream: Any) -> bytes:
    from libp2p.stream_muxer.exceptions import MuxedStreamEOF

    try:
        data: bytes = await stream.read(CHUNK)
    except MuxedStreamEOF:
        return b""
    return data


async def _talk(stream: Any, side: Talk[T]) -> T:
    """Do what ``talk`` does."""
    got = None
    try:
        while True:
            data = side.send(got)
            got = await _read(stream) if data is None else await stream.write(data)
    except StopIteration as end:
        value: T = end.value
        return value


# The server


async def _serve(*, task_status: Any) -> None:
    import trio

    async def serve(stream: Any) -> None:
        from libp2p.stream_muxer.exceptions import MuxedConnUnavailable

        carrier = _Carrier(stream, is_initiator=False)
        await carrier.shake_hands()
        muxer = _muxer(carrier)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(muxer.start)
            while True:
                try:
                    nursery.start_soon(_serve_line, await muxer.accept_stream())
                except MuxedConnUnavailable:
                    return

    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    host, port = listeners[0].socket.getsockname()
    task_status.started(f"{host}:{port}")
    await trio.serve_listeners(serve, listeners)


async def _serve_line(stream: Any) -> None:
    """Do what ``serve_line`` does."""
    from libp2p.stream_muxer.exceptions import MuxedStreamError

    try:
        await _talk(stream, words.answer())
        await stream.close()
    except MuxedStreamError:
        await stream.reset()  # which the client finds out


# The client


async def _connect(address: str, *, task_status: Any) -> None:
    import trio

    host, port = address.split(":")
    carrier = _Carrier(await trio.open_tcp_stream(host, int(port)), is_initiator=True)
    await carrier.shake_hands()
    muxer = _muxer(carrier)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(muxer.start)
        await muxer.event_started.wait()
        task_status.started(muxer)


class Trio:
    """Do what ``Blocking`` does, in trio."""

    def __init__(self, portal: Any, muxer: Any) -> None:
        self._portal = portal
        self._muxer = muxer

    def upload(self, size: int) -> float:
        return self._on_a_line(lambda stream: partial(_talk, stream, words.upload(size)))

    def download(self, size: int) -> float:
        return self._on_a_line(lambda stream: partial(_talk, stream, words.download(size)))

    def echo(self, size: int) -> float:
        def move(stream: Any) -> Work:
            sent, taken = (each for each in words.pieces(size)), words.take(size)
            return partial(_together, partial(_talk, stream, sent), partial(_talk, stream, taken))

        return self._on_a_line(move, warm=1)

    def _on_a_line(self, move: Callable[[Any], Work], warm: int = 0) -> float:
        async def work() -> float:
            stream = await self._muxer.open_stream()
            if warm:
                await _exchange(stream, words.echo_of(warm))
            elapsed = await _timed(move(stream))
            await stream.close()
            return elapsed

        elapsed: float = self._portal.call(work)
        return elapsed

    def pings(self, size: int, lines: int, seconds: float) -> tuple[int, float]:
        counts: list[int] = []

        async def work() -> float:
            opened = [await self._muxer.open_stream() for _ in range(lines)]
            pings = [partial(_exchange, stream, words.echo_of(size)) for stream in opened]
            for ping in pings:
                await ping()
            works = (partial(_repeat, ping, seconds, counts) for ping in pings)
            elapsed = await _timed(partial(_together, *works))
            for stream in opened:
                await stream.close()
            return elapsed

        elapsed: float = self._portal.call(work)
        return sum(counts), elapsed

    def opens(self, size: int, seconds: float) -> tuple[int, float]:
        counts: list[int] = []

        async def one() -> None:
            stream = await self._muxer.open_stream()
            await _exchange(stream, words.echo_of(size))
            await stream.close()

        elapsed: float = self._portal.call(_timed, partial(_repeat, one, seconds, counts))
        return sum(counts), elapsed


async def _exchange(stream: Any, message: bytes) -> None:
    await _talk(stream, words.exchange(message))


async def _timed(work: Work) -> float:
    start = time.perf_counter()
    await work()
    return time.perf_counter() - start


async def _repeat(work: Work, seconds: float, counts: list[int]) -> None:
    """Do something again and again, and add how often."""
    count, end = 0, time.perf_counter() + seconds
    while time.perf_counter() < end:
        await work()
        count += 1
    counts.append(count)


async def _together(*works: Work) -> None:
    """Do all at once; the first of their errors is the error."""
    import trio

    try:
        async with trio.open_nursery() as nursery:
            for work in works:
                nursery.start_soon(work)
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None


PEERS: list[Peer] = [
    Libp2pYamux(
        "libp2p-yamux",
        "libp2p's Yamux over wsproto and trio, without its encryption",
        base="wsmux-yamux",
        protocol="yamux",
        needs=("libp2p", "trio", "wsproto", "websocket", "simple_websocket"),
        python_variable="WSMUX_LIBP2P_PYTHON",
        leaves_out=tuple(name for name, each in MEASURES.items() if each.heavy or "tail" in name),
        on_demand=True,
    )
]
