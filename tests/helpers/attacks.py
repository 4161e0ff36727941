"""Make the bytes of floods by hand, for each wire over a plain socket; share no code with it.

The attacker is the client. What it begins with opens the first stream, where the flood needs one.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

import wsmux

from .raw_peer import ACK, CLOSE, DATA, ERROR, uint32, varint, wait_for
from .timeouts import WAIT

__all__ = [
    "FLOODS",
    "PAST_CREDIT",
    "RESETS",
    "WAIT",
    "Flood",
    "Victim",
    "attacked",
    "native",
    "opening_of",
    "send_all",
]

WINDOW = wsmux.Config().receive_window
SYN, FIN, RST = 1, 4, 8
CREDIT, WRITE, PING, PONG, ENDS, STOPS = range(6)


class Flood(NamedTuple):
    """Begin with some bytes, then go on with others, made from a number, for ever."""

    begin: bytes
    more: Callable[[int], bytes]
    reason: str


def native(stream_id: int, kind: int, body: bytes = b"", width: int = 1) -> bytes:
    return varint(stream_id) + kind.to_bytes(width, "big") + varint(len(body)) + body


def yamux(kind: int, flags: int, stream_id: int, length: int) -> bytes:
    return struct.pack(">BBHII", 0, kind, flags, stream_id, length)


def bymux(kind: int, stream_id: int | None, number: int | None = None) -> bytes:
    """Return a packet whose integers, if any, are of eight bytes."""
    head = kind << 5 | (0x10 if stream_id is None else 3 << 2) | (0 if number is None else 3)
    numbers = [value for value in (stream_id, number) if value is not None]
    return bytes((head,)) + b"".join(struct.pack(">Q", value) for value in numbers)


def natives(width: int) -> dict[str, Flood]:
    """Return the floods of the native wire in one of its dialects."""

    def of(stream_id: int, kind: int, body: bytes = b"") -> bytes:
        return native(stream_id, kind, body, width)

    opening = of(0, ACK, uint32(9))
    ended = opening + of(0, CLOSE, b"\0")
    return {
        "credit": Flood(opening, lambda n: of(0, ACK, uint32(1)), "grants of credit"),
        "zero credit": Flood(opening, lambda n: of(0, ACK, uint32(0)), "change nothing"),
        "empty data": Flood(opening, lambda n: of(0, DATA), "change nothing"),
        "repeated ends": Flood(ended, lambda n: of(0, CLOSE, b"\0"), "what has ended"),
        "repeated resets": Flood(ended, lambda n: of(0, ERROR, b"\0\5"), "what has ended"),
        "pings": Flood(b"", lambda n: of(0, 9), "pings"),
        "pongs": Flood(b"", lambda n: of(0, 10), "pings"),
    }


def _yamux(kind: int, flags: int, length: int = 0) -> Callable[[int], bytes]:
    return lambda n: yamux(kind, flags, 1, length)


YAMUX_OPEN = yamux(1, SYN, 1, 0)
BYMUX_OPEN = bymux(WRITE, None, 0)
FLOODS = {
    "wsmux": natives(1),
    "js-ws": natives(2),
    "yamux": {
        "credit": Flood(YAMUX_OPEN, _yamux(1, 0, 1), "grants of credit"),
        "zero credit": Flood(YAMUX_OPEN, _yamux(1, 0), "change nothing"),
        "empty data": Flood(YAMUX_OPEN, _yamux(0, 0), "change nothing"),
        "credit for no stream": Flood(b"", lambda n: yamux(1, 0, 2 * n + 9, 1), "grants of credit"),
        "repeated ends": Flood(YAMUX_OPEN + _yamux(1, RST)(0), _yamux(1, FIN), "what has ended"),
        "repeated resets": Flood(YAMUX_OPEN + _yamux(1, RST)(0), _yamux(1, RST), "what has ended"),
        "pings": Flood(b"", lambda n: yamux(2, SYN, 0, n), "pings"),
        "pongs": Flood(b"", lambda n: yamux(2, 2, 0, n), "change nothing"),
    },
    "bymux": {
        "credit": Flood(BYMUX_OPEN, lambda n: bymux(CREDIT, 0, 1), "grants of credit"),
        "zero credit": Flood(b"", lambda n: bymux(CREDIT, None, 0), "change nothing"),
        "credit for streams": Flood(b"", lambda n: bymux(CREDIT, None, 1), "grants of credit"),
        "empty data": Flood(BYMUX_OPEN, lambda n: bymux(WRITE, 0, 0), "change nothing"),
        "pings": Flood(b"", lambda n: bymux(PING, None), "pings"),
        "pings of a stream": Flood(BYMUX_OPEN, lambda n: bymux(PING, 0), "pings"),
        "pongs": Flood(b"", lambda n: bymux(PONG, None), "change nothing"),
    },
}


def _native_reset(width: int) -> Callable[[int], bytes]:
    def reset(n: int) -> bytes:
        ends = (ERROR, b"\0\5"), (ERROR, b"\1\5")
        parts = [native(2 * n, kind, body, width) for kind, body in ends]
        return native(2 * n, ACK, uint32(9), width) + b"".join(parts)

    return reset


# Open a stream and reset it; on bymux, which has no reset, end both halves.
RESETS: dict[str, Callable[[int], bytes]] = {
    "wsmux": _native_reset(1),
    "js-ws": _native_reset(2),
    "yamux": lambda n: yamux(1, SYN, 2 * n + 1, 0) + yamux(1, RST, 2 * n + 1, 0),
    "bymux": lambda n: bymux(WRITE, None, 2 * n) + bymux(ENDS, 2 * n) + bymux(STOPS, 2 * n),
}


def opening_of(protocol: str, number: int) -> bytes:
    """Return what opens a stream, as in ``RESETS``, and nothing behind it."""
    whole = RESETS[protocol](number)
    if protocol in ("yamux", "bymux"):
        return whole[: len(whole) // (2 if protocol == "yamux" else 3)]
    width = 2 if protocol == "js-ws" else 1
    return whole[: len(varint(2 * number)) + width + 1 + 4]


def _native_data(width: int) -> tuple[bytes, Callable[[int], bytes]]:
    return native(0, ACK, uint32(9), width), lambda size: native(0, DATA, bytes(size), width)


# How a stream is opened, and how so many bytes are sent on it.
PAST_CREDIT: dict[str, tuple[bytes, Callable[[int], bytes]]] = {
    "wsmux": _native_data(1),
    "js-ws": _native_data(2),
    "yamux": (YAMUX_OPEN, lambda size: yamux(0, 0, 1, size) + bytes(size)),
    "bymux": (BYMUX_OPEN, lambda size: bymux(WRITE, 0, size) + bytes(size)),
}


class Victim(NamedTuple):
    """Hold the connection under attack, and the socket of the attacker."""

    connection: wsmux.Connection
    sock: socket.socket

    def drain(self) -> threading.Thread:
        """Read what the victim sends, in a thread, until the end."""

        def read() -> None:
            with suppress(OSError):
                while self.sock.recv(65536):
                    pass

        thread = threading.Thread(target=read, daemon=True)
        thread.start()
        return thread

    def check_end(self, reason: str, *codes: int) -> None:
        """Check that the connection ends for a broken limit, with the code for that."""
        wait_for(lambda: self.connection.error is not None)
        error = self.connection.error
        assert isinstance(error, wsmux.ConnectionClosedError)
        assert error.code in (codes or (1008,)), error
        assert reason in error.reason, error


def send_all(sock: socket.socket, data: bytes) -> bool:
    """Send bytes; false when the victim has cut the connection before all were taken."""
    try:
        sock.sendall(data)
    except (BrokenPipeError, ConnectionResetError):
        return False
    return True


@contextmanager
def attacked(protocol: str, config: wsmux.Config | None = None) -> Iterator[Victim]:
    """Have a server connection over a socket pair, whose client is by hand."""
    ours, theirs = socket.socketpair()
    ours.settimeout(WAIT)
    victim = wsmux.from_socket(theirs, role="server", protocol=protocol, config=config)
    with ours:
        try:
            yield Victim(victim, ours)
        finally:
            victim.abort()
            assert victim.wait_closed(WAIT)
