"""Have ``wsmux inspect`` show recordings and raw bytes, as a user would."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

import wsmux
from wsmux.cli.main import main
from wsmux.protocols.base import Role
from wsmux.protocols.framing import Opcode, encode_close
from wsmux.protocols.websocket import WebSocketFraming
from wsmux.protocols.yamux_frames import Flag, Type, encode_head

from ..helpers.commands import run
from ..helpers.joined_streams import open_pair

YAMUX = encode_head(Type.WINDOW, Flag.SYN, 1, 0) + encode_head(Type.DATA, Flag.FIN, 1, 3) + b"abc"
BYMUX = bytes.fromhex("1104 00") + b"\x30\x00" + b"\x20\x00\x03abc"
NATIVE = b"\x00\x01\x04\x00\x04\x00\x00" + b"\x00\x00\x03abc" + b"\x00\x08\x02\x03\xe8"


@pytest.fixture(scope="module")
def recorded() -> str:
    config = wsmux.Config(recording=wsmux.Recording())
    client, server = wsmux.pair(config=config)
    with client, server:
        near, far = open_pair(client, server)
        with near, far:
            near.write(b"hello")
            near.reset(70)
            with pytest.raises(wsmux.StreamReset):
                far.read()
        client.close(code=4000, reason="so\x1bbe it")
    return client.dump_recording()


def inspected(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    data: bytes,
    *arguments: str,
) -> tuple[int, list[str], str]:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(data))))
    status = main(["inspect", *arguments, "-"])
    told = capsys.readouterr()
    return status, told.out.splitlines(), told.err


def rest(line: str) -> str:
    """Return a line without its time."""
    return " ".join(line.split()[1:])


def test_a_recording_is_shown_frame_by_frame(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, recorded: str
) -> None:
    path = tmp_path / "recording.jsonl"
    path.write_text(recorded)
    assert main(["inspect", str(path)]) == 0
    told = capsys.readouterr()
    assert told.err == ""
    lines = told.out.splitlines()
    assert "client of wsmux over bytes" in lines[0]
    assert lines[1].startswith("# ConnectionClosedError: connection closed by this side")
    assert lines[1].endswith(r": so\x1bbe it")
    assert [rest(line) for line in lines[2:5:2]] == ["> 0 ACK credit 262144", "> 0 DATA length 5"]
    assert "> 0 ERROR read code 70" in map(rest, lines)
    assert r"> - CARRIER_CLOSE code 4000 so\x1bbe it" in map(rest, lines)


def test_a_stream_can_be_looked_at_alone(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, recorded: str
) -> None:
    status, lines, _ = inspected(capsys, monkeypatch, recorded.encode(), "--stream", "2")
    assert status == 0
    assert [line[0] for line in lines] == ["#", "#"]


def test_json_is_the_recording_again(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, recorded: str
) -> None:
    status, lines, _ = inspected(capsys, monkeypatch, recorded.encode(), "--json")
    assert status == 0
    assert lines == recorded.splitlines()


def test_what_was_not_kept_is_said(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, recorded: str
) -> None:
    data = recorded.replace('"lost_sent": 0', '"lost_sent": 9').encode()
    _, lines, _ = inspected(capsys, monkeypatch, data)
    assert lines[1] == "# 9 frames sent and 0 received before were not kept"


@pytest.mark.parametrize("kept", [0.5, 0.99])
def test_a_truncated_recording_is_shown_as_far_as_it_goes_with_status_2(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    recorded: str,
    kept: float,
) -> None:
    data = recorded.encode()[: int(len(recorded) * kept)]
    status, lines, errors = inspected(capsys, monkeypatch, data)
    assert status == 2
    assert len(lines) == 1 + data.count(b"\n")
    assert errors.startswith("wsmux inspect: -: the recording is truncated: ")


@pytest.mark.parametrize("data", [b"", b"\x00\x01\xff", b"[]\n", YAMUX])
def test_what_is_no_recording_ends_with_2(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, data: bytes
) -> None:
    status, lines, errors = inspected(capsys, monkeypatch, data)
    assert (status, lines) == (2, [])
    assert errors.startswith("wsmux inspect: -: ")


def test_a_file_that_is_not_there_ends_with_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "/nowhere/recording.jsonl"]) == 1
    assert "No such file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("protocol", "data", "expected"),
    [
        ("yamux", YAMUX, ["> 1 WINDOW SYN credit 0", "> 1 DATA FIN length 3"]),
        ("bymux", BYMUX, ["> - CREDIT credit 1024", "> - WRITE value 0", "> 0 WRITE length 3"]),
        (
            "wsmux",
            NATIVE,
            ["> 0 ACK credit 262144", "> 0 DATA length 3", "> - CARRIER_CLOSE code 1000"],
        ),
        ("js-ws", b"\x00\x00\x00\x03abc", ["> 0 DATA length 3"]),
    ],
)
def test_raw_bytes_are_shown(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    protocol: str,
    data: bytes,
    expected: list[str],
) -> None:
    status, lines, errors = inspected(capsys, monkeypatch, data, "--protocol", protocol)
    assert (status, errors) == (0, "")
    assert [rest(line) for line in lines] == expected


def test_raw_bytes_come_as_json_too(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ("--protocol", "yamux", "--from", "server", "--json", "--stream", "1")
    status, lines, _ = inspected(capsys, monkeypatch, YAMUX, *arguments)
    assert status == 0
    assert [json.loads(line) for line in lines] == [
        {
            "offset": 0,
            "from": "server",
            "type": "WINDOW",
            "stream": 1,
            "credit": 0,
            "flags": ["SYN"],
            "size": 12,
        },
        {
            "offset": 12,
            "from": "server",
            "type": "DATA",
            "stream": 1,
            "length": 3,
            "flags": ["FIN"],
            "size": 15,
        },
    ]


@pytest.mark.parametrize("head", [b"", b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"])
def test_the_bytes_of_a_websocket_are_shown_with_and_without_its_handshake(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, head: bytes
) -> None:
    framing = WebSocketFraming(Role.CLIENT, 2**20)
    data = b"".join(framing.encode((b"\x00\x00", b"abc")))
    data += framing.encode_control(Opcode.CLOSE, encode_close(1000, ""))
    arguments = ("--protocol", "wsmux", "--carrier", "websocket")
    status, lines, _ = inspected(capsys, monkeypatch, head + data, *arguments)
    assert status == 0
    assert [rest(line) for line in lines] == ["> 0 DATA length 3", "> - CARRIER_CLOSE code 1000"]


@pytest.mark.parametrize(
    ("protocol", "carrier", "data", "why"),
    [
        ("yamux", "bytes", YAMUX[:-1], "truncated"),
        ("yamux", "bytes", YAMUX[:5], "truncated"),
        ("bymux", "bytes", b"\xff", "undefined type 7"),
        ("wsmux", "bytes", NATIVE[:-1], "truncated"),
        ("wsmux", "bytes", b"\x00\x33\x01x", "malformed frames: 1"),
        ("wsmux", "bytes", b"\x00\x00\x9f\xff\xff\xff", "above the limit"),
        ("wsmux", "websocket", b"\xff" * 20, "reserved"),
        ("wsmux", "websocket", b"GET / HTTP/1.1\r\n", "after 0 bytes of wsmux"),
        ("yamux", "websocket", b"\x82\x85abcd", "truncated"),
    ],
)
def test_bytes_that_are_none_of_the_wire_end_with_2(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    protocol: str,
    carrier: str,
    data: bytes,
    why: str,
) -> None:
    arguments = ("--protocol", protocol, "--carrier", carrier)
    status, _, errors = inspected(capsys, monkeypatch, data, *arguments)
    assert status == 2
    assert errors.startswith("wsmux inspect: -: ")
    assert why in errors


def test_a_pipe_is_shown_by_the_installed_command() -> None:
    done = run("inspect", "--protocol", "yamux", "-", data=YAMUX[:-1])
    assert done.returncode == 2
    assert done.stdout.count(b"\n") == 2
    assert done.stderr == b"wsmux inspect: -: the bytes are truncated: they end within a frame\n"
