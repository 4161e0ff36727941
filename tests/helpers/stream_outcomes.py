"""Check how a stream ends, by what its wire promises; see ``tests/helpers/wires.py``."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

import wsmux

from .joined_streams import write_on
from .raw_peer import in_thread, wait_for
from .timeouts import WAIT
from .wires import Refusal, wire_of

__all__ = [
    "check_late_refusal",
    "check_no_further_reading",
    "check_read_of_reset",
    "check_refusal",
    "check_reset",
    "check_unseen",
    "check_write_of_reset",
    "losing",
]

Call = Callable[[], object]


def check_reset(stream: wsmux.Stream, code: int = 0, left: bytes = b"") -> None:
    """Check both halves of a stream that the peer has reset, after it wrote ``left``."""
    check_read_of_reset(stream, code=code, left=left)
    check_write_of_reset(stream, code=code)


def check_read_of_reset(
    stream: wsmux.Stream, read: Call | None = None, *, code: int = 0, left: bytes = b""
) -> None:
    """Check what a read to the end gives on a stream that the peer has reset."""
    _check(stream, read or stream.read, wire_of(stream).resets, code, left)


def check_write_of_reset(stream: wsmux.Stream, write: Call | None = None, *, code: int = 0) -> None:
    """Check what a write that does not end by itself gives on such a stream."""
    write = write or (lambda: write_on(stream))
    if wire_of(stream).resets:
        _check(stream, write, True, code)
    else:
        with pytest.raises(wsmux.StreamWriteClosed):
            write()


def _check(stream: wsmux.Stream, call: Call, told: bool, code: int, left: bytes = b"") -> None:
    if not told:
        assert call() == left
        return
    with pytest.raises(wsmux.StreamReset) as error:
        call()
    assert type(error.value) is wsmux.StreamReset
    assert (error.value.code, error.value.side) == (code, "remote")
    assert error.value.stream_id == stream.id


def check_no_further_reading(stream: wsmux.Stream, write: Call, size: int) -> None:
    """Check what a write of ``size`` bytes gives when the peer reads no further."""
    stopped = wire_of(stream).stopped
    if stopped is None:
        assert write() == size
        return
    with pytest.raises(stopped) as error:
        write()
    assert getattr(error.value, "code", 0) == 0


def check_refusal(stream: wsmux.Stream, read: Call | None = None) -> None:
    """Check both halves of a stream that was refused as soon as the peer saw it."""
    _check_refused(stream, read, wire_of(stream).refusal)


def check_late_refusal(stream: wsmux.Stream, read: Call | None = None) -> None:
    """Check both halves of a stream that nobody took in time."""
    _check_refused(stream, read, wire_of(stream).late_refusal)


def check_unseen(stream: wsmux.Stream, read: Call | None = None) -> None:
    """Check both halves of a stream that the peer saw when it was going away already."""
    _check_refused(stream, read, wire_of(stream).unseen)


def _check_refused(stream: wsmux.Stream, read: Call | None, refusal: Refusal | None) -> None:
    if refusal is None:
        check_read_of_reset(stream, read)
        check_write_of_reset(stream)
        return
    for call in (read or stream.read, lambda: write_on(stream)):
        with pytest.raises(refusal.error) as error:
            call()
        assert type(error.value) is refusal.error
        assert (error.value.code, error.value.side) == (refusal.code, "remote")
        assert error.value.retry_safe == (refusal.error is wsmux.StreamRefused)


def losing(connection: wsmux.Connection, lose: Callable[[], object]) -> float:
    """Block a reader and a writer, lose the peer; return the seconds until both have ended."""
    reading, writing = connection.open_stream(WAIT), connection.open_stream(WAIT)
    reading.write(b"x")
    assert reading.read(1) == b"x"
    calls = [
        in_thread(_ending, lambda: reading.read(1)),
        in_thread(_ending, lambda: write_on(writing)),
    ]
    wait_for(lambda: connection.stats().waiting_readers)
    lose()
    start = time.monotonic()
    for call in calls:
        assert isinstance(call.result(WAIT), wsmux.ConnectionClosedError)
    seconds = time.monotonic() - start
    assert connection.error is not None
    assert connection.wait_closed(WAIT)
    return seconds


def _ending(call: Callable[[], object]) -> Exception | None:
    try:
        call()
    except wsmux.WsmuxError as error:
        return error
    return None
