"""A bridge carries streams between two connections of any wires, with everything that ends them.

In every test a client talks over one wire to the bridge's left connection, and a server over
another wire to the right one.
"""

from __future__ import annotations

import hashlib
import random
import sys
import threading
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest

import wsmux
from wsmux.endpoints.bridge import StreamRelay, carried_code
from wsmux.protocols.registry import WIRES

from ..helpers.connections import Spawn
from ..helpers.inside import multiplexer_of
from ..helpers.joined_streams import open_pair
from ..helpers.scripted import WAIT
from ..helpers.waiting import wait_for

WIRE_NAMES = list(WIRES)
PAIRS = [
    (one, other) if "wsmux" in (one, other) else pytest.param(one, other, marks=pytest.mark.wide)
    for one in WIRE_NAMES
    for other in WIRE_NAMES
]

STREAMS, SIZE = 100, 100_000


class Bridged(NamedTuple):
    """The ends that a bridge joins; ``left`` and ``right`` are the bridge's own."""

    client: wsmux.Connection
    left: wsmux.Connection
    right: wsmux.Connection
    server: wsmux.Connection


Build = Callable[..., Bridged]


@pytest.fixture
def build(spawn: Spawn) -> Iterator[Build]:
    """Return ``build(wire, other_wire, config=)``, which joins two pairs."""
    made: list[Bridged] = []

    def join(one: str, other: str, config: wsmux.Config | None = None) -> Bridged:
        client, left = wsmux.pair(protocol=one, config=config)
        right, server = wsmux.pair(protocol=other, config=config)
        made.append(Bridged(client, left, right, server))
        spawn(wsmux.bridge, left, right)
        return made[-1]

    yield join
    for ends in made:
        ends.client.close(WAIT)
        ends.server.close(WAIT)


def echo_all(server: wsmux.Connection) -> None:
    """Send back what each stream brings, a thread for each."""
    for stream in server:
        threading.Thread(target=echo, args=(stream,), daemon=True).start()


def echo(stream: wsmux.Stream) -> None:
    try:
        with stream:
            while chunk := stream.read(64 * 1024):
                stream.write(chunk)
            stream.close_write()
    except wsmux.WsmuxError:
        return  # the stalled one, at the end of the test


def digest_through(client: wsmux.Connection, number: int) -> bool:
    """Send bytes that depend on ``number`` and tell whether they came back."""
    data = random.Random(number).randbytes(SIZE)
    with client.open_stream(timeout=WAIT) as stream:
        stream.timeout = WAIT
        writer = threading.Thread(target=lambda: (stream.write(data), stream.close_write()))
        writer.start()
        back = stream.read()
        writer.join()
    return hashlib.sha256(back).digest() == hashlib.sha256(data).digest()


@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_every_pair_of_wires_carries_bulk_beside_a_stalled_reader(
    one: str, other: str, build: Build, spawn: Spawn
) -> None:
    bridged = build(one, other)
    stalled, unread = open_pair(bridged.client, bridged.server)
    spawn(echo_all, bridged.server)
    full = spawn(write_until_full, stalled)
    results = [spawn(digest_through, bridged.client, number) for number in range(STREAMS)]
    assert all(result.result(WAIT) for result in results)
    written = full.result(WAIT)
    # What is under way is bounded by the windows of both wires and what lies between them.
    assert written < 4 * 1024 * 1024
    unread.timeout = stalled.timeout = WAIT
    stalled.close_write()
    assert len(unread.read()) == written


def write_until_full(stream: wsmux.Stream) -> int:
    """Write until nothing goes on for a moment; return how much that was."""
    stream.timeout = 0.5
    with pytest.raises(wsmux.WriteTimeout) as error:
        stream.write(bytes(64 * 1024 * 1024))
    return error.value.bytes_written


@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_each_half_ends_by_itself(one: str, other: str, build: Build) -> None:
    bridged = build(one, other)
    near, far = open_pair(bridged.client, bridged.server)
    near.write(b"question")
    near.close_write()
    assert far.read() == b"question"
    far.write(b"answer")
    far.close_write()
    assert near.read() == b"answer"
    near.close()
    far.close()
    for connection in bridged:
        wait_for(lambda connection=connection: connection.stats().streams == 0)


@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_the_server_may_open_streams_too(one: str, other: str, build: Build) -> None:
    bridged = build(one, other)
    near, far = open_pair(bridged.server, bridged.client)
    near.write(b"from the server")
    near.close_write()
    assert far.read() == b"from the server"


@pytest.mark.parametrize("one", ["wsmux", "js-ws", "yamux"])
@pytest.mark.parametrize("other", ["wsmux", "js-ws", "yamux"])
def test_a_reset_keeps_its_code(one: str, other: str, build: Build) -> None:
    bridged = build(one, other)
    near, far = open_pair(bridged.client, bridged.server)
    near.write(b"x")
    assert far.read(1) == b"x"
    near.reset(77)
    with pytest.raises(wsmux.StreamReset) as caught:
        far.read()
    assert (caught.value.code, caught.value.side) == (77, "remote")
    with pytest.raises(wsmux.StreamReset):
        write_on(far)
    for connection in bridged:
        wait_for(lambda connection=connection: connection.stats().streams == 0)


def write_on(stream: wsmux.Stream) -> None:
    while True:
        stream.write(bytes(1000))


@pytest.mark.parametrize("one", ["wsmux", "yamux", "bymux"])
def test_towards_bymux_a_reset_looks_like_a_clean_end(one: str, build: Build) -> None:
    bridged = build(one, "bymux")
    near, far = open_pair(bridged.client, bridged.server)
    near.reset(77)
    assert far.read() == b""
    with pytest.raises(wsmux.StreamWriteClosed):
        write_on(far)


@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_a_reader_that_stops_stops_the_writer_where_the_wires_can_say_it(
    one: str, other: str, build: Build
) -> None:
    bridged = build(one, other)
    near, far = open_pair(bridged.client, bridged.server)
    near.write(b"x")
    assert far.read(1) == b"x"
    far.close_read()
    if other == "yamux":  # it cannot say it: what is written is taken and dropped
        near.write(bytes(1_000_000))
    elif "js-ws" in (one, other):  # it says it with the error 0
        with pytest.raises(wsmux.StreamError):
            write_on(near)
    elif one == "yamux":  # the bridge cannot say it there
        near.write(bytes(1_000_000))
    else:
        with pytest.raises(wsmux.StreamWriteClosed):
            write_on(near)
    far.write(b"still open")
    far.close_write()
    if one == "yamux" and other == "js-ws":  # an error resets a yamux stream whole
        with pytest.raises(wsmux.StreamReset):
            near.read()
    else:
        assert near.read() == b"still open"


@pytest.mark.parametrize("one", WIRE_NAMES)
def test_a_stream_that_nobody_takes_is_refused(one: str, spawn: Spawn) -> None:
    client, left = wsmux.pair(protocol=one)
    with wsmux.serve(lambda connection: connection.wait_closed(), accept_streams=False) as server:
        right = wsmux.connect(server.url)
        spawn(wsmux.bridge, left, right)
        stream = client.open_stream(timeout=WAIT)
        stream.timeout = WAIT
        if one == "bymux":  # it has no word for it
            assert stream.read() == b""
        else:
            refusal = wsmux.StreamRefused if one == "wsmux" else wsmux.StreamReset
            with pytest.raises(refusal):
                stream.read()
        client.close(WAIT)


@pytest.mark.parametrize("one", WIRE_NAMES)
def test_streams_behind_the_peers_going_away_are_refused(one: str, build: Build) -> None:
    bridged = build(one, "wsmux")
    bridged.server.go_away()
    wait_for(lambda: multiplexer_of(bridged.right).table.peer_refuses_from is not None)
    stream = bridged.client.open_stream(timeout=WAIT)
    stream.timeout = WAIT
    if one == "bymux":
        assert stream.read() == b""
    else:
        with pytest.raises(wsmux.StreamError):
            stream.read()


@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_what_came_before_a_clean_close_is_delivered(one: str, other: str, build: Build) -> None:
    bridged = build(one, other)
    near, far = open_pair(bridged.client, bridged.server)
    near.write(bytes(200_000))
    near.close_write()
    bridged.client.close(WAIT)
    assert len(far.read()) == 200_000
    assert bridged.server.wait_closed(WAIT)
    assert isinstance(bridged.server.error, wsmux.ConnectionClosedOK)


def test_a_stream_that_is_just_being_joined_at_the_close_is_delivered(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    go, add = threading.Event(), StreamRelay.add
    joining: list[StreamRelay] = []

    def late(pump: StreamRelay, one: wsmux.Stream, other: wsmux.Stream) -> None:
        joining.append(pump)
        go.wait(WAIT)
        add(pump, one, other)

    monkeypatch.setattr(StreamRelay, "add", late)
    bridged = build("wsmux", "yamux")
    near, far = open_pair(bridged.client, bridged.server)
    near.write(b"in time")
    near.close_write()
    bridged.client.close(WAIT)
    assert bridged.left.wait_closed(WAIT)
    wait_for(lambda: joining)
    joining[0]._parker.unpark()  # as if it looked just now
    assert not bridged.server.wait_closed(0.1)
    go.set()
    assert far.read() == b"in time"


def test_a_lost_connection_ends_the_other_one_as_a_bad_gateway(build: Build) -> None:
    bridged = build("wsmux", "js-ws")
    _, far = open_pair(bridged.client, bridged.server)
    bridged.client.abort()
    with pytest.raises(wsmux.ConnectionClosedError) as caught:
        far.read()
    assert (caught.value.code, caught.value.side) == (1014, "remote")


@pytest.mark.parametrize("config", [wsmux.Config(max_send_queue=1), wsmux.Config()], ids=str)
def test_both_ways_at_once_through_small_queues(
    config: wsmux.Config, build: Build, spawn: Spawn
) -> None:
    bridged = build("bymux", "yamux", config)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        spawn(echo_all, bridged.server)
        results = [spawn(digest_through, bridged.client, number) for number in range(10)]
        assert all(result.result(WAIT) for result in results)
    finally:
        sys.setswitchinterval(interval)


def test_nobody_else_may_read_a_bridged_stream(build: Build) -> None:
    bridged = build("wsmux", "wsmux")
    near, _far = open_pair(bridged.client, bridged.server)
    record = multiplexer_of(bridged.left).table.records[near.id]
    wait_for(lambda: record.reading and record.writing)


def machine(name: str) -> object:
    return WIRES[name].machine(wsmux.Role.CLIENT, wsmux.Config(), None)


@pytest.mark.parametrize(
    ("error", "one", "other", "code"),
    [
        (wsmux.StreamReset(1, 77, "remote"), "wsmux", "yamux", 77),
        (wsmux.StreamReset(1, 7, "remote"), "yamux", "wsmux", 0),
        (wsmux.StreamReset(1, 2, "remote"), "wsmux", "yamux", 0),
        (wsmux.StreamReset(1, 2**40, "remote"), "wsmux", "yamux", 0),
        (wsmux.StreamReset(1, 2**40, "remote"), "wsmux", "js-ws", 2**40),
        (wsmux.StreamRefused(1, 0), "yamux", "wsmux", 3),
        (wsmux.StreamWriteClosed(1), "bymux", "wsmux", None),
    ],
)
def test_codes_that_the_other_wire_keeps_for_itself_become_0(
    error: wsmux.StreamError, one: str, other: str, code: int | None
) -> None:
    assert carried_code(error, machine(one), machine(other)) == code  # type: ignore[arg-type]


def test_the_code_behind_an_exception_of_the_application_is_carried() -> None:
    error = LookupError("no such file")
    error.__cause__ = wsmux.StreamReset(1, 99, "remote")
    assert carried_code(error, machine("wsmux"), machine("yamux")) == 99  # type: ignore[arg-type]
