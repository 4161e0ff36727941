"""The list of what is allowed allows that, and nothing beside it."""

from __future__ import annotations

import re
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wsmux.tunnel.allow import SPECIAL, AllowList
from wsmux.tunnel.places import Place, Tcp, parse_place

from ..helpers.tables import each_case
from ..helpers.tunnel_inputs import hosts, pieces, places


@given(places)
def test_nothing_is_allowed_by_default(place: Place) -> None:
    nothing = AllowList()
    assert not nothing
    assert not nothing.by_name(place)


@each_case
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


@each_case
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


def reaches(patterns: list[str], place: str, address: str | None = None) -> bool:
    """Return whether an address, by default the place's own, is allowed for a place."""
    there = parse_place(place)
    assert isinstance(there, Tcp)
    return AllowList(patterns).by_address(there, there.host if address is None else address)


def test_a_name_may_be_allowed_by_its_address() -> None:
    patterns = ["10.0.0.0/8:1-1023", "h:5432"]
    assert AllowList(patterns).may_resolve(Tcp("name", 80))
    assert not AllowList(patterns).may_resolve(Tcp("name", 5432))
    assert AllowList(patterns).may_resolve(Tcp("h", 5432))
    assert reaches(patterns, "name:80", "10.1.2.3")
    assert reaches(patterns, "name:80", "::ffff:10.1.2.3")
    assert not reaches(patterns, "name:5432", "10.1.2.3")
    assert not reaches(patterns, "name:80", "192.168.0.1")
    assert not reaches(patterns, "name:80", "no address")


def test_an_exact_name_is_allowed_whatever_it_resolves_to() -> None:
    for address in ("127.0.0.1", "169.254.169.254", "::1", "64:ff9b::7f00:1", "192.0.2.1"):
        assert reaches(["h:80"], "h:80", address)
        assert not reaches(["h:80"], "h:81", address)


# What wildcards leave out

WIDE = ["*:*", "*.test:*", "0.0.0.0/0:*", "[::/0]:*"]

LEFT_OUT = (
    ["127.0.0.1", "127.255.0.1", "0.0.0.0", "0.1.2.3", "169.254.0.1", "169.254.169.254"]
    + ["100.100.100.200", "168.63.129.16", "192.0.0.192", "224.0.0.1", "239.1.1.1", "240.0.0.1"]
    + ["255.255.255.255", "::", "::1", "::7f00:1", "::ffff:127.0.0.1", "::ffff:169.254.169.254"]
    + ["::ffff:0:7f00:1", "64:ff9b::808:808", "64:ff9b:1::808:808", "100::1", "2001::1"]
    + ["2002:808:808::1", "fe80::1", "fe80::1%1", "fe80::a9fe:a9fe", "ff02::1", "fd00:ec2::254"]
    + ["fd00:ec2::23", "fd20:ce::254", "fd00:c1::a9fe:a9fe", "fd00:42::42", "fd00:a9fe:a9fe::1"]
    + ["fd00:100::100:200"]
)


@each_case
@pytest.mark.parametrize("address", LEFT_OUT)
def test_a_special_address_is_allowed_by_no_wildcard(address: str) -> None:
    for host in ("a.test", str(ip_address(address.partition("%")[0]))):
        assert not AllowList(WIDE).by_address(Tcp(host, 80), address)


@each_case
@pytest.mark.parametrize(
    "address",
    ["192.0.2.1", "10.0.0.1", "172.16.0.1", "192.168.0.1", "100.64.0.1", "::ffff:10.0.0.1"]
    + ["2001:db8::1", "fd00::1", "fc00::1", "2606:4700::1111"],
)
def test_other_addresses_are_allowed_by_every_wildcard(address: str) -> None:
    network = "0.0.0.0/0:*" if "." in address else "[::/0]:*"
    for pattern in ("*:*", "*.test:*", network):
        assert reaches([pattern], "a.test:80", address), pattern


@each_case
@pytest.mark.parametrize(
    ("pattern", "address"),
    [
        ("127.0.0.1:80", "127.0.0.1"),
        ("127.0.0.1:80", "::ffff:127.0.0.1"),
        ("[::ffff:127.0.0.1]:80", "127.0.0.1"),
        ("[::ffff:127.0.0.0/104]:80", "127.1.2.3"),
        ("127.0.0.0/8:80", "127.1.2.3"),
        ("127.0.0.0/30:80", "127.0.0.2"),
        ("[::1]:80", "::1"),
        ("169.254.0.0/16:80", "169.254.1.1"),
        ("169.254.169.254:80", "169.254.169.254"),
        ("[fd00:ec2::/32]:80", "fd00:ec2::254"),
        ("[fd00:ec2::254]:80", "fd00:ec2::254"),
        ("[fe80::/10]:80", "fe80::1"),
        ("[fe80::/10]:80", "fe80::1%1"),
        ("0.0.0.0:80", "0.0.0.0"),
        ("[64:ff9b::/96]:80", "64:ff9b::808:808"),
        ("[64:ff9b::/96]:80", "64:ff9b::a00:1"),
        ("[64:ff9b:1::/48]:80", "64:ff9b:1::808:808"),
        ("[2002::/16]:80", "2002:808:808::1"),
        ("[2001::/32]:80", "2001:0:808:808::f7f7:f7f7"),
    ],
)
def test_a_special_address_is_allowed_by_what_names_it(pattern: str, address: str) -> None:
    assert reaches(["*:80", pattern], "name:80", address)
    assert not reaches(["*:80", pattern], "name:22", address)


@each_case
@pytest.mark.parametrize(
    ("pattern", "address"),
    [
        ("126.0.0.0/7:80", "127.0.0.1"),
        ("127.0.0.2:80", "127.0.0.1"),
        ("169.254.0.0/16:80", "169.254.169.254"),
        ("169.254.0.0/16:80", "169.254.170.2"),
        ("100.64.0.0/10:80", "100.100.100.200"),
        ("[fd00::/8]:80", "fd00:ec2::254"),
        ("[fe80::/10]:80", "fe80::a9fe:a9fe"),
        ("[::/96]:80", "::1"),
        ("[::/96]:80", "::"),
        ("[::fffe:0:0/95]:80", "127.0.0.1"),
        ("[::/0]:80", "::ffff:127.0.0.1"),
        ("[64:ff9b::/32]:80", "64:ff9b::808:808"),
    ],
)
def test_a_network_around_a_special_one_does_not_name_it(pattern: str, address: str) -> None:
    assert not reaches([pattern], "name:80", address)


@each_case
@pytest.mark.parametrize(
    "address",
    [
        "64:ff9b::7f00:1",
        "64:ff9b::a9fe:a9fe",
        "64:ff9b::",
        "::ffff:0:7f00:1",
        "64:ff9b:1::7f00:1",  # a prefix of 96 bits
        "64:ff9b:1:0:7f:0:100:0",  # of 64
        "64:ff9b:1:7f::1:0:0",  # of 56
        "64:ff9b:1:7f00:0:100::",  # of 48
        "64:ff9b:1::",
        "2002:7f00:1::1",
        "2002:a9fe:a9fe::",
        "2001:0:7f00:1::f7f7:f7f7",  # the server of Teredo
        "2001:0:808:808::80ff:fffe",  # its client
    ],
)
def test_what_an_address_embeds_must_be_named_too(address: str) -> None:
    written = f"[{ip_address(address)}]:*"
    networks = [f"[{network}]:*" for network in SPECIAL if ip_address(address) in network]
    assert not reaches(["*:*", written, *networks], "name:80", address)
    inner = [f"{special}:80" for special in SPECIAL if isinstance(special, IPv4Network)]
    assert reaches([written, *inner], "name:80", address)


@given(st.sampled_from(SPECIAL).flatmap(lambda network: st.ip_addresses(network=network)), hosts)
def test_no_special_address_is_ever_allowed_by_wildcards(address: object, name: str) -> None:
    for host in (name, str(address)):
        assert not AllowList(WIDE).by_address(Tcp(host, 80), str(address))


@given(st.ip_addresses())
def test_what_the_standard_library_knows_as_special_is_special(
    address: IPv4Address | IPv6Address,
) -> None:
    known = address.is_loopback or address.is_link_local or address.is_multicast
    known |= address.is_unspecified
    if isinstance(address, IPv6Address):
        known |= address.sixtofour is not None or address.teredo is not None
    assert not (known and AllowList(WIDE).by_address(Tcp("name", 80), str(address)))


networks_4 = st.builds(
    lambda address, bits: IPv4Network((address, bits), strict=False),
    st.ip_addresses(v=4) | st.ip_addresses(network="126.0.0.0/7"),
    st.integers(0, 32),
)
networks_6 = st.builds(
    lambda address, bits: IPv6Network((address, bits), strict=False),
    st.ip_addresses(v=6) | st.ip_addresses(network="64:ff9b::/32"),
    st.integers(0, 128),
)
networks = networks_4 | networks_6


def pattern_of(network: IPv4Network | IPv6Network) -> str:
    return f"[{network}]:*" if network.version == 6 else f"{network}:*"


@given(st.lists(networks), st.sampled_from(SPECIAL), st.data())
def test_only_networks_within_a_special_one_allow_its_addresses(
    allowed: list[IPv4Network | IPv6Network],
    special: IPv4Network | IPv6Network,
    data: st.DataObject,
) -> None:
    wider = [each for each in allowed if each.version != special.version]
    wider += [
        each
        for each in allowed
        if each.version == special.version and not each.subnet_of(special)  # type: ignore[arg-type]
    ]
    address = data.draw(st.ip_addresses(network=special))
    patterns = [*WIDE, *map(pattern_of, wider)]
    assert not AllowList(patterns).by_address(Tcp("name", 80), str(address))


# Denials


@each_case
@pytest.mark.parametrize(
    ("denied", "place", "address"),
    [
        ("!10.0.0.0/8:*", "h:80", "10.1.2.3"),
        ("!10.0.0.0/8:*", "h:80", "::ffff:10.1.2.3"),
        ("!10.0.0.0/8:*", "h:80", "64:ff9b::a01:203"),
        ("!10.0.0.0/8:*", "h:80", "64:ff9b:1::a01:203"),
        ("!10.0.0.0/8:*", "h:80", "2002:a01:203::1"),
        ("!10.0.0.0/8:*", "10.1.2.3:80", "10.1.2.3"),
        ("![::ffff:10.0.0.0/104]:*", "h:80", "10.1.2.3"),
        ("![::/0]:*", "h:80", "::ffff:10.1.2.3"),
        ("![2001:db8::/32]:*", "h:80", "2001:db8::1"),
        ("!h:*", "h:80", "192.0.2.1"),
        ("!h:80-90", "h:80", "192.0.2.1"),
        ("!*:80", "h:80", "192.0.2.1"),
        ("!*.h:80", "a.h:80", "192.0.2.1"),
    ],
)
def test_a_denial_wins_over_all_that_is_allowed(denied: str, place: str, address: str) -> None:
    host = place.partition(":")[0]
    allowed = [*WIDE, "10.0.0.0/8:*", "[::/0]:*", "[64:ff9b::/32]:*", "[2002::/16]:*"]
    allowed += [f"{host}:*", "10.1.2.3:*"]
    assert not reaches([denied, *allowed], place, address)
    assert not reaches([*allowed, denied], place, address)


@pytest.mark.parametrize(
    "address",
    [
        "64:ff9b::a01:203",
        "::ffff:0:a01:203",
        "64:ff9b:1::a01:203",  # a prefix of 96 bits
        "64:ff9b:1:0:a:102:300:0",  # of 64
        "64:ff9b:1:a:1:203::",  # of 56
        "64:ff9b:1:a01:2:300::",  # of 48
        "2002:a01:203::1",
        "2001:0:a01:203::f7f7:f7f7",  # the server of Teredo
        "2001:0:808:808::f5fe:fdfc",  # its client
    ],
)
def test_one_embedded_address_may_be_denied(address: str) -> None:
    inner = [f"{special}:80" for special in SPECIAL if isinstance(special, IPv4Network)]
    patterns = [f"[{address}]:80", *inner]
    assert reaches([*patterns, "!10.1.2.2:*", "!10.1.2.4:*"], "name:80", address)
    assert not reaches([*patterns, "!10.1.2.3:*"], "name:80", address)


@pytest.mark.parametrize(
    ("denied", "place"),
    [
        ("!h:*", "h:80"),
        ("!*.org:*", "a.org:80"),
        ("!10.0.0.0/8:*", "10.0.0.1:80"),
        ("!10.0.0.0/8:*", "[::ffff:10.0.0.1]:80"),
        ("!10.0.0.0/8:*", "[64:ff9b::a00:1]:80"),
        ("!*:*", "h:80"),
    ],
)
def test_what_is_denied_as_it_is_written_is_not_resolved(denied: str, place: str) -> None:
    allowed, there = AllowList([*WIDE, "h:80", denied]), parse_place(place)
    assert isinstance(there, Tcp)
    assert not allowed.by_name(there)
    assert not allowed.may_resolve(there)


def test_a_denial_leaves_the_rest_alone() -> None:
    patterns = ["*:*", "!10.0.0.0/8:*", "!h:22", "!unix:/run/b", "unix:/run/a", "unix:/run/b"]
    assert reaches(patterns, "name:80", "11.0.0.1")
    assert reaches(patterns, "name:80", "2001:db8::1")
    assert reaches(patterns, "h:80", "11.0.0.1")
    assert reaches(patterns, "other:22", "11.0.0.1")
    assert AllowList(patterns).by_name(parse_place("unix:/run/a"))
    assert not AllowList(patterns).by_name(parse_place("unix:/run/b"))


def test_denials_alone_allow_nothing() -> None:
    assert not AllowList(["!10.0.0.0/8:80"]).may_resolve(Tcp("h", 80))
    assert not reaches(["!10.0.0.0/8:80"], "h:80", "192.0.2.1")


@given(st.lists(networks), networks, hosts, st.data())
def test_no_denied_address_is_ever_allowed(
    allowed: list[IPv4Network | IPv6Network],
    denied: IPv4Network | IPv6Network,
    name: str,
    data: st.DataObject,
) -> None:
    address = str(data.draw(st.ip_addresses(network=denied)))
    names = [f"[{name}]:*" if ":" in name else f"{name}:*", *WIDE]
    patterns = [*names, *map(pattern_of, [*allowed, denied]), f"!{pattern_of(denied)}"]
    for host in (name, address):
        assert not AllowList(patterns).by_address(Tcp(host, 80), address)


@given(networks_4, st.data())
def test_what_embeds_a_denied_address_is_never_allowed(
    denied: IPv4Network, data: st.DataObject
) -> None:
    inner = int(data.draw(st.ip_addresses(network=denied)))
    rest = data.draw(st.integers(0, 2**80 - 1))
    for outer in (
        int(IPv6Address("64:ff9b::")) + inner,
        int(IPv6Address("::ffff:0:0")) + inner,
        int(IPv6Address("2002::")) + (inner << 80) + rest,
        int(IPv6Address("2001::")) + (rest >> 16 << 32) + (inner ^ 0xFFFFFFFF),
    ):
        address = str(IPv6Address(outer))
        patterns = ["h:*", f"[{address}]:*", f"!{pattern_of(denied)}"]
        assert not AllowList(patterns).by_address(Tcp("h", 80), address)


# Listening


def test_special_addresses_are_as_others_to_listen_at() -> None:
    for place in ("127.0.0.1:80", "0.0.0.0:80", "[::]:80", "localhost:80", "unix:/run/a"):
        assert AllowList(["*:80", "unix:/run/a"]).may_listen(parse_place(place))


def test_no_name_is_listened_at_where_addresses_are_denied() -> None:
    allowed = AllowList(["*:*", "h:80", "!10.0.0.0/8:80", "!evil:*"])
    assert not allowed.may_listen(parse_place("h:80"))
    assert not allowed.may_listen(parse_place("10.0.0.1:80"))
    assert not allowed.may_listen(parse_place("evil:81"))
    assert allowed.may_listen(parse_place("h:81"))
    assert allowed.may_listen(parse_place("11.0.0.1:80"))


def test_port_0_needs_all_ports() -> None:
    free = parse_place("127.0.0.1:0", listening=True)
    assert AllowList(["127.0.0.1:*"]).by_name(free)
    assert not AllowList(["127.0.0.1:1-65535"]).by_name(free)


@each_case
@pytest.mark.parametrize(
    "pattern",
    ["", "h", "h:", ":80", "h:x", "h:0", "h:65536", "h:20-10", "h:1-", "h:-1", "h:1-2-3", "*"]
    + ["*.*:80", "*a:80", "a.*:80", "*.:80", "10.0.0.1/8:80", "10.0.0.0/33:80", "::1:80", "::/0:80"]
    + ["[10.0.0.1]:80", "[::1:80", "[2001:db8::/200]:80", "unix:", "unix:a", "unix:/a/../b"]
    + ["h:80,81", "user@h:80", "a/b:80", "!", "!!h:80", "! h:80", "!h", "h!:80", "!10.0.0.1/8:80"],
)
def test_what_is_no_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match="."):
        AllowList(["good:80", pattern])


def test_a_denial_that_is_none_is_told_as_it_was_given() -> None:
    with pytest.raises(ValueError, match="'!h' is not of the form HOST:PORTS"):
        AllowList(["!h"])


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("h", "is not of the form HOST:PORTS"),
        ("h:x", "names no port, range of ports"),
        ("h:1-65536", "names ports that are not from 1 to 65535"),
        ("h:0-80", "names ports that are not from 1 to 65535"),
        ("[10.0.0.1]:80", ": brackets belong around IPv6"),
        ("::1:80", ": brackets belong around IPv6"),
        ("10.0.0.1/8:80", ": 10.0.0.1/8 has host bits set"),
        ("[2001:db8::/200]:80", ": .*200"),
    ],
)
def test_a_refusal_says_which_pattern_and_why(pattern: str, why: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(repr(pattern))} ?{why}"):
        AllowList(["good:80", pattern])


@pytest.mark.parametrize(("ports", "last"), [("*", 65535), ("1-1023", 1023), ("80", 80)])
def test_ports_end_with_the_last_that_is_named(ports: str, last: int) -> None:
    allowed = AllowList([f"10.0.0.0/8:{ports}"])
    assert allowed.by_address(Tcp("db.example", last), "10.0.0.1")
    assert not allowed.by_address(Tcp("db.example", last + 1), "10.0.0.1")


@given(pieces, places)
def test_any_text_is_a_pattern_or_refused(pattern: str, place: Place) -> None:
    try:
        allowed = AllowList([pattern])
    except ValueError:
        return
    allowed.by_name(place)
    allowed.may_listen(place)
    if isinstance(place, Tcp):
        assert allowed.may_resolve(place) or not allowed.by_address(place, place.host)


def test_a_list_shows_its_patterns() -> None:
    assert repr(AllowList(["h:80"])) == "AllowList(['h:80'])"
