"""Implement HTTP/1.1 over one stream, as client or server, using h11.

h11 is a dependency of simple-websocket (by wsproto). It is strict where others guess: an ambiguous
length, a bare CR or a space before a colon is an error, which prevents request smuggling. Bodies
pass in pieces, so that a slow reader blocks the writer by the stream's credit.
"""

from __future__ import annotations

import io
from abc import abstractmethod
from collections.abc import Iterable
from typing import Any, TypeAlias

import h11

from ..exceptions import StreamWriteClosed
from ..mux.stream import Stream, drop

__all__ = ["CHUNK", "BodyReader", "Exchange", "Headers", "end_to_end"]

Headers: TypeAlias = list[tuple[bytes, bytes]]

# Bytes of a body passed on at once: the size of a frame.
CHUNK = 64 * 1024

# Maximum size of the head of a request or response; as ``Config.max_handshake_size``.
MAX_HEAD = 64 * 1024

# Headers that concern one connection only (RFC 9110 section 7.6.1, RFC 2616 section 13.5.1).
# Framing headers are written anew for the next connection; ``Expect`` has been handled on this one.
HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"expect",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)


def end_to_end(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """Return the headers meant for the other end, in lower case.

    Those listed in ``Connection`` are dropped too, except ``Content-Length``: listing it is a known
    way to make two servers see two different requests (RFC 9110 section 7.6.1).
    """
    named: set[bytes] = set()
    found = [(name.lower(), value) for name, value in headers]
    for name, value in found:
        if name == b"connection":
            named |= {word.strip().lower() for word in value.split(b",")}
    dropped = HOP_BY_HOP | (named - {b"content-length"})
    return [(name, value) for name, value in found if name not in dropped]


# States of an end whose message is complete.
_DONE = (h11.DONE, h11.MUST_CLOSE, h11.CLOSED)


class Exchange:
    """One end of HTTP/1.1 over a stream; for one thread.

    ``stream.timeout`` applies to each wait for the stream.

    All methods raise the errors of the stream: ``TimeoutError``, ``WsmuxError``. ``receive`` also
    raises ``h11.RemoteProtocolError`` if the peer violates HTTP, and ``send`` raises
    ``h11.LocalProtocolError`` if this side does; both are ``h11.ProtocolError``.
    """

    def __init__(self, stream: Stream, role: type[h11.CLIENT] | type[h11.SERVER]) -> None:
        self.stream = stream
        self.connection = h11.Connection(role, max_incomplete_event_size=MAX_HEAD)
        self.idle = True  # no byte of the next message has arrived
        self.failed = False  # the stream failed when used here

    def receive(self) -> h11.Event:
        """Return the next event, waiting for the peer; ``h11.ConnectionClosed`` is the end.

        A client that expects 100 (Continue) gets it.
        """
        while True:
            event = self.connection.next_event()
            if event is h11.PAUSED:
                raise h11.RemoteProtocolError(
                    "a second message arrived before the first was answered"
                )
            if not isinstance(event, type):
                return event
            if self.connection.they_are_waiting_for_100_continue:
                self.send(h11.InformationalResponse(status_code=100, headers=[]))
            data = self._read()
            self.idle = self.idle and not data
            self.connection.receive_data(data)

    def _read(self) -> bytes:
        try:
            return self.stream.read(CHUNK)
        except Exception:
            self.failed = True
            raise

    def send(self, *events: h11.Event) -> None:
        """Send events, with one write per call."""
        parts: list[bytes] = []
        for event in events:
            parts += self.connection.send_with_data_passthrough(event) or ()
        try:
            if data := b"".join(parts):
                self.stream.write(data)
        except Exception:
            self.failed = True
            raise

    def send_text(self, status: int, body: bytes, *headers: tuple[bytes, bytes]) -> None:
        """Send a whole response of plain text."""
        fields = [(b"content-type", b"text/plain"), (b"content-length", b"%d" % len(body))]
        head = h11.Response(status_code=status, headers=[*fields, *headers])
        self.send(head, h11.Data(data=body), h11.EndOfMessage())

    def send_body(self, pieces: Iterable[bytes]) -> bool:
        """Send the pieces of a body and its end; return false if the peer wants no more of it.

        It may do so, for example because it has already answered.
        """
        try:
            for piece in pieces:
                view = memoryview(piece)
                for start in range(0, len(view), CHUNK):
                    self.send(h11.Data(data=bytes(view[start : start + CHUNK])))
            self.send(h11.EndOfMessage())
        except StreamWriteClosed:
            return False
        return True

    def receive_response(self) -> h11.Response:
        """Return the head of the final response, skipping informational ones."""
        while True:
            event = self.receive()
            if isinstance(event, h11.Response):
                return event
            if not isinstance(event, h11.InformationalResponse):
                raise h11.RemoteProtocolError("the stream ended before a response arrived")

    def receive_body(self) -> bytes:
        """Return the next piece of the message's body; ``b""`` is its end."""
        while True:
            event = self.receive()
            if isinstance(event, h11.EndOfMessage):
                return b""
            if not isinstance(event, h11.Data):
                raise h11.RemoteProtocolError("the stream ended before the body did")
            if event.data:
                return bytes(event.data)

    def received_all(self) -> bool:
        """Return whether the peer's message is complete."""
        return self.connection.their_state in _DONE

    def _settle(self) -> None:
        """Discard the available part of the body; without a body, its end is there at once."""
        try:
            while self.connection.their_state is h11.SEND_BODY:
                if isinstance(self.connection.next_event(), type):
                    return
        except h11.RemoteProtocolError:
            return  # their state shows it

    def next_cycle(self) -> bool:
        """Start over for another request on the stream; return false if there can be none."""
        self._settle()
        if self.connection.our_state is not h11.DONE or self.connection.their_state is not h11.DONE:
            return False
        self.connection.start_next_cycle()
        self.idle = not self.connection.trailing_data[0]
        return True

    def _is_complete(self) -> bool:
        self._settle()
        return self.connection.our_state in _DONE and self.received_all()

    def end(self) -> None:
        """Close the stream if the exchange is complete, otherwise reset it. Never blocks."""
        if self.stream.closed:
            return
        if self._is_complete():
            self.stream.close()
        else:
            self.stream.reset()

    def drop(self) -> None:
        """End as ``end`` does, from a finalizer; see ``mux.stream.drop``."""
        if not self.stream.closed:
            drop(self.stream, whole=self._is_complete())


class BodyReader(io.RawIOBase):
    """Read the body of a message as a file."""

    def __init__(self, exchange: Exchange) -> None:
        super().__init__()
        self._exchange = exchange
        self._left = memoryview(b"")

    @abstractmethod
    def _next(self) -> bytes:
        """Return the next piece; ``b""`` is the end."""

    def readable(self) -> bool:
        return True

    def readinto(self, target: Any, /) -> int:
        if not self._left:
            self._left = memoryview(self._next())
        count = min(len(target), len(self._left))
        target[:count] = self._left[:count]
        self._left = self._left[count:]
        return count
