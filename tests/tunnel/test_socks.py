"""SOCKS5 is spoken as RFC 1928 has it; every truncation waits, every wrong byte is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wsmux.tunnel.places import Tcp
from wsmux.tunnel.socks import SocksError, SocksServer

from ..helpers.tables import each_case, each_row
from ..helpers.tunnel_inputs import GREETING, reply

TO_IPV4 = bytes([5, 1, 0, 1, 10, 0, 0, 1, 0, 80])
TO_NAME = bytes([5, 1, 0, 3, 11]) + b"example.org" + bytes([1, 187])
TO_IPV6 = bytes([5, 1, 0, 4]) + bytes(15) + b"\x01" + bytes([0, 80])
REQUESTS = {
    "ipv4": (TO_IPV4, Tcp("10.0.0.1", 80)),
    "name": (TO_NAME, Tcp("example.org", 443)),
    "ipv6": (TO_IPV6, Tcp("::1", 80)),
}
BY_KIND = pytest.mark.parametrize(("request_", "place"), REQUESTS.values(), ids=REQUESTS)


@BY_KIND
def test_a_client_says_where_it_goes(request_: bytes, place: Tcp) -> None:
    server = SocksServer()
    server.receive(GREETING)
    assert server.data_to_send() == b"\x05\x00"
    assert server.place is None
    server.receive(request_)
    assert server.place == place
    assert server.data_to_send() == b""
    server.answer(200)
    assert server.data_to_send() == reply(0)
    assert server.early() == b""


@BY_KIND
def test_any_chopping_gives_the_same(request_: bytes, place: Tcp) -> None:
    server = SocksServer()
    for byte in GREETING + request_:
        assert server.place is None
        server.receive(bytes([byte]))
    assert server.place == place


@BY_KIND
def test_what_comes_behind_the_request_is_kept(request_: bytes, place: Tcp) -> None:
    server = SocksServer()
    server.receive(GREETING + request_ + b"early")
    assert (server.place, server.early()) == (place, b"early")


@BY_KIND
def test_every_truncation_waits_for_more(request_: bytes, place: Tcp) -> None:
    whole = GREETING + request_
    for size in range(len(whole)):
        server = SocksServer()
        server.receive(whole[:size])
        assert server.place is None


@each_case
@each_row(value for value in range(256) if value != 5)
def test_every_other_version_is_refused_at_its_first_byte(byte: int) -> None:
    server = SocksServer()
    with pytest.raises(SocksError, match=f"version {byte}"):
        server.receive(bytes([byte]))
    assert server.data_to_send() == b""


@pytest.mark.parametrize("methods", [b"", b"\x02", b"\x01\x02\xff"])
def test_a_client_that_wants_to_authenticate_is_told_that_there_is_no_way(methods: bytes) -> None:
    server = SocksServer()
    with pytest.raises(SocksError, match="authentication"):
        server.receive(bytes([5, len(methods)]) + methods)
    assert server.data_to_send() == b"\x05\xff"


@pytest.mark.parametrize(
    ("at", "good", "code"), [(0, {5}, 1), (1, {1}, 7), (2, {0}, 1), (3, {1, 3, 4}, 8)]
)
def test_every_wrong_byte_of_a_request_is_refused(at: int, good: set[int], code: int) -> None:
    for byte in set(range(256)) - good:
        server = SocksServer()
        server.receive(GREETING)
        server.data_to_send()
        with pytest.raises(SocksError, match=str(byte)):
            server.receive(TO_IPV4[:at] + bytes([byte]))
        assert server.data_to_send() == reply(code)


@pytest.mark.parametrize(
    "name", [b"", b"a b", b"\xff", b"a\0", b"..", b"unix:/x", b"unix:/x/y", b"h/", b"user@h"]
)
def test_what_is_no_name_is_refused(name: bytes) -> None:
    server = SocksServer()
    with pytest.raises(SocksError, match="names"):
        server.receive(GREETING + bytes([5, 1, 0, 3, len(name)]) + name + b"\x00\x50")
    assert server.data_to_send() == b"\x05\x00" + reply(1)


def test_port_0_is_refused() -> None:
    server = SocksServer()
    with pytest.raises(SocksError, match="port"):
        server.receive(GREETING + TO_IPV4[:-2] + b"\0\0")


@pytest.mark.parametrize(
    ("status", "code"), [(200, 0), (400, 1), (403, 2), (502, 5), (503, 1), (504, 4)]
)
def test_a_refusal_has_its_reply(status: int, code: int) -> None:
    server = SocksServer()
    server.receive(GREETING + TO_IPV4)
    server.data_to_send()
    server.answer(status)
    assert server.data_to_send() == reply(code)


@given(st.lists(st.binary(max_size=40), max_size=5))
def test_any_bytes_are_understood_or_refused(chunks: list[bytes]) -> None:
    server = SocksServer()
    try:
        for chunk in chunks:
            server.receive(chunk)
    except SocksError:
        return
    assert server.place is None or 1 <= server.place.port <= 65_535


@given(st.binary(max_size=40))
def test_any_request_is_understood_or_refused(data: bytes) -> None:
    server = SocksServer()
    server.receive(GREETING)
    try:
        server.receive(b"\x05\x01\x00" + data)
    except SocksError:
        assert server.data_to_send().startswith(b"\x05")
