"""The native wire does what its specification says, for both roles and both dialects."""

from __future__ import annotations

from typing import Any

import pytest

from wsmux.config import SMALLEST_WINDOW
from wsmux.exceptions import FlowControlError, FrameError, LocalProtocolError
from wsmux.protocols.base import Role
from wsmux.protocols.events import (
    CreditGranted,
    DataReceived,
    Event,
    GoAwayReceived,
    OpenPermitted,
    StreamAborted,
    StreamEnded,
    StreamFinished,
    StreamOpened,
    StreamRejected,
    WriteStopped,
)
from wsmux.protocols.native import JS_WS, JS_WS_CLOSE_DELAY, WSMUX_V1, Dialect, NativeProtocol

from ..helpers.machine_pairs import (
    ACK,
    BOTH_DIALECTS,
    BOTH_ROLES,
    CLOSE,
    DATA,
    EITHER_OPENER,
    ERROR,
    GO_AWAY,
    READ,
    WRITE,
    Pair,
    control,
    data,
    id_of,
    message,
    native,
    native_pair,
    opened,
    other,
    outbox,
    snapshot,
    uint32,
)
from ..helpers.tables import each_case

BOTH_PUMPS = pytest.mark.parametrize("single", [False, True], ids=["whole", "one-at-a-time"])
MIB = 2**20


def of(wire: str) -> bytes:
    return bytes.fromhex(wire)


def opened_pair(
    opener: Role, dialect: Dialect = WSMUX_V1, **limits: int
) -> tuple[NativeProtocol, NativeProtocol, int, Pair]:
    """Return the opener, its peer and the id of a stream both have taken, all quiet."""
    pair = native_pair(dialect, **limits)
    near, far = pair[opener], pair[other(opener)]
    assert isinstance(near, NativeProtocol)
    assert isinstance(far, NativeProtocol)
    stream_id = near.open_stream()
    pair.pump()
    return near, far, stream_id, pair


# The bytes of the specification


def test_opening_on_the_wire() -> None:
    client = native(Role.CLIENT, receive_window=MIB)
    client.open_stream()
    assert outbox(client) == [of("0001 00100000")]


def test_answer_to_an_opening_on_the_wire() -> None:
    server = native(Role.SERVER)
    server.receive_data(of("0001 00100000"))
    server.accept(0, MIB)
    assert outbox(server) == [of("0001 00100000")]


def test_first_stream_of_a_server_on_the_wire() -> None:
    server = native(Role.SERVER, receive_window=MIB)
    server.open_stream()
    assert outbox(server) == [of("0101 00100000")]


def test_data_on_the_wire() -> None:
    client, _ = opened(Role.CLIENT, local=True)
    client.send_data(0, b"hello")
    assert outbox(client) == [of("0000 68656c6c6f")]


def test_close_on_the_wire() -> None:
    client, _ = opened(Role.CLIENT, local=True)
    client.close_write(0, 0.0)
    assert outbox(client) == [of("0003 00")]


def test_echo_of_a_close_on_the_wire() -> None:
    server, _ = opened(Role.SERVER, local=False)
    server.receive_data(of("0003 00"))
    assert outbox(server) == [of("0003 01")]


def test_abort_on_the_wire() -> None:
    client, _ = opened(Role.CLIENT, local=True)
    client.reset_write(0, 77)
    assert outbox(client) == [of("0002 00 404d")]


def test_refused_input_on_the_wire() -> None:
    client, _ = opened(Role.CLIENT, local=True)
    client.reset_read(0, 77)
    assert outbox(client) == [of("0002 01 404d")]


def test_going_away_on_the_wire() -> None:
    server, _ = opened(Role.SERVER, local=False)
    server.go_away(77)
    assert outbox(server) == [of("0204 404d")]


@pytest.mark.parametrize(
    ("stream_id", "wire"),
    [(64, "4040"), (16384, "80004000"), (2**30, "c000000040000000")],
)
def test_wide_ids_on_the_wire(stream_id: int, wire: str) -> None:
    client = native(Role.CLIENT, receive_window=MIB)
    client._ids.next = stream_id
    assert client.open_stream() == stream_id
    assert outbox(client) == [of(wire + "01 00100000")]


def test_names_of_the_native_wire() -> None:
    machine = native(Role.CLIENT)
    assert (machine.name, machine.subprotocol) == ("wsmux", "wsmux.v1")


def test_names_of_the_shipped_dialect() -> None:
    machine = native(Role.CLIENT, JS_WS)
    assert (machine.name, machine.subprotocol) == ("js-ws", None)


def test_application_codes_of_the_native_wire_start_at_64() -> None:
    machine = native(Role.CLIENT)
    assert (machine.first_application_code, machine.refused_code) == (64, 3)


@BOTH_ROLES
@BOTH_DIALECTS
def test_a_machine_knows_its_role(role: Role, dialect: Dialect) -> None:
    assert native(role, dialect).role is role


# Opening


@BOTH_ROLES
def test_ids_of_one_side_rise_by_two(role: Role) -> None:
    machine = native(role)
    assert [machine.open_stream() for _ in range(3)] == [id_of(role, n) for n in range(3)]


@BOTH_ROLES
@BOTH_DIALECTS
@BOTH_PUMPS
def test_opening_reports_to_both_ends(role: Role, dialect: Dialect, single: bool) -> None:
    pair = native_pair(dialect)
    stream_id = pair[role].open_stream()
    events = dict(zip(Role, pair.pump(single=single), strict=True))
    assert events[role] == [CreditGranted(stream_id)]
    assert events[other(role)] == [StreamOpened(stream_id), CreditGranted(stream_id)]


@BOTH_ROLES
def test_opener_has_no_credit_before_the_answer(role: Role) -> None:
    machine = native(role)
    stream_id = machine.open_stream()
    assert (machine.credit(stream_id), machine.send_data(stream_id, b"x")) == (0, 0)


@BOTH_ROLES
def test_both_ends_get_the_window_of_the_other(role: Role) -> None:
    pair = Pair(native(Role.CLIENT), native(Role.SERVER), window=50)
    stream_id = pair[role].open_stream()
    pair.pump()
    window = pair[role].config.receive_window
    assert (pair[role].credit(stream_id), pair[other(role)].credit(stream_id)) == (50, window)


@BOTH_ROLES
def test_data_right_behind_the_opening_is_taken(role: Role) -> None:
    machine = native(role)
    stream_id = id_of(other(role))
    machine.receive_data(message(stream_id, ACK, uint32(9)))
    machine.accept(stream_id, 100)
    machine.receive_data(message(stream_id, DATA, b"hi"))
    assert machine.events()[-1] == DataReceived(stream_id, b"hi")


@BOTH_ROLES
def test_ids_left_out_by_the_peer_do_no_harm(role: Role) -> None:
    machine = native(role)
    machine.receive_data(message(id_of(other(role), 9), ACK, uint32(1)))
    machine.receive_data(message(id_of(other(role), 20), ACK, uint32(1)))
    assert machine.open_streams() == 2


@BOTH_ROLES
def test_late_message_on_a_finished_id_behind_left_out_ones_is_ignored(role: Role) -> None:
    machine = native(role)
    stream_id = id_of(other(role), 9)
    machine.receive_data(message(stream_id, ACK, uint32(1)))
    machine.refuse(stream_id, 64)
    before = snapshot(machine)
    machine.receive_data(message(stream_id, ACK, uint32(1)))
    assert snapshot(machine) == before


@BOTH_ROLES
def test_opening_with_zero_credit_opens(role: Role) -> None:
    machine = native(role)
    stream_id = id_of(other(role))
    machine.receive_data(message(stream_id, ACK, uint32(0)))
    assert machine.events() == [StreamOpened(stream_id)]


@BOTH_ROLES
def test_open_streams_counts_both_sides(role: Role) -> None:
    machine, _ = opened(role, local=True)
    machine.receive_data(message(id_of(other(role)), ACK, uint32(1)))
    assert machine.open_streams() == 2


@BOTH_ROLES
def test_last_id_can_be_opened_and_none_after_it(role: Role) -> None:
    machine = native(role)
    machine._ids.next = 2**62 - (2 if role is Role.CLIENT else 1)
    machine.open_stream()
    with pytest.raises(LocalProtocolError, match="used up"):
        machine.open_stream()


@BOTH_ROLES
def test_unanswered_openings_are_bounded(role: Role) -> None:
    machine = native(role, max_pending_opens=2)
    machine.open_stream()
    assert machine.may_open()
    machine.open_stream()
    assert not machine.may_open()


@each_case
@BOTH_ROLES
@pytest.mark.parametrize(
    ("kind", "body"),
    [
        pytest.param(ACK, uint32(1), id="ack"),
        pytest.param(ERROR, READ + b"\x03", id="error-read"),
        pytest.param(ERROR, WRITE + b"\x03", id="error-write"),
        pytest.param(CLOSE, READ, id="close-read"),
        pytest.param(CLOSE, WRITE, id="close-write"),
    ],
)
def test_answer_permits_the_next_opening(role: Role, kind: int, body: bytes) -> None:
    machine = native(role, max_pending_opens=1)
    stream_id = machine.open_stream()
    machine.receive_data(message(stream_id, kind, body))
    assert machine.may_open()
    assert OpenPermitted() in machine.events()


@BOTH_ROLES
def test_opening_is_permitted_once_per_answered_stream(role: Role) -> None:
    machine = native(role, max_pending_opens=1)
    stream_id = machine.open_stream()
    for _ in range(3):
        machine.receive_data(message(stream_id, ACK, uint32(1)))
    assert machine.events().count(OpenPermitted()) == 1


@BOTH_ROLES
def test_second_answer_on_a_stream_permits_nothing(role: Role) -> None:
    machine = native(role, max_pending_opens=2)
    first, _ = machine.open_stream(), machine.open_stream()
    machine.receive_data(message(first, ACK, uint32(1)))
    machine.receive_data(message(first, ACK, uint32(1)))
    machine.open_stream()
    assert not machine.may_open()


@BOTH_ROLES
def test_opening_is_not_announced_where_it_was_never_forbidden(role: Role) -> None:
    machine = native(role, max_pending_opens=3)
    first, _ = machine.open_stream(), machine.open_stream()
    machine.receive_data(message(first, ACK, uint32(1)))
    assert OpenPermitted() not in machine.events()


@BOTH_ROLES
@BOTH_DIALECTS
def test_stream_closed_before_its_answer_permits_the_next_opening(
    role: Role, dialect: Dialect
) -> None:
    pair = native_pair(dialect, max_pending_opens=1)
    stream_id = pair[role].open_stream()
    pair[role].close_write(stream_id, 0.0)
    pair[role].close_read(stream_id)
    pair.pump()
    assert pair[role].may_open()


# Credit


@BOTH_ROLES
@EITHER_OPENER
def test_write_is_cut_to_the_credit(role: Role, local: bool) -> None:
    machine, stream_id = opened(role, local=local, credit=3)
    assert machine.send_data(stream_id, b"hello") == 3
    assert outbox(machine) == [message(stream_id, DATA, b"hel")]


@BOTH_ROLES
@EITHER_OPENER
def test_write_is_cut_to_the_frame_size(role: Role, local: bool) -> None:
    machine, stream_id = opened(role, local=local, max_frame_size=4)
    assert machine.send_data(stream_id, b"hello") == 4
    assert outbox(machine) == [message(stream_id, DATA, b"hell")]


@BOTH_ROLES
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_whole_write_is_not_copied(role: Role, kind: type) -> None:
    machine, stream_id = opened(role, local=True)
    body = kind(b"x" * 500)
    machine.send_data(stream_id, body)
    assert machine.data_to_send()[0][1] is body


@BOTH_ROLES
def test_each_frame_of_data_counts_once_and_what_is_not_sent_does_not(role: Role) -> None:
    machine, stream_id = opened(role, local=True, credit=5)
    counts = []
    for body in (b"abc", b"", b"defg", b"h"):
        machine.send_data(stream_id, body)
        counts.append(machine.data_frames)
    assert counts == [1, 1, 2, 2]


@BOTH_ROLES
def test_cut_write_of_a_view_is_not_copied(role: Role) -> None:
    machine, stream_id = opened(role, local=True, credit=3)
    body = bytearray(b"hello")
    machine.send_data(stream_id, memoryview(body))
    cut = machine.data_to_send()[0][1]
    assert isinstance(cut, memoryview)
    assert cut.obj is body


@BOTH_ROLES
@EITHER_OPENER
def test_sending_spends_credit(role: Role, local: bool) -> None:
    machine, stream_id = opened(role, local=local, credit=10)
    machine.send_data(stream_id, b"hello")
    assert machine.credit(stream_id) == 5


@BOTH_ROLES
def test_nothing_is_sent_without_credit(role: Role) -> None:
    machine, stream_id = opened(role, local=False, credit=0)
    assert machine.send_data(stream_id, b"hello") == 0
    assert outbox(machine) == []


@BOTH_ROLES
def test_empty_data_is_never_sent(role: Role) -> None:
    machine, stream_id = opened(role, local=True)
    assert machine.send_data(stream_id, b"") == 0
    assert outbox(machine) == []


@BOTH_ROLES
@EITHER_OPENER
def test_ack_adds_to_the_credit(role: Role, local: bool) -> None:
    machine, stream_id = opened(role, local=local, credit=10)
    machine.receive_data(message(stream_id, ACK, uint32(7)))
    assert machine.credit(stream_id) == 17


@BOTH_ROLES
@EITHER_OPENER
def test_ack_for_a_stream_out_of_credit_is_reported(role: Role, local: bool) -> None:
    machine, stream_id = opened(role, local=local, credit=2)
    machine.send_data(stream_id, b"ab")
    machine.receive_data(message(stream_id, ACK, uint32(1)))
    assert machine.events() == [CreditGranted(stream_id)]


@BOTH_ROLES
@EITHER_OPENER
def test_ack_for_a_stream_with_credit_is_not_reported(role: Role, local: bool) -> None:
    machine, stream_id = opened(role, local=local, credit=2)
    machine.receive_data(message(stream_id, ACK, uint32(1)))
    assert machine.events() == []


@BOTH_ROLES
def test_ack_of_zero_is_not_reported(role: Role) -> None:
    machine, stream_id = opened(role, local=False, credit=0)
    machine.receive_data(message(stream_id, ACK, uint32(0)))
    assert machine.events() == []


@BOTH_ROLES
@EITHER_OPENER
def test_ack_of_zero_is_charged_as_a_message_that_changes_nothing(role: Role, local: bool) -> None:
    machine, stream_id = opened(role, local=local, max_empty_frames=1)
    wire = message(stream_id, ACK, uint32(0))
    machine.receive_data(wire)
    assert machine.empty_messages == 1
    with pytest.raises(FrameError, match="frames that change nothing"):
        machine.receive_data(wire)


@BOTH_ROLES
def test_ack_of_zero_that_answers_a_stream_is_no_empty_message(role: Role) -> None:
    machine = native(role)
    machine.receive_data(message(machine.open_stream(), ACK, uint32(0)))
    assert machine.empty_messages == 0


@BOTH_ROLES
def test_ack_for_a_closed_half_is_not_reported(role: Role) -> None:
    machine, stream_id = opened(role, local=False, credit=0)
    machine.close_write(stream_id, 0.0)
    machine.receive_data(message(stream_id, ACK, uint32(5)))
    assert machine.events() == []


@BOTH_ROLES
def test_credit_up_to_32_bits_is_taken(role: Role) -> None:
    machine, stream_id = opened(role, local=True, credit=2**32 - 2)
    machine.receive_data(message(stream_id, ACK, uint32(1)))
    assert machine.credit(stream_id) == 2**32 - 1


@BOTH_ROLES
def test_credit_of_an_unknown_stream_is_zero(role: Role) -> None:
    assert native(role).credit(id_of(role)) == 0


@BOTH_ROLES
@EITHER_OPENER
def test_less_than_half_a_window_read_is_not_acknowledged(role: Role, local: bool) -> None:
    machine, stream_id = opened(role, local=local, receive_window=10)
    machine.receive_data(message(stream_id, DATA, b"x" * 10))
    machine.consumed(stream_id, 4)
    assert outbox(machine) == []


@BOTH_ROLES
@EITHER_OPENER
def test_half_a_window_read_is_acknowledged_as_a_sum(role: Role, local: bool) -> None:
    machine, stream_id = opened(role, local=local, receive_window=10)
    machine.receive_data(message(stream_id, DATA, b"x" * 10))
    machine.consumed(stream_id, 4)
    machine.consumed(stream_id, 2)
    assert outbox(machine) == [message(stream_id, ACK, uint32(6))]


@BOTH_ROLES
def test_acknowledged_bytes_may_be_sent_again(role: Role) -> None:
    machine, stream_id = opened(role, local=True, receive_window=10)
    machine.receive_data(message(stream_id, DATA, b"x" * 10))
    machine.consumed(stream_id, 5)
    machine.receive_data(message(stream_id, DATA, b"y" * 5))
    assert machine.events()[-1] == DataReceived(stream_id, b"y" * 5)


@BOTH_ROLES
@BOTH_DIALECTS
def test_reading_after_the_peers_close_returns_no_credit(role: Role, dialect: Dialect) -> None:
    machine, stream_id = opened(role, local=False, dialect=dialect, receive_window=4)
    machine.receive_data(message(stream_id, DATA, b"abcd", dialect))
    machine.receive_data(message(stream_id, CLOSE, READ, dialect))
    outbox(machine)
    machine.consumed(stream_id, 4)
    assert outbox(machine) == []


@BOTH_ROLES
def test_reading_from_an_unknown_stream_returns_no_credit(role: Role) -> None:
    machine = native(role)
    machine.consumed(id_of(role), 4)
    assert outbox(machine) == []


# Data


@BOTH_ROLES
@EITHER_OPENER
def test_whole_window_may_arrive_unread(role: Role, local: bool) -> None:
    machine, stream_id = opened(role, local=local, receive_window=4)
    machine.receive_data(message(stream_id, DATA, b"abcd"))
    assert machine.events() == [DataReceived(stream_id, b"abcd")]


@BOTH_ROLES
@EITHER_OPENER
def test_empty_data_is_counted_and_not_reported(role: Role, local: bool) -> None:
    machine, stream_id = opened(role, local=local)
    for _ in range(3):
        machine.receive_data(message(stream_id, DATA))
    assert (machine.empty_messages, machine.events(), outbox(machine)) == (3, [], [])


@BOTH_ROLES
@pytest.mark.parametrize("kind", [bytearray, memoryview])
def test_received_data_outlives_the_buffer_it_came_in(role: Role, kind: type) -> None:
    machine, stream_id = opened(role, local=True)
    buffer = bytearray(message(stream_id, DATA, b"hello"))
    machine.receive_data(kind(buffer))
    buffer[:] = bytes(len(buffer))
    assert machine.events() == [DataReceived(stream_id, b"hello")]


@BOTH_ROLES
@pytest.mark.parametrize("wire", ["40{:02x}", "800000{:02x}", "c0000000000000{:02x}"])
def test_longer_forms_of_an_id_mean_the_same_stream(role: Role, wire: str) -> None:
    machine, stream_id = opened(role, local=True)
    machine.receive_data(of(wire.format(stream_id) + "00 6869"))
    assert machine.events() == [DataReceived(stream_id, b"hi")]


@BOTH_ROLES
def test_longer_form_of_a_code_is_understood(role: Role) -> None:
    machine, stream_id = opened(role, local=True)
    machine.receive_data(message(stream_id, ERROR, READ + of("8000004d")))
    assert machine.events() == [StreamAborted(stream_id, 77, False, "")]


@BOTH_ROLES
@EITHER_OPENER
def test_overflow_aborts_the_stream_in_the_same_call(role: Role, local: bool) -> None:
    machine, stream_id = opened(role, local=local, receive_window=4)
    machine.receive_data(message(stream_id, DATA, b"abc"))
    machine.events()
    machine.receive_data(message(stream_id, DATA, b"de"))
    assert outbox(machine) == [message(stream_id, ERROR, WRITE + b"\x02")]
    assert machine.events() == [
        StreamAborted(stream_id, 2, True, "the peer sent 2 bytes with 1 bytes of credit")
    ]


@BOTH_ROLES
def test_overflow_leaves_the_writing_half_alone(role: Role) -> None:
    machine, stream_id = opened(role, local=False, receive_window=4)
    machine.receive_data(message(stream_id, DATA, b"abcde"))
    assert machine.send_data(stream_id, b"sorry") == 5


@BOTH_ROLES
def test_overflow_leaves_other_streams_alone(role: Role) -> None:
    machine, stream_id = opened(role, local=False, receive_window=4)
    second = machine.open_stream()
    machine.receive_data(message(stream_id, DATA, b"abcde"))
    machine.receive_data(message(second, DATA, b"good"))
    assert machine.events()[-1] == DataReceived(second, b"good")


@BOTH_ROLES
def test_data_after_an_overflow_is_discarded(role: Role) -> None:
    machine, stream_id = opened(role, local=False, receive_window=4)
    machine.receive_data(message(stream_id, DATA, b"abcde"))
    machine.events()
    outbox(machine)
    machine.receive_data(message(stream_id, DATA, b"more"))
    assert (machine.events(), outbox(machine)) == ([], [])
    with pytest.raises(FlowControlError, match="1 bytes with 0 of credit on stream"):
        machine.receive_data(message(stream_id, DATA, b"!"))


@BOTH_ROLES
def test_overflow_of_a_stream_closed_here_finishes_it(role: Role) -> None:
    machine, stream_id = opened(role, local=False, receive_window=4)
    machine.close_write(stream_id, 0.0)
    machine.receive_data(message(stream_id, DATA, b"abcde"))
    assert machine.events()[-1] == StreamFinished(stream_id)


# Ending the writing half


@BOTH_ROLES
@BOTH_DIALECTS
@BOTH_PUMPS
def test_close_ends_what_the_peer_reads(role: Role, dialect: Dialect, single: bool) -> None:
    near, _, stream_id, pair = opened_pair(role, dialect)
    near.close_write(stream_id, 0.0)
    events = dict(zip(Role, pair.pump(single=single), strict=True))
    assert events == {role: [], other(role): [StreamEnded(stream_id)]}


@BOTH_ROLES
@BOTH_PUMPS
def test_everything_written_before_the_close_arrives_before_it(role: Role, single: bool) -> None:
    near, _, stream_id, pair = opened_pair(role)
    near.send_data(stream_id, b"one")
    near.send_data(stream_id, b"two")
    near.close_write(stream_id, 0.0)
    events = dict(zip(Role, pair.pump(single=single), strict=True))
    assert events[other(role)] == [
        DataReceived(stream_id, b"one"),
        DataReceived(stream_id, b"two"),
        StreamEnded(stream_id),
    ]


@BOTH_ROLES
def test_half_closed_stream_still_carries_the_other_way(role: Role) -> None:
    near, far, stream_id, pair = opened_pair(role)
    near.close_write(stream_id, 0.0)
    pair.pump()
    far.send_data(stream_id, b"answer")
    events = dict(zip(Role, pair.pump(), strict=True))
    assert events[role] == [DataReceived(stream_id, b"answer")]


@BOTH_ROLES
@BOTH_DIALECTS
def test_stream_is_forgotten_by_both_after_both_closes(role: Role, dialect: Dialect) -> None:
    near, far, stream_id, pair = opened_pair(role, dialect)
    near.close_write(stream_id, 0.0)
    pair.pump()
    far.close_write(stream_id, 0.0)
    events = dict(zip(Role, pair.pump(), strict=True))
    assert events[role] == [StreamEnded(stream_id), StreamFinished(stream_id)]
    assert events[other(role)] == [StreamFinished(stream_id)]
    assert (near.open_streams(), far.open_streams()) == (0, 0)


@BOTH_ROLES
@EITHER_OPENER
def test_close_is_answered_once(role: Role, local: bool) -> None:
    machine, stream_id = opened(role, local=local)
    for _ in range(3):
        machine.receive_data(message(stream_id, CLOSE, READ))
    assert outbox(machine) == [message(stream_id, CLOSE, WRITE)]
    assert machine.events() == [StreamEnded(stream_id)]


@BOTH_ROLES
@EITHER_OPENER
def test_echo_of_a_close_is_not_reported(role: Role, local: bool) -> None:
    machine, stream_id = opened(role, local=local)
    machine.close_write(stream_id, 0.0)
    outbox(machine)
    machine.receive_data(message(stream_id, CLOSE, WRITE))
    assert (machine.events(), outbox(machine)) == ([], [])


@BOTH_ROLES
def test_closing_twice_sends_once(role: Role) -> None:
    machine, stream_id = opened(role, local=True)
    machine.close_write(stream_id, 0.0)
    machine.close_write(stream_id, 0.0)
    assert outbox(machine) == [message(stream_id, CLOSE, READ)]


@BOTH_ROLES
def test_native_close_does_not_wait_for_acknowledgement(role: Role) -> None:
    machine, stream_id = opened(role, local=True)
    machine.send_data(stream_id, b"unacknowledged")
    machine.close_write(stream_id, 0.0)
    assert outbox(machine)[-1] == message(stream_id, CLOSE, READ)
    assert (machine.pending_closes(), machine.next_timer()) == (0, None)


@BOTH_ROLES
@pytest.mark.parametrize(
    "ending", ["close_write", "reset_write", "peer_stop"], ids=["closed", "reset", "stopped"]
)
def test_ended_writing_half_takes_no_data(role: Role, ending: str) -> None:
    machine, stream_id = opened(role, local=True)
    if ending == "close_write":
        machine.close_write(stream_id, 0.0)
    elif ending == "reset_write":
        machine.reset_write(stream_id, 64)
    else:
        machine.receive_data(message(stream_id, CLOSE, WRITE))
    outbox(machine)
    with pytest.raises(LocalProtocolError, match=f"writing half of stream {stream_id} has ended"):
        machine.send_data(stream_id, b"late")
    assert outbox(machine) == []


@BOTH_ROLES
def test_unknown_stream_takes_no_data(role: Role) -> None:
    with pytest.raises(LocalProtocolError, match="has ended"):
        native(role).send_data(id_of(role), b"x")


@BOTH_ROLES
@BOTH_DIALECTS
@BOTH_PUMPS
def test_abort_reaches_the_reader_with_its_code(role: Role, dialect: Dialect, single: bool) -> None:
    near, _, stream_id, pair = opened_pair(role, dialect)
    near.reset_write(stream_id, 4001)
    events = dict(zip(Role, pair.pump(single=single), strict=True))
    assert events == {role: [], other(role): [StreamAborted(stream_id, 4001, False, "")]}


@each_case
@BOTH_ROLES
@EITHER_OPENER
@pytest.mark.parametrize("code", [0, 1, 2, 64, 2**62 - 1])
def test_abort_is_answered_once_with_the_same_code(role: Role, local: bool, code: int) -> None:
    machine, stream_id = opened(role, local=local)
    body = code.to_bytes(1, "big") if code < 64 else (code | 3 << 62).to_bytes(8, "big")
    shortest = of("4040") if code == 64 else body
    for _ in range(2):
        machine.receive_data(message(stream_id, ERROR, READ + body))
    assert outbox(machine) == [message(stream_id, ERROR, WRITE + shortest)]
    assert machine.events() == [StreamAborted(stream_id, code, False, "")]


@BOTH_ROLES
def test_abort_after_close_sends_nothing(role: Role) -> None:
    machine, stream_id = opened(role, local=True)
    machine.close_write(stream_id, 0.0)
    outbox(machine)
    machine.reset_write(stream_id, 64)
    assert outbox(machine) == []


@BOTH_ROLES
def test_abort_twice_sends_once(role: Role) -> None:
    machine, stream_id = opened(role, local=True)
    machine.reset_write(stream_id, 64)
    machine.reset_write(stream_id, 65)
    assert outbox(machine) == [message(stream_id, ERROR, READ + of("4040"))]


@each_case
@BOTH_ROLES
@EITHER_OPENER
@BOTH_DIALECTS
@pytest.mark.parametrize("call", ["close_write", "reset_write"])
def test_ending_the_writing_half_last_finishes_without_an_echo(
    role: Role, local: bool, dialect: Dialect, call: str
) -> None:
    machine, stream_id = opened(role, local=local, dialect=dialect)
    machine.receive_data(message(stream_id, CLOSE, READ, dialect))
    machine.events()
    getattr(machine, call)(stream_id, 70)
    assert (machine.events(), machine.open_streams()) == ([StreamFinished(stream_id)], 0)


@BOTH_ROLES
@EITHER_OPENER
@BOTH_DIALECTS
def test_ending_the_reading_half_last_finishes_without_an_echo(
    role: Role, local: bool, dialect: Dialect
) -> None:
    machine, stream_id = opened(role, local=local, dialect=dialect)
    machine.close_write(stream_id, 0.0)
    machine.close_read(stream_id)
    assert (machine.events(), machine.open_streams()) == ([StreamFinished(stream_id)], 0)


# Ending the reading half


@BOTH_ROLES
@BOTH_PUMPS
def test_reading_no_further_stops_the_writer_without_an_error(role: Role, single: bool) -> None:
    near, far, stream_id, pair = opened_pair(role)
    near.close_read(stream_id)
    events = dict(zip(Role, pair.pump(single=single), strict=True))
    assert events == {role: [], other(role): [WriteStopped(stream_id, None)]}
    assert (near.open_streams(), far.open_streams()) == (1, 1)


@BOTH_ROLES
@EITHER_OPENER
def test_stop_without_an_error_is_answered_with_close(role: Role, local: bool) -> None:
    machine, stream_id = opened(role, local=local)
    for _ in range(2):
        machine.receive_data(message(stream_id, CLOSE, WRITE))
    assert outbox(machine) == [message(stream_id, CLOSE, READ)]
    assert machine.events() == [WriteStopped(stream_id, None)]


@BOTH_ROLES
@BOTH_DIALECTS
@BOTH_PUMPS
def test_refused_input_stops_the_writer_with_its_code(
    role: Role, dialect: Dialect, single: bool
) -> None:
    near, _, stream_id, pair = opened_pair(role, dialect)
    near.reset_read(stream_id, 77)
    events = dict(zip(Role, pair.pump(single=single), strict=True))
    assert events == {role: [], other(role): [WriteStopped(stream_id, 77)]}


@BOTH_ROLES
@EITHER_OPENER
@BOTH_DIALECTS
def test_stop_with_an_error_is_answered_once_with_its_code(
    role: Role, local: bool, dialect: Dialect
) -> None:
    machine, stream_id = opened(role, local=local, dialect=dialect)
    for _ in range(2):
        machine.receive_data(message(stream_id, ERROR, WRITE + of("404d"), dialect))
    assert outbox(machine) == [message(stream_id, ERROR, READ + of("404d"), dialect)]
    assert machine.events() == [WriteStopped(stream_id, 77)]


@BOTH_ROLES
def test_stopping_twice_sends_once(role: Role) -> None:
    machine, stream_id = opened(role, local=True)
    machine.close_read(stream_id)
    machine.reset_read(stream_id, 64)
    assert outbox(machine) == [message(stream_id, CLOSE, WRITE)]


@BOTH_ROLES
def test_stopping_after_the_peers_close_sends_nothing(role: Role) -> None:
    machine, stream_id = opened(role, local=True)
    machine.receive_data(message(stream_id, CLOSE, READ))
    outbox(machine)
    machine.close_read(stream_id)
    assert outbox(machine) == []


@BOTH_ROLES
@pytest.mark.parametrize("call", ["close_read", "close_write", "reset_read", "reset_write"])
def test_ending_an_unknown_stream_sends_nothing(role: Role, call: str) -> None:
    machine = native(role)
    before = snapshot(machine)
    arguments = {"close_write": (0.0,), "reset_read": (64,), "reset_write": (64,)}
    getattr(machine, call)(id_of(role), *arguments.get(call, ()))
    assert snapshot(machine) == before


@BOTH_ROLES
@EITHER_OPENER
def test_data_after_a_local_cancel_is_discarded(role: Role, local: bool) -> None:
    machine, stream_id = opened(role, local=local, receive_window=4)
    machine.reset_read(stream_id, 64)
    outbox(machine)
    for _ in range(4):
        machine.receive_data(message(stream_id, DATA, b"x"))
    machine.receive_data(message(stream_id, DATA))
    machine.consumed(stream_id, 4)
    assert (machine.events(), outbox(machine), machine.empty_messages) == ([], [], 1)
    with pytest.raises(FlowControlError, match="1 bytes with 0 of credit on stream"):
        machine.receive_data(message(stream_id, DATA, b"x"))


@BOTH_ROLES
@EITHER_OPENER
@pytest.mark.parametrize(
    ("kind", "body"), [(CLOSE, READ), (ERROR, READ + b"\x05")], ids=["close", "error"]
)
def test_end_of_a_cancelled_half_is_neither_answered_nor_reported(
    role: Role, local: bool, kind: int, body: bytes
) -> None:
    machine, stream_id = opened(role, local=local)
    machine.reset_read(stream_id, 64)
    outbox(machine)
    machine.receive_data(message(stream_id, kind, body))
    assert (machine.events(), outbox(machine)) == ([], [])


# Finished streams


def finished(role: Role, *, local: bool, dialect: Dialect = WSMUX_V1) -> tuple[NativeProtocol, int]:
    """Return a machine with the id of a stream that both ends have closed."""
    machine, stream_id = opened(role, local=local, dialect=dialect)
    machine.close_write(stream_id, 0.0)
    machine.receive_data(message(stream_id, CLOSE, READ, dialect))
    assert machine.open_streams() == 0
    machine.events()
    outbox(machine)
    return machine, stream_id


def cancelled(role: Role, *, local: bool, **limits: Any) -> tuple[NativeProtocol, int]:
    """Return a machine with the id of a stream that it has ended in both directions."""
    machine, stream_id = opened(role, local=local, **limits)
    machine.reset_write(stream_id, 64)
    machine.reset_read(stream_id, 64)
    assert machine.open_streams() == 0
    machine.events()
    outbox(machine)
    return machine, stream_id


@each_case
@BOTH_ROLES
@EITHER_OPENER
@BOTH_DIALECTS
@pytest.mark.parametrize(
    ("kind", "body"),
    [
        pytest.param(ACK, uint32(5), id="ack"),
        pytest.param(ACK, uint32(2**32 - 1), id="large-ack"),
        pytest.param(CLOSE, READ, id="close-read"),
        pytest.param(CLOSE, WRITE, id="close-write"),
        pytest.param(ERROR, READ + b"\x05", id="error-read"),
        pytest.param(ERROR, WRITE + b"\x05", id="error-write"),
    ],
)
def test_late_message_on_a_finished_id_is_ignored(
    role: Role, local: bool, dialect: Dialect, kind: int, body: bytes
) -> None:
    machine, stream_id = finished(role, local=local, dialect=dialect)
    before = snapshot(machine)
    machine.receive_data(message(stream_id, kind, body, dialect))
    assert snapshot(machine) == before


@BOTH_ROLES
@EITHER_OPENER
def test_data_on_a_cancelled_and_finished_id_is_discarded(role: Role, local: bool) -> None:
    machine, stream_id = cancelled(role, local=local)
    before = snapshot(machine)
    machine.receive_data(message(stream_id, DATA, b"in flight"))
    assert machine._stopped == {stream_id: before["_stopped"].pop(stream_id) - 9}
    machine._stopped.clear()
    assert snapshot(machine) == before


@BOTH_ROLES
@EITHER_OPENER
def test_data_past_the_credit_of_a_cancelled_id_ends_the_connection(
    role: Role, local: bool
) -> None:
    machine, stream_id = cancelled(role, local=local)
    (credit,) = machine._stopped.values()
    machine.receive_data(message(stream_id, DATA, bytes(credit)))
    with pytest.raises(FlowControlError, match="1 bytes with 0 of credit on stream"):
        machine.receive_data(message(stream_id, DATA, b"x"))


@each_case
@BOTH_ROLES
@EITHER_OPENER
@pytest.mark.parametrize(
    ("kind", "body"), [(ACK, uint32(5)), (CLOSE, WRITE), (ERROR, WRITE + b"\x05")]
)
def test_cancelled_id_is_kept_while_the_peer_may_write(
    role: Role, local: bool, kind: int, body: bytes
) -> None:
    machine, stream_id = cancelled(role, local=local)
    before = snapshot(machine)
    machine.receive_data(message(stream_id, kind, body))
    assert snapshot(machine) == before


@BOTH_ROLES
@EITHER_OPENER
@pytest.mark.parametrize(
    ("kind", "body"), [(CLOSE, READ), (ERROR, READ + b"\x05")], ids=["close", "error"]
)
def test_cancelled_id_is_dropped_when_the_peer_ends_its_half(
    role: Role, local: bool, kind: int, body: bytes
) -> None:
    machine, stream_id = cancelled(role, local=local)
    machine.receive_data(message(stream_id, kind, body))
    assert stream_id not in machine._stopped
    assert (machine.events(), outbox(machine)) == ([], [])


@BOTH_ROLES
def test_cancelled_ids_are_bounded_and_the_oldest_is_dropped(role: Role) -> None:
    machine, first = cancelled(role, local=True, max_cancelled=2)
    for _ in range(2):
        stream_id = machine.open_stream()
        machine.refuse(stream_id, 64)
    assert list(machine._stopped) == [first + 2, first + 4]


def test_no_more_than_1024_cancelled_ids_are_kept() -> None:
    machine = native(Role.CLIENT)
    for _ in range(1030):
        machine.refuse(machine.open_stream(), 64)
    assert len(machine._stopped) == 1024


@BOTH_ROLES
@BOTH_DIALECTS
def test_both_ends_forget_a_stream_reset_in_both_directions(role: Role, dialect: Dialect) -> None:
    near, far, stream_id, pair = opened_pair(role, dialect)
    near.reset_write(stream_id, 99)
    near.reset_read(stream_id, 99)
    events = dict(zip(Role, pair.pump(), strict=True))
    assert events[role] == [StreamFinished(stream_id)]
    assert set(events[other(role)]) == {
        WriteStopped(stream_id, 99),
        StreamAborted(stream_id, 99, False, ""),
        StreamFinished(stream_id),
    }
    assert (near.open_streams(), far.open_streams(), near._stopped) == (0, 0, {})


@BOTH_ROLES
def test_stream_ended_before_its_answer_is_forgotten_by_both(role: Role) -> None:
    pair = native_pair()
    stream_id = pair[role].open_stream()
    pair[role].refuse(stream_id, 99)
    pair.pump()
    assert (pair[role].open_streams(), pair[other(role)].open_streams()) == (0, 0)


# Refusing


def refused(role: Role, dialect: Dialect = WSMUX_V1) -> tuple[list[Event], NativeProtocol]:
    """Return what the opener, of ``role``, hears of a stream refused by its peer."""
    opener, peer = native(role, dialect), native(other(role), dialect)
    opener.open_stream()
    while sent := outbox(opener):
        for wire in sent:
            peer.receive_data(wire)
        for event in peer.events():
            if isinstance(event, StreamOpened):
                peer.refuse(event.stream_id, peer.refused_code)
        for wire in outbox(peer):
            opener.receive_data(wire)
    assert (opener.open_streams(), peer.open_streams(), peer._stopped) == (0, 0, {})
    return opener.events(), opener


@BOTH_ROLES
def test_refusal_ends_both_halves_with_code_3_and_gives_no_credit(role: Role) -> None:
    machine = native(role)
    stream_id = id_of(other(role))
    machine.receive_data(message(stream_id, ACK, uint32(9)))
    machine.refuse(stream_id, machine.refused_code)
    assert outbox(machine) == [
        message(stream_id, ERROR, WRITE + b"\x03"),
        message(stream_id, ERROR, READ + b"\x03"),
    ]


@BOTH_ROLES
def test_refusal_reaches_the_opener(role: Role) -> None:
    events, _ = refused(role)
    assert StreamRejected(id_of(role), 3, "nobody took it there") in events


@BOTH_ROLES
@pytest.mark.parametrize("direction", [READ, WRITE], ids=["read", "write"])
def test_code_3_for_either_half_rejects_the_stream(role: Role, direction: bytes) -> None:
    machine = native(role)
    stream_id = machine.open_stream()
    machine.receive_data(message(stream_id, ERROR, direction + b"\x03"))
    assert machine.events() == [StreamRejected(stream_id, 3, "nobody took it there")]


@BOTH_ROLES
@BOTH_DIALECTS
def test_the_stream_behind_too_many_refused_ones_is_a_flood(role: Role, dialect: Dialect) -> None:
    machine = native(role, dialect, max_resets=1)
    for index in range(2):
        stream_id = id_of(other(role), index)
        machine.receive_data(message(stream_id, ACK, uint32(9), dialect))
        machine.refuse(stream_id, machine.refused_code)
    with pytest.raises(FrameError, match="streams that had to be refused"):
        machine.receive_data(message(id_of(other(role), 2), ACK, uint32(9), dialect))


@BOTH_ROLES
def test_a_stream_is_refused_once(role: Role) -> None:
    machine = native(role, max_resets=1)
    machine.receive_data(message(id_of(other(role)), ACK, uint32(9)))
    for _ in range(3):
        machine.refuse(id_of(other(role)), 3)
    machine.receive_data(message(id_of(other(role), 1), ACK, uint32(9)))
    assert machine.open_streams() == 1


@BOTH_ROLES
def test_refusal_of_the_shipped_dialect_looks_like_code_0(role: Role) -> None:
    events, _ = refused(role, JS_WS)
    stream_id = id_of(role)
    assert events == [
        WriteStopped(stream_id, 0),
        StreamAborted(stream_id, 0, False, ""),
        StreamFinished(stream_id),
    ]


@BOTH_ROLES
def test_code_3_on_a_stream_of_the_peer_is_no_refusal(role: Role) -> None:
    machine, stream_id = opened(role, local=False)
    machine.receive_data(message(stream_id, ERROR, READ + b"\x03"))
    assert machine.events() == [StreamAborted(stream_id, 3, False, "")]


# Going away


@BOTH_ROLES
def test_going_away_names_the_first_id_not_handled(role: Role) -> None:
    machine, stream_id = opened(role, local=False)
    machine.go_away(0)
    assert outbox(machine) == [message(stream_id + 2, GO_AWAY, b"\x00")]


@BOTH_ROLES
def test_going_away_before_any_stream_names_the_first_id(role: Role) -> None:
    machine = native(role)
    machine.go_away(0)
    assert outbox(machine) == [message(id_of(other(role)), GO_AWAY, b"\x00")]


@BOTH_ROLES
def test_going_away_twice_sends_once(role: Role) -> None:
    machine = native(role)
    machine.go_away(0)
    machine.go_away(5)
    assert len(outbox(machine)) == 1


@BOTH_ROLES
@BOTH_PUMPS
def test_going_away_is_reported_and_running_streams_go_on(role: Role, single: bool) -> None:
    near, far, stream_id, pair = opened_pair(role)
    far.go_away(70)
    near.send_data(stream_id, b"still here")
    events = dict(zip(Role, pair.pump(single=single), strict=True))
    assert events[role] == [GoAwayReceived(stream_id + 2, 70)]
    assert events[other(role)] == [DataReceived(stream_id, b"still here")]


@BOTH_ROLES
def test_no_stream_is_opened_towards_a_peer_that_goes_away(role: Role) -> None:
    machine = native(role)
    machine.receive_data(message(id_of(role), GO_AWAY, b"\x00"))
    with pytest.raises(LocalProtocolError, match="going away"):
        machine.open_stream()


@BOTH_ROLES
def test_waiting_openers_are_let_through_to_hear_that_the_peer_goes_away(role: Role) -> None:
    machine = native(role, max_pending_opens=1)
    machine.open_stream()
    machine.receive_data(message(id_of(role, 1), GO_AWAY, b"\x00"))
    assert machine.may_open()


@BOTH_ROLES
def test_side_that_goes_away_may_still_open(role: Role) -> None:
    pair = native_pair()
    pair[role].go_away(0)
    pair.pump()
    stream_id = pair[role].open_stream()
    events = dict(zip(Role, pair.pump(), strict=True))
    assert events[role] == [CreditGranted(stream_id)]


@BOTH_ROLES
def test_streams_not_handled_are_rejected_and_forgotten(role: Role) -> None:
    machine, first = opened(role, local=True)
    second = machine.open_stream()
    outbox(machine)
    machine.receive_data(message(second, GO_AWAY, b"\x05"))
    assert machine.events() == [
        GoAwayReceived(second, 5),
        StreamRejected(second, 5, "the peer is going away"),
        StreamFinished(second),
    ]
    assert (list(machine._streams), outbox(machine)) == ([first], [])


@BOTH_ROLES
def test_half_cancelled_stream_not_handled_is_forgotten_for_good(role: Role) -> None:
    machine = native(role)
    stream_id = machine.open_stream()
    machine.reset_read(stream_id, 64)
    machine.receive_data(message(stream_id, GO_AWAY, b"\x00"))
    assert (machine.open_streams(), machine._stopped) == (0, {})


@each_case
@BOTH_ROLES
@pytest.mark.parametrize(
    ("kind", "body"),
    [
        pytest.param(ACK, uint32(9), id="ack"),
        pytest.param(CLOSE, READ, id="close-read"),
        pytest.param(CLOSE, WRITE, id="close-write"),
        pytest.param(ERROR, READ + b"\x05", id="error-read"),
        pytest.param(ERROR, WRITE + b"\x05", id="error-write"),
    ],
)
def test_streams_opened_behind_a_going_away_are_ignored(role: Role, kind: int, body: bytes) -> None:
    machine = native(role)
    machine.go_away(0)
    outbox(machine)
    before = snapshot(machine)
    machine.receive_data(message(id_of(other(role), 3), kind, body))
    assert snapshot(machine) == before


@BOTH_ROLES
@pytest.mark.parametrize("refuses", ["going away", "refused"])
def test_what_is_early_on_a_stream_that_is_not_taken_is_dropped(role: Role, refuses: str) -> None:
    machine = native(role, receive_window=5)
    stream_id = id_of(other(role), 3)
    if refuses == "going away":
        machine.go_away(0)
    machine.receive_data(message(stream_id, ACK, uint32(9)))
    if refuses == "refused":
        machine.refuse(stream_id, 3)
    machine.events()
    for _ in range(5):
        machine.receive_data(message(stream_id, DATA, b"x"))
    assert machine.events() == []
    with pytest.raises(FlowControlError, match="1 bytes with 0 of credit on stream"):
        machine.receive_data(message(stream_id, DATA, b"x"))


@each_case
@BOTH_ROLES
@pytest.mark.parametrize("announced", ["in an answer", "in an opening"])
@pytest.mark.parametrize("window", [7, SMALLEST_WINDOW, SMALLEST_WINDOW + 1])
def test_further_streams_may_be_sent_something_before_they_are_answered(
    role: Role, announced: str, window: int
) -> None:
    machine = native(role)
    first = machine.open_stream()
    assert machine.credit(first) == 0
    said_on = first if announced == "in an answer" else id_of(other(role))
    machine.receive_data(message(said_on, ACK, uint32(window)))
    stream_id = machine.open_stream()
    early = min(window, SMALLEST_WINDOW)
    assert machine.credit(stream_id) == early
    assert machine.send_data(stream_id, b"early") == 5
    machine.events()
    machine.receive_data(message(stream_id, ACK, uint32(window)))
    assert machine.credit(stream_id) == window - 5
    assert machine.events() == []


@BOTH_ROLES
def test_the_smallest_window_is_what_may_be_early(role: Role) -> None:
    machine = native(role)
    for count, window in enumerate((100, 20, 60)):
        machine.receive_data(message(id_of(other(role), count), ACK, uint32(window)))
    assert machine.credit(machine.open_stream()) == 20


@BOTH_ROLES
def test_a_writer_that_used_up_what_was_early_is_told_of_the_answer(role: Role) -> None:
    machine, _ = opened(role, local=False, credit=4)
    stream_id = machine.open_stream()
    assert machine.send_data(stream_id, b"12345") == 4
    machine.events()
    machine.receive_data(message(stream_id, ACK, uint32(6)))
    assert (machine.credit(stream_id), machine.events()) == (2, [CreditGranted(stream_id)])


@BOTH_ROLES
def test_what_came_before_a_late_answer_is_part_of_its_window(role: Role) -> None:
    machine = native(role, receive_window=SMALLEST_WINDOW + 10)
    stream_id = id_of(other(role))
    machine.receive_data(message(stream_id, ACK, uint32(9)))
    machine.receive_data(message(stream_id, DATA, bytes(SMALLEST_WINDOW)))
    machine.accept(stream_id, SMALLEST_WINDOW + 10)
    assert outbox(machine) == [message(stream_id, ACK, uint32(SMALLEST_WINDOW + 10))]
    machine.receive_data(message(stream_id, DATA, bytes(10)))
    assert machine.peer_credit(stream_id) == 0
    machine.consumed(stream_id, SMALLEST_WINDOW + 10)
    assert machine.peer_credit(stream_id) == SMALLEST_WINDOW + 10


@BOTH_ROLES
def test_a_stream_that_ended_before_its_answer_gets_none(role: Role) -> None:
    machine = native(role)
    stream_id = id_of(other(role))
    machine.receive_data(message(stream_id, ACK, uint32(9)))
    machine.receive_data(message(stream_id, CLOSE, READ))
    machine.receive_data(message(stream_id, CLOSE, WRITE))
    outbox(machine)
    machine.accept(stream_id, 100)
    assert outbox(machine) == []


@BOTH_ROLES
@pytest.mark.parametrize("first", [5, 10, 20])
def test_the_first_window_is_a_promise_for_every_stream(role: Role, first: int) -> None:
    machine = native(role, receive_window=10)
    machine.open_stream(first)
    machine.receive_data(message(id_of(other(role)), ACK, uint32(9)))
    outbox(machine)
    machine.receive_data(message(id_of(other(role)), DATA, bytes(first)))
    assert outbox(machine) == []
    machine.receive_data(message(id_of(other(role)), DATA, b"x"))
    assert outbox(machine) == [message(id_of(other(role)), ERROR, WRITE + b"\x02")]


@BOTH_ROLES
@pytest.mark.parametrize(
    ("first", "second", "advice"),
    [
        (10, 9, "announce 10"),
        (10, 11, "announce 10"),
        (SMALLEST_WINDOW, SMALLEST_WINDOW - 1, f"announce {SMALLEST_WINDOW} or more"),
        (MIB, SMALLEST_WINDOW - 1, f"announce {SMALLEST_WINDOW} or more"),
    ],
)
def test_a_window_that_breaks_the_promise_is_not_announced(
    role: Role, first: int, second: int, advice: str
) -> None:
    machine = native(role)
    machine.open_stream(first)
    stream_id = id_of(other(role))
    machine.receive_data(message(stream_id, ACK, uint32(9)))
    before = snapshot(machine)
    for announce in (machine.open_stream, lambda window: machine.accept(stream_id, window)):
        with pytest.raises(LocalProtocolError, match=f"{advice}$"):
            announce(second)
    assert snapshot(machine) == before


@BOTH_ROLES
@pytest.mark.parametrize("windows", [(SMALLEST_WINDOW, MIB), (MIB, SMALLEST_WINDOW), (7, 7)])
def test_windows_that_keep_the_promise_are_announced(role: Role, windows: tuple[int, int]) -> None:
    machine = native(role)
    streams = [machine.open_stream(window) for window in windows]
    assert outbox(machine) == [
        message(stream_id, ACK, uint32(window))
        for stream_id, window in zip(streams, windows, strict=True)
    ]


@BOTH_ROLES
def test_js_ws_streams_wait_for_their_answer(role: Role) -> None:
    machine, _ = opened(role, local=False, credit=9, dialect=JS_WS)
    assert machine.credit(machine.open_stream()) == 0


@BOTH_ROLES
def test_stopping_to_read_is_no_reset_in_js_ws(role: Role) -> None:
    machine = native(role, JS_WS, max_resets=1)
    for index in range(5):
        stream_id = id_of(other(role), index)
        machine.receive_data(message(stream_id, ACK, uint32(9), JS_WS))
        machine.receive_data(message(stream_id, CLOSE, READ, JS_WS))
        machine.receive_data(message(stream_id, ERROR, WRITE + b"\x00", JS_WS))
    assert machine.open_streams() == 0


@BOTH_ROLES
@BOTH_DIALECTS
def test_a_stream_that_is_reset_in_both_directions_is_charged_once(
    role: Role, dialect: Dialect
) -> None:
    machine = native(role, dialect, max_resets=1)
    first, second = (id_of(other(role), index) for index in range(2))
    for stream_id in (first, second):
        machine.receive_data(message(stream_id, ACK, uint32(9), dialect))
    for direction in (READ, WRITE):
        machine.receive_data(message(first, ERROR, direction + b"\x05", dialect))
    assert machine.open_streams() == 1
    with pytest.raises(FrameError, match="too many resets: Config.max_resets is 1"):
        machine.receive_data(message(second, ERROR, READ + b"\x05", dialect))


@BOTH_ROLES
@BOTH_DIALECTS
def test_resets_of_streams_opened_here_are_not_charged(role: Role, dialect: Dialect) -> None:
    machine = native(role, dialect, max_resets=1)
    for _ in range(5):
        stream_id = machine.open_stream()
        for direction in (READ, WRITE):
            machine.receive_data(message(stream_id, ERROR, direction + b"\x05", dialect))
    assert machine.open_streams() == 0


@BOTH_ROLES
@pytest.mark.parametrize("end", [READ + b"\x00", WRITE + b"\x01"])
def test_other_errors_are_resets_in_js_ws(role: Role, end: bytes) -> None:
    machine = native(role, JS_WS, max_resets=1)
    stream_ids = [id_of(other(role), index) for index in range(2)]
    for stream_id in stream_ids:
        machine.receive_data(message(stream_id, ACK, uint32(9), JS_WS))
    machine.receive_data(message(stream_ids[0], ERROR, end, JS_WS))
    with pytest.raises(FrameError, match="Config.max_resets is 1"):
        machine.receive_data(message(stream_ids[1], ERROR, end, JS_WS))


@BOTH_ROLES
def test_what_was_opened_and_written_before_a_going_away_was_heard_is_borne(role: Role) -> None:
    machine = native(role)
    machine.go_away(0)
    outbox(machine)
    for index in range(31):
        stream_id = id_of(other(role), index)
        machine.receive_data(message(stream_id, ACK, uint32(9)))
        machine.receive_data(message(stream_id, DATA, b"early"))
        machine.receive_data(message(stream_id, CLOSE, READ))
        machine.receive_data(message(stream_id, CLOSE, WRITE))
    assert (machine.events(), outbox(machine)) == ([], [])


@BOTH_ROLES
def test_openings_behind_a_going_away_that_never_end_are_a_flood(role: Role) -> None:
    machine = native(role, max_resets=20)
    machine.go_away(0)
    for index in range(21):
        machine.receive_data(message(id_of(other(role), index), ACK, uint32(9)))
    with pytest.raises(FrameError, match="Config.max_resets is 20") as error:
        machine.receive_data(message(id_of(other(role), 21), ACK, uint32(9)))
    assert error.value.code == 1008


@BOTH_ROLES
def test_empty_data_behind_a_going_away_is_counted(role: Role) -> None:
    machine = native(role)
    machine.go_away(0)
    machine.receive_data(message(id_of(other(role), 3), DATA))
    assert (machine.empty_messages, machine.events()) == (1, [])


@BOTH_ROLES
def test_stream_opened_while_the_peer_goes_away_ends_on_both_sides(role: Role) -> None:
    pair = native_pair()
    pair[other(role)].go_away(9)
    stream_id = pair[role].open_stream()
    events = dict(zip(Role, pair.pump(), strict=True))
    assert StreamRejected(stream_id, 9, "the peer is going away") in events[role]
    assert events[other(role)] == []
    assert (pair[role].open_streams(), pair[other(role)].open_streams()) == (0, 0)


@BOTH_ROLES
def test_going_away_after_the_last_id_sends_nothing(role: Role) -> None:
    machine = native(role)
    last = 2**62 - (1 if role is Role.CLIENT else 2)
    machine.receive_data((last | 3 << 62).to_bytes(8, "big") + b"\x01" + uint32(1))
    machine.accept(last, 10)
    outbox(machine)
    machine.go_away(0)
    assert outbox(machine) == []


def test_going_away_before_the_last_id_names_it() -> None:
    client = native(Role.CLIENT)
    client.receive_data(of("fffffffffffffffd 01 00000001"))
    client.accept(2**62 - 3, 10)
    outbox(client)
    client.go_away(0)
    assert outbox(client) == [of("ffffffffffffffff 04 00")]


# What may overtake what


@BOTH_ROLES
def test_answers_may_overtake_data(role: Role) -> None:
    machine, stream_id = opened(role, local=True, receive_window=2)
    machine.receive_data(message(stream_id, DATA, b"ab"))
    machine.consumed(stream_id, 2)
    machine.receive_data(message(stream_id, CLOSE, READ))
    assert data(machine) == []
    assert control(machine) == [
        message(stream_id, ACK, uint32(2)),
        message(stream_id, CLOSE, WRITE),
    ]


@BOTH_ROLES
def test_close_does_not_overtake_the_data_before_it(role: Role) -> None:
    machine, stream_id = opened(role, local=True)
    machine.send_data(stream_id, b"last")
    machine.close_write(stream_id, 0.0)
    assert control(machine) == []
    assert data(machine) == [message(stream_id, DATA, b"last"), message(stream_id, CLOSE, READ)]


@BOTH_ROLES
def test_abort_does_not_overtake_the_data_before_it(role: Role) -> None:
    machine, stream_id = opened(role, local=True)
    machine.send_data(stream_id, b"last")
    machine.reset_write(stream_id, 5)
    assert control(machine) == []
    assert data(machine) == [
        message(stream_id, DATA, b"last"),
        message(stream_id, ERROR, READ + b"\x05"),
    ]


@BOTH_ROLES
@pytest.mark.parametrize("body", [b"", b"\x05"], ids=["close", "error"])
def test_answer_to_a_stop_does_not_overtake_the_data_before_it(role: Role, body: bytes) -> None:
    machine, stream_id = opened(role, local=True)
    machine.send_data(stream_id, b"last")
    kind = ERROR if body else CLOSE
    machine.receive_data(message(stream_id, kind, WRITE + body))
    assert control(machine) == []
    assert data(machine) == [
        message(stream_id, DATA, b"last"),
        message(stream_id, kind, READ + body),
    ]


@BOTH_ROLES
def test_stop_may_overtake_data(role: Role) -> None:
    machine, stream_id = opened(role, local=True)
    machine.send_data(stream_id, b"data")
    machine.reset_read(stream_id, 5)
    assert control(machine) == [message(stream_id, ERROR, WRITE + b"\x05")]


@BOTH_ROLES
def test_what_was_taken_to_be_sent_is_taken_once(role: Role) -> None:
    machine = native(role)
    machine.open_stream()
    assert len(outbox(machine)) == 1
    assert outbox(machine) == []


@BOTH_ROLES
def test_a_machine_has_output_until_all_of_it_was_taken(role: Role) -> None:
    machine, stream_id = opened(role, local=True)
    assert machine.has_output() is False
    machine.send_data(stream_id, b"data")
    assert machine.has_output() is True
    data(machine)
    assert machine.has_output() is False
    machine.reset_read(stream_id, 5)
    assert machine.has_output() is True
    control(machine)
    assert machine.has_output() is False


@BOTH_ROLES
def test_nothing_is_ever_incomplete_where_the_carrier_keeps_boundaries(role: Role) -> None:
    machine, _ = opened(role, local=True)
    assert (machine.incomplete(), machine.held()) == (None, 0)


# The dialect of the shipped package


@BOTH_ROLES
def test_shipped_types_have_two_bytes(role: Role) -> None:
    machine = native(role, JS_WS, receive_window=MIB, max_message_size=2 * MIB)
    stream_id = machine.open_stream()
    assert outbox(machine) == [bytes((stream_id,)) + of("0001 00100000")]


@BOTH_ROLES
def test_shipped_window_of_a_stream_opened_here_fits_one_message(role: Role) -> None:
    machine = native(role, JS_WS, receive_window=MIB, max_message_size=MIB)
    stream_id = machine.open_stream()
    assert outbox(machine) == [message(stream_id, ACK, uint32(MIB - 16), JS_WS)]


@BOTH_ROLES
def test_shipped_window_of_a_stream_opened_there_fits_one_message(role: Role) -> None:
    machine = native(role, JS_WS, max_message_size=MIB)
    stream_id = id_of(other(role))
    machine.receive_data(message(stream_id, ACK, uint32(9), JS_WS))
    machine.accept(stream_id, MIB)
    assert outbox(machine) == [message(stream_id, ACK, uint32(MIB - 16), JS_WS)]


@BOTH_ROLES
def test_native_window_may_be_larger_than_a_message(role: Role) -> None:
    machine = native(role, receive_window=MIB, max_message_size=MIB)
    stream_id = machine.open_stream()
    assert outbox(machine) == [message(stream_id, ACK, uint32(MIB))]


@BOTH_ROLES
def test_shipped_close_goes_at_once_when_all_is_acknowledged(role: Role) -> None:
    machine, stream_id = opened(role, local=True, dialect=JS_WS)
    machine.send_data(stream_id, b"ab")
    machine.receive_data(message(stream_id, ACK, uint32(2), JS_WS))
    outbox(machine)
    machine.close_write(stream_id, 100.0)
    assert outbox(machine) == [message(stream_id, CLOSE, READ, JS_WS)]


@BOTH_ROLES
@EITHER_OPENER
def test_shipped_close_waits_for_the_last_acknowledgement(role: Role, local: bool) -> None:
    machine, stream_id = opened(role, local=local, dialect=JS_WS)
    machine.send_data(stream_id, b"ab")
    outbox(machine)
    machine.close_write(stream_id, 100.0)
    machine.receive_data(message(stream_id, ACK, uint32(1), JS_WS))
    assert (outbox(machine), machine.pending_closes()) == ([], 1)
    machine.receive_data(message(stream_id, ACK, uint32(1), JS_WS))
    assert outbox(machine) == [message(stream_id, CLOSE, READ, JS_WS)]
    assert (machine.pending_closes(), machine.next_timer()) == (0, None)


@BOTH_ROLES
def test_shipped_close_between_two_of_ours_goes_out_once_all_is_read(role: Role) -> None:
    near, far, stream_id, pair = opened_pair(role, JS_WS)
    near.send_data(stream_id, b"short")
    near.close_write(stream_id, 0.0)
    pair.pump()
    far.consumed(stream_id, 5)
    events = dict(zip(Role, pair.pump(), strict=True))
    assert events[other(role)] == [StreamEnded(stream_id)]


@BOTH_ROLES
def test_shipped_last_acknowledgement_finishes_a_stream_whose_other_half_has_ended(
    role: Role,
) -> None:
    machine, stream_id = opened(role, local=True, dialect=JS_WS)
    machine.send_data(stream_id, b"x")
    machine.close_write(stream_id, 1.0)
    machine.receive_data(message(stream_id, CLOSE, READ, JS_WS))
    machine.events()
    machine.receive_data(message(stream_id, ACK, uint32(1), JS_WS))
    assert machine.events() == [StreamFinished(stream_id)]


@BOTH_ROLES
def test_shipped_credit_is_returned_once_nothing_is_unread(role: Role) -> None:
    machine, stream_id = opened(role, local=True, dialect=JS_WS)
    machine.receive_data(message(stream_id, DATA, b"abc", JS_WS))
    machine.consumed(stream_id, 2)
    assert outbox(machine) == []
    machine.consumed(stream_id, 1)
    assert outbox(machine) == [message(stream_id, ACK, uint32(3), JS_WS)]


@BOTH_ROLES
def test_shipped_credit_behind_the_own_end_is_returned_by_half_windows(role: Role) -> None:
    machine, stream_id = opened(role, local=False, dialect=JS_WS, receive_window=10)
    machine.close_write(stream_id, 0.0)
    outbox(machine)
    machine.receive_data(message(stream_id, DATA, b"x" * 4, JS_WS))
    machine.consumed(stream_id, 4)
    assert outbox(machine) == []
    machine.receive_data(message(stream_id, DATA, b"x", JS_WS))
    machine.consumed(stream_id, 1)
    assert outbox(machine) == [message(stream_id, ACK, uint32(5), JS_WS)]


@BOTH_ROLES
def test_shipped_answer_to_a_request_ends_once_all_is_read(role: Role) -> None:
    near, far, stream_id, pair = opened_pair(role, JS_WS)
    near.close_write(stream_id, 0.0)
    pair.pump()
    far.send_data(stream_id, b"answer")
    far.close_write(stream_id, 0.0)
    pair.pump()
    near.consumed(stream_id, 6)
    events = dict(zip(Role, pair.pump(), strict=True))
    assert StreamEnded(stream_id) in events[role]


@BOTH_ROLES
def test_shipped_close_waits_no_longer_than_five_seconds(role: Role) -> None:
    machine, stream_id = opened(role, local=True, dialect=JS_WS)
    machine.send_data(stream_id, b"ab")
    outbox(machine)
    machine.close_write(stream_id, 100.0)
    assert machine.next_timer() == 100.0 + JS_WS_CLOSE_DELAY
    machine.handle_timer(104.9)
    assert outbox(machine) == []
    machine.handle_timer(105.0)
    assert outbox(machine) == [message(stream_id, CLOSE, READ, JS_WS)]
    assert (machine.pending_closes(), machine.next_timer()) == (0, None)


@BOTH_ROLES
def test_shipped_timer_closes_only_what_is_due(role: Role) -> None:
    machine, first = opened(role, local=True, dialect=JS_WS)
    second = machine.open_stream()
    machine.receive_data(message(second, ACK, uint32(9), JS_WS))
    for stream_id, now in ((first, 1.0), (second, 2.0)):
        machine.send_data(stream_id, b"x")
        machine.close_write(stream_id, now)
    outbox(machine)
    machine.handle_timer(6.0)
    assert outbox(machine) == [message(first, CLOSE, READ, JS_WS)]
    assert machine.next_timer() == 7.0


@BOTH_ROLES
def test_shipped_timer_finishes_a_stream_whose_other_half_has_ended(role: Role) -> None:
    machine, stream_id = opened(role, local=True, dialect=JS_WS)
    machine.send_data(stream_id, b"x")
    machine.close_write(stream_id, 1.0)
    machine.receive_data(message(stream_id, CLOSE, READ, JS_WS))
    machine.events()
    machine.handle_timer(9.0)
    assert machine.events() == [StreamFinished(stream_id)]


@BOTH_ROLES
def test_shipped_close_waiting_for_acknowledgement_takes_no_data(role: Role) -> None:
    machine, stream_id = opened(role, local=True, dialect=JS_WS)
    machine.send_data(stream_id, b"x")
    machine.close_write(stream_id, 1.0)
    with pytest.raises(LocalProtocolError, match="has ended"):
        machine.send_data(stream_id, b"late")


@BOTH_ROLES
def test_shipped_close_again_does_not_restart_the_delay(role: Role) -> None:
    machine, stream_id = opened(role, local=True, dialect=JS_WS)
    machine.send_data(stream_id, b"x")
    machine.close_write(stream_id, 1.0)
    machine.close_write(stream_id, 4.0)
    assert machine.next_timer() == 6.0


@BOTH_ROLES
def test_shipped_reset_cancels_a_waiting_close(role: Role) -> None:
    machine, stream_id = opened(role, local=True, dialect=JS_WS)
    machine.send_data(stream_id, b"x")
    machine.close_write(stream_id, 1.0)
    outbox(machine)
    machine.reset_write(stream_id, 9)
    assert outbox(machine) == [message(stream_id, ERROR, READ + b"\x09", JS_WS)]
    assert machine.pending_closes() == 0


@BOTH_ROLES
def test_shipped_stop_by_the_peer_cancels_a_waiting_close(role: Role) -> None:
    machine, stream_id = opened(role, local=True, dialect=JS_WS)
    machine.send_data(stream_id, b"x")
    machine.close_write(stream_id, 1.0)
    outbox(machine)
    machine.receive_data(message(stream_id, ERROR, WRITE + b"\x09", JS_WS))
    assert outbox(machine) == [message(stream_id, ERROR, READ + b"\x09", JS_WS)]
    assert machine.pending_closes() == 0


@BOTH_ROLES
def test_shipped_reading_stops_with_error_0(role: Role) -> None:
    machine, stream_id = opened(role, local=True, dialect=JS_WS)
    machine.close_read(stream_id)
    assert outbox(machine) == [message(stream_id, ERROR, WRITE + b"\x00", JS_WS)]


@BOTH_ROLES
def test_shipped_stop_without_an_error_counts_as_error_0(role: Role) -> None:
    machine, stream_id = opened(role, local=True, dialect=JS_WS)
    machine.receive_data(message(stream_id, CLOSE, WRITE, JS_WS))
    assert outbox(machine) == [message(stream_id, ERROR, READ + b"\x00", JS_WS)]
    assert machine.events() == [WriteStopped(stream_id, 0)]


@BOTH_ROLES
@pytest.mark.parametrize(
    ("kind", "body", "event"),
    [
        pytest.param(CLOSE, READ, StreamEnded, id="close"),
        pytest.param(ERROR, READ + b"\x05", StreamAborted, id="error"),
    ],
)
def test_shipped_bytes_behind_a_whole_body_are_ignored(
    role: Role, kind: int, body: bytes, event: type
) -> None:
    machine, stream_id = opened(role, local=True, dialect=JS_WS)
    machine.receive_data(message(stream_id, kind, body + b"\xff\xff\xff", JS_WS))
    assert [type(happened) for happened in machine.events()] == [event]


@BOTH_ROLES
def test_shipped_ack_with_bytes_behind_it_counts_its_first_four(role: Role) -> None:
    machine, stream_id = opened(role, local=True, credit=1, dialect=JS_WS)
    machine.receive_data(message(stream_id, ACK, uint32(7) + b"\xff\xff\xff", JS_WS))
    assert machine.credit(stream_id) == 8


@BOTH_ROLES
def test_shipped_ack_on_a_lower_id_never_seen_counts_as_late(role: Role) -> None:
    machine = native(role, JS_WS)
    machine.receive_data(message(id_of(other(role), 4), ACK, uint32(9), JS_WS))
    before = snapshot(machine)
    machine.receive_data(message(id_of(other(role), 1), ACK, uint32(9), JS_WS))
    assert snapshot(machine) == before


@BOTH_ROLES
def test_shipped_wire_cannot_say_going_away(role: Role) -> None:
    machine = native(role, JS_WS)
    before = snapshot(machine)
    machine.go_away(0)
    assert snapshot(machine) == before


@BOTH_ROLES
def test_shipped_codes_are_all_the_applications(role: Role) -> None:
    machine = native(role, JS_WS)
    assert (machine.first_application_code, machine.refused_code) == (1, 0)


@BOTH_ROLES
@EITHER_OPENER
@pytest.mark.parametrize("direction", [READ, WRITE])
def test_what_ends_a_half_again_is_charged_and_the_first_end_is_not(
    role: Role, local: bool, direction: bytes
) -> None:
    machine, stream_id = opened(role, local=local, max_empty_frames=1)
    end = message(stream_id, CLOSE, direction)
    machine.receive_data(end)
    for _ in range(1 + 4):  # and four for each stream
        machine.receive_data(end)
    with pytest.raises(FrameError, match="frames for what has ended"):
        machine.receive_data(end)
