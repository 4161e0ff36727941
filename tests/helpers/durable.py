"""Keep offsets and journals in memory, and join senders to receivers of durable streams."""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import wsmux
from wsmux.durable import DurableHandler, ReceivedStream

from .timeouts import WAIT

__all__ = [
    "EPOCH",
    "HeldSink",
    "MemoryJournal",
    "MemoryOffsets",
    "Sink",
    "committing",
    "pattern",
    "receiving",
]

EPOCH = b"epoch of 16 byte"


def pattern(start: int, stop: int) -> bytes:
    """Return bytes of which each eight are their own offset."""
    first = start // 8
    places = range(8 * first, stop + 8, 8)
    whole = struct.pack(f">{len(places)}Q", *places)
    return whole[start - 8 * first : stop - 8 * first]


class MemoryOffsets:
    """A store that survives whatever a test ends."""

    def __init__(self) -> None:
        self.kept: dict[str, tuple[bytes, int]] = {}

    def committed(self, name: str, epoch: bytes) -> int:
        known, offset = self.kept.get(name, (epoch, 0))
        return offset if known == epoch else 0

    def commit(self, name: str, epoch: bytes, offset: int) -> None:
        self.kept[name] = epoch, offset


class Sink(MemoryOffsets):
    """Have the data as the effect of each stream, and commit with each piece."""

    def __init__(self) -> None:
        super().__init__()
        self.data: dict[str, bytearray] = {}
        self.calls: list[int] = []

    def handle(self, stream: ReceivedStream) -> None:
        stream.timeout = WAIT
        self.calls.append(stream.offset)
        data = self.data.setdefault(stream.name, bytearray())
        del data[stream.offset :]  # without effect, as it was not committed
        while piece := stream.read(65536):
            data += piece
            stream.commit()


class HeldSink(Sink):
    """Take nothing before ``go_on`` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.go_on = threading.Event()

    def handle(self, stream: ReceivedStream) -> None:
        assert self.go_on.wait(WAIT)
        super().handle(stream)


def committing(size: int, go_on: threading.Event) -> Callable[[ReceivedStream], None]:
    """Return a handler that reads some bytes, and commits them once ``go_on`` is set."""

    def handle(stream: ReceivedStream) -> None:
        stream.read(size)
        assert go_on.wait(WAIT)
        stream.commit()
        stream.read()

    return handle


class MemoryJournal:
    """What is written and not committed, up to a limit."""

    def __init__(self, limit: int = 2**20, epoch: bytes = EPOCH, start: int = 0) -> None:
        self.epoch = epoch
        self.start = start
        self.trimmed: list[int] = []
        self.max_bytes = limit
        self._data = bytearray()

    @property
    def end(self) -> int:
        return self.start + len(self._data)

    def append(self, data: bytes, timeout: float | None = None) -> int:
        assert timeout == 0  # nobody else would make room meanwhile
        if len(self._data) + len(data) > self.max_bytes:
            raise TimeoutError("the journal is full")
        self._data += data
        return self.end

    def read(self, offset: int, size: int) -> bytes:
        assert self.start <= offset <= self.end
        return bytes(self._data[offset - self.start :][:size])

    def trim(self, offset: int) -> None:
        assert self.start <= offset <= self.end
        self.trimmed.append(offset)
        del self._data[: offset - self.start]
        self.start = offset


@contextmanager
def receiving(
    handler: Callable[[ReceivedStream], object],
    offsets: Any,
    protocol: str = "wsmux",
    config: wsmux.Config | None = None,
    **options: Any,
) -> Iterator[Callable[[], wsmux.Connection]]:
    """Yield a function that makes a connection to a handler of durable streams."""
    serve = DurableHandler(handler, offsets=offsets, **options)
    threads: list[threading.Thread] = []

    def work(stream: wsmux.Stream) -> None:
        with stream:
            serve(stream)

    def accept(server: wsmux.Connection) -> None:
        try:
            for stream in server:
                threads.append(threading.Thread(target=work, args=(stream,), name="durable"))
                threads[-1].start()
        except wsmux.ConnectionClosed:
            return

    with ExitStack() as stack:

        def connect() -> wsmux.Connection:
            client, server = wsmux.pair(protocol=protocol, config=config)
            stack.callback(server.close)
            stack.enter_context(client)
            threads.append(threading.Thread(target=accept, args=(server,), name="durable-accept"))
            threads[-1].start()
            return client

        yield connect
    for thread in threads:
        thread.join(WAIT)
        assert not thread.is_alive()
