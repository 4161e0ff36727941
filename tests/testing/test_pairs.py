"""Run handlers over real connections that a proxy between them disturbs."""

from __future__ import annotations

from contextlib import suppress

import pytest

import wsmux
from wsmux.testing import Faults, faulty_pair

from ..helpers.timeouts import WAIT
from ..helpers.wires import NAMES


def shout(stream: wsmux.Stream) -> None:
    while chunk := stream.read(100):
        stream.write(chunk.upper())


@pytest.mark.parametrize("protocol", NAMES)
@pytest.mark.parametrize("transport", ["websocket", "tcp"])
def test_a_handler_runs_over_a_bad_path(protocol: str, transport: str) -> None:
    faults = Faults(slice=7, latency=0.001, jitter=0.002)
    with (
        faulty_pair(
            protocol,
            transport=transport,  # type: ignore[arg-type]
            stream_handler=shout,
            up=faults,
            down=faults,
            seed=4,
        ) as pair,
        pair.client.open_stream(WAIT) as stream,
    ):
        stream.timeout = WAIT
        stream.write(b"quiet" * 100)
        stream.close_write()
        assert stream.read() == b"QUIET" * 100


def test_both_ends_of_a_cut_connection_are_told() -> None:
    with faulty_pair() as (client, server, proxy), client.open_stream(WAIT) as ours:
        ours.write(b"x")
        theirs = server.accept_stream(WAIT)
        assert theirs.read(1) == b"x"
        proxy.cut_after(1, way="up", how="rst")
        with suppress(wsmux.ConnectionClosed):
            ours.write(b"y")
        for stream in (ours, theirs):
            stream.timeout = WAIT
            with pytest.raises(wsmux.ConnectionClosedError) as caught:
                stream.read()
            assert caught.value.code == 1006


def test_an_error_in_the_block_closes_everything() -> None:
    with pytest.raises(LookupError), faulty_pair() as pair:
        raise LookupError(pair.client.name)


def test_a_frozen_pair_can_be_left() -> None:
    with faulty_pair() as pair:
        pair.proxy.freeze()
