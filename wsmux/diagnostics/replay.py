"""Replay the peer's side of a recorded conversation to a handler, and compare the answers.

The handler gets a real connection, with a real machine, over a socket pair. At the other end the
recording sends the frames that were received then, each once the handler's side has sent as much as
it had then, and has granted the credit that the frame needs. So the speed of either side does not
matter.

The replay compares, for each stream, the bytes and the ends with their codes. Credit and pings
depend on timing and are not compared; pings are answered as they arrive.
"""

from __future__ import annotations

import select
import socket
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from ..config import Config
from ..endpoints.connection_options import ConnectionHandler, ConnectionOptions
from ..endpoints.stream_handlers import StreamHandler
from ..exceptions import CloseCode, FrameError
from ..protocols.base import Role
from ..protocols.bymux_packets import PONG
from ..protocols.bymux_packets import encode_head as bymux_head
from ..protocols.framing import MAX_CONTROL, ByteFraming, Framing, Opcode, encode_close
from ..protocols.native import parse_head
from ..protocols.registry import wire
from ..protocols.yamux_frames import Flag, Type
from ..protocols.yamux_frames import encode_head as yamux_head
from ..recording.file_format import BadRecording, Entry, Header
from ..recording.frame_parser import CARRIED, TYPE_WIDTHS, FrameHead, cutter, read_head
from ..runtime.deadline import Deadline
from ..runtime.threads import daemon_thread

__all__ = ["Outcome", "replay"]

CHUNK = 256 * 1024
POLLIN, POLLOUT = select.POLLIN, select.POLLOUT

# Frames sent when the handler returns, on one wire or another.
GOODBYE = ("CARRIER_CLOSE 1000", "GO_AWAY 0", "CLOSE", "STOP_READ")

CARRIER = {f"CARRIER_{kind.name}": kind for kind in (Opcode.CLOSE, Opcode.PING, Opcode.PONG)}
KINDS = CARRIER | {"TEXT": Opcode.TEXT}


@dataclass(frozen=True)
class Outcome:
    """Hold the result of a replay.

    Attributes:
        fed: the number of frames sent to the handler's side.
        streams: the number of streams on which either side sent anything.
        differences: sentences that describe how the answers differ from the recorded ones.
    """

    fed: int
    streams: int
    differences: list[str]


class Said:
    """Collect what one side has sent, except what depends on timing.

    Attributes:
        data: the bytes on each stream.
        marks: the other frames on each stream, and under ``None`` those for the connection.
        credit: the credit granted to each stream.
    """

    def __init__(self) -> None:
        self.data: dict[int, bytearray] = {}
        self.marks: dict[int | None, Counter[str]] = {}
        self.credit: Counter[int] = Counter()

    def add(self, head: FrameHead, raw: bytes) -> None:
        """Add a frame."""
        stream = head.stream
        if stream is not None:
            data = self.data.setdefault(stream, bytearray())
            if head.length:
                data += raw[len(raw) - head.length :]
            self.credit[stream] += head.credit or 0
        for mark in marks_of(head):
            self.marks.setdefault(stream, Counter())[mark] += 1

    def size(self, stream: int) -> int:
        """Return how many bytes were sent on a stream, -1 if no frame was."""
        return len(self.data[stream]) if stream in self.data else -1

    def count(self, stream: int | None, mark: str) -> int:
        """Return how often a mark was sent."""
        return self.marks.get(stream, Counter())[mark]

    def reads_no_more(self, stream: int) -> bool:
        """Return whether the other side need not write to a stream any more."""
        marks = self.marks.get(stream, Counter())
        return any("write" in mark or "RST" in mark or mark == "STOP_READ" for mark in marks)

    def forget_goodbye(self) -> None:
        """Ignore that the handler returned, which may not have happened in the recording."""
        for mark in GOODBYE:
            self.marks.get(None, Counter()).pop(mark, None)


def marks_of(head: FrameHead) -> list[str]:
    """Return the marks of a frame: its content apart from bytes, credit and pings."""
    if head.type in ("PING", "PONG", "CARRIER_PING", "CARRIER_PONG", "ACK", "DATA", "CREDIT"):
        return (
            [flag for flag in head.flags if flag in ("SYN", "FIN")] if head.type == "DATA" else []
        )
    code = "" if head.code is None else f" {head.code}"
    if head.type == "WINDOW":
        return [f"{flag}{code}" for flag in head.flags if flag != "ACK"]
    if head.type == "WRITE":
        return [] if head.value is None else [f"WRITE {head.value}"]
    direction = f" {head.direction}" if head.direction else ""
    return [f"{head.type}{direction}{code}"]


class Expected(NamedTuple):
    """What the handler's side must have sent before the recording continues."""

    stream: int | None
    size: int
    marks: list[tuple[str, int]]

    def met(self, said: Said) -> bool:
        """Return whether it has been sent."""
        if self.stream is not None and said.size(self.stream) < self.size:
            return False
        return all(said.count(self.stream, mark) >= count for mark, count in self.marks)

    def __str__(self) -> str:
        where = "the connection" if self.stream is None else f"stream {self.stream}"
        what = [f"{self.size} bytes"] * (self.size > 0) + [mark for mark, _ in self.marks]
        return f"{' and '.join(what) or 'anything'} on {where}"


@dataclass
class Script:
    """A recording, as steps to wait for and to send."""

    steps: list[Expected | Entry] = field(default_factory=list)
    said: Said = field(default_factory=Said)
    closes: bool = False  # it contains a close frame of either side

    @classmethod
    def of(cls, spoken: str, entries: Iterable[Entry]) -> Script:
        """Read the frames of a recording of this wire.

        Raises:
            BadRecording: it has headers only, or they do not match the frames.
        """
        script = cls()
        for number, entry in enumerate(entries, 2):
            if entry.head.type.startswith(CARRIED):
                continue  # the replay needs one carrier
            if entry.raw is None:
                raise BadRecording(
                    "the recording has frame headers only: replaying needs Recording(payload=...)"
                )
            kind = KINDS.get(entry.head.type, Opcode.BINARY)
            head = read_head(spoken, entry.raw, entry.size, kind)
            if head != entry.head or (kind >= Opcode.CLOSE and entry.size > MAX_CONTROL):
                raise BadRecording(f"line {number} contradicts the frame in it")
            script.closes = script.closes or entry.head.type == "CARRIER_CLOSE"
            if entry.sent:
                script._expect(entry.head, entry.raw)
            elif not is_answer(entry.head):
                script.steps.append(entry)
        return script

    def _expect(self, head: FrameHead, raw: bytes) -> None:
        said = self.said
        said.add(head, raw)
        stream, marks = head.stream, set(marks_of(head))
        if stream is not None or marks:
            size = -1 if stream is None else said.size(stream)
            counts = [(mark, said.count(stream, mark)) for mark in sorted(marks)]
            self.steps.append(Expected(stream, size, counts))


def is_answer(head: FrameHead) -> bool:
    """Return whether a frame answers a ping, which the replay does by itself."""
    yamux = head.type == "PING" and "ACK" in head.flags
    return yamux or head.type in ("PONG", "CARRIER_PONG")


class Player:
    """Play the recorded peer, at one end of a socket."""

    def __init__(self, header: Header, script: Script, sock: socket.socket, config: Config) -> None:
        self._wire = header.wire
        self._script = script
        self._sock = sock
        role = Role.SERVER if header.role == "client" else Role.CLIENT
        parts = wire(header.wire)
        make = parts.over_websocket if header.carrier == "websocket" else parts.over_bytes
        self._framing: Framing
        self._framing, machine = make(role, config, None)
        self._entitled = machine.min_window
        self._cutter = cutter(header.wire, keep=True)
        self._out = bytearray()
        self._fed_bytes: Counter[int] = Counter()
        self.said = Said()
        self.fed = 0
        self.ended = False  # the handler's side has closed its end

    def play(self, patience: float) -> str | None:
        """Run all steps; return a description of what did not arrive in ``patience`` seconds."""
        steps, number = self._script.steps, 0
        deadline = Deadline(patience)
        while number < len(steps):
            step = steps[number]
            if self._ready(step):
                if isinstance(step, Entry):
                    self._feed(step)
                number += 1
                deadline = Deadline(patience)
            elif self.ended or self._closed() or deadline.expired():
                return self._missing(step)
            else:
                self._exchange(deadline)
        while self._out and not self.ended and not deadline.expired():
            self._exchange(deadline)
        return None

    def end(self, code: int | None, patience: float) -> None:
        """Close, or disconnect without a ``code``, and receive the rest."""
        deadline = Deadline(patience)
        if code is not None and self._framing.has_controls:
            self._out += self._framing.encode_control(Opcode.CLOSE, encode_close(code, ""))
        while self._out and not self.ended and not deadline.expired():
            self._exchange(deadline)
        if not self._framing.has_controls or code is None:
            self._sock.shutdown(socket.SHUT_WR)
        while not self.ended and not deadline.expired():
            self._exchange(deadline)

    def _ready(self, step: Expected | Entry) -> bool:
        if isinstance(step, Expected):
            return step.met(self.said)
        stream, length = step.head.stream, step.head.length
        if stream is None or not length or self.said.reads_no_more(stream):
            return True
        granted = self._entitled + self.said.credit[stream]
        # Frames to which the recorded peer was not entitled either are sent all the same.
        lacked = self._fed_bytes[stream] + length - self._entitled
        allowed = self._script.said.credit[stream] < lacked
        return allowed or self._fed_bytes[stream] + length <= granted

    def _closed(self) -> bool:
        """Return whether the handler's side has sent a close frame."""
        return any(mark.startswith("CARRIER_CLOSE") for mark in self.said.marks.get(None, ()))

    def _missing(self, step: Expected | Entry) -> str:
        what = str(step) if isinstance(step, Expected) else f"credit on stream {step.head.stream}"
        how = "ended the connection" if self.ended or self._closed() else "said nothing further"
        return f"the handler's side {how} where {what} was recorded"

    def _feed(self, entry: Entry) -> None:
        head, raw = entry.head, entry.raw or b""
        stream, length = head.stream, head.length
        if stream is not None and length:
            if self.said.reads_no_more(stream):
                return
            self._fed_bytes[stream] += length
        kind = KINDS.get(head.type, Opcode.BINARY)
        if kind >= Opcode.CLOSE:
            self._out += self._framing.encode_control(kind, raw)
        else:
            self._send(raw, kind)
        self.fed += 1

    def _exchange(self, deadline: Deadline) -> None:
        """Send and receive as much as possible, waiting at most until the deadline."""
        poller = select.poll()
        poller.register(self._sock, POLLIN | POLLOUT if self._out else POLLIN)
        ready = sum(event for _, event in poller.poll(1000 * (deadline.remaining() or 0)))
        try:
            if ready & POLLOUT:
                del self._out[: self._sock.send(self._out[:CHUNK])]
            if ready & ~POLLOUT:
                count = self._sock.recv_into(self._framing.get_buffer())
                self.ended = not count
                for kind, data in self._framing.received(count) if count else ():
                    self._take(kind, bytes(data))
        except (BrokenPipeError, ConnectionResetError):
            self.ended = True

    def _take(self, kind: Opcode, data: bytes) -> None:
        if kind is Opcode.BINARY and self._cutter is not None:
            frames = [frame for frame, _ in self._cutter.feed(data)]
        else:
            frames = [data]
        for frame in frames:
            head = read_head(self._wire, frame, len(frame), kind)
            self.said.add(head, frame)
            self._answer(head, frame)

    def _answer(self, head: FrameHead, frame: bytes) -> None:
        if head.type == "CARRIER_PING":
            self._out += self._framing.encode_control(Opcode.PONG, frame)
        elif head.type == "PING" and self._wire == "bymux":
            self._send(bymux_head(PONG, head.stream))
        elif head.type == "PING" and "SYN" in head.flags:
            self._send(yamux_head(Type.PING, Flag.ACK, 0, head.value or 0))

    def _send(self, frame: bytes, kind: Opcode = Opcode.BINARY) -> None:
        # If a length goes between them, the header must be separated from the rest.
        joined = not isinstance(self._framing, ByteFraming)
        start = 0 if joined else parse_head(frame, TYPE_WIDTHS[self._wire])[2]
        self._out += b"".join(self._framing.encode((frame[:start], frame[start:]), kind))


def replay(
    header: Header,
    entries: Iterable[Entry],
    handler: ConnectionHandler | None = None,
    stream_handler: StreamHandler | None = None,
    patience: float = 5.0,
) -> Outcome:
    """Replay a recording to a handler of connections, or of the streams that the peer opens.

    Blocks; fails after ``patience`` seconds without progress.

    Raises:
        BadRecording: frames are missing, it has headers only, or its wire is unknown.
    """
    if header.lost_sent or header.lost_received:
        raise BadRecording(
            f"the recording begins in the middle: {header.lost_sent} frames sent and "
            f"{header.lost_received} received before were not kept"
        )
    if header.role not in tuple(Role) or header.carrier not in ("websocket", "bytes"):
        raise BadRecording(f"no {header.role!r} over {header.carrier!r} can be replayed")
    try:
        config = Config(**header.config)
        wire(header.wire)
    except (TypeError, ValueError) as error:
        raise BadRecording(f"the recording describes an impossible connection: {error}") from error
    script = Script.of(header.wire, entries)
    connection_options = ConnectionOptions(config=config, stream_handler=stream_handler)
    ours, theirs = socket.socketpair()
    with theirs:
        player = Player(header, script, theirs, config)
        make = (
            connection_options.over_websocket
            if header.carrier == "websocket"
            else connection_options.over_bytes
        )
        connection = make(ours, Role(header.role), header.wire)
        thread = daemon_thread(
            target=connection_options.serve, args=(connection, handler), name="wsmux-replay"
        )
        thread.start()
        try:
            missing = player.play(patience)
            differences = [missing] if missing else []
            lost = header.code == CloseCode.ABNORMAL_CLOSURE
            if header.ended is None or lost:
                player.said.forget_goodbye()
            differences += compare(script.said, player.said)
            player.end(None if script.closes or lost else CloseCode.NORMAL_CLOSURE, patience)
        except FrameError as error:  # impossible on a plain socket
            raise BadRecording(f"a frame of the recording cannot be sent: {error}") from error
        finally:
            connection.abort()
            thread.join(patience)
        if thread.is_alive():
            differences.append(
                f"the handler is still running {patience:g} s after the connection ended"
            )
    streams = set(script.said.data) | set(player.said.data)
    return Outcome(player.fed, len(streams), differences)


def compare(recorded: Said, answered: Said) -> list[str]:
    """Return sentences that describe how the frames of two sides differ."""
    found = []
    for stream in sorted(set(recorded.data) | set(answered.data)):
        one, other = recorded.data.get(stream, b""), answered.data.get(stream, b"")
        size = min(len(one), len(other))
        if one[:size] != other[:size]:
            place = next(i for i in range(size) if one[i] != other[i])
            found.append(f"stream {stream}: byte {place} differs from the recorded one")
        if len(one) != len(other):
            found.append(f"stream {stream}: {len(other)} bytes, {len(one)} were recorded")
    for where in [*sorted(recorded.data | answered.data), None]:
        name = "the connection" if where is None else f"stream {where}"
        marks, others = (said.marks.get(where, Counter()) for said in (recorded, answered))
        found += [f"{name}: {mark} was recorded, and is missing" for mark in marks - others]
        found += [f"{name}: {mark} was not recorded" for mark in others - marks]
    return found
