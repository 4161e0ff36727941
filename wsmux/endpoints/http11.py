"""Speak HTTP/1.1 over one stream, as client or server, by h11.

h11 comes with simple-websocket (by wsproto). It is strict where others guess: an ambiguous length,
a bare CR or a space before a colon is an error, so that nothing can be smuggled after a request.
Bodies pass in pieces, so that a slow reader holds back its writer by the stream's credit.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

import h11

from ..exceptions import StreamWriteClosed
from ..mux.stream import Stream

__all__ = ["CHUNK", "Exchange", "Headers", "end_to_end"]

Headers: TypeAlias = list[tuple[bytes, bytes]]

# Bytes of a body passed on at once: what a frame carries.
CHUNK = 64 * 1024

# Bytes of the head of a request or response; as ``Config.max_handshake_size``.
MAX_HEAD = 64 * 1024

# Headers that concern one connection only (RFC 9110 section 7.6.1, RFC 2616 section 13.5.1). What
# frames the message is written again for the next connection; ``Expect`` was met on this one.
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
    """Return the headers that are for the other end, in lower case.

    Those that ``Connection`` names are left out too, but for ``Content-Length``: naming that is a
    known way to make two servers see two different requests (RFC 9110 section 7.6.1).
    """
    named: set[bytes] = set()
    found = [(name.lower(), value) for name, value in headers]
    for name, value in found:
        if name == b"connection":
            named |= {word.strip().lower() for word in value.split(b",")}
    dropped = HOP_BY_HOP | (named - {b"content-length"})
    return [(name, value) for name, value in found if name not in dropped]


# States of an end that has said all of its message.
_DONE = (h11.DONE, h11.MUST_CLOSE, h11.CLOSED)


class Exchange:
    """One end of HTTP/1.1 over a stream; for one thread.

    ``stream.timeout`` is for each wait for the stream.

    Every method raises what the stream's calls do: ``TimeoutError``, ``WsmuxError``. ``receive``
    raises ``h11.RemoteProtocolError`` too, when the peer breaks the rules of HTTP, and ``send``
    raises ``h11.LocalProtocolError`` when this side does; both are ``h11.ProtocolError``.
    """

    def __init__(self, stream: Stream, role: type[h11.CLIENT] | type[h11.SERVER]) -> None:
        self.stream = stream
        self.connection = h11.Connection(role, max_incomplete_event_size=MAX_HEAD)
        self.idle = True  # no byte of the next message has come
        self.failed = False  # the stream has, as far as it was used here

    def receive(self) -> h11.Event:
        """Return the next event, waiting for the peer; ``h11.ConnectionClosed`` is its end.

        A client that waits for 100 (Continue) is told to go on.
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
        """Send events, those of one call in one write."""
        parts: list[bytes] = []
        for event in events:
            parts += self.connection.send_with_data_passthrough(event) or ()
        try:
            if data := b"".join(parts):
                self.stream.write(data)
        except Exception:
            self.failed = True
            raise

    def send_body(self, pieces: Iterable[bytes]) -> bool:
        """Send the pieces of a body and its end; false if the peer wants no more of it.

        That is its right: it may have answered already.
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
        """Return the final response's head; informational ones are passed over."""
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
        """Return whether the peer's message has come to its end."""
        return self.connection.their_state in _DONE

    def _settle(self) -> None:
        """Drop what has come of the body: its end is there at once when there is none."""
        try:
            while self.connection.their_state is h11.SEND_BODY:
                if isinstance(self.connection.next_event(), type):
                    return
        except h11.RemoteProtocolError:
            return  # their state tells

    def next_cycle(self) -> bool:
        """Begin again for a further request on the stream; false if there can be none."""
        self._settle()
        if self.connection.our_state is not h11.DONE or self.connection.their_state is not h11.DONE:
            return False
        self.connection.start_next_cycle()
        self.idle = not self.connection.trailing_data[0]
        return True

    def end(self) -> None:
        """Close the stream if the exchange is complete, else reset it. Never blocks."""
        if self.stream.closed:
            return
        self._settle()
        if self.connection.our_state in _DONE and self.received_all():
            self.stream.close()
        else:
            self.stream.reset()
