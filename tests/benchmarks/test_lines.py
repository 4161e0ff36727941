"""Show what the clients and servers of ``python -m benchmarks`` make of lines that go wrong."""

from __future__ import annotations

import threading

import pytest

from benchmarks import blocking
from benchmarks.blocking import Blocking, LineCalls, Tail
from benchmarks.measures import EVERY_MEASURE, MEASURES
from benchmarks.words import (
    CHUNK,
    HEAD,
    MEMORY,
    PEAK,
    SMALL,
    UPLOAD,
    Line,
    answers,
    check_piece,
    echo_of,
    memory,
    peak,
    pieces,
)

from ..helpers.timeouts import WAIT


def line(*received: bytes) -> Blocking:
    """Return a client whose lines answer so, and then end."""

    def opener() -> Line:
        left = iter(received)
        return Line(len, lambda size: next(left, b""), lambda: None)

    return Blocking(opener)


def test_an_upload_that_was_not_counted_right_fails() -> None:
    head = HEAD.pack(UPLOAD, 99)
    with pytest.raises(RuntimeError, match="counted 99 of 100 bytes"):
        line(head[:1], head[1:]).upload(100)


def test_a_download_that_ends_early_fails() -> None:
    with pytest.raises(RuntimeError, match="40 of 100 bytes did not come"):
        line(*pieces(60)).download(100)


def test_a_download_of_too_much_fails() -> None:
    with pytest.raises(RuntimeError, match="20 bytes more than 100 came"):
        line(*pieces(120)).download(100)


def test_a_download_of_other_bytes_fails() -> None:
    (block,) = pieces(CHUNK)
    with pytest.raises(RuntimeError, match="from 10 to 100 are not those"):
        line(block[:10], block[11:101]).download(100)


def test_an_echo_of_other_bytes_fails() -> None:
    with pytest.raises(RuntimeError, match="the echo is not what was sent"):
        line(bytes(10)).pings(10, lines=1, seconds=0.01)


def test_another_answer_than_the_wanted_one_fails() -> None:
    with pytest.raises(RuntimeError, match="answered b'U' to b'M'"):
        line(HEAD.pack(UPLOAD, 1)).idle_lines(1)


def test_memory_that_never_settles_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocking, "LOOKS", 3)
    grows = [HEAD.pack(MEMORY, count << 20) for count in range(10)]
    with pytest.raises(RuntimeError, match="does not settle"):
        line(*grows).idle_lines(1)


def test_bulk_tells_its_place() -> None:
    whole = b"".join(pieces(3 * CHUNK + 17))
    place = 0
    for size in (1, 1000, CHUNK, CHUNK + 5, 40_000):
        place = check_piece(whole[place : place + size], place)
    assert len(whole) == 3 * CHUNK + 17
    with pytest.raises(RuntimeError, match="not those that were sent"):
        check_piece(bytes(1000), 0)


@pytest.mark.parametrize("word", [MEMORY, PEAK])
def test_a_server_tells_its_memory_as_often_as_it_is_asked(word: bytes) -> None:
    asked = iter([HEAD.pack(word, 0)] * 2)
    told = [HEAD.unpack(each) for each in answers(lambda size: next(asked, b""))]
    assert len(told) == 2
    assert all(command == word and memory() // 10 < used for command, used in told)


def test_the_peak_of_memory_is_that_since_the_last_question() -> None:
    peak()
    held = bytearray(b"1" * 2**25)
    high = peak()
    del held
    peak()
    assert peak() < high - 2**24


@pytest.mark.parametrize("first", [b"", b"U", b"U1234"])
def test_a_line_that_ends_early_is_not_answered(first: bytes) -> None:
    parts = iter([first] if first else [])
    assert list(answers(lambda size: next(parts, b""))) == []


def test_a_server_refuses_what_it_does_not_know() -> None:
    with pytest.raises(ValueError, match="unknown command b'X'"):
        list(answers(lambda size: HEAD.pack(b"X", 0)))


@pytest.mark.parametrize(
    ("figure", "method"),
    [
        ("tail-p99", "tail"),
        ("connections-1", "connections"),
        ("idle-stream-server", "idle_lines"),
        ("idle-connection-client", "idle_connections"),
        ("among-idle", "pings_among_idle"),
        ("idle-server", "idle"),
    ],
)
def test_a_figure_says_what_a_client_cannot_measure(figure: str, method: str) -> None:
    with pytest.raises(AttributeError, match=f"'LineCalls' object has no attribute '{method}'"):
        EVERY_MEASURE[figure].run(calls(), 0.01, {})


def test_without_a_window_nothing_is_told_of_it() -> None:
    class Windowless:
        def tail(self, size: int, bulk: int) -> Tail:
            return Tail(0.1, 0.2, 1e6, 0)

    run = MEASURES["tail-window"].run
    with pytest.raises(NotImplementedError, match="Windowless tells no window"):
        run(Windowless(), 0.01, {})


def test_a_line_that_ends_among_pings_fails() -> None:
    with pytest.raises(RuntimeError, match="in the middle of a measurement"):
        line(b"E").pings(10, lines=2, seconds=0.01)


def calls(*answers: bytes) -> LineCalls:
    """Return a client of calls whose lines answer so."""
    left = iter(answers)
    return LineCalls(lambda: Line(len, lambda size: next(left, b""), lambda: None))


def test_a_call_that_is_answered_wrongly_fails() -> None:
    with pytest.raises(RuntimeError, match="not what was sent"):
        calls(echo_of(SMALL), echo_of(SMALL), bytes(SMALL)).rpcs(1, seconds=60)


def test_a_message_that_does_not_come_back_fails() -> None:
    with pytest.raises(RuntimeError, match="message 3 of 5"):
        calls(echo_of(SMALL), echo_of(SMALL)).streamed(5)
    with pytest.raises(RuntimeError, match="message 2 of 5"):
        calls(bytes(SMALL)).subscribed(5)


def test_a_message_that_cannot_be_sent_fails() -> None:
    def refuse(data: bytes) -> None:
        raise ConnectionError("it is gone")

    line = Line(refuse, lambda size: echo_of(SMALL), lambda: None)
    with pytest.raises(ConnectionError, match="it is gone"):
        LineCalls(lambda: line).streamed(3)


def test_who_sends_is_ended_by_a_message_that_does_not_come_back() -> None:
    closed = threading.Event()
    line = Line(lambda data: closed.wait(WAIT), lambda size: b"", closed.set)
    with pytest.raises(RuntimeError, match="message 1 of 5"):
        LineCalls(lambda: line).streamed(5)
    assert closed.is_set()
