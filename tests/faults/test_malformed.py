"""Break every rule of the wire over real sockets, in both roles.

The peer gets the close code of the broken rule and one sentence; every blocked call of the
connection raises the same; nothing is printed, and other connections do not notice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

import wsmux

from ..helpers.raw_peer import (
    ACK,
    BINARY,
    CLOSE,
    CLOSE_FRAME,
    CONTINUATION,
    DATA,
    ERROR,
    GO_AWAY,
    PING,
    PONG,
    READ,
    TEXT,
    WAIT,
    WRITE,
    Meeting,
    RawPeer,
    close_payload,
    in_thread,
    message,
    uint32,
    varint,
    wait_for,
)

Build = Callable[[RawPeer], bytes]
LIMIT = wsmux.Config().max_message_size


class Case(NamedTuple):
    """What a peer sends after stream 0 of its own was opened, and what the reason must name."""

    name: str
    build: Build
    code: int
    names: str


def wire(name: str, build: Callable[[RawPeer], bytes], names: str, code: int = 1002) -> Case:
    """Send one message of the native wire."""
    return Case(name, lambda peer: peer.frame(BINARY, build(peer)), code, names)


def raw(name: str, names: str, code: int, *args: Any, **how: Any) -> Case:
    """Send one frame."""
    return Case(name, lambda peer: peer.frame(*args, **how), code, names)


def on_first(kind: int, body: bytes = b"") -> Build:
    return lambda peer: message(peer.id(), kind, body)


def on_second(kind: int, body: bytes = b"") -> Build:
    return lambda peer: message(peer.id(1), kind, body)


def on_theirs(kind: int, body: bytes = b"") -> Build:
    return lambda peer: message(peer.their_id(5), kind, body)


def frames(*parts: Build) -> Build:
    return lambda peer: b"".join(part(peer) for part in parts)


def packed(build: Build) -> Build:
    return lambda peer: peer.frame(BINARY, build(peer))


def message_cases() -> Iterator[Case]:
    yield wire("empty-message", lambda _: b"", "empty")
    for size, cut in enumerate((b"\x40", b"\x80\0\0", b"\xc0" + bytes(6))):
        yield wire(f"id-cut-{size}", lambda _, cut=cut: cut, "stream id")  # type: ignore[misc]
    yield wire("no-type", lambda peer: varint(peer.id()), "type")
    for kind in (5, 63, 128, 255):
        yield wire(f"type-{kind}", on_first(kind), f"type {kind}")
    for size in (0, 1, 3, 5, 8):
        yield wire(f"ack-of-{size}", on_first(ACK, bytes(size)), "length")
        yield wire(f"opening-ack-of-{size}", on_second(ACK, bytes(size)), "length")
    yield wire("error-without-direction", on_first(ERROR), "direction")
    yield wire("error-with-direction-2", on_first(ERROR, b"\x02\0"), "direction 2")
    yield wire("error-without-code", on_first(ERROR, b"\0"), "code")
    yield wire("error-with-cut-code", on_first(ERROR, b"\0\x40"), "code")
    yield wire("error-with-trailing-byte", on_first(ERROR, b"\0\0\0"), "length")
    yield wire("close-without-direction", on_first(CLOSE), "direction")
    yield wire("close-with-direction-255", on_first(CLOSE, b"\xff"), "direction 255")
    yield wire("close-with-trailing-byte", on_first(CLOSE, b"\0\0"), "length")
    yield wire("go-away-without-code", on_theirs(GO_AWAY), "code")
    yield wire("go-away-with-trailing-byte", on_theirs(GO_AWAY, b"\0\0"), "code")
    yield wire("go-away-with-own-parity", on_first(GO_AWAY, b"\0"), "GO_AWAY")
    yield wire("go-away-beyond-the-next-id", on_theirs(GO_AWAY, b"\0"), "GO_AWAY")


def state_cases() -> Iterator[Case]:
    yield wire("first-message-data", on_second(DATA, b"x"), "not ACK")
    yield wire("first-message-empty-data", on_second(DATA), "not ACK")
    yield wire("first-message-error", on_second(ERROR, b"\0\0"), "not ACK")
    yield wire("first-message-close", on_second(CLOSE, b"\0"), "not ACK")
    for name, kind, body in (
        ("ack", ACK, uint32(1)),
        ("data", DATA, b"x"),
        ("error", ERROR, b"\0\0"),
        ("close", CLOSE, b"\0"),
    ):
        yield wire(f"{name}-with-wrong-parity", on_theirs(kind, body), "parity")
    yield Case(
        "id-below-the-last",
        frames(
            packed(lambda peer: message(peer.id(9), ACK, uint32(1))),
            packed(lambda peer: message(peer.id(5), ACK, uint32(1))),
        ),
        1002,
        "not above",
    )
    yield Case(
        "data-on-an-ended-stream",
        frames(
            packed(on_first(ERROR, bytes((READ, 0)))),
            packed(on_first(ERROR, bytes((WRITE, 0)))),
            packed(on_first(DATA, b"x")),
        ),
        1002,
        "ended",
    )
    yield Case(
        "data-after-close",
        frames(packed(on_first(CLOSE, bytes((READ,)))), packed(on_first(DATA, b"x"))),
        1002,
        "after the peer ended",
    )
    yield Case(
        "data-after-error",
        frames(packed(on_first(ERROR, bytes((READ, 0)))), packed(on_first(DATA, b"x"))),
        1002,
        "after the peer ended",
    )
    yield wire("credit-overflow", on_first(ACK, uint32(2**32 - 1)), "2^32-1")


def frame_cases() -> Iterator[Case]:
    yield raw("text", "text", 1003, TEXT, b"hello")
    yield raw("empty-text", "text", 1003, TEXT)
    yield raw("text-not-utf8", "UTF-8", 1007, TEXT, b"\xff\xfe")
    yield raw("text-surrogate", "UTF-8", 1007, TEXT, b"\xed\xa0\x80")
    for name, size in (("limit", LIMIT + 1), ("4-GiB", 2**32), ("2^62", 2**62)):
        yield raw(f"above-{name}", str(LIMIT), 1009, BINARY, declared=size)
    yield raw("top-bit-of-length", "top bit", 1002, BINARY, declared=2**63)
    yield raw("length-100-in-2-bytes", "shortest", 1002, BINARY, bytes(100), width=2)
    yield raw("length-300-in-8-bytes", "shortest", 1002, BINARY, bytes(300), width=8)
    yield Case(
        "fragments-above-the-limit",
        frames(
            lambda peer: peer.frame(BINARY, b"\0", fin=False),
            lambda peer: peer.frame(CONTINUATION, declared=LIMIT),
        ),
        1009,
        str(LIMIT),
    )
    yield Case(
        "too-many-fragments",
        lambda peer: (
            peer.frame(BINARY, b"\0", fin=False) + peer.frame(CONTINUATION, fin=False) * 1024
        ),
        1008,
        "fragments",
    )
    yield Case(
        "wrong-masking",
        lambda peer: peer.frame(BINARY, b"\0", masked=not peer.masks),
        1002,
        "masked",
    )
    yield Case(
        "wrong-masking-of-ping",
        lambda peer: peer.frame(PING, b"", masked=not peer.masks),
        1002,
        "masked",
    )
    for bits in (1, 2, 4, 7):
        yield raw(f"reserved-bits-{bits}", "reserved", 1002, BINARY, b"\0", reserved=bits)
    yield raw("reserved-bit-of-ping", "reserved", 1002, PING, reserved=4)
    for opcode in (3, 7, 11, 15):
        yield raw(f"opcode-{opcode}", f"opcode {opcode}", 1002, opcode)
    for name, opcode in (("ping", PING), ("pong", PONG), ("close", CLOSE_FRAME)):
        yield raw(f"fragmented-{name}", "fragmented", 1002, opcode, fin=False)
        yield raw(f"{name}-of-126-bytes", "125", 1002, opcode, bytes(126))
    yield raw("lone-continuation", "continu", 1002, CONTINUATION, b"x")
    yield Case(
        "message-within-a-message",
        frames(
            lambda peer: peer.frame(BINARY, b"\0", fin=False),
            lambda peer: peer.frame(BINARY, b"\0"),
        ),
        1002,
        "new message",
    )


def close_cases() -> Iterator[Case]:
    yield raw("close-of-one-byte", "half a code", 1002, CLOSE_FRAME, b"\x03")
    for code in (0, 999, 1004, 1005, 1006, 1015, 1016, 2999, 5000, 65535):
        yield raw(f"close-code-{code}", f"code {code}", 1002, CLOSE_FRAME, close_payload(code))
    payload = close_payload(1000, b"\xc3\x28")
    yield raw("close-reason-not-utf8", "UTF-8", 1007, CLOSE_FRAME, payload)


CASES = [*message_cases(), *state_cases(), *frame_cases(), *close_cases()]


def check_reason(reason: str, names: str) -> None:
    assert names in reason
    assert reason.isprintable()
    assert len(reason.encode()) <= 123


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_broken_rule_ends_the_connection_with_its_code_and_a_sentence(
    case: Case, meeting: Meeting, quiet: Callable[[], None]
) -> None:
    connection, peer = meeting.connection, meeting.peer
    stream = meeting.accepted(window=1)
    accepting = in_thread(connection.accept_stream)
    pinging = in_thread(connection.ping)

    peer.send(case.build(peer))
    code, reason = peer.recv_close()
    peer.send_frame(CLOSE_FRAME, close_payload(code))

    assert code == case.code
    check_reason(reason, case.names)
    if case.name == "id-below-the-last":
        accepting.result(WAIT)
    else:
        check_typed(accepting.exception(WAIT), code, reason)
    check_typed(pinging.exception(WAIT), code, reason)
    with pytest.raises(wsmux.ConnectionClosedError) as raised:
        connection.open_stream()
    check_typed(raised.value, code, reason)
    with pytest.raises((wsmux.ConnectionClosedError, wsmux.StreamReset)):
        stream.write(b"12345")
    meeting.check_bystanders()


def check_typed(error: BaseException | None, code: int, reason: str) -> None:
    assert isinstance(error, wsmux.ConnectionClosedError)
    assert (error.code, error.side) == (code, "local")
    assert error.reason.startswith(reason)
    assert isinstance(error.__cause__, wsmux.RemoteProtocolError)


@pytest.mark.parametrize("call", ["read", "write"])
def test_broken_rule_wakes_a_blocked_stream_call(
    meeting: Meeting, call: str, quiet: Callable[[], None]
) -> None:
    stream = meeting.accepted(window=4)
    stream.timeout = None
    blocked = in_thread(stream.read, 1) if call == "read" else in_thread(stream.write, b"12345")
    if call == "write":
        assert meeting.peer.recv_message() == message(stream.id, DATA, b"1234")
        wait_for(lambda: meeting.connection.stats().waiting_writers == 1)
    else:
        wait_for(lambda: meeting.connection.stats().waiting_readers == 1)
    meeting.peer.send_message(stream.id, 77)
    assert meeting.peer.recv_close()[0] == 1002
    error = blocked.exception(WAIT)
    assert isinstance(error, wsmux.ConnectionClosedError)
    assert error.code == 1002


def test_bytes_before_the_broken_rule_are_delivered_and_none_behind_it(meeting: Meeting) -> None:
    stream, peer = meeting.accepted(), meeting.peer
    good = b"".join(peer.packed(stream.id, DATA, b"good") for _ in range(10))
    bad = peer.packed(stream.id, 77)
    late = b"".join(peer.packed(stream.id, DATA, b"late") for _ in range(200))
    peer.send(good + bad + late)
    assert peer.recv_close()[0] == 1002
    received = bytearray()
    with pytest.raises(wsmux.ConnectionClosedError):  # noqa: PT012 - reads go on until the error
        while True:
            received += stream.read(1 << 16)
    assert bytes(received) == b"good" * 10


def test_data_beyond_the_credit_resets_its_stream_only(
    meeting: Meeting, quiet: Callable[[], None]
) -> None:
    stream, peer = meeting.accepted(), meeting.peer
    other_id = peer.open(1)
    other = meeting.connection.accept_stream(timeout=WAIT)
    left = wsmux.Config().receive_window
    while left:
        size = min(left, 1 << 16)
        peer.send_message(stream.id, DATA, bytes(size))
        left -= size
    wait_for(lambda: meeting.connection.stats().unread_bytes == wsmux.Config().receive_window)
    peer.send_message(stream.id, DATA, b"!")
    assert peer.recv_message() == message(stream.id, ERROR, bytes((WRITE, 2)))
    with pytest.raises(wsmux.StreamReset) as raised:
        stream.read(1)
    assert (raised.value.code, raised.value.side) == (2, "local")
    peer.send_message(other_id, DATA, b"alive")
    assert other.read(64) == b"alive"
    assert meeting.connection.stats().unread_bytes == 0
    meeting.check_bystanders()


@pytest.mark.parametrize("excess", [1, 64 * 1024 - 100], ids=["one-byte", "64-KiB"])
def test_first_data_beyond_the_credit_is_not_buffered(meeting: Meeting, excess: int) -> None:
    with_window = wsmux.Config().receive_window
    stream, peer = meeting.accepted(), meeting.peer
    peer.send_message(stream.id, DATA, bytes(with_window + excess))
    assert peer.recv_message() == message(stream.id, ERROR, bytes((WRITE, 2)))
    assert meeting.connection.stats().unread_bytes == 0
    assert not meeting.connection.closed


def test_oversized_message_is_refused_before_its_payload(meeting: Meeting) -> None:
    peer = meeting.peer
    peer.send(peer.frame(BINARY, declared=LIMIT + 1)[: 10 + 4 * peer.masks])
    code, reason = peer.recv_close()
    assert code == 1009
    check_reason(reason, str(LIMIT))


def test_message_of_exactly_the_limit_is_taken(meeting: Meeting) -> None:
    stream, peer = meeting.accepted(), meeting.peer
    size = wsmux.Config().receive_window
    peer.send_message(stream.id, DATA, b"z" * size)
    received = 0
    while received < size:
        received += len(stream.read(1 << 20))
    assert not meeting.connection.closed


@pytest.mark.parametrize("cut", [1, 2, 3, 10])
def test_text_cut_within_a_character_over_fragments_is_judged_whole(
    meeting: Meeting, cut: int
) -> None:
    peer, text = meeting.peer, "κόσμε-€-😀".encode()
    peer.send_frame(TEXT, text[:cut], fin=False)
    peer.send_frame(CONTINUATION, text[cut:])
    assert peer.recv_close()[0] == 1003


def test_control_frames_within_a_fragmented_message_are_answered(meeting: Meeting) -> None:
    stream, peer = meeting.accepted(), meeting.peer
    whole = message(stream.id, DATA, b"in three parts")
    peer.send_frame(BINARY, whole[:5], fin=False)
    peer.send_frame(PING, b"between")
    assert peer.recv_frame() == (PONG, b"between", True)
    peer.send_frame(CONTINUATION, fin=False)
    peer.send_frame(CONTINUATION, whole[5:])
    assert stream.read(64) == b"in three parts"


def test_late_messages_on_an_ended_stream_are_ignored(meeting: Meeting) -> None:
    stream, peer = meeting.accepted(), meeting.peer
    stream.reset(99)
    assert {peer.recv_message(), peer.recv_message()} == {
        message(stream.id, ERROR, bytes((READ,)) + varint(99)),
        message(stream.id, ERROR, bytes((WRITE,)) + varint(99)),
    }
    for kind, body in ((DATA, b"late"), (ACK, uint32(9)), (CLOSE, b"\0"), (CLOSE, b"\1")):
        peer.send_message(stream.id, kind, body)
    peer.send_frame(PING, b"alive")
    assert peer.recv_frame() == (PONG, b"alive", True)
    assert not meeting.connection.closed
