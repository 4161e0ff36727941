"""Who does not begin, does not read, or does not return, holds up nobody for ever.

The times are made short here; each test waits for what happens after them.
"""

from __future__ import annotations

import threading
from contextlib import suppress

import pytest

import wsmux
from wsmux.durable import (
    DurableInterrupted,
    DurableRefused,
    DurableStream,
    ReceivedStream,
    Refusal,
    receiver,
    sender,
)

from ..helpers.durable import EPOCH, MemoryOffsets, Sink, receiving
from ..helpers.timeouts import WAIT


def test_a_stream_that_does_not_begin_is_reset(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr(receiver, "OPEN_TIMEOUT", 0.01)
    with receiving(Sink().handle, MemoryOffsets()) as connect, connect().open_stream() as stream:
        stream.timeout = WAIT
        with suppress(wsmux.StreamReset):  # it may have been reset by then
            stream.write(b"wsmux")
        with pytest.raises(wsmux.StreamReset):
            stream.read(1)
    assert "did not begin as a durable one within 0.01 s" in caplog.text


def test_a_sender_that_takes_no_answer_is_reset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receiver, "TELL_TIMEOUT", 0.01)
    monkeypatch.setattr(receiver, "TELL", 1)
    failed = threading.Event()

    def handle(stream: ReceivedStream) -> None:
        try:
            while stream.read(1):
                stream.commit()
        except DurableInterrupted as error:
            if isinstance(error.__cause__, TimeoutError):
                failed.set()
            raise

    with receiving(handle, MemoryOffsets()) as connect, connect().open_stream() as stream:
        stream.timeout = WAIT
        name = b"\x01a"
        stream.write(b"wsmuxdur\x01" + EPOCH + b"\xff" * 8 + name)
        assert stream.read(25)[:1] == b"\x10"
        data = bytes(200_000)  # of which it is told with nine bytes each, more than a window
        stream.write(b"\x01" + bytes(8) + len(data).to_bytes(4, "big") + data)
        assert failed.wait(WAIT)


def test_a_handler_that_does_not_return_keeps_the_newer_sender_waiting_not_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(receiver, "HANDOVER", 0.01)
    working, go_on = threading.Event(), threading.Event()

    def handle(stream: ReceivedStream) -> None:
        working.set()
        assert go_on.wait(WAIT)
        stream.read()

    with receiving(handle, MemoryOffsets()) as connect:
        older = connect().open_stream(WAIT, durable="a")
        assert working.wait(WAIT)
        with pytest.raises(DurableRefused, match="has not returned yet") as raised:
            connect().open_stream(WAIT, durable="a")
        assert raised.value.kind is Refusal.BUSY
        go_on.set()
        with pytest.raises(DurableRefused, match="another sender"):
            older.close()
        monkeypatch.setattr(receiver, "HANDOVER", WAIT)
        connect().open_stream(WAIT, durable="a").close()


def test_a_receiver_that_stops_reading_without_a_reason_is_told_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sender, "REASON_TIMEOUT", 0.01)
    client, server = wsmux.pair()
    accepted = b"\x10" + bytes(16) + bytes(8)

    def stop_reading() -> None:
        stream = server.accept_stream(WAIT)
        stream.fill(bytearray(35))  # OPEN
        stream.write(accepted)
        stream.close_read()
        server.wait_closed(WAIT)
        stream.close()

    thread = threading.Thread(target=stop_reading)
    thread.start()
    with client, server:
        stream = client.open_stream(WAIT, durable="a")
        with pytest.raises(wsmux.StreamWriteClosed):
            write_for_ever(stream)
        stream.suspend()
        client.close()
        thread.join(WAIT)


def write_for_ever(stream: DurableStream) -> None:
    while True:
        stream.write(bytes(65536))
