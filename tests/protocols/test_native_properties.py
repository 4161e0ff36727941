"""Encoding and decoding agree, and whatever comes in, nothing but our errors comes out."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wsmux.exceptions import RemoteProtocolError
from wsmux.protocols.base import Role
from wsmux.protocols.events import (
    DataReceived,
    GoAwayReceived,
    StreamAborted,
    StreamEnded,
    StreamOpened,
    WriteStopped,
)
from wsmux.protocols.native import JS_WS, WSMUX_V1, Dialect, NativeProtocol
from wsmux.protocols.varint import MAX_VARINT, encode_varint

from ..helpers.examples import examples
from ..helpers.machine_pairs import BOTH_DIALECTS, BOTH_ROLES, Pair, native, other, outbox

dialects = st.sampled_from([WSMUX_V1, JS_WS])
roles = st.sampled_from(Role)
numbers = st.one_of(*(st.integers(0, 2**bits - 1) for bits in (6, 14, 30, 62)))
codes = numbers
WIDTHS = (1, 2, 4, 8)


def longer_forms(value: int) -> list[bytes]:
    """Return every encoding of ``value``, the shortest first."""
    return [
        (value | prefix << (8 * width - 2)).to_bytes(width, "big")
        for prefix, width in enumerate(WIDTHS)
        if value < 1 << (8 * width - 2)
    ]


class Link(NamedTuple):
    near: NativeProtocol
    far: NativeProtocol
    stream_id: int
    pair: Pair


def link(role: Role, dialect: Dialect, number: int) -> Link:
    """Return two machines with one stream, whose id is as large as ``number``."""
    near, far = native(role, dialect), native(other(role), dialect)
    near._ids.next = min(number - number % 2, MAX_VARINT - 1) + (role is Role.SERVER)
    pair = Pair(*((near, far) if role is Role.CLIENT else (far, near)))
    stream_id = near.open_stream()
    pair.pump()
    return Link(near, far, stream_id, pair)


@settings(max_examples=examples(80))
@given(roles, dialects, numbers, st.binary(min_size=1, max_size=300))
def test_data_decodes_to_what_was_sent(
    role: Role, dialect: Dialect, number: int, payload: bytes
) -> None:
    near, _, stream_id, pair = link(role, dialect, number)
    assert near.send_data(stream_id, payload) == len(payload)
    pair.pump(single=True)
    near.send_data(stream_id, payload)
    while pair.step(role):
        pass
    assert pair.events(other(role)) == [DataReceived(stream_id, payload)]


@settings(max_examples=examples(80))
@given(roles, dialects, numbers, codes)
def test_abort_decodes_to_what_was_sent(
    role: Role, dialect: Dialect, number: int, code: int
) -> None:
    near, _, stream_id, pair = link(role, dialect, number)
    near.reset_write(stream_id, code)
    pair.step(role)
    assert pair.events(other(role)) == [StreamAborted(stream_id, code, False, "")]


@settings(max_examples=examples(80))
@given(roles, dialects, numbers, codes)
def test_stop_decodes_to_what_was_sent(
    role: Role, dialect: Dialect, number: int, code: int
) -> None:
    near, _, stream_id, pair = link(role, dialect, number)
    near.reset_read(stream_id, code)
    pair.step(role)
    assert pair.events(other(role)) == [WriteStopped(stream_id, code)]


@settings(max_examples=examples(40))
@given(roles, dialects, numbers)
def test_close_decodes_to_the_end(role: Role, dialect: Dialect, number: int) -> None:
    near, _, stream_id, pair = link(role, dialect, number)
    near.close_write(stream_id, 0.0)
    pair.step(role)
    assert pair.events(other(role)) == [StreamEnded(stream_id)]


@settings(max_examples=examples(80))
@given(roles, dialects, numbers, st.integers(0, 2**32 - 1))
def test_window_decodes_to_credit(role: Role, dialect: Dialect, number: int, window: int) -> None:
    near, far = native(role, dialect), native(other(role), dialect, max_message_size=2**33)
    near._ids.next = min(number - number % 2, MAX_VARINT - 1) + (role is Role.SERVER)
    stream_id = near.open_stream()
    far.receive_data(outbox(near)[0])
    far.accept(stream_id, window)
    near.receive_data(outbox(far)[0])
    assert near.credit(stream_id) == window


@settings(max_examples=examples(40))
@given(roles, st.integers(0, 2**61 - 2), codes)
def test_going_away_decodes_to_what_was_sent(role: Role, count: int, code: int) -> None:
    near, far = native(role), native(other(role))
    near._ids.peer_next += 2 * count
    far._ids.next = near._ids.peer_next
    near.go_away(code)
    far.receive_data(outbox(near)[0])
    assert far.events() == [GoAwayReceived(near._ids.peer_next, code)]


@settings(max_examples=examples(80))
@given(roles, dialects, numbers, st.data())
def test_ids_and_codes_mean_the_same_in_every_form(
    role: Role, dialect: Dialect, code: int, choose: st.DataObject
) -> None:
    stream_id = int(role is Role.CLIENT)
    kinds = [kind.to_bytes(dialect.type_width, "big") for kind in range(3)]
    identity = [choose.draw(st.sampled_from(longer_forms(stream_id))) for _ in range(3)]
    coded = choose.draw(st.sampled_from(longer_forms(code)))
    machine = native(role, dialect)
    machine.receive_data(identity[0] + kinds[1] + bytes(4))
    machine.accept(stream_id, 100)
    machine.receive_data(identity[1] + kinds[0] + b"hi")
    machine.receive_data(identity[2] + kinds[2] + b"\x00" + coded)
    assert machine.events() == [
        StreamOpened(stream_id),
        DataReceived(stream_id, b"hi"),
        StreamAborted(stream_id, code, False, ""),
    ]


# Whatever the peer sends

small_ids = st.integers(0, 7).map(lambda value: bytes((value,)))
small_ids_in_any_form = st.integers(0, 63).flatmap(
    lambda value: st.sampled_from(longer_forms(value))
)
any_ids = st.one_of(small_ids, small_ids, numbers.map(encode_varint), small_ids_in_any_form)
kinds_of_one_byte = st.one_of(st.integers(0, 4), st.integers(0, 255)).map(lambda n: bytes((n,)))
bodies = st.one_of(
    st.sampled_from([b"", b"\x00", b"\x01", b"\x00\x05", b"\x01\x05", b"\x02\x05", bytes(4)]),
    st.integers(0, 2**32 - 1).map(lambda value: value.to_bytes(4, "big")),
    st.binary(max_size=30),
)


@st.composite
def nearly_messages(draw: st.DrawFn) -> bytes:
    wide = draw(st.booleans())
    kind = draw(kinds_of_one_byte)
    return draw(any_ids) + (b"\x00" if wide else b"") + kind + draw(bodies)


inputs = st.one_of(nearly_messages(), nearly_messages(), st.binary(max_size=20))

# Announced to the peer, who is told the same for each stream.
WINDOW = 20


def error_of(machine: NativeProtocol, wire: bytes) -> RemoteProtocolError | None:
    try:
        machine.receive_data(wire)
    except RemoteProtocolError as error:
        return error
    return None


def survive(machine: NativeProtocol, wires: list[bytes]) -> None:
    """Feed messages as an owner does, who takes some streams and refuses others."""
    for wire in wires:
        error = error_of(machine, wire)
        outbox(machine)
        if error is not None:
            assert error.code == 1002
            assert str(error)
            return
        for event in machine.events():
            if isinstance(event, StreamOpened):
                if event.stream_id % 3:
                    machine.accept(event.stream_id, WINDOW)
                else:
                    machine.refuse(event.stream_id, machine.refused_code)
            elif isinstance(event, DataReceived):
                machine.consumed(event.stream_id, len(event.data))


@BOTH_ROLES
@BOTH_DIALECTS
@settings(max_examples=examples(150))
@given(wires=st.lists(inputs, max_size=25))
def test_any_messages_give_events_or_a_protocol_error(
    role: Role, dialect: Dialect, wires: list[bytes]
) -> None:
    machine = native(role, dialect)
    machine.open_stream(WINDOW)  # the first window that is announced is a promise for the others
    machine.open_stream(WINDOW)
    survive(machine, wires)


@BOTH_ROLES
@settings(max_examples=examples(150))
@given(wires=st.lists(inputs, max_size=25))
def test_any_messages_behind_a_going_away_give_events_or_a_protocol_error(
    role: Role, wires: list[bytes]
) -> None:
    machine = native(role)
    machine.open_stream()
    machine.go_away(0)
    survive(machine, wires)


@settings(max_examples=examples(100))
@given(
    roles, dialects, st.lists(inputs, max_size=25), st.sampled_from([bytes, bytearray, memoryview])
)
def test_any_buffer_type_gives_the_same_events(
    role: Role, dialect: Dialect, wires: list[bytes], kind: type
) -> None:
    def run(convert: type) -> object:
        machine = native(role, dialect)
        try:
            for wire in wires:
                machine.receive_data(convert(wire))
        except RemoteProtocolError as error:
            return machine.events(), str(error)
        return machine.events(), ""

    assert run(kind) == run(bytes)


@pytest.mark.parametrize("value", [0, 63, 64, 16383, 16384, 2**30 - 1, 2**30, MAX_VARINT])
def test_first_of_all_forms_is_the_one_sent(value: int) -> None:
    assert encode_varint(value) == longer_forms(value)[0]
