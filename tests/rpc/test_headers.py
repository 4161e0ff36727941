"""Headers of a client may be made for each attempt to connect."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from wsmux import HandshakeError, rpc

from ..helpers.rpc.procedures import WAIT
from ..helpers.rpc.refusing import Refusing


@pytest.fixture
def refusing() -> Iterator[Refusing]:
    made = Refusing()
    yield made
    made.close()


def unwelcome(error: Exception) -> bool:
    return isinstance(error, HandshakeError) and error.status == 401


def test_headers_are_made_for_each_attempt(refusing: Refusing) -> None:
    made = iter(range(100))

    def headers() -> dict[str, str]:
        return {"X-Attempt": str(next(made))}

    with (
        rpc.connect(refusing.url, headers=headers, is_fatal=unwelcome) as client,
        pytest.raises(rpc.RiverError, match="UNEXPECTED_DISCONNECT: .* answered 401"),
    ):
        client.rpc("test", "same", 1, WAIT)
    assert [f"X-Attempt: {i}" in request for i, request in enumerate(refusing.requests)] == [
        True,
        True,
    ]


@pytest.mark.parametrize("error", [LookupError("a secret"), SystemExit("a secret")], ids=repr)
def test_headers_that_cannot_be_made_are_told_without_their_secret(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")

    def headers() -> dict[str, str]:
        raise error

    with (
        rpc.connect("ws://127.0.0.1:1/", headers=headers, is_fatal=lambda error: True) as client,
        pytest.raises(
            rpc.RiverError, match=f"the headers could not be made: {type(error).__name__}$"
        ),
    ):
        client.rpc("test", "same", 1, WAIT)
    assert "could not be made" in caplog.text
    assert "a secret" not in caplog.text
