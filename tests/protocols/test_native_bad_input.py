"""Every way a message can be wrong ends the connection with 1002 and a sentence, and no more.

"No more" is checked on everything the machine remembers: no stream, credit or event is touched by
the message that breaks a rule, and nothing is answered. One wrong thing, DATA beyond the credit,
concerns its stream alone; its answer must be there when the call returns.
"""

from __future__ import annotations

import pytest

from wsmux.config import SMALLEST_WINDOW
from wsmux.exceptions import FlowControlError, FrameError, StreamIdError
from wsmux.protocols.base import Role
from wsmux.protocols.events import DataReceived, StreamAborted
from wsmux.protocols.native import JS_WS, MAX_GAPS, Dialect

from ..helpers.machine_pairs import (
    ACK,
    BOTH_DIALECTS,
    BOTH_ROLES,
    CLOSE,
    DATA,
    EITHER_OPENER,
    ERROR,
    GO_AWAY,
    LONGEST_REASON,
    READ,
    WRITE,
    assert_ends_connection,
    id_of,
    message,
    native,
    opened,
    other,
    outbox,
    snapshot,
    uint32,
)
from ..helpers.tables import each_case

# The frame itself


@BOTH_ROLES
@BOTH_DIALECTS
def test_empty_message(role: Role, dialect: Dialect) -> None:
    machine, _ = opened(role, local=True, dialect=dialect)
    assert_ends_connection(machine, b"", FrameError, "empty message")


@each_case
@BOTH_ROLES
@BOTH_DIALECTS
@pytest.mark.parametrize("wire", ["40", "80", "8000", "800000", "c0", "c0000000000000", "ff"])
def test_cut_id(role: Role, dialect: Dialect, wire: str) -> None:
    machine, _ = opened(role, local=True, dialect=dialect)
    sentence = "message without a whole stream id"
    assert_ends_connection(machine, bytes.fromhex(wire), FrameError, sentence)


@BOTH_ROLES
@BOTH_DIALECTS
@EITHER_OPENER
def test_no_type(role: Role, dialect: Dialect, local: bool) -> None:
    machine, stream_id = opened(role, local=local, dialect=dialect)
    sentence = f"message for stream {stream_id} ends before its type"
    assert_ends_connection(machine, bytes((stream_id,)), FrameError, sentence)


@BOTH_ROLES
@EITHER_OPENER
def test_half_a_type_of_two_bytes(role: Role, local: bool) -> None:
    machine, stream_id = opened(role, local=local, dialect=JS_WS)
    sentence = f"message for stream {stream_id} ends before its type"
    assert_ends_connection(machine, bytes((stream_id, 0)), FrameError, sentence)


@each_case
@BOTH_ROLES
@EITHER_OPENER
@pytest.mark.parametrize("kind", [5, 8, 64, 255])
def test_unknown_type(role: Role, local: bool, kind: int) -> None:
    machine, stream_id = opened(role, local=local)
    sentence = f"message for stream {stream_id} has the unknown type {kind}"
    assert_ends_connection(machine, message(stream_id, kind, b"\x00"), FrameError, sentence)


@each_case
@BOTH_ROLES
@EITHER_OPENER
@pytest.mark.parametrize("kind", [4, 5, 256, 65535])
def test_unknown_type_of_two_bytes(role: Role, local: bool, kind: int) -> None:
    machine, stream_id = opened(role, local=local, dialect=JS_WS)
    sentence = f"message for stream {stream_id} has the unknown type {kind}"
    assert_ends_connection(machine, message(stream_id, kind, b"\x00", JS_WS), FrameError, sentence)


@BOTH_ROLES
def test_unknown_type_on_a_new_id(role: Role) -> None:
    stream_id = id_of(other(role))
    sentence = f"message for stream {stream_id} has the unknown type 9"
    assert_ends_connection(native(role), message(stream_id, 9), FrameError, sentence)


# Bodies


@each_case
@BOTH_ROLES
@BOTH_DIALECTS
@EITHER_OPENER
@pytest.mark.parametrize("body", [b"", b"\x00\x00\x01"], ids=["empty", "three-bytes"])
def test_short_ack(role: Role, dialect: Dialect, local: bool, body: bytes) -> None:
    machine, stream_id = opened(role, local=local, dialect=dialect)
    sentence = f"ACK on stream {stream_id} has a body of the wrong length"
    assert_ends_connection(machine, message(stream_id, ACK, body, dialect), FrameError, sentence)


@BOTH_ROLES
@EITHER_OPENER
def test_long_ack(role: Role, local: bool) -> None:
    machine, stream_id = opened(role, local=local)
    sentence = f"ACK on stream {stream_id} has a body of the wrong length"
    wire = message(stream_id, ACK, uint32(5) + b"\x00")
    assert_ends_connection(machine, wire, FrameError, sentence)


@BOTH_ROLES
@BOTH_DIALECTS
def test_short_ack_that_would_open(role: Role, dialect: Dialect) -> None:
    stream_id = id_of(other(role))
    sentence = f"ACK on stream {stream_id} has a body of the wrong length"
    wire = message(stream_id, ACK, b"\x00", dialect)
    assert_ends_connection(native(role, dialect), wire, FrameError, sentence)


@each_case
@BOTH_ROLES
@BOTH_DIALECTS
@EITHER_OPENER
@pytest.mark.parametrize(("kind", "name"), [(ERROR, "ERROR"), (CLOSE, "CLOSE")])
def test_no_direction(role: Role, dialect: Dialect, local: bool, kind: int, name: str) -> None:
    machine, stream_id = opened(role, local=local, dialect=dialect)
    sentence = f"{name} on stream {stream_id} without a direction"
    assert_ends_connection(machine, message(stream_id, kind, b"", dialect), FrameError, sentence)


@each_case
@BOTH_ROLES
@BOTH_DIALECTS
@EITHER_OPENER
@pytest.mark.parametrize("direction", [2, 255])
@pytest.mark.parametrize(("kind", "name"), [(ERROR, "ERROR"), (CLOSE, "CLOSE")])
def test_direction_above_1(
    role: Role, dialect: Dialect, local: bool, direction: int, kind: int, name: str
) -> None:
    machine, stream_id = opened(role, local=local, dialect=dialect)
    sentence = f"{name} on stream {stream_id} with the direction {direction}"
    body = bytes((direction,)) + (b"\x05" if kind == ERROR else b"")
    assert_ends_connection(machine, message(stream_id, kind, body, dialect), FrameError, sentence)


@BOTH_ROLES
@EITHER_OPENER
@pytest.mark.parametrize("direction", [READ, WRITE], ids=["read", "write"])
def test_bytes_behind_a_close(role: Role, local: bool, direction: bytes) -> None:
    machine, stream_id = opened(role, local=local)
    sentence = f"CLOSE on stream {stream_id} has a body of the wrong length"
    wire = message(stream_id, CLOSE, direction + b"\x00")
    assert_ends_connection(machine, wire, FrameError, sentence)


@each_case
@BOTH_ROLES
@BOTH_DIALECTS
@EITHER_OPENER
@pytest.mark.parametrize("direction", [READ, WRITE], ids=["read", "write"])
@pytest.mark.parametrize("code", ["", "40", "800000", "c0000000000000"])
def test_error_without_a_whole_code(
    role: Role, dialect: Dialect, local: bool, direction: bytes, code: str
) -> None:
    machine, stream_id = opened(role, local=local, dialect=dialect)
    sentence = f"ERROR on stream {stream_id} without a whole code"
    wire = message(stream_id, ERROR, direction + bytes.fromhex(code), dialect)
    assert_ends_connection(machine, wire, FrameError, sentence)


@BOTH_ROLES
@EITHER_OPENER
@pytest.mark.parametrize("direction", [READ, WRITE], ids=["read", "write"])
def test_bytes_behind_an_error(role: Role, local: bool, direction: bytes) -> None:
    machine, stream_id = opened(role, local=local)
    sentence = f"ERROR on stream {stream_id} has a body of the wrong length"
    wire = message(stream_id, ERROR, direction + b"\x05\x00")
    assert_ends_connection(machine, wire, FrameError, sentence)


@BOTH_ROLES
@pytest.mark.parametrize("body", ["", "40", "0000", "404d00"])
def test_going_away_without_exactly_one_code(role: Role, body: str) -> None:
    wire = message(id_of(role), GO_AWAY, bytes.fromhex(body))
    assert_ends_connection(native(role), wire, FrameError, "GO_AWAY without exactly one code")


# Ids


@each_case
@BOTH_ROLES
@BOTH_DIALECTS
@pytest.mark.parametrize(
    ("kind", "body", "name"),
    [
        pytest.param(DATA, b"hi", "DATA", id="data"),
        pytest.param(DATA, b"", "DATA", id="empty-data"),
        pytest.param(ERROR, READ + b"\x05", "ERROR", id="error-read"),
        pytest.param(ERROR, WRITE + b"\x05", "ERROR", id="error-write"),
        pytest.param(CLOSE, READ, "CLOSE", id="close-read"),
        pytest.param(CLOSE, WRITE, "CLOSE", id="close-write"),
    ],
)
def test_new_id_whose_first_message_is_not_ack(
    role: Role, dialect: Dialect, kind: int, body: bytes, name: str
) -> None:
    stream_id = id_of(other(role))
    sentence = f"the first message on stream {stream_id} is {name}, not ACK"
    wire = message(stream_id, kind, body, dialect)
    assert_ends_connection(native(role, dialect), wire, StreamIdError, sentence)


WRONG_PARITY = [
    pytest.param(ACK, uint32(9), id="ack"),
    pytest.param(DATA, b"hi", id="data"),
    pytest.param(ERROR, READ + b"\x05", id="error-read"),
    pytest.param(ERROR, WRITE + b"\x05", id="error-write"),
    pytest.param(CLOSE, READ, id="close-read"),
    pytest.param(CLOSE, WRITE, id="close-write"),
]


@each_case
@BOTH_ROLES
@BOTH_DIALECTS
@pytest.mark.parametrize(("kind", "body"), WRONG_PARITY)
def test_new_id_of_the_wrong_parity(role: Role, dialect: Dialect, kind: int, body: bytes) -> None:
    machine, _ = opened(role, local=True, dialect=dialect)
    stream_id = id_of(role, 1)
    sentence = f"stream {stream_id} has the parity of this side, which has not opened it"
    wire = message(stream_id, kind, body, dialect)
    assert_ends_connection(machine, wire, StreamIdError, sentence)


@each_case
@BOTH_ROLES
@pytest.mark.parametrize(("kind", "body"), WRONG_PARITY)
def test_id_of_the_wrong_parity_is_not_excused_by_going_away(
    role: Role, kind: int, body: bytes
) -> None:
    machine = native(role)
    machine.go_away(0)
    outbox(machine)
    stream_id = id_of(role)
    sentence = f"stream {stream_id} has the parity of this side, which has not opened it"
    assert_ends_connection(machine, message(stream_id, kind, body), StreamIdError, sentence)


@each_case
@BOTH_ROLES
@pytest.mark.parametrize(("kind", "body"), WRONG_PARITY)
@pytest.mark.parametrize("index", [1, 2, 3], ids=["first", "middle", "last"])
def test_new_id_not_above_all_before(role: Role, kind: int, body: bytes, index: int) -> None:
    machine, first = opened(role, local=False)
    highest = first + 8
    machine.receive_data(message(highest, ACK, uint32(9)))
    machine.events()
    stream_id = first + 2 * index
    sentence = f"stream {stream_id} is new, but not above {highest}, opened before"
    assert_ends_connection(machine, message(stream_id, kind, body), StreamIdError, sentence)


@BOTH_ROLES
def test_new_id_below_the_first_one_opened(role: Role) -> None:
    machine = native(role)
    highest, lowest = id_of(other(role), 1), id_of(other(role))
    machine.receive_data(message(highest, ACK, uint32(9)))
    machine.events()
    sentence = f"stream {lowest} is new, but not above {highest}, opened before"
    assert_ends_connection(machine, message(lowest, ACK, uint32(9)), StreamIdError, sentence)


@BOTH_ROLES
def test_new_id_left_out_before_one_going_away(role: Role) -> None:
    machine = native(role)
    highest, lowest = id_of(other(role), 1), id_of(other(role))
    machine.receive_data(message(highest, ACK, uint32(9)))
    machine.events()
    machine.go_away(0)
    outbox(machine)
    sentence = f"stream {lowest} is new, but not above {highest}, opened before"
    assert_ends_connection(machine, message(lowest, ACK, uint32(9)), StreamIdError, sentence)


@BOTH_ROLES
def test_left_out_id_is_remembered_however_many_follow_without_a_gap(role: Role) -> None:
    machine = native(role)
    lowest = id_of(other(role))
    for index in range(1, MAX_GAPS + 10):
        stream_id = id_of(other(role), index)
        machine.receive_data((stream_id | 1 << 14).to_bytes(2, "big") + b"\x01" + uint32(1))
    machine.events()
    sentence = f"stream {lowest} is new, but not above {stream_id}, opened before"
    assert_ends_connection(machine, message(lowest, ACK, uint32(9)), StreamIdError, sentence)


@BOTH_ROLES
def test_id_left_out_longer_ago_than_gaps_are_remembered_is_ignored(role: Role) -> None:
    machine = native(role, max_streams=100)
    first = int(role is Role.CLIENT)
    for gap in range(MAX_GAPS + 1):
        stream_id = first + 4 * gap + 2
        machine.receive_data((stream_id | 1 << 14).to_bytes(2, "big") + b"\x01" + uint32(1))
    before = snapshot(machine)
    machine.receive_data(message(first, ACK, uint32(9)))
    assert snapshot(machine) == before


@each_case
@BOTH_ROLES
@EITHER_OPENER
@BOTH_DIALECTS
@pytest.mark.parametrize("body", [b"hi", b""], ids=["bytes", "empty"])
def test_data_on_a_finished_id(role: Role, local: bool, dialect: Dialect, body: bytes) -> None:
    machine, stream_id = opened(role, local=local, dialect=dialect)
    machine.close_write(stream_id, 0.0)
    machine.receive_data(message(stream_id, CLOSE, READ, dialect))
    machine.events()
    outbox(machine)
    sentence = f"DATA on stream {stream_id}, which has ended"
    wire = message(stream_id, DATA, body, dialect)
    assert_ends_connection(machine, wire, StreamIdError, sentence)


@BOTH_ROLES
@EITHER_OPENER
@pytest.mark.parametrize(
    ("kind", "end"), [(CLOSE, READ), (ERROR, READ + b"\x05")], ids=["close", "error"]
)
def test_data_on_a_cancelled_id_after_the_peer_ended_it(
    role: Role, local: bool, kind: int, end: bytes
) -> None:
    machine, stream_id = opened(role, local=local)
    machine.reset_write(stream_id, 64)
    machine.reset_read(stream_id, 64)
    machine.receive_data(message(stream_id, kind, end))
    machine.events()
    outbox(machine)
    sentence = f"DATA on stream {stream_id}, which has ended"
    assert_ends_connection(machine, message(stream_id, DATA, b"hi"), StreamIdError, sentence)


@BOTH_ROLES
def test_data_on_a_cancelled_id_too_old_to_be_remembered(role: Role) -> None:
    machine = native(role, max_cancelled=1)
    first, second = machine.open_stream(), machine.open_stream()
    machine.refuse(first, 64)
    machine.refuse(second, 64)
    machine.events()
    outbox(machine)
    sentence = f"DATA on stream {first}, which has ended"
    assert_ends_connection(machine, message(first, DATA, b"hi"), StreamIdError, sentence)


@BOTH_ROLES
@pytest.mark.parametrize("index", [1, 7])
def test_going_away_that_names_an_id_not_yet_opened(role: Role, index: int) -> None:
    machine = native(role)
    named, following = id_of(role, index), id_of(role)
    sentence = f"GO_AWAY names stream {named}; the next one here would be {following}"
    assert_ends_connection(machine, message(named, GO_AWAY, b"\x00"), StreamIdError, sentence)


@BOTH_ROLES
def test_going_away_that_names_an_id_of_the_wrong_parity(role: Role) -> None:
    machine, named = opened(role, local=False)
    sentence = f"GO_AWAY names stream {named}; the next one here would be {id_of(role)}"
    assert_ends_connection(machine, message(named, GO_AWAY, b"\x00"), StreamIdError, sentence)


@BOTH_ROLES
def test_data_on_a_stream_that_the_peer_said_it_did_not_handle(role: Role) -> None:
    machine = native(role)
    stream_id = machine.open_stream()
    machine.receive_data(message(stream_id, GO_AWAY, b"\x00"))
    machine.events()
    outbox(machine)
    sentence = f"DATA on stream {stream_id}, which has ended"
    assert_ends_connection(machine, message(stream_id, DATA, b"hi"), StreamIdError, sentence)


# What a stream's state forbids


@each_case
@BOTH_ROLES
@EITHER_OPENER
@BOTH_DIALECTS
@pytest.mark.parametrize("body", [b"hi", b""], ids=["bytes", "empty"])
@pytest.mark.parametrize(
    ("kind", "end"), [(CLOSE, READ), (ERROR, READ + b"\x05")], ids=["close", "error"]
)
def test_data_after_the_peers_own_end(
    role: Role, local: bool, dialect: Dialect, body: bytes, kind: int, end: bytes
) -> None:
    machine, stream_id = opened(role, local=local, dialect=dialect)
    machine.receive_data(message(stream_id, kind, end, dialect))
    machine.events()
    outbox(machine)
    sentence = f"DATA on stream {stream_id} after the peer ended its writing half"
    wire = message(stream_id, DATA, body, dialect)
    assert_ends_connection(machine, wire, StreamIdError, sentence)


@BOTH_ROLES
@EITHER_OPENER
def test_data_after_the_peers_own_end_of_a_cancelled_half(role: Role, local: bool) -> None:
    machine, stream_id = opened(role, local=local)
    machine.reset_read(stream_id, 64)
    machine.receive_data(message(stream_id, CLOSE, READ))
    machine.events()
    outbox(machine)
    sentence = f"DATA on stream {stream_id} after the peer ended its writing half"
    assert_ends_connection(machine, message(stream_id, DATA, b"hi"), StreamIdError, sentence)


@each_case
@BOTH_ROLES
@EITHER_OPENER
@BOTH_DIALECTS
@pytest.mark.parametrize(("credit", "count"), [(2**32 - 1, 1), (1, 2**32 - 1), (2**31, 2**31)])
def test_ack_that_lifts_unspent_credit_above_32_bits(
    role: Role, local: bool, dialect: Dialect, credit: int, count: int
) -> None:
    machine, stream_id = opened(role, local=local, credit=credit, dialect=dialect)
    sentence = f"ACK of {count} bytes lifts the unspent credit of {credit} above 2^32-1"
    wire = message(stream_id, ACK, uint32(count), dialect)
    assert_ends_connection(machine, wire, FlowControlError, sentence)


@each_case
@BOTH_ROLES
@EITHER_OPENER
@BOTH_DIALECTS
@pytest.mark.parametrize("size", [5, 1000])
def test_data_beyond_the_credit_resets_its_stream_and_buffers_nothing(
    role: Role, local: bool, dialect: Dialect, size: int
) -> None:
    machine, stream_id = opened(role, local=local, dialect=dialect, receive_window=4)
    machine.receive_data(message(stream_id, DATA, b"x" * size, dialect))
    assert outbox(machine) == [message(stream_id, ERROR, WRITE + b"\x02", dialect)]
    [event] = machine.events()
    assert isinstance(event, StreamAborted)
    assert event[:3] == (stream_id, 2, True)


@BOTH_ROLES
@pytest.mark.parametrize("window", [10, SMALLEST_WINDOW, 2 * SMALLEST_WINDOW])
def test_stream_not_yet_accepted_takes_what_may_be_early(role: Role, window: int) -> None:
    machine = native(role, receive_window=window)
    stream_id = id_of(other(role))
    machine.receive_data(message(stream_id, ACK, uint32(9)))
    machine.receive_data(message(stream_id, DATA, bytes(min(window, SMALLEST_WINDOW))))
    assert outbox(machine) == []
    machine.receive_data(message(stream_id, DATA, b"x"))
    assert outbox(machine) == [message(stream_id, ERROR, WRITE + b"\x02")]


@BOTH_ROLES
def test_window_smaller_than_what_was_early_ends_the_connection(role: Role) -> None:
    machine, _ = opened(role, local=False, credit=9)
    stream_id = machine.open_stream()
    sentence = f"ACK of 8 bytes answers stream {stream_id}, where 9 could be expected"
    outbox(machine)
    answer = message(stream_id, ACK, uint32(8))
    assert_ends_connection(machine, answer, FlowControlError, sentence)


@BOTH_ROLES
def test_data_beyond_credit_not_yet_returned_is_caught(role: Role) -> None:
    machine, stream_id = opened(role, local=True, receive_window=10)
    machine.receive_data(message(stream_id, DATA, b"x" * 10))
    machine.consumed(stream_id, 4)
    machine.receive_data(message(stream_id, DATA, b"y"))
    reports = machine.events()
    assert [type(event) for event in reports] == [DataReceived, StreamAborted]


@BOTH_ROLES
def test_connection_goes_on_after_data_beyond_the_credit(role: Role) -> None:
    machine, stream_id = opened(role, local=True, receive_window=4)
    machine.receive_data(message(stream_id, DATA, b"xxxxx"))
    machine.receive_data(message(id_of(other(role)), ACK, uint32(1)))
    assert machine.open_streams() == 2


def test_sentences_with_the_largest_numbers_fit_a_close_frame() -> None:
    machine = native(Role.CLIENT)
    for wire in ("fffffffffffffffd 01 00000001", "ffffffffffffffff 01 00000001"):
        machine.receive_data(bytes.fromhex(wire))
    with pytest.raises(StreamIdError) as caught:
        machine.receive_data(bytes.fromhex("fffffffffffffffb 01 00000001"))
    assert len(str(caught.value).encode()) <= LONGEST_REASON
