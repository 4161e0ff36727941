"""Show the frames of a recorded conversation, or of raw bytes from a pipe.

Prints a line per frame on stdout: time, direction (> sent, < received), stream, type, and the rest.
Exit status 2 if the input is invalid or truncated: then the valid part was shown.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import IO, TYPE_CHECKING, Any

from .addresses import PROTOCOLS
from .terminal import CommandError, emit

if TYPE_CHECKING:
    from ..protocols.base import Buffer
    from ..protocols.framing import Framing, Opcode, Received
    from ..recording.file_format import Entry, Header
    from ..recording.frame_parser import FrameHead

EPILOG = "Example: nc -l 9000 | tee log | wsmux inspect --protocol yamux -"

CHUNK = 64 * 1024

# Longest message that is assembled from raw bytes.
MAX_MESSAGE = 16 * 1024 * 1024

# How the handshakes of both sides begin and end, and their maximum size.
HANDSHAKES, END = (b"GET ", b"HTTP/1.1 "), b"\r\n\r\n"
MAX_HANDSHAKE = 64 * 1024

# How the line begins by which a resumable connection is agreed on over a plain socket.
LINES = (b"\xff" * 20 + b"wsmux.resume.", b"wsmux.resume.")

# The first byte of a message of a resumable connection that carries one of its wire.
DATA = b"\x00"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``wsmux inspect``."""
    parser.add_argument("file", metavar="FILE", help="a recording, or raw bytes; - for stdin")
    parser.add_argument(
        "--protocol", choices=PROTOCOLS, help="read raw bytes of this wire, not a recording"
    )
    parser.add_argument(
        "--from",
        dest="sender",
        choices=("client", "server"),
        default="client",
        help="sender of the raw bytes; the client by default",
    )
    parser.add_argument(
        "--carrier",
        choices=("bytes", "websocket", "resumable"),
        default="bytes",
        help="source of the raw bytes: a plain socket (default), a WebSocket, or one that carries "
        "a resumable connection, with or without its handshake",
    )
    parser.add_argument(
        "--stream",
        type=int,
        action="append",
        metavar="ID",
        help="only this stream; may be repeated",
    )
    parser.add_argument("--json", action="store_true", help="print JSON, one line per frame")


def opened(path: str) -> AbstractContextManager[IO[bytes]]:
    """Open a file to read bytes; ``-`` is stdin.

    Raises:
        OSError: it cannot be opened.
    """
    return nullcontext(sys.stdin.buffer) if path == "-" else open(path, "rb")


def run(args: argparse.Namespace) -> int:
    """Print each frame as it is read."""
    from ..recording.file_format import BadRecording

    with opened(args.file) as file:
        try:
            if args.protocol:
                _raw(file, args)
            else:
                _recording(file, args)
        except BadRecording as error:
            raise CommandError(f"{args.file}: {error}", status=2) from error
    return 0


def _recording(file: IO[bytes], args: argparse.Namespace) -> None:
    from ..recording.durable_frames import DurableFrames
    from ..recording.file_format import entry_line, header_line, read_recording

    header, entries = read_recording(file)
    if args.json:
        emit(header_line(header))
    else:
        for line in _about(header):
            emit(line)
    durable = DurableFrames()
    for entry in entries:
        frames = durable.feed(entry.sent, entry.head, entry.raw)
        if args.stream and entry.head.stream not in args.stream:
            continue
        if args.json:
            emit(_with(entry_line(entry), frames))
        else:
            emit(_shown(entry))
            for head in frames:
                emit(_shown(entry, head))


def _about(header: Header) -> Iterator[str]:
    from ..runtime.logs import printable

    yield printable(
        f"# {header.name}: {header.role} of {header.wire} over {header.carrier}, "
        f"wsmux {header.version}, since {header.started}"
    )
    if header.lost_sent or header.lost_received:
        yield (
            f"# {header.lost_sent} frames sent and {header.lost_received} received before were "
            f"not kept"
        )
    yield printable(f"# {'lives' if header.ended is None else header.ended}")


def _with(line: str, frames: list[FrameHead]) -> str:
    """Return a line of JSON that has the frames of a durable stream, too."""
    if not frames:
        return line
    return json.dumps(json.loads(line) | {"durable": [_told(head) for head in frames]})


def _told(head: FrameHead) -> dict[str, Any]:
    facts = head._asdict().items()
    return {name: value for name, value in facts if value not in (None, (), "")}


def _shown(entry: Entry, head: FrameHead | None = None) -> str:
    way = ">" if entry.sent else "<"
    return f"{entry.time:12.6f} {way} {_described(entry.head if head is None else head)}"


def _described(head: FrameHead) -> str:
    from ..runtime.logs import printable

    stream = "-" if head.stream is None else str(head.stream)
    facts: list[str] = [*head.flags]
    if head.direction is not None:
        facts.append(head.direction)
    for name in ("position", "length", "credit", "code", "value"):
        value = getattr(head, name)
        if value is not None:
            facts.append(f"{name} {value}")
    if head.detail:
        facts.append(head.detail)
    return printable(f"{stream:>6} {head.type:<13} {' '.join(facts)}".rstrip())


def _raw(file: IO[bytes], args: argparse.Namespace) -> None:
    for place, head, size in _frames(file, args):
        if not args.stream or head.stream in args.stream:
            if args.json:
                found: dict[str, Any] = {"offset": place, "from": args.sender} | _told(head)
                emit(json.dumps(found if size is None else found | {"size": size}))
            else:
                emit(f"{place:>12} {'>' if args.sender == 'client' else '<'} {_described(head)}")


class _Parser:
    """Parse the messages that one side has sent."""

    def __init__(self, wire: str, resumable: bool) -> None:
        from ..recording.durable_frames import DurableFrames
        from ..recording.frame_parser import cutter

        self._wire, self._resumable = wire, resumable
        # The one finds the heads of frames that are not whole yet, the other what is in frames.
        self._heads, self._whole = cutter(wire, keep=False), cutter(wire, keep=True)
        self._durable = DurableFrames()
        self._begun: FrameHead | None = None  # a frame that is not whole yet

    @property
    def incomplete(self) -> bool:
        """Whether the bytes so far end in the middle of a frame."""
        return self._heads is not None and self._heads.incomplete

    def read(self, kind: Opcode, data: Buffer) -> Iterator[tuple[FrameHead, int | None]]:
        """Yield fields and size of each frame; those of durable streams have no size.

        Raises:
            FrameError: the length of a frame cannot be determined.
        """
        from ..recording.frame_parser import read_carried, read_head

        if self._resumable and kind is kind.BINARY:
            if data[:1] != DATA:
                yield read_carried(bytes(data)), len(data)
                return
            data = memoryview(data)[1:]
        heads = wholes = [(bytes(data), len(data))]
        if self._heads is not None and self._whole is not None and kind is kind.BINARY:
            heads, wholes = self._heads.feed(data), self._whole.feed(data, MAX_MESSAGE)
        bodies = iter(wholes)
        for start, size in heads:
            yield from self._body(bodies)
            self._begun = read_head(self._wire, start, size, kind)
            yield self._begun, size
        yield from self._body(bodies)

    def _body(self, bodies: Iterator[tuple[bytes, int]]) -> Iterator[tuple[FrameHead, None]]:
        """Yield the durable frames that end in the frame that was begun, once it is whole."""
        if self._begun is not None and (body := next(bodies, None)) is not None:
            data, size = body
            found = self._durable.feed(True, self._begun, data if len(data) == size else None)
            self._begun = None
            yield from ((head, None) for head in found)


def _frames(
    file: IO[bytes], args: argparse.Namespace
) -> Iterator[tuple[int, FrameHead, int | None]]:
    """Yield the position, fields and size of each frame, without the carrier's bytes.

    Raises:
        BadRecording: the bytes are not of this wire, or end within a frame.
    """
    from ..exceptions import RemoteProtocolError
    from ..recording.file_format import BadRecording

    framing, parser = _receiver(args), _Parser(args.protocol, args.carrier == "resumable")
    place = malformed = 0
    try:
        for kind, data in _messages(file, framing, args.carrier != "bytes"):
            for head, size in parser.read(kind, data):
                malformed += head.type == "MALFORMED"
                yield place, head, size
                place += size or 0
    except RemoteProtocolError as error:
        raise BadRecording(f"after {place} bytes of {args.protocol}: {error}") from error
    if not framing.between_messages() or parser.incomplete:
        raise BadRecording("the bytes are truncated: they end within a frame")
    if malformed:
        raise BadRecording(f"malformed frames: {malformed}")


def _receiver(args: argparse.Namespace) -> Framing:
    """Return the framing that parses the bytes as their receiver did."""
    from ..config import Config
    from ..protocols.base import Role
    from ..protocols.registry import wire
    from ..protocols.websocket import WebSocketFraming

    role = Role.SERVER if args.sender == "client" else Role.CLIENT
    spoken, config = wire(args.protocol), Config(max_message_size=MAX_MESSAGE)
    if args.carrier == "resumable":
        return WebSocketFraming(role, MAX_MESSAGE + 1, config.max_fragments)
    make = spoken.over_websocket if args.carrier == "websocket" else spoken.over_bytes
    return make(role, config, None)[0]


def _messages(file: IO[bytes], framing: Framing, handshake: bool) -> Iterator[Received]:
    """Yield the carrier's messages; raise its failure after them."""
    pending = _behind_handshake(file) if handshake else b""
    while rest := memoryview(pending or _some(file)):
        pending = b""
        while rest:
            room = framing.get_buffer()
            count = min(len(room), len(rest))
            room[:count] = rest[:count]
            rest = rest[count:]
            yield from framing.received(count)
            if framing.failure is not None:
                raise framing.failure


def _behind_handshake(file: IO[bytes]) -> bytes:
    """Return the first bytes, without the handshake if they begin with one."""
    data = _some(file)
    for beginnings, end in ((HANDSHAKES, END), (LINES, b"\n")):
        while any(data.startswith(name[: len(data)]) for name in beginnings) and end not in data:
            more = _some(file)
            if not more or len(data) > MAX_HANDSHAKE:
                return data  # not a WebSocket, as will be reported
            data += more
        if data.startswith(beginnings):
            return data.partition(end)[2]
    return data


def _some(file: IO[bytes]) -> bytes:
    """Return available bytes, waiting for some; none at the end."""
    read: bytes = file.read1(CHUNK)  # type: ignore[attr-defined]
    return read
