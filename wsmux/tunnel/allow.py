"""Decide which places a tunnel may reach. Nothing is allowed that no pattern names.

Patterns are ``HOST:PORTS`` and ``unix:/PATH``:

======================  ============================================================
``redis.internal:6379``  that name, whatever it resolves to
``*.example.org:443``    every name below it, not itself
``10.0.0.7:5432``        that address, and names that resolve to it
``10.0.0.0/8:1-1023``    these addresses, and names that resolve to them; a port range
``[2001:db8::/32]:*``    the same in IPv6; every port
``*:443``                every host
``unix:/run/app.sock``   that socket
======================  ============================================================

A name that only its address allows is connected to at that very address, so that it cannot
resolve to another one meanwhile. An IPv4 address written as an IPv6 one counts as what it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import NamedTuple

from .places import MAX_PORT, Place, Tcp, Unix, parse_place

__all__ = ["AllowList"]

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

_PORTS = re.compile(r"(?P<all>\*)|(?P<first>[0-9]{1,5})(-(?P<last>[0-9]{1,5}))?")


class _Rule(NamedTuple):
    """Allow some hosts, by name or by address, at some ports."""

    ports: range
    network: Network | None = None
    name: str = ""  # of one host
    suffix: str | None = None  # of many, "" for all


class AllowList:
    """Hold patterns; frozen, and safe to use from any thread.

    Args:
        patterns: what is allowed; see the module.

    Raises:
        ValueError: one is no pattern; the text says which, and why.
    """

    def __init__(self, patterns: Iterable[str] = ()) -> None:
        self._patterns = tuple(patterns)
        self._rules: list[_Rule] = []
        self._paths: set[Place] = set()
        for pattern in self._patterns:
            if pattern.startswith("unix:"):
                self._paths.add(parse_place(pattern))
            else:
                self._rules.append(_rule(pattern))

    def __repr__(self) -> str:
        return f"AllowList({list(self._patterns)})"

    def __bool__(self) -> bool:
        return bool(self._patterns)

    def by_name(self, place: Place) -> bool:
        """Tell whether a place is allowed as it is written."""
        if isinstance(place, Unix):
            return place in self._paths
        return any(_named(rule, place) for rule in self._rules if place.port in rule.ports)

    def by_address(self, address: str, port: int) -> bool:
        """Tell whether a port of an address is allowed, whatever name it was found by."""
        found = _address(address)
        return found is not None and any(
            rule.network is not None and port in rule.ports and found in rule.network
            for rule in self._rules
        )

    def asks_for_address(self, port: int) -> bool:
        """Tell whether it depends on a host's address if it is allowed."""
        return any(rule.network is not None and port in rule.ports for rule in self._rules)


def _named(rule: _Rule, place: Tcp) -> bool:
    if rule.network is not None:
        address = _address(place.host)
        return address is not None and address in rule.network
    if rule.suffix is not None:
        return place.host.endswith(rule.suffix)
    return place.host == rule.name


def _rule(pattern: str) -> _Rule:
    hosts, colon, text = pattern.rpartition(":")
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
        return range(MAX_PORT + 1)  # with the 0 that takes a free one to listen at
    first = int(match["first"])
    last = int(match["last"] or first)
    if not 1 <= first <= last <= MAX_PORT:
        raise ValueError(f"{pattern!r} names ports that are not from 1 to {MAX_PORT}")
    return range(first, last + 1)


def _network(text: str, pattern: str) -> Network:
    try:
        return ip_network(text)
    except ValueError as error:
        raise ValueError(f"{pattern!r}: {error}") from None


def _address(text: str) -> Address | None:
    """Return the address that a text is, ``None`` for a name."""
    try:
        address = ip_address(text)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address
