"""Who may connect."""

from __future__ import annotations

from typing import Any

import pytest
from werkzeug.local import LocalProxy

from wsmux.exceptions import HandshakeError
from wsmux.handshake.access import (
    MAX_USER,
    Access,
    TokenCheck,
    authorized,
    check_authorize,
    is_loopback,
)
from wsmux.handshake.request import Request

REQUEST = Request("/", "", {"x-user": "ann"}, "192.0.2.1:5")


def check(token: TokenCheck | None, header: str | None) -> Any:
    environ = {} if header is None else {"HTTP_AUTHORIZATION": header}
    return Access(token).check(environ)


def refused(token: TokenCheck | None, header: str | None) -> str:
    with pytest.raises(HandshakeError) as caught:
        check(token, header)
    assert caught.value.status == 401
    return str(caught.value)


def test_without_a_token_anybody_comes() -> None:
    assert check(None, None) is True


@pytest.mark.parametrize("token", ["secret", ["other", "secret"], {"secret"}])
def test_a_known_token_comes(token: TokenCheck) -> None:
    assert check(token, "Bearer secret") is True
    assert check(token, "bearer  secret ") is True


@pytest.mark.parametrize("header", ["Bearer wrong", "Bearer secre", "Bearer s\udcffcret"])
def test_another_token_does_not(header: str) -> None:
    assert refused("secret", header) == "unknown token"
    assert refused(["secret"], header) == "unknown token"


@pytest.mark.parametrize("header", [None, "", "Bearer", "Bearer ", "Basic secret", "secret"])
def test_a_request_without_one_is_told_how(header: str | None) -> None:
    assert "Authorization: Bearer" in refused("secret", header)


def test_a_function_decides() -> None:
    assert check({"secret": "me"}.get, "Bearer secret") == "me"
    assert refused({"secret": "me"}.get, "Bearer other") == "unknown token"


def test_a_function_may_say_why_not() -> None:
    def expired(token: str) -> bool:
        raise PermissionError("the token expired at noon")

    assert refused(expired, "Bearer secret") == "the token expired at noon"


@pytest.mark.parametrize(
    "failure",
    [
        ConnectionError("the database is away"),
        PermissionError(13, "Permission denied", "/etc/app/keys"),
        LookupError("secret"),
        HandshakeError("come in", 200),
        SystemExit(3),
    ],
    ids=lambda failure: type(failure).__name__,
)
def test_a_function_that_fails_is_logged_and_tells_the_client_nothing(
    failure: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(token: str) -> bool:
        raise failure

    with pytest.raises(HandshakeError) as caught:
        check(fails, "Bearer secret")
    assert (caught.value.status, str(caught.value)) == (500, "internal error")
    [record] = caplog.records
    assert record.getMessage() == "token= failed"
    assert type(failure).__name__ in caplog.text


@pytest.mark.parametrize(("status", "answered"), [(503, 503), (None, 401)])
def test_a_function_may_answer_with_a_status_of_its_own(status: int | None, answered: int) -> None:
    def busy(token: str) -> bool:
        raise HandshakeError("come back at noon", status, 60.0)

    with pytest.raises(HandshakeError, match="come back at noon") as caught:
        check(busy, "Bearer secret")
    assert (caught.value.status, caught.value.retry_after) == (answered, 60.0)


def test_an_empty_collection_lets_nobody_in() -> None:
    assert refused([], "Bearer x") == "unknown token"


@pytest.mark.parametrize("token", ["", "a b", "é", "a\n", ["ok", ""]])
def test_what_cannot_be_a_token_is_refused(token: TokenCheck) -> None:
    with pytest.raises(ValueError, match="visible ASCII"):
        Access(token)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_loopback_is_known(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["", "0.0.0.0", "::", "10.0.0.1", "example.org"])
def test_what_is_not_loopback_is_known(host: str) -> None:
    assert not is_loopback(host)


def test_an_application_names_the_user_by_the_request() -> None:
    assert authorized(lambda request: request.headers["x-user"], REQUEST).user == "ann"


@pytest.mark.parametrize("authorize", [None, lambda request: True], ids=["nobody", "true"])
def test_a_client_may_come_without_a_name(authorize: Any) -> None:
    assert authorized(authorize, REQUEST) is REQUEST


@pytest.mark.parametrize("answer", [False, None, "", "x" * (MAX_USER + 1)], ids=repr)
def test_an_application_refuses_with_403(answer: Any) -> None:
    with pytest.raises(HandshakeError, match="not allowed|longer than 255 characters") as caught:
        authorized(lambda request: answer, REQUEST)
    assert caught.value.status == 403


@pytest.mark.parametrize("answer", [42, object()], ids=["number", "object"])
def test_what_is_true_by_mistake_lets_nobody_in(answer: Any) -> None:
    # As a proxy of Flask-Login is, also where nobody is logged in.
    with pytest.raises(TypeError, match=r"^authorize= returned an object of type (int|object): "):
        authorized(lambda request: answer, REQUEST)


def test_a_proxy_of_a_name_is_none() -> None:
    # In another thread, or after the request, it would be somebody else.
    with pytest.raises(TypeError, match="object of type LocalProxy"):
        authorized(lambda request: LocalProxy(lambda: "ann"), REQUEST)


@pytest.mark.parametrize(("given", "status"), [(None, 403), (499, 499)])
def test_an_application_may_say_why_without_a_status(given: int | None, status: int) -> None:
    def authorize(request: Request) -> bool:
        raise HandshakeError("not today", given, 7.0)

    with pytest.raises(HandshakeError, match="^not today$") as caught:
        authorized(authorize, REQUEST)
    assert (caught.value.status, caught.value.retry_after) == (status, 7.0)


@pytest.mark.parametrize("status", [101, 200, 302, 600])
def test_a_refusal_has_the_status_of_one(status: int) -> None:
    def authorize(request: Request) -> bool:
        raise HandshakeError("welcome", status)

    with pytest.raises(ValueError, match=f"of status {status}: a refusal has one from 400 to 599$"):
        authorized(authorize, REQUEST)


def test_what_is_no_function_is_refused_at_once() -> None:
    with pytest.raises(TypeError, match="^authorize must be a function .*, not str$"):
        check_authorize("ann")
