"""A connection that was asked to keeps its last frames, and hands them over when it ends badly."""

from __future__ import annotations

import io
import itertools
import logging
import socket
import threading
from pathlib import Path

import pytest

import wsmux
from wsmux.endpoints.connection_options import ConnectionOptions
from wsmux.protocols.framing import Opcode
from wsmux.protocols.resumption import MessageType
from wsmux.protocols.varint import encode_varint
from wsmux.protocols.websocket import WebSocketFraming
from wsmux.recording.file_format import Entry, Header, read_recording
from wsmux.recording.frame_parser import read_head
from wsmux.recording.recorder import Recorder

from ..helpers.inside import multiplexer_of
from ..helpers.joined_streams import open_pair, read_exactly
from ..helpers.scripted import WAIT
from ..helpers.wires import NAMES

WIRES = pytest.mark.parametrize("protocol", NAMES)
SECRET = b"a secret of forty bytes that nobody sees"


def recording(protocol: str = "wsmux", **plan: object) -> tuple[wsmux.Connection, wsmux.Connection]:
    """Return a client that records, and a server that does as well."""
    config = wsmux.Config(recording=wsmux.Recording(**plan), ping_interval=None)  # type: ignore[arg-type]
    return wsmux.pair(protocol=protocol, config=config)


def over_websocket(protocol: str, plan: wsmux.Recording) -> tuple[wsmux.Connection, ...]:
    connection_options = ConnectionOptions(config=wsmux.Config(recording=plan))
    ends = zip(socket.socketpair(), wsmux.Role, strict=True)
    return tuple(connection_options.over_websocket(sock, role, protocol) for sock, role in ends)


def told(text: str) -> tuple[Header, list[Entry]]:
    header, entries = read_recording(io.BytesIO(text.encode()))
    return header, list(entries)


def talk(client: wsmux.Connection, server: wsmux.Connection, data: bytes = SECRET) -> int:
    """Carry bytes one way and their end both ways; return the id of the stream."""
    near, far = open_pair(client, server)
    with near, far:
        near.write(data)
        near.close_write()
        assert far.read() == data
        far.close_write()
        assert near.read() == b""
    return near.id


def carried(entries: list[Entry], sent: bool, stream: int) -> int:
    return sum(e.head.length or 0 for e in entries if e.sent is sent and e.head.stream == stream)


@WIRES
def test_both_ends_tell_the_same_of_what_was_carried(protocol: str) -> None:
    client, server = recording(protocol)
    with client, server:
        stream = talk(client, server, bytes(100_000))
        near, ours = told(client.dump_recording())
        far, theirs = told(server.dump_recording())
    assert (near.role, far.role) == ("client", "server")
    assert (near.wire, near.carrier, near.ended) == (protocol, "bytes", None)
    assert carried(ours, True, stream) == carried(theirs, False, stream) == 100_000
    assert not [entry for entry in ours + theirs if entry.head.type == "MALFORMED"]


@WIRES
def test_what_is_carried_is_not_kept(protocol: str) -> None:
    client, server = recording(protocol)
    with client, server:
        talk(client, server)
        _, entries = told(client.dump_recording())
        assert not [entry for entry in entries if entry.raw is not None]
        recorder = multiplexer_of(client).transport.frame_reader.recorder
        assert recorder is not None
        kept = [frame[2] for frame in recorder._sent.copy()[0]]
    assert not [data for data in kept if SECRET in data]


@WIRES
def test_whole_frames_are_kept_where_that_was_asked_for(protocol: str) -> None:
    client, server = recording(protocol, payload=1_000_000)
    with client, server:
        talk(client, server, SECRET * 2_000)
    _, ours = told(client.dump_recording())
    _, theirs = told(server.dump_recording())
    for entry in (entry for entry in ours + theirs if not entry.head.type.startswith("CARRIER")):
        assert entry.raw is not None
        assert read_head(protocol, entry.raw, entry.size) == entry.head
    sent = [entry.raw for entry in theirs if entry.sent]
    came = [entry.raw for entry in ours if not entry.sent]
    assert came == sent[: len(came)]
    assert sum(map(len, filter(None, came))) > 0


@WIRES
def test_a_websocket_is_recorded_with_its_own_frames(protocol: str) -> None:
    client, server = over_websocket(protocol, wsmux.Recording())
    with client, server:
        talk(client, server)
        multiplexer_of(client).transport.ping(wsmux.mux.connection.Deadline(WAIT))
    header, entries = told(client.dump_recording())
    assert header.carrier == "websocket"
    assert (header.ended or "").startswith("ConnectionClosedOK")
    kinds = [(entry.head.type, entry.sent) for entry in entries]
    assert kinds.index(("CARRIER_PING", True)) < kinds.index(("CARRIER_PONG", False))
    assert kinds.index(("CARRIER_CLOSE", False)) < kinds.index(("CARRIER_CLOSE", True))


@pytest.mark.parametrize("protocol", ["yamux", "bymux"])
def test_a_close_that_a_plain_socket_has_no_word_for_is_not_told(protocol: str) -> None:
    client, server = recording(protocol)
    with client, server:
        talk(client, server)
    _, entries = told(client.dump_recording())
    assert not [entry for entry in entries if entry.head.type.startswith("CARRIER")]


def test_times_rise_from_the_start() -> None:
    client, server = recording()
    with client, server:
        talk(client, server)
        _, entries = told(client.dump_recording())
    times = [entry.time for entry in entries]
    assert times == sorted(times)
    assert times[0] >= 0


def test_the_oldest_frames_go_and_are_counted() -> None:
    client, server = recording(frames=3)
    with client, server:
        near, far = open_pair(client, server)
        with near, far:
            for _ in range(10):
                near.write(b"x")
                read_exactly(far, 1)
            header, entries = told(client.dump_recording())
    sent = [entry for entry in entries if entry.sent]
    assert [entry.head.type for entry in sent] == ["DATA"] * 3
    assert header.lost_sent == 8  # the ACK that opened the stream, and seven
    assert header.lost_received == 0


def test_bytes_above_the_bound_cost_the_oldest_frames() -> None:
    client, server = recording(payload=100)
    with client, server:
        near, far = open_pair(client, server)
        with near, far:
            for _ in range(10):
                near.write(SECRET)
                read_exactly(far, len(SECRET))
            header, entries = told(client.dump_recording())
    sent = [entry for entry in entries if entry.sent]
    assert [entry.raw for entry in sent] == [b"\x00\x00" + SECRET] * 2
    assert header.lost_sent == 9


@WIRES
def test_of_a_frame_that_alone_is_above_the_bound_the_head_is_told(protocol: str) -> None:
    client, server = recording(protocol, payload=50)
    with client, server:
        near, far = open_pair(client, server)
        with near, far:
            near.write(SECRET * 2)
            read_exactly(far, len(SECRET) * 2)
            sent = told(client.dump_recording())[1]
            received = told(server.dump_recording())[1]
    for entries in (sent, received):
        (entry,) = [e for e in entries if e.head.length == len(SECRET) * 2]
        assert entry.raw is None


def test_the_recording_says_which_limits_are_not_the_default() -> None:
    client, server = recording()
    with client, server:
        header, _ = told(client.dump_recording())
    assert header.config == {"ping_interval": None}


def test_nothing_is_recorded_unasked() -> None:
    client, server = wsmux.pair()
    with client, server, pytest.raises(wsmux.LocalProtocolError, match="is not recorded"):
        client.dump_recording()


def test_an_abnormal_end_hands_the_recording_over() -> None:
    texts: list[str] = []
    client, server = recording(to=texts.append)
    with client, server:
        talk(client, server)
        client.abort()
        client.close(WAIT)
        header, entries = next(told(text) for text in texts if client.name in text)
        assert header.ended == f"ConnectionClosedError: {client.error}"
        assert header.code == 1006
        assert entries


def test_a_clean_end_hands_nothing_over() -> None:
    texts: list[str] = []
    client, server = recording(to=texts.append)
    with client, server:
        talk(client, server)
    assert texts == []


@pytest.mark.parametrize("protocol", ["wsmux", "yamux", "bymux"])
def test_what_broke_the_protocol_is_the_last_frame(protocol: str) -> None:
    texts: list[str] = []
    ours, theirs = socket.socketpair()
    config = wsmux.Config(recording=wsmux.Recording(to=texts.append, payload=1000))
    garbage = {"wsmux": b"\x00\x33\x01x", "yamux": b"\xff" * 12, "bymux": b"\xff" * 12}[protocol]
    with theirs, wsmux.from_socket(ours, role="server", protocol=protocol, config=config) as end:
        theirs.sendall(garbage)
        theirs.shutdown(socket.SHUT_WR)
        assert end.wait_closed(WAIT)
        end.close(WAIT)
    header, entries = told(texts[0])
    (received,) = [entry for entry in entries if not entry.sent]
    assert received.head.type == "MALFORMED"
    assert (header.ended or "").startswith("ConnectionClosedError")


def test_recordings_in_a_directory_are_whole_and_the_oldest_go(tmp_path: Path) -> None:
    (tmp_path / "wsmux-recording-of-mine.jsonl").write_text("kept")
    for _ in range(3):
        client, server = recording(to=tmp_path, files=2)
        with client, server:
            client.abort()
            client.close(WAIT)
            server.close(WAIT)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names.pop() == "wsmux-recording-of-mine.jsonl"
    assert len(names) == 2
    header, _ = told((tmp_path / names[-1]).read_text())
    assert header.code == 1006
    assert (tmp_path / names[-1]).stat().st_mode & 0o077 == 0  # there may be payload in it


@pytest.mark.parametrize("failing", ["directory", "callable"])
def test_what_cannot_be_handed_over_is_logged(
    failing: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(text: str) -> None:
        raise RuntimeError("no room")

    client, server = recording(to=fail if failing == "callable" else tmp_path / "nowhere")
    with caplog.at_level(logging.ERROR, "wsmux"), client, server:
        client.abort()
        client.close(WAIT)
    assert "could not be delivered" in caplog.text


@pytest.mark.parametrize("payload", [None, 400], ids=["heads", "whole"])
def test_frames_that_come_while_they_are_copied_are_whole_or_left_out(payload: int | None) -> None:
    """Without the GIL, a ring is filled and copied at the same time."""
    framing = WebSocketFraming(wsmux.Role.CLIENT, 1024, 1)
    plan = wsmux.Recording(frames=64, payload=payload)
    recorder = Recorder(plan, wsmux.Role.CLIENT, "it", wsmux.Config(), "wsmux", framing)
    filled, over = threading.Event(), threading.Event()

    def fill() -> None:
        for number in itertools.count(1):
            credit = encode_varint(number) + b"\x01" + number.to_bytes(4, "big")
            recorder.received([(Opcode.BINARY, credit)])
            recorder.carried(True, bytes((MessageType.ACK,)) + number.to_bytes(8, "big"))
            if number == 2 * plan.frames:
                filled.set()
            if over.is_set():
                return

    thread = threading.Thread(target=fill)
    thread.start()
    try:
        assert filled.wait(WAIT)
        for _ in range(12):
            _, entries = told(recorder.text(None))
            came = [entry for entry in entries if not entry.sent]
            assert [each.head.credit for each in came] == [each.head.stream for each in came]
            assert {each.head.type for each in came} == {"ACK"}
            streams = [each.head.stream or 0 for each in came]
            assert streams == list(range(streams[0], streams[-1] + 1))
    finally:
        over.set()
        thread.join(WAIT)
