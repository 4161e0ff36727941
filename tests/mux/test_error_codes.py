"""Translate error codes into the application's exceptions, and back.

In the four wires over two carriers, and over every carrier in one wire. Where the wire has no
codes, none comes.
"""

from __future__ import annotations

import logging
from typing import Any, NoReturn

import pytest

import wsmux

from ..helpers.carriers import SOME, Carrier
from ..helpers.connections import Join
from ..helpers.joined_streams import Joined, open_pair, write_on
from ..helpers.stream_outcomes import check_read_of_reset, check_reset


@pytest.fixture(params=SOME, ids=str)
def carrier(request: pytest.FixtureRequest) -> Carrier:
    chosen: Carrier = request.param
    return chosen


CODED = pytest.mark.parametrize("carrier", [c for c in SOME if c.wire.resets], ids=str)
RESERVED = pytest.mark.parametrize(
    ("carrier", "code"),
    [(carrier, code) for carrier in SOME for code in carrier.wire.reserved_codes],
    ids=str,
)


class QuotaError(Exception):
    """What the application knows as code 100."""


def to_reason(code: int) -> BaseException:
    return QuotaError(code)


def to_code(reason: BaseException) -> int:
    return 100 if isinstance(reason, QuotaError) else 101


def fails(_: Any) -> NoReturn:
    raise RuntimeError("a bug of the application")


def joined(join_ends: Join, **options: Any) -> Joined:
    """Return a stream whose client translates reasons to codes, and its server codes to reasons."""
    near = {name: value for name, value in options.items() if name == "reason_to_code"}
    far = {name: value for name, value in options.items() if name == "code_to_reason"}
    return open_pair(*join_ends(client=near, server=far))


@CODED
def test_a_reset_raises_the_applications_exception(join_ends: Join) -> None:
    near, far = joined(join_ends, code_to_reason=to_reason)
    near.reset(100)
    with pytest.raises(QuotaError, match="100") as read:
        far.read()
    with pytest.raises(QuotaError, match="100"):
        write_on(far)
    cause = read.value.__cause__
    assert isinstance(cause, wsmux.StreamReset)
    assert (cause.code, cause.side) == (100, "remote")


@CODED
def test_every_call_raises_an_exception_of_its_own(join_ends: Join) -> None:
    near, far = joined(join_ends, code_to_reason=to_reason)
    near.reset(100)
    raised = []
    for _ in range(2):
        with pytest.raises(QuotaError) as error:
            far.read()
        raised.append(error.value)
    assert raised[0] is not raised[1]


@pytest.mark.parametrize("carrier", [c for c in SOME if not c.wire.resets], ids=str)
def test_without_codes_nothing_is_translated(join_ends: Join) -> None:
    near, far = joined(join_ends, code_to_reason=to_reason, reason_to_code=to_code)
    near.reset(QuotaError())
    check_reset(far)


def test_an_exception_given_to_reset_becomes_its_code(join_ends: Join) -> None:
    near, far = joined(join_ends, reason_to_code=to_code)
    near.reset(QuotaError())
    check_reset(far, 100)


def test_an_exception_that_leaves_a_with_block_becomes_its_code(join_ends: Join) -> None:
    near, far = joined(join_ends, reason_to_code=to_code)
    with pytest.raises(ArithmeticError), near:
        raise ArithmeticError
    check_reset(far, 101)


def test_without_a_function_an_exception_is_code_0(join_ends: Join) -> None:
    near, far = joined(join_ends)
    near.reset(QuotaError())
    check_reset(far, 0)


@CODED
def test_a_code_to_reason_that_raises_is_logged_and_passed_over(
    join_ends: Join, caplog: pytest.LogCaptureFixture
) -> None:
    near, far = joined(join_ends, code_to_reason=fails)
    near.reset(100)
    with caplog.at_level(logging.ERROR, "wsmux"):
        check_read_of_reset(far, code=100)
    assert "code_to_reason failed for code 100" in caplog.text


@CODED
def test_a_code_to_reason_that_returns_no_exception_is_logged(
    join_ends: Join, caplog: pytest.LogCaptureFixture
) -> None:
    near, far = joined(join_ends, code_to_reason=str)
    near.reset(100)
    with caplog.at_level(logging.ERROR, "wsmux"):
        check_read_of_reset(far, code=100)
    assert "not an exception" in caplog.text


def test_a_reason_to_code_that_raises_is_logged_and_sends_0(
    join_ends: Join, caplog: pytest.LogCaptureFixture
) -> None:
    near, far = joined(join_ends, reason_to_code=fails)
    with caplog.at_level(logging.ERROR, "wsmux"):
        near.reset(QuotaError())
    check_reset(far, 0)
    assert "reason_to_code failed" in caplog.text


def check_code_is_logged(join_ends: Join, caplog: pytest.LogCaptureFixture, code: Any) -> None:
    """Check that a function that returns ``code`` is logged, and 0 sent."""
    near, far = joined(join_ends, reason_to_code=lambda _: code)
    with caplog.at_level(logging.ERROR, "wsmux"):
        near.reset(QuotaError())
    check_reset(far, 0)
    assert "reason_to_code failed" in caplog.text


@RESERVED
def test_a_reason_to_code_may_not_return_reserved_codes(
    join_ends: Join, caplog: pytest.LogCaptureFixture, code: int
) -> None:
    check_code_is_logged(join_ends, caplog, code)


@pytest.mark.parametrize("code", ["100", None])
def test_a_reason_to_code_may_return_nothing_but_numbers(
    join_ends: Join, caplog: pytest.LogCaptureFixture, code: Any
) -> None:
    check_code_is_logged(join_ends, caplog, code)


@RESERVED
def test_reset_refuses_reserved_codes_and_leaves_the_stream_open(
    join_ends: Join, code: int
) -> None:
    near, far = joined(join_ends)
    with pytest.raises(ValueError, match="reset code"):
        near.reset(code)
    near.write(b"still open")
    assert far.read(100) == b"still open"


def test_codes_of_the_protocol_never_reach_the_application(join_ends: Join) -> None:
    near, far = joined(join_ends, code_to_reason=to_reason)
    near.reset(0)
    check_reset(far, 0)


@CODED
def test_the_first_code_is_the_applications(join_ends: Join, carrier: Carrier) -> None:
    near, far = joined(join_ends, code_to_reason=to_reason)
    near.reset(carrier.wire.first_code)
    with pytest.raises(QuotaError, match=str(carrier.wire.first_code)):
        far.read()


def test_own_errors_are_not_translated(join_ends: Join) -> None:
    _, far = joined(join_ends, code_to_reason=to_reason)
    far.reset(100)
    with pytest.raises(wsmux.StreamReset) as error:
        far.read()
    assert error.value.side == "local"
