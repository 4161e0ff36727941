"""Bymux does what its specification says, for both roles and both openers."""

from __future__ import annotations

import random
from typing import Any

import pytest

from wsmux.config import Config
from wsmux.exceptions import FlowControlError, LocalProtocolError, StreamsExhausted
from wsmux.protocols.base import MuxProtocol, Role
from wsmux.protocols.bymux import MAX_BODY, BymuxProtocol
from wsmux.protocols.bymux_packets import Packet, PacketReader, encode_head
from wsmux.protocols.bymux_state import (
    INFINITE,
    BymuxState,
    HalfState,
    ReceiveHalf,
    SendHalf,
    StreamState,
)
from wsmux.protocols.events import (
    CreditGranted,
    DataReceived,
    GoAwayReceived,
    OpenPermitted,
    PongReceived,
    PongsEnded,
    StreamEnded,
    StreamFinished,
    StreamOpened,
    WriteStopped,
)

from ..helpers.bymux_wire import (
    CLOSE,
    CREDIT,
    PING,
    PONG,
    STOP_READ,
    WRITE,
    all_events,
    bymux_pair,
    fresh,
    of,
    opened,
    overall,
    packet,
    quiet,
    snapshot,
    write,
)
from ..helpers.machine_pairs import (
    BOTH_ROLES,
    EITHER_OPENER,
    Pair,
    control,
    data,
    id_of,
    native,
    other,
    outbox,
)
from ..helpers.tables import each_case

OVER = HalfState(closed=True, stopped=True)


# Names and shared additions


def test_names_of_bymux() -> None:
    machine = fresh(Role.CLIENT)
    assert (machine.name, machine.subprotocol) == ("bymux", "bymux")


def test_bytes_of_the_carrier_are_a_stream() -> None:
    assert (BymuxProtocol.keeps_boundaries, MuxProtocol.keeps_boundaries) == (False, True)


def test_wire_without_a_ping_says_so() -> None:
    with pytest.raises(LocalProtocolError, match="no protocol-level ping"):
        native(Role.CLIENT).ping(1)


def test_wire_without_a_ping_of_streams_says_so() -> None:
    with pytest.raises(LocalProtocolError, match=r"use connection\.ping\(\)"):
        native(Role.CLIENT).ping_stream(0, 1)


def test_what_most_wires_need_not_say() -> None:
    machine = native(Role.CLIENT)
    machine.close_notice(1000)
    assert outbox(machine) == []
    assert (machine.close_notice_came(), machine.may_ping(), machine.rtt) == (False, False, None)


def test_there_are_no_codes_of_the_wire() -> None:
    machine = fresh(Role.CLIENT)
    assert (machine.first_application_code, machine.refused_code) == (0, 0)


def test_there_are_no_timers() -> None:
    machine = fresh(Role.CLIENT)
    machine.handle_timer(1e9)
    assert (machine.next_timer(), machine.pending_closes()) == (None, 0)


# Opening, and the credit for it


@BOTH_ROLES
def test_output_is_announced_and_taken(role: Role) -> None:
    machine, stream_id = opened(role, local=True)
    assert not machine.has_output()
    machine.send_data(stream_id, b"data alone")
    assert machine.has_output()
    data(machine)
    assert not machine.has_output()
    machine.ping(1)
    assert machine.has_output()
    control(machine)
    assert not machine.has_output()


@BOTH_ROLES
def test_credit_for_a_stream_that_ended_is_output(role: Role) -> None:
    machine, stream_id = opened(role, local=False, max_streams=1)
    machine.refuse(stream_id, 0)
    outbox(machine)
    machine.receive_data(packet(CLOSE, stream_id) + packet(STOP_READ, stream_id))
    assert machine.has_output()
    assert outbox(machine) == [overall(CREDIT, 1)]
    assert not machine.has_output()


@BOTH_ROLES
def test_first_bytes_grant_the_peer_its_streams(role: Role) -> None:
    assert outbox(fresh(role, max_streams=16)) == [of("1010")]


@BOTH_ROLES
def test_no_stream_may_be_opened_without_credit(role: Role) -> None:
    machine = fresh(role)
    assert not machine.may_open()
    with pytest.raises(LocalProtocolError, match="no credit"):
        machine.open_stream()


@BOTH_ROLES
def test_credit_permits_opening(role: Role) -> None:
    machine = fresh(role)
    machine.receive_data(overall(CREDIT, 1))
    assert machine.events() == [OpenPermitted()]
    assert machine.may_open()


@BOTH_ROLES
@pytest.mark.parametrize(("count", "empty"), [(0, 1), (1, 0)])
def test_only_global_credit_of_nothing_is_counted_as_empty(
    role: Role, count: int, empty: int
) -> None:
    machine = fresh(role)
    machine.receive_data(overall(CREDIT, count))
    assert machine.empty_messages == empty


@BOTH_ROLES
def test_further_global_credit_is_no_news(role: Role) -> None:
    machine = quiet(role, opens=1)
    machine.receive_data(overall(CREDIT, 1))
    assert machine.events() == []
    assert [machine.open_stream() for _ in range(2)] == [id_of(role), id_of(role, 1)]


@BOTH_ROLES
def test_global_credit_is_spent_for_good(role: Role) -> None:
    machine, stream_id = opened(role, local=True, opens=1)
    machine.refuse(stream_id, 0)
    machine.receive_data(packet(STOP_READ, stream_id) + packet(CLOSE, stream_id))
    assert machine.open_streams() == 0
    assert not machine.may_open()


@BOTH_ROLES
def test_zero_global_credit_is_nothing(role: Role) -> None:
    machine = fresh(role)
    machine.receive_data(overall(CREDIT, 0))
    assert (machine.events(), machine.may_open()) == ([], False)


@BOTH_ROLES
def test_largest_global_credit_is_a_number(role: Role) -> None:
    machine = fresh(role)
    machine.receive_data(of("13 ffffffffffffffff"))
    machine.open_stream()
    machine.receive_data(overall(CREDIT, 1))
    assert machine._all.outgoing.credit == 2**64 - 1


@BOTH_ROLES
def test_opening_grants_the_window_at_once(role: Role) -> None:
    machine = quiet(role)
    stream_id = machine.open_stream(7)
    assert control(machine) == [overall(WRITE, stream_id), packet(CREDIT, stream_id, 7)]


@BOTH_ROLES
def test_window_of_an_opening_is_the_configured_one(role: Role) -> None:
    machine = quiet(role, receive_window=50)
    stream_id = machine.open_stream()
    assert control(machine)[1] == packet(CREDIT, stream_id, 50)


@BOTH_ROLES
def test_window_of_nothing_is_not_infinite(role: Role) -> None:
    machine = quiet(role)
    stream_id = machine.open_stream(0)
    assert outbox(machine) == [overall(WRITE, stream_id)]


@BOTH_ROLES
def test_opener_waits_for_credit_to_write(role: Role) -> None:
    machine = quiet(role)
    stream_id = machine.open_stream()
    assert (machine.credit(stream_id), machine.send_data(stream_id, b"x")) == (0, 0)


@BOTH_ROLES
def test_opening_by_the_peer_is_reported(role: Role) -> None:
    machine = quiet(role)
    machine.receive_data(overall(WRITE, id_of(other(role), 3)))
    assert machine.events() == [StreamOpened(id_of(other(role), 3))]


@BOTH_ROLES
def test_accepting_grants_the_window(role: Role) -> None:
    machine = quiet(role)
    stream_id = id_of(other(role))
    machine.receive_data(overall(WRITE, stream_id))
    machine.accept(stream_id, 9)
    assert outbox(machine) == [packet(CREDIT, stream_id, 9)]


@BOTH_ROLES
def test_all_ids_can_be_used_up(role: Role) -> None:
    machine = quiet(role)
    machine._next = 2**64 - 2 + (role is Role.SERVER)
    machine.open_stream()
    with pytest.raises(StreamsExhausted, match="used up") as caught:
        machine.open_stream()
    assert caught.value.bits == 63


@BOTH_ROLES
def test_refusing_ends_both_halves(role: Role) -> None:
    machine = quiet(role)
    stream_id = id_of(other(role))
    machine.receive_data(overall(WRITE, stream_id))
    machine.refuse(stream_id, 0)
    assert (control(machine), data(machine)) == (
        [packet(STOP_READ, stream_id)],
        [packet(CLOSE, stream_id)],
    )


@BOTH_ROLES
def test_refused_stream_is_reported_only_as_finished(role: Role) -> None:
    machine = quiet(role, BymuxState(peer_starting_credit=5))
    stream_id = id_of(other(role))
    machine.receive_data(
        overall(WRITE, stream_id)
        + write(stream_id, b"hi")
        + packet(CLOSE, stream_id)
        + packet(STOP_READ, stream_id)
    )
    assert machine.events() == [StreamOpened(stream_id)]
    machine.refuse(stream_id, 0)
    assert all_events(machine) == [StreamFinished(stream_id)]


@BOTH_ROLES
def test_refusing_keeps_what_else_was_received(role: Role) -> None:
    machine = quiet(role)
    first, second = (id_of(other(role), n) for n in range(2))
    machine.receive_data(overall(WRITE, first) + overall(WRITE, second) + overall(STOP_READ))
    assert machine.events() == [StreamOpened(first)]
    machine.refuse(first, 0)
    assert all_events(machine) == [StreamOpened(second), GoAwayReceived(id_of(role), 0)]


@BOTH_ROLES
def test_accepting_what_the_same_bytes_ended_does_nothing(role: Role) -> None:
    machine = quiet(role)
    stream_id = id_of(other(role))
    machine.receive_data(
        overall(WRITE, stream_id) + packet(CLOSE, stream_id) + packet(STOP_READ, stream_id)
    )
    outbox(machine)
    machine.accept(stream_id, 100)
    assert outbox(machine) == []


@BOTH_ROLES
def test_credit_for_streams_returns_as_they_end(role: Role) -> None:
    machine = quiet(role, max_streams=1)
    stream_id = id_of(other(role))
    machine.receive_data(overall(WRITE, stream_id) + packet(CLOSE, stream_id))
    machine.refuse(stream_id, 0)
    outbox(machine)
    machine.receive_data(packet(STOP_READ, stream_id))
    assert outbox(machine) == [overall(CREDIT, 1)]


@BOTH_ROLES
def test_credit_for_streams_waits_until_it_matters(role: Role) -> None:
    machine = quiet(role, max_streams=4)
    peer = other(role)
    for index in range(2):
        stream_id = id_of(peer, index)
        machine.receive_data(
            overall(WRITE, stream_id) + packet(CLOSE, stream_id) + packet(STOP_READ, stream_id)
        )
        sent = control(machine)
        assert (overall(CREDIT, 2) in sent) is (index == 1)


# Ids used again


def finish_by_peer(machine: BymuxProtocol, stream_id: int) -> None:
    machine.receive_data(
        overall(WRITE, stream_id) + packet(CLOSE, stream_id) + packet(STOP_READ, stream_id)
    )
    all_events(machine)
    outbox(machine)


@BOTH_ROLES
def test_id_may_be_used_again_after_all_four_packets(role: Role) -> None:
    machine = quiet(role)
    stream_id = id_of(other(role))
    finish_by_peer(machine, stream_id)
    machine.receive_data(overall(WRITE, stream_id))
    assert machine.events() == [StreamOpened(stream_id + 2**64)]


@BOTH_ROLES
def test_every_further_use_of_an_id_has_a_number_of_its_own(role: Role) -> None:
    machine = quiet(role)
    stream_id = id_of(other(role))
    finish_by_peer(machine, stream_id)
    finish_by_peer(machine, stream_id)
    machine.receive_data(overall(WRITE, stream_id))
    assert machine.events() == [StreamOpened(stream_id + 2 * 2**64)]


@BOTH_ROLES
def test_packets_of_a_stream_on_a_used_id_carry_that_id(role: Role) -> None:
    machine = quiet(role)
    stream_id = id_of(other(role))
    finish_by_peer(machine, stream_id)
    machine.receive_data(overall(WRITE, stream_id))
    machine.accept(stream_id + 2**64, 5)
    assert outbox(machine) == [packet(CREDIT, stream_id, 5)]


@BOTH_ROLES
def test_late_calls_do_not_reach_the_stream_that_has_the_id_now(role: Role) -> None:
    machine = quiet(role)
    stream_id = id_of(other(role))
    finish_by_peer(machine, stream_id)
    machine.receive_data(overall(WRITE, stream_id))
    machine.consumed(stream_id, 1)
    machine.close_read(stream_id)
    machine.close_write(stream_id, 0.0)
    assert outbox(machine) == []


@BOTH_ROLES
def test_this_side_uses_no_id_twice(role: Role) -> None:
    machine, stream_id = opened(role, local=True)
    machine.refuse(stream_id, 0)
    machine.receive_data(packet(STOP_READ, stream_id) + packet(CLOSE, stream_id))
    assert machine.open_stream() == stream_id + 2


# Data and credit


@BOTH_ROLES
@EITHER_OPENER
def test_credit_lets_a_stream_write(role: Role, local: bool) -> None:
    machine, stream_id = opened(role, local=local, credit=0)
    machine.receive_data(packet(CREDIT, stream_id, 5))
    assert machine.events() == [CreditGranted(stream_id)]
    assert machine.credit(stream_id) == 5


@BOTH_ROLES
@EITHER_OPENER
def test_further_credit_is_no_news(role: Role, local: bool) -> None:
    machine, stream_id = opened(role, local=local)
    machine.receive_data(packet(CREDIT, stream_id, 5))
    assert machine.events() == []


@BOTH_ROLES
@EITHER_OPENER
def test_writing_spends_credit(role: Role, local: bool) -> None:
    machine, stream_id = opened(role, local=local, credit=8)
    assert machine.send_data(stream_id, b"hello") == 5
    assert data(machine) == [write(stream_id, b"hello")]
    assert machine.credit(stream_id) == 3


@BOTH_ROLES
@EITHER_OPENER
def test_write_is_cut_to_the_credit(role: Role, local: bool) -> None:
    machine, stream_id = opened(role, local=local, credit=3)
    assert machine.send_data(stream_id, b"hello") == 3
    assert data(machine) == [write(stream_id, b"hel")]


@BOTH_ROLES
def test_a_turn_is_cut(role: Role) -> None:
    machine, stream_id = opened(role, local=True, max_frame_size=10)
    machine.receive_data(packet(CREDIT, stream_id, 0))
    assert machine.credit(stream_id) == 10
    assert machine.send_data(stream_id, bytes(11)) == 10


@BOTH_ROLES
def test_no_more_bytes_are_sent_than_a_turn_carries(role: Role) -> None:
    machine, stream_id = opened(role, local=True, max_frame_size=10)
    machine.send_data(stream_id, b"tenletters!")
    assert outbox(machine) == [write(stream_id, b"tenletters")]


@BOTH_ROLES
def test_each_turn_of_data_is_counted(role: Role) -> None:
    machine, stream_id = opened(role, local=True)
    assert machine.data_frames == 0
    machine.send_data(stream_id, b"one")
    machine.send_data(stream_id, b"two")
    assert machine.data_frames == 2


@BOTH_ROLES
def test_a_turn_is_sent_in_packets_of_16_kib(role: Role) -> None:
    machine, stream_id = opened(role, local=True)
    machine.receive_data(packet(CREDIT, stream_id, 0))
    sent = random.Random(role).randbytes(2 * MAX_BODY + 5)
    assert machine.send_data(stream_id, sent + bytes(65536)) == 65536
    reader, position, bodies = PacketReader(), 0, []
    with memoryview(b"".join(outbox(machine))) as wire:
        while position < len(wire):
            found, position = reader.packet(wire, position)
            assert found is not None
            assert found.body is not None
            bodies.append(bytes(found.body))
    assert [len(body) for body in bodies] == [MAX_BODY] * 4
    assert b"".join(bodies).startswith(sent)


@BOTH_ROLES
def test_the_rest_of_a_turn_is_a_packet_of_its_own(role: Role) -> None:
    machine, stream_id = opened(role, local=True)
    machine.receive_data(packet(CREDIT, stream_id, 0))
    machine.send_data(stream_id, bytes(MAX_BODY) + b"rest")
    whole = encode_head(WRITE, stream_id, MAX_BODY) + bytes(MAX_BODY)
    assert outbox(machine) == [whole + write(stream_id, b"rest")]


@BOTH_ROLES
@EITHER_OPENER
def test_writes_behind_each_other_are_one_piece(role: Role, local: bool) -> None:
    machine, stream_id = opened(role, local=local, window=100)
    machine.receive_data(write(stream_id, b"one") + write(stream_id, b"two") + overall(PING))
    assert machine.events() == [DataReceived(stream_id, b"onetwo")]


@BOTH_ROLES
def test_a_piece_has_at_most_64_kib(role: Role) -> None:
    machine, stream_id = opened(role, local=True, window=100_000)
    wire = encode_head(WRITE, stream_id, 40_000) + bytes(40_000)
    machine.receive_data(wire + wire)
    assert machine.events() == [DataReceived(stream_id, bytes(40_000))] * 2


@BOTH_ROLES
def test_a_piece_may_have_64_kib(role: Role) -> None:
    machine, stream_id = opened(role, local=True, window=100_000)
    wire = encode_head(WRITE, stream_id, 32_768) + bytes(32_768)
    machine.receive_data(wire + wire + write(stream_id, b"x"))
    assert machine.events() == [
        DataReceived(stream_id, bytes(65_536)),
        DataReceived(stream_id, b"x"),
    ]


@BOTH_ROLES
def test_a_piece_of_many_writes_has_at_most_64_kib(role: Role) -> None:
    machine, stream_id = opened(role, local=True, window=100_000)
    wire = encode_head(WRITE, stream_id, 25_000) + bytes(25_000)
    machine.receive_data(wire * 3)
    assert machine.events() == [
        DataReceived(stream_id, bytes(50_000)),
        DataReceived(stream_id, bytes(25_000)),
    ]


@BOTH_ROLES
def test_a_single_byte_that_joins_a_piece_uses_credit(role: Role) -> None:
    machine, stream_id = opened(role, local=True, window=4)
    machine.receive_data(write(stream_id, b"one") + write(stream_id, b"x"))
    assert machine.events() == [DataReceived(stream_id, b"onex")]
    assert machine.peer_credit(stream_id) == 0


@BOTH_ROLES
def test_a_piece_may_use_up_the_credit(role: Role) -> None:
    machine, stream_id = opened(role, local=True, window=9)
    machine.receive_data(3 * write(stream_id, b"one"))
    assert machine.events() == [DataReceived(stream_id, b"oneoneone")]
    with pytest.raises(FlowControlError, match="with 0 of credit"):
        machine.receive_data(write(stream_id, b"x"))


@BOTH_ROLES
def test_credit_returns_for_every_write_of_a_piece(role: Role) -> None:
    machine, stream_id = opened(role, local=True, window=9)
    machine.receive_data(3 * write(stream_id, b"one"))
    machine.consumed(stream_id, 9)
    assert outbox(machine) == [packet(CREDIT, stream_id, 9)]


@BOTH_ROLES
def test_what_is_kept_of_an_incomplete_packet_is_told(role: Role) -> None:
    machine, stream_id = opened(role, local=True)
    told = []
    for byte in write(stream_id, b"hello"):
        machine.receive_data(bytes((byte,)))
        told.append(machine.held())
    assert told == [1, 2, 3, 4, 5, 6, 7, 0]


@BOTH_ROLES
def test_each_incomplete_packet_has_a_mark_of_its_own(role: Role) -> None:
    machine, stream_id = opened(role, local=True)
    wire = write(stream_id, b"hello")
    marks = []
    for _ in range(3):
        assert machine.incomplete() is None
        machine.receive_data(wire[:2])
        marks.append(machine.incomplete())
        machine.receive_data(wire[2:6])
        assert machine.incomplete() == marks[-1]
        machine.receive_data(wire[6:])
    assert None not in marks
    assert len(set(marks)) == 3


@BOTH_ROLES
def test_writes_on_different_streams_are_different_pieces(role: Role) -> None:
    machine, first = opened(role, local=True)
    second = machine.open_stream(100)
    machine.receive_data(write(first, b"one") + write(second, b"two") + write(first, b"three"))
    assert machine.events() == [
        DataReceived(first, b"one"),
        DataReceived(second, b"two"),
        DataReceived(first, b"three"),
    ]


@each_case
@BOTH_ROLES
@pytest.mark.parametrize("cut", range(1, 6))
def test_a_piece_ends_where_a_packet_is_cut(role: Role, cut: int) -> None:
    machine, stream_id = opened(role, local=True)
    wire = write(stream_id, b"one") + write(stream_id, b"two")
    machine.receive_data(wire[:-cut])
    assert machine.events() == [DataReceived(stream_id, b"one")]
    machine.receive_data(wire[-cut:])
    assert machine.events() == [DataReceived(stream_id, b"two")]


@BOTH_ROLES
@pytest.mark.parametrize("count", [1, 2, 3])
def test_what_came_before_an_overrun_is_reported(role: Role, count: int) -> None:
    machine, stream_id = opened(role, local=True, window=3 * count + 2)
    with pytest.raises(FlowControlError, match="Write of 3 bytes on stream . with 2 of credit"):
        machine.receive_data((count + 1) * write(stream_id, b"one"))
    assert machine.events() == [DataReceived(stream_id, count * b"one")]


@BOTH_ROLES
@EITHER_OPENER
def test_nothing_to_write_sends_nothing(role: Role, local: bool) -> None:
    machine, stream_id = opened(role, local=local)
    assert machine.send_data(stream_id, b"") == 0
    assert outbox(machine) == []


@BOTH_ROLES
def test_infinite_credit_is_not_spent(role: Role) -> None:
    machine, stream_id = opened(role, local=True)
    machine.receive_data(packet(CREDIT, stream_id, 0))
    machine.send_data(stream_id, b"hello")
    assert machine._streams[stream_id].outgoing.credit == INFINITE


@BOTH_ROLES
def test_zero_on_infinite_credit_is_ignored(role: Role) -> None:
    machine, stream_id = opened(role, local=True)
    machine.receive_data(packet(CREDIT, stream_id, 0))
    before = snapshot(machine)
    machine.receive_data(packet(CREDIT, stream_id, 0))
    assert snapshot(machine) == before


@BOTH_ROLES
def test_credit_becomes_infinite_at_the_sum(role: Role) -> None:
    machine, stream_id = opened(role, local=True, credit=1)
    machine.receive_data(of("03") + bytes((stream_id,)) + of("fffffffffffffffe"))
    assert machine._streams[stream_id].outgoing.infinite


@BOTH_ROLES
def test_largest_finite_credit_is_spent(role: Role) -> None:
    machine, stream_id = opened(role, local=True, credit=0)
    machine.receive_data(of("03") + bytes((stream_id,)) + of("fffffffffffffffe"))
    machine.send_data(stream_id, b"x")
    assert machine._streams[stream_id].outgoing.credit == 2**64 - 3


@BOTH_ROLES
@EITHER_OPENER
def test_data_is_reported(role: Role, local: bool) -> None:
    machine, stream_id = opened(role, local=local)
    machine.receive_data(write(stream_id, b"hello"))
    assert machine.events() == [DataReceived(stream_id, b"hello")]


@BOTH_ROLES
def test_empty_write_is_counted_even_without_credit(role: Role) -> None:
    machine, stream_id = opened(role, local=True, window=0)
    machine.receive_data(write(stream_id, b""))
    assert (machine.events(), machine.empty_messages) == ([], 1)


@BOTH_ROLES
def test_empty_writes_are_forgiven_in_time(role: Role) -> None:
    machine, stream_id = opened(role, local=True, max_empty_frames=1)
    for machine.now in (1.0, 6.0, 11.0):
        machine.receive_data(write(stream_id, b""))
    assert machine.empty_messages == 3


@BOTH_ROLES
@EITHER_OPENER
def test_credit_is_kept_while_the_peer_has_more(role: Role, local: bool) -> None:
    machine, stream_id = opened(role, local=local, window=10)
    machine.receive_data(write(stream_id, b"four"))
    machine.consumed(stream_id, 4)
    assert outbox(machine) == []


@BOTH_ROLES
@EITHER_OPENER
def test_credit_returns_once_it_is_what_the_peer_has(role: Role, local: bool) -> None:
    machine, stream_id = opened(role, local=local, window=10)
    machine.receive_data(write(stream_id, b"sixsix"))
    machine.consumed(stream_id, 4)
    assert outbox(machine) == [packet(CREDIT, stream_id, 4)]


@BOTH_ROLES
def test_one_byte_returns_where_it_is_the_window(role: Role) -> None:
    machine, stream_id = opened(role, local=True, window=1)
    machine.receive_data(write(stream_id, b"x"))
    machine.consumed(stream_id, 1)
    assert outbox(machine) == [packet(CREDIT, stream_id, 1)]


@BOTH_ROLES
def test_reading_nothing_returns_nothing(role: Role) -> None:
    machine, stream_id = opened(role, local=True, window=10)
    machine.receive_data(write(stream_id, bytes(10)))
    machine.consumed(stream_id, 0)
    assert outbox(machine) == []


@BOTH_ROLES
def test_nothing_returns_after_the_end(role: Role) -> None:
    machine, stream_id = opened(role, local=True, window=10)
    machine.receive_data(write(stream_id, bytes(10)) + packet(CLOSE, stream_id))
    outbox(machine)
    machine.consumed(stream_id, 10)
    assert outbox(machine) == []


@BOTH_ROLES
def test_consuming_more_than_came_is_an_error_of_this_side(role: Role) -> None:
    machine, stream_id = opened(role, local=True)
    with pytest.raises(ValueError, match="more consumed than received"):
        machine.consumed(stream_id, 1)


@pytest.mark.parametrize("count", [-1, 2])
def test_spending_what_is_not_there_is_an_error_of_this_side(count: int) -> None:
    half = SendHalf(HalfState(credit=1), of_stream=True)
    with pytest.raises(ValueError, match=f"spending {count} of 1"):
        half.spend(count)
    assert half.credit == 1


@pytest.mark.parametrize("count", [0, 1])
def test_all_that_is_there_may_be_spent_and_nothing_too(count: int) -> None:
    half = SendHalf(HalfState(credit=1), of_stream=True)
    half.spend(count)
    assert half.credit == 1 - count


# Ending


@BOTH_ROLES
@EITHER_OPENER
def test_closing_goes_behind_what_was_written(role: Role, local: bool) -> None:
    machine, stream_id = opened(role, local=local)
    machine.send_data(stream_id, b"x")
    machine.close_write(stream_id, 0.0)
    assert data(machine) == [write(stream_id, b"x"), packet(CLOSE, stream_id)]


@BOTH_ROLES
def test_closing_twice_is_said_once(role: Role) -> None:
    machine, stream_id = opened(role, local=True)
    machine.close_write(stream_id, 0.0)
    machine.reset_write(stream_id, 9)
    assert outbox(machine) == [packet(CLOSE, stream_id)]


@BOTH_ROLES
def test_stopping_twice_is_said_once(role: Role) -> None:
    machine, stream_id = opened(role, local=True)
    machine.close_read(stream_id)
    machine.reset_read(stream_id, 9)
    assert outbox(machine) == [packet(STOP_READ, stream_id)]


@BOTH_ROLES
def test_abort_does_not_overtake_data(role: Role) -> None:
    machine, stream_id = opened(role, local=True)
    machine.send_data(stream_id, b"x")
    machine.reset_write(stream_id, 9)
    assert (control(machine), data(machine)[-1]) == ([], packet(CLOSE, stream_id))


@BOTH_ROLES
def test_no_credit_is_left_after_closing(role: Role) -> None:
    machine, stream_id = opened(role, local=True)
    machine.close_write(stream_id, 0.0)
    assert machine.credit(stream_id) == 0
    with pytest.raises(LocalProtocolError, match="has ended"):
        machine.send_data(stream_id, b"x")


def test_unknown_stream_has_no_credit() -> None:
    machine = quiet(Role.CLIENT)
    assert machine.credit(8) == 0
    with pytest.raises(LocalProtocolError, match="has ended"):
        machine.send_data(8, b"x")


@BOTH_ROLES
@EITHER_OPENER
def test_close_is_answered_with_stop_read(role: Role, local: bool) -> None:
    machine, stream_id = opened(role, local=local)
    machine.receive_data(packet(CLOSE, stream_id))
    assert machine.events() == [StreamEnded(stream_id)]
    assert outbox(machine) == [packet(STOP_READ, stream_id)]


@BOTH_ROLES
@EITHER_OPENER
def test_stop_read_is_answered_with_close_behind_data(role: Role, local: bool) -> None:
    machine, stream_id = opened(role, local=local)
    machine.send_data(stream_id, b"x")
    machine.receive_data(packet(STOP_READ, stream_id))
    assert machine.events() == [WriteStopped(stream_id, None)]
    assert data(machine) == [write(stream_id, b"x"), packet(CLOSE, stream_id)]


@BOTH_ROLES
def test_close_that_answers_is_not_answered(role: Role) -> None:
    machine, stream_id = opened(role, local=True)
    machine.close_read(stream_id)
    outbox(machine)
    machine.receive_data(packet(CLOSE, stream_id))
    assert (machine.events(), outbox(machine)) == ([], [])


@BOTH_ROLES
def test_stop_read_that_answers_is_not_answered(role: Role) -> None:
    machine, stream_id = opened(role, local=True)
    machine.close_write(stream_id, 0.0)
    outbox(machine)
    machine.receive_data(packet(STOP_READ, stream_id))
    assert (machine.events(), outbox(machine)) == ([], [])


@BOTH_ROLES
@EITHER_OPENER
def test_stream_is_forgotten_after_all_four_packets(role: Role, local: bool) -> None:
    machine, stream_id = opened(role, local=local)
    machine.refuse(stream_id, 0)
    machine.receive_data(packet(CLOSE, stream_id))
    assert machine.open_streams() == 1
    machine.receive_data(packet(STOP_READ, stream_id))
    assert machine.open_streams() == 0
    assert machine.events() == [StreamFinished(stream_id)]


@BOTH_ROLES
def test_own_close_may_be_the_last_packet(role: Role) -> None:
    machine, stream_id = opened(role, local=True)
    machine.receive_data(packet(CLOSE, stream_id))
    machine.close_write(stream_id, 0.0)
    machine.receive_data(packet(STOP_READ, stream_id))
    assert machine.events() == [StreamEnded(stream_id), StreamFinished(stream_id)]


@BOTH_ROLES
def test_data_that_crosses_stop_read_is_dropped(role: Role) -> None:
    machine, stream_id = opened(role, local=True, window=5)
    machine.close_read(stream_id)
    machine.receive_data(write(stream_id, b"hello"))
    assert (machine.events(), machine._streams[stream_id].incoming.credit) == ([], 0)


@BOTH_ROLES
def test_credit_that_crosses_close_is_no_news(role: Role) -> None:
    machine, stream_id = opened(role, local=True, credit=0)
    machine.close_write(stream_id, 0.0)
    machine.receive_data(packet(CREDIT, stream_id, 5))
    assert machine.events() == []


@BOTH_ROLES
def test_data_read_after_the_end_stays_readable(role: Role) -> None:
    machine, stream_id = opened(role, local=True)
    machine.receive_data(write(stream_id, b"x") + packet(CLOSE, stream_id))
    assert machine.events() == [DataReceived(stream_id, b"x"), StreamEnded(stream_id)]


# Pings


@BOTH_ROLES
@EITHER_OPENER
def test_ping_on_a_stream_is_answered(role: Role, local: bool) -> None:
    machine, stream_id = opened(role, local=local)
    machine.receive_data(packet(PING, stream_id))
    assert outbox(machine) == [packet(PONG, stream_id)]


@BOTH_ROLES
def test_global_ping_is_answered(role: Role) -> None:
    machine = quiet(role)
    machine.receive_data(of("5f"))
    assert outbox(machine) == [of("70")]


@BOTH_ROLES
def test_pings_are_answered_once_while_the_answer_waits(role: Role) -> None:
    machine, stream_id = opened(role, local=True)
    machine.receive_data(2 * (packet(PING, stream_id) + overall(PING)))
    assert outbox(machine) == [packet(PONG, stream_id), overall(PONG)]


@BOTH_ROLES
def test_ping_after_the_answer_left_is_answered_again(role: Role) -> None:
    machine = quiet(role)
    machine.receive_data(overall(PING))
    outbox(machine)
    machine.receive_data(overall(PING))
    assert outbox(machine) == [overall(PONG)]


@BOTH_ROLES
def test_stream_that_ended_here_is_not_answered(role: Role) -> None:
    machine, stream_id = opened(role, local=True)
    machine.refuse(stream_id, 0)
    outbox(machine)
    machine.receive_data(packet(PING, stream_id))
    assert outbox(machine) == []


@BOTH_ROLES
def test_half_ended_stream_still_answers(role: Role) -> None:
    machine, stream_id = opened(role, local=True)
    machine.close_write(stream_id, 0.0)
    machine.receive_data(packet(PING, stream_id))
    assert control(machine) == [packet(PONG, stream_id)]


@BOTH_ROLES
def test_global_ping_on_the_wire_and_its_pong(role: Role) -> None:
    machine = quiet(role)
    machine.ping(7)
    assert outbox(machine) == [of("50")]
    machine.receive_data(of("70"))
    assert (machine.events(), outbox(machine)) == ([PongReceived(None, 7)], [])


@BOTH_ROLES
@EITHER_OPENER
def test_stream_ping_on_the_wire_and_its_pong(role: Role, local: bool) -> None:
    machine, stream_id = opened(role, local=local)
    machine.ping_stream(stream_id, 8)
    assert outbox(machine) == [packet(PING, stream_id)]
    machine.receive_data(packet(PONG, stream_id))
    assert machine.events() == [PongReceived(stream_id, 8)]


@BOTH_ROLES
@EITHER_OPENER
def test_unasked_pongs_are_ignored(role: Role, local: bool) -> None:
    machine, stream_id = opened(role, local=local)
    before = snapshot(machine)
    machine.receive_data(packet(PONG, stream_id) + overall(PONG))
    assert snapshot(machine) == before | {"empty_messages": 2}


@BOTH_ROLES
def test_one_ping_is_under_way_and_the_last_asked_for_follows(role: Role) -> None:
    machine = quiet(role)
    for value in range(3):
        machine.ping(value)
    assert outbox(machine) == [overall(PING)]
    machine.receive_data(overall(PONG))
    assert outbox(machine) == [overall(PING)]
    machine.receive_data(overall(PONG))
    assert machine.events() == [PongReceived(None, 0), PongReceived(None, 2)]


@BOTH_ROLES
def test_waiting_ping_is_dropped_behind_the_global_pair(role: Role) -> None:
    machine = quiet(role)
    machine.ping(1)
    machine.ping(2)
    machine.go_away(0)
    outbox(machine)
    machine.receive_data(overall(PONG))
    assert outbox(machine) == []
    assert machine.events() == [PongReceived(None, 1), PongsEnded(None)]


@BOTH_ROLES
def test_waiting_ping_of_a_stream_is_dropped_behind_both_of_its_ends(role: Role) -> None:
    machine, stream_id = opened(role, local=True)
    machine.ping_stream(stream_id, 1)
    machine.ping_stream(stream_id, 2)
    machine.close_write(stream_id, 0.0)
    machine.close_read(stream_id)
    outbox(machine)
    machine.receive_data(packet(PONG, stream_id))
    assert outbox(machine) == []
    assert machine.events() == [PongReceived(stream_id, 1), PongsEnded(stream_id)]


@BOTH_ROLES
@pytest.mark.parametrize("pair", [(CLOSE, STOP_READ), (STOP_READ, CLOSE)])
def test_ping_under_way_has_no_answer_behind_the_global_pair_of_the_peer(
    role: Role, pair: tuple[int, int]
) -> None:
    machine = quiet(role)
    machine.ping(1)
    machine.receive_data(overall(pair[0]))
    assert PongsEnded(None) not in machine.events()
    machine.receive_data(overall(pair[1]))
    assert machine.events()[-1] == PongsEnded(None)


@BOTH_ROLES
def test_no_ping_leaves_behind_the_global_pair(role: Role) -> None:
    machine = quiet(role)
    machine.go_away(0)
    with pytest.raises(LocalProtocolError, match="global Close and StopRead"):
        machine.ping(1)


@BOTH_ROLES
def test_no_ping_leaves_behind_the_end_of_a_stream(role: Role) -> None:
    machine, stream_id = opened(role, local=True)
    machine.refuse(stream_id, 0)
    with pytest.raises(LocalProtocolError, match=f"the end of stream {stream_id}"):
        machine.ping_stream(stream_id, 1)


def test_unknown_stream_cannot_be_pinged() -> None:
    with pytest.raises(LocalProtocolError, match="the end of stream 8"):
        quiet(Role.CLIENT).ping_stream(8, 1)


# Going away


@BOTH_ROLES
def test_going_away_says_both(role: Role) -> None:
    machine = quiet(role)
    machine.go_away(77)
    machine.go_away(77)
    assert outbox(machine) == [of("90"), of("b0")]


@BOTH_ROLES
def test_going_away_ends_the_wait_for_an_opening(role: Role) -> None:
    machine = fresh(role)
    machine.go_away(0)
    assert machine.events() == [OpenPermitted()]
    with pytest.raises(LocalProtocolError, match="going away"):
        machine.open_stream()


@BOTH_ROLES
def test_going_away_with_credit_left_wakes_nobody(role: Role) -> None:
    machine = quiet(role)
    machine.go_away(0)
    assert machine.events() == []


@BOTH_ROLES
def test_credit_behind_going_away_permits_nothing(role: Role) -> None:
    machine = quiet(role, opens=0)
    machine.go_away(0)
    machine.events()
    machine.receive_data(overall(CREDIT, 1))
    assert machine.events() == []


@BOTH_ROLES
@EITHER_OPENER
def test_running_streams_go_on_behind_going_away(role: Role, local: bool) -> None:
    machine, stream_id = opened(role, local=local)
    machine.go_away(0)
    machine.receive_data(overall(STOP_READ) + overall(CLOSE) + write(stream_id, b"x"))
    assert machine.send_data(stream_id, b"y") == 1
    assert machine.events()[-1] == DataReceived(stream_id, b"x")


@BOTH_ROLES
def test_global_close_is_answered(role: Role) -> None:
    machine = quiet(role)
    machine.receive_data(of("90"))
    assert (machine.events(), outbox(machine)) == ([], [of("b0")])


@BOTH_ROLES
def test_global_stop_read_is_answered_and_reported(role: Role) -> None:
    machine, stream_id = opened(role, local=True)
    machine.receive_data(of("b0"))
    assert machine.events() == [GoAwayReceived(stream_id + 2, 0)]
    assert outbox(machine) == [of("90")]
    with pytest.raises(LocalProtocolError, match="going away"):
        machine.open_stream()


@BOTH_ROLES
def test_opening_that_crosses_going_away_is_ended_at_once(role: Role) -> None:
    machine = quiet(role)
    machine.go_away(0)
    outbox(machine)
    stream_id = id_of(other(role))
    machine.receive_data(overall(WRITE, stream_id))
    assert all_events(machine) == []
    assert outbox(machine) == [packet(STOP_READ, stream_id), packet(CLOSE, stream_id)]


@BOTH_ROLES
def test_streams_that_end_behind_going_away_return_no_credit(role: Role) -> None:
    machine, stream_id = opened(role, local=False, max_streams=1)
    machine.go_away(0)
    machine.refuse(stream_id, 0)
    outbox(machine)
    machine.receive_data(packet(CLOSE, stream_id) + packet(STOP_READ, stream_id))
    assert outbox(machine) == []


@BOTH_ROLES
def test_global_ping_behind_the_own_pair_is_not_answered(role: Role) -> None:
    machine = quiet(role)
    machine.go_away(0)
    outbox(machine)
    machine.receive_data(overall(PING))
    assert outbox(machine) == []


@BOTH_ROLES
@pytest.mark.parametrize("code", [1000, 1001])
def test_farewell_at_a_clean_end_is_the_global_pair(role: Role, code: int) -> None:
    machine = quiet(role)
    machine.close_notice(code)
    assert outbox(machine) == [overall(CLOSE), overall(STOP_READ)]


@BOTH_ROLES
@pytest.mark.parametrize("code", [1002, 1011, 4000])
def test_nothing_is_said_at_any_other_end(role: Role, code: int) -> None:
    machine = quiet(role)
    machine.close_notice(code)
    assert outbox(machine) == []
    assert machine.may_open()


@BOTH_ROLES
def test_only_both_global_packets_between_packets_are_a_farewell(role: Role) -> None:
    machine, stream_id = opened(role, local=True)
    machine.receive_data(overall(CLOSE))
    assert not machine.close_notice_came()
    machine.receive_data(overall(STOP_READ))
    assert machine.close_notice_came()
    wire = write(stream_id, b"xy")
    for cut in (1, 3, 4):
        machine.receive_data(wire[:cut])
        assert not machine.close_notice_came()
        machine.receive_data(wire[cut:])
        assert machine.close_notice_came()


@BOTH_ROLES
def test_pings_end_with_the_own_global_pair(role: Role) -> None:
    machine = quiet(role)
    assert machine.may_ping()
    machine.go_away(0)
    assert not machine.may_ping()


# The initial state


def three_streams() -> BymuxState:
    """Return a client's: an own stream, one of the peer, one half over, and no others ever."""
    return BymuxState(
        streams=(
            StreamState(stream_id=0, outgoing=HalfState(credit=4), incoming=HalfState(credit=60)),
            StreamState(
                stream_id=1, outgoing=HalfState(credit=INFINITE), incoming=HalfState(credit=60)
            ),
            StreamState(stream_id=4, outgoing=OVER, incoming=HalfState(credit=60)),
        ),
        opening=OVER,
        accepting=OVER,
    )


def pair_of(state: BymuxState, **limits: Any) -> Pair:
    return Pair(fresh(Role.CLIENT, state, **limits), fresh(Role.SERVER, state.mirrored(), **limits))


def test_pair_starts_with_three_streams_and_both_globals_closed() -> None:
    pair = pair_of(three_streams(), receive_window=60)
    client, server = pair[Role.CLIENT], pair[Role.SERVER]
    assert (client.open_streams(), server.open_streams()) == (3, 3)
    assert client.send_data(0, b"hello") == 4
    assert client.send_data(1, b"hello") == 5
    assert server.send_data(4, b"last") == 4
    server.close_write(4, 0.0)
    client_events, server_events = pair.pump()
    assert client_events == [
        GoAwayReceived(0, 0),
        CreditGranted(0),  # the server fills its window up
        DataReceived(4, b"last"),
        StreamEnded(4),
        StreamFinished(4),
    ]
    assert server_events == [
        GoAwayReceived(1, 0),
        DataReceived(0, b"hell"),
        DataReceived(1, b"hello"),
        StreamFinished(4),
    ]


@BOTH_ROLES
def test_closed_globals_of_the_start_allow_no_opening(role: Role) -> None:
    machine = fresh(role, BymuxState(opening=OVER, accepting=OVER))
    assert machine.events() == [GoAwayReceived(id_of(role), 0)]
    assert outbox(machine) == []
    with pytest.raises(LocalProtocolError, match="going away"):
        machine.open_stream()


@BOTH_ROLES
def test_streams_of_the_start_get_the_configured_window(role: Role) -> None:
    state = BymuxState(streams=(StreamState(stream_id=6, incoming=HalfState(credit=20)),))
    assert outbox(fresh(role, state, receive_window=50, max_streams=1))[-1] == of("00061e")


@BOTH_ROLES
def test_infinite_credit_of_the_start_needs_no_grant(role: Role) -> None:
    state = BymuxState(streams=(StreamState(stream_id=6, incoming=HalfState(credit=INFINITE)),))
    machine = quiet(role, state)
    machine.receive_data(write(6, b"hello"))
    machine.consumed(6, 5)
    assert outbox(machine) == []
    assert machine._streams[6].incoming.infinite


@BOTH_ROLES
def test_credit_for_streams_of_the_start_is_topped_up(role: Role) -> None:
    peer_stream = StreamState(stream_id=id_of(other(role)))
    state = BymuxState(streams=(peer_stream,), accepting=HalfState(credit=2))
    assert outbox(fresh(role, state, max_streams=9))[0] == overall(CREDIT, 6)


@BOTH_ROLES
def test_every_stream_of_the_peer_takes_a_place_from_the_start(role: Role) -> None:
    ids = [id_of(role, n) for n in range(5)] + [id_of(other(role), n) for n in range(4)]
    streams = tuple(StreamState(stream_id=stream_id) for stream_id in ids)
    state = BymuxState(streams=streams, accepting=HalfState(credit=2))
    assert outbox(fresh(role, state, max_streams=9))[0] == overall(CREDIT, 3)


@BOTH_ROLES
def test_the_highest_id_of_the_start_tells_what_is_used_again(role: Role) -> None:
    low, middle, high = (id_of(other(role), n) for n in range(3))
    state = BymuxState(streams=(StreamState(stream_id=high), StreamState(stream_id=low)))
    machine = quiet(role, state)
    machine.receive_data(overall(WRITE, middle) + overall(WRITE, high + 2))
    assert all_events(machine) == [StreamOpened(middle + 2**64), StreamOpened(high + 2)]


@each_case
@BOTH_ROLES
@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize(
    ("outgoing", "incoming", "told"),
    [
        (HalfState(), HalfState(), (False, False, False, False)),
        (HalfState(closed=True), HalfState(), (True, False, False, False)),
        (HalfState(stopped=True), HalfState(), (False, True, False, False)),
        (HalfState(), HalfState(stopped=True), (False, False, True, False)),
        (HalfState(), HalfState(closed=True), (False, False, False, True)),
    ],
)
def test_streams_of_the_start_are_told_as_they_stood(
    role: Role, own: bool, outgoing: HalfState, incoming: HalfState, told: tuple[bool, ...]
) -> None:
    stream_id = id_of(role if own else other(role), 4)
    state = StreamState(stream_id=stream_id, outgoing=outgoing, incoming=incoming)
    machine = fresh(role, BymuxState(streams=(state,)))
    assert [tuple(stream) for stream in machine.initial] == [(stream_id, not own, *told)]


@BOTH_ROLES
def test_ids_of_the_start_are_not_opened(role: Role) -> None:
    own = StreamState(stream_id=id_of(role))
    machine = quiet(role, BymuxState(streams=(own,)))
    assert machine.open_stream() == id_of(role, 1)


@BOTH_ROLES
def test_id_of_the_start_used_again_has_a_number_of_its_own(role: Role) -> None:
    stream_id = id_of(other(role))
    stream = StreamState(stream_id=stream_id, outgoing=OVER, incoming=HalfState(stopped=True))
    machine = quiet(role, BymuxState(streams=(stream,)))
    machine.receive_data(packet(CLOSE, stream_id) + overall(WRITE, stream_id))
    assert all_events(machine) == [StreamFinished(stream_id), StreamOpened(stream_id + 2**64)]


@BOTH_ROLES
def test_answers_owed_from_the_start_are_sent(role: Role) -> None:
    stream = StreamState(
        stream_id=6, outgoing=HalfState(stopped=True), incoming=HalfState(closed=True)
    )
    state = BymuxState(
        streams=(stream,), opening=HalfState(stopped=True), accepting=HalfState(closed=True)
    )
    machine = fresh(role, state)
    assert outbox(machine) == [of("b0"), of("90"), of("a006"), of("8006")]
    assert all_events(machine)[-1] == StreamFinished(6)


@BOTH_ROLES
def test_starting_credit_lets_the_opener_write_at_once(role: Role) -> None:
    machine = quiet(role, BymuxState(starting_credit=5))
    stream_id = machine.open_stream()
    assert machine.send_data(stream_id, b"hello!") == 5


@BOTH_ROLES
def test_starting_credit_of_the_peer_is_part_of_the_window(role: Role) -> None:
    machine = quiet(role, BymuxState(peer_starting_credit=5))
    stream_id = id_of(other(role))
    machine.receive_data(overall(WRITE, stream_id) + write(stream_id, b"hello"))
    machine.accept(stream_id, 8)
    assert outbox(machine) == [packet(CREDIT, stream_id, 3)]


@BOTH_ROLES
def test_starting_credit_above_the_window_is_enough(role: Role) -> None:
    machine = quiet(role, BymuxState(peer_starting_credit=50))
    stream_id = id_of(other(role))
    machine.receive_data(overall(WRITE, stream_id))
    machine.accept(stream_id, 8)
    assert outbox(machine) == []


@BOTH_ROLES
def test_accepting_side_has_no_starting_credit(role: Role) -> None:
    state = BymuxState(starting_credit=5, peer_starting_credit=5)
    machine = quiet(role, state)
    machine.receive_data(overall(WRITE, id_of(other(role))))
    assert machine.credit(id_of(other(role))) == 0


def test_mirrored_twice_is_the_same_state() -> None:
    state = three_streams()
    assert state.mirrored().mirrored() == state
    assert state.mirrored() != state


def test_the_mirrored_state_has_the_two_sides_changed() -> None:
    one, two = HalfState(credit=1), HalfState(credit=2, closed=True)
    three, four = HalfState(credit=3), HalfState(credit=4, stopped=True)
    state = BymuxState(
        streams=(StreamState(stream_id=5, outgoing=one, incoming=two),),
        opening=three,
        accepting=four,
        starting_credit=6,
        peer_starting_credit=7,
    )
    assert state.mirrored() == BymuxState(
        streams=(StreamState(stream_id=5, outgoing=two, incoming=one),),
        opening=four,
        accepting=three,
        starting_credit=7,
        peer_starting_credit=6,
    )


def test_initial_state_is_vanilla() -> None:
    machine = BymuxProtocol(Role.CLIENT, Config(max_streams=1))
    assert (machine.open_streams(), machine.may_open(), outbox(machine)) == (0, False, [of("1001")])


@pytest.mark.parametrize("credit", [-1, 2**64])
def test_credit_of_the_start_fits_64_bits(credit: int) -> None:
    with pytest.raises(ValueError, match="credit must be from 0"):
        HalfState(credit=credit)


@pytest.mark.parametrize("name", ["starting_credit", "peer_starting_credit"])
def test_starting_credit_fits_64_bits(name: str) -> None:
    with pytest.raises(ValueError, match=f"^{name} must be"):
        BymuxState(**{name: 2**64})  # type: ignore[arg-type]


def test_id_of_the_start_fits_64_bits() -> None:
    with pytest.raises(ValueError, match="stream_id must be"):
        StreamState(stream_id=-1)


def test_stream_of_the_start_lives() -> None:
    with pytest.raises(ValueError, match="ended before the start"):
        StreamState(stream_id=2, outgoing=OVER, incoming=OVER)


def test_streams_of_the_start_have_ids_of_their_own() -> None:
    with pytest.raises(ValueError, match="same id"):
        BymuxState(streams=(StreamState(stream_id=2), StreamState(stream_id=2)))


# Small parts


@pytest.mark.parametrize("value", [-1, 2**64])
def test_integers_beyond_64_bits_are_not_encoded(value: int) -> None:
    with pytest.raises(ValueError, match="64 bits"):
        encode_head(PING, value)


@pytest.mark.parametrize(
    ("value", "width"),
    [(0, 1), (2**8 - 1, 1), (2**8, 2), (2**16 - 1, 2), (2**16, 4), (2**32 - 1, 4), (2**32, 8)]
    + [(2**64 - 1, 8)],
)
def test_integers_are_written_in_the_fewest_bytes(value: int, width: int) -> None:
    code, wire = (1, 2, 4, 8).index(width), value.to_bytes(width, "big")
    assert encode_head(PING, value) == bytes((PING << 5 | code << 2,)) + wire
    assert encode_head(CREDIT, value, value) == bytes((CREDIT << 5 | code << 2 | code,)) + 2 * wire


@pytest.mark.parametrize("kind", [PING, PONG, CLOSE, STOP_READ])
@pytest.mark.parametrize(("wire", "wire_id"), [("03", 3), ("", None)], ids=["stream", "global"])
def test_a_packet_without_a_number_has_the_number_0(
    kind: int, wire: str, wire_id: int | None
) -> None:
    header = kind << 5 | (0x10 if wire_id is None else 0)
    with memoryview(bytes((header,)) + of(wire)) as view:
        assert PacketReader().packet(view, 0) == (Packet(kind, wire_id, 0, None), len(view))


def test_granted_limit_is_not_exceeded() -> None:
    half = ReceiveHalf(HalfState(credit=3), of_stream=True)
    half.receive(2)
    assert (half.top_up(5), half.top_up(5), half.credit) == (2, 0, 3)


def test_what_was_given_back_is_part_of_the_granted_limit() -> None:
    half = ReceiveHalf(HalfState(credit=10), of_stream=True)
    half.receive(4)
    half.consume(3)
    assert (half.credit, half.unread, half.returned) == (6, 1, 3)
    assert (half.top_up(12), half.credit) == (2, 8)


def test_half_of_what_is_granted_may_return_in_parts() -> None:
    half = ReceiveHalf(HalfState(credit=9), of_stream=True)
    half.receive(6)
    assert (half.consume(3), half.halved()) == (3, False)
    half.receive(5)
    assert (half.consume(1), half.halved()) == (1, True)
    assert (half.consume(3), half.halved()) == (3, False)
    half.receive(4)
    assert (half.consume(1), half.halved()) == (1, True)


@pytest.mark.parametrize("credit", [0, 2**64 - 1])
def test_credit_of_the_start_may_be_any_64_bits(credit: int) -> None:
    assert HalfState(credit=credit).credit == credit


@BOTH_ROLES
def test_streams_of_both_sides_reach_each_other(role: Role) -> None:
    pair = bymux_pair()
    stream_id = pair[role].open_stream()
    pair.pump()
    pair[role].send_data(stream_id, b"ask")
    pair[other(role)].send_data(stream_id, b"answer")
    events = dict(zip(Role, pair.pump(), strict=True))
    assert events[role] == [DataReceived(stream_id, b"answer")]
    assert events[other(role)] == [DataReceived(stream_id, b"ask")]
