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
from wsmux.protocols.durable import DurableSender
from wsmux.protocols.framing import Opcode, encode_close
from wsmux.protocols.resumption import Hello, Refusal, Welcome
from wsmux.protocols.websocket import WebSocketFraming
from wsmux.protocols.yamux_frames import Flag, Type, encode_head

from ..helpers.commands import run
from ..helpers.durable import EPOCH, Sink, receiving
from ..helpers.joined_streams import open_pair
from ..helpers.resumed import joined, pair
from ..helpers.timeouts import WAIT

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
        ("yamux", "resumable", b"\x82\x81\0\0\0\0\x09", "malformed frames: 1"),
        ("yamux", "resumable", b"\x82\x85\0\0\0\0\0\0\0\0\x01", "truncated"),
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


@pytest.fixture(params=["wsmux", "js-ws", "yamux", "bymux"])
def protocol(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def shown(lines: list[str]) -> list[str]:
    """Return lines without time and stream."""
    return [" ".join([parts[1], *parts[3:]]) for parts in map(str.split, lines)]


def test_a_durable_stream_is_shown_by_its_own_frames(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, protocol: str
) -> None:
    sink = Sink()
    config = wsmux.Config(recording=wsmux.Recording(payload=1 << 20))
    with receiving(sink.handle, sink, protocol, config=config) as connect:
        client = connect()
        with client.open_stream(durable="up 17", epoch=EPOCH, size=7) as stream:
            stream.write(b"abc")
            assert stream.wait_committed(WAIT) == 3
            stream.write(b"defg")
        recording = client.dump_recording().encode()
    status, lines, errors = inspected(capsys, monkeypatch, recording)
    assert (status, errors) == (0, "")
    durable = [line for line in shown(lines[2:]) if "DURABLE_" in line]
    assert durable[:4] == [
        f"> DURABLE_OPEN name 'up 17' epoch {EPOCH.hex()} size 7",
        "< DURABLE_ACCEPTED position 0",
        "> DURABLE_DATA position 0 length 3",
        "< DURABLE_COMMIT position 3",
    ]
    assert "> DURABLE_DATA position 3 length 4" in durable
    assert "> DURABLE_END position 7" in durable
    assert durable[-1] == "< DURABLE_COMPLETE position 7"

    _, told, _ = inspected(capsys, monkeypatch, recording, "--json")
    found = [frame for line in told[1:] for frame in json.loads(line).pop("durable", ())]
    assert len(found) == len(durable)
    assert found[0]["type"] == "DURABLE_OPEN"
    assert found[0]["detail"] == f"name 'up 17' epoch {EPOCH.hex()} size 7"
    status, again, _ = inspected(capsys, monkeypatch, "\n".join([*told, ""]).encode())
    assert (status, again) == (0, lines)  # it is still a recording


def test_a_resumed_connection_is_shown_with_its_own_messages(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, protocol: str
) -> None:
    config = wsmux.Config(recording=wsmux.Recording())
    with pair(protocol=protocol, config=config) as ends:
        joined(ends)
        ends.outage()
        ends.over()
        assert ends.client.ping(WAIT) > 0
        ends.client.close()
        recording = ends.client.dump_recording().encode()
    status, lines, errors = inspected(capsys, monkeypatch, recording)
    assert (status, errors) == (0, "")
    told = [line for line in shown(lines[2:]) if "RESUME_" in line and "RESUME_ACK" not in line]
    assert told[0].startswith("> RESUME_HELLO position 0 session ")
    assert told[0].endswith(f" generation 0 oldest 0 buffer {1 << 20}")
    assert told[1].startswith("< RESUME_WELCOME position 0 epoch ")
    assert told[2].startswith("> RESUME_HELLO RESUMING position ")
    assert " generation 1 oldest " in told[2]
    assert told[3].startswith("< RESUME_WELCOME position ")
    assert "> RESUME_END code 1000" in told[4:]


HANDSHAKE = b"GET / HTTP/1.1\r\nSec-WebSocket-Protocol: wsmux.resume.v1+wsmux\r\n\r\n"


@pytest.mark.parametrize(
    "start", [b"", HANDSHAKE, b"\xff" * 20 + b"wsmux.resume.v1+wsmux\n"], ids=["", "http", "line"]
)
def test_the_bytes_of_a_resumable_connection_are_shown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, start: bytes
) -> None:
    framing = WebSocketFraming(Role.CLIENT, 2**20)
    hello = Hello(bytes(range(16)), b"epoch of", 3, True, 17, 5)
    opened = DurableSender("up", EPOCH, None).open()
    data = b"".join(
        bytes(piece)
        for message in (
            hello.encode(b"key"),
            b"\0\x00\x00" + opened,
            b"\x05" + (99).to_bytes(8, "big"),
            b"\x06\x03\xe8bye",
        )
        for piece in framing.encode((message, b""))
    )
    arguments = ("--protocol", "wsmux", "--carrier", "resumable")
    status, lines, errors = inspected(capsys, monkeypatch, start + data, *arguments)
    assert (status, errors) == (0, "")
    assert [rest(line) for line in lines] == [
        "> - RESUME_HELLO RESUMING position 17 session 00010203 generation 3 oldest 5 "
        f"buffer {256 * 1024}",
        f"> 0 DATA length {len(opened)}",
        f"> 0 DURABLE_OPEN name 'up' epoch {EPOCH.hex()} size unknown",
        "> - RESUME_ACK position 99",
        "> - RESUME_END code 1000 bye",
    ]
    _, told, _ = inspected(capsys, monkeypatch, start + data, *arguments, "--json")
    assert [json.loads(line).get("size") for line in told] == [83, len(opened) + 2, None, 9, 6]


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (
            Welcome(b"epoch of", 7, 60.0, 2**20, b"k" * 32),
            f"< - RESUME_WELCOME position 7 epoch 65706f63 grace 60 buffer {2**20}",
        ),
        (Refusal(True, "gone"), "< - RESUME_LOST gone"),
        (Refusal(False, "no"), "< - RESUME_REFUSED no"),
    ],
    ids=["welcome", "lost", "refused"],
)
def test_the_answers_of_a_server_that_resumes_are_shown(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    answer: Welcome | Refusal,
    expected: str,
) -> None:
    framing = WebSocketFraming(Role.SERVER, 2**20)
    data = b"".join(bytes(piece) for piece in framing.encode((answer.encode(), b"")))
    data = b"wsmux.resume.v1+yamux\n" + data
    arguments = ("--protocol", "yamux", "--carrier", "resumable", "--from", "server")
    status, lines, errors = inspected(capsys, monkeypatch, data, *arguments)
    assert (status, errors) == (0, "")
    assert [rest(line) for line in lines] == [expected]


def test_a_durable_stream_in_raw_bytes_is_shown_however_long_its_frames_are(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sender = DurableSender("up", EPOCH, None)
    parts = [sender.open()]
    sender.receive(b"\x10" + EPOCH + bytes(8))
    parts += [sender.data(200_000) + bytes(200_000), sender.data(1) + b"x" + sender.end()]
    data = b"".join(encode_head(Type.DATA, 0, 1, len(part)) + part for part in parts)
    status, lines, errors = inspected(capsys, monkeypatch, data, "--protocol", "yamux")
    assert (status, errors) == (0, "")
    assert [rest(line) for line in lines] == [
        f"> 1 DATA length {len(parts[0])}",
        f"> 1 DURABLE_OPEN name 'up' epoch {EPOCH.hex()} size unknown",
        "> 1 DATA length 200013",
        "> 1 DURABLE_DATA position 0 length 200000",
        f"> 1 DATA length {len(parts[2])}",
        "> 1 DURABLE_DATA position 200000 length 1",
        "> 1 DURABLE_END position 200001",
    ]


def test_a_pipe_is_shown_by_the_installed_command() -> None:
    done = run("inspect", "--protocol", "yamux", "-", data=YAMUX[:-1])
    assert done.returncode == 2
    assert done.stdout.count(b"\n") == 2
    assert done.stderr == b"wsmux inspect: -: the bytes are truncated: they end within a frame\n"
