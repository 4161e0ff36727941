"""Only those addresses of a name are dialled that are allowed, as they were found."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest

from wsmux.tunnel import AllowList, TunnelError, parse_place
from wsmux.tunnel.dial import dial

from ..helpers.tunnel_server import Echo

LOOKS = [
    # what is allowed, what the name resolves to, what of it is dialled
    (["192.0.2.0/24:80"], ["192.0.2.1", "198.51.100.1"], ["192.0.2.1"]),
    (["192.0.2.0/24:80"], ["198.51.100.1", "192.0.2.1"], ["192.0.2.1"]),
    (["192.0.2.0/24:80"], ["10.0.0.1", "192.0.2.1", "192.0.2.2"], ["192.0.2.1", "192.0.2.2"]),
    (["[2001:db8::/32]:80"], ["2001:db9::1", "2001:db8::1", "192.0.2.1"], ["2001:db8::1"]),
    (["192.0.2.0/24:80"], ["::ffff:10.0.0.1", "::ffff:192.0.2.1"], ["::ffff:192.0.2.1"]),
    (["[2001:db8::/32]:80"], ["::ffff:127.0.0.1", "2001:db8::1"], ["2001:db8::1"]),
    (["*:80"], ["127.0.0.1", "192.0.2.1", "169.254.169.254"], ["192.0.2.1"]),
    (["*:80"], ["::1", "2001:db8::1", "fe80::1", "64:ff9b::7f00:1"], ["2001:db8::1"]),
    (["*:80"], ["::ffff:127.0.0.1", "::ffff:192.0.2.1"], ["::ffff:192.0.2.1"]),
    (["*.test:80"], ["127.0.0.1", "192.0.2.1"], ["192.0.2.1"]),
    (["name.test:80", "!10.0.0.0/8:*"], ["10.0.0.1", "127.0.0.1"], ["127.0.0.1"]),
    (["*:80", "!10.0.0.0/8:*"], ["::ffff:10.0.0.1", "192.0.2.1"], ["192.0.2.1"]),
]


class Dialled:
    """Resolve every name to what a test says, and note what is connected to, which is refused.

    Attributes:
        found: the addresses that a look-up finds.
        first: those that the first one finds instead.
        resolved: the names that were looked up.
        addresses: those that were connected to, in order.
    """

    def __init__(self) -> None:
        self.found: list[str] = []
        self.first: list[str] | None = None
        self.resolved: list[str] = []
        self.addresses: list[str] = []

    def resolve(self, host: str, port: int, **options: Any) -> list[Any]:
        found, self.first = self.found if self.first is None else self.first, None
        self.resolved.append(host)
        return [answer(address, port) for address in found]


def answer(address: str, port: int) -> tuple[Any, ...]:
    """Return what ``getaddrinfo`` says of an address."""
    if ":" in address:
        return (socket.AF_INET6, socket.SOCK_STREAM, 6, "", (address, port, 0, 0))
    return (socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))


@pytest.fixture
def dialled(monkeypatch: pytest.MonkeyPatch) -> Dialled:
    told = Dialled()

    class Noting(socket.socket):
        def connect(self, address: Any) -> None:
            told.addresses.append(address[0])
            raise ConnectionRefusedError(111, "refused")

    monkeypatch.setattr(socket, "getaddrinfo", told.resolve)
    monkeypatch.setattr(socket, "socket", Noting)
    return told


def status_of(place: str, allowed: list[str]) -> int:
    with pytest.raises(TunnelError) as caught:
        dial(parse_place(place), AllowList(allowed))
    return caught.value.status


@pytest.mark.parametrize(("allowed", "found", "wanted"), LOOKS)
def test_only_the_allowed_addresses_of_a_name_are_dialled(
    dialled: Dialled, allowed: list[str], found: list[str], wanted: list[str]
) -> None:
    dialled.found = found
    assert status_of("name.test:80", allowed) == 502  # all that may be were tried
    assert dialled.addresses == wanted


def test_a_name_is_resolved_once_however_many_addresses_it_has(dialled: Dialled) -> None:
    dialled.found = ["192.0.2.1", "192.0.2.2", "198.51.100.1", "2001:db8::1"]
    assert status_of("name.test:80", ["192.0.2.0/24:80", "[2001:db8::/32]:80"]) == 502
    assert dialled.resolved == ["name.test"]
    assert dialled.addresses == ["192.0.2.1", "192.0.2.2", "2001:db8::1"]


@pytest.mark.parametrize("allowed", ["192.0.2.0/24:80", "*:80", "*.test:80"])
def test_a_name_that_resolves_to_another_address_later_leads_nowhere_else(
    dialled: Dialled, allowed: str
) -> None:
    dialled.first, dialled.found = ["192.0.2.1"], ["127.0.0.1"]
    assert status_of("name.test:80", [allowed]) == 502
    assert (dialled.resolved, dialled.addresses) == (["name.test"], ["192.0.2.1"])
    assert status_of("name.test:80", [allowed]) == 403  # each request asks anew, and is judged so
    assert dialled.addresses == ["192.0.2.1"]


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "::ffff:127.0.0.1", "169.254.169.254"])
def test_a_name_of_special_addresses_alone_is_refused_without_a_socket(
    dialled: Dialled, address: str
) -> None:
    dialled.found = [address]
    assert status_of("name.test:80", ["*:80", "0.0.0.0/0:*", "[::/0]:*"]) == 403
    assert dialled.addresses == []


@pytest.mark.parametrize("host", ["127.1", "2130706433", "0x7f000001", "0177.0.0.1", "localhost"])
def test_no_way_of_writing_loopback_passes_a_wildcard(host: str) -> None:
    assert status_of(f"{host}:80", ["*:80", "0.0.0.0/0:*"]) == 403


def test_a_denied_name_is_not_even_resolved(dialled: Dialled) -> None:
    dialled.found = ["192.0.2.1"]
    assert status_of("name.test:80", ["*:80", "192.0.2.0/24:*", "!*.test:*"]) == 403
    assert (dialled.resolved, dialled.addresses) == ([], [])


def test_loopback_is_dialled_where_it_is_named(echo_port: int) -> None:
    allowed = AllowList(["*:*", "127.0.0.1:*"])
    with dial(parse_place(f"127.0.0.1:{echo_port}"), allowed) as sock:
        assert sock.getpeername() == ("127.0.0.1", echo_port)
    with pytest.raises(TunnelError, match="not on the list"):
        dial(parse_place(f"127.0.0.1:{echo_port}"), AllowList(["*:*"]))


@pytest.fixture
def echo_port() -> Iterator[int]:
    with Echo() as echo:
        yield int(echo.place.rpartition(":")[2])
