"""A block with a deadline bounds every blocking call in it, and leaves what it began usable."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

import wsmux
from wsmux import rpc

# Seconds of a block; nothing else ends the calls in it.
SHORT = 0.05

Pair = tuple[wsmux.Connection, wsmux.Connection]


@pytest.fixture(params=["wsmux", "js-ws", "yamux", "bymux"])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    client, server = wsmux.pair(protocol=request.param)
    with client, server:
        yield client, server


@pytest.fixture
def client() -> Iterator[rpc.Client]:
    """Return a client of a server whose handlers wait for the end of their calls."""
    service = rpc.Service("s")

    @service.rpc()
    def hangs(ctx: rpc.Context, init: object) -> None:
        ctx.ended.wait()

    @service.subscription()
    def one(ctx: rpc.Context, init: object, responses: rpc.Writable[object]) -> None:
        responses.write(1)
        ctx.ended.wait()

    @service.upload()
    def swallow(ctx: rpc.Context, init: object, requests: rpc.Readable[object]) -> None:
        ctx.ended.wait()

    with rpc.serve([service]) as server, rpc.connect(server.url) as made:
        yield made


def fill(stream: wsmux.Stream) -> None:
    while True:
        stream.write(bytes(65536))


def read_all(stream: wsmux.Stream) -> None:
    stream.read()


@pytest.mark.parametrize("blocked", [fill, read_all])
def test_a_blocked_stream_ends_with_the_block_and_goes_on_behind_it(
    pair: Pair, blocked: Callable[[wsmux.Stream], None]
) -> None:
    stream = pair[0].open_stream()
    stream.write(b"begin")
    other = pair[1].accept_stream()
    other.write(b"x")
    assert stream.read(1) == b"x"
    with pytest.raises(TimeoutError), wsmux.deadline(SHORT):
        blocked(stream)
    other.write(b"y")
    assert stream.read(1) == b"y"


def test_accepting_and_waiting_end_with_the_block(pair: Pair) -> None:
    with pytest.raises(TimeoutError), wsmux.deadline(SHORT):
        pair[1].accept_stream()
    with wsmux.deadline(SHORT):
        assert not pair[0].wait_closed()


def test_a_block_that_is_over_lets_nothing_wait(pair: Pair) -> None:
    with wsmux.deadline(0), pytest.raises(TimeoutError):
        pair[0].accept_stream(timeout=60)


def test_remote_calls_end_with_the_block(client: rpc.Client) -> None:
    client.wait_connected()
    with pytest.raises(TimeoutError, match="cancelled"), wsmux.deadline(SHORT):
        client.rpc("s", "hangs", None)
    upload = client.upload("s", "swallow", None)
    with pytest.raises(TimeoutError, match="cancelled"), wsmux.deadline(SHORT):
        upload.finish()


def test_what_is_begun_in_a_block_outlives_it(client: rpc.Client) -> None:
    with wsmux.deadline(60):
        subscription = client.subscribe("s", "one", None)
        call = client.submit("s", "hangs", None)
        assert subscription.read() == 1
    assert call.remaining() is None
    with pytest.raises(TimeoutError), wsmux.deadline(SHORT):
        call.result()
    assert not call.done()
    with pytest.raises(TimeoutError), wsmux.deadline(SHORT):
        subscription.read()
    subscription.close()
    call.cancel()
