"""Heads are read strictly: the same bytes back, or an error with its status."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wsmux.tunnel.errors import TunnelError
from wsmux.tunnel.request_head import (
    END,
    MAX_HEAD,
    MAX_WORDS,
    Answer,
    Request,
    encode_answer,
    encode_request,
    parse_answer,
    parse_request,
)

from ..helpers.tables import each_case

visible = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=30)
methods = st.text("ABCDEFGHIJKLMNOPQRSTUVWXYZ", min_size=1, max_size=10)
arguments = st.text("aB0 %~/\n\r\x01\x7fé€\udcff", max_size=20)
requests = st.builds(Request, methods, visible, st.lists(arguments, max_size=5).map(tuple))
answers = st.builds(
    Answer, st.integers(100, 599), st.text(st.characters(min_codepoint=32, max_codepoint=126))
)

GOOD = b"CONNECT host:80 HTTP/1.1\r\nHost: host\r\nArg: a%20b"


@given(requests)
def test_a_request_is_read_as_it_was_written(request: Request) -> None:
    data = encode_request(request)
    assert data.endswith(END)
    assert parse_request(data.removesuffix(END)) == request


@given(answers)
def test_an_answer_is_read_as_it_was_written(answer: Answer) -> None:
    data = encode_answer(answer).removesuffix(END)
    assert parse_answer(data) == Answer(answer.status, answer.words[:MAX_WORDS])


@given(st.binary(max_size=200))
def test_any_bytes_are_a_head_or_an_error(data: bytes) -> None:
    for parse in (parse_request, parse_answer):
        try:
            parse(data)
        except TunnelError:
            continue


@given(st.integers(0, len(GOOD) - 1), st.integers(0, 255))
def test_one_wrong_byte_never_gives_another_exception(at: int, byte: int) -> None:
    data = GOOD[:at] + bytes([byte]) + GOOD[at + 1 :]
    try:
        parse_request(data)
    except TunnelError:
        return


def test_arguments_keep_bytes_that_are_no_utf_8() -> None:
    request = Request("EXEC", "cat", (b"\xff\xfe".decode("utf-8", "surrogateescape"), "", " ü\n"))
    assert parse_request(encode_request(request).removesuffix(END)) == request


def test_other_fields_are_read_over() -> None:
    assert parse_request(GOOD) == Request("CONNECT", "host:80", ("a b",))
    assert parse_answer(b"HTTP/1.1 200 OK\r\nServer: x\r\nEmpty: ") == Answer(200, "OK")


def test_words_cannot_break_out_of_their_line() -> None:
    data = encode_answer(Answer(403, "no\r\nInjected: yes\r\n\r\n\x1b[31m"))
    assert data == b"HTTP/1.1 403 no??Injected: yes?????[31m\r\n\r\n"


def test_long_words_are_cut() -> None:
    assert len(encode_answer(Answer(403, "x" * 10_000))) < 600


def test_a_request_that_is_too_long_is_not_sent() -> None:
    with pytest.raises(TunnelError, match=str(MAX_HEAD)):
        encode_request(Request("EXEC", "cat", ("x" * MAX_HEAD,)))


@each_case
@pytest.mark.parametrize(
    "head",
    [b"", b"CONNECT", b"CONNECT a", b"CONNECT  a HTTP/1.1", b"connect a HTTP/1.1", b"\xff"]
    + [b"CONNECT a HTTP/1.0", b"CONNECT a HTTP/2", b"CONNECT a b HTTP/1.1", b" CONNECT a HTTP/1.1"]
    + [b"CONNECT a HTTP/1.1\r\n", b"CONNECT a HTTP/1.1\nX: y", b"CONNECT a HTTP/1.1\r\nX"]
    + [b"CONNECT a HTTP/1.1\r\nX : y", b"CONNECT a HTTP/1.1\r\n X: y", b"CONNECT a HTTP/1.1\r\nX:y"]
    + [b"CONNECT a HTTP/1.1\r\nArg: %", b"CONNECT a HTTP/1.1\r\nArg: %zz"]
    + [b"CONNECT a HTTP/1.1\r\nArg: a b", b"CONNECT a HTTP/1.1\r\nArg: %00"],
)
def test_what_is_no_request_is_refused(head: bytes) -> None:
    with pytest.raises(TunnelError) as caught:
        parse_request(head)
    assert caught.value.status == 400


@pytest.mark.parametrize(
    "head",
    [b"", b"HTTP/1.1 200", b"HTTP/1.1 600 OK", b"HTTP/1.1 20 OK", b"HTTP/1.0 200 OK"]
    + [b"SSH-2.0-OpenSSH_9.6", b"HTTP/1.1 200 \x07", b"HTTP/1.1 200 OK\r\nx"],
)
def test_what_is_no_answer_is_refused(head: bytes) -> None:
    with pytest.raises(TunnelError):
        parse_answer(head)


def test_an_error_tells_its_status_and_pickles() -> None:
    error = pickle.loads(pickle.dumps(TunnelError(403, "h:1 is not allowed")))
    assert (error.status, error.words, error.retry_safe) == (403, "h:1 is not allowed", True)
    assert str(error) == "h:1 is not allowed (403 not allowed)"
    assert str(TunnelError(599, "x")) == "x (599 unknown)"


@pytest.mark.parametrize("target", ["", "two words", "caf\u00e9", "a\r\nb"])
def test_a_target_that_a_head_cannot_hold_is_never_sent(target: str) -> None:
    with pytest.raises(TunnelError, match="visible ASCII characters are wanted") as caught:
        encode_request(Request("GET", target, ()))
    assert caught.value.status == 400
