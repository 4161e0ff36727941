"""Find out which wire a server uses.

A WebSocket server may agree to any subprotocol, or choose none, and every one answers WebSocket
pings; a plain socket has no handshake at all. So each wire is probed with a request that only a
peer of the same wire answers: its own ping, or else a stream that is opened and carries no data.
Each probe uses its own connection, since a peer of another wire ends it.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from enum import Enum, auto
from itertools import chain
from typing import NamedTuple

from ..exceptions import CloseCode, FrameError, HandshakeError, RemoteProtocolError
from ..protocols.base import Role
from ..protocols.events import (
    CreditGranted,
    GoAwayReceived,
    PongReceived,
    StreamAborted,
    StreamRejected,
    WriteStopped,
)
from ..protocols.framing import Opcode, decode_close
from ..protocols.registry import wire
from ..runtime.deadline import Deadline
from .plan import Plan

__all__ = ["WIRES", "Answer", "Found", "ask", "find"]

# In order of likelihood, if the handshake does not choose one.
WIRES = ("js-ws", "yamux", "wsmux", "bymux")

# Minimum seconds for an answer; a multiple of the handshake's duration, if that is longer.
PATIENCE = 1.0
HANDSHAKES = 4

# A window that no peer announces by itself, so that an echo is recognised.
WINDOW = 65_521

# Close codes of a peer that does not understand.
MISUNDERSTOOD = frozenset(
    {CloseCode.PROTOCOL_ERROR, CloseCode.UNSUPPORTED_DATA, CloseCode.INVALID_DATA}
)

# Events that prove that the peer uses the wire; it may refuse the stream.
PROOFS = (
    CreditGranted,
    GoAwayReceived,
    PongReceived,
    StreamAborted,
    StreamRejected,
    WriteStopped,
)


class Answer(Enum):
    """The outcome of a probe."""

    SPEAKS = auto()
    ECHOES = auto()  # it sends back whatever it receives
    ALIVE = auto()  # it responds, but does not use the wire
    LEFT = auto()  # it ended the connection, for whatever reason
    SILENT = auto()
    UNREACHED = auto()  # the connection failed


class Found(NamedTuple):
    """The wire that a server uses, if found, and the outcome of all probes."""

    name: str | None
    offers: list[str]
    answers: list[Answer]


def find(plan: Plan, tries: Sequence[tuple[str, list[str]]]) -> Found:
    """Probe several wires at once, each with its offers; the first one in use counts."""
    with ThreadPoolExecutor(len(tries)) as pool:
        answers = list(pool.map(lambda each: ask(plan, *each), tries))
    for (name, offers), answer in zip(tries, answers, strict=True):
        if answer is Answer.SPEAKS:
            return Found(name, offers, answers)
    return Found(None, [], answers)


def ask(plan: Plan, name: str, offers: list[str]) -> Answer:
    """Probe one wire, on a connection of its own."""
    began = time.monotonic()
    try:
        sock = plan.dial(offers, Deadline(plan.timeout))
    except (HandshakeError, OSError):
        return Answer.UNREACHED
    patience = max(PATIENCE, HANDSHAKES * (time.monotonic() - began))
    with sock:
        return _Question(plan, name).put(sock, Deadline(min(plan.timeout, patience)))


class _Question:
    """One end of a wire that sends a single probe."""

    def __init__(self, plan: Plan, name: str) -> None:
        parts = wire(name)
        make = parts.over_bytes if plan.plain else parts.over_websocket
        self._framing, self._machine = make(Role.CLIENT, plan.config, None)
        # A WebSocket's pong proves nothing, but one of the native wire over plain bytes does.
        self._pong_is_proof = plan.plain and self._framing.has_controls
        self._word = os.urandom(4)
        self._sent = self._heard = b""
        self._understands = True
        self._alive = False

    def put(self, sock: socket.socket, deadline: Deadline) -> Answer:
        """Return the outcome by the deadline."""
        try:
            sock.settimeout(deadline.remaining())
            sock.sendall(self._bytes())
            while not deadline.expired():
                sock.settimeout(max(deadline.remaining() or 0.0, 0.001))
                count = sock.recv_into(self._framing.get_buffer())
                if not count:
                    return Answer.LEFT
                self._alive = True
                for kind, data in self._framing.received(count):
                    answer = self._judged(kind, bytes(data))
                    if answer is not None:
                        return answer
                if self._framing.failure is not None:
                    return Answer.ALIVE
        except TimeoutError:
            pass  # whatever arrived until now is the answer
        except OSError:
            return Answer.LEFT
        return Answer.ALIVE if self._alive else Answer.SILENT

    def _bytes(self) -> bytes:
        machine, framing = self._machine, self._framing
        # A ping of the framing: a peer that answers only this is there, but does not use the wire.
        ping = framing.encode_control(Opcode.PING, self._word)
        if machine.pings:
            machine.ping(int.from_bytes(self._word, "big"))
        elif not self._pong_is_proof:
            machine.open_stream(WINDOW)
        messages = machine.control_to_send() + machine.data_to_send()
        self._sent = b"".join(chain.from_iterable(messages))
        return ping + b"".join(chain.from_iterable(map(framing.encode, messages)))

    def _judged(self, kind: Opcode, data: bytes) -> Answer | None:
        """Return what a message proves, ``None`` if later ones may prove more."""
        if kind is Opcode.CLOSE:
            return _ended(data)
        if kind in (Opcode.PING, Opcode.PONG):
            if self._pong_is_proof and data == self._word:
                return Answer.SPEAKS if kind is Opcode.PONG else Answer.ECHOES
            return None
        if kind is Opcode.TEXT:
            return None
        self._heard += data
        if self._sent and self._heard.startswith(self._sent):
            return Answer.ECHOES
        try:
            if self._understands:
                self._machine.receive_data(data)
        except RemoteProtocolError:
            self._understands = False
        spoken = any(isinstance(event, PROOFS) for event in self._machine.events())
        return Answer.SPEAKS if spoken else None


def _ended(payload: bytes) -> Answer:
    """Return what a close frame proves."""
    try:
        code, _ = decode_close(payload)
    except FrameError:
        return Answer.LEFT
    return Answer.ALIVE if code in MISUNDERSTOOD else Answer.LEFT
