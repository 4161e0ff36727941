"""Carry the messages of a session over one WebSocket after another; pure, like every framing.

``resumption`` describes the messages. The owner of the transport replaces the carrier: it calls
``restart`` once nothing more is read from the old one, and sends ``resend`` first over the new one.
"""

from __future__ import annotations

from collections.abc import Callable

from ..exceptions import CloseCode, RemoteProtocolError
from .base import Buffer, Message, Role
from .framing import MAX_CONTROL, Opcode, Received, decode_close
from .resumption import (
    ACKNOWLEDGE_BESIDE,
    DATA_BYTE,
    END_BYTE,
    Kept,
    Session,
    end_body,
)
from .websocket import WebSocketFraming

__all__ = ["ACKNOWLEDGEMENT", "ResumableFraming"]

# Looking these up for each message costs too much; so does calling a method of the session.
_BINARY = Opcode.BINARY
_received, _encode = WebSocketFraming.received, WebSocketFraming.encode

# Below this size, dropping the type in front of a message by a copy costs less than a view.
COPIED = 4096

# Bytes of such a message that a recorder is told: all but the end of a reason that is too long.
RECORDED = 256

# Queued like a message; what was received by the time it is sent is acknowledged.
ACKNOWLEDGEMENT: Message = (b"", b"")


class ResumableFraming(WebSocketFraming):
    """One end of a session; see ``Framing`` for the methods.

    Messages keep their boundaries, whatever the wire needs, and may be one byte longer than
    ``max_message_size``: their type. What a close frame may carry, END may carry in any case.

    Attributes:
        session: counts and keeps.
        closing: END was sent, and a close frame.
        due: the owner has to look at acknowledgements, and at what is kept; it resets this.
        tap: the flight recorder's callback for sent messages that carry none of the inner wire.
        untold: received ones, each behind how many messages of a read; ``None`` if not recorded.
    """

    def __init__(
        self, role: Role, max_message_size: int, max_fragments: int, session: Session
    ) -> None:
        super().__init__(role, max(max_message_size, MAX_CONTROL) + 1, max_fragments)
        self.session = session
        self.closing = self.due = False
        self.tap: Callable[[bytes], None] | None = None
        self.untold: list[tuple[int, bytes]] | None = None

    def received(self, count: int) -> list[Received]:
        frames, session = _received(self, count), self.session
        if session.peer_end is not None:
            return self._received(frames)
        # Messages of the inner wire alone are the usual case. Nothing changes before that is sure.
        messages: list[Received] = []
        received = session.received
        for kind, data in frames:
            size = len(data)
            if kind is not _BINARY or size < 2 or data[0]:
                return self._received(frames)
            received += size - 1
            messages.append((_BINARY, data[1:] if size < COPIED else memoryview(data)[1:]))
        session.received = received
        if received >= session.look_at:
            self.due = True
        return messages

    def _received(self, frames: list[Received]) -> list[Received]:
        """Return the messages that frames carry."""
        messages: list[Received] = []
        try:
            for kind, data in frames:
                message: Buffer | None = data
                if kind is _BINARY:
                    if self.untold is not None and data[:1] != DATA_BYTE:
                        self.untold.append((len(messages), bytes(data[:RECORDED])))
                    message = self.session.receive(data)
                if message is not None:
                    messages.append((kind, message))
        except RemoteProtocolError as error:
            self.failure = error.with_traceback(None)  # as the base class does, for its reason
            self._drop()
        self.due = True
        return messages

    def encode(self, message: Message, kind: Opcode = Opcode.BINARY) -> list[Buffer]:
        if kind is not _BINARY:
            return _encode(self, message, kind)
        session = self.session
        if message is ACKNOWLEDGEMENT:
            return self._acknowledge()
        head, body = message
        session.sent = end = session.sent + len(head) + len(body)
        message = DATA_BYTE + head, body
        session.kept.append((end, message))
        pieces = _encode(self, message)
        if session.received - session.told >= ACKNOWLEDGE_BESIDE:
            return self._acknowledge() + pieces
        return pieces

    def _acknowledge(self) -> list[Buffer]:
        return self.encode_greeting(self.session.acknowledgement())

    def encode_control(self, kind: Opcode, payload: bytes) -> bytes:
        """Return the bytes of a ping, a pong, or END and a close frame."""
        if kind is not Opcode.CLOSE:
            return super().encode_control(kind, payload)
        code, reason = decode_close(payload)
        end: Message = (END_BYTE + end_body(code, reason), b"")
        self.session.keep(end)
        self.closing = True
        pieces = self.encode_greeting(end[0])
        return b"".join(pieces) + super().encode_control(kind, payload)

    def restart(self) -> None:
        """Drop an incomplete message of the previous carrier."""
        self._drop()
        self.failure = None
        self.due = True  # the next carrier acknowledges some of what is kept
        self.filled = self.controls = False
        self._kind = None
        self.shrink()

    def encode_greeting(self, message: bytes) -> list[Buffer]:
        """Return the bytes of a message that is not kept here, such as HELLO or its answer."""
        if self.tap is not None:
            self.tap(message[:RECORDED])
        return _encode(self, (message, b""))

    def resend(self, kept: list[Kept]) -> list[Buffer]:
        """Return the bytes of messages sent again, and of the close frame if END is the last."""
        pieces: list[Buffer] = []
        for _, message in kept:
            pieces += _encode(self, message)
        if self.closing:
            # The code again, unless the peer has END already and waits for the close frame alone.
            code = kept[-1][1][0][1:3] if kept else b""
            if code == CloseCode.NO_STATUS_RCVD.to_bytes(2, "big"):
                code = b""
            pieces.append(super().encode_control(Opcode.CLOSE, code))
        return pieces
