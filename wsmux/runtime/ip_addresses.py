"""Find the address under which a connection is counted, with or without proxies.

An IPv4 address counts as one address, and so does a /64 network of IPv6, which is what one
subscriber has. Link-local addresses (``fe80::``) are counted singly, since all neighbours on a link
share one network. An IPv4-mapped IPv6 address counts as the IPv4 address, and so does one of
``64:ff9b::/96``, behind which a translator puts the addresses of all IPv4 clients (RFC 6052).

Connections from ``127.0.0.1`` or ``::1``, or over a Unix socket, are not counted: they come from
processes on this machine, one of which may be a reverse proxy for all clients.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

__all__ = ["UNIX", "Address", "Proxies", "address_of", "counted_as", "unmapped"]

Address = IPv4Address | IPv6Address

# Stands for Unix sockets in a list of networks.
UNIX = "unix"

# The source addresses of local processes, unless they bind to another one.
_OWN = frozenset({IPv4Address("127.0.0.1"), IPv6Address("::1")})

# What a translator puts IPv4 clients in. Only counted as IPv4: no client behind one is a proxy that
# is trusted by its IPv4 address, or a process on this machine.
_TRANSLATED = IPv6Network("64:ff9b::/96")


def address_of(text: str) -> Address | None:
    """Return a text as an address; ``None`` if it is not one, such as that of a Unix socket."""
    try:
        return unmapped(ip_address(text.partition("%")[0]))  # a zone is local to this machine
    except ValueError:
        return None


def unmapped(address: Address) -> Address:
    """Return the IPv4 address of an IPv4-mapped IPv6 one; any other address unchanged."""
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address


def counted_as(address: Address | None) -> str | None:
    """Return the key under which an address is counted; ``None`` if it is not counted."""
    if address is None or address in _OWN:
        return None
    if isinstance(address, IPv4Address) or address.is_link_local:
        return str(address)
    if address in _TRANSLATED:
        return str(IPv4Address(int(address) & 0xFFFF_FFFF))
    return str(IPv6Network((int(address) >> 64 << 64, 64)))


class Proxies:
    """Hold the proxies that are trusted to report the address of a client.

    Args:
        networks: the networks they connect from, and ``UNIX``.

    Raises:
        ValueError: one is not a network.
    """

    def __init__(self, networks: Collection[str]) -> None:
        self._unix = UNIX in networks
        self._networks = [_network(text) for text in networks if text != UNIX]

    def trusts(self, address: Address | None) -> bool:
        """Return whether this is the address of a trusted proxy; ``None`` is a Unix socket."""
        if address is None:
            return self._unix
        return any(address in network for network in self._networks)

    def client(
        self, peer: Address | None, forwarded_for: str | None, forwarded: str | None
    ) -> Address | None:
        """Return the client of a request: the rightmost address that is not a trusted proxy.

        Each proxy appends the address from which it received the request. So only the entries from
        the first untrusted address rightwards were written by trusted proxies; anyone may have
        written the rest.

        Args:
            peer: the address of the socket.
            forwarded_for: the header ``X-Forwarded-For``.
            forwarded: the header ``Forwarded`` (RFC 7239), used only without the other.

        Returns:
            ``None`` if no trusted proxy reports it.
        """
        if not self.trusts(peer):
            return peer
        if forwarded_for is not None:
            named = _entries(forwarded_for, ",", quoting=False)
        else:
            named = map(_for, _entries(forwarded or "", ","))
        furthest = None
        for entry in named:
            address = _address_in(entry)
            if address is None:  # "unknown", or a name only the proxy understands
                return None
            if not self.trusts(address):
                return address
            furthest = address
        return furthest


def _network(text: str) -> IPv4Network | IPv6Network:
    form = 'an IP network such as "10.0.0.0/8", "192.0.2.7" or "2001:db8::/32", or "unix"'
    try:
        network = ip_network(text)
    except ValueError as error:
        raise ValueError(f"a proxy is named by {form}, not {text[:100]!r}: {error}") from None
    if isinstance(network, IPv6Network) and network.network_address.ipv4_mapped is not None:
        raise ValueError(f"a proxy is named by {form}; write {text[:100]!r} as IPv4")
    return network


def _entries(text: str, separator: str, *, quoting: bool = True) -> Iterator[str]:
    """Yield the parts of a header from the right, without empty ones.

    The part on the right, written by the nearest proxy, is well-formed. Anything may precede it,
    such as an unclosed quote, and must not affect how the right part is parsed.
    """
    end, quoted = len(text), False
    for place in range(len(text) - 1, -1, -1):
        char = text[place]
        if char == '"' and quoting:
            quoted ^= not _escaped(text, place)
        elif char == separator and not quoted:
            if part := text[place + 1 : end].strip():
                yield part
            end = place
    if part := text[:end].strip():
        yield part


def _escaped(text: str, place: int) -> bool:
    """Return whether an odd number of backslashes precedes a position."""
    before = place
    while before and text[before - 1] == "\\":
        before -= 1
    return (place - before) % 2 == 1


def _for(element: str) -> str:
    """Return the address in the ``for`` parameter of an element of ``Forwarded``."""
    for pair in _entries(element, ";"):
        name, _, value = pair.partition("=")
        if name.strip().lower() == "for":
            return value.strip().strip('"')
    return ""


def _address_in(entry: str) -> Address | None:
    """Return the address in an entry, which may include a port."""
    if entry.startswith("["):
        entry = entry[1:].partition("]")[0]
    elif entry.count(":") == 1:
        entry = entry.partition(":")[0]
    return address_of(entry)
