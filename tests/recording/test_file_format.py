"""Recordings are read as they were written, and what is none is refused with a reason."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from wsmux.recording.file_format import (
    BadRecording,
    Entry,
    Header,
    entry_line,
    header_line,
    read_recording,
)
from wsmux.recording.frame_parser import FrameHead

from ..helpers.tables import each_case

HEADER = Header(
    version="0.1.0",
    wire="wsmux",
    role="server",
    carrier="bytes",
    name="wsmux-server-1",
    started="2026-01-01T00:00:00+00:00",
    frames=2,
    lost_sent=3,
    config={"max_streams": 5},
    ended="ConnectionClosedError: lost",
    code=1006,
)
ENTRIES = [
    Entry(0.25, False, FrameHead("DATA", 0, length=2), 4, b"\x00\x00ab"),
    Entry(0.5, True, FrameHead("WINDOW", 1, credit=0, flags=("SYN", "FIN")), 12),
]
LINES = [header_line(HEADER), *map(entry_line, ENTRIES)]
FRAME = {"t": 0, "dir": "sent", "type": "DATA", "size": 2}


def read(text: str) -> tuple[Header, list[Entry]]:
    header, entries = read_recording(io.BytesIO(text.encode()))
    return header, list(entries)


def joined(lines: list[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def of_frame(**changes: Any) -> str:
    first = json.loads(LINES[0]) | {"frames": 1}
    return joined([json.dumps(first), json.dumps(FRAME | changes)])


def test_what_was_written_is_read() -> None:
    assert read(joined(LINES)) == (HEADER, ENTRIES)


def test_what_a_frame_does_not_have_is_not_written() -> None:
    assert set(json.loads(LINES[1])) == {"t", "dir", "type", "stream", "length", "size", "raw"}


@pytest.mark.parametrize("lost", [1, len(LINES[2]), len(LINES[2]) + 1, len(LINES[2]) + 5])
def test_a_truncated_recording_says_so_behind_what_is_there(lost: int) -> None:
    _, entries = read_recording(io.BytesIO(joined(LINES)[:-lost].encode()))
    with pytest.raises(BadRecording, match="truncated: . of 2 frames are there"):
        list(entries)


def test_nothing_may_follow() -> None:
    with pytest.raises(BadRecording, match="something follows the 2 frames"):
        read(joined([*LINES, LINES[1]]))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "empty"),
        ("\n", "not JSON"),
        ("hello\n", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]\n", "not a JSON object"),
        ("{}\n", "does not say"),
        ('{"wsmux-recording": 2}\n', "does not say"),
        ('{"wsmux-recording": 1}\n', "lacks a fact"),
        (LINES[0].replace('"frames": 2', '"frames": -1'), "a frames that is not valid"),
        (LINES[0].replace('"frames": 2', '"frames": true'), "a frames that is not valid"),
        (LINES[0].replace('"bytes"', "1"), "a carrier that is not valid"),
        (LINES[0].replace('{"max_streams": 5}', "[]"), "a config that is not valid"),
        (joined([LINES[0], "nonsense"]), "line 2 is not JSON"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_what_is_no_recording_is_refused(text: str, why: str) -> None:
    with pytest.raises(BadRecording, match=why):
        read(text)


@each_case
@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"dir": "up"}, "which way"),
        ({"dir": ["sent"]}, "which way"),
        ({"t": "now"}, "a t that"),
        ({"t": float("nan")}, "a t that"),
        ({"size": 1.5}, "a size that"),
        ({"stream": -1}, "a stream that"),
        ({"credit": 2**64}, "a credit that"),
        ({"code": True}, "a code that"),
        ({"type": None}, "a type that"),
        ({"direction": 1}, "a direction that"),
        ({"flags": "SYN"}, "flags that"),
        ({"flags": [1]}, "flags that"),
        ({"raw": "?"}, "not base64"),
        ({"raw": 5}, "not base64"),
        ({"raw": "AAAA"}, "another size"),
    ],
    ids=lambda value: str(value)[:25],
)
def test_a_frame_that_cannot_be_one_is_refused(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(BadRecording, match=f"line 2 .*{why}"):
        read(of_frame(**changes))
