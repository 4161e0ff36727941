"""Each error says in one line what happened, to whom, and whether to try again."""

from __future__ import annotations

import copy
import pickle

import pytest

from wsmux.bus.errors import (
    BadMessage,
    BusError,
    CallTimeout,
    NameTaken,
    NobodyJoined,
    RelayRefused,
    Replayed,
    TokenRefused,
    TwinsUnavailable,
    relay_refused,
    remote_error,
)
from wsmux.exceptions import WsmuxError

from ..helpers.tables import each_case

ERRORS = [
    BusError(104, "bad signature", twin=5, retry_safe=True),
    BusError(0, ""),
    BadMessage("no envelope"),
    BadMessage("a text frame", 100),
    RelayRefused(501, "this relay knows no names"),
    Replayed("twice", 5),
    TokenRefused(401, "expired"),
    CallTimeout("no answer in 30 s", 5),
    CallTimeout("no answer in 30 s"),
    TwinsUnavailable("nobody answered"),
    remote_error(102, "expired", 7),
]


def test_what_a_relay_refuses_has_a_type_and_says_whether_to_try_again() -> None:
    made = [relay_refused(code, "no") for code in (400, 404, 409, 410, 429, 500, 501, 503)]
    assert [type(each) for each in made] == [
        RelayRefused,
        NobodyJoined,
        NameTaken,
        NobodyJoined,
        *4 * [RelayRefused],
    ]
    assert [each.code for each in made if not each.retry_safe] == [410, 500]
    assert {each.side for each in made} == {"remote"}


def name_of(error: BusError) -> str:
    return f"{type(error).__name__}-{error.code}"


@each_case
@pytest.mark.parametrize("error", ERRORS, ids=name_of)
def test_an_error_is_pickled_with_its_fields(error: BusError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))


@each_case
@pytest.mark.parametrize("error", ERRORS, ids=name_of)
def test_an_error_is_copied_with_its_fields(error: BusError) -> None:
    assert vars(copy.copy(error)) == vars(error)


@each_case
@pytest.mark.parametrize("error", ERRORS, ids=name_of)
def test_an_error_is_one_of_the_package(error: BusError) -> None:
    assert isinstance(error, WsmuxError)


def test_the_text_names_code_twin_and_retry() -> None:
    error = BusError(104, "bad signature", twin=5, retry_safe=True)
    assert str(error) == "bad signature (code 104, twin 5; a retry is safe)"


def test_the_text_leaves_out_a_twin_that_is_not_known() -> None:
    assert str(BusError(500, "no")) == "no (code 500; a retry may repeat the work)"


@pytest.mark.parametrize("foreign", ["a\nb", "a\r\nb", "a\x1b[31mb", "a\u2028b", "a\0b", "a\x85b"])
def test_a_foreign_text_stays_on_its_line(foreign: str) -> None:
    error = BusError(0, foreign)
    assert str(error).isprintable()
    assert error.message == foreign


def test_a_long_foreign_text_is_cut() -> None:
    error = BusError(0, "x" * 100_000)
    assert len(str(error)) < 600
    assert len(error.message) == 100_000


def test_a_timeout_is_the_builtin_one_too() -> None:
    error = CallTimeout("no answer in 30 s", 5)
    assert isinstance(error, TimeoutError)
    assert (error.code, error.twin, error.retry_safe) == (102, 5, False)


@each_case
@pytest.mark.parametrize(
    ("code", "twin", "safe"),
    [
        (0, None, True),  # a relay did not deliver
        (0, 5, False),  # the Go peer's handlers fail so
        (102, 5, True),
        (103, 5, True),
        (104, 5, True),
        (105, 5, True),
        (106, 5, True),
        (101, 5, False),
        (500, 5, False),
        (7, 5, False),
    ],
)
def test_a_retry_is_safe_where_the_command_did_not_run(
    code: int, twin: int | None, safe: bool
) -> None:
    error = remote_error(code, "why", twin)
    assert (error.retry_safe, error.side, error.twin) == (safe, "remote", twin)


def test_a_relay_that_says_that_a_request_expired_ends_it_as_a_timeout() -> None:
    error = remote_error(0, "message has expired", None)
    assert isinstance(error, CallTimeout)
    # It may have been in a connection to its twin that was lost.
    assert (error.code, error.retry_safe, error.side) == (102, False, "remote")
    assert not isinstance(remote_error(0, "message has expired", 5), CallTimeout)


def test_a_refused_token_says_its_status_and_reason() -> None:
    error = TokenRefused(401, "expired")
    assert (error.status, error.code, error.reason) == (401, 401, "expired")
