"""A recording is run against a handler, in the order of what was said, and what differs is told."""

from __future__ import annotations

import dataclasses
import io
import socket
import time
from typing import Any

import pytest

import wsmux
from wsmux.diagnostics.replay import Outcome, replay
from wsmux.recording.file_format import BadRecording, read_recording

from ..helpers import replay_handlers
from ..helpers.replay_handlers import RECORDING, as_client, conversation
from ..helpers.scripted import WAIT
from ..helpers.wires import NAMES

WIRES = pytest.mark.parametrize("protocol", NAMES)
CONNECTIONS = ("failing", "serving", "calling", "pinging")  # what takes a connection

# Seconds in which a handler that says nothing further is given up.
SOON = 0.05


@pytest.fixture(scope="module")
def recorded() -> str:
    return conversation()


def replayed(recording: str, handler: str, **options: Any) -> Outcome:
    """Replay against a handler of the tests."""
    header, entries = read_recording(io.BytesIO(recording.encode()))
    kind = "handler" if handler in CONNECTIONS else "stream_handler"
    return replay(header, entries, **{kind: getattr(replay_handlers, handler)}, **options)


@WIRES
def test_it_is_counted_what_was_fed_and_on_how_many_streams(protocol: str) -> None:
    recording = conversation(protocol)
    _, entries = read_recording(io.BytesIO(recording.encode()))
    received = [entry for entry in entries if not entry.sent]
    outcome = replayed(recording, "upper")
    assert 0 < outcome.fed <= len(received)
    assert (outcome.streams, outcome.differences) == (3, [])


@WIRES
def test_more_than_a_window_is_fed_as_credit_comes(protocol: str) -> None:
    assert replayed(conversation(protocol, size=700_000), "upper").differences == []


@WIRES
def test_the_first_byte_that_differs_is_told_of_each_stream(protocol: str) -> None:
    differences = replayed(conversation(protocol), "lower").differences
    assert len(differences) == 3
    for difference in differences:
        assert difference.endswith(": byte 0 differs from the recorded one")


def test_bytes_that_are_too_many_are_told(recorded: str) -> None:
    assert "stream 0: 6 bytes, 5 were recorded" in replayed(recorded, "longer").differences


def test_another_end_is_told(recorded: str) -> None:
    differences = replayed(recorded, "deaf", patience=SOON).differences
    assert (
        differences[0]
        == "the handler's side said nothing further where 5 bytes on stream 0 was recorded"
    )
    assert "stream 0: 0 bytes, 5 were recorded" in differences
    assert "stream 0: ERROR read 70 was not recorded" in differences


def test_a_handler_that_says_nothing_is_not_waited_for_in_vain(recorded: str) -> None:
    start = time.monotonic()
    try:
        differences = replayed(recorded, "silent", patience=SOON).differences
    finally:
        replay_handlers.never.set()
    assert differences[0].startswith(
        "the handler's side said nothing further where 5 bytes on stream 0"
    )
    assert time.monotonic() - start < WAIT / 2


def test_a_handler_that_fails_differs(recorded: str) -> None:
    differences = replayed(recorded, "failing").differences
    assert "the connection: CARRIER_CLOSE 1011 was not recorded" in differences


@WIRES
def test_a_client_is_replayed_too(protocol: str) -> None:
    recording = as_client(protocol, replay_handlers.calling)
    assert replayed(recording, "calling").differences == []


@WIRES
def test_a_recording_of_a_living_connection_is_replayed(protocol: str) -> None:
    client, server = wsmux.pair(protocol=protocol, config=RECORDING)
    with client, server, client.open_stream() as stream:
        stream.write(b"Hello")
        stream.close_write()
        with server.accept_stream(WAIT) as other:
            replay_handlers.upper(other)
        assert stream.readall() == b"HELLO"
        recording = server.dump_recording()
    assert replayed(recording, "serving").differences == []


@pytest.mark.parametrize("protocol", ["wsmux", "yamux", "bymux"])
def test_a_connection_that_was_cut_is_cut_again(protocol: str) -> None:
    client, server = wsmux.pair(protocol=protocol, config=RECORDING)
    with client, server, client.open_stream() as stream:
        stream.write(b"Hello")
        with server.accept_stream(WAIT) as other:
            assert other.read(5) == b"Hello"
            client.abort()
            assert server.wait_closed(WAIT)
        recording = server.dump_recording()
    assert replayed(recording, "serving").differences == []


def broken(protocol: str) -> str:
    """Record a server whose peer says what the protocol does not know."""
    ours, theirs = socket.socketpair()
    with theirs, wsmux.from_socket(ours, role="server", protocol=protocol, config=RECORDING) as end:
        theirs.sendall({"wsmux": b"\x00\x33\x01x"}.get(protocol, b"\xff" * 12))
        theirs.shutdown(socket.SHUT_WR)
        assert end.wait_closed(WAIT)
        return end.dump_recording()


@pytest.mark.parametrize("protocol", ["wsmux", "yamux", "bymux"])
def test_a_peer_that_broke_the_protocol_does_so_again(protocol: str) -> None:
    outcome = replayed(broken(protocol), "serving")
    assert (outcome.fed, outcome.differences) == (1, [])


@WIRES
def test_pings_of_the_handler_are_answered(protocol: str) -> None:
    recording = as_client(protocol, replay_handlers.pinging)
    assert replayed(recording, "pinging").differences == []


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"lost_sent": 1}, "begins in the middle"),
        ({"role": "cook"}, "no 'cook' over 'websocket'"),
        ({"wire": "http"}, "impossible connection: protocol must be one of"),
    ],
    ids=str,
)
def test_what_cannot_be_replayed_is_refused_before_any_handler_runs(
    recorded: str, change: dict[str, Any], why: str
) -> None:
    header, entries = read_recording(io.BytesIO(recorded.encode()))
    ran: list[wsmux.Connection] = []
    with pytest.raises(BadRecording, match=why):
        replay(dataclasses.replace(header, **change), entries, ran.append)
    assert ran == []
