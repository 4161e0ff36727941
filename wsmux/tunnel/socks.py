"""Implement the server side of SOCKS5 (RFC 1928), without I/O.

No authentication, and only ``CONNECT``: anyone who can reach the port may use it.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address
from typing import NoReturn

from ..exceptions import WsmuxError
from .places import Tcp, parse_place

__all__ = ["SocksError", "SocksServer"]

VERSION = 5
NO_AUTHENTICATION, NO_METHOD = 0, 255
CONNECT = 1
IPV4, NAME, IPV6 = 1, 3, 4

# Replies, RFC 1928 section 6.
SUCCEEDED, FAILED, FORBIDDEN, HOST_UNREACHABLE, REFUSED = 0, 1, 2, 4, 5
UNKNOWN_COMMAND, UNKNOWN_ADDRESS = 7, 8

# By the status of a tunnel's answer.
REPLIES = {200: SUCCEEDED, 403: FORBIDDEN, 502: REFUSED, 504: HOST_UNREACHABLE}


class SocksError(WsmuxError):
    """Report a client that does not use SOCKS5 as supported here; it gets a reply as well."""


class SocksServer:
    """Serve one client. After an error nothing more may be received.

    Attributes:
        place: the destination, once the client has sent it.
    """

    def __init__(self) -> None:
        self.place: Tcp | None = None
        self._buffer = b""
        self._outbox: list[bytes] = []
        self._greeted = False

    def receive(self, data: bytes) -> None:
        """Process received bytes.

        Raises:
            SocksError: the client must be disconnected after ``data_to_send`` has been sent.
        """
        self._buffer += data
        if not self._greeted:
            self._greeting()
        if self._greeted and self.place is None:
            self._request()

    def data_to_send(self) -> bytes:
        """Return the bytes to send; each only once."""
        data = b"".join(self._outbox)
        self._outbox.clear()
        return data

    def answer(self, status: int) -> None:
        """Reply to the client's request according to the status of a tunnel's answer."""
        self._reply(REPLIES.get(status, FAILED))

    def early(self) -> bytes:
        """Return the bytes received after the request, which go to the destination."""
        return self._buffer

    def _greeting(self) -> None:
        data = self._buffer
        if data and data[0] != VERSION:
            raise SocksError(f"a client speaks SOCKS version {data[0]}, not {VERSION}")
        if len(data) < 2 or len(data) < 2 + data[1]:
            return
        methods = data[2 : 2 + data[1]]
        self._buffer = data[2 + data[1] :]
        if NO_AUTHENTICATION not in methods:
            self._outbox.append(bytes([VERSION, NO_METHOD]))
            raise SocksError("a client insists on authentication")
        self._outbox.append(bytes([VERSION, NO_AUTHENTICATION]))
        self._greeted = True

    def _request(self) -> None:
        data = self._buffer
        for at, (wanted, reply, what) in enumerate(
            (
                ((VERSION,), FAILED, "version"),
                ((CONNECT,), UNKNOWN_COMMAND, "command"),
                ((0,), FAILED, "reserved byte"),
                ((IPV4, NAME, IPV6), UNKNOWN_ADDRESS, "kind of address"),
            )
        ):
            if len(data) > at and data[at] not in wanted:
                self._refuse(reply, f"a client's request has the {what} {data[at]}")
        if len(data) < 5:
            return
        start, size = 4, {IPV4: 4, IPV6: 16}.get(data[3], 0)
        if data[3] == NAME:
            start, size = 5, data[4]
        end = start + size + 2
        if len(data) < end:
            return
        self._buffer = data[end:]
        self.place = self._place(data[3], data[start : start + size], data[end - 2 : end])

    def _place(self, kind: int, host: bytes, port: bytes) -> Tcp:
        number = int.from_bytes(port, "big")
        if kind == NAME:
            text = host.decode("ascii", "replace")
        else:
            text = str(IPv4Address(host)) if kind == IPV4 else f"[{IPv6Address(host)}]"
        try:
            place = parse_place(f"{text}:{number}")
        except ValueError as error:
            self._refuse(FAILED, f"a client's request names no destination: {error}")
        if not isinstance(place, Tcp):  # a name that looks like a Unix socket
            self._refuse(FAILED, f"a client's request names {place}, which is not a host")
        return place

    def _refuse(self, reply: int, text: str) -> NoReturn:
        self._reply(reply)
        raise SocksError(text)

    def _reply(self, reply: int) -> None:
        # The address should be that of the remote socket, which is unknown here.
        self._outbox.append(bytes([VERSION, reply, 0, IPV4]) + bytes(6))
