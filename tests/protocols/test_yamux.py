"""The Yamux machine opens, carries, ends and counts as its specification and its peers do."""

from __future__ import annotations

import pytest

from wsmux.config import Config
from wsmux.exceptions import LocalProtocolError, StreamsExhausted
from wsmux.protocols.base import Role
from wsmux.protocols.events import (
    CreditGranted,
    DataReceived,
    GoAwayReceived,
    OpenPermitted,
    PongReceived,
    StreamAborted,
    StreamEnded,
    StreamFinished,
    StreamOpened,
    StreamRejected,
    WriteStopped,
)
from wsmux.protocols.native import NativeProtocol
from wsmux.protocols.yamux import YamuxProtocol

from ..helpers.machine_pairs import BOTH_ROLES, EITHER_OPENER, control, data, other, outbox
from ..helpers.tables import each_case
from ..helpers.yamux_wire import (
    ACK,
    DATA,
    FIN,
    GO_AWAY,
    INITIAL,
    KIB,
    MIB,
    PING,
    RST,
    SYN,
    WINDOW,
    data_frame,
    head,
    opened,
    snapshot,
    window,
    yamux,
    yamux_pair,
    yid,
)

EVERY_STREAM = [BOTH_ROLES, EITHER_OPENER]


def both(test: object) -> object:
    for mark in EVERY_STREAM:
        test = mark(test)
    return test


# What it is


def test_its_names_are_yamux() -> None:
    assert (YamuxProtocol.name, YamuxProtocol.subprotocol) == ("yamux", "yamux")


def test_its_carrier_is_a_stream_of_bytes() -> None:
    assert not YamuxProtocol.keeps_boundaries
    assert NativeProtocol.keeps_boundaries


def test_the_native_wire_has_no_ping() -> None:
    with pytest.raises(LocalProtocolError, match="no protocol-level ping"):
        NativeProtocol(Role.CLIENT, Config()).ping(1)


# Opening


@BOTH_ROLES
def test_ids_rise_by_two_from_the_first_of_the_role(role: Role) -> None:
    machine = yamux(role)
    ids = [machine.open_stream() for _ in range(3)]
    assert ids == ([1, 3, 5] if role is Role.CLIENT else [2, 4, 6])


@BOTH_ROLES
def test_opening_sends_syn_on_an_empty_window_update_as_control(role: Role) -> None:
    machine = yamux(role)
    stream_id = machine.open_stream()
    assert machine.has_output()
    assert (control(machine), data(machine)) == ([window(stream_id, 0, SYN)], [])


def test_opening_announces_what_the_window_has_above_256_kib() -> None:
    machine = yamux(Role.CLIENT, receive_window=MIB)
    machine.open_stream()
    assert outbox(machine) == [window(1, MIB - INITIAL, SYN)]


def test_opening_with_a_window_overrides_the_configured_one() -> None:
    machine = yamux(Role.CLIENT, receive_window=MIB)
    machine.open_stream(INITIAL + 5)
    assert outbox(machine) == [window(1, 5, SYN)]


def test_a_smaller_window_counts_as_256_kib() -> None:
    machine = yamux(Role.CLIENT, receive_window=16 * KIB)
    machine.open_stream()
    assert outbox(machine) == [window(1, 0, SYN)]
    machine.receive_data(data_frame(1, bytes(INITIAL)))
    assert machine.events() == [DataReceived(1, bytes(INITIAL))]


def test_a_window_above_16_mib_counts_as_16_mib_so_that_one_frame_can_fill_it() -> None:
    machine = yamux(Role.CLIENT, receive_window=32 * MIB)
    machine.open_stream()
    assert outbox(machine) == [window(1, 16 * MIB - INITIAL, SYN)]
    machine.receive_data(data_frame(1, bytes(16 * MIB)))
    (received,) = machine.events()
    assert received == DataReceived(1, bytes(16 * MIB))


@BOTH_ROLES
def test_data_may_follow_syn_at_once(role: Role) -> None:
    machine = yamux(role)
    stream_id = machine.open_stream()
    assert machine.credit(stream_id) == INITIAL
    assert machine.send_data(stream_id, b"hi") == 2
    assert outbox(machine) == [window(stream_id, 0, SYN), data_frame(stream_id, b"hi")]


def test_no_id_is_left_after_the_last() -> None:
    machine = yamux(Role.CLIENT)
    machine._next_id = 2**32 - 1
    machine.open_stream()
    with pytest.raises(StreamsExhausted, match="used up") as caught:
        machine.open_stream()
    assert caught.value.bits == 31


# Accepting


@BOTH_ROLES
@pytest.mark.parametrize("kind", [DATA, WINDOW])
def test_syn_opens_a_stream_on_either_frame(role: Role, kind: int) -> None:
    machine = yamux(role)
    stream_id = yid(other(role))
    machine.receive_data(head(kind, SYN, stream_id, 0))
    assert machine.events() == [StreamOpened(stream_id)]
    assert machine.open_streams() == 1


@BOTH_ROLES
def test_accepting_sends_ack_on_an_empty_window_update(role: Role) -> None:
    machine = yamux(role)
    stream_id = yid(other(role))
    machine.receive_data(window(stream_id, 0, SYN))
    assert not machine.has_output()
    machine.accept(stream_id, INITIAL)
    assert (control(machine), data(machine)) == ([window(stream_id, 0, ACK)], [])


def test_accepting_announces_what_the_window_has_above_256_kib() -> None:
    machine = yamux(Role.SERVER)
    machine.receive_data(window(1, 0, SYN))
    machine.accept(1, MIB)
    assert outbox(machine) == [window(1, MIB - INITIAL, ACK)]


def test_the_delta_of_syn_adds_to_the_credit() -> None:
    machine = yamux(Role.SERVER)
    machine.receive_data(window(1, 1000, SYN))
    assert machine.credit(1) == INITIAL + 1000


def test_the_delta_of_ack_adds_to_the_credit() -> None:
    machine = yamux(Role.CLIENT)
    machine.open_stream()
    machine.receive_data(window(1, 1000, ACK))
    assert machine.credit(1) == INITIAL + 1000


def test_what_arrives_before_acceptance_is_reported_after_it() -> None:
    machine = yamux(Role.SERVER)
    machine.receive_data(data_frame(1, b"hello", SYN | FIN))
    assert machine.events() == [StreamOpened(1)]
    machine.accept(1, INITIAL)
    assert machine.events() == [DataReceived(1, b"hello"), StreamEnded(1)]


def test_what_arrives_before_refusal_is_never_reported() -> None:
    machine = yamux(Role.SERVER)
    machine.receive_data(data_frame(1, b"hello", SYN) + window(1, 5))
    machine.events()
    machine.refuse(1, 0)
    assert machine.events() == [StreamFinished(1)]
    assert outbox(machine) == [window(1, 0, RST)]


def test_accepting_a_stream_that_was_reset_meanwhile_sends_nothing() -> None:
    machine = yamux(Role.SERVER)
    machine.receive_data(window(1, 0, SYN) + window(1, 7, RST))
    machine.accept(1, INITIAL)
    assert machine.events() == [
        StreamOpened(1),
        StreamAborted(1, 7, False, ""),
        WriteStopped(1, 7),
        StreamFinished(1),
    ]
    assert not machine.has_output()


def test_refusing_a_stream_that_was_reset_meanwhile_sends_nothing() -> None:
    machine = yamux(Role.SERVER)
    machine.receive_data(window(1, 0, SYN) + window(1, 7, RST))
    machine.refuse(1, 0)
    assert machine.events() == [StreamOpened(1), StreamFinished(1)]
    assert not machine.has_output()


def test_refusing_twice_sends_one_reset() -> None:
    machine = yamux(Role.SERVER)
    machine.receive_data(window(1, 0, SYN))
    machine.refuse(1, 9)
    machine.refuse(1, 9)
    assert outbox(machine) == [window(1, 9, RST)]


def test_syn_with_rst_opens_nothing() -> None:
    machine = yamux(Role.SERVER)
    machine.receive_data(data_frame(1, b"x", SYN | RST))
    assert (machine.events(), outbox(machine), machine.empty_messages) == ([], [], 1)


def test_an_id_may_be_used_again_after_its_end() -> None:
    machine = yamux(Role.SERVER)
    for number in (0, 1, 2):
        machine.receive_data(window(1, 0, SYN))
        stream_id = 1 + number * 2**64
        assert machine.events() == [StreamOpened(stream_id)]
        machine.refuse(stream_id, 0)
        assert machine.events() == [StreamFinished(stream_id)]
        outbox(machine)


def test_late_calls_do_not_reach_the_next_stream_of_an_id() -> None:
    machine, old = opened(Role.SERVER, local=False)
    machine.receive_data(data_frame(old, b"abc", FIN))
    machine.close_write(old, 0.0)
    machine.receive_data(window(1, 0, SYN) + data_frame(1, b"xy"))
    new = old + 2**64
    machine.refuse(old, 9)  # neither before it is taken nor afterwards
    machine.accept(new, INITIAL)
    assert machine.events()[-2:] == [StreamOpened(new), DataReceived(new, b"xy")]
    outbox(machine)
    before = snapshot(machine)
    machine.consumed(old, 3)
    machine.refuse(old, 9)
    machine.close_read(old)
    machine.close_write(old, 0.0)
    machine.reset_write(old, 9)
    machine.reset_read(old, 9)
    assert (machine.credit(old), machine.peer_credit(old)) == (0, None)
    assert snapshot(machine) == before
    assert outbox(machine) == []


def test_frames_of_a_stream_whose_id_was_used_again_have_that_id() -> None:
    machine, old = opened(Role.SERVER, local=False)
    machine.receive_data(window(old, 0, RST) + window(old, 0, SYN))
    new = old + 2**64
    machine.accept(new, INITIAL)
    assert outbox(machine) == [window(1, 0, ACK)]
    machine.receive_data(data_frame(1, bytes(INITIAL)))
    machine.send_data(new, b"abc")
    machine.consumed(new, INITIAL)
    machine.close_write(new, 0.0)
    machine.reset_read(new, 9)
    assert sorted(outbox(machine)) == sorted(
        [window(1, INITIAL), data_frame(1, b"abc"), window(1, 0, FIN), window(1, 9, RST)]
    )
    assert machine.open_streams() == 0


def test_ids_of_the_peer_may_fall() -> None:
    """One below the highest counts as used before: which were is not kept."""
    machine = yamux(Role.SERVER)
    machine.receive_data(window(9, 0, SYN) + window(3, 0, SYN))
    assert machine.events() == [StreamOpened(9), StreamOpened(3 + 2**64)]


def test_streams_beyond_the_limit_are_reset() -> None:
    machine = yamux(Role.SERVER, max_streams=1)
    machine.receive_data(window(1, 0, SYN) + data_frame(3, b"abc", SYN))
    assert machine.events() == [StreamOpened(1)]
    assert outbox(machine) == [window(3, 0, RST)]


def test_accepted_streams_count_against_the_limit() -> None:
    machine = yamux(Role.SERVER, max_streams=2)
    for stream_id in (1, 3):
        machine.receive_data(window(stream_id, 0, SYN))
        machine.accept(stream_id, INITIAL)
    outbox(machine)
    machine.receive_data(window(5, 0, SYN))
    assert outbox(machine) == [window(5, 0, RST)]


def test_streams_of_this_side_do_not_count_against_the_limit() -> None:
    machine = yamux(Role.SERVER, max_streams=1)
    machine.open_stream()
    machine.receive_data(window(1, 0, SYN))
    assert machine.events() == [StreamOpened(1)]


def test_a_stream_that_ended_makes_room_for_another() -> None:
    machine, stream_id = opened(Role.SERVER, local=False, max_streams=1)
    machine.reset_write(stream_id, 0)
    machine.receive_data(window(3, 0, SYN))
    assert machine.events() == [StreamFinished(1), StreamOpened(3)]


# The backlog of unacknowledged streams


def full(role: Role = Role.CLIENT) -> YamuxProtocol:
    machine = yamux(role, max_pending_opens=2)
    machine.open_stream()
    assert machine.may_open()
    machine.open_stream()
    assert not machine.may_open()
    return machine


@each_case
@BOTH_ROLES
@pytest.mark.parametrize(
    ("kind", "flags", "length"),
    [(WINDOW, ACK, 0), (WINDOW, RST, 0), (WINDOW, 0, 1), (DATA, 0, 0), (DATA, FIN, 0)],
    ids=["ack", "rst", "update", "data", "fin"],
)
def test_any_frame_of_the_stream_frees_its_place(
    role: Role, kind: int, flags: int, length: int
) -> None:
    machine = full(role)
    machine.receive_data(head(kind, flags, yid(role), length))
    assert OpenPermitted() in machine.events()
    assert machine.may_open()


def test_its_end_frees_its_place() -> None:
    machine = full()
    machine.reset_write(1, 0)
    assert machine.events() == [OpenPermitted(), StreamFinished(1)]


def test_a_repeated_ack_frees_nothing_more() -> None:
    machine = yamux(Role.CLIENT, max_pending_opens=1)
    machine.open_stream()
    machine.receive_data(window(1, 0, ACK))
    machine.open_stream()
    machine.receive_data(window(1, 0, ACK))
    assert not machine.may_open()
    assert machine.empty_messages == 1


def test_a_stream_of_the_peer_frees_no_place() -> None:
    machine = yamux(Role.CLIENT, max_pending_opens=1)
    machine.open_stream()
    machine.receive_data(data_frame(2, b"x", SYN) + data_frame(2, b"y"))
    assert machine.events() == [StreamOpened(2)]
    assert not machine.may_open()


def test_freeing_a_place_that_was_not_the_last_is_not_reported() -> None:
    machine = yamux(Role.CLIENT, max_pending_opens=3)
    machine.open_stream()
    machine.receive_data(window(1, 0, ACK))
    assert machine.events() == []


# Data and credit


@both
def test_data_is_reported(role: Role, local: bool) -> None:
    machine, stream_id = opened(role, local=local)
    machine.receive_data(data_frame(stream_id, b"hello"))
    assert machine.events() == [DataReceived(stream_id, b"hello")]


@both
def test_data_spends_credit(role: Role, local: bool) -> None:
    machine, stream_id = opened(role, local=local)
    machine.send_data(stream_id, b"hello")
    assert machine.credit(stream_id) == INITIAL - 5
    assert outbox(machine) == [data_frame(stream_id, b"hello")]


def test_a_frame_carries_at_most_64_kib() -> None:
    machine, stream_id = opened(Role.CLIENT, local=True)
    assert machine.send_data(stream_id, bytes(INITIAL)) == 64 * KIB


def test_a_frame_carries_at_most_what_is_configured() -> None:
    machine, stream_id = opened(Role.CLIENT, local=True, max_frame_size=100)
    assert machine.send_data(stream_id, bytes(INITIAL)) == 100


def exhausted() -> tuple[YamuxProtocol, int]:
    machine, stream_id = opened(Role.CLIENT, local=True)
    while machine.send_data(stream_id, bytes(64 * KIB)):
        pass
    outbox(machine)
    return machine, stream_id


def test_nothing_is_sent_without_credit() -> None:
    machine, stream_id = exhausted()
    assert machine.credit(stream_id) == 0
    assert machine.send_data(stream_id, b"x") == 0
    assert not machine.has_output()


def test_no_more_bytes_are_sent_than_there_is_credit_for() -> None:
    machine, stream_id = exhausted()
    machine.receive_data(window(stream_id, 5))
    machine.send_data(stream_id, b"too much")
    assert outbox(machine) == [data_frame(stream_id, b"too m")]


@pytest.mark.parametrize("most", [100, 64 * KIB])
def test_no_more_bytes_are_sent_than_a_frame_carries(most: int) -> None:
    machine, stream_id = opened(Role.CLIENT, local=True, max_frame_size=most)
    machine.send_data(stream_id, b"a" * most + b"b")
    assert outbox(machine) == [data_frame(stream_id, b"a" * most)]


def test_each_data_frame_sent_is_counted() -> None:
    machine, stream_id = opened(Role.CLIENT, local=True)
    assert machine.data_frames == 0
    machine.send_data(stream_id, b"one")
    machine.send_data(stream_id, b"two")
    assert machine.data_frames == 2


def test_credit_that_comes_to_none_is_reported() -> None:
    machine, stream_id = exhausted()
    machine.receive_data(window(stream_id, 5))
    assert machine.events() == [CreditGranted(stream_id)]
    assert machine.send_data(stream_id, b"too much") == 5


def test_credit_that_adds_to_some_is_not_reported() -> None:
    machine, stream_id = opened(Role.CLIENT, local=True)
    machine.receive_data(window(stream_id, 5))
    assert machine.events() == []
    assert machine.credit(stream_id) == INITIAL + 5


def test_credit_for_an_ended_half_is_not_reported() -> None:
    machine, stream_id = exhausted()
    machine.close_write(stream_id, 0.0)
    machine.receive_data(window(stream_id, 5))
    assert machine.events() == []
    assert machine.credit(stream_id) == 0


def test_credit_returns_at_half_a_window_of_what_was_read() -> None:
    machine, stream_id = opened(Role.CLIENT, local=True)
    machine.receive_data(data_frame(stream_id, bytes(INITIAL)))
    machine.consumed(stream_id, INITIAL // 2 - 1)
    assert not machine.has_output()
    machine.consumed(stream_id, 1)
    assert (control(machine), data(machine)) == ([window(stream_id, INITIAL // 2)], [])


def test_reading_after_the_end_returns_no_credit() -> None:
    machine, stream_id = opened(Role.CLIENT, local=True)
    machine.receive_data(data_frame(stream_id, bytes(INITIAL), FIN))
    machine.consumed(stream_id, INITIAL)
    assert not machine.has_output()


def test_reading_from_a_forgotten_stream_returns_no_credit() -> None:
    machine = yamux(Role.CLIENT)
    machine.consumed(1, 5)
    assert not machine.has_output()


def test_frames_that_change_nothing_are_counted() -> None:
    machine, stream_id = opened(Role.CLIENT, local=True)
    machine.receive_data(data_frame(stream_id) + window(stream_id) + data_frame(99) + window(99))
    assert (machine.empty_messages, machine.events(), outbox(machine)) == (4, [], [])


@pytest.mark.parametrize("stream_id", [1, 9], ids=["its stream", "no stream"])
def test_credit_is_not_counted_as_empty(stream_id: int) -> None:
    machine, _ = opened(Role.CLIENT, local=True)
    machine.receive_data(window(stream_id, 1))
    assert machine.empty_messages == 0


@pytest.mark.parametrize("step", [1, 5, 11, 12, 13])
def test_frames_may_come_in_pieces(step: int) -> None:
    machine, stream_id = opened(Role.CLIENT, local=True)
    wire = data_frame(stream_id, b"hello, world") + data_frame(stream_id, b"!", FIN)
    for start in range(0, len(wire), step):
        machine.receive_data(wire[start : start + step])
    assert machine.events() == [
        DataReceived(stream_id, b"hello, world"),
        DataReceived(stream_id, b"!"),
        StreamEnded(stream_id),
    ]


def test_data_frames_in_one_message_are_reported_one_by_one() -> None:
    machine, first = opened(Role.CLIENT, local=True)
    second = machine.open_stream()
    machine.receive_data(window(second, 0, ACK))
    wire = data_frame(first, b"hello") + data_frame(second, b"a") + data_frame(first, b"long text")
    machine.receive_data(wire)
    assert machine.events() == [
        DataReceived(first, b"hello"),
        DataReceived(second, b"a"),
        DataReceived(first, b"long text"),
    ]


@pytest.mark.parametrize("cut", [12, 13, 28])
def test_a_body_that_looks_like_frames_is_a_body(cut: int) -> None:
    machine, stream_id = opened(Role.CLIENT, local=True)
    body = data_frame(stream_id, b"trap") * 3
    wire = data_frame(stream_id, body)
    machine.receive_data(wire[:cut])
    machine.receive_data(wire[cut:])
    assert machine.events() == [DataReceived(stream_id, body)]


def test_the_rest_of_a_head_is_not_taken_for_a_frame() -> None:
    machine, stream_id = opened(Role.CLIENT, local=True)
    machine.receive_data(window(256, 0, SYN))
    machine.accept(256, INITIAL)
    machine.events()
    # But for its first byte it reads as the head of 256 bytes on stream 256.
    wire = data_frame(stream_id, b"\0") + data_frame(stream_id, bytes(300))
    machine.receive_data(wire[:1])
    machine.receive_data(wire[1:])
    assert machine.events() == [
        DataReceived(stream_id, b"\0"),
        DataReceived(stream_id, bytes(300)),
    ]


def test_the_buffer_received_is_not_kept() -> None:
    machine, stream_id = opened(Role.CLIENT, local=True)
    wire = bytearray(data_frame(stream_id, b"hello") + data_frame(stream_id, b"cut")[:-1])
    machine.receive_data(wire)
    wire.clear()  # would raise if a view were left
    machine.receive_data(b"t")
    assert machine.events() == [DataReceived(stream_id, b"hello"), DataReceived(stream_id, b"cut")]


def test_a_body_that_outlives_its_stream_is_dropped() -> None:
    machine, stream_id = opened(Role.CLIENT, local=True)
    wire = data_frame(stream_id, b"hello")
    machine.receive_data(wire[:-1])
    machine.reset_read(stream_id, 0)
    machine.receive_data(wire[-1:])
    assert machine.events() == [StreamFinished(stream_id)]


def test_a_body_under_way_does_not_reach_a_stream_opened_meanwhile() -> None:
    machine = yamux(Role.CLIENT)
    wire = data_frame(1, b"hello", FIN)
    machine.receive_data(wire[:-1])
    stream_id = machine.open_stream()
    machine.receive_data(wire[-1:] + data_frame(stream_id, b"answer"))
    assert machine.events() == [DataReceived(3, b"answer")]


def test_what_is_kept_of_an_incomplete_frame_is_told() -> None:
    machine, stream_id = opened(Role.CLIENT, local=True)
    wire = data_frame(stream_id, b"hello")
    told = []
    for byte in wire:
        machine.receive_data(bytes((byte,)))
        told.append(machine.held())
    assert told == [*range(1, 12), 0, 1, 2, 3, 4, 0]


def test_each_incomplete_head_and_body_has_a_mark_of_its_own() -> None:
    machine, stream_id = opened(Role.CLIENT, local=True)
    wire = data_frame(stream_id, b"hello")
    marks = []
    for cuts in ([3, 7, 12, 14], [12, 16], [1, 15]):
        start = 0
        for cut in cuts:
            machine.receive_data(wire[start:cut])
            marks.append(machine.incomplete())
            start = cut
        machine.receive_data(wire[start:])
        assert machine.incomplete() is None
    first, again, body, body_again, second, second_again, head_of_third, third = marks
    assert (first, body, second) == (again, body_again, second_again)
    assert None not in marks
    assert len({first, body, second, head_of_third, third}) == 5


def test_a_dropped_body_may_come_in_pieces() -> None:
    machine = yamux(Role.CLIENT)
    for byte in data_frame(2, b"hello") + window(2, 0, SYN):
        machine.receive_data(bytes((byte,)))
    assert machine.events() == [StreamOpened(2)]


# The clean end


@both
def test_ending_sends_fin_behind_the_data(role: Role, local: bool) -> None:
    machine, stream_id = opened(role, local=local)
    machine.send_data(stream_id, b"bye")
    machine.close_write(stream_id, 0.0)
    assert control(machine) == []
    assert data(machine) == [data_frame(stream_id, b"bye"), window(stream_id, 0, FIN)]


def test_ending_twice_sends_one_fin() -> None:
    machine, stream_id = opened(Role.CLIENT, local=True)
    machine.close_write(stream_id, 0.0)
    machine.close_write(stream_id, 0.0)
    assert outbox(machine) == [window(stream_id, 0, FIN)]


def test_ending_an_unanswered_accepted_stream_sends_ack_and_fin_apart() -> None:
    machine = yamux(Role.SERVER)
    machine.receive_data(window(1, 0, SYN))
    machine.accept(1, INITIAL)
    machine.close_write(1, 0.0)
    assert outbox(machine) == [window(1, 0, ACK), window(1, 0, FIN)]


def test_nothing_can_be_sent_behind_the_end() -> None:
    machine, stream_id = opened(Role.CLIENT, local=True)
    machine.close_write(stream_id, 0.0)
    with pytest.raises(LocalProtocolError, match="has ended"):
        machine.send_data(stream_id, b"x")


@both
@pytest.mark.parametrize("kind", [DATA, WINDOW])
def test_fin_is_the_clean_end(role: Role, local: bool, kind: int) -> None:
    machine, stream_id = opened(role, local=local)
    machine.receive_data(head(kind, FIN, stream_id, 0))
    assert machine.events() == [StreamEnded(stream_id)]


def test_a_repeated_fin_does_nothing() -> None:
    machine, stream_id = opened(Role.CLIENT, local=True)
    machine.receive_data(window(stream_id, 0, FIN) * 2)
    assert machine.events() == [StreamEnded(stream_id)]
    assert machine.empty_messages == 1


def test_half_closed_streams_still_carry_the_other_way() -> None:
    machine, stream_id = opened(Role.CLIENT, local=True)
    machine.close_write(stream_id, 0.0)
    machine.receive_data(data_frame(stream_id, b"answer"))
    assert machine.events() == [DataReceived(stream_id, b"answer")]


@both
@pytest.mark.parametrize("first", ["here", "there"])
def test_both_ends_make_the_stream_finished(role: Role, local: bool, first: str) -> None:
    machine, stream_id = opened(role, local=local)
    if first == "here":
        machine.close_write(stream_id, 0.0)
    machine.receive_data(window(stream_id, 0, FIN))
    machine.close_write(stream_id, 0.0)
    assert machine.events() == [StreamEnded(stream_id), StreamFinished(stream_id)]
    assert (machine.open_streams(), machine.pending_closes()) == (0, 0)


# Resets


@both
def test_aborting_sends_rst_with_the_code_as_control(role: Role, local: bool) -> None:
    machine, stream_id = opened(role, local=local)
    machine.reset_write(stream_id, 77)
    assert (control(machine), data(machine)) == ([window(stream_id, 77, RST)], [])
    assert machine.events() == [StreamFinished(stream_id)]


@both
def test_refusing_input_resets_the_whole_stream(role: Role, local: bool) -> None:
    machine, stream_id = opened(role, local=local)
    machine.reset_read(stream_id, 77)
    machine.reset_write(stream_id, 77)
    assert outbox(machine) == [window(stream_id, 77, RST)]


def test_rst_does_not_overtake_what_fin_has_ended() -> None:
    machine, stream_id = opened(Role.CLIENT, local=True)
    machine.send_data(stream_id, b"whole")
    machine.close_write(stream_id, 0.0)
    machine.reset_read(stream_id, 5)
    assert data(machine) == [
        data_frame(stream_id, b"whole"),
        window(stream_id, 0, FIN),
        window(stream_id, 5, RST),
    ]


def test_aborting_an_ended_writing_half_does_nothing() -> None:
    machine, stream_id = opened(Role.CLIENT, local=True)
    machine.close_write(stream_id, 0.0)
    outbox(machine)
    machine.reset_write(stream_id, 5)
    assert (machine.open_streams(), outbox(machine)) == (1, [])


def test_refusing_input_that_has_ended_does_nothing() -> None:
    machine, stream_id = opened(Role.CLIENT, local=True)
    machine.receive_data(window(stream_id, 0, FIN))
    machine.reset_read(stream_id, 5)
    assert (machine.open_streams(), outbox(machine)) == (1, [])


@pytest.mark.parametrize("code", [-1, 2**32])
def test_a_code_beyond_32_bits_is_refused(code: int) -> None:
    machine, stream_id = opened(Role.CLIENT, local=True)
    with pytest.raises(LocalProtocolError, match="32 bits"):
        machine.reset_write(stream_id, code)
    assert (machine.open_streams(), outbox(machine)) == (1, [])


def test_the_largest_code_of_a_reset_has_32_bits() -> None:
    machine, stream_id = opened(Role.CLIENT, local=True)
    machine.reset_write(stream_id, 2**32 - 1)
    assert outbox(machine) == [window(stream_id, 2**32 - 1, RST)]


@both
def test_rst_aborts_reading_and_stops_writing(role: Role, local: bool) -> None:
    machine, stream_id = opened(role, local=local)
    machine.receive_data(window(stream_id, 77, RST))
    assert machine.events() == [
        StreamAborted(stream_id, 77, False, ""),
        WriteStopped(stream_id, 77),
        StreamFinished(stream_id),
    ]
    assert machine.credit(stream_id) == 0


def test_rst_on_data_has_code_0_and_voids_the_body() -> None:
    machine, stream_id = opened(Role.CLIENT, local=True)
    machine.receive_data(data_frame(stream_id, b"x", RST))
    assert machine.events()[0] == StreamAborted(stream_id, 0, False, "")


def test_rst_leaves_a_clean_end_alone() -> None:
    machine, stream_id = opened(Role.CLIENT, local=True)
    machine.receive_data(window(stream_id, 0, FIN) + window(stream_id, 3, RST))
    assert machine.events() == [
        StreamEnded(stream_id),
        WriteStopped(stream_id, 3),
        StreamFinished(stream_id),
    ]


def test_rst_behind_our_fin_stops_no_writing() -> None:
    machine, stream_id = opened(Role.CLIENT, local=True)
    machine.close_write(stream_id, 0.0)
    machine.receive_data(window(stream_id, 3, RST))
    assert machine.events() == [
        StreamAborted(stream_id, 3, False, ""),
        StreamFinished(stream_id),
    ]


@BOTH_ROLES
def test_rst_before_any_sign_of_acceptance_is_a_rejection(role: Role) -> None:
    machine = yamux(role)
    stream_id = machine.open_stream()
    machine.receive_data(window(stream_id, 4, RST))
    assert machine.events() == [
        StreamRejected(stream_id, 4, "the peer refused it"),
        StreamFinished(stream_id),
    ]


@pytest.mark.parametrize("half", ["reading", "writing"])
def test_rejection_is_reported_while_one_half_is_open(half: str) -> None:
    machine = yamux(Role.CLIENT)
    machine.open_stream()
    if half == "reading":
        machine.close_write(1, 0.0)
    else:
        machine.close_read(1)
    machine.receive_data(window(1, 4, RST))
    assert machine.events() == [
        StreamRejected(1, 4, "the peer refused it"),
        StreamFinished(1),
    ]


def test_rejection_of_a_stream_closed_here_is_not_reported() -> None:
    machine = yamux(Role.CLIENT)
    machine.open_stream()
    machine.close_read(1)
    machine.close_write(1, 0.0)
    machine.receive_data(window(1, 0, RST))
    assert machine.events() == [StreamFinished(1)]


def test_late_frames_of_a_reset_stream_are_dropped() -> None:
    machine, stream_id = opened(Role.CLIENT, local=True)
    machine.reset_write(stream_id, 0)
    machine.events()
    machine.receive_data(data_frame(stream_id, bytes(INITIAL)) + window(stream_id, 1, FIN | ACK))
    assert machine.events() == []


# Reading no further


@both
def test_reading_no_further_sends_nothing(role: Role, local: bool) -> None:
    machine, stream_id = opened(role, local=local)
    machine.close_read(stream_id)
    machine.close_read(stream_id)
    assert (machine.events(), outbox(machine)) == ([], [])


def test_credit_of_dropped_data_returns() -> None:
    machine, stream_id = opened(Role.CLIENT, local=True)
    machine.close_read(stream_id)
    machine.receive_data(data_frame(stream_id, bytes(INITIAL // 2)))
    assert (machine.events(), outbox(machine)) == ([], [window(stream_id, INITIAL // 2)])


def test_credit_of_unread_data_returns_when_reading_stops() -> None:
    machine, stream_id = opened(Role.CLIENT, local=True)
    machine.receive_data(data_frame(stream_id, bytes(INITIAL)))
    machine.consumed(stream_id, 100)
    machine.close_read(stream_id)
    assert outbox(machine) == [window(stream_id, INITIAL)]


def test_the_peers_end_is_not_reported_to_who_reads_no_further() -> None:
    machine, stream_id = opened(Role.CLIENT, local=True)
    machine.close_read(stream_id)
    machine.receive_data(window(stream_id, 0, FIN))
    assert (machine.events(), machine.open_streams()) == ([], 1)
    machine.close_write(stream_id, 0.0)
    assert machine.events() == [StreamFinished(stream_id)]


def test_reading_no_further_behind_the_end_returns_no_credit() -> None:
    machine, stream_id = opened(Role.CLIENT, local=True)
    machine.receive_data(data_frame(stream_id, bytes(INITIAL), FIN))
    machine.close_read(stream_id)
    assert not machine.has_output()


def test_reading_no_further_from_a_forgotten_stream_does_nothing() -> None:
    machine = yamux(Role.CLIENT)
    machine.close_read(1)
    assert not machine.has_output()


@pytest.mark.parametrize("read_first", [True, False])
def test_a_stream_closed_here_is_reset_when_its_peer_takes_too_long(read_first: bool) -> None:
    machine, stream_id = opened(Role.CLIENT, local=True, close_timeout=10.0)
    if read_first:
        machine.close_read(stream_id)
    machine.close_write(stream_id, 100.0)
    machine.close_read(stream_id)
    machine.handle_timer(101.0)
    outbox(machine)  # the round trip is measured
    assert machine.next_timer() == 110.0
    machine.handle_timer(109.9)
    assert machine.open_streams() == 1
    machine.handle_timer(110.0)
    assert outbox(machine) == [window(stream_id, 0, RST)]
    assert (machine.events(), machine.next_timer()) == ([StreamFinished(stream_id)], None)


def test_a_stream_whose_peer_ends_in_time_is_not_reset() -> None:
    machine, stream_id = opened(Role.CLIENT, local=True)
    machine.close_read(stream_id)
    machine.close_write(stream_id, 0.0)
    outbox(machine)
    machine.receive_data(window(stream_id, 0, FIN))
    assert machine.next_timer() is None
    machine.handle_timer(1000.0)
    assert not machine.has_output()


def test_a_stream_whose_peer_ends_while_the_clock_runs_is_not_reset() -> None:
    machine, stream_id = opened(Role.SERVER, local=False, close_timeout=10.0)
    machine.close_read(stream_id)
    machine.close_write(stream_id, 0.0)
    machine.handle_timer(0.0)
    machine.receive_data(window(stream_id, 0, FIN))
    machine.receive_data(window(stream_id, 0, SYN))  # the id is used again
    machine.events()
    machine.handle_timer(1000.0)
    assert (machine.events(), machine.open_streams()) == ([], 1)


@pytest.mark.parametrize("half", ["reading", "writing"])
def test_a_stream_with_one_half_closed_is_not_reset(half: str) -> None:
    machine, stream_id = opened(Role.CLIENT, local=True, close_timeout=10.0)
    if half == "reading":
        machine.close_read(stream_id)
    else:
        machine.close_write(stream_id, 0.0)
    machine.handle_timer(0.0)
    machine.handle_timer(1000.0)
    assert (machine.events(), machine.open_streams()) == ([], 1)


# Pings


@BOTH_ROLES
def test_a_ping_is_answered_with_its_value_and_exactly_ack(role: Role) -> None:
    machine = yamux(role)
    machine.receive_data(head(PING, SYN, 0, 0xDEADBEEF))
    assert machine.has_output()
    assert control(machine) == [head(PING, ACK, 0, 0xDEADBEEF)]
    assert not machine.has_output()


def test_answers_go_before_other_control_frames() -> None:
    machine = yamux(Role.CLIENT)
    machine.open_stream()
    machine.receive_data(head(PING, SYN, 0, 1))
    assert control(machine) == [head(PING, ACK, 0, 1), window(1, 0, SYN)]


def test_of_many_pings_the_last_32_are_answered() -> None:
    machine = yamux(Role.CLIENT)
    machine.receive_data(b"".join(head(PING, SYN, 0, value) for value in range(100)))
    assert control(machine) == [head(PING, ACK, 0, value) for value in range(68, 100)]


def test_a_ping_without_flags_is_ignored() -> None:
    machine = yamux(Role.CLIENT)
    machine.receive_data(head(PING, 0, 0, 1))
    assert (machine.events(), outbox(machine), machine.empty_messages) == ([], [], 1)


@BOTH_ROLES
def test_a_ping_of_ours_carries_exactly_syn(role: Role) -> None:
    machine = yamux(role)
    machine.ping(2**32 - 2)
    assert control(machine) == [head(PING, SYN, 0, 2**32 - 2)]


def test_a_pong_is_reported() -> None:
    machine = yamux(Role.CLIENT)
    machine.ping(5)
    machine.receive_data(head(PING, ACK, 0, 5))
    assert machine.events() == [PongReceived(None, 5)]


def test_a_pong_nobody_asked_for_is_ignored() -> None:
    machine = yamux(Role.CLIENT)
    machine.ping(5)
    machine.receive_data(head(PING, ACK, 0, 6))
    assert (machine.events(), machine.empty_messages) == ([], 1)


@pytest.mark.parametrize("flags", [0, FIN, RST])
def test_what_is_no_pong_answers_no_ping(flags: int) -> None:
    machine = yamux(Role.CLIENT)
    machine.ping(5)
    machine.receive_data(head(PING, flags, 0, 5))
    assert (machine.events(), machine.empty_messages) == ([], 1)
    machine.receive_data(head(PING, ACK, 0, 5))
    assert machine.events() == [PongReceived(None, 5)]


def test_a_second_pong_is_ignored() -> None:
    machine = yamux(Role.CLIENT)
    machine.ping(5)
    machine.receive_data(head(PING, ACK, 0, 5) * 2)
    assert machine.events() == [PongReceived(None, 5)]


def test_only_32_pongs_are_waited_for() -> None:
    machine = yamux(Role.CLIENT)
    for value in range(33):
        machine.ping(value)
    machine.receive_data(head(PING, ACK, 0, 0) + head(PING, ACK, 0, 1))
    assert machine.events() == [PongReceived(None, 1)]


def test_a_ping_asked_for_again_is_waited_for_like_a_new_one() -> None:
    machine = yamux(Role.CLIENT)
    for value in (*range(32), 0, 32):
        machine.ping(value)
    machine.receive_data(head(PING, ACK, 0, 0) + head(PING, ACK, 0, 1))
    assert machine.events() == [PongReceived(None, 0)]


@pytest.mark.parametrize("value", [-1, 2**32 - 1, 2**32])
def test_a_ping_carries_32_bits_less_the_value_that_measures(value: int) -> None:
    machine = yamux(Role.CLIENT)
    with pytest.raises(LocalProtocolError, match=f"0 to 2\\^32-2, not {value}"):
        machine.ping(value)
    assert not machine.has_output()


# Round trips and growing windows


def test_the_first_stream_has_the_round_trip_measured() -> None:
    machine = yamux(Role.CLIENT)
    assert machine.next_timer() is None
    machine.handle_timer(1.0)
    assert not machine.has_output()
    machine.now = 2.0
    machine.open_stream()
    outbox(machine)
    assert machine.next_timer() == 2.0
    machine.handle_timer(2.0)
    assert outbox(machine) == [head(PING, SYN, 0, 2**32 - 1)]
    machine.now = 2.25
    machine.receive_data(head(PING, ACK, 0, 2**32 - 1))
    assert (machine.rtt, machine.events()) == (0.25, [])


def test_the_round_trip_is_measured_anew_after_half_a_minute() -> None:
    machine, _ = opened(Role.CLIENT, local=True)
    machine.handle_timer(2.0)
    outbox(machine)
    machine.handle_timer(31.9)
    assert (machine.next_timer(), machine.has_output()) == (32.0, False)
    machine.handle_timer(32.0)
    assert outbox(machine) == [head(PING, SYN, 0, 2**32 - 1)]


def measured(rtt: float, **limits: int) -> tuple[YamuxProtocol, int]:
    machine, stream_id = opened(Role.CLIENT, local=True, **limits)
    machine.now = 0.0
    machine.ping(1)
    machine.now = rtt
    machine.receive_data(head(PING, ACK, 0, 1))
    outbox(machine)
    machine.events()
    return machine, stream_id


def read_half(machine: YamuxProtocol, stream_id: int, size: int, now: float) -> int:
    """Receive and read half of a window of ``size``; return the credit sent for it."""
    machine.now = now
    machine.receive_data(data_frame(stream_id, bytes(size // 2)))
    machine.consumed(stream_id, size // 2)
    (frame,) = outbox(machine)
    assert frame[:8] == window(stream_id)[:8]
    return int.from_bytes(frame[8:], "big")


def test_no_round_trip_time_is_known_before_a_pong() -> None:
    assert yamux(Role.CLIENT).rtt is None


def test_a_pong_gives_the_round_trip_time() -> None:
    machine, _ = measured(0.25)
    assert machine.rtt == 0.25


def test_the_round_trip_time_is_smoothed_by_half() -> None:
    machine, _ = measured(0.25)
    machine.ping(2)
    machine.now = 1.0
    machine.receive_data(head(PING, ACK, 0, 2))
    assert machine.rtt == 0.5


def test_a_window_read_fast_is_doubled() -> None:
    machine, stream_id = measured(0.1)
    assert read_half(machine, stream_id, INITIAL, 1.0) == INITIAL // 2
    assert read_half(machine, stream_id, INITIAL, 1.39) == INITIAL // 2 + INITIAL


def test_a_window_read_slowly_stays() -> None:
    machine, stream_id = measured(0.1)
    read_half(machine, stream_id, INITIAL, 1.0)
    assert read_half(machine, stream_id, INITIAL, 1.41) == INITIAL // 2


def test_a_larger_window_may_take_longer() -> None:
    machine, stream_id = measured(0.1)
    read_half(machine, stream_id, INITIAL, 1.0)
    read_half(machine, stream_id, INITIAL, 1.1)
    assert read_half(machine, stream_id, 2 * INITIAL, 1.89) == 3 * INITIAL
    assert read_half(machine, stream_id, 4 * INITIAL, 3.6) == 2 * INITIAL


def test_no_window_grows_without_a_round_trip_time() -> None:
    machine, stream_id = opened(Role.CLIENT, local=True)
    read_half(machine, stream_id, INITIAL, 1.0)
    assert read_half(machine, stream_id, INITIAL, 1.0) == INITIAL // 2


def grow_to_the_end(machine: YamuxProtocol, stream_id: int) -> int:
    """Read half windows as fast as can be until nothing grows; return the window."""
    size = INITIAL
    read_half(machine, stream_id, size, 1.0)
    while (extra := read_half(machine, stream_id, size, 1.0) - size // 2) > 0:
        size += extra
    return size


def test_a_window_grows_to_16_mib() -> None:
    machine, stream_id = measured(0.1, max_connection_buffer=64 * MIB)
    assert grow_to_the_end(machine, stream_id) == 16 * MIB


def test_a_window_of_16_mib_does_not_grow() -> None:
    machine, stream_id = measured(0.1, receive_window=16 * MIB)
    for _ in range(2):
        machine.receive_data(data_frame(stream_id, bytes(16 * MIB)))
        machine.consumed(stream_id, 16 * MIB)
    assert outbox(machine) == [window(stream_id, 16 * MIB)] * 2


def test_all_windows_grow_by_half_the_memory_of_the_connection_together() -> None:
    machine, stream_id = measured(0.1, max_connection_buffer=128 * MIB)
    sizes = [grow_to_the_end(machine, stream_id)]
    for _ in range(4):
        stream_id = machine.open_stream()
        outbox(machine)
        sizes.append(grow_to_the_end(machine, stream_id))
    assert sum(sizes) - 5 * INITIAL == 64 * MIB
    machine.reset_read(1, 0)
    outbox(machine)
    assert read_half(machine, stream_id, sizes[-1], 1.0) > sizes[-1] // 2


# Going away


@pytest.mark.parametrize(
    ("close_code", "code"), [(1000, 0), (1001, 0), (1002, 1), (1009, 2), (1011, 2), (3000, 2)]
)
def test_the_farewell_says_why_behind_the_data(close_code: int, code: int) -> None:
    machine, stream_id = opened(Role.CLIENT, local=True)
    machine.send_data(stream_id, b"x")
    machine.close_notice(close_code)
    assert outbox(machine) == [data_frame(stream_id, b"x"), head(GO_AWAY, 0, 0, code)]


def test_only_going_away_between_frames_is_a_farewell() -> None:
    machine, stream_id = opened(Role.CLIENT, local=True)
    assert not machine.close_notice_came()
    machine.receive_data(head(GO_AWAY, 0, 0, 0))
    assert machine.close_notice_came()
    wire = data_frame(stream_id, b"xy")
    for cut in (1, 12, 13):
        machine.receive_data(wire[:cut])
        assert not machine.close_notice_came()
        machine.receive_data(wire[cut:])
        assert machine.close_notice_came()


@BOTH_ROLES
def test_going_away_sends_code_0_once(role: Role) -> None:
    machine = yamux(role)
    machine.go_away(77)
    machine.go_away(0)
    assert outbox(machine) == [head(GO_AWAY, 0, 0, 0)]


def test_streams_behind_our_going_away_are_reset() -> None:
    machine = yamux(Role.SERVER)
    machine.go_away(0)
    outbox(machine)
    machine.receive_data(data_frame(1, b"hello", SYN) + data_frame(1, b"more"))
    assert machine.events() == []
    assert outbox(machine) == [window(1, 0, RST)]


def test_streams_go_on_after_going_away() -> None:
    machine, stream_id = opened(Role.SERVER, local=False)
    machine.go_away(0)
    machine.receive_data(data_frame(stream_id, b"x"))
    assert machine.events() == [DataReceived(stream_id, b"x")]


@BOTH_ROLES
def test_a_peer_going_away_names_the_first_unacknowledged_stream(role: Role) -> None:
    machine, _ = opened(role, local=True)
    second = machine.open_stream()
    machine.open_stream()
    machine.receive_data(head(GO_AWAY, 0, 0, 0))
    assert machine.events() == [GoAwayReceived(second, 0)]


@BOTH_ROLES
def test_a_peer_going_away_that_took_all_names_the_next_stream(role: Role) -> None:
    machine, stream_id = opened(role, local=True)
    machine.receive_data(head(GO_AWAY, 0, 0, 0))
    assert machine.events() == [GoAwayReceived(stream_id + 2, 0)]


def test_nothing_is_opened_towards_a_peer_that_goes_away() -> None:
    machine = yamux(Role.CLIENT)
    machine.receive_data(head(GO_AWAY, 0, 0, 0))
    assert machine.may_open()  # it is not the backlog that is in the way
    with pytest.raises(LocalProtocolError, match="going away"):
        machine.open_stream()


def test_a_repeated_going_away_does_nothing() -> None:
    machine = yamux(Role.CLIENT)
    machine.receive_data(head(GO_AWAY, 0, 0, 0) * 2)
    assert machine.events() == [GoAwayReceived(1, 0)]
    assert machine.empty_messages == 1


# Two machines


@BOTH_ROLES
@pytest.mark.parametrize("single", [False, True], ids=["whole", "one-at-a-time"])
def test_a_request_and_its_answer_cross_two_machines(role: Role, single: bool) -> None:
    pair = yamux_pair()
    near, far = pair[role], pair[other(role)]
    stream_id = near.open_stream()
    near.send_data(stream_id, b"question")
    near.close_write(stream_id, 0.0)
    pair.pump(single=single)
    far.send_data(stream_id, b"answer")
    far.close_write(stream_id, 0.0)
    pair.pump(single=single)
    assert (near.open_streams(), far.open_streams()) == (0, 0)
