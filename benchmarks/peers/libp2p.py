"""Measure Yamux of PyPI ``libp2p`` over one WebSocket: a line is a stream.

Its muxer is used alone, without the encryption and the negotiation that a libp2p connection has
below it, and on ``wsproto`` over a socket of trio, which is faster than the WebSocket transport
that comes with it. The loops run in trio, and a thread waits for what they return.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any, TypeVar

from ..measures import MEASURES
from ..peer import Peer
from ..words import (
    CHUNK,
    ECHO,
    Talk,
    answer,
    download,
    echo_of,
    exchange,
    pieces,
    send,
    take,
    upload,
)

T = TypeVar("T")

# Bytes asked of the socket at a time, as many as wsmux comes to take.
RECEIVE = 256 * 1024


class Libp2pYamux(Peer):
    """Run by a Python of its own, since libp2p wants versions of packages that others do not."""

    @contextmanager
    def serve(self) -> Iterator[str]:
        with _in_trio(_serve) as (address, _):
            yield address

    @contextmanager
    def connect(self, address: str) -> Iterator[Any]:
        with _in_trio(_connect, address) as (muxer, token):
            yield Trio(muxer, token)


@contextmanager
def _in_trio(main: Callable[..., Awaitable[None]], *args: object) -> Iterator[tuple[Any, Any]]:
    """Run ``main`` in a thread of trio; yield what it tells first, and trio's token."""
    import trio

    told: SimpleQueue[Any] = SimpleQueue()

    async def run() -> None:
        with trio.CancelScope() as scope:
            await main(
                lambda what: told.put((what, trio.lowlevel.current_trio_token(), scope)), *args
            )

    def work() -> None:
        try:
            trio.run(run)
        except BaseException as error:
            told.put(error)
            raise

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    first = told.get()
    if isinstance(first, BaseException):
        raise first
    what, token, scope = first
    try:
        yield what, token
    finally:
        token.run_sync_soon(scope.cancel)
        thread.join()


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

    async def shake_hands(self) -> None:
        from wsproto.events import AcceptConnection, Request

        if self.is_initiator:
            request = Request(host="localhost", target="/", subprotocols=["yamux"])
            await self._stream.send_all(self._socket.send(request))
        while True:
            self._socket.receive_data(await self._stream.receive_some(RECEIVE))
            for event in self._socket.events():
                if isinstance(event, Request):
                    accepted = AcceptConnection(subprotocol="yamux")
                    await self._stream.send_all(self._socket.send(accepted))
                if isinstance(event, Request | AcceptConnection):
                    return

    async def read(self, size: int) -> bytes:
        from libp2p.io.exceptions import IOException
        from wsproto.events import BytesMessage

        unread = self._unread
        while not unread:
            data = await self._stream.receive_some(RECEIVE)
            if not data:
                raise IOException("the connection ended")
            self._socket.receive_data(data)
            for event in self._socket.events():
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


async def _talk(stream: Any, words: Talk[T]) -> T:
    """Do what ``talk`` does."""
    got = None
    try:
        while True:
            data = words.send(got)
            got = await _read(stream) if data is None else await stream.write(data)
    except StopIteration as end:
        value: T = end.value
        return value


# The server


async def _serve(tell: Callable[[str], None]) -> None:
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
    tell(f"{host}:{port}")
    await trio.serve_listeners(serve, listeners)


async def _serve_line(stream: Any) -> None:
    """Do what ``serve_line`` does."""
    from libp2p.stream_muxer.exceptions import MuxedStreamError

    try:
        await _talk(stream, answer())
        await stream.close()
    except MuxedStreamError:
        await stream.reset()  # which the client finds out


# The client


async def _connect(tell: Callable[[Any], None], address: str) -> None:
    import trio

    host, port = address.split(":")
    carrier = _Carrier(await trio.open_tcp_stream(host, int(port)), is_initiator=True)
    await carrier.shake_hands()
    muxer = _muxer(carrier)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(muxer.start)
        await muxer.event_started.wait()
        tell(muxer)


class Trio:
    """Do what ``Blocking`` does, in trio."""

    def __init__(self, muxer: Any, token: Any) -> None:
        self._muxer = muxer
        self._token = token

    def _run(self, function: Callable[..., Awaitable[T]], *args: object) -> T:
        import trio

        try:
            value: T = trio.from_thread.run(function, *args, trio_token=self._token)
        except BaseExceptionGroup as group:
            cause: BaseException = group
            while isinstance(cause, BaseExceptionGroup):
                cause = cause.exceptions[0]
            raise cause from None
        return value

    def upload(self, size: int) -> float:
        return self._run(self._timed, upload(size))

    def download(self, size: int) -> float:
        return self._run(self._timed, download(size))

    async def _timed(self, words: Talk[None]) -> float:
        stream = await self._muxer.open_stream()
        start = time.perf_counter()
        await _talk(stream, words)
        elapsed = time.perf_counter() - start
        await stream.close()
        return elapsed

    def echo(self, size: int) -> float:
        return self._run(self._echo, size)

    async def _echo(self, size: int) -> float:
        import trio

        stream = await self._muxer.open_stream()
        await _talk(stream, exchange(ECHO))
        start = time.perf_counter()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_talk, stream, send(pieces(size)))
            await _talk(stream, take(size))
        elapsed = time.perf_counter() - start
        await stream.close()
        return elapsed

    def pings(self, size: int, lines: int, seconds: float) -> tuple[int, float]:
        return self._run(self._pings, size, lines, seconds)

    async def _pings(self, size: int, lines: int, seconds: float) -> tuple[int, float]:
        import trio

        message = echo_of(size)
        opened = [await self._muxer.open_stream() for _ in range(lines)]
        for stream in opened:
            await _talk(stream, exchange(message))
        counts: list[int] = []

        async def work(stream: Any) -> None:
            count = 0
            end = time.perf_counter() + seconds
            while time.perf_counter() < end:
                await _talk(stream, exchange(message))
                count += 1
            counts.append(count)

        start = time.perf_counter()
        async with trio.open_nursery() as nursery:
            for stream in opened:
                nursery.start_soon(work, stream)
        elapsed = time.perf_counter() - start
        for stream in opened:
            await stream.close()
        return sum(counts), elapsed

    def opens(self, size: int, seconds: float) -> tuple[int, float]:
        return self._run(self._opens, size, seconds)

    async def _opens(self, size: int, seconds: float) -> tuple[int, float]:
        message, count, start = echo_of(size), 0, time.perf_counter()
        while (elapsed := time.perf_counter() - start) < seconds or not count:
            stream = await self._muxer.open_stream()
            await _talk(stream, exchange(message))
            await stream.close()
            count += 1
        return count, elapsed


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
