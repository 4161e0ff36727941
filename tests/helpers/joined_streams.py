"""Hold one stream from both sides."""

from __future__ import annotations

from typing import NamedTuple, NoReturn

import pytest

import wsmux

from .inside import half_of, multiplexer_of, record_of
from .scripted import WAIT

__all__ = ["Joined", "fill", "open_pair", "read_exactly", "write_on"]

WINDOW = wsmux.Config().receive_window


class Joined(NamedTuple):
    """One stream from both sides."""

    near: wsmux.Stream
    far: wsmux.Stream


def open_pair(opener: wsmux.Connection, other: wsmux.Connection) -> Joined:
    """Open a stream and accept it."""
    near = opener.open_stream(timeout=WAIT)
    far = other.accept_stream(timeout=WAIT)
    near.timeout = far.timeout = WAIT
    return Joined(near, far)


def fill(stream: wsmux.Stream) -> int:
    """Write until the credit that the peer gave is used up; return how much that was."""
    written, multiplexer = 0, multiplexer_of(stream.connection)
    stream.timeout = 0.01
    while True:
        with pytest.raises(wsmux.WriteTimeout) as error:
            stream.write(bytes(8 * WINDOW))
        written += error.value.bytes_written
        with multiplexer.mutex:
            answered = getattr(
                half_of(stream), "answered", True
            )  # before that, only early bytes are gone
            if written and answered and not multiplexer.credit_locked(record_of(stream)):
                break
    stream.timeout = WAIT
    return written


def read_exactly(stream: wsmux.Stream, size: int) -> bytes:
    """Read until ``size`` bytes have come."""
    data = bytearray()
    while len(data) < size:
        chunk = stream.read(size - len(data))
        assert chunk, "the stream ended"
        data += chunk
    return bytes(data)


def write_on(stream: wsmux.Stream) -> NoReturn:
    """Write until that raises, in pieces that use up the credit if it does not come soon."""
    while True:
        stream.write(bytes(WINDOW // 4))
