"""Decide which destinations a tunnel may reach. Only those that a pattern names are allowed.

Patterns are ``HOST:PORTS`` and ``unix:/PATH``:

======================  ============================================================
``redis.internal:6379``  that name, whatever it resolves to
``*.example.org:443``    every name below it, but not the domain itself
``10.0.0.7:5432``        that address, and names that resolve to it
``10.0.0.0/8:1-1023``    these addresses, and names that resolve to them; a port range
``[2001:db8::/32]:*``    the same in IPv6; every port
``*:443``                every host
``unix:/run/app.sock``   that socket
``!10.0.0.0/8:*``        none of these: a pattern after ``!`` denies, whatever else allows it
======================  ============================================================

Each address that a name resolves to is checked, and the allowed ones are connected to exactly as
resolved, so that the name cannot resolve to another one meanwhile.

**Special addresses must be named.** Loopback, link-local addresses, cloud metadata services,
multicast, the unspecified and reserved addresses, and IPv6 addresses that stand for IPv4 ones
(NAT64, 6to4, Teredo) are the ``SPECIAL`` networks. Such an address is not allowed by ``*``, by
``*.example.org``, or by a network that merely contains it. It is allowed by the exact address, by a
network that lies within each special network that contains the address (so ``169.254.0.0/16`` names
link-local addresses, but not ``169.254.169.254``, which is in a special network of its own), or by
the exact name that resolves to it. Private networks, such as ``10.0.0.0/8``, are not special, since
tunnels are meant to reach hosts behind the server. Deny them where that is not wanted.

An IPv4-mapped IPv6 address (``::ffff:10.0.0.1``) counts as the IPv4 address. An address embedded by
NAT64, 6to4 or Teredo is checked in addition to the address that embeds it: it must not be denied,
and it must be named if it is special. So ``[64:ff9b::/96]:80`` does not allow loopback.

A denied name is refused as written by the client; the same host by its address, or by another name,
is not. Denied addresses are refused under any name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Network, ip_address, ip_network
from typing import NamedTuple

from ..runtime.arguments import strings
from ..runtime.ip_addresses import Address, unmapped
from .places import MAX_PORT, Place, Tcp, Unix, parse_place

__all__ = ["AllowList"]

Network = IPv4Network | IPv6Network

_PORTS = re.compile(r"(?P<all>\*)|(?P<first>[0-9]{1,5})(-(?P<last>[0-9]{1,5}))?")


# Allowed only if named. Smaller networks are listed in addition to those that contain them, because
# an address must be named within each of its networks.
SPECIAL: tuple[Network, ...] = tuple(
    ip_network(text)
    for text in (
        "0.0.0.0/8",  # this host, RFC 1122; Linux connects 0.0.0.0 to loopback
        "127.0.0.0/8",
        "169.254.0.0/16",
        "224.0.0.0/4",
        "240.0.0.0/4",
        "::/96",  # IPv4-compatible, deprecated
        "::/128",
        "::1/128",
        "::ffff:0:0:0/96",  # IPv4-translated, RFC 2765
        "64:ff9b::/96",
        "64:ff9b:1::/48",
        "100::/64",  # discarded, RFC 6666
        "2001::/32",
        "2002::/16",
        "fe80::/10",
        "ff00::/8",
        # Metadata services, which give credentials to any client
        "169.254.169.254/32",  # AWS, Azure, Google, OpenStack and most others
        "169.254.170.2/32",  # AWS, for containers
        "169.254.170.23/32",
        "169.254.42.42/32",  # Scaleway
        "169.254.0.23/32",  # Tencent
        "169.254.10.10/32",
        "100.100.100.200/32",  # Alibaba
        "168.63.129.16/32",  # Azure
        "192.0.0.192/32",  # Oracle
        "fd00:ec2::/32",  # AWS
        "fd20:ce::254/128",  # Google
        "fd00:c1::a9fe:a9fe/128",  # Oracle
        "fd00:42::42/128",  # Scaleway
        "fd00:a9fe:a9fe::1/128",  # Linode
        "fd00:100::100:200/128",  # Alibaba
        "fe80::a9fe:a9fe/128",  # OpenStack
    )
)

# Networks of addresses that stand for IPv4 ones: RFC 6052, 8215, 2765, 3056, 4380.
_LAST_32_BITS = (IPv6Network("64:ff9b::/96"), IPv6Network("::ffff:0:0:0/96"))
_LOCAL_NAT64 = IPv6Network("64:ff9b:1::/48")
_6TO4 = IPv6Network("2002::/16")
_TEREDO = IPv6Network("2001::/32")

_MAPPED = IPv6Network("::ffff:0:0/96")


class _Rule(NamedTuple):
    """Match some hosts, by name or by address, at some ports."""

    ports: range
    network: Network | None = None
    name: str | None = None  # of one host
    suffix: str | None = None  # of many, "" for all

    def matches_name(self, host: str) -> bool:
        if self.suffix is not None:
            return host.endswith(self.suffix)
        return host == self.name

    def contains(self, address: Address) -> bool:
        return self.network is not None and address in self.network

    def names(self, address: Address) -> bool:
        """Return whether it contains an address, and is no wider than its special networks."""
        return (
            self.network is not None
            and address in self.network
            and all(_within(self.network, special) for special in _special(address))
        )


class AllowList:
    """Hold patterns; immutable, and usable from any thread.

    Args:
        patterns: what is allowed and what is denied, in any order; see the module docstring.
        name: what errors call them.

    Raises:
        ValueError: one is not a valid pattern; the text says which, and why.
        TypeError: they are not a collection of strings.
    """

    def __init__(self, patterns: Iterable[str] = (), *, name: str = "patterns") -> None:
        self._patterns = strings(name, patterns, "redis.internal:6379")
        self._allowed: list[_Rule] = []
        self._denied: list[_Rule] = []
        self._paths: set[Place] = set()
        denied_paths: set[Place] = set()
        for pattern in self._patterns:
            denies = pattern.startswith("!")
            text = pattern.removeprefix("!")
            if text.startswith("unix:"):
                (denied_paths if denies else self._paths).add(parse_place(text))
            else:
                (self._denied if denies else self._allowed).append(_rule(pattern))
        self._paths -= denied_paths

    def __repr__(self) -> str:
        return f"AllowList({list(self._patterns)})"

    def __bool__(self) -> bool:
        return bool(self._patterns)

    def by_name(self, place: Place) -> bool:
        """Return whether a destination is allowed as written.

        Its addresses must be checked with ``by_address``, even if it is written as one.
        """
        if isinstance(place, Unix):
            return place in self._paths
        address = _address(place.host)
        return not self._denies(place, place.host) and any(
            rule.matches_name(place.host) or (address is not None and rule.contains(address))
            for rule in _at(self._allowed, place.port)
        )

    def by_address(self, place: Tcp, address: str) -> bool:
        """Return whether a connection may be made to an address of a destination's host."""
        found = _address(address)
        if found is None or self._denies(place, address):
            return False
        rules = _at(self._allowed, place.port)
        if any(rule.name == place.host for rule in rules):
            return True
        by_wildcard = not _special(found) and any(rule.matches_name(place.host) for rule in rules)
        return (by_wildcard or any(rule.names(found) for rule in rules)) and all(
            not _special(inner) or any(rule.names(inner) for rule in rules)
            for inner in _embedded(found)
        )

    def may_resolve(self, place: Tcp) -> bool:
        """Return whether a destination is allowed as written, or may be by one of its addresses."""
        return self.by_name(place) or (
            not self._denies(place, place.host)
            and any(rule.network is not None for rule in _at(self._allowed, place.port))
        )

    def may_listen(self, place: Place) -> bool:
        """Return whether listening at an address is allowed.

        Special addresses are treated like any others here. Names are not resolved: if addresses are
        denied at the port, no name is allowed.
        """
        unsure = (
            isinstance(place, Tcp)
            and _address(place.host) is None
            and any(rule.network is not None for rule in _at(self._denied, place.port))
        )
        return self.by_name(place) and not unsure

    def _denies(self, place: Tcp, address: str) -> bool:
        addresses = _readings(address)
        return any(
            rule.matches_name(place.host) or any(map(rule.contains, addresses))
            for rule in _at(self._denied, place.port)
        )


def _at(rules: Iterable[_Rule], port: int) -> list[_Rule]:
    return [rule for rule in rules if port in rule.ports]


def _special(address: Address) -> list[Network]:
    return [network for network in SPECIAL if address in network]


def _within(inner: Network, outer: Network) -> bool:
    """Return whether a network lies within another one of the same version."""
    return inner.network_address in outer and inner.prefixlen >= outer.prefixlen


def _embedded(address: Address) -> list[IPv4Address]:
    """Return the IPv4 addresses that an IPv6 one may stand for, other than a mapped one."""
    if isinstance(address, IPv4Address):
        return []
    bits = int(address)
    found: list[int] = []
    if any(address in network for network in _LAST_32_BITS):
        found = [bits]
    elif address in _LOCAL_NAT64:
        # The prefix length determines where the IPv4 address is, and depends on the network: 96,
        # 64, 56 or 48 bits, with 8 zero bits in the middle. Each reading counts, except those that
        # begin with zeros, which are the padding of another one.
        found = [
            bits,
            bits >> 24,
            (bits >> 64 & 0xFF) << 24 | bits >> 32 & 0xFFFFFF,
            (bits >> 64 & 0xFFFF) << 16 | bits >> 40 & 0xFFFF,
        ]
        found = [each for each in found if each & 0xFF000000] or found[:1]
    elif address in _6TO4:
        found = [bits >> 80]
    elif address in _TEREDO:
        found = [bits >> 64, ~bits]  # of the server and of the client
    return [IPv4Address(each & 0xFFFFFFFF) for each in found]


def _rule(pattern: str) -> _Rule:
    hosts, colon, text = pattern.removeprefix("!").rpartition(":")
    if not colon:
        raise ValueError(f"{pattern!r} is not of the form HOST:PORTS or unix:/PATH")
    ports = _ports(text, pattern)
    if hosts == "*":
        return _Rule(ports, suffix="")
    bare = hosts[1:-1] if hosts.startswith("[") and hosts.endswith("]") else hosts
    if "/" in bare or _address(bare) is not None:
        if (":" in bare) != (bare != hosts):
            raise ValueError(f"{pattern!r}: brackets belong around IPv6, and nothing else")
        return _Rule(ports, network=_network(bare, pattern))
    wild = hosts.startswith("*.")
    name = str(parse_place(f"{hosts[2:] if wild else hosts}:1")).rpartition(":")[0]
    return _Rule(ports, suffix=f".{name}") if wild else _Rule(ports, name=name)


def _ports(text: str, pattern: str) -> range:
    match = _PORTS.fullmatch(text)
    if match is None:
        raise ValueError(f"{pattern!r} names no port, range of ports or '*'")
    if match["all"]:
        return range(MAX_PORT + 1)  # including 0, which picks a free port to listen at
    first = int(match["first"])
    last = int(match["last"] or first)
    if not 1 <= first <= last <= MAX_PORT:
        raise ValueError(f"{pattern!r} names ports that are not from 1 to {MAX_PORT}")
    return range(first, last + 1)


def _network(text: str, pattern: str) -> Network:
    try:
        network = ip_network(text)
    except ValueError as error:
        raise ValueError(f"{pattern!r}: {error}") from None
    if isinstance(network, IPv6Network) and _within(network, _MAPPED):
        first = int(network.network_address) & 0xFFFFFFFF
        return IPv4Network((first, network.prefixlen - _MAPPED.prefixlen))
    return network


def _readings(text: str) -> list[Address]:
    """Return all addresses that a text stands for, written or embedded; none for a name."""
    try:
        written = ip_address(text)
    except ValueError:
        return []
    return [written, unmapped(written), *_embedded(written)]


def _address(text: str) -> Address | None:
    """Return a text as an address, ``None`` for a name."""
    try:
        return unmapped(ip_address(text))
    except ValueError:
        return None
