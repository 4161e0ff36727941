"""The list of what is allowed allows that, and nothing beside it."""

from __future__ import annotations

import pytest
from hypothesis import given

from wsmux.tunnel.allow import AllowList
from wsmux.tunnel.places import parse_place

from .test_places import pieces, places


@given(places)
def test_nothing_is_allowed_by_default(place: object) -> None:
    nothing = AllowList()
    assert not nothing
    assert not nothing.by_name(place)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("pattern", "place"),
    [
        ("h:80", "h:80"),
        ("Redis.Internal:6379", "redis.internal.:6379"),
        ("*.example.org:443", "a.example.org:443"),
        ("*.example.org:443", "a.b.example.org:443"),
        ("h:*", "h:1"),
        ("h:10-20", "h:10"),
        ("h:10-20", "h:20"),
        ("*:80", "anything:80"),
        ("*:80", "[::1]:80"),
        ("127.0.0.1:80", "127.0.0.1:80"),
        ("10.0.0.0/8:80", "10.255.0.1:80"),
        ("10.0.0.0/8:80", "[::ffff:10.0.0.1]:80"),
        ("[::1]:80", "[0:0::1]:80"),
        ("[2001:db8::/32]:80", "[2001:db8:1::2]:80"),
        ("unix:/run/a", "unix:/run/a"),
    ],
)
def test_a_pattern_allows_what_it_names(pattern: str, place: str) -> None:
    allowed = AllowList([pattern])
    assert allowed
    assert allowed.by_name(parse_place(place))


@pytest.mark.parametrize(
    ("pattern", "place"),
    [
        ("h:80", "h:81"),
        ("h:80", "hh:80"),
        ("h:80", "h.evil.org:80"),
        ("h:80", "unix:/h:80"),
        ("*.example.org:443", "example.org:443"),
        ("*.example.org:443", "evilexample.org:443"),
        ("*.example.org:443", "a.example.org.evil.net:443"),
        ("*.example.org:443", "a.example.org:80"),
        ("h:10-20", "h:9"),
        ("h:10-20", "h:21"),
        ("10.0.0.0/8:80", "11.0.0.1:80"),
        ("10.0.0.0/8:80", "10.example.org:80"),
        ("10.0.0.0/8:80", "0x0a000001:80"),
        ("127.0.0.1:80", "localhost:80"),
        ("[::1]:80", "127.0.0.1:80"),
        ("unix:/run/a", "unix:/run/ab"),
        ("unix:/run/a", "unix:/run/a/b"),
        ("*:80", "unix:/a"),
    ],
)
def test_a_pattern_allows_nothing_else(pattern: str, place: str) -> None:
    assert not AllowList([pattern]).by_name(parse_place(place))


def test_a_name_may_be_allowed_by_its_address() -> None:
    allowed = AllowList(["10.0.0.0/8:1-1023", "h:5432"])
    assert allowed.asks_for_address(80)
    assert not allowed.asks_for_address(5432)
    assert allowed.by_address("10.1.2.3", 80)
    assert allowed.by_address("::ffff:10.1.2.3", 80)
    assert not allowed.by_address("10.1.2.3", 5432)
    assert not allowed.by_address("192.168.0.1", 80)
    assert not allowed.by_address("no address", 80)


def test_port_0_needs_all_ports() -> None:
    free = parse_place("127.0.0.1:0", listening=True)
    assert AllowList(["127.0.0.1:*"]).by_name(free)
    assert not AllowList(["127.0.0.1:1-65535"]).by_name(free)


@pytest.mark.parametrize(
    "pattern",
    ["", "h", "h:", ":80", "h:x", "h:0", "h:65536", "h:20-10", "h:1-", "h:-1", "h:1-2-3", "*"]
    + ["*.*:80", "*a:80", "a.*:80", "*.:80", "10.0.0.1/8:80", "10.0.0.0/33:80", "::1:80", "::/0:80"]
    + ["[10.0.0.1]:80", "[::1:80", "[2001:db8::/200]:80", "unix:", "unix:a", "unix:/a/../b"]
    + ["h:80,81", "user@h:80", "a/b:80"],
)
def test_what_is_no_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match="."):
        AllowList(["good:80", pattern])


@given(pieces, places)
def test_any_text_is_a_pattern_or_refused(pattern: str, place: object) -> None:
    try:
        allowed = AllowList([pattern])
    except ValueError:
        return
    allowed.by_name(place)  # type: ignore[arg-type]


def test_a_list_shows_its_patterns() -> None:
    assert repr(AllowList(["h:80"])) == "AllowList(['h:80'])"
