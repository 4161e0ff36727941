"""Have one conversation with everything in it, between machines in memory, cut somewhere or not."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import NamedTuple

from wsmux import Config, ConnectionClosed, ConnectionClosedError, ConnectionClosedOK
from wsmux.testing import Faults, MuxEnd, Network

from .wires import WIRES

__all__ = ["Conversation", "Told", "check"]

CODE = 77

# Yamux begins with a window of its own, and what is above it is credit.
WINDOWS = {"yamux": 300 * 1024}
SMALL_WINDOW = 512


class Told(NamedTuple):
    """Say what one end has seen of a conversation, whatever the pieces it came in."""

    received: dict[int, bytes]
    ended: set[int]
    failed: set[int]
    pongs: list[int]
    error: str


class Conversation:
    """Hold both ends, and what was written.

    Attributes:
        written: for each end and stream, the bytes that were given to ``write``.
        closed: the streams whose half an end has closed behind them.
        unclean: those that were reset in a wire where that looks like a clean end.
        marks: the bytes that had gone up and down before each step of a whole conversation.
    """

    def __init__(self, protocol: str, carrier: str = "websocket", **faults: Faults) -> None:
        window = WINDOWS.get(protocol, SMALL_WINDOW)
        config = Config(receive_window=window)
        self.network = Network(**faults)
        self.client, self.server = (
            MuxEnd(role, protocol, carrier=carrier, config=config)  # type: ignore[arg-type]
            for role in ("client", "server")
        )
        self.wire = WIRES[protocol]
        self.network.join(self.client, self.server)
        self.written: dict[MuxEnd, defaultdict[int, bytearray]] = {
            self.client: defaultdict(bytearray),
            self.server: defaultdict(bytearray),
        }
        self.closed: set[tuple[MuxEnd, int]] = set()
        self.unclean: set[tuple[MuxEnd, int]] = set()
        self.marks: list[tuple[int, int]] = []

    def run(self) -> None:
        """Go through the steps, or as far as the connection lives."""
        for step in self._steps():
            self.network.run()
            self.marks.append((self._gone("up"), self._gone("down")))
            if self.client.error is not None or self.server.error is not None:
                break
            step()
        self.network.run()

    def _gone(self, way: str) -> int:
        return self.network.counters(way).forwarded

    def _write(self, end: MuxEnd, stream: int, size: int) -> None:
        data = random.Random(f"{stream} {size}").randbytes(size)
        self.written[end][stream] += data
        end.write(stream, data)

    def _end(self, end: MuxEnd, stream: int) -> None:
        self.closed.add((end, stream))
        end.close_write(stream)

    def _reset(self, end: MuxEnd, stream: int) -> None:
        if self.wire.resets:
            end.reset(stream, CODE)
            return
        self.unclean |= {(self.client, stream), (self.server, stream)}
        end.reset(stream)

    def _steps(self) -> Iterator[Callable[[], object]]:
        client, server = self.client, self.server
        one, two, three = self.wire.ids(3)
        other = self.wire.server_id
        yield client.open_stream
        yield lambda: self._write(client, one, 700)
        yield lambda: self._write(server, one, 600)
        yield server.open_stream
        yield lambda: (self._write(server, other, 300), self._write(client, other, 200))
        yield lambda: self._end(client, one)
        yield lambda: (self._write(server, one, 100), self._end(server, one))
        yield lambda: (client.ping(5), server.ping(6))
        yield client.open_stream
        yield lambda: self._write(client, two, 90)
        yield lambda: self._reset(client, two)
        yield client.open_stream
        yield lambda: self._write(client, three, 50)
        yield server.go_away
        yield lambda: (self._end(client, other), self._end(server, other))
        yield lambda: (self._write(server, three, 60), self._end(server, three))
        yield lambda: self._end(client, three)
        yield lambda: client.close(1000, "done")

    def before_going_away(self) -> tuple[int, int]:
        """Return what had gone up and down when nobody had begun to end a whole conversation."""
        return self.marks[-5]

    def told(self) -> tuple[Told, Told]:
        client, server = (
            Told(
                {stream: bytes(data) for stream, data in end.received.items()},
                end.ended,
                end.failed,
                end.pongs,
                repr(end.error),
            )
            for end in (self.client, self.server)
        )
        return client, server


def check(conversation: Conversation, early: bool) -> None:
    """Make sure that both ends ended typed, and that what they have is a prefix of what was sent.

    A half that looks whole must be whole. ``early`` says that nobody had begun to end it: then an
    end must not look like a clean one.
    """
    client, server = conversation.client, conversation.server
    for reader, writer in ((client, server), (server, client)):
        assert isinstance(reader.error, ConnectionClosed)
        if early:
            assert isinstance(reader.error, ConnectionClosedError)
            assert reader.error.code == 1006
        elif isinstance(reader.error, ConnectionClosedOK):
            assert reader.error.code == 1000
        for stream, data in reader.received.items():
            assert conversation.written[writer][stream].startswith(data), stream
        for stream in reader.ended:
            if (writer, stream) in conversation.unclean:
                continue  # a reset, for which the wire has no word
            assert (writer, stream) in conversation.closed
            assert reader.received[stream] == conversation.written[writer][stream], stream
    assert conversation.network.connections == 0
