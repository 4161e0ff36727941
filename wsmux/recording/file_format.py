"""Write and read recordings: a JSON line about the connection, then one per frame.

The first line has ``"wsmux-recording": 1`` and the number of frames that follow, so that a
truncated recording is detected. A frame has the fields of its header (see ``frame_parser``) under
the same names, and

- ``t``: seconds since the connection was made,
- ``dir``: ``"sent"`` just before the socket got it, or ``"received"`` just after,
- ``size``: its bytes, without the carrier's framing,
- ``raw``: those bytes in base64, if payloads were recorded.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, fields
from typing import IO, Any, get_type_hints

from .frame_parser import FrameHead

__all__ = ["BadRecording", "Entry", "Header", "entry_line", "header_line", "read_recording"]

FORMAT = "wsmux-recording"
VERSION = 1

# Longest line: a frame of 48 MiB in base64. Default limits never allow longer ones.
MAX_LINE = 64 * 1024 * 1024

DIRECTIONS = {"sent": True, "received": False}
NOTHING: tuple[object, ...] = (None, (), "")
_OPTIONAL = ("stream", "length", "credit", "code", "value", "position")


class BadRecording(ValueError):
    """Report that a recording is invalid, or truncated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """Hold the first line of a recording.

    Attributes:
        version: the version of wsmux.
        wire, role, carrier, name: of the connection; the carrier is ``websocket`` or ``bytes``.
        started: when the connection was made, in UTC, in ISO 8601.
        frames: the number of frames that follow.
        lost_sent, lost_received: the numbers of older frames that were not kept.
        config: the fields of its ``Config`` that differ from the default.
        ended: why it ended, as text; ``None`` if it was open.
        code: its close code.
    """

    version: str
    wire: str
    role: str
    carrier: str
    name: str
    started: str
    frames: int
    lost_sent: int = 0
    lost_received: int = 0
    config: dict[str, Any] = field(default_factory=dict)
    ended: str | None = None
    code: int | None = None


@dataclass(frozen=True, slots=True)
class Entry:
    """Hold one frame: time, direction, header, size, and its bytes if kept."""

    time: float
    sent: bool
    head: FrameHead
    size: int
    raw: bytes | None = None


def header_line(header: Header) -> str:
    """Return the first line of a recording."""
    return json.dumps({FORMAT: VERSION} | asdict(header))


def entry_line(entry: Entry) -> str:
    """Return the line of a frame, without empty fields."""
    found: dict[str, Any] = {"t": round(entry.time, 6), "dir": "sent" if entry.sent else "received"}
    found |= {name: value for name, value in entry.head._asdict().items() if value not in NOTHING}
    found["size"] = entry.size
    if entry.raw is not None:
        found["raw"] = base64.b64encode(entry.raw).decode()
    return json.dumps(found)


def read_recording(file: IO[bytes]) -> tuple[Header, Iterator[Entry]]:
    """Return the first line, and an iterator that reads the frames from the file.

    Raises:
        BadRecording: the file is not a recording; while iterating, a frame is invalid, or the file
            is truncated.
    """
    header = _header(_line(file, 1))
    return header, _entries(file, header.frames)


def _entries(file: IO[bytes], count: int) -> Iterator[Entry]:
    for number in range(count):
        text = file.readline(MAX_LINE)
        if not text.endswith(b"\n"):
            raise BadRecording(f"the recording is truncated: {number} of {count} frames are there")
        yield _entry(_parsed(text, number + 2), number + 2)
    if file.read(1):
        raise BadRecording(f"something follows the {count} frames of the recording")


def _line(file: IO[bytes], number: int) -> dict[str, Any]:
    text = file.readline(MAX_LINE)
    if not text:
        raise BadRecording("the file is empty and not a recording of wsmux")
    return _parsed(text, number)


def _parsed(text: bytes, number: int) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadRecording(f"line {number} is not JSON, as in recordings of wsmux") from error
    if not isinstance(found, dict):
        raise BadRecording(f"line {number} is not a JSON object, as in recordings of wsmux")
    return found


def _header(found: dict[str, Any]) -> Header:
    if found.pop(FORMAT, None) != VERSION:
        raise BadRecording(f"line 1 does not say {json.dumps(FORMAT)}: {VERSION}")
    hints = get_type_hints(Header)
    names = {field.name for field in fields(Header)}
    try:
        header = Header(**{name: value for name, value in found.items() if name in names})
    except TypeError:
        raise BadRecording("line 1 lacks a fact about the connection") from None
    for name in names:
        kind = dict if name == "config" else hints[name]
        _check(getattr(header, name), kind, name, 1)
    return header


def _check(value: object, kind: Any, name: str, number: int) -> None:
    if not isinstance(value, kind) or isinstance(value, bool):
        raise BadRecording(f"line {number} has a {name} that is not valid")
    if isinstance(value, int | float) and not 0 <= value < 2**64:
        raise BadRecording(f"line {number} has a {name} that is not valid")


def _entry(found: dict[str, Any], number: int) -> Entry:
    where = found.get("dir")
    if not isinstance(where, str) or where not in DIRECTIONS:
        raise BadRecording(f"line {number} does not say which way its frame went")
    _check(found.get("t"), int | float, "t", number)
    _check(found.get("size"), int, "size", number)
    head, raw = _head(found, number), found.get("raw")
    if raw is not None:
        try:
            raw = base64.b64decode(raw, validate=True)
        except (TypeError, ValueError) as error:
            raise BadRecording(f"line {number} has a frame that is not base64") from error
        if len(raw) != found["size"]:
            raise BadRecording(f"line {number} has a frame of another size than it says")
    return Entry(found["t"], DIRECTIONS[where], head, found["size"], raw)


def _head(found: dict[str, Any], number: int) -> FrameHead:
    for name in _OPTIONAL:
        _check(found.get(name), int | None, name, number)
    for name, wanted in (("type", str), ("direction", str | None), ("detail", str | None)):
        _check(found.get(name), wanted, name, number)
    flags = found.get("flags", [])
    if not isinstance(flags, list) or not _are_texts(flags):
        raise BadRecording(f"line {number} has flags that do not exist")
    values = {name: found[name] for name in FrameHead._fields if found.get(name) is not None}
    return FrameHead(**values | {"flags": tuple(flags)})


def _are_texts(values: Iterable[object]) -> bool:
    return all(isinstance(value, str) for value in values)
