"""Meet peers that vanish, fall silent, flood, stall or dawdle."""

from __future__ import annotations

import resource
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest

import wsmux

from ..helpers.raw_peer import (
    ACK,
    BINARY,
    CLOSE,
    CLOSE_FRAME,
    DATA,
    ERROR,
    PING,
    PONG,
    READ,
    ROLES,
    WAIT,
    WRITE,
    Frame,
    Meeting,
    RawPeer,
    close_payload,
    in_thread,
    meet,
    message,
    uint32,
    wait_for,
)
from ..helpers.tables import each_case

BUFFERS = 4096
ENDLESS = 2**31
SHORT = 0.3

BOTH_ROLES = pytest.mark.parametrize("role", ROLES)


@pytest.fixture(params=ROLES)
def narrow(request: pytest.FixtureRequest) -> Iterator[Meeting]:
    """Meet a peer over socket buffers that fill at once, without keepalive; refuse it much."""
    config = wsmux.Config(
        ping_interval=None, max_pending_opens=1, close_timeout=1.0, max_resets=100_000
    )
    with meet(request.param, config, BUFFERS) as met:
        yield met


# Vanishing


def blocked_calls(meeting: Meeting) -> dict[str, Future[object]]:
    """Block one call of each kind on the connection."""
    connection = meeting.connection
    stream = meeting.accepted(window=3)
    stream.timeout = None
    calls: dict[str, Future[object]] = {
        "read": in_thread(stream.read, 1),
        "write": in_thread(stream.write, b"12345"),
        "accept_stream": in_thread(connection.accept_stream),
        "ping": in_thread(connection.ping),
        "wait_drained": in_thread(connection.wait_drained),
        "wait_closed": in_thread(connection.wait_closed),
        "iterate": in_thread(lambda: list(connection)),
    }
    calls["open_stream"] = in_thread(open_until_blocked, connection)
    wait_for(lambda: connection.stats().waiting_readers == 1)
    wait_for(lambda: connection.stats().waiting_writers == 1)
    return calls


def open_until_blocked(connection: wsmux.Connection) -> None:
    kept = []
    while True:
        kept.append(connection.open_stream())


def check_all_wake(calls: dict[str, Future[object]], code: int) -> None:
    assert calls.pop("wait_drained").result(WAIT) is True
    assert calls.pop("wait_closed").result(WAIT) is True
    for name, call in calls.items():
        error = call.exception(WAIT)
        assert isinstance(error, wsmux.ConnectionClosedError), name
        assert error.code == code, name


@pytest.mark.parametrize("how", ["fin", "reset", "fin-within-a-frame", "reset-within-a-frame"])
def test_vanished_peer_wakes_every_blocked_call(
    narrow: Meeting, how: str, quiet: Callable[[], None]
) -> None:
    calls = blocked_calls(narrow)
    peer = narrow.peer
    if "within" in how:
        peer.send(peer.packed(peer.id(), DATA, b"never whole")[:-3])
    if how.startswith("reset"):
        peer.reset()
    else:
        peer.sock.shutdown(socket.SHUT_WR)
    check_all_wake(calls, 1006)
    narrow.check_bystanders()


def test_end_within_a_message_is_named(meeting: Meeting) -> None:
    peer = meeting.peer
    peer.send(peer.packed(peer.id(), ACK, uint32(1))[:-1])
    peer.sock.shutdown(socket.SHUT_WR)
    assert meeting.connection.wait_closed(WAIT)
    with pytest.raises(wsmux.ConnectionClosedError, match="within a message"):
        meeting.connection.ping()


@pytest.mark.parametrize("ending", ["abort", "close", "close-with-code"])
def test_own_end_wakes_every_blocked_call(narrow: Meeting, ending: str) -> None:
    calls = blocked_calls(narrow)
    if ending == "abort":
        narrow.connection.abort()
        check_all_wake(calls, 1006)
    elif ending == "close-with-code":
        narrow.connection.close(0.1, code=4000, reason="enough")
        check_all_wake(calls, 4000)
    else:
        narrow.connection.close(0.1)
        assert calls.pop("iterate").result(WAIT) == []
        for name in ("read", "write", "accept_stream", "ping", "open_stream"):
            assert isinstance(calls[name].exception(WAIT), wsmux.ConnectionClosedOK), name


# Silence


@pytest.fixture(params=ROLES)
def impatient(request: pytest.FixtureRequest) -> Iterator[Meeting]:
    config = wsmux.Config(ping_interval=0.1, ping_timeout=1.0)
    with meet(request.param, config) as met:
        yield met


def test_silent_peer_is_pinged_and_given_up(impatient: Meeting) -> None:
    accepting = in_thread(impatient.connection.accept_stream)
    assert impatient.peer.recv_frame().opcode == PING
    code, reason = impatient.peer.recv_close()
    assert code == 1011
    assert "no byte" in reason
    error = accepting.exception(WAIT)
    assert isinstance(error, wsmux.ConnectionClosedError)
    assert (error.code, error.side) == (1011, "local")
    assert impatient.peer.recv_to_end() == b""


@pytest.mark.parametrize("answer", ["pong", "unasked-pong", "ping", "data"])
def test_peer_that_says_anything_is_kept(impatient: Meeting, answer: str) -> None:
    peer = impatient.peer
    for _ in range(4):
        frame = peer.recv_frame()
        while frame.opcode != PING:
            frame = peer.recv_frame()
        if answer == "pong":
            peer.send_frame(PONG, frame.payload)
        elif answer == "unasked-pong":
            peer.send_frame(PONG, b"other")
        elif answer == "ping":
            peer.send_frame(PING)
        else:
            peer.send(peer.frame(BINARY, b"\0")[:1])
            break
    assert not impatient.connection.closed


# Not reading


def test_write_to_a_peer_that_does_not_read_times_out_and_stays_exact(narrow: Meeting) -> None:
    stream = narrow.accepted(window=ENDLESS)
    data = bytes(range(256)) * 16384
    stream.timeout = SHORT
    with pytest.raises(wsmux.WriteTimeout) as raised:
        stream.write(data)
    done = raised.value.bytes_written
    assert 0 < done < len(data)
    stream.timeout = WAIT
    rest = in_thread(stream.write, data[done:])
    assert received(narrow.peer, stream.id, len(data)) == data
    assert rest.result(WAIT) == len(data) - done


def received(peer: RawPeer, stream_id: int, size: int) -> bytes:
    """Return so many bytes of a stream."""
    data = bytearray()
    head = message(stream_id, DATA)
    while len(data) < size:
        payload = peer.recv_message()
        if payload.startswith(head):
            data += payload[len(head) :]
    return bytes(data)


def test_close_stays_within_its_time_when_the_peer_does_not_read(narrow: Meeting) -> None:
    stream = narrow.accepted(window=ENDLESS)
    stream.timeout = None
    writing = in_thread(stream.write, bytes(1 << 22))
    wait_for(lambda: narrow.connection.stats().bytes_sent > BUFFERS)
    started = time.monotonic()
    narrow.connection.close(SHORT)
    assert time.monotonic() - started < SHORT + 2
    assert isinstance(writing.exception(WAIT), wsmux.ConnectionClosedOK)
    assert narrow.connection.wait_closed(WAIT)


def test_close_stays_within_its_time_when_the_peer_does_not_answer(meeting: Meeting) -> None:
    started = time.monotonic()
    meeting.connection.close(SHORT, reason="bye")
    assert time.monotonic() - started < SHORT + 2
    assert meeting.peer.recv_close() == (1000, "bye")
    assert meeting.peer.recv_to_end() == b""
    with pytest.raises(wsmux.ConnectionClosedOK):
        meeting.connection.open_stream()


def test_writers_of_other_streams_time_out_too(narrow: Meeting) -> None:
    stuck = narrow.accepted(window=ENDLESS)
    others = [narrow.accepted(index=index, window=ENDLESS) for index in (1, 2, 3)]
    for stream in (stuck, *others):
        stream.timeout = SHORT
    writes = [in_thread(stream.write, bytes(1 << 22)) for stream in (stuck, *others)]
    for write in writes:
        assert isinstance(write.exception(WAIT), wsmux.WriteTimeout)
    assert narrow.connection.stats().waiting_for_room == 0


def processor_time_of_half_a_second() -> float:
    before = time.process_time()
    time.sleep(0.5)  # an idle time to measure, not an event to wait for
    return time.process_time() - before


def test_full_socket_costs_no_processor_time(narrow: Meeting) -> None:
    stream = narrow.accepted(window=ENDLESS)
    stream.timeout = 0.05
    with pytest.raises(wsmux.WriteTimeout):
        stream.write(bytes(1 << 22))
    assert processor_time_of_half_a_second() < 0.1


@BOTH_ROLES
def test_connection_that_was_never_used_is_closed_when_idle(role: str) -> None:
    with meet(role, wsmux.Config(idle_timeout=0.05)) as met:
        met.peer.sock.settimeout(1.0)
        assert met.peer.recv_close() == (1000, "idle")


@BOTH_ROLES
def test_idle_close_costs_no_processor_time_while_the_peer_does_not_answer(role: str) -> None:
    with meet(role, wsmux.Config(idle_timeout=0.05)) as met:
        met.peer.send_frame(PING)
        assert met.peer.recv_close() == (1000, "idle")
        assert processor_time_of_half_a_second() < 0.1


@BOTH_ROLES
def test_ping_flood_is_answered_within_bounds(role: str, quiet: Callable[[], None]) -> None:
    count = 20_000
    config = wsmux.Config(ping_interval=None, close_timeout=1.0, max_pings=2 * count)
    with meet(role, config, BUFFERS) as met:
        peer = met.peer
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        peer.send(peer.frame(PING, b"x" * 125) * count + peer.frame(PING, b"last"))
        pongs = 1
        while peer.recv_frame() != Frame(PONG, b"last"):
            pongs += 1
        assert pongs < count
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 16 * 1024
        assert not met.connection.closed


def test_small_ping_flood_is_answered_in_full(meeting: Meeting) -> None:
    for serial in range(100):
        meeting.peer.send_frame(PING, uint32(serial))
        assert meeting.peer.recv_frame() == (PONG, uint32(serial), True)


@BOTH_ROLES
def test_streams_beyond_the_accept_queue_are_refused_one_by_one(
    role: str, quiet: Callable[[], None]
) -> None:
    with meet(role, wsmux.Config(max_unaccepted=1)) as met:
        peer = met.peer
        peer.open(0)
        peer.send_message(peer.id(1), ACK, uint32(100))
        assert {peer.recv_message(), peer.recv_message()} == {
            message(peer.id(1), ERROR, bytes((direction, 3))) for direction in (READ, WRITE)
        }
        peer.send_frame(PING, b"alive")
        assert peer.recv_frame() == (PONG, b"alive", True)


def test_peer_that_causes_answers_and_reads_none_is_cut_off(
    narrow: Meeting, quiet: Callable[[], None]
) -> None:
    peer = narrow.peer
    opens = b"".join(peer.packed(peer.id(n), ACK, uint32(1)) for n in range(6000))
    sending = in_thread(peer.send, opens)
    wait_for(lambda: narrow.connection.closed)
    with pytest.raises(wsmux.ConnectionClosedError) as raised:
        narrow.connection.ping()
    assert raised.value.code == 1008
    assert "does not read" in raised.value.reason
    assert peer.recv_close()[0] == 1008
    peer.sock.close()
    sending.exception(WAIT)
    narrow.check_bystanders()


def test_reading_half_goes_on_while_the_writing_half_is_stuck(narrow: Meeting) -> None:
    stream, peer = narrow.accepted(window=ENDLESS), narrow.peer
    writing = in_thread(stream.write, bytes(1 << 21))
    wait_for(lambda: narrow.connection.stats().bytes_sent > BUFFERS)
    for _ in range(20):
        peer.send_message(stream.id, DATA, b"word")
        assert stream.read(4) == b"word"
    narrow.connection.abort()
    writing.exception(WAIT)


# Closing


CLOSES = [
    (1000, wsmux.ConnectionClosedOK),
    (1001, wsmux.ConnectionClosedOK),
    *(
        (code, wsmux.ConnectionClosedError)
        for code in (1002, 1003, 1007, 1008, 1009, 1010, 1011, 1012, 1013, 1014)
    ),
    *((code, wsmux.ConnectionClosedError) for code in (3000, 3999, 4000, 4999)),
]


@pytest.mark.parametrize(("code", "cls"), CLOSES)
def test_close_by_the_peer_is_answered_and_raised(
    meeting: Meeting, code: int, cls: type[wsmux.ConnectionClosed], quiet: Callable[[], None]
) -> None:
    stream, peer = meeting.accepted(), meeting.peer
    reading = in_thread(stream.read, 1)
    wait_for(lambda: meeting.connection.stats().waiting_readers == 1)
    peer.send_frame(CLOSE_FRAME, close_payload(code, "grüße".encode()))
    assert peer.recv_close()[0] == code
    error = reading.exception(WAIT)
    assert type(error) is cls
    assert (error.code, error.reason, error.side) == (code, "grüße", "remote")


def test_close_without_a_code_is_answered_without_one(meeting: Meeting) -> None:
    meeting.peer.send_frame(CLOSE_FRAME)
    assert meeting.peer.recv_close() == (1005, "")
    with pytest.raises(wsmux.ConnectionClosedError, match="no code"):
        meeting.connection.accept_stream(WAIT)


def test_nothing_behind_a_close_counts_and_it_is_answered_once(meeting: Meeting) -> None:
    stream, peer = meeting.accepted(), meeting.peer
    peer.send(
        peer.packed(stream.id, DATA, b"before")
        + peer.frame(CLOSE_FRAME, close_payload(1001))
        + peer.packed(stream.id, DATA, b"after")
        + peer.frame(PING, b"after")
        + peer.frame(CLOSE_FRAME, close_payload(4000))
        + b"\xff" * 100
    )
    answers = []
    while (frame := peer.recv_frame()).opcode != CLOSE_FRAME:
        answers.append(frame.opcode)
    assert answers == []
    peer.sock.shutdown(socket.SHUT_WR)
    assert peer.recv_to_end() == b""
    assert meeting.connection.wait_closed(WAIT)
    assert stream.read(64) == b"before"
    with pytest.raises(wsmux.ConnectionClosedOK):
        stream.read(64)


def test_simultaneous_closes_end_cleanly(meeting: Meeting) -> None:
    peer = meeting.peer
    meeting.connection.begin_close()
    peer.send_frame(CLOSE_FRAME, close_payload(1000))
    assert peer.recv_close()[0] == 1000
    peer.sock.shutdown(socket.SHUT_WR)
    assert peer.recv_to_end() == b""
    assert meeting.connection.wait_closed(WAIT)


def test_garbage_instead_of_the_answer_to_a_close_ends_in_time(meeting: Meeting) -> None:
    closing = in_thread(meeting.connection.close, SHORT)
    assert meeting.peer.recv_close()[0] == 1000
    meeting.peer.send(b"\xff" * 4096)
    closing.result(WAIT)
    assert meeting.connection.wait_closed(WAIT)


def test_written_bytes_and_their_end_go_out_before_the_close(meeting: Meeting) -> None:
    stream, peer = meeting.accepted(window=ENDLESS), meeting.peer
    data = bytes(range(256)) * 4096
    writing = in_thread(stream.write, data)
    assert received(peer, stream.id, len(data)) == data
    writing.result(WAIT)
    stream.close_write()
    closing = in_thread(meeting.connection.close, WAIT)
    assert peer.recv_message() == message(stream.id, CLOSE, bytes((READ,)))
    assert peer.recv_close()[0] == 1000
    peer.send_frame(CLOSE_FRAME, close_payload(1000))
    peer.sock.shutdown(socket.SHUT_WR)
    closing.result(WAIT)


# Pace


def conversation(peer: RawPeer) -> bytes:
    """Return what a peer sends that opens two streams, interleaves them, ends one, pings."""
    first, second = peer.id(0), peer.id(1)
    return b"".join(
        (
            peer.packed(first, ACK, uint32(1000)),
            peer.packed(first, DATA, b"one "),
            peer.frame(PING, b"beat"),
            peer.packed(second, ACK, uint32(1000)),
            peer.packed(second, DATA, b"uno "),
            peer.packed(first, DATA, b"two "),
            peer.frame(BINARY, message(first, DATA, b"three"), fin=False),
            peer.frame(PONG, b"unasked"),
            peer.frame(0, b" parts"),
            peer.packed(second, DATA, bytes(range(200))),
            peer.packed(first, CLOSE, bytes((READ,))),
            peer.packed(second, ACK, uint32(5)),
            peer.packed(second, CLOSE, bytes((WRITE,))),
            peer.packed(second, CLOSE, bytes((READ,))),
        )
    )


FIRST = b"one two three parts"
SECOND = b"uno " + bytes(range(200))


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 10_000])
def test_any_chopping_of_the_bytes_says_the_same(meeting: Meeting, size: int) -> None:
    peer = meeting.peer
    script = conversation(peer)
    peer.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for start in range(0, len(script), size):
        peer.send(script[start : start + size])
    first, second = (meeting.connection.accept_stream(WAIT) for _ in range(2))
    for stream, data in ((first, FIRST), (second, SECOND)):
        stream.timeout = WAIT
        assert stream.read() == data
    with pytest.raises(wsmux.StreamWriteClosed):
        second.write(b"x")
    assert first.write(b"answer") == 6
    assert received(peer, first.id, 6) == b"answer"


def test_peer_that_reads_a_byte_at_a_time_gets_everything(narrow: Meeting) -> None:
    stream, peer = narrow.accepted(window=ENDLESS), narrow.peer
    data = bytes(range(256)) * 64
    writing = in_thread(stream.write, data)
    raw = bytearray()
    needed = len(data) + 4 + 2 + 4 * (not peer.masks)  # header, key, id and type
    while len(raw) < needed:
        raw += peer.sock.recv(1)
    assert writing.result(WAIT) == len(data)
    assert peer.masks is False or bytes(raw[6:]) == data


# Cuts


with socket.socket() as unconnected:
    LENGTH = len(conversation(RawPeer(unconnected, masks=True)))


def cuts(step: int) -> list[int]:
    return list(range(0, LENGTH + 1, step))


def check_cut(role: str, cut: int, how: str) -> None:
    """Cut what the peer sends; what was read must be a prefix, and the end typed."""
    with meet(role) as met:
        connection, peer = met.connection, met.peer
        script = conversation(peer)
        pinging = in_thread(connection.ping)
        accepting = in_thread(read_all_streams, connection)
        peer.send(script[:cut])
        if how == "reset":
            peer.reset()
        else:
            peer.sock.shutdown(socket.SHUT_WR)
        streams = accepting.result(WAIT)
        for (data, error), whole in zip(streams, (FIRST, SECOND), strict=False):
            assert whole.startswith(data)
            if error is None:
                assert data == whole
            else:
                assert isinstance(error, wsmux.ConnectionClosedError)
                assert error.code == 1006
        assert isinstance(pinging.exception(WAIT), wsmux.ConnectionClosedError)
        assert connection.wait_closed(WAIT)


def read_all_streams(
    connection: wsmux.Connection,
) -> list[tuple[bytes, BaseException | None]]:
    """Read every stream that comes to its end, with what ended it."""
    reading = []
    try:
        while True:
            reading.append(in_thread(read_to_end, connection.accept_stream(WAIT)))
    except wsmux.ConnectionClosedError:
        return [future.result(WAIT) for future in reading]


def read_to_end(stream: wsmux.Stream) -> tuple[bytes, BaseException | None]:
    data = bytearray()
    try:
        while chunk := stream.read(3):
            data += chunk
    except wsmux.WsmuxError as error:
        return bytes(data), error
    return bytes(data), None


@each_case
@pytest.mark.parametrize("how", ["fin", "reset"])
@pytest.mark.parametrize("cut", cuts(23))
@BOTH_ROLES
def test_cut_conversation_is_an_exact_prefix_and_ends_typed(role: str, cut: int, how: str) -> None:
    check_cut(role, cut, how)


@pytest.mark.long
@pytest.mark.parametrize("how", ["fin", "reset"])
@BOTH_ROLES
def test_conversation_cut_at_every_byte_ends_typed(role: str, how: str) -> None:
    for cut in cuts(1):
        check_cut(role, cut, how)


def check_outgoing_cut(role: str, cut: int, how: str) -> None:
    """Leave after reading so many bytes; every call wakes, and what was read is a prefix."""
    with meet(role) as met:
        connection, peer = met.connection, met.peer
        stream = met.accepted(window=ENDLESS)
        stream.timeout = None
        data = bytes(range(250)) * 4
        calls: list[Future[Any]] = [in_thread(speak, stream, data), in_thread(connection.ping)]
        raw = bytearray()
        while len(raw) < cut:
            chunk = peer.sock.recv(cut - len(raw))
            assert chunk
            raw += chunk
        if how == "reset":
            peer.reset()
        else:
            peer.sock.shutdown(socket.SHUT_WR)
        for call in calls:
            error = call.exception(WAIT)
            assert isinstance(error, wsmux.ConnectionClosedError)
            assert error.code == 1006
        assert connection.wait_closed(WAIT)


def speak(stream: wsmux.Stream, data: bytes) -> None:
    for start in range(0, len(data), 250):
        stream.write(data[start : start + 250])
    stream.close_write()
    stream.read(1)
    raise AssertionError("the peer never ended its half")


@each_case
@pytest.mark.parametrize("how", ["fin", "reset"])
@pytest.mark.parametrize("cut", [0, 1, 2, 3, 5, 9, 100, 254, 256, 500, 900, 1020])
@BOTH_ROLES
def test_peer_that_leaves_within_our_bytes_ends_every_call_typed(
    role: str, cut: int, how: str
) -> None:
    check_outgoing_cut(role, cut, how)


@pytest.mark.long
@pytest.mark.parametrize("how", ["fin", "reset"])
@BOTH_ROLES
def test_peer_that_leaves_at_every_byte_of_ours_ends_every_call_typed(role: str, how: str) -> None:
    for cut in range(1020):
        check_outgoing_cut(role, cut, how)
