"""Define the messages of a resumable connection, and what each end of it has to remember.

A session outlives the WebSockets that carry it, its carriers. Each message of a carrier begins with
one byte, its type; integers are big-endian:

======= ==== ==================================================================================
HELLO   1    version, session 16 B, epoch 8 B, generation uint32, resuming uint8, received
             uint64, oldest kept uint64, buffer uint32, mac 32 B
WELCOME 2    epoch 8 B, received uint64, grace in milliseconds uint32, buffer uint32, key 32 B
LOST    3    reason, UTF-8; final
REFUSED 4    reason, UTF-8; final
DATA    0    a message of the inner wire
ACK     5    received uint64
END     6    close code uint16, reason UTF-8
======= ==== ==================================================================================

- A client sends HELLO as its first message over each carrier, a server answers with one of the next
  three. Nothing else may come before.
- A position counts the bytes of the bodies of DATA and END since the session began. HELLO and
  WELCOME say what their sender has received; what it has not is sent again, at once and in order.
- ``buffer`` is how many bytes a side keeps. Its peer acknowledges at least every quarter of that,
  and what is less within a second; earlier beside a message that is sent anyway, since an ACK of
  its own wakes the peer in the middle of its writing. (The design acknowledged every 64 KiB; that
  costs bulk a tenth.)
- ``generation`` counts the carriers of a session, from 0. A carrier with a higher one replaces the
  one before.
- ``mac`` is the HMAC-SHA256 of the bytes of HELLO before it, under the key that the first WELCOME
  of the session gave; zeros while there is no key. So knowing the id of a session is not enough.
- ``epoch`` identifies the server process. A server that does not know the session, or has another
  epoch, answers LOST: a session is never silently begun again.
- END comes before the close frame of WebSocket, and like DATA it is acknowledged and sent again. A
  carrier that ends without it, with or without a close frame, is only a lost carrier.

This module is pure: no threads, sockets or clocks.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from collections import deque
from enum import IntEnum
from typing import NamedTuple

from ..config import KIB, LEAST_RESUME_BUFFER
from ..exceptions import CloseCode, FrameError
from .base import Buffer, Message

__all__ = [
    "ACKNOWLEDGE_BESIDE",
    "KEY_SIZE",
    "LONGEST_GREETING",
    "SESSION_SIZE",
    "SUBPROTOCOL_PREFIX",
    "VERSION",
    "Answer",
    "Hello",
    "Kept",
    "MessageType",
    "PositionError",
    "Refusal",
    "Session",
    "Welcome",
    "parse_acknowledgement",
    "parse_answer",
    "parse_end",
    "parse_hello",
]

SUBPROTOCOL_PREFIX = "wsmux.resume.v1+"
VERSION = 1

SESSION_SIZE = 16
EPOCH_SIZE = 8
KEY_SIZE = 32
NO_EPOCH = bytes(EPOCH_SIZE)

# What a peer keeps is acknowledged by such parts of it.
QUARTER = 4

# What keeping a message costs beside its bytes, as measured; and the bytes as which it counts at
# least, so that many short ones take no more than 30 times the buffer. Since a peer acknowledges by
# quarters, messages of two bytes still get through without a pause.
KEPT_OVERHEAD = 230
LEAST_KEPT = 8

# Received bytes from which on a message that is sent anyway carries an ACK in front.
ACKNOWLEDGE_BESIDE = 32 * KIB

# A reason fits a frame with a short header, like all messages before the first DATA.
MAX_REASON = 100
LONGEST_GREETING = 125

_HELLO = struct.Struct(">BB16s8sIBQQI")
_WELCOME = struct.Struct(">B8sQII32s")
_ACK = struct.Struct(">BQ")
_CODE = struct.Struct(">H")


class MessageType(IntEnum):
    """The first byte of each message of a carrier."""

    DATA = 0
    HELLO = 1
    WELCOME = 2
    LOST = 3
    REFUSED = 4
    ACK = 5
    END = 6


DATA_BYTE, END_BYTE = b"\x00", b"\x06"
# Looking these up in the class for each message costs too much.
_DATA, _ACKNOWLEDGED, _END = int(MessageType.DATA), int(MessageType.ACK), int(MessageType.END)


class Hello(NamedTuple):
    """The first message of a carrier, from the client.

    Attributes:
        session: the id of the session, chosen by the client.
        epoch: of the server process that has it; zeros for a new session.
        generation: the number of this carrier.
        resuming: the session exists; otherwise it begins with this message.
        received: the position up to which the client has received.
        oldest: the position from which on the client can send again.
        buffer: how many bytes it keeps.
    """

    session: bytes
    epoch: bytes = NO_EPOCH
    generation: int = 0
    resuming: bool = False
    received: int = 0
    oldest: int = 0
    buffer: int = LEAST_RESUME_BUFFER

    def encode(self, key: bytes | None) -> bytes:
        """Return the message, signed if there is a key."""
        signed = _HELLO.pack(
            MessageType.HELLO,
            VERSION,
            self.session,
            self.epoch,
            self.generation,
            self.resuming,
            self.received,
            self.oldest,
            self.buffer,
        )
        return signed + (bytes(KEY_SIZE) if key is None else _mac(key, signed))


class Welcome(NamedTuple):
    """The answer that accepts a carrier for the session.

    Attributes:
        epoch: of the server process.
        received: the position up to which the server has received.
        grace: seconds for which each side keeps the session without a carrier.
        buffer: how many bytes the server keeps.
        key: signs later HELLO messages of the session; zeros when it resumes.
    """

    epoch: bytes
    received: int
    grace: float
    buffer: int = LEAST_RESUME_BUFFER
    key: bytes = bytes(KEY_SIZE)

    def encode(self) -> bytes:
        """Return the message."""
        milliseconds = min(round(self.grace * 1000), 2**32 - 1)
        return _WELCOME.pack(
            MessageType.WELCOME, self.epoch, self.received, milliseconds, self.buffer, self.key
        )


class Refusal(NamedTuple):
    """The answer that refuses a session; final.

    Attributes:
        lost: the server does not have the session any more; otherwise it refuses the HELLO itself.
        reason: one sentence.
    """

    lost: bool
    reason: str

    def encode(self) -> bytes:
        """Return the message; a long reason is cut between characters."""
        kind = MessageType.LOST if self.lost else MessageType.REFUSED
        text = self.reason.encode()[:MAX_REASON].decode(errors="ignore")
        return bytes((kind,)) + text.encode()


Answer = Welcome | Refusal


def _mac(key: bytes, signed: Buffer) -> bytes:
    return hmac.digest(key, signed, hashlib.sha256)


def parse_hello(data: Buffer) -> tuple[Hello, bytes, bytes]:
    """Return a HELLO, its signed bytes and its mac; see ``is_signed``.

    Raises:
        FrameError: it is something else, of another version, or contradicts itself.
    """
    message = bytes(data)
    if len(message) != _HELLO.size + KEY_SIZE or message[0] != MessageType.HELLO:
        raise FrameError(
            f"a resumable connection begins with a HELLO of {_HELLO.size + KEY_SIZE} bytes, "
            f"not with {len(message)} bytes of type {message[0] if message else 'none'}"
        )
    _, version, session, epoch, generation, resuming, received, oldest, buffer = _HELLO.unpack_from(
        message
    )
    if version != VERSION:
        raise FrameError(f"HELLO of version {version}, and this side speaks version {VERSION}")
    if resuming > 1:
        raise FrameError(f"the flag of HELLO is 0 or 1, not {resuming}")
    if not resuming and (epoch != NO_EPOCH or generation or received or oldest):
        raise FrameError("a new session has no epoch, no generation and no positions yet")
    if resuming and (epoch == NO_EPOCH or not generation):
        raise FrameError("without an epoch and a generation HELLO begins a session, not resumes it")
    _check_buffer(buffer)
    hello = Hello(session, epoch, generation, bool(resuming), received, oldest, buffer)
    return hello, message[: _HELLO.size], message[_HELLO.size :]


def _check_buffer(size: int) -> None:
    if size < LEAST_RESUME_BUFFER:
        least = LEAST_RESUME_BUFFER
        raise FrameError(f"a buffer of {size} bytes, but at least {least} are needed")


def is_signed(key: bytes, signed: bytes, mac: bytes) -> bool:
    """Return whether a HELLO was signed with the key of the session."""
    return hmac.compare_digest(_mac(key, signed), mac)


def parse_answer(data: Buffer) -> Answer:
    """Return the answer to a HELLO.

    Raises:
        FrameError: it is something else, or a WELCOME after which the client could not resume.
    """
    message = bytes(data)
    kind = message[0] if message else None
    if kind == MessageType.WELCOME and len(message) == _WELCOME.size:
        _, epoch, received, milliseconds, buffer, key = _WELCOME.unpack(message)
        if epoch == NO_EPOCH:  # the next HELLO would begin the session again
            raise FrameError("WELCOME without an epoch, which is never all zeros")
        _check_buffer(buffer)
        return Welcome(epoch, received, milliseconds / 1000, buffer, key)
    if kind in (MessageType.LOST, MessageType.REFUSED):
        return Refusal(kind == MessageType.LOST, str(message[1:], "utf-8", "replace"))
    raise FrameError(
        f"HELLO is answered by WELCOME, LOST or REFUSED, not by {len(message)} bytes of type {kind}"
    )


class PositionError(Exception):
    """Report that the two ends do not agree on what was received: the session is lost."""


# A message that the peer has not acknowledged, with its type, and the position behind it. A plain
# tuple, since a named one takes seven times as long to create.
Kept = tuple[int, Message]


class Session:
    """Count and keep what one end has sent, and count what it has received.

    What is sent is recorded by the thread that sends, what is received by the thread that reads;
    neither needs a lock, since each number has one writer, and a deque allows both ends at once.

    Attributes:
        id: of the session.
        key: signs the HELLO messages of later carriers.
        epoch: of the server process.
        generation: the number of the last carrier that was tried, or let in.
        grace: seconds for which the session is kept without a carrier.
        limit: unacknowledged bytes beyond which no more data is sent.
        sent, acknowledged, received: positions.
        kept: what was sent and not acknowledged, in order.
        few_bytes, few_messages: with less of both, there is room for a batch of 64 KiB, and what is
            kept takes less than a quarter of ``limit``.
        peer_buffer: how many bytes the peer keeps.
        acknowledge_after: received bytes after which they are acknowledged at once.
        look_at: the received position at which the owner looks whether to acknowledge.
        told: the position that the last ACK, HELLO or WELCOME named as received.
        peer_end: the payload of the peer's END; nothing follows it.
    """

    def __init__(self, session_id: bytes, limit: int, grace: float) -> None:
        self.id = session_id
        self.limit = limit
        self.few_bytes = limit * 3 // 16
        self.few_messages = limit // 16 // KEPT_OVERHEAD
        self.grace = grace
        self.key = bytes(KEY_SIZE)
        self.epoch = NO_EPOCH
        self.generation = 0
        self.sent = self.acknowledged = self.received = 0
        self.peer_end: tuple[int, str] | None = None
        self.told = 0
        self.look_at = 1
        self.met(LEAST_RESUME_BUFFER)
        self.kept: deque[Kept] = deque()

    # Sending

    def room(self) -> int:
        """Return how many more bytes may be sent before some are acknowledged, 0 or less if none.

        A message larger than the rest of the room may be sent while there is any.
        """
        return self.limit - max(self.sent - self.acknowledged, LEAST_KEPT * len(self.kept))

    def unacknowledged(self) -> int:
        """Return the bytes that were sent and not yet acknowledged."""
        return self.sent - self.acknowledged

    def allocated(self) -> int:
        """Return the bytes of memory used by what is kept."""
        return self.sent - self.acknowledged + KEPT_OVERHEAD * len(self.kept)

    def keep(self, message: Message) -> None:
        """Record a DATA or END about to be sent, which is kept until it is acknowledged."""
        head, body = message
        self.sent += len(head) + len(body) - 1  # without its type
        self.kept.append((self.sent, message))

    def acknowledged_up_to(self, position: int) -> None:
        """Drop what the peer has received.

        Raises:
            FrameError: the peer claims what was not sent, less than before, or part of a message.
        """
        if not self.acknowledged <= position <= self.sent:
            raise FrameError(
                f"the peer says that it has received up to {position}; {self.acknowledged} were "
                f"acknowledged before, and {self.sent} sent"
            )
        self.acknowledged = position
        kept = self.kept
        while kept and kept[0][0] <= position:
            kept.popleft()
        if kept:
            end, (head, body) = kept[0]
            start = end - len(head) - len(body) + 1
            if start < position:
                raise FrameError(
                    f"the peer says that it has received up to {position}, within the message from "
                    f"{start} to {end}"
                )

    def resume(self, position: int) -> list[Kept]:
        """Return what must be sent again over a new carrier, in order.

        Args:
            position: up to which the peer has received.

        Raises:
            PositionError: the peer claims what cannot be.
        """
        try:
            self.acknowledged_up_to(position)
        except FrameError as error:
            raise PositionError(str(error)) from None
        return list(self.kept)

    def check_oldest(self, oldest: int) -> None:
        """Raise ``PositionError`` if the peer does not keep all that was not received."""
        if oldest > self.received:
            raise PositionError(
                f"the peer can send again from {oldest}, and only {self.received} were received"
            )

    # Receiving

    def receive(self, data: Buffer) -> Buffer | None:
        """Count a message; return the one of the inner wire that it carries, if it does.

        Raises:
            FrameError: it is not allowed here.
        """
        if not len(data):
            raise FrameError("empty message on a resumable connection")
        kind = data[0]
        if self.peer_end is not None and kind != _ACKNOWLEDGED:
            raise FrameError(f"message of type {kind} after END")
        if kind == _DATA:
            if len(data) == 1:
                raise FrameError("DATA without a message")
            self.received += len(data) - 1
            return memoryview(data)[1:]
        if kind == _ACKNOWLEDGED:
            self.acknowledged_up_to(parse_acknowledgement(data))
        elif kind == _END:
            self.peer_end = parse_end(data)
            self.received += len(data) - 1
        else:
            raise FrameError(f"message of type {kind} on a resumable connection")
        return None

    def acknowledgement(self) -> bytes:
        """Return the ACK of everything received."""
        self.told = self.received
        return _ACK.pack(MessageType.ACK, self.received)

    # Carriers

    def met(self, buffer: int) -> None:
        """Learn how many bytes the peer keeps, from its HELLO or WELCOME."""
        self.peer_buffer = buffer
        self.acknowledge_after = buffer // QUARTER

    def hello(self) -> Hello:
        """Return the HELLO of the next carrier, for a client."""
        if self.epoch == NO_EPOCH:
            return Hello(self.id, buffer=self.limit)
        self.generation += 1
        self.told = self.received
        return Hello(
            self.id,
            self.epoch,
            self.generation,
            True,
            self.received,
            self.acknowledged,
            self.limit,
        )

    def first_greetings(self, client: bool) -> tuple[Hello, Welcome]:
        """Return what both sides said when the session began; the key is left out.

        Args:
            client: this side is the client.
        """
        peer = self.peer_buffer
        buffers = (self.limit, peer) if client else (peer, self.limit)
        return Hello(self.id, buffer=buffers[0]), Welcome(self.epoch, 0, self.grace, buffers[1])

    def welcome(self) -> Welcome:
        """Return the answer to a HELLO that resumes this session, for a server."""
        self.told = self.received
        return Welcome(self.epoch, self.received, self.grace, self.limit)


def end_body(code: int, reason: str) -> bytes:
    """Return the body of END."""
    return _CODE.pack(code) + reason.encode()


def parse_acknowledgement(data: Buffer) -> int:
    """Return the position in an ACK.

    Raises:
        FrameError: it has another size.
    """
    if len(data) != _ACK.size:
        raise FrameError(f"ACK of {len(data)} bytes instead of {_ACK.size}")
    position: int = _ACK.unpack(data)[1]
    return position


def parse_end(data: Buffer) -> tuple[int, str]:
    """Return the close code and the reason in an END.

    Raises:
        FrameError: it is cut, or not UTF-8.
    """
    if len(data) < 1 + _CODE.size:
        raise FrameError("END without a whole close code")
    (code,) = _CODE.unpack_from(data, 1)
    try:
        return code, str(data[1 + _CODE.size :], "utf-8")
    except UnicodeDecodeError:
        raise FrameError("END with a reason that is not UTF-8", CloseCode.INVALID_DATA) from None
