"""The window of a stream grows with what its reader takes, once the path has been measured."""

from __future__ import annotations

import threading
import time

import pytest

import wsmux
from wsmux.transport.keepalive import MEASURE_INTERVAL, KeepAlive

from ..helpers.inside import multiplexer_of, record_of

WINDOW = 64 * 1024


class Still:
    """Stand in for the module ``time``, and stop: every half of a window is read in no time."""

    def __init__(self) -> None:
        self._now = time.monotonic()

    def monotonic(self) -> float:
        return self._now


@pytest.mark.parametrize(("near", "grows"), [(WINDOW + 1, True), (WINDOW, False)])
def test_bulk_makes_the_window_grow_and_the_reader_wait_for_more(
    monkeypatch: pytest.MonkeyPatch, near: int, grows: bool
) -> None:
    monkeypatch.setattr("wsmux.mux.multiplexer.NEAR", 3600.0)
    monkeypatch.setattr("wsmux.mux.multiplexer.NEAR_WINDOW", near)
    config = wsmux.Config(receive_window=WINDOW)
    client, server = wsmux.pair(config=config)
    with client, server:
        sender = server.open_stream()
        reader = client.accept_stream()
        record, alive = record_of(reader), multiplexer_of(client).transport.keep_alive
        stop = threading.Event()

        def send() -> None:
            while not stop.is_set():
                sender.write(bytes(WINDOW))
            sender.close_write()

        thread = threading.Thread(target=send)
        thread.start()
        try:
            while alive.least is None:
                assert reader.read(WINDOW)
            monkeypatch.setattr("wsmux.mux.multiplexer.time", Still())
            for _ in range(50):
                assert reader.read(WINDOW)
            assert record.window == (2 * WINDOW if grows else WINDOW)
            assert record.low_water == record.window // 4
        finally:
            stop.set()
            while reader.read(WINDOW):
                pass
            thread.join()


def test_a_path_is_measured_again_after_a_while_and_a_lost_ping_is_forgotten() -> None:
    alive = KeepAlive(None, None, 0.0)
    assert alive.measure(1.0) is not None
    assert alive.measure(1.0 + MEASURE_INTERVAL / 2) is None
    ping = alive.measure(1.0 + MEASURE_INTERVAL)
    assert ping is not None
    assert len(alive.pings) == 1
    alive.pong(ping[0], 2.5, [])
    assert alive.least == alive.rtt == 0.5
    again = alive.measure(4.0)
    assert again is not None
    alive.pong(again[0], 5.0, [])
    assert (alive.least, alive.rtt) == (0.5, 1.0)
