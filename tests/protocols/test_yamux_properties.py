"""Chopping changes nothing, any bytes end well, and two machines never lose a byte or a window.

``helpers/models`` has the model of two machines; ``whole/test_long_models`` runs it for long.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from wsmux.exceptions import RemoteProtocolError
from wsmux.protocols.base import Role
from wsmux.protocols.events import (
    DataReceived,
    Event,
    StreamOpened,
)
from wsmux.protocols.yamux import YamuxProtocol
from wsmux.protocols.yamux_frames import FrameReader, encode_head

from ..helpers.machine_pairs import BOTH_ROLES, outbox
from ..helpers.models.yamux import YamuxModel, roles
from ..helpers.yamux_wire import DATA, INITIAL, WINDOW, head, yamux

uint32s = st.one_of(st.integers(0, 40), st.integers(0, 2**32 - 1))


@given(st.integers(0, 3), st.integers(0, 2**16 - 1), uint32s, uint32s)
def test_a_head_decodes_to_what_was_encoded(
    kind: int, flags: int, stream_id: int, length: int
) -> None:
    wire = encode_head(kind, flags, stream_id, length)
    found, end = FrameReader().head(memoryview(wire), 0)
    assert (found, end) == ((0, kind, flags, stream_id, length), 12)


# Whatever the peer sends

small_ids = st.integers(0, 6)
any_flags = st.one_of(st.integers(0, 15), st.integers(0, 2**16 - 1))


@st.composite
def frames(draw: st.DrawFn) -> bytes:
    """Return a frame whose head says the truth about its body."""
    body = draw(st.binary(max_size=30))
    return head(DATA, draw(any_flags), draw(small_ids), len(body)) + body


@st.composite
def other_frames(draw: st.DrawFn) -> bytes:
    kind = draw(st.sampled_from([1, 1, 1, 2, 3, 3, 4]))
    ids = small_ids if kind == WINDOW else st.sampled_from([0, 0, 0, 1])
    return head(kind, draw(any_flags), draw(ids), draw(uint32s if kind < 3 else st.just(0)))


legal_openings = st.sampled_from([head(WINDOW, 1, 1, 0), head(WINDOW, 1, 2, 0)])
nearly = st.one_of(frames(), frames(), other_frames(), legal_openings)
wires = st.lists(nearly, max_size=25).map(b"".join)


class Outcome(NamedTuple):
    events: list[Event]
    error: str
    sent: bytes


def run(role: Role, chunks: list[bytes], *, answering: bool) -> Outcome:
    """Feed chunks to an owner that answers after each of them, or only at the end."""
    machine = yamux(role)
    machine.open_stream()
    machine.ping(7)
    events: list[Event] = []
    error = ""
    for chunk in chunks:
        try:
            machine.receive_data(chunk)
        except RemoteProtocolError as caught:
            error = f"{caught.code} {caught}"
        if answering or error:
            answer(machine, events)
        if error:
            break
    answer(machine, events)
    assert error[:4] in ("", "1002", "1011")
    return Outcome(events, error, b"".join(outbox(machine)))


def answer(machine: YamuxProtocol, events: list[Event]) -> None:
    while new := machine.events():
        events += new
        for event in new:
            if isinstance(event, StreamOpened):
                if event.stream_id % 3:
                    machine.accept(event.stream_id, INITIAL)
                else:
                    machine.refuse(event.stream_id, 0)
            elif isinstance(event, DataReceived):
                machine.consumed(event.stream_id, len(event.data))


def chop(wire: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({0, len(wire), *(cut % (len(wire) + 1) for cut in cuts)})
    return [wire[start:end] for start, end in zip(places, places[1:], strict=False)]


@settings(max_examples=150)
@given(roles, wires, st.lists(st.integers(0, 2**20), max_size=30))
def test_any_chopping_gives_the_same_events(role: Role, wire: bytes, cuts: list[int]) -> None:
    whole = run(role, [wire], answering=False)
    assert run(role, chop(wire, cuts), answering=False) == whole


def by_stream(events: list[Event]) -> dict[int | None, list[Event]]:
    found: dict[int | None, list[Event]] = {}
    for event in events:
        found.setdefault(getattr(event, "stream_id", None), []).append(event)
    return found


@settings(max_examples=100)
@given(roles, st.lists(frames(), max_size=20).map(b"".join))
def test_streams_taken_between_single_bytes_see_the_same(role: Role, wire: bytes) -> None:
    opening = head(WINDOW, 1, 2 if role is Role.CLIENT else 1, 0)
    whole = run(role, [opening, wire], answering=True)
    if whole.error:  # an id that is free again once its end was seen may be opened again
        return
    single = run(role, [opening, *chop(wire, list(range(len(wire))))], answering=True)
    assert by_stream(single.events) == by_stream(whole.events)


@BOTH_ROLES
@settings(max_examples=150)
@given(chunks=st.lists(st.one_of(nearly, nearly, st.binary(max_size=20)), max_size=25))
def test_any_bytes_give_events_or_a_protocol_error(role: Role, chunks: list[bytes]) -> None:
    run(role, chunks, answering=True)


@settings(max_examples=50)
@given(roles, wires, st.sampled_from([bytearray, memoryview]))
def test_any_buffer_type_gives_the_same_events(role: Role, wire: bytes, kind: Any) -> None:
    expected = run(role, [wire], answering=False)
    assert run(role, [kind(wire)], answering=False) == expected


# Two machines


TestYamuxModel = YamuxModel.TestCase
TestYamuxModel.settings = settings(max_examples=100, stateful_step_count=60)
