"""Open streams that nobody accepts: 256 wait, the rest is refused, and the limit says how (H10)."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import wsmux

from ..helpers.raw_peer import WAIT, in_thread, wait_for
from ..helpers.wires import NAMES, WIRES

UNACCEPTED = wsmux.Config().max_unaccepted
OVER = 44


@contextmanager
def joined(
    protocol: str, **server: float | None
) -> Iterator[tuple[wsmux.Connection, wsmux.Connection]]:
    """Join a client that heeds no limit of its own to a server with the usual ones."""
    ours, theirs = socket.socketpair()
    limits = {"open_timeout": None, **server}
    eager = wsmux.Config(max_pending_opens=100_000)
    client = wsmux.from_socket(ours, role="client", protocol=protocol, config=eager)
    config = wsmux.Config(**limits)  # type: ignore[arg-type]
    peer = wsmux.from_socket(theirs, role="server", protocol=protocol, config=config)
    with client, peer:
        yield client, peer


@pytest.mark.parametrize("protocol", NAMES)
def test_256_wait_and_each_further_one_is_refused_with_its_code(protocol: str) -> None:
    refusal = WIRES[protocol].refusal
    with joined(protocol) as (client, server):
        streams = [client.open_stream(WAIT) for _ in range(UNACCEPTED + OVER)]
        for stream in streams:
            stream.timeout = WAIT
        wait_for(lambda: server.stats().streams_refused == OVER, "the refusals")
        assert server.stats().unaccepted == UNACCEPTED
        for stream in streams[UNACCEPTED:]:
            if refusal is None:
                assert stream.read(1) == b"", "this wire has no word for a refusal"
            else:
                with pytest.raises(refusal.error) as refused:
                    stream.read(1)
                assert getattr(refused.value, "code", None) == refusal.code
        for stream in streams[:UNACCEPTED]:
            stream.write(b"kept")
            taken = server.accept_stream(WAIT)
            taken.timeout = WAIT
            assert (taken.id, taken.read(4)) == (stream.id, b"kept")
        assert server.stats().unaccepted == 0
        with client.open_stream(WAIT) as again, server.accept_stream(WAIT) as taken:
            assert again.id == taken.id


@pytest.mark.parametrize("protocol", [name for name in NAMES if WIRES[name].opening_costs])
def test_where_opening_costs_credit_the_opener_waits(protocol: str) -> None:
    with joined(protocol, max_streams=8) as (client, server):
        streams = [client.open_stream(WAIT) for _ in range(8)]
        with pytest.raises(TimeoutError):
            client.open_stream(0.05)
        waiting = in_thread(client.open_stream, WAIT)
        with server.accept_stream(WAIT) as taken:
            taken.timeout = WAIT
            streams[0].close()
            assert taken.read() == b""
        assert waiting.result(WAIT).id not in {stream.id for stream in streams}
        assert server.stats().streams_refused == 0


@pytest.mark.parametrize("protocol", [name for name in NAMES if not WIRES[name].opening_costs])
def test_where_it_costs_none_those_beyond_the_limit_of_streams_are_refused(protocol: str) -> None:
    with joined(protocol, max_streams=8) as (client, server):
        streams = [client.open_stream(WAIT) for _ in range(9)]
        streams[8].timeout = WAIT
        refusal = WIRES[protocol].refusal
        assert refusal is not None
        with pytest.raises(refusal.error):
            streams[8].read(1)
        assert (server.stats().streams, client.closed) == (8, False)


@pytest.mark.parametrize("protocol", NAMES)
def test_those_that_wait_too_long_make_room(protocol: str) -> None:
    with joined(protocol, open_timeout=0.5, max_unaccepted=4) as (client, server):
        late = [client.open_stream(WAIT) for _ in range(4)]
        wait_for(lambda: server.stats().streams_refused == 4, "the refusals")
        assert server.stats().unaccepted == 0
        with client.open_stream(WAIT) as stream, server.accept_stream(WAIT) as taken:
            assert stream.id == taken.id
            assert stream.id not in {each.id for each in late}


@pytest.mark.parametrize("protocol", NAMES)
def test_what_they_were_sent_is_bounded_with_them(protocol: str) -> None:
    """Each may hold its window, and all of them no more than the connection may."""
    with joined(protocol, max_unaccepted=8, max_connection_buffer=2**20) as (client, server):
        streams = [client.open_stream(WAIT) for _ in range(8)]
        writes = []
        for stream in streams:
            stream.timeout = 0.3
            writes.append(in_thread(stream.write, bytes(2**20)))
        for write in writes:
            assert write.exception(WAIT) is not None, "nobody reads it"
        limit = max(2**20, 8 * WIRES[protocol].min_window)
        assert server.stats().unread_bytes <= limit
        assert not server.closed
