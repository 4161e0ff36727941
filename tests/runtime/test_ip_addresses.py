"""By whose address a connection counts: networks, and what trusted proxies say."""

from __future__ import annotations

import time
from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wsmux.runtime.ip_addresses import Proxies, address_of, counted_as

from ..helpers.tables import each_case

PROXIES = Proxies(("10.0.0.0/8", "2001:db8:ffff::/48"))
PROXY = ip_address("10.0.0.1")


def client(forwarded_for: str | None = None, forwarded: str | None = None) -> str | None:
    found = PROXIES.client(PROXY, forwarded_for, forwarded)
    return None if found is None else str(found)


@each_case
@pytest.mark.parametrize(
    ("text", "counted"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("127.0.0.2", "127.0.0.2"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::1"),
        ("64:ff9b::192.0.2.7", "192.0.2.7"),
        ("64:ff9b::127.0.0.1", "127.0.0.1"),
        ("64:ff9b:0:1::192.0.2.7", "64:ff9b:0:1::/64"),
        ("127.0.0.1", None),
        ("::1", None),
        ("::ffff:127.0.0.1", None),
        ("", None),
        ("/run/app.sock", None),
    ],
)
def test_what_counts_as_one_address(text: str, counted: str | None) -> None:
    assert counted_as(address_of(text)) == counted


def test_neighbours_in_a_network_of_64_bits_are_one_address_and_others_are_not() -> None:
    one, same, other = ("2001:db8::1", "2001:db8::ffff:0:0:1", "2001:db8:0:1::1")
    assert counted_as(address_of(one)) == counted_as(address_of(same))
    assert counted_as(address_of(one)) != counted_as(address_of(other))


@pytest.mark.parametrize(
    ("address", "trusted"),
    [
        ("10.255.0.1", True),
        ("::ffff:10.0.0.1", True),
        ("2001:db8:ffff::9", True),
        ("11.0.0.1", False),
        ("64:ff9b::10.0.0.1", False),
        ("2001:db8::9", False),
        ("", False),
    ],
)
def test_proxies_are_trusted_by_their_network(address: str, trusted: bool) -> None:
    assert PROXIES.trusts(address_of(address)) is trusted


def test_a_unix_socket_is_trusted_by_its_name() -> None:
    assert Proxies(("unix",)).trusts(None)
    assert Proxies(("unix",)).client(None, "192.0.2.7", None) == ip_address("192.0.2.7")


def test_what_an_untrusted_address_says_is_not_looked_at() -> None:
    peer = ip_address("192.0.2.1")
    assert PROXIES.client(peer, "203.0.113.9", "for=203.0.113.9") == peer
    assert Proxies(()).client(None, "203.0.113.9", None) is None


@each_case
@pytest.mark.parametrize(
    ("header", "named"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("203.0.113.9, 192.0.2.7", "192.0.2.7"),
        ("203.0.113.9, 192.0.2.7, 10.9.9.9", "192.0.2.7"),
        ("192.0.2.7:4711", "192.0.2.7"),
        ("2001:db8::7", "2001:db8::7"),
        ("[2001:db8::7]", "2001:db8::7"),
        ("[2001:db8::7]:4711", "2001:db8::7"),
        ("  192.0.2.7  ,, ", "192.0.2.7"),
        ('"192.0.2.9", 192.0.2.7', "192.0.2.7"),
        ('", 192.0.2.7', "192.0.2.7"),
        ("10.1.1.1, 10.2.2.2", "10.1.1.1"),
        ("192.0.2.7, unknown", None),
        ("unknown", None),
        ("192.0.2.7, 10.0.0.9, x", None),
        ("", None),
    ],
)
def test_the_rightmost_untrusted_entry_of_x_forwarded_for_is_the_client(
    header: str, named: str | None
) -> None:
    assert client(header) == named
    assert client(header, "for=203.0.113.1") == named, "the other header counts without it only"


@each_case
@pytest.mark.parametrize(
    ("header", "named"),
    [
        ("for=192.0.2.7", "192.0.2.7"),
        ("For=192.0.2.7;proto=https;by=10.0.0.1", "192.0.2.7"),
        ("proto=https; for = 192.0.2.7", "192.0.2.7"),
        ('for="192.0.2.7:4711"', "192.0.2.7"),
        ('for="[2001:db8::7]"', "2001:db8::7"),
        ('for="[2001:db8::7]:4711";host="a,b;for=9.9.9.9"', "2001:db8::7"),
        ("for=203.0.113.9, for=192.0.2.7", "192.0.2.7"),
        ("for=192.0.2.7, for=10.0.0.9", "192.0.2.7"),
        ('for="x, for="[2001:db8::7]"', "2001:db8::7"),
        ('for=", for=192.0.2.7', "192.0.2.7"),
        (r'for=192.0.2.7;host="a\",for=9.9.9.9"', "192.0.2.7"),
        (r'for=192.0.2.7;host="a\\"', "192.0.2.7"),
        ("for=_hidden", None),
        ("for=unknown", None),
        ("proto=https", None),
        ("", None),
    ],
)
def test_the_rightmost_untrusted_element_of_forwarded_is_the_client(
    header: str, named: str | None
) -> None:
    assert client(None, header) == named


def test_without_a_header_nobody_is_named() -> None:
    assert client() is None


written = st.text(alphabet='for=;,"\\ 127.[]:x', max_size=60)


@given(written)
def test_what_a_client_writes_does_not_change_what_the_proxy_writes(said: str) -> None:
    assert client(f"{said}, 192.0.2.7") == "192.0.2.7"
    assert client(None, f'{said}, for="[2001:db8::7]:1";host="a,\\";b"') == "2001:db8::7"


@pytest.mark.parametrize("piece", ['"', '\\"', "\\", ",", "10.0.0.1,", "for=10.0.0.1,"])
def test_a_long_header_is_read_in_proportion_to_its_length(piece: str) -> None:
    text = piece * (65_536 // len(piece))
    started = time.process_time()
    client(text)
    client(None, text)
    assert time.process_time() - started < 2.0
