"""An origin is compared whole: scheme, host and port, whatever way it is written."""

from __future__ import annotations

import pytest

from wsmux.handshake.origin import origin_allowed

from ..helpers.request_heads import LIKE_LISTED, LISTED
from ..helpers.tables import each_case

HOST = "app.example"


@pytest.mark.parametrize("host", [None, HOST, "other.example"])
@pytest.mark.parametrize("allowed", [None, [], [LISTED]])
def test_a_client_without_an_origin_may_connect(
    host: str | None, allowed: list[str] | None
) -> None:
    assert origin_allowed(None, host, False, allowed)


@pytest.mark.parametrize("origin", [LISTED, "null", "https://evil.example"])
@pytest.mark.parametrize("allowed", [["*"], [LISTED, "*"]])
def test_a_star_lets_every_origin_in(origin: str, allowed: list[str]) -> None:
    assert origin_allowed(origin, HOST, False, allowed)


@each_case
@pytest.mark.parametrize("name", LIKE_LISTED)
def test_what_resembles_a_listed_origin_is_refused(name: str) -> None:
    assert not origin_allowed(LIKE_LISTED[name], HOST, True, [LISTED])


@pytest.mark.parametrize("origin", [LISTED, "https://app.example:443", "HTTPS://APP.Example"])
@pytest.mark.parametrize("listed", [LISTED, "https://app.example:443", "HTTPS://APP.EXAMPLE"])
def test_a_listed_origin_may_be_written_in_every_way(origin: str, listed: str) -> None:
    assert origin_allowed(origin, "other.example", False, [listed])


def test_each_of_several_listed_origins_may_connect() -> None:
    allowed = ["null", LISTED, "http://b.example:8080"]
    assert origin_allowed(LISTED, HOST, False, allowed)
    assert origin_allowed("http://b.example:8080", HOST, False, allowed)
    assert not origin_allowed("http://b.example", HOST, False, allowed)


def test_with_a_list_the_own_origin_does_not_count() -> None:
    assert not origin_allowed("http://app.example", HOST, False, [LISTED])
    assert not origin_allowed("http://app.example", HOST, False, [])


@each_case
@pytest.mark.parametrize(
    ("origin", "host", "secure"),
    [
        ("http://app.example", "app.example", False),
        ("http://app.example", "app.example:80", False),
        ("http://app.example:80", "app.example", False),
        ("http://app.example:8080", "app.example:8080", False),
        ("https://app.example", "app.example", True),
        ("https://app.example", "app.example:443", True),
        ("https://app.example:443", "app.example", True),
        ("https://App.Example", "app.example", True),
        ("https://app.example", "APP.EXAMPLE", True),
        ("http://[2001:DB8::7]:8080", "[2001:db8::7]:8080", False),
        ("http://127.0.0.1:1", "127.0.0.1:1", False),
    ],
)
def test_the_own_origin_may_connect(origin: str, host: str, secure: bool) -> None:
    assert origin_allowed(origin, host, secure, None)


@each_case
@pytest.mark.parametrize(
    ("origin", "host", "secure"),
    [
        ("https://app.example", "app.example", False),
        ("http://app.example", "app.example", True),
        ("http://app.example:443", "app.example", True),
        ("https://app.example:80", "app.example", False),
        ("http://app.example:80", "app.example", True),
        ("http://app.example:81", "app.example", False),
        ("http://app.example", "app.example:81", False),
        ("http://other.example", "app.example", False),
        ("http://app.example", None, False),
        ("ws://app.example", "app.example", False),
    ],
)
def test_another_scheme_host_or_port_is_another_origin(
    origin: str, host: str | None, secure: bool
) -> None:
    assert not origin_allowed(origin, host, secure, None)


@each_case
@pytest.mark.parametrize(
    "origin",
    [
        "null",
        "",
        "http://",
        "http://:80",
        "http://app.example:",
        "http://app.example:080",
        "http://app.example:+80",
        "http://app.example:65536",
        "http://app.example:x",
        "http://[::1",
        "http://a@app.example",
        "http://app.example/",
        "http://app.example#",
        "http:app.example",
        "//app.example",
    ],
)
def test_what_is_no_origin_is_equal_to_nothing(origin: str) -> None:
    """Not even to itself, where a server's list or its ``Host`` header says the same."""
    assert not origin_allowed(origin, origin.removeprefix("http://"), False, None)
    assert not origin_allowed(origin, HOST, False, [origin])
