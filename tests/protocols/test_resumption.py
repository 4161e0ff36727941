"""The messages of a resumable connection are as documented, and an end counts what it must.

Messages are put together here or come from the vectors: our encoder is never judged by our parser
alone.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wsmux.config import KIB, LARGEST_RESUME_BUFFER, LEAST_RESUME_BUFFER
from wsmux.exceptions import FrameError
from wsmux.protocols.base import Buffer, Message
from wsmux.protocols.resumption import (
    ACKNOWLEDGE_BESIDE,
    DATA_BYTE,
    END_BYTE,
    EPOCH_SIZE,
    KEPT_OVERHEAD,
    KEY_SIZE,
    LEAST_KEPT,
    LONGEST_GREETING,
    NO_EPOCH,
    SESSION_SIZE,
    Answer,
    Hello,
    Kept,
    MessageType,
    PositionError,
    Refusal,
    Session,
    Welcome,
    end_body,
    is_signed,
    parse_answer,
    parse_hello,
)

from ..helpers.tables import each_case
from ..helpers.vectors.resumption import MESSAGES, Vector

ID = bytes(range(16))
EPOCH = b"epoch..."
KEY = bytes(range(100, 132))
LIMIT = 100


class Sizes(NamedTuple):
    """Say how many messages of which size are kept, and how much room there is then."""

    kept: int
    size: int
    room: int


def session(**numbers: Any) -> Session:
    made = Session(ID, LIMIT, 60.0)
    made.epoch, made.key = EPOCH, KEY
    for name, value in numbers.items():
        assert hasattr(made, name)
        setattr(made, name, value)
    return made


def sending(*bodies: bytes) -> Session:
    """Return the session of an end that has sent these messages."""
    made = session()
    for body in bodies:
        made.keep((DATA_BYTE, body))
    return made


def ack(position: int) -> bytes:
    return b"\x05" + position.to_bytes(8, "big")


def end(code: int, reason: bytes = b"") -> bytes:
    return b"\x06" + code.to_bytes(2, "big") + reason


def bodies(kept: list[Kept]) -> list[bytes]:
    whole = [head + bytes(body) for _, (head, body) in kept]
    assert all(message[:1] == DATA_BYTE for message in whole)
    return [message[1:] for message in whole]


# The vectors


def of(*kinds: str) -> pytest.MarkDecorator:
    chosen = [vector for vector in MESSAGES if vector["type"] in kinds]
    return pytest.mark.parametrize("vector", chosen, ids=lambda vector: vector["name"])


def test_there_is_a_vector_of_each_type_which_is_its_first_byte() -> None:
    assert {vector["type"] for vector in MESSAGES} == set(MessageType.__members__)
    for vector in MESSAGES:
        assert bytes.fromhex(vector["hex"])[0] == MessageType[vector["type"]]


@of("HELLO")
def test_a_hello_is_written_and_read_as_its_vector_says(vector: Vector) -> None:
    fields, wire = vector["fields"], bytes.fromhex(vector["hex"])
    key = None if fields["key"] is None else bytes.fromhex(fields["key"])
    hello = Hello(
        bytes.fromhex(fields["session"]),
        bytes.fromhex(fields["epoch"]),
        fields["generation"],
        fields["resuming"],
        fields["received"],
        fields["oldest"],
        fields["buffer"],
    )
    assert hello.encode(key) == wire
    parsed, signed, mac = parse_hello(memoryview(wire))
    assert parsed == hello
    assert parsed.resuming is hello.resuming
    assert signed + mac == wire
    assert mac.hex() == fields["mac"]
    assert key is None or is_signed(key, signed, mac)


@of("WELCOME")
def test_a_welcome_is_written_and_read_as_its_vector_says(vector: Vector) -> None:
    fields, wire = vector["fields"], bytes.fromhex(vector["hex"])
    welcome = Welcome(
        bytes.fromhex(fields["epoch"]),
        fields["received"],
        fields["grace_ms"] / 1000,
        fields["buffer"],
        bytes.fromhex(fields["key"]),
    )
    assert welcome.encode() == wire
    assert parse_answer(memoryview(wire)) == welcome


@of("LOST", "REFUSED")
def test_a_refusal_is_written_and_read_as_its_vector_says(vector: Vector) -> None:
    wire = bytes.fromhex(vector["hex"])
    refusal = Refusal(vector["type"] == "LOST", vector["fields"]["reason"])
    assert refusal.encode() == wire
    assert parse_answer(memoryview(wire)) == refusal


@of("DATA")
def test_data_is_read_as_its_vector_says(vector: Vector) -> None:
    wire, body = bytes.fromhex(vector["hex"]), bytes.fromhex(vector["fields"]["body"])
    assert DATA_BYTE + body == wire
    receiver = session()
    assert receiver.receive(memoryview(wire)) == body
    assert receiver.received == len(body)


@of("ACK")
def test_an_acknowledgement_is_written_and_read_as_its_vector_says(vector: Vector) -> None:
    wire, position = bytes.fromhex(vector["hex"]), vector["fields"]["received"]
    receiver = session(received=position)
    assert receiver.acknowledgement() == wire
    assert receiver.told == position
    sender = session(sent=position)
    assert sender.receive(memoryview(wire)) is None
    assert sender.acknowledged == position
    assert sender.received == 0


@of("END")
def test_an_end_is_written_and_read_as_its_vector_says(vector: Vector) -> None:
    wire, fields = bytes.fromhex(vector["hex"]), vector["fields"]
    assert END_BYTE + end_body(fields["code"], fields["reason"]) == wire
    receiver = session()
    assert receiver.receive(memoryview(wire)) is None
    assert receiver.peer_end == (fields["code"], fields["reason"])
    assert receiver.received == len(wire) - 1


# HELLO

RESUMING = Hello(ID, EPOCH, 3, True, 70, 50)


def test_the_sizes_are_those_of_the_table() -> None:
    assert (SESSION_SIZE, EPOCH_SIZE, KEY_SIZE) == (16, 8, 32)
    assert len(RESUMING.encode(KEY)) == 1 + 1 + 16 + 8 + 4 + 1 + 8 + 8 + 4 + 32
    assert len(Welcome(EPOCH, 0, 1.0).encode()) == 1 + 8 + 8 + 4 + 4 + 32


def test_a_mac_is_of_everything_before_it_under_the_key() -> None:
    wire = RESUMING.encode(KEY)
    assert wire[-32:] == hmac.new(KEY, wire[:-32], hashlib.sha256).digest()
    assert Hello(ID).encode(None)[-32:] == bytes(32)


def test_a_mac_with_any_bit_wrong_is_no_signature() -> None:
    _, signed, mac = parse_hello(RESUMING.encode(KEY))
    assert is_signed(KEY, signed, mac)
    for place in range(32):
        for bit in range(8):
            forged = bytearray(mac)
            forged[place] ^= 1 << bit
            assert not is_signed(KEY, signed, bytes(forged))
    assert not is_signed(bytes(32), signed, mac)
    assert not is_signed(KEY, signed, bytes(32))


def test_a_hello_with_any_signed_byte_changed_is_refused_or_not_signed() -> None:
    wire = RESUMING.encode(KEY)
    for place in range(len(wire) - 32):
        changed = bytearray(wire)
        changed[place] ^= 0x81
        try:
            _, signed, mac = parse_hello(changed)
        except FrameError:
            continue
        assert not is_signed(KEY, signed, mac), place


@each_case
@pytest.mark.parametrize("size", range(len(RESUMING.encode(KEY))))
def test_a_hello_cut_anywhere_is_refused(size: int) -> None:
    with pytest.raises(FrameError, match=f"begins with a HELLO of 83 bytes, not with {size} bytes"):
        parse_hello(RESUMING.encode(KEY)[:size])


@pytest.mark.parametrize(
    ("wire", "said"),
    [
        (b"", "not with 0 bytes of type none"),
        (RESUMING.encode(KEY) + b"\x00", "not with 84 bytes of type 1"),
        *(
            (bytes((kind,)) + bytes(82), f"not with 83 bytes of type {kind}")
            for kind in (0, 2, 255)
        ),
    ],
)
def test_what_is_no_hello_is_refused(wire: bytes, said: str) -> None:
    with pytest.raises(FrameError, match=said):
        parse_hello(wire)


def hello(
    version: int = 1,
    resuming: int = 1,
    epoch: bytes = EPOCH,
    generation: int = 1,
    received: int = 0,
    oldest: int = 0,
    buffer: int = LEAST_RESUME_BUFFER,
) -> bytes:
    fields = (1, version, ID, epoch, generation, resuming, received, oldest, buffer)
    return struct.pack(">BB16s8sIBQQI", *fields) + bytes(32)


@pytest.mark.parametrize("version", [0, 2, 255])
def test_a_hello_of_another_version_is_refused_with_both(version: int) -> None:
    with pytest.raises(FrameError, match=f"of version {version}, and this side speaks version 1"):
        parse_hello(hello(version))


@pytest.mark.parametrize("flag", [2, 3, 255])
def test_the_flag_of_a_hello_is_a_bit(flag: int) -> None:
    with pytest.raises(FrameError, match=f"the flag of HELLO is 0 or 1, not {flag}"):
        parse_hello(hello(resuming=flag))


NEW: dict[str, Any] = {"epoch": NO_EPOCH, "generation": 0, "received": 0, "oldest": 0}


@pytest.mark.parametrize("name", NEW)
def test_a_new_session_has_nothing_yet(name: str) -> None:
    assert parse_hello(hello(resuming=0, **NEW))[0] == Hello(ID)
    value = EPOCH if name == "epoch" else 1
    with pytest.raises(FrameError, match="a new session has no epoch, no generation and no pos"):
        parse_hello(hello(resuming=0, **NEW | {name: value}))


@pytest.mark.parametrize("name", ["epoch", "generation"])
def test_a_session_that_resumes_has_an_epoch_and_a_generation(name: str) -> None:
    assert parse_hello(hello())[0] == Hello(ID, EPOCH, 1, True)
    with pytest.raises(FrameError, match="without an epoch and a generation HELLO begins"):
        parse_hello(hello(**{name: NEW[name]}))


@pytest.mark.parametrize("size", [0, 1, LEAST_RESUME_BUFFER - 1])
def test_a_peer_that_keeps_too_little_is_refused(size: int) -> None:
    assert parse_hello(hello(buffer=LEAST_RESUME_BUFFER))[0].buffer == LEAST_RESUME_BUFFER
    with pytest.raises(FrameError, match=f"a buffer of {size} bytes, but at least 262144 are"):
        parse_hello(hello(buffer=size))
    with pytest.raises(FrameError, match=f"a buffer of {size} bytes, but at least 262144 are"):
        parse_answer(Welcome(EPOCH, 0, 1.0, size, KEY).encode())


uint64 = st.integers(0, 2**64 - 1)
some_bytes = st.binary(max_size=100)


@given(
    hello=st.builds(
        Hello,
        session=st.binary(min_size=16, max_size=16),
        epoch=st.binary(min_size=8, max_size=8).filter(any),
        generation=st.integers(1, 2**32 - 1),
        resuming=st.just(True),
        received=uint64,
        oldest=uint64,
        buffer=st.integers(LEAST_RESUME_BUFFER, 2**32 - 1),
    ),
    key=st.binary(min_size=32, max_size=32),
)
def test_any_hello_is_read_as_it_was_written(hello: Hello, key: bytes) -> None:
    parsed, signed, mac = parse_hello(hello.encode(key))
    assert parsed == hello
    assert is_signed(key, signed, mac)


@given(wire=some_bytes)
def test_any_bytes_are_a_hello_or_refused(wire: bytes) -> None:
    with suppress(FrameError):
        parse_hello(wire)
    with suppress(FrameError):
        parse_answer(wire)


# The answers


@each_case
@pytest.mark.parametrize(
    ("wire", "said"),
    [
        (b"", "not by 0 bytes of type None"),
        (b"\x00", "not by 1 bytes of type 0"),
        (RESUMING.encode(KEY), "not by 83 bytes of type 1"),
        (ack(0), "not by 9 bytes of type 5"),
        (end(1000), "not by 3 bytes of type 6"),
        (b"\x07", "not by 1 bytes of type 7"),
        (Welcome(EPOCH, 0, 1.0).encode() + b"\x00", "not by 58 bytes of type 2"),
        *((Welcome(EPOCH, 0, 1.0).encode()[:size], f"by {size} bytes") for size in range(57)),
    ],
)
def test_what_is_no_answer_is_refused(wire: bytes, said: str) -> None:
    with pytest.raises(FrameError, match=f"WELCOME, LOST or REFUSED, .*{said}"):
        parse_answer(wire)


def test_a_welcome_without_an_epoch_is_refused_since_nothing_could_be_resumed() -> None:
    with pytest.raises(FrameError, match="WELCOME without an epoch"):
        parse_answer(Welcome(NO_EPOCH, 0, 1.0, key=KEY).encode())


@each_case
@pytest.mark.parametrize("lost", [True, False])
@pytest.mark.parametrize(
    ("reason", "sent"),
    [
        ("", ""),
        ("x" * 100, "x" * 100),
        ("x" * 101, "x" * 100),
        ("x" * 10_000, "x" * 100),
        ("x" * 99 + "ä", "x" * 99),  # not half of it
        ("€" * 50, "€" * 33),
    ],
)
def test_a_reason_is_cut_between_characters(lost: bool, reason: str, sent: str) -> None:
    wire = Refusal(lost, reason).encode()
    assert wire[1:] == sent.encode()
    assert parse_answer(wire) == Refusal(lost, sent)


def test_a_reason_that_is_not_utf_8_is_shown_all_the_same() -> None:
    assert parse_answer(b"\x03a\xff") == Refusal(True, "a�")


@pytest.mark.parametrize(
    "wire",
    [Hello(ID).encode(None), Welcome(EPOCH, 0, 1.0).encode(), Refusal(True, "x" * 999).encode()],
)
def test_what_comes_before_data_fits_a_frame_with_a_short_header(wire: bytes) -> None:
    assert len(wire) <= LONGEST_GREETING == 125


def test_a_grace_is_sent_in_milliseconds_and_never_wraps() -> None:
    def grace(seconds: float) -> float:
        answer: Answer = parse_answer(Welcome(EPOCH, 0, seconds).encode())
        assert isinstance(answer, Welcome)
        return answer.grace

    assert grace(0.25) == 0.25
    assert grace(1e9) == (2**32 - 1) / 1000


# Sending


def test_what_is_sent_is_counted_and_kept_until_it_is_acknowledged() -> None:
    sender = session()
    sender.keep((DATA_BYTE + b"head", b"body"))
    sender.keep((DATA_BYTE + b"x", b""))
    assert (sender.sent, sender.unacknowledged(), sender.room()) == (9, 9, LIMIT - 16)
    sender.acknowledged_up_to(8)
    assert (sender.acknowledged, sender.unacknowledged(), sender.room()) == (8, 1, LIMIT - 8)
    assert bodies(sender.resume(8)) == [b"x"]
    sender.acknowledged_up_to(9)
    assert sender.resume(9) == []
    assert sender.room() == LIMIT


def test_a_message_may_exceed_the_room_and_then_there_is_none() -> None:
    sender = sending(bytes(LIMIT - 1))
    assert sender.room() == 1
    sender.keep((DATA_BYTE, bytes(50)))
    assert sender.room() == -49
    sender.acknowledged_up_to(LIMIT - 1)
    assert sender.room() == 50


@pytest.mark.parametrize(
    "sizes",
    [Sizes(1, 1, 92), Sizes(12, 1, 4), Sizes(13, 1, -4), Sizes(2, 8, 84), Sizes(2, 9, 82)],
    ids=str,
)
def test_a_short_message_takes_the_room_of_8_bytes(sizes: Sizes) -> None:
    sender = sending(*[bytes(sizes.size)] * sizes.kept)
    assert sender.room() == sizes.room
    assert sender.unacknowledged() == sizes.size * sizes.kept
    sender.acknowledged_up_to(sender.sent)
    assert sender.room() == LIMIT


def test_short_messages_count_as_the_memory_they_take() -> None:
    """Else a peer that acknowledges nothing would have far more kept than is accounted for."""
    sender = session()
    count = 2000
    tracemalloc.start()
    try:
        for _ in range(count):
            sender.keep((DATA_BYTE + bytes((1, 2, 3)), bytes(bytearray(5))))
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert sender.allocated() == count * (8 + KEPT_OVERHEAD)
    assert sender.allocated() > 0.7 * taken
    sender.acknowledged_up_to(sender.sent)
    assert sender.allocated() == 0


@given(st.integers(LEAST_RESUME_BUFFER, LARGEST_RESUME_BUFFER))
def test_few_messages_leave_room_for_a_batch_and_take_no_quarter_of_the_buffer(limit: int) -> None:
    sender = Session(ID, limit, 60.0)
    sender.sent = sender.few_bytes - 1
    assert sender.allocated() + KEPT_OVERHEAD * (sender.few_messages - 1) < limit // 4
    assert limit - max(sender.sent, LEAST_KEPT * sender.few_messages) > 64 * KIB


def test_a_kept_message_is_the_object_that_was_sent() -> None:
    message: Message = (DATA_BYTE + b"head", memoryview(b"body"))
    sender = session()
    sender.keep(message)
    ((end, kept),) = sender.resume(0)
    assert kept is message
    assert end == 8


@dataclass
class Claim:
    """What a peer says it has received of three messages of 10 bytes, the first acknowledged."""

    position: int
    said: str


IMPOSSIBLE = [
    Claim(0, r"received up to 0; 10 were acknowledged before, and 30 sent$"),
    Claim(9, r"received up to 9; 10 were acknowledged before"),
    Claim(31, r"received up to 31; 10 were acknowledged before, and 30 sent$"),
    Claim(2**64 - 1, r"received up to 18446744073709551615; 10 were"),
    *(Claim(at, f"up to {at}, within the message from 10 to 20$") for at in range(11, 20)),
    *(Claim(at, f"up to {at}, within the message from 20 to 30$") for at in range(21, 30)),
]
every_impossible = pytest.mark.parametrize("claim", IMPOSSIBLE, ids=lambda claim: claim.position)


def three() -> Session:
    sender = sending(b"a" * 10, b"b" * 10, b"c" * 10)
    sender.acknowledged_up_to(10)
    return sender


@each_case
@every_impossible
def test_an_acknowledgement_that_cannot_be_is_refused(claim: Claim) -> None:
    with pytest.raises(FrameError, match=claim.said) as caught:
        three().receive(ack(claim.position))
    assert caught.value.code == 1002


@each_case
@every_impossible
def test_a_session_is_not_resumed_where_the_peer_cannot_be(claim: Claim) -> None:
    with pytest.raises(PositionError, match=claim.said):
        three().resume(claim.position)


@pytest.mark.parametrize(
    ("position", "again"), [(10, [b"b" * 10, b"c" * 10]), (20, [b"c" * 10]), (30, [])]
)
def test_what_the_peer_lacks_is_sent_again_in_order(position: int, again: list[bytes]) -> None:
    sender = three()
    assert bodies(sender.resume(position)) == again
    assert sender.acknowledged == position
    assert bodies(sender.resume(position)) == again  # over yet another carrier


def test_the_same_position_may_be_acknowledged_again() -> None:
    sender = three()
    sender.receive(ack(10))
    assert len(sender.resume(10)) == 2


def test_a_peer_that_no_longer_has_what_is_missing_here_is_found_out() -> None:
    receiver = session(received=10)
    receiver.check_oldest(0)
    receiver.check_oldest(10)
    with pytest.raises(PositionError, match="can send again from 11, and only 10 were received"):
        receiver.check_oldest(11)


# Receiving


@pytest.mark.parametrize("cast", [bytes, bytearray, memoryview])
def test_a_message_is_received_whatever_holds_it(cast: Callable[[bytes], Buffer]) -> None:
    receiver = session()
    received = receiver.receive(cast(b"\x00hello"))
    assert received is not None
    assert bytes(received) == b"hello"
    receiver.receive(cast(ack(0)))
    receiver.receive(cast(end(4000, b"bye")))
    assert receiver.peer_end == (4000, "bye")
    assert receiver.received == 5 + 5


@each_case
@pytest.mark.parametrize(
    ("wire", "said"),
    [
        (b"", "empty message on a resumable connection"),
        (b"\x00", "DATA without a message"),
        (RESUMING.encode(KEY), "message of type 1 on a resumable connection"),
        (Welcome(EPOCH, 0, 1.0).encode(), "message of type 2 on"),
        (b"\x03lost", "message of type 3 on"),
        (b"\x04refused", "message of type 4 on"),
        *((bytes((kind,)), f"message of type {kind} on") for kind in range(7, 256)),
        *((ack(0)[:size], f"ACK of {size} bytes instead of 9") for size in range(1, 9)),
        (ack(0) + b"\x00", "ACK of 10 bytes instead of 9"),
        (b"\x06", "END without a whole close code"),
        (b"\x06\x03", "END without a whole close code"),
    ],
)
def test_a_message_that_is_not_allowed_is_refused(wire: bytes, said: str) -> None:
    receiver = session()
    with pytest.raises(FrameError, match=said) as caught:
        receiver.receive(wire)
    assert caught.value.code == 1002
    assert (receiver.received, receiver.acknowledged, receiver.peer_end) == (0, 0, None)


@pytest.mark.parametrize("reason", [b"\xff", b"ok\xc3", b"\xed\xa0\x80"])
def test_an_end_whose_reason_is_not_utf_8_is_refused_as_invalid_data(reason: bytes) -> None:
    receiver = session()
    with pytest.raises(FrameError, match="END with a reason that is not UTF-8") as caught:
        receiver.receive(end(1000, reason))
    assert caught.value.code == 1007
    assert (receiver.received, receiver.peer_end) == (0, None)


@pytest.mark.parametrize("size", [0, 1, 123, 10_000])
def test_an_end_has_a_reason_of_any_length(size: int) -> None:
    receiver = session()
    receiver.receive(end(1000, b"x" * size))
    assert receiver.peer_end == (1000, "x" * size)
    assert receiver.received == 2 + size


@pytest.mark.parametrize(
    "wire", [b"\x00x", b"\x00", end(1000), b"\x06", b"\x03", b"\x07", Hello(ID).encode(None)]
)
def test_nothing_but_acknowledgements_follows_an_end(wire: bytes) -> None:
    receiver = session(sent=5)
    receiver.receive(end(1000))
    with pytest.raises(FrameError, match=f"message of type {wire[0]} after END"):
        receiver.receive(wire)
    assert receiver.received == 2
    receiver.receive(ack(5))
    assert receiver.acknowledged == 5


def test_acknowledgements_have_no_position() -> None:
    receiver = sending(b"12345")
    for position in (0, 5, 5):
        receiver.receive(ack(position))
    assert receiver.received == 0
    assert receiver.acknowledgement() == ack(0)


@given(wires=st.lists(some_bytes | some_bytes.map(b"\x00".__add__) | st.just(ack(0)), max_size=20))
def test_any_messages_are_received_or_refused(wires: list[bytes]) -> None:
    receiver = session()
    expected = 0
    for wire in wires:
        try:
            body = receiver.receive(memoryview(wire))
        except FrameError:
            assert receiver.received == expected
            return
        if body is not None:
            assert body == wire[1:]
        if wire[0] != MessageType.ACK:
            expected += len(wire) - 1
        assert receiver.received == expected


# Carriers


def test_the_first_hello_begins_a_session_and_is_the_same_until_it_is_answered() -> None:
    client = Session(ID, LIMIT, 60.0)
    assert client.hello() == client.hello() == Hello(ID, buffer=LIMIT)
    assert client.generation == 0


def test_each_later_hello_has_the_next_generation_and_the_positions_of_now() -> None:
    client = three()
    client.receive(b"\x00" + bytes(7))
    assert client.told == 0
    assert client.hello() == Hello(ID, EPOCH, 1, True, 7, 10, LIMIT)
    assert client.told == 7
    client.acknowledged_up_to(20)
    assert client.hello() == Hello(ID, EPOCH, 2, True, 7, 20, LIMIT)


def test_a_welcome_tells_what_was_received_and_no_key() -> None:
    server = session()
    server.receive(b"\x00" + bytes(7))
    assert server.welcome() == Welcome(EPOCH, 7, 60.0, LIMIT, bytes(32))
    assert server.told == 7


def test_an_honest_pair_agrees_after_any_cut() -> None:
    """The server misses the end of what was sent, the client the acknowledgement of the rest."""
    client, server = three(), session(received=20)
    answer = server.welcome()
    server.check_oldest(client.hello().oldest)
    for _, (head, body) in client.resume(answer.received):
        assert server.receive(head + bytes(body)) == b"c" * 10
    assert server.received == client.sent
    client.receive(server.acknowledgement())
    assert client.unacknowledged() == 0


def test_a_session_acknowledges_by_quarters_of_what_its_peer_keeps() -> None:
    receiver = session()
    assert receiver.acknowledge_after == LEAST_RESUME_BUFFER // 4
    assert receiver.acknowledge_after >= ACKNOWLEDGE_BESIDE
    receiver.met(2**20)
    assert receiver.acknowledge_after == 2**18


@pytest.mark.parametrize("client", [True, False])
def test_both_sides_know_how_the_session_began(client: bool) -> None:
    session = Session(bytes(16), 2**20, 60.0)
    session.epoch, session.key = b"epoch of", b"k" * 32
    session.met(2**19)
    session.receive(b"\0more")
    hello, welcome = session.first_greetings(client)
    assert hello == Hello(bytes(16), buffer=2**20 if client else 2**19)
    assert welcome == Welcome(b"epoch of", 0, 60.0, 2**19 if client else 2**20)
