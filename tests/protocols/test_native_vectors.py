"""Frames captured from the published ``@matrixai/ws`` mean to our machine what they meant to it.

A machine takes the place of the published end in each scenario: it is fed the other end's frames,
made to do what the published end did, and what it sends is compared byte for byte. Where ours
differs on purpose, the difference and its reason are listed.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from wsmux.exceptions import RemoteProtocolError
from wsmux.protocols.base import Role
from wsmux.protocols.events import DataReceived, StreamEnded, StreamOpened
from wsmux.protocols.framing import decode_close, encode_close
from wsmux.protocols.native import JS_WS, JS_WS_CLOSE_DELAY, NativeProtocol
from wsmux.protocols.varint import decode_varint

from ..helpers.machine_pairs import ACK, CLOSE, DATA, ERROR, native, opened, outbox
from ..helpers.tables import each_case
from ..helpers.vectors.js_ws import (
    NOT_FOR_A_MACHINE,
    PUBLISHED_ENDS,
    SCENARIOS,
    Scenario,
    binary_frames,
    is_from,
)


@dataclass(frozen=True)
class Difference:
    """Say what ours sends less or more than theirs, how it ends, and why."""

    reason: str
    left_out: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    error: str = ""


BATCHED = "some bytes are still unread, and those read are less than half a window"
SENTENCE = "the published end closes with 1002 too, with a sentence of its own"

DIFFERENCES = {
    ("abort_drops_unread_data", Role.SERVER): Difference(BATCHED, ("00000100000005",)),
    ("close_keeps_unread_data", Role.SERVER): Difference(BATCHED, ("00000100000003",)),
    ("raw_data_before_ack", Role.SERVER): Difference(
        "a stream opens with ACK; the published end ignores DATA on an unknown id",
        ("04000100100000",),
        error="the first message on stream 0 is DATA, not ACK",
    ),
    ("raw_id_collision", Role.SERVER): Difference(
        "the parity of ids is checked, so that no live stream is replaced",
        ("01000100100000", "01000100100000"),
        error="stream 1 has the parity of this side, which has not opened it",
    ),
    ("raw_non_monotonic", Role.SERVER): Difference(
        "ids only rise; an ACK on a lower one is taken for a late one", ("00000100100000",)
    ),
    ("raw_one_byte_type", Role.SERVER): Difference(
        "an unknown type is wrong on every id; the published end ignores it on unknown ones",
        error="message for stream 0 has the unknown type 256",
    ),
    ("raw_reuse_after_close", Role.SERVER): Difference(
        "DATA on a finished id is wrong; the published end ignores it",
        error="DATA on stream 0, which has ended",
    ),
    ("raw_empty_message", Role.SERVER): Difference(
        "closed with 1002 on the wire; the published end says 1000 there", error="empty message"
    ),
    ("raw_unknown_type", Role.SERVER): Difference(
        SENTENCE, error="message for stream 0 has the unknown type 4"
    ),
    ("raw_no_type", Role.SERVER): Difference(
        SENTENCE, error="message for stream 0 ends before its type"
    ),
    ("raw_bad_shutdown", Role.SERVER): Difference(
        SENTENCE, error="CLOSE on stream 0 with the direction 2"
    ),
    ("raw_data_after_close", Role.SERVER): Difference(
        SENTENCE, error="DATA on stream 0 after the peer ended its writing half"
    ),
    ("raw_empty_data", Role.SERVER): Difference(
        "empty DATA is counted, and returns no credit", ("00000100000000",)
    ),
    ("raw_malformed_on_server_opened_stream", Role.SERVER): Difference(
        "malformed input ends the connection whoever opened the stream; the published end throws",
        ("00000100100000",),
        error="message for stream 1 has the unknown type 4",
    ),
    ("server_stream_glued_to_101", Role.CLIENT): Difference(
        "the published client loses a stream opened in the segment of the 101",
        added=("01000100100000",),
    ),
}


def provoke(machine: NativeProtocol, wire: bytes) -> None:
    """Do what makes a machine send ``wire``; the delay of a CLOSE passes."""
    parsed = decode_varint(wire)
    assert parsed is not None
    stream_id, offset = parsed
    kind, body = int.from_bytes(wire[offset : offset + 2], "big"), wire[offset + 2 :]
    if kind == DATA:
        assert machine.send_data(stream_id, body) == len(body)
    elif kind == ACK and stream_id == machine._ids.next:
        machine.open_stream()
    elif kind == ACK:
        machine.consumed(stream_id, int.from_bytes(body, "big"))
    elif kind == CLOSE:
        machine.close_write(stream_id, 0.0)
        machine.handle_timer(JS_WS_CLOSE_DELAY)
    else:
        assert kind == ERROR
        code = decode_varint(body, 1)
        assert code is not None
        (machine.reset_write, machine.reset_read)[body[0]](stream_id, code[0])


def play(scenario: Scenario, role: Role) -> tuple[list[str], str]:
    """Put a machine in the place of one end; return what it sent, and how it ended."""
    window = scenario.get("window", 2**20)
    machine = native(role, JS_WS, receive_window=window, max_message_size=2**21)
    sent: list[bytes] = []
    waiting: list[bytes] = []
    for frame in binary_frames(scenario):
        wire = bytes.fromhex(frame["hex"])
        if not is_from(role, frame):
            try:
                machine.receive_data(wire)
            except RemoteProtocolError as error:
                return [message.hex() for message in sent + waiting], str(error)
            for event in machine.events():
                if isinstance(event, StreamOpened):
                    machine.accept(event.stream_id, window)
        elif not waiting:
            provoke(machine, wire)
        waiting += outbox(machine)
        if is_from(role, frame) and waiting:
            sent.append(waiting.pop(0))
    return [message.hex() for message in sent + waiting], ""


@each_case
@pytest.mark.parametrize(("scenario", "role"), PUBLISHED_ENDS)
def test_machine_sends_what_the_published_end_sent(scenario: Scenario, role: Role) -> None:
    difference = DIFFERENCES.get((scenario["name"], role), Difference("none"))
    expected = [frame["hex"] for frame in binary_frames(scenario) if is_from(role, frame)]
    for frame in difference.left_out:
        expected.remove(frame)
    expected += difference.added
    assert play(scenario, role) == (expected, difference.error)


def test_every_listed_difference_belongs_to_a_scenario() -> None:
    played = {param.id for param in PUBLISHED_ENDS}
    assert {f"{name}-{role}" for name, role in DIFFERENCES} - played == set()


def test_every_scenario_left_out_exists() -> None:
    assert set(NOT_FOR_A_MACHINE) - {scenario["name"] for scenario in SCENARIOS} == set()


def named(name: str) -> Scenario:
    return next(scenario for scenario in SCENARIOS if scenario["name"] == name)


@pytest.mark.parametrize("first", [0, 1, 2])
def test_data_and_close_in_one_segment_lose_nothing(first: int) -> None:
    machine, _ = opened(Role.SERVER, local=False, dialect=JS_WS)
    for frame in binary_frames(named("data_and_close_in_one_segment"))[first:]:
        machine.receive_data(bytes.fromhex(frame["hex"]))
    letters = [b"a", b"b", b"c"][first:]
    assert machine.events() == [*(DataReceived(0, x) for x in letters), StreamEnded(0)]


def test_data_in_flight_after_a_cancel_keeps_the_connection() -> None:
    _, error = play(named("raw_data_after_cancel_in_flight"), Role.SERVER)
    assert error == ""


def close_payloads() -> set[str]:
    frames = [frame for scenario in SCENARIOS for frame in scenario["frames"]]
    return {frame["hex"] for frame in frames if frame.get("op") == "close"}


@pytest.mark.parametrize("payload", sorted(close_payloads()))
def test_close_payloads_survive_decoding_and_encoding(payload: str) -> None:
    code, reason = decode_close(bytes.fromhex(payload))
    assert encode_close(code, reason).hex() == payload


def test_close_payload_of_a_stopped_connection_is_understood() -> None:
    assert decode_close(bytes.fromhex("0fa0627965")) == (4000, "bye")
