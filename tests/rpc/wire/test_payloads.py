"""The payloads that every call has."""

from __future__ import annotations

from typing import Any

import pytest

from wsmux.rpc import RiverError
from wsmux.rpc.wire.envelope import (
    CLOSE_PAYLOAD,
    INVALID_CANCEL,
    NotAResult,
    error_result,
    is_close,
    read_cancel,
    read_result,
    result,
)

from ...helpers.tables import each_case

ERROR = RiverError("BAD", "as told", [1])


def told(error: RiverError) -> tuple[str, str, Any]:
    return error.code, error.message, error.extra


@pytest.mark.parametrize("value", [None, 0, "text", {"ok": False}, [1]])
def test_a_response_comes_back(value: Any) -> None:
    assert read_result(result(value)) == value


def test_an_error_comes_back() -> None:
    assert told(read_result(error_result(ERROR))) == told(ERROR)


def test_the_text_calls_it_extra() -> None:
    payload = {"code": "BAD", "message": "", "extra": 5}
    assert read_result({"ok": False, "payload": payload}).extra == 5


NO_RESULTS: dict[str, Any] = {
    "nothing": None,
    "a list": [],
    "a close": CLOSE_PAYLOAD,
    "without ok": {"payload": 1},
    "without a payload": {"ok": True},
    "ok is a number": {"ok": 1, "payload": 1},
    "an error of no form": {"ok": False, "payload": 1},
    "an error without a code": {"ok": False, "payload": {"message": ""}},
    "an error without a message": {"ok": False, "payload": {"code": ""}},
    "an error whose code is a number": {"ok": False, "payload": {"code": 1, "message": ""}},
}


@each_case
@pytest.mark.parametrize("payload", NO_RESULTS.values(), ids=NO_RESULTS.keys())
def test_anything_else_is_no_result(payload: Any) -> None:
    with pytest.raises(NotAResult):
        read_result(payload)
    assert told(read_cancel(payload)) == ("CANCEL", INVALID_CANCEL, None)


def test_a_cancel_carries_an_error() -> None:
    assert told(read_cancel(error_result(ERROR))) == told(ERROR)


def test_a_response_is_no_reason_to_cancel() -> None:
    assert read_cancel(result("fine")).message == INVALID_CANCEL


def test_a_close_has_its_type_and_no_result() -> None:
    assert is_close(CLOSE_PAYLOAD)
    assert is_close({"type": "CLOSE", "more": 1})
    for payload in (None, {}, {"type": "ACK"}, {"type": "CLOSE", "ok": True}):
        assert not is_close(payload)
