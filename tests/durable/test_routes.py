"""Flask routes and plain servers take durable streams, beside others."""

from __future__ import annotations

import threading

import pytest
from flask import Flask

import wsmux
from wsmux.durable import DurableHandler, DurableRefused, ReceivedStream
from wsmux.flask import Mux
from wsmux.testing import FaultProxy

from ..helpers.durable import EPOCH, Sink, pattern
from ..helpers.timeouts import WAIT
from ..helpers.waiting import wait_for
from ..helpers.werkzeug_server import serving

DATA = pattern(0, 2_000_000)


def test_a_route_takes_durable_streams_with_its_variables() -> None:
    app, sink, rooms = Flask("durable"), Sink(), list[str]()
    mux = Mux(app)

    @mux.durable_route("/in/<room>", offsets=sink)
    def handle(stream: ReceivedStream, room: str) -> None:
        rooms.append(room)
        sink.handle(stream)

    with serving(app) as port:
        url = f"ws://127.0.0.1:{port}/in/kitchen"
        for half in (DATA[:1_000_000], DATA[1_000_000:]):
            with wsmux.connect(url) as connection:
                stream = connection.open_stream(WAIT, durable="a", epoch=EPOCH)
                stream.write(half)
                stream.wait_committed(WAIT)
                stream.suspend()
        with wsmux.connect(url) as connection:
            connection.open_stream(WAIT, durable="a", epoch=EPOCH).close()
        mux.shutdown(WAIT)
    assert sink.data["a"] == DATA
    assert sink.calls == [0, 1_000_000, 2_000_000]
    assert rooms == ["kitchen"] * 3


def test_a_durable_stream_over_a_resumed_connection_notices_nothing() -> None:
    app, sink = Flask("durable"), Sink()
    mux = Mux(app, resume=True)
    mux.durable_route("/in", offsets=sink)(sink.handle)
    with serving(app) as port, FaultProxy(port) as proxy:
        with wsmux.connect(f"{proxy.url}/in", resume=True) as connection:
            with connection.open_stream(WAIT, durable="a") as stream:
                stream.timeout = WAIT
                stream.write(DATA[:1_000_000])
                proxy.reset()
                stream.write(DATA[1_000_000:])
                stream.wait_committed(WAIT)
            assert connection.stats().reconnects == 1
        mux.shutdown(WAIT)
    assert sink.data["a"] == DATA
    assert sink.calls == [0]


def test_a_sender_cut_off_finds_its_name_free_again() -> None:
    """The newcomer comes while the server still waits for the older sender."""
    sink = Sink()
    handler = DurableHandler(sink.handle, offsets=sink)
    with wsmux.serve(stream_handler=handler) as server, FaultProxy(server.port) as proxy:
        connection = wsmux.connect(proxy.url)
        stream = connection.open_stream(WAIT, durable="a")
        stream.write(DATA[:100_000])
        assert stream.wait_committed(WAIT) == 100_000
        proxy.freeze()  # nothing is lost, and nothing comes
        with (
            wsmux.connect(server.url) as again,
            again.open_stream(WAIT, durable="a") as newer,
        ):
            assert newer.offset == 100_000
            newer.write(DATA[100_000:])
        proxy.thaw()
        with pytest.raises(DurableRefused, match="another sender"):
            stream.close()
        connection.abort()
        wait_for(lambda: len(server.connections) == 0)
    assert sink.data["a"] == DATA


def test_a_handler_of_a_lost_connection_ends() -> None:
    sink, ended = Sink(), threading.Event()

    def handle(stream: ReceivedStream) -> None:
        try:
            sink.handle(stream)
        finally:
            ended.set()

    handler = DurableHandler(handle, offsets=sink)
    with wsmux.serve(stream_handler=handler) as server, wsmux.connect(server.url) as connection:
        stream = connection.open_stream(WAIT, durable="a")
        stream.write(b"data")
        assert stream.wait_committed(WAIT) == 4
        connection.abort()
        assert ended.wait(WAIT)
        with pytest.raises(wsmux.ConnectionClosed):
            stream.write(b"more")
        assert stream.committed == 4
