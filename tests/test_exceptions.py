"""Errors keep their fields, their place in the tree and their words, also through a pickle."""

from __future__ import annotations

import copy
import json
import pickle

import pytest

from wsmux import exceptions
from wsmux.exceptions import (
    CloseCode,
    ConcurrencyError,
    ConnectionClosed,
    ConnectionClosedError,
    ConnectionClosedOK,
    FlowControlError,
    ForkedError,
    FrameError,
    HandshakeError,
    LocalProtocolError,
    NoThreadError,
    ProtocolError,
    RemoteProtocolError,
    ResumeLost,
    StreamError,
    StreamIdError,
    StreamRefused,
    StreamReset,
    StreamsExhausted,
    StreamWriteClosed,
    WriteTimeout,
    WsmuxError,
    closed_error,
    fresh_copy,
    protocol_failure,
)

from .helpers.tables import each_case

EXAMPLES = [
    WsmuxError("something"),
    ProtocolError("a rule", 1003),
    LocalProtocolError("asked too much"),
    StreamsExhausted(31),
    RemoteProtocolError("the peer did wrong", 1008),
    FrameError("too long", 1009),
    FlowControlError("too much"),
    StreamIdError("not that one"),
    HandshakeError("refused", 403),
    HandshakeError("too many", 429, 8.5),
    HandshakeError("no answer"),
    ConnectionClosed(1000),
    ConnectionClosedOK(1001, "bye", "remote"),
    ConnectionClosedError(4000, "gone", "local"),
    ResumeLost("no connection for 60 s", 70, 30),
    ResumeLost("the server is another one", 0, 0, "remote"),
    StreamError("something with it", 4),
    StreamReset(4, 77, "remote", "disk full"),
    StreamReset(4, 0, None),
    StreamWriteClosed(6),
    StreamRefused(8, 3, "nobody took it there"),
    WriteTimeout(10, 5, 9),
    ConcurrencyError("a second reader"),
    NoThreadError("no thread"),
    ForkedError("in a child"),
]
every_error = pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)


def state(error: BaseException) -> object:
    return type(error), str(error), error.args, vars(error)


PUBLIC = {name for name in exceptions.__all__ if name[0].isupper()} - {"CloseCode"}


def test_examples_cover_every_public_error() -> None:
    assert {type(error).__name__ for error in EXAMPLES} == PUBLIC


def test_docstring_draws_every_public_error() -> None:
    assert exceptions.__doc__ is not None
    assert [name for name in PUBLIC if f"{name} " not in exceptions.__doc__] == []


@each_case
@every_error
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickle_keeps_words_and_fields(error: WsmuxError, protocol: int) -> None:
    assert state(pickle.loads(pickle.dumps(error, protocol))) == state(error)


@each_case
@every_error
def test_copy_keeps_words_and_fields(error: WsmuxError) -> None:
    assert state(copy.copy(error)) == state(error)


def test_pickle_keeps_notes() -> None:
    error = StreamReset(2, 64, "remote")
    error.add_note("while reading the index")
    assert pickle.loads(pickle.dumps(error)).__notes__ == ["while reading the index"]


def test_pickle_keeps_a_side_set_on_the_instance() -> None:
    error = FrameError("cut")
    error.side = "local"
    assert pickle.loads(pickle.dumps(error)).side == "local"


@each_case
@pytest.mark.parametrize(
    ("child", "parent"),
    [
        (ProtocolError, WsmuxError),
        (LocalProtocolError, ProtocolError),
        (RemoteProtocolError, ProtocolError),
        (FrameError, RemoteProtocolError),
        (FlowControlError, RemoteProtocolError),
        (StreamIdError, RemoteProtocolError),
        (HandshakeError, WsmuxError),
        (ConnectionClosed, WsmuxError),
        (ConnectionClosed, ConnectionError),
        (ConnectionClosedOK, ConnectionClosed),
        (ConnectionClosedError, ConnectionClosed),
        (ResumeLost, ConnectionClosedError),
        (StreamError, WsmuxError),
        (StreamReset, StreamError),
        (StreamReset, ConnectionResetError),
        (StreamWriteClosed, StreamError),
        (StreamWriteClosed, BrokenPipeError),
        (StreamRefused, StreamError),
        (WriteTimeout, WsmuxError),
        (WriteTimeout, TimeoutError),
        (ConcurrencyError, WsmuxError),
        (NoThreadError, WsmuxError),
        (NoThreadError, RuntimeError),
        (ForkedError, WsmuxError),
    ],
)
def test_class_is_caught_as(child: type[Exception], parent: type[Exception]) -> None:
    assert issubclass(child, parent)


@each_case
@pytest.mark.parametrize(
    ("error", "side"),
    [
        (LocalProtocolError("x"), "local"),
        (RemoteProtocolError("x"), "remote"),
        (FrameError("x"), "remote"),
        (StreamWriteClosed(0), "remote"),
        (StreamRefused(0, 3), "remote"),
        (StreamReset(0, 1, "local"), "local"),
        (ConnectionClosed(1006), None),
        (ConnectionClosed(1000, "", "remote"), "remote"),
        (ResumeLost("x", 0, 0), None),
        (ResumeLost("x", 0, 0, "remote"), "remote"),
        (WriteTimeout(0, 0, 1), "local"),
        (ConcurrencyError("x"), "local"),
        (NoThreadError("x"), "local"),
        (ForkedError("x"), "local"),
        (HandshakeError("x"), None),
    ],
)
def test_error_says_which_side_caused_it(error: WsmuxError, side: str | None) -> None:
    assert error.side == side


def test_retry_is_safe_only_where_the_peer_handled_nothing() -> None:
    safe = {type(error) for error in EXAMPLES if error.retry_safe}
    assert safe == {HandshakeError, StreamRefused, StreamsExhausted}


def test_protocol_errors_close_with_1002_unless_told() -> None:
    assert RemoteProtocolError("x").code == 1002


@pytest.mark.parametrize("code", [1000, 1001])
def test_clean_codes_give_closed_ok(code: int) -> None:
    assert type(closed_error(code, "bye", "remote")) is ConnectionClosedOK


@pytest.mark.parametrize("code", [1002, 1005, 1006, 1009, 3000, 4999])
def test_other_codes_give_closed_error(code: int) -> None:
    assert type(closed_error(code)) is ConnectionClosedError


@pytest.mark.parametrize(
    "error",
    [
        closed_error(1008, "no", "remote"),
        ResumeLost("no connection for 60 s", 70, 30, "remote"),
        ForkedError("in a child"),
    ],
)
def test_a_fresh_copy_says_the_same_and_has_no_traceback(error: WsmuxError) -> None:
    with pytest.raises(type(error)):
        raise error
    copy = fresh_copy(error)
    assert state(copy) == state(error)
    assert copy.__traceback__ is None


def test_a_broken_rule_ends_a_connection_with_its_code_and_is_the_cause() -> None:
    failure = FrameError("too long", 1009)
    with pytest.raises(FrameError):
        raise failure
    error = protocol_failure(failure)
    assert (type(error), error.code, error.reason) == (ConnectionClosedError, 1009, "too long")
    assert error.side == failure.ended_by
    assert error.__cause__ is failure
    assert failure.__traceback__ is None  # whose frames refer to the connection


def test_closed_error_carries_code_reason_and_side() -> None:
    error = closed_error(1008, "no", "remote")
    assert (error.code, error.reason, error.side) == (1008, "no", "remote")


@each_case
@pytest.mark.parametrize(
    ("error", "text"),
    [
        (RemoteProtocolError("a rule", 1003), "a rule"),
        (HandshakeError("refused", 403), "refused"),
        (StreamError("something with it", 4), "something with it"),
        (ConnectionClosed(1000), "connection closed with code 1000 (normal closure)"),
        (
            ConnectionClosed(1001, "restart", "remote"),
            "connection closed by the peer with code 1001 (going away): restart",
        ),
        (
            ConnectionClosed(4000, "bye", "local"),
            "connection closed by this side with code 4000 (private use): bye",
        ),
        (ConnectionClosed(1999), "connection closed with code 1999 (unknown)"),
        (
            ResumeLost("no connection for 60 s", 70, 30),
            "connection closed with code 1006 (connection lost without a closing message): the "
            "session is lost: no connection for 60 s; 70 bytes were acknowledged by the peer, 30 "
            "more were sent",
        ),
        (StreamReset(4, 77, "remote"), "stream 4 was reset by the peer with code 77"),
        (StreamReset(4, 2, "local", "flood"), "stream 4 was reset by this side with code 2: flood"),
        (StreamReset(4, 0, None), "stream 4 was reset by the connection with code 0"),
        (StreamWriteClosed(6), "the peer has stopped reading stream 6"),
        (StreamRefused(8, 3), "stream 8 was refused by the peer with code 3"),
        (StreamRefused(8, 3, "busy"), "stream 8 was refused by the peer with code 3: busy"),
        (
            WriteTimeout(10, 5, 9),
            "write to stream 10 timed out after 5 of 9 bytes; write the rest to go on, or reset "
            "the stream",
        ),
    ],
)
def test_error_reads_as(error: WsmuxError, text: str) -> None:
    assert str(error) == text


@each_case
@pytest.mark.parametrize(
    ("code", "meaning"),
    [
        (1000, "normal closure"),
        (1001, "going away"),
        (1002, "protocol error"),
        (1003, "unsupported data"),
        (1005, "no code given"),
        (1006, "connection lost without a closing message"),
        (1007, "invalid data"),
        (1008, "policy violation"),
        (1009, "message too big"),
        (1010, "extension required"),
        (1011, "internal error"),
        (1012, "service restart"),
        (1013, "try again later"),
        (2999, "unknown"),
        (3000, "private use"),
    ],
)
def test_close_code_means(code: int, meaning: str) -> None:
    assert str(ConnectionClosed(code)) == f"connection closed with code {code} ({meaning})"


@each_case
@pytest.mark.parametrize("code", CloseCode)
def test_a_named_close_code_prints_as_its_number(code: CloseCode) -> None:
    number = str(int(code))
    assert [f"{code}", f"{code:d}", "%d" % code, "%s" % code, str(code)] == [number] * 5  # noqa: UP031
    assert json.dumps({"code": code}) == f'{{"code": {number}}}'
    assert pickle.loads(pickle.dumps(code)) is code
    assert f"code {number} (" in str(ConnectionClosed(code))


@each_case
@pytest.mark.parametrize("code", CloseCode)
def test_the_code_of_an_error_is_a_plain_number(code: CloseCode) -> None:
    for error in (ProtocolError("a rule", code), FrameError("cut", code), closed_error(code)):
        assert type(error.code) is int
        assert error.code == code
        assert repr(error.__dict__["code"]) == str(int(code))


def test_os_errors_carry_no_errno() -> None:
    assert StreamReset(4, 77, "remote").errno is None


def test_write_timeout_tells_where_to_go_on() -> None:
    error = WriteTimeout(10, 5, 9)
    assert (error.stream_id, error.bytes_written) == (10, 5)


def test_a_lost_session_tells_how_much_the_peer_acknowledged() -> None:
    error = ResumeLost("no connection for 60 s", 70, 30)
    assert (error.code, error.why) == (1006, "no connection for 60 s")
    assert (error.acknowledged, error.unacknowledged) == (70, 30)


def test_handshake_error_carries_the_status() -> None:
    assert HandshakeError("refused", 403).status == 403
    assert HandshakeError("refused", 403).retry_after is None
    assert HandshakeError("too many", 429, 8.5).retry_after == 8.5
