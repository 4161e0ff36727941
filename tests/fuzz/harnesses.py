"""Give each parser any bytes, and let nothing but its own errors out.

A harness takes one input and returns a short label of what came of it, by which a driver without
coverage knows inputs that do something new. What a parser may raise is caught here; everything
else, a broken promise among it, is a find.
"""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from typing import Any

from wsmux.bus.errors import BusError, TokenRefused
from wsmux.bus.wire import tokens
from wsmux.bus.wire.address import Address
from wsmux.bus.wire.envelope import digest, parse
from wsmux.bus.wire.keys import verify
from wsmux.bus.wire.verification import Verifier
from wsmux.config import Config
from wsmux.exceptions import LocalProtocolError, RemoteProtocolError
from wsmux.handshake.access import Access
from wsmux.handshake.admission import Admission
from wsmux.handshake.request import Request
from wsmux.protocols.base import MuxProtocol, Role
from wsmux.protocols.bymux import BymuxProtocol
from wsmux.protocols.durable import (
    Data,
    DurableReceiver,
    DurableSender,
    End,
    Open,
    Phase,
    Refusal,
)
from wsmux.protocols.events import DataReceived, StreamOpened
from wsmux.protocols.framing import ByteFraming, Framing, Opcode, decode_close
from wsmux.protocols.native import JS_WS, WSMUX_V1, Dialect, NativeProtocol
from wsmux.protocols.resumable_framing import ResumableFraming
from wsmux.protocols.resumption import Session
from wsmux.protocols.websocket import WebSocketFraming
from wsmux.protocols.yamux import YamuxProtocol
from wsmux.recording.durable_frames import DurableFrames
from wsmux.recording.frame_parser import FrameHead, read_carried
from wsmux.rpc.wire.codec import Codec, EncodeError
from wsmux.rpc.wire.handshake import (
    parse_rehandshake_request,
    parse_rehandshake_response,
    parse_request,
    parse_response,
)
from wsmux.rpc.wire.json_codec import JsonCodec
from wsmux.rpc.wire.msgpack_codec import MsgpackCodec
from wsmux.rpc.wire.protobuf_codec import ProtobufCodec
from wsmux.server import Server

from ..helpers.bus.captured import COMPUTED, NOW, NPM, TWINS
from ..helpers.machine_pairs import feed

__all__ = ["HARNESSES", "VECTOR_EPOCH", "Harness"]

# Takes one input; returns a label of what it did.
Harness = Callable[[bytes], str]

# Small, so that short inputs reach them.
MAX_MESSAGE = 600
MAX_FRAGMENTS = 4

# Of the streams in the vectors.
VECTOR_EPOCH = bytes.fromhex("e0e1e2e3e4e5e6e7e8e9eaebecedeeef")
LIMITS = Config(
    receive_window=400,
    max_frame_size=200,
    max_message_size=MAX_MESSAGE,
    max_control_frames=20,
    max_cancelled=3,
)


def said(error: Exception) -> str:
    """Return what kind of refusal an error is: its sentence without the numbers in it."""
    text = str(error)
    assert text, f"{type(error).__name__} says nothing"
    assert not isinstance(error, RemoteProtocolError) or 1000 <= error.code < 5000, error.code
    return type(error).__name__ + "".join(each for each in text if not each.isdigit())[:60]


def options(data: bytes) -> tuple[Role, int, bytes]:
    """Take the first byte off an input: the role, and seven bits for a harness to use."""
    first = data[0] if data else 0
    return (Role.CLIENT if first & 1 else Role.SERVER), first >> 1, data[1:]


# Framings


def framing(data: bytes) -> str:
    """Read frames of RFC 6455, whole or a few bytes at a time."""
    role, bits, wire = options(data)
    keeps = bool(bits & 1)
    reader = WebSocketFraming(role, MAX_MESSAGE, MAX_FRAGMENTS, keeps)
    frames = _fed(reader, wire, bits)
    if keeps:
        assert all(len(payload) <= MAX_MESSAGE for _, payload in frames)
    return _closes(frames, reader)


def byte_framing(data: bytes) -> str:
    """Read native messages from a plain stream of bytes."""
    _, bits, wire = options(data)
    reader = ByteFraming(MAX_MESSAGE, 1 + (bits & 1))
    return _closes(_fed(reader, wire, bits), reader)


def _fed(reader: Framing, wire: bytes, bits: int) -> list[tuple[Opcode, bytes]]:
    """Feed a framing; see that no byte came from nowhere and no buffer grew without need."""
    frames = feed(reader, wire, (None, 1, 3, 64)[bits >> 1 & 3])
    assert sum(len(payload) for _, payload in frames) <= len(wire)
    assert len(reader.get_buffer()) <= 256 * 1024
    return frames


def _closes(frames: list[tuple[Opcode, bytes]], reader: Framing) -> str:
    label = "".join(str(int(kind)) for kind, _ in frames[:6])
    for kind, payload in frames:
        if kind is Opcode.CLOSE:
            try:
                label += str(decode_close(payload)[0] // 1000)
            except RemoteProtocolError as error:
                label += said(error)
    return label + (said(reader.failure) if reader.failure else "")


# Machines


def native(dialect: Dialect) -> Harness:
    """Return what reads messages of a dialect, each behind a byte that is its length."""

    def run(data: bytes) -> str:
        role, bits, wire = options(data)
        return _owned(NativeProtocol(role, LIMITS, dialect), _cut(wire), bits)

    return run


def yamux(data: bytes) -> str:
    """Read Yamux, whole or a few bytes at a time."""
    role, bits, wire = options(data)
    return _owned(YamuxProtocol(role, LIMITS), _chunks(wire, bits), bits)


def bymux(data: bytes) -> str:
    """Read Bymux, whole or a few bytes at a time."""
    role, bits, wire = options(data)
    return _owned(BymuxProtocol(role, LIMITS), _chunks(wire, bits), bits)


def _cut(wire: bytes) -> Iterator[bytes]:
    start = 0
    while start < len(wire):
        end = start + 1 + wire[start]
        yield wire[start + 1 : end]
        start = end


def _chunks(wire: bytes, bits: int) -> Iterator[bytes]:
    size = (len(wire) or 1, 1, 7, 64)[bits >> 4 & 3]
    return (wire[start : start + size] for start in range(0, len(wire), size))


def _owned(machine: MuxProtocol, messages: Iterator[bytes], bits: int) -> str:
    """Feed a machine and act as its owner, in a way that the bits choose."""
    label: list[str] = []
    own: list[int] = []
    received = 0
    for turn, message in enumerate(messages):
        _act(machine, own, bits + turn)
        try:
            machine.receive_data(message)
        except RemoteProtocolError as error:
            label.append(f"{error.code} {said(error)}")
            break
        received += len(message)
        received -= _react(machine, label, bits)
        assert received >= 0, "more bytes were delivered than came"
    _drain(machine)
    return " ".join(label[:8])


def _act(machine: MuxProtocol, own: list[int], choice: int) -> None:
    """Do one of the things that an owner may do, also when it may not."""
    with suppress(LocalProtocolError):
        if choice % 8 == 0 and len(own) < 3 and machine.may_open():
            own.append(machine.open_stream())
        elif own:
            stream_id = own[-1]
            (
                lambda: machine.send_data(stream_id, bytes(50)),
                lambda: machine.close_write(stream_id, 0.0),
                lambda: machine.close_read(stream_id),
                lambda: machine.reset_write(stream_id, 70),
                lambda: machine.reset_read(stream_id, 70),
                lambda: machine.ping(1),
                lambda: machine.go_away(70),
                lambda: None,
            )[choice >> 2 & 7]()


def _react(machine: MuxProtocol, label: list[str], bits: int) -> int:
    """Handle events as an owner must; return the bytes that were delivered."""
    delivered = 0
    while events := machine.events():
        for event in events:
            label.append(type(event).__name__)
            if isinstance(event, StreamOpened):
                if bits & 2:
                    machine.refuse(event.stream_id, machine.refused_code)
                else:
                    machine.accept(event.stream_id, LIMITS.receive_window)
            elif isinstance(event, DataReceived):
                delivered += len(event.data)
                machine.consumed(event.stream_id, len(event.data))
    _drain(machine)
    return delivered


def _drain(machine: MuxProtocol) -> None:
    for head, body in machine.control_to_send() + machine.data_to_send():
        assert head or body


# Resumable connections and durable streams


def resumption(data: bytes) -> str:
    """Read the messages of a session, each in frames of RFC 6455, and parse them for a recorder."""
    role, bits, wire = options(data)
    session = Session(bytes(16), 2**20, 60.0)
    reader = ResumableFraming(role, MAX_MESSAGE, MAX_FRAGMENTS, session)
    reader.untold = []
    for _ in range(3):
        reader.encode((b"", bytes(10)))  # what the peer may acknowledge
    label = _closes(_fed(reader, wire, bits), reader)
    assert session.received <= len(wire)
    assert 0 <= session.acknowledged <= session.sent == 30
    assert len(session.kept) == 3 - session.acknowledged // 10
    told = [message for _, message in reader.untold] + [wire]
    return label + " ".join(read_carried(message).type for message in told[-6:])


def durable(data: bytes) -> str:
    """Read what a sender or a receiver of a durable stream says, as the other end."""
    role, bits, wire = options(data)
    frames, found = DurableFrames(), []
    if role is Role.CLIENT:
        opened = DurableSender("upload-17", VECTOR_EPOCH, (None, 2**26)[bits & 1])
        frames.feed(True, FrameHead("DATA", 0, length=999), opened.open())
        chunks, label = list(_chunks(wire, bits)), _answered(opened, _chunks(wire, bits))
    else:
        chunks, label = list(_chunks(wire, bits)), _received(_chunks(wire, bits), bits)
    for chunk in chunks:  # a recorder sees the same
        sent = role is not Role.CLIENT
        found += frames.feed(sent, FrameHead("DATA", 0, length=len(chunk)), chunk)
    return " ".join([label, *(head.type for head in found[:4])])


def _answered(sender: DurableSender, chunks: Iterator[bytes]) -> str:
    label: list[str] = []
    for chunk in chunks:
        try:
            answers = sender.receive(chunk)
        except RemoteProtocolError as error:
            assert sender.phase is Phase.OVER
            return " ".join([*label[:8], said(error)])
        label += [type(answer).__name__ for answer in answers]
        assert 0 <= sender.committed <= sender.sent
        with suppress(LocalProtocolError):
            sender.data(100)
        with suppress(LocalProtocolError):
            if len(label) % 3 == 2:
                sender.end()
    return " ".join(label[:8])


def _received(chunks: Iterator[bytes], bits: int) -> str:
    receiver, label = DurableReceiver(), []
    begun = got = 0
    for chunk in chunks:
        try:
            events = receiver.receive(chunk)
        except RemoteProtocolError as error:
            receiver.refuse(Refusal.MALFORMED, str(error))
            return " ".join([*label[:8], said(error)])
        for event in events:
            label.append(type(event).__name__)
            if isinstance(event, Open):
                begun = 8 * (bits & 1)
                receiver.accept(begun)
            elif isinstance(event, Data):
                got += len(event.data)
            elif isinstance(event, End):
                receiver.commit(receiver.received)
                receiver.complete()
        assert receiver.received == begun + got
        with suppress(LocalProtocolError):
            receiver.commit(receiver.received)
    return " ".join(label[:8])


# River


def river(codec: Codec) -> Harness:
    """Return what decodes a message, reads its payload as a handshake, and encodes it again."""

    def run(data: bytes) -> str:
        try:
            envelope = codec.decode(data)
        except RemoteProtocolError as error:
            return said(error)
        label = "decoded"
        for parse_payload in (
            parse_request,
            parse_response,
            parse_rehandshake_request,
            parse_rehandshake_response,
        ):
            try:
                parse_payload(envelope.payload)
                label += parse_payload.__name__
            except RemoteProtocolError as error:
                label += said(error)
        try:
            again = codec.encode(envelope, codec.pack(envelope.payload))
        except EncodeError as error:
            return label + said(error)
        assert repr(codec.decode(again)) == repr(envelope)  # by text: NaN is not itself
        return label

    return run


# RMB


# Most of the recorded envelopes are for it.
ME = Address(5, None)

GENUINE = {row["token"] for row in (*NPM["jwt"], *COMPUTED["tokens"]["cases"])}


def _unseal(cipher: bytes, pk: bytes) -> bytes:
    raise BusError(106, "nothing is encrypted for this receiver")


def rmb_envelope(data: bytes) -> str:
    """Parse an envelope and decide whether to believe it; what is believed was signed."""
    try:
        envelope = parse(data)
        received = Verifier(ME, _unseal).accept(envelope, NOW, TWINS.get)
    except BusError as error:
        return said(error)
    if received.twin is not None:
        assert verify(received.twin.account, digest(envelope), envelope.signature)
    return received.kind


def rmb_token(data: bytes) -> str:
    """Check a token; no other passes than those that were made for the vectors."""
    text = data.decode("latin-1")
    try:
        tokens.check_token(text, NOW, TWINS.get)
    except TokenRefused as error:
        return said(error)
    assert text in GENUINE, "a token passed that nobody made"
    return "taken"


# Requests for a WebSocket


class _Taker:
    """Stand for what makes connections: keep the socket and the request that came."""

    config = Config(max_handshake_size=2000, handshake_timeout=5.0)

    def __init__(self) -> None:
        self.socket: socket.socket | None = None
        self.request = Request("", "", {}, "")

    def accepted(self, sock: socket.socket, _: str, request: Request, *rest: object) -> None:
        self.socket, self.request = sock, request


class _Door(Server):
    """Shake hands as a server does, without a port."""

    def __init__(self) -> None:
        self.taker = _Taker()
        self._connection_options: Any = self.taker
        self._config = self.taker.config
        self._lock = threading.Lock()
        self._opening = set()
        self._served = threading.local()
        self._stopping = threading.Event()
        self._leaving = False
        self._plain = False
        self._http = True
        self._ssl_context = None
        self._protocols = ("wsmux",)
        self._origins = None
        self.url = "ws://door"
        self._access = Access(None)
        self._authorize = self._users = None
        self._sessions = None
        self._admission = Admission(self._config, self.url)
        self._threads = {}

    def meet(self, sock: socket.socket) -> socket.socket | None:
        """Return the socket of a client that got 101."""
        here = threading.current_thread()
        self._threads[here] = self._admission.arrive("192.0.2.1")
        with ExitStack() as held:
            self._shake_hands(sock, ("192.0.2.1", 1), held)
        self._let_go(here)
        return self.taker.socket


# What RFC 9110 and RFC 6455 let a request that is taken have once, for any reader of it.
ONCE = [re.compile(rb"(?i)[\r\n]\s*%b\s*:" % name) for name in (b"host", b"sec-websocket-key")]
ORIGIN = re.compile(rb"(?i)[\r\n]\s*origin\s*:")


def request_head(data: bytes) -> str:
    """Ask a server for a WebSocket in any words: 101, or a refusal and the end."""
    door = _Door()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(data)
        theirs.shutdown(socket.SHUT_WR)
        taken = door.meet(ours)
        assert ours.fileno() == -1, "a socket was left open"
        if taken is None:
            answer = _to_end(theirs)
            assert answer == b"" or answer.startswith(b"HTTP/1.1 4"), answer
            return "".join(char for char in answer.decode()[:300] if not char.isdigit())
        with taken:
            head, _, behind = data.partition(b"\r\n\r\n")
            assert theirs.recv(1000).startswith(b"HTTP/1.1 101 ")
            assert _to_end(taken) == behind, "bytes behind the request were dropped"
    assert all(len(pattern.findall(head)) == 1 for pattern in ONCE), "two readers could differ"
    assert bool(ORIGIN.search(head)) is ("origin" in door.taker.request.headers)
    return f"taken {sorted(door.taker.request.headers)}"


def _to_end(sock: socket.socket) -> bytes:
    pieces = []
    while piece := sock.recv(65536):
        pieces.append(piece)
    return b"".join(pieces)


HARNESSES: dict[str, Harness] = {
    "framing": framing,
    "byte-framing": byte_framing,
    "native": native(WSMUX_V1),
    "js-ws": native(JS_WS),
    "yamux": yamux,
    "bymux": bymux,
    "resumption": resumption,
    "durable": durable,
    "river-json": river(JsonCodec()),
    "river-msgpack": river(MsgpackCodec()),
    "river-protobuf": river(ProtobufCodec()),
    "rmb-envelope": rmb_envelope,
    "rmb-token": rmb_token,
    "request-head": request_head,
}
