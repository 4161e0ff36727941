"""Writers that wait while too much of what was sent is not acknowledged."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from wsmux import rpc

from ..helpers.inside import requests_waiting
from ..helpers.rpc.four_kinds import Part, begun, staged
from ..helpers.rpc.procedures import WAIT
from ..helpers.waiting import wait_for

# Nothing is acknowledged but with other messages, and each side has room for few.
NARROW = rpc.Options(
    send_buffer_messages=4,
    ack_messages=1000,
    heartbeat_interval=WAIT,
    session_disconnect_grace=WAIT,
)

FULL = "the send buffer is full"


class Echo:
    """Echo requests as soon as the test lets it."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.service = staged(self._act)

    def _act(self, part: Part) -> None:
        assert part.requests is not None
        assert part.responses is not None
        assert self.go.wait(WAIT)
        for request in part.requests:
            part.responses.write(request)


@pytest.fixture
def echo() -> Iterator[Echo]:
    echo = Echo()
    yield echo
    echo.go.set()


@pytest.fixture(params=["json", "msgpack"])
def client(request: pytest.FixtureRequest, echo: Echo) -> Iterator[rpc.Client]:
    codec = request.param
    with (
        rpc.serve([echo.service], codec=codec, options=NARROW) as server,
        rpc.connect(server.url, codec=codec, options=NARROW, connect_on_call=False) as client,
    ):
        yield client
        echo.go.set()


def begun_stream(client: rpc.Client) -> rpc.StreamCall[int, int]:
    """Return a stream with room for no further request; its opening and three are under way."""
    stream = begun(client, rpc.Kind.STREAM)
    assert isinstance(stream, rpc.StreamCall)
    for number in range(3):
        stream.write(number, timeout=0)
    return stream


def test_a_writer_has_room_again_after_acknowledgements(client: rpc.Client, echo: Echo) -> None:
    client.wait_connected(WAIT)
    stream = begun_stream(client)
    with pytest.raises(TimeoutError, match=FULL):
        stream.write(-1, timeout=0.01)
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(stream.write, 3)
        wait_for(lambda: requests_waiting(client))
        assert not writing.done()
        echo.go.set()
        writing.result(WAIT)
    for number in range(4):
        assert stream.read() == number
    stream.write(4)
    stream.close_write()
    assert list(stream) == [4]


def test_what_waited_for_a_connection_arrives_in_order(client: rpc.Client, echo: Echo) -> None:
    echo.go.set()
    stream = begun_stream(client)
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(lambda: [stream.write(number) for number in range(3, 20)])
        wait_for(lambda: requests_waiting(client))
        client.wait_connected(WAIT)
        writing.result(WAIT)
    stream.close_write()
    assert list(stream) == list(range(20))


def test_a_writer_that_waits_hears_of_the_end_of_the_client(client: rpc.Client) -> None:
    stream = begun_stream(client)
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(stream.write, 3)
        wait_for(lambda: requests_waiting(client))
        client.close()
        with pytest.raises(rpc.RiverError, match="UNEXPECTED_DISCONNECT"):
            writing.result(WAIT)
    with pytest.raises(rpc.RiverError, match="UNEXPECTED_DISCONNECT"):
        stream.read(WAIT)


def test_ending_needs_no_room(client: rpc.Client, echo: Echo) -> None:
    """Nor does a further write then wait: it is refused at once."""
    echo.go.set()
    stream = begun_stream(client)
    stream.close_write()
    with pytest.raises(ValueError, match="whose requests this side has closed"):
        stream.write(-1)
    client.wait_connected(WAIT)
    assert list(stream) == [0, 1, 2]


def test_cancelling_needs_no_room(client: rpc.Client) -> None:
    stream = begun_stream(client)
    stream.cancel("enough")
    with pytest.raises(rpc.RiverError, match="CANCEL: enough"):
        stream.write(-1)


def test_calls_share_the_room_of_their_session(client: rpc.Client, echo: Echo) -> None:
    stream = begun_stream(client)
    other = begun(client, rpc.Kind.STREAM)  # opening needs no room
    assert isinstance(other, rpc.StreamCall)
    with pytest.raises(TimeoutError, match=FULL):
        other.write(-1, timeout=0.01)
    echo.go.set()
    client.wait_connected(WAIT)
    other.write(1)
    assert other.read() == 1
    stream.close_write()
    assert list(stream) == [0, 1, 2]
    other.cancel()
