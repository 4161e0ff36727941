"""The frames of a durable stream are as documented, and an end allows what it must, and no more.

Frames come from the vectors, which were computed without this package.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from wsmux.exceptions import LocalProtocolError, RemoteProtocolError
from wsmux.protocols.durable import (
    MAX_DATA,
    MAX_NAME,
    NO_EPOCH,
    Accepted,
    Committed,
    Complete,
    Data,
    DurableReceiver,
    DurableSender,
    End,
    Open,
    Phase,
    Refusal,
    Refused,
)

from ..helpers.tables import each_case
from ..helpers.vectors.durable import FRAMES, ILLEGAL, Vector

EPOCH = bytes.fromhex("e0e1e2e3e4e5e6e7e8e9eaebecedeeef")
DIGEST = bytes(range(32))

Machine = DurableSender | DurableReceiver


def sender(*, size: int | None = None, committed: int | None = 0, sent: int = 0) -> DurableSender:
    """Return one that was accepted, unless ``committed`` is ``None``, and has sent so much."""
    made = DurableSender("a", EPOCH, size)
    made.open()
    if committed is not None:
        made.receive(b"\x10" + EPOCH + committed.to_bytes(8, "big"))
    if sent:
        made.data(sent)
    return made


def receiver(
    *, size: int | None = None, accepted: bool = True, data: bytes = b""
) -> DurableReceiver:
    """Return one that has accepted, and received so much."""
    made = DurableReceiver()
    made.receive(DurableSender("a", EPOCH, size).open())
    if accepted:
        made.accept(0)
    if data:
        made.receive(b"\x01" + bytes(8) + len(data).to_bytes(4, "big") + data)
    return made


def ended(machine: Machine) -> Machine:
    if isinstance(machine, DurableSender):
        machine.end()
    else:
        machine.receive(b"\x02" + machine.received.to_bytes(8, "big") + b"\x00")
    return machine


def answered(machine: DurableSender, answer: bytes) -> DurableSender:
    machine.receive(answer)
    return machine


FIVE = (5).to_bytes(8, "big")

# What the machine that reads a vector has seen before.
BEFORE: dict[tuple[str, str], Callable[[], Machine]] = {
    ("sender", "nothing"): DurableReceiver,
    ("sender", "OPEN"): lambda: receiver(accepted=False),
    ("sender", "ACCEPTED"): receiver,
    ("sender", "ACCEPTED and 5 bytes"): lambda: receiver(data=b"12345"),
    ("sender", "ACCEPTED of 10 bytes"): lambda: receiver(size=10),
    ("sender", "END"): lambda: ended(receiver()),
    ("receiver", "OPEN"): lambda: sender(committed=None),
    ("receiver", "OPEN of 10 bytes"): lambda: sender(committed=None, size=10),
    ("receiver", "ACCEPTED"): sender,
    ("receiver", "ACCEPTED and 5 bytes"): lambda: sender(sent=5),
    ("receiver", "COMMIT of 5 bytes"): lambda: answered(sender(sent=5), b"\x11" + FIVE),
    ("receiver", "END behind 5 bytes"): lambda: ended(sender(sent=5)),
    ("receiver", "REFUSED"): lambda: answered(sender(), b"\x13\x09\x00\x00"),
    ("receiver", "COMPLETE"): lambda: answered(
        ended(sender()),  # type: ignore[arg-type]
        b"\x12" + bytes(8),
    ),
}


def feed(machine: Machine, parts: Iterable[bytes]) -> list[object]:
    return [event for part in parts for event in machine.receive(part)]


def name_of(vector: Vector) -> str:
    return str(vector["name"])


def of(*kinds: str) -> pytest.MarkDecorator:
    chosen = [vector for vector in FRAMES if vector["type"] in kinds]
    return pytest.mark.parametrize("vector", chosen, ids=name_of)


# The vectors


@of("OPEN")
def test_an_open_is_written_and_read_as_its_vector_says(vector: Vector) -> None:
    fields, wire = vector["fields"], bytes.fromhex(vector["hex"])
    opened = Open(fields["name"], bytes.fromhex(fields["epoch"]), fields["size"])
    assert DurableSender(*opened).open() == wire
    assert DurableReceiver().receive(wire) == [opened]


@of("DATA")
def test_data_is_written_and_read_as_its_vector_says(vector: Vector) -> None:
    fields, wire = vector["fields"], bytes.fromhex(vector["hex"])
    data, offset = bytes.fromhex(fields["data"]), fields["offset"]
    assert sender(committed=offset).data(len(data)) + data == wire
    reading = receiver(accepted=False)
    reading.accept(offset)
    assert reading.receive(wire) == [Data(memoryview(data))]
    assert reading.received == offset + len(data)


@of("END")
def test_an_end_is_written_and_read_as_its_vector_says(vector: Vector) -> None:
    fields, wire = vector["fields"], bytes.fromhex(vector["hex"])
    offset = fields["offset"]
    digest = None if fields["digest"] is None else bytes.fromhex(fields["digest"])
    assert sender(committed=offset, size=offset).end(digest) == wire
    reading = receiver(accepted=False, size=offset)
    reading.accept(offset)
    assert reading.receive(wire) == [End(offset, digest)]


@of("ACCEPTED")
def test_an_acceptance_is_written_and_read_as_its_vector_says(vector: Vector) -> None:
    offset, wire = vector["fields"]["committed"], bytes.fromhex(vector["hex"])
    assert receiver(accepted=False).accept(offset) == wire
    waiting = sender(committed=None)
    assert waiting.receive(wire) == [Accepted(offset)]
    assert (waiting.sent, waiting.committed) == (offset, offset)


@of("COMMIT")
def test_a_commit_is_written_and_read_as_its_vector_says(vector: Vector) -> None:
    offset, wire = vector["fields"]["committed"], bytes.fromhex(vector["hex"])
    reading = receiver(accepted=False)
    reading.accept(offset)
    assert reading.commit(offset) == wire
    assert sender(sent=offset).receive(wire) == [Committed(offset)]


@of("COMPLETE")
def test_the_answer_to_the_end_is_written_and_read_as_its_vector_says(vector: Vector) -> None:
    offset, wire = vector["fields"]["committed"], bytes.fromhex(vector["hex"])
    reading = receiver(accepted=False)
    reading.accept(offset)
    ended(reading)
    assert reading.complete() == wire
    assert reading.phase is Phase.OVER
    waiting = sender(committed=offset)
    ended(waiting)
    assert waiting.receive(wire) == [Complete(offset)]
    assert waiting.phase is Phase.OVER


@of("REFUSED")
def test_a_refusal_is_written_and_read_as_its_vector_says(vector: Vector) -> None:
    kind, reason = Refusal(vector["fields"]["kind"]), vector["fields"]["reason"]
    wire = bytes.fromhex(vector["hex"])
    for accepted in (False, True):
        assert receiver(accepted=accepted).refuse(kind, reason) == wire
    for committed in (None, 0):
        waiting = sender(committed=committed)
        assert waiting.receive(wire) == [Refused(kind, reason)]
        assert waiting.phase is Phase.OVER
    assert kind.temporary == (vector["about"] == "temporary")


def test_there_is_a_vector_of_each_frame_and_each_refusal() -> None:
    kinds = {vector["fields"]["kind"] for vector in FRAMES if vector["type"] == "REFUSED"}
    assert kinds == {int(kind) for kind in Refusal} - {0}
    assert {vector["type"] for vector in FRAMES} == {
        *("OPEN", "DATA", "END", "ACCEPTED", "COMMIT", "COMPLETE", "REFUSED")
    }


@each_case
@pytest.mark.parametrize("vector", ILLEGAL, ids=name_of)
@pytest.mark.parametrize("step", [1, 7, 10**6], ids=["bytes", "sevens", "whole"])
def test_what_is_illegal_raises_however_it_is_cut(vector: Vector, step: int) -> None:
    machine = BEFORE[vector["side"], vector["after"]]()
    wire = bytes.fromhex(vector["hex"])
    with pytest.raises(RemoteProtocolError):
        feed(machine, [wire[start : start + step] for start in range(0, len(wire), step)])


def test_each_state_of_the_illegal_vectors_is_reached_by_one() -> None:
    assert {(vector["side"], vector["after"]) for vector in ILLEGAL} == set(BEFORE)


# What a side may not ask for itself


@pytest.mark.parametrize(
    ("name", "epoch", "size", "words"),
    [
        ("", EPOCH, None, "from 1 to 255 bytes"),
        ("a" * (MAX_NAME + 1), EPOCH, None, "not 256"),
        ("ä" * 128, EPOCH, None, "not 256"),
        ("\ud800", EPOCH, None, "not valid Unicode"),
        ("a", b"short", None, "hash whatever tells apart"),
        ("a", EPOCH, -1, "from 0"),
        ("a", EPOCH, 2**64 - 1, "from 0"),
    ],
)
def test_what_open_cannot_say_is_an_error(
    name: str, epoch: bytes, size: int | None, words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        DurableSender(name, epoch, size)


def test_a_name_that_is_no_string_is_an_error() -> None:
    name: Any = b"a"
    with pytest.raises(TypeError, match="must be a string, not bytes"):
        DurableSender(name, EPOCH, None)


def test_the_longest_name_and_the_largest_size_can_be_said() -> None:
    opened = Open("n" * MAX_NAME, NO_EPOCH, 2**64 - 2)
    assert DurableReceiver().receive(DurableSender(*opened).open()) == [opened]


@each_case
@pytest.mark.parametrize(
    "call",
    [
        lambda: DurableSender("a", EPOCH, None).data(1),
        lambda: DurableSender("a", EPOCH, None).end(),
        lambda: sender().open(),
        lambda: sender().data(0),
        lambda: sender().data(MAX_DATA + 1),
        lambda: sender(size=5).data(6),
        lambda: sender(size=5, sent=4).end(),
        lambda: sender().end(b"short"),
        lambda: ended(sender()).data(1),  # type: ignore[union-attr]
        lambda: receiver().accept(0),
        lambda: DurableReceiver().accept(0),
        lambda: receiver(accepted=False).commit(0),
        lambda: receiver(data=b"12345").commit(6),
        lambda: receiver().complete(),
        lambda: ended(receiver(data=b"1")).complete(),  # type: ignore[union-attr]
    ],
)
def test_what_is_not_allowed_now_is_an_error_of_this_side(call: Callable[[], object]) -> None:
    with pytest.raises(LocalProtocolError):
        call()


def test_a_commit_does_not_go_back() -> None:
    reading = receiver(data=b"12345")
    reading.commit(5)
    with pytest.raises(LocalProtocolError, match="5 is, and 5 were received"):
        reading.commit(4)


def test_nothing_follows_a_refusal() -> None:
    reading = receiver()
    reading.refuse(Refusal.BUSY, "later")
    for call in (lambda: reading.refuse(Refusal.BUSY, "again"), lambda: reading.commit(0)):
        with pytest.raises(LocalProtocolError, match="after COMPLETE or REFUSED"):
            call()


def test_a_malformed_stream_can_be_refused() -> None:
    reading = DurableReceiver()
    with pytest.raises(RemoteProtocolError, match="durable="):
        reading.receive(b"GET ")
    assert reading.refuse(Refusal.MALFORMED, "no")[:2] == b"\x13\x01"


def test_an_unknown_refusal_is_final() -> None:
    assert sender().receive(b"\x13\xee\x00\x02no") == [Refused(Refusal.UNKNOWN, "no")]
    assert not Refusal.UNKNOWN.temporary


def test_a_long_reason_is_cut_between_characters() -> None:
    wire = receiver().refuse(Refusal.FAILED, "ä" * 400)
    assert sender().receive(wire) == [Refused(Refusal.FAILED, "ä" * 250)]


def test_a_reason_of_odd_characters_can_be_sent() -> None:
    wire = receiver().refuse(Refusal.FAILED, "file \udcff")
    assert sender().receive(wire) == [Refused(Refusal.FAILED, "file ?")]


# Properties


@given(st.binary(max_size=400), st.lists(st.integers(0, 500), max_size=8), st.booleans())
def test_any_chopping_gives_the_same_data(data: bytes, places: list[int], digest: bool) -> None:
    sending = sender()
    wire = (sending.data(len(data)) + data if data else b"") + sending.end(
        DIGEST if digest else None
    )
    reading, events = receiver(), []
    for start, stop in pairwise([0, *sorted(places), len(wire)]):
        events += reading.receive(wire[start:stop])
    *pieces, end = events
    assert b"".join(piece.data for piece in pieces if isinstance(piece, Data)) == data
    assert end == End(len(data), DIGEST if digest else None)


@given(st.sampled_from(sorted(BEFORE)), st.binary(max_size=80))
def test_any_bytes_give_events_or_a_protocol_error(before: tuple[str, str], data: bytes) -> None:
    with suppress(RemoteProtocolError):
        BEFORE[before]().receive(data)


class Both(RuleBasedStateMachine):
    """Two ends over a wire that delays, is cut, and of which either end may begin anew.

    The model is the number of bytes whose effect has happened: each exactly once, in order.
    """

    def __init__(self) -> None:
        super().__init__()
        self.store = 0  # what the receiver's store has, which survives
        self.trimmed = 0  # what the sender can no longer send
        self.connect()

    def connect(self) -> None:
        self.sending, self.reading = DurableSender("a", EPOCH, None), DurableReceiver()
        self.out, self.back = bytearray(self.sending.open()), bytearray()

    @rule(length=st.integers(1, 9))
    @precondition(lambda self: self.sending.phase is Phase.FLOWING)
    def write(self, length: int) -> None:
        offset = self.sending.sent
        self.out += self.sending.data(length) + bytes(
            place % 251 for place in range(offset, offset + length)
        )

    @rule()
    @precondition(lambda self: self.sending.phase is Phase.FLOWING)
    def finish(self) -> None:
        self.out += self.sending.end()

    @rule(count=st.integers(1, 60))
    def deliver(self, count: int) -> None:
        part = bytes(self.out[:count])
        del self.out[:count]
        place = self.reading.received
        for event in self.reading.receive(part):
            if isinstance(event, Open):
                self.back += self.reading.accept(self.store)
            elif isinstance(event, Data):
                assert list(event.data) == [
                    each % 251 for each in range(place, place + len(event.data))
                ]
                place += len(event.data)

    @rule()
    @precondition(lambda self: self.reading.phase in (Phase.FLOWING, Phase.ENDED))
    def commit(self) -> None:
        self.store = self.reading.received
        self.back += self.reading.commit(self.store)

    @rule()
    @precondition(
        lambda self: (
            self.reading.phase is Phase.ENDED and self.reading.committed == self.reading.received
        )
    )
    def complete(self) -> None:
        self.back += self.reading.complete()

    @rule(count=st.integers(1, 60))
    def answer(self, count: int) -> None:
        part = bytes(self.back[:count])
        del self.back[:count]
        for event in self.sending.receive(part):
            if isinstance(event, Accepted):
                assert self.trimmed <= event.committed
            assert isinstance(event, Accepted | Committed | Complete)
            self.trimmed = event.committed

    @rule()
    def lose(self) -> None:
        """Lose the connection, or either process; what was under way is gone."""
        self.connect()

    @invariant()
    def what_is_trimmed_is_in_the_store(self) -> None:
        assert self.trimmed <= self.store
        assert self.sending.committed <= max(self.store, self.trimmed)
        if self.sending.phase is Phase.OVER:
            assert self.store == self.sending.sent


TestBoth = Both.TestCase
