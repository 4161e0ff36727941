"""Every violation that the Bymux text names ends the connection with a sentence, and no more.

"No more" is checked on everything the machine remembers. Each packet is given whole and byte by
byte.
"""

from __future__ import annotations

import copy

import pytest

from wsmux.exceptions import FlowControlError, FrameError, RemoteProtocolError, StreamIdError
from wsmux.protocols.base import Role
from wsmux.protocols.bymux import BymuxProtocol
from wsmux.protocols.bymux_state import INFINITE, BymuxState, HalfState, StreamState

from .bymux_tools import (
    CLOSE,
    CREDIT,
    PING,
    PONG,
    STOP_READ,
    WRITE,
    all_events,
    fresh,
    of,
    opened,
    overall,
    packet,
    quiet,
    snapshot,
    write,
)
from .pairs import BOTH_ROLES, EITHER_OPENER, id_of, other, outbox

LONGEST_REASON = 123  # bytes of a close frame's reason: the sentence is sent in it
EVERY_KIND = pytest.mark.parametrize(
    ("kind", "name"),
    [(CREDIT, "Credit"), (WRITE, "Write"), (PING, "Ping"), (PONG, "Pong"), (CLOSE, "Close")]
    + [(STOP_READ, "StopRead")],
)


def assert_ends_connection(
    machine: BymuxProtocol,
    wire: bytes,
    error: type[RemoteProtocolError],
    sentence: str,
    code: int = 1002,
) -> None:
    """Check the class, the code and the sentence, and that nothing else happened."""
    all_events(machine)
    outbox(machine)
    twin = copy.deepcopy(machine)
    before = snapshot(machine)
    with pytest.raises(error) as caught:
        machine.receive_data(wire)
    assert type(caught.value) is error
    assert (str(caught.value), caught.value.code) == (sentence, code)
    assert len(sentence.encode()) <= LONGEST_REASON
    assert snapshot(machine) == before
    with pytest.raises(error):
        feed_bytes(twin, wire)


def feed_bytes(machine: BymuxProtocol, wire: bytes) -> None:
    for byte in wire:
        machine.receive_data(bytes((byte,)))


def whole(kind: int, stream_id: int) -> bytes:
    """Return any packet of a kind; a Write is empty."""
    return packet(kind, stream_id, {CREDIT: 1, WRITE: 0}.get(kind))


# Types and ids


@BOTH_ROLES
@pytest.mark.parametrize("wire", ["c0", "d0", "df", "e0", "ff"])
def test_undefined_type(role: Role, wire: str) -> None:
    sentence = f"packet of the undefined type {of(wire)[0] >> 5}"
    assert_ends_connection(quiet(role), of(wire), FrameError, sentence)


@BOTH_ROLES
@EVERY_KIND
@pytest.mark.parametrize("stream_id", [8, 9])
def test_packet_on_a_stream_that_never_was(
    role: Role, kind: int, name: str, stream_id: int
) -> None:
    sentence = f"{name} on stream {stream_id}, which is not active"
    assert_ends_connection(quiet(role), whole(kind, stream_id), StreamIdError, sentence)


@BOTH_ROLES
@EITHER_OPENER
@EVERY_KIND
def test_packet_on_a_stream_that_has_ended(role: Role, local: bool, kind: int, name: str) -> None:
    machine, stream_id = opened(role, local=local)
    machine.refuse(stream_id, 0)
    machine.receive_data(packet(CLOSE, stream_id) + packet(STOP_READ, stream_id))
    sentence = f"{name} on stream {stream_id}, which is not active"
    assert_ends_connection(machine, whole(kind, stream_id), StreamIdError, sentence)


@BOTH_ROLES
def test_longest_id_fits_the_sentence(role: Role) -> None:
    sentence = f"StopRead on stream {2**64 - 1}, which is not active"
    assert_ends_connection(quiet(role), of("ac ffffffffffffffff"), StreamIdError, sentence)


# Opening


@BOTH_ROLES
def test_opening_with_an_id_of_this_side(role: Role) -> None:
    stream_id = id_of(role, 2)
    sentence = f"the peer opened stream {stream_id}, an id of this side"
    assert_ends_connection(quiet(role), overall(WRITE, stream_id), StreamIdError, sentence)


@BOTH_ROLES
def test_opening_with_an_active_id(role: Role) -> None:
    machine, stream_id = opened(role, local=False)
    sentence = f"the peer opened stream {stream_id}, which is active"
    assert_ends_connection(machine, overall(WRITE, stream_id), StreamIdError, sentence)


@BOTH_ROLES
@pytest.mark.parametrize("passed", [[CLOSE], [STOP_READ], [CLOSE, STOP_READ]])
def test_opening_with_an_id_that_this_side_has_not_ended(role: Role, passed: list[int]) -> None:
    stream_id = id_of(other(role))
    stream = StreamState(
        stream_id=stream_id,
        incoming=HalfState(closed=CLOSE in passed, stopped=True),
        outgoing=HalfState(closed=False, stopped=False),
    )
    machine = quiet(role, BymuxState(streams=(stream,)))
    sentence = f"the peer opened stream {stream_id}, which is active"
    assert_ends_connection(machine, overall(WRITE, stream_id), StreamIdError, sentence)


@BOTH_ROLES
def test_opening_without_credit(role: Role) -> None:
    machine, stream_id = opened(role, local=False, max_streams=1)
    sentence = f"the peer opened stream {stream_id + 2} without credit for it"
    assert_ends_connection(machine, overall(WRITE, stream_id + 2), FlowControlError, sentence)


@BOTH_ROLES
def test_opening_after_a_global_close(role: Role) -> None:
    machine = quiet(role)
    machine.receive_data(overall(CLOSE))
    sentence = "global Write after the same side's global Close"
    wire = overall(WRITE, id_of(other(role)))
    assert_ends_connection(machine, wire, FrameError, sentence)


# Credit


@BOTH_ROLES
@EITHER_OPENER
def test_write_beyond_the_credit(role: Role, local: bool) -> None:
    machine, stream_id = opened(role, local=local, window=4)
    sentence = f"Write of 5 bytes on stream {stream_id} with 4 of credit"
    assert_ends_connection(machine, write(stream_id, b"hello"), FlowControlError, sentence)


@BOTH_ROLES
def test_write_beyond_the_credit_is_not_waited_for(role: Role) -> None:
    machine, stream_id = opened(role, local=True, window=4)
    sentence = f"Write of 5 bytes on stream {stream_id} with 4 of credit"
    assert_ends_connection(machine, packet(WRITE, stream_id, 5), FlowControlError, sentence)


@BOTH_ROLES
def test_write_without_any_credit(role: Role) -> None:
    machine = quiet(role)
    stream_id = id_of(other(role))
    machine.receive_data(overall(WRITE, stream_id))
    sentence = f"Write of 1 bytes on stream {stream_id} with 0 of credit"
    assert_ends_connection(machine, write(stream_id, b"x"), FlowControlError, sentence)


@BOTH_ROLES
def test_write_beyond_the_credit_that_crosses_stop_read(role: Role) -> None:
    machine, stream_id = opened(role, local=True, window=4)
    machine.close_read(stream_id)
    machine.receive_data(write(stream_id, b"four"))
    sentence = f"Write of 1 bytes on stream {stream_id} with 0 of credit"
    assert_ends_connection(machine, write(stream_id, b"x"), FlowControlError, sentence)


@BOTH_ROLES
def test_longest_write_fits_the_sentence(role: Role) -> None:
    stream = StreamState(stream_id=2**64 - 1, incoming=HalfState(credit=2**64 - 2))
    sentence = f"Write of {2**64 - 1} bytes on stream {2**64 - 1} with {2**64 - 2} of credit"
    machine = quiet(role, BymuxState(streams=(stream,)))
    assert_ends_connection(machine, of("2f" + 16 * "ff"), FlowControlError, sentence)


@BOTH_ROLES
@pytest.mark.parametrize("count", ["01", "ff"])
def test_credit_for_a_stream_with_infinite_credit(role: Role, count: str) -> None:
    machine, stream_id = opened(role, local=True)
    machine.receive_data(packet(CREDIT, stream_id, 0))
    number = int(count, 16)
    sentence = f"Credit of {number} for stream {stream_id}, whose credit is infinite"
    assert_ends_connection(machine, packet(CREDIT, stream_id, number), FlowControlError, sentence)


@BOTH_ROLES
def test_credit_for_a_stream_beyond_64_bits(role: Role) -> None:
    machine, stream_id = opened(role, local=True, credit=2)
    wire = of("03") + bytes((stream_id,)) + of("fffffffffffffffe")
    sentence = f"Credit of {2**64 - 2} for stream {stream_id} lifts it above 2^64-1"
    assert_ends_connection(machine, wire, FlowControlError, sentence)


@BOTH_ROLES
def test_global_credit_beyond_64_bits(role: Role) -> None:
    machine = quiet(role, opens=1)
    sentence = f"Credit of {2**64 - 1} for opening streams lifts it above 2^64-1"
    assert_ends_connection(machine, of("13 ffffffffffffffff"), FlowControlError, sentence)


# Packets behind an end


@BOTH_ROLES
@EITHER_OPENER
@pytest.mark.parametrize(("kind", "name"), [(WRITE, "Write"), (CLOSE, "Close")])
def test_packet_after_a_close(role: Role, local: bool, kind: int, name: str) -> None:
    machine, stream_id = opened(role, local=local)
    machine.receive_data(packet(CLOSE, stream_id))
    sentence = f"{name} on stream {stream_id} after the same side's Close"
    assert_ends_connection(machine, whole(kind, stream_id), StreamIdError, sentence)


@BOTH_ROLES
@EITHER_OPENER
@pytest.mark.parametrize(("kind", "name"), [(CREDIT, "Credit"), (STOP_READ, "StopRead")])
def test_packet_after_a_stop_read(role: Role, local: bool, kind: int, name: str) -> None:
    machine, stream_id = opened(role, local=local)
    machine.receive_data(packet(STOP_READ, stream_id))
    sentence = f"{name} on stream {stream_id} after the same side's StopRead"
    assert_ends_connection(machine, whole(kind, stream_id), StreamIdError, sentence)


@BOTH_ROLES
@pytest.mark.parametrize(("kind", "name"), [(PING, "Ping"), (PONG, "Pong")])
def test_heartbeat_after_both_on_a_living_stream(role: Role, kind: int, name: str) -> None:
    # Answers are sent at once, so only an agreed start leaves such a stream alive.
    machine, stream_id = opened(role, local=True)
    stream = machine._streams[stream_id]
    stream.incoming.closed = stream.outgoing.stopped = True
    sentence = f"{name} on stream {stream_id} after the same side's Close and StopRead"
    assert_ends_connection(machine, packet(kind, stream_id), StreamIdError, sentence)


@BOTH_ROLES
def test_second_global_close(role: Role) -> None:
    machine = quiet(role)
    machine.receive_data(overall(CLOSE))
    sentence = "global Close after the same side's global Close"
    assert_ends_connection(machine, overall(CLOSE), FrameError, sentence)


@BOTH_ROLES
def test_second_global_stop_read(role: Role) -> None:
    machine = quiet(role)
    machine.receive_data(overall(STOP_READ))
    sentence = "global StopRead after the same side's global StopRead"
    assert_ends_connection(machine, overall(STOP_READ), FrameError, sentence)


@BOTH_ROLES
def test_global_credit_after_a_global_stop_read(role: Role) -> None:
    machine = quiet(role)
    machine.receive_data(overall(STOP_READ))
    sentence = "global Credit after the same side's global StopRead"
    assert_ends_connection(machine, overall(CREDIT, 1), FrameError, sentence)


@BOTH_ROLES
@pytest.mark.parametrize(("kind", "name"), [(PING, "Ping"), (PONG, "Pong")])
def test_global_heartbeat_after_both(role: Role, kind: int, name: str) -> None:
    machine = quiet(role)
    machine.receive_data(overall(CLOSE) + overall(STOP_READ))
    sentence = f"global {name} after the same side's global Close and StopRead"
    assert_ends_connection(machine, overall(kind), FrameError, sentence)


@BOTH_ROLES
def test_packets_forbidden_by_an_agreed_start(role: Role) -> None:
    over = HalfState(closed=True, stopped=True)
    machine = fresh(role, BymuxState(opening=over, accepting=over))
    sentence = "global Write after the same side's global Close"
    assert_ends_connection(machine, overall(WRITE, id_of(other(role))), FrameError, sentence)


# What the text leaves to the receiver


@BOTH_ROLES
def test_too_many_empty_writes_in_a_row(role: Role) -> None:
    machine, stream_id = opened(role, local=True, max_control_frames=3)
    machine.receive_data(3 * write(stream_id, b""))
    sentence = "too many Writes of no bytes in a row"
    assert_ends_connection(machine, write(stream_id, b""), FrameError, sentence, 1008)


@BOTH_ROLES
def test_write_on_infinite_credit_is_bounded_by_the_configuration(role: Role) -> None:
    stream = StreamState(stream_id=2, incoming=HalfState(credit=INFINITE))
    machine = quiet(role, BymuxState(streams=(stream,)), max_message_size=300, max_frame_size=9)
    wire = of("2102 012d")
    assert_ends_connection(machine, wire, FrameError, "Write of 301 bytes on stream 2", 1009)
