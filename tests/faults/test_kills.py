"""Kill an end without a word, or end it as a process manager does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

import wsmux

from ..helpers.commands import PATIENCE, command
from ..helpers.drained_server import GRACE, LONG_GRACE, drained
from ..helpers.load.measuring import CHECKOUT, far_end
from ..helpers.raw_peer import WAIT, in_thread, wait_for
from ..helpers.stream_outcomes import losing
from ..helpers.wires import NAMES

IN_WIRES = pytest.mark.parametrize(
    "protocol",
    ["wsmux", *(pytest.param(name, marks=pytest.mark.long) for name in NAMES if name != "wsmux")],
)

# A client that holds a stream and waits for bytes that do not come.
WAITING = """
import sys, wsmux
connection = wsmux.connect(sys.argv[1], protocol=sys.argv[2])
stream = connection.open_stream()
stream.write(b"x")
stream.read()
"""


@IN_WIRES
def test_killing_the_server_ends_every_call_of_the_client(protocol: str) -> None:
    config = wsmux.Config(ping_interval=None)
    with (
        far_end("echo", protocol) as far,
        wsmux.connect(far.url, protocol=protocol, config=config) as connection,
    ):
        losing(connection, lambda: os.kill(far.pid, signal.SIGKILL))


@IN_WIRES
def test_killing_the_client_ends_every_call_of_the_server(protocol: str) -> None:
    ended: list[type[BaseException]] = []

    def read_on(stream: wsmux.Stream) -> None:
        try:
            while stream.read(100):
                process.kill()
        except wsmux.ConnectionClosedError as error:
            ended.append(type(error))

    config = wsmux.Config(ping_interval=None)
    with wsmux.serve(stream_handler=read_on, protocols=[protocol], config=config) as server:
        process = subprocess.Popen(
            [sys.executable, "-c", WAITING, server.url, protocol], cwd=CHECKOUT
        )
        try:
            wait_for(lambda: ended == [wsmux.ConnectionClosedError])
            wait_for(lambda: not server.connections)
        finally:
            process.kill()
            process.wait(WAIT)


def test_sigterm_closes_every_connection_of_wsmux_serve_with_1001() -> None:
    process = subprocess.Popen(command("serve", "--echo"), stdout=subprocess.PIPE, text=True)
    with process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        with wsmux.connect(url) as connection, connection.open_stream(WAIT) as stream:
            stream.write(b"x")
            assert stream.read(1) == b"x"
            reading = in_thread(stream.read, 1)
            wait_for(lambda: connection.stats().waiting_readers)
            process.send_signal(signal.SIGTERM)
            with pytest.raises(wsmux.ConnectionClosed) as closed:
                reading.result(WAIT)
            assert closed.value.code == 1001
        assert process.wait(PATIENCE) == 143


# A WSGI server that is told to stop, or to load its application anew


def told(connection: wsmux.Connection) -> tuple[wsmux.Stream, int]:
    """Open a stream, and return it with the process that serves it."""
    stream = connection.open_stream(WAIT)
    stream.timeout = WAIT
    return stream, int(stream.readline())


SERVERS = pytest.mark.parametrize(
    "kind", ["gthread", *(pytest.param(k, marks=pytest.mark.long) for k in ("gevent", "werkzeug"))]
)


@SERVERS
def test_sigterm_lets_streams_end_and_closes_with_1001(kind: str) -> None:
    server = drained(kind, grace=LONG_GRACE)
    with server as (process, url), wsmux.connect(url, timeout=PATIENCE) as connection:
        stream, _ = told(connection)
        process.send_signal(signal.SIGTERM)
        wait_for(lambda: refuses(connection))  # it is going away
        stream.write(b"to the end")
        stream.close_write()
        assert stream.read() == b"to the end"
        stream.close()
        start = time.monotonic()
        assert connection.wait_closed(WAIT)
        assert connection.error is not None
        assert connection.error.code == 1001  # type: ignore[attr-defined]
        process.wait(PATIENCE)
        assert time.monotonic() - start < LONG_GRACE - 1


def refuses(connection: wsmux.Connection) -> bool:
    try:
        connection.open_stream(WAIT).reset()
    except wsmux.StreamRefused:
        return True
    return False


def check_closed_in_time(kind: str, number: signal.Signals, grace: float = GRACE) -> None:
    """Check that a signal closes a connection whose stream is open, and ends the server."""
    server = drained(kind, grace=grace)
    with server as (process, url), wsmux.connect(url, timeout=PATIENCE) as connection:
        stream, _ = told(connection)
        process.send_signal(number)
        start = time.monotonic()
        with pytest.raises(wsmux.ConnectionClosed) as closed:
            stream.read(1)
        assert closed.value.code == 1001
        process.wait(PATIENCE)
        assert time.monotonic() - start < grace - 1


@pytest.mark.long
@pytest.mark.parametrize("kind", ["gthread", "gevent", "werkzeug"])
def test_sigterm_closes_what_does_not_end_in_time(kind: str) -> None:
    check_closed_in_time(kind, signal.SIGTERM)


def test_sigint_does_not_wait_for_streams() -> None:
    check_closed_in_time("gthread", signal.SIGINT, LONG_GRACE)


@pytest.mark.long
def test_a_reload_moves_clients_to_the_new_process() -> None:
    with drained("gthread") as (process, url):
        with wsmux.connect(url, timeout=PATIENCE) as connection:
            stream, before = told(connection)
            process.send_signal(signal.SIGHUP)
            with pytest.raises(wsmux.ConnectionClosed) as closed:
                stream.read(1)
            assert closed.value.code == 1001
        with wsmux.connect(url, timeout=PATIENCE) as connection:
            assert told(connection)[1] != before
