"""Move bytes to and from the shipped npm package `@matrixai/ws`, as its server and its client.

Every test of `link` runs in both roles. Unless a test says otherwise, Node must end without an
uncaught exception: the package throws there when a peer does what it did not expect.
"""

from __future__ import annotations

import pytest

import wsmux

from ..helpers.interop.link import (
    BULK_WAIT,
    KIB,
    LARGE,
    MANY,
    MANY_CHUNK,
    MANY_SIZE,
    MIB,
    SMALL,
    WAIT,
    Connector,
    Link,
    by_either,
    digests,
    good,
    marks,
    spawn,
    write_and_close,
    write_in_chunks,
)
from ..helpers.interop.peer_process import generate, sha256

pytestmark = marks


# Echo, and who opens


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_stream_opened_here_is_echoed_by_node(link: Link, size: int) -> None:
    link.peer.call("incoming", mode="echo")
    data = generate("here", size)
    stream = link.open()
    writing = spawn(write_in_chunks, stream, data, MIB)
    assert sha256(stream.read()) == sha256(data)
    writing.result(WAIT)


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_stream_opened_by_node_is_echoed_here(link: Link, size: int) -> None:
    link.echo_all()
    args = {"count": 1, "seed": "there", "size": size, "chunk": MIB}
    answers = link.peer.call("exchangeMany", BULK_WAIT, **args)
    assert good(answers) == digests("there", 1, size)


def test_both_sides_open_streams_at_the_same_time(link: Link) -> None:
    link.peer.call("incoming", mode="echo")
    link.echo_all()
    theirs = link.peer.submit(
        "exchangeMany", BULK_WAIT, count=20, seed="theirs", size=50_000, chunk=5_000
    )
    data = generate("ours", 50_000)
    streams = [link.open() for _ in range(20)]
    writings = [spawn(write_in_chunks, stream, data, 5_000) for stream in streams]
    assert {sha256(stream.read()) for stream in streams} == {sha256(data)}
    for writing in writings:
        writing.result(WAIT)
    assert good(link.peer.answer(theirs, BULK_WAIT)) == digests("theirs", 20, 50_000)


def test_ids_have_the_parity_of_the_opener(link: Link) -> None:
    ours = [link.open_pair()[0].id for _ in range(3)]
    theirs = [link.accept_pair()[0].id for _ in range(3)]
    even, odd = [0, 2, 4], [1, 3, 5]
    assert (theirs, ours) == ((even, odd) if link.peer_is_client else (odd, even))


def test_one_stream_carries_three_mebibytes_both_ways_at_once(link: Link) -> None:
    stream, handle = link.open_pair()
    data = generate("down", LARGE)
    reading = link.peer.submit("readAll", BULK_WAIT, stream=handle)
    writing = spawn(write_in_chunks, stream, data, MIB)
    link.peer.submit("write", BULK_WAIT, stream=handle, seed="up", size=LARGE, chunk=64 * KIB)
    received = b""
    while len(received) < LARGE:
        received += stream.read(LARGE)
    writing.result(WAIT)
    assert link.peer.answer(reading, BULK_WAIT)["sha256"] == sha256(data)
    assert sha256(received) == sha256(generate("up", LARGE))


# Nothing is lost when many small writes are followed by the end


def test_many_streams_of_small_writes_arrive_whole_at_node(link: Link) -> None:
    streams = [link.open() for _ in range(MANY)]
    reading = link.peer.submit("readMany", BULK_WAIT, count=MANY)
    writings = [
        spawn(write_in_chunks, stream, generate(f"down-{index}", MANY_SIZE), MANY_CHUNK)
        for index, stream in enumerate(streams)
    ]
    for writing in writings:
        writing.result(BULK_WAIT)
    answers = link.peer.answer(reading, BULK_WAIT)
    assert good(answers) == digests("down", MANY, MANY_SIZE)


def test_many_streams_of_small_writes_arrive_whole_here(link: Link) -> None:
    args = {"count": MANY, "seed": "up", "size": MANY_SIZE, "chunk": MANY_CHUNK}
    sending = link.peer.submit("sendMany", BULK_WAIT, **args)
    received = [sha256(link.accept().read()) for _ in range(MANY)]
    link.peer.answer(sending, BULK_WAIT)
    assert received == digests("up", MANY, MANY_SIZE)


def test_many_streams_opened_by_node_are_echoed_whole(link: Link) -> None:
    link.echo_all()
    args = {"count": MANY, "seed": "echo", "size": MANY_SIZE, "chunk": MANY_CHUNK}
    answers = link.peer.call("exchangeMany", BULK_WAIT, **args)
    assert good(answers) == digests("echo", MANY, MANY_SIZE)


def test_stream_written_and_closed_at_once_arrives_whole(link: Link) -> None:
    data = generate("at once", 100_000)
    stream, handle = link.open_pair()
    write_and_close(stream, data)
    assert link.peer.call("readAll", stream=handle)["sha256"] == sha256(data)


def test_stream_dropped_after_its_half_was_ended_arrives_whole(link: Link) -> None:
    data = generate("dropped", 100_000)
    stream, handle = link.open_pair()
    write_in_chunks(stream, data, MANY_CHUNK)
    del stream
    link.assert_alive()
    assert link.peer.call("readAll", stream=handle)["sha256"] == sha256(data)


def test_connection_closed_right_behind_its_streams_loses_nothing(link: Link) -> None:
    streams = [link.open() for _ in range(20)]
    reading = link.peer.submit("readMany", BULK_WAIT, count=20)
    for index, stream in enumerate(streams):
        write_and_close(stream, generate(f"last-{index}", MANY_SIZE))
    link.connection.close(timeout=WAIT)
    assert good(link.peer.answer(reading, BULK_WAIT)) == digests("last", 20, MANY_SIZE)


# Each half ends by itself


@by_either
def test_node_writes_on_after_our_half_has_ended(link: Link, opener: str) -> None:
    stream, handle = link.pair(opener)
    stream.write(b"question")
    stream.close_write()
    assert link.peer.call("readAll", stream=handle)["sha256"] == sha256(b"question")
    link.peer.submit("write", BULK_WAIT, stream=handle, seed="answer", size=MIB)
    closing = link.peer.submit("close", BULK_WAIT, stream=handle)
    assert sha256(stream.read()) == sha256(generate("answer", MIB))
    link.peer.answer(closing, BULK_WAIT)


@by_either
def test_we_write_on_after_the_half_of_node_has_ended(link: Link, opener: str) -> None:
    stream, handle = link.pair(opener)
    link.peer.call("write", stream=handle, hex=b"question".hex())
    link.peer.call("close", stream=handle)
    assert stream.read() == b"question"
    reading = link.peer.submit("readAll", BULK_WAIT, stream=handle)
    data = generate("answer", MIB)
    write_in_chunks(stream, data, 64 * KIB)
    assert link.peer.answer(reading, BULK_WAIT)["sha256"] == sha256(data)


@by_either
def test_stream_that_ended_on_both_sides_is_forgotten_by_node(link: Link, opener: str) -> None:
    stream, handle = link.pair(opener)
    stream.close_write()
    assert link.peer.call("readAll", stream=handle)["length"] == 0
    link.peer.call("close", stream=handle)
    assert stream.read() == b""
    assert link.peer.call("report")["live"] == 0


# Flow control


@by_either
def test_reader_that_stalls_in_node_stops_our_writer_until_it_resumes(
    link: Link, opener: str
) -> None:
    stream, handle = link.pair(opener)
    data = generate("patience", LARGE)
    writing = spawn(write_in_chunks, stream, data, MIB)
    link.peer.call("waitQueued", stream=handle, atLeast=MIB, timeout=WAIT)
    assert not writing.done()
    link.assert_alive()
    assert link.peer.call("readAll", BULK_WAIT, stream=handle)["sha256"] == sha256(data)
    writing.result(WAIT)


@by_either
def test_reader_that_stalls_here_stops_the_writer_of_node_until_it_resumes(
    link: Link, opener: str
) -> None:
    stream, handle = link.pair(opener)
    args = {"seed": "patience", "size": LARGE, "chunk": LARGE}
    writing = link.peer.submit("write", BULK_WAIT, stream=handle, **args)
    link.peer.call("waitNoCredit", stream=handle, sent=KIB, timeout=WAIT)
    assert not writing.done()
    link.assert_alive()
    reading = spawn(stream.read)
    link.peer.answer(writing, BULK_WAIT)
    link.peer.call("close", stream=handle)
    assert sha256(reading.result(WAIT)) == sha256(generate("patience", LARGE))


@by_either
def test_close_returns_while_node_stalls_and_nothing_is_lost(link: Link, opener: str) -> None:
    stream, handle = link.pair(opener)
    data = generate("left behind", 100_000)
    write_and_close(stream, data)
    link.assert_alive()
    assert link.peer.call("readAll", stream=handle)["sha256"] == sha256(data)


def test_end_reaches_node_even_if_it_never_reads(link: Link) -> None:
    stream, handle = link.open_pair()
    data = generate("left behind", 100_000)
    write_and_close(stream, data)
    link.peer.call("waitReadClosed", stream=handle, timeout=WAIT)
    assert link.peer.call("readAll", stream=handle)["sha256"] == sha256(data)


@by_either
def test_window_of_a_thousand_bytes_is_never_overrun(connector: Connector, opener: str) -> None:
    link = connector(node_config={"streamBufferSize": 1000})
    stream, handle = link.pair(opener)
    reading = link.peer.submit("readAll", BULK_WAIT, stream=handle)
    data = generate("thimble", 100_000)
    writing = spawn(write_in_chunks, stream, data, 30_000)
    assert link.peer.answer(reading, BULK_WAIT)["sha256"] == sha256(data)
    writing.result(WAIT)


@by_either
def test_window_of_two_mebibytes_takes_one_message_of_that_size(
    connector: Connector, opener: str
) -> None:
    config = wsmux.Config(receive_window=2 * MIB, max_message_size=2 * MIB + KIB)
    link = connector(config=config)
    stream, handle = link.pair(opener)
    args = {"seed": "gulp", "size": LARGE, "chunk": LARGE}
    link.peer.submit("write", BULK_WAIT, stream=handle, **args)
    closing = link.peer.submit("close", BULK_WAIT, stream=handle)
    assert sha256(stream.read()) == sha256(generate("gulp", LARGE))
    link.peer.answer(closing, BULK_WAIT)


@by_either
def test_window_above_the_message_limit_never_ends_the_connection(
    connector: Connector, opener: str
) -> None:
    link = connector(config=wsmux.Config(receive_window=2 * MIB))
    stream, handle = link.pair(opener)
    args = {"seed": "gulp", "size": LARGE, "chunk": LARGE}
    link.peer.submit("write", BULK_WAIT, stream=handle, **args)
    closing = link.peer.submit("close", BULK_WAIT, stream=handle)
    assert sha256(stream.read()) == sha256(generate("gulp", LARGE))
    link.peer.answer(closing, BULK_WAIT)


# Many streams one after the other


def test_two_hundred_streams_opened_here_in_sequence(link: Link) -> None:
    link.peer.call("incoming", mode="echo")
    expected = [generate(f"turn-{index}", KIB) for index in range(200)]
    answers = []
    for data in expected:
        with link.open() as stream:
            stream.write(data)
            stream.close_write()
            answers.append(stream.read())
    assert answers == expected
    report = link.peer.call("report")
    assert (report["inbound"], report["phantoms"]) == (200, 0)
    link.peer.call("incoming", mode="queue")
    link.assert_alive()


def test_two_hundred_streams_opened_by_node_in_sequence(link: Link) -> None:
    link.echo_all()
    args = {"count": 200, "seed": "turn", "size": KIB}
    answers = link.peer.call("exchangeInSequence", BULK_WAIT, **args)
    assert good(answers) == digests("turn", 200, KIB)
    link.assert_alive()
    report = link.peer.call("report")
    assert (report["phantoms"], report["live"]) == (0, 0)


def test_credit_that_comes_late_to_node_disturbs_nothing(link: Link) -> None:
    sizes = []
    for turn in range(50):
        stream, handle = link.accept_pair()
        stream.close_write()
        args = {"seed": f"late-{turn}", "size": 300_000, "chunk": 10_000}
        writing = link.peer.submit("write", WAIT, stream=handle, **args)
        closing = link.peer.submit("close", stream=handle)
        sizes.append(len(stream.read()))
        link.peer.answer(writing)
        link.peer.answer(closing)
    assert sizes == [300_000] * 50
    link.assert_alive()


# Streams opened in the moment of connecting

GREETINGS = {"count": 3, "seed": "hello", "size": KIB, "chunk": KIB}


def greet(connection: wsmux.Connection) -> None:
    """Open streams and send on them, without waiting for anything from Node."""
    for index in range(3):
        stream = connection.open_stream(timeout=WAIT)
        spawn(write_and_close, stream, generate(f"hello-{index}", KIB))


@pytest.mark.parametrize("attempt", range(5))
def test_streams_opened_by_our_server_on_connect_reach_node(
    as_server: Connector, attempt: int
) -> None:
    link = as_server(greet=greet)
    assert good(link.peer.call("readMany", count=3)) == digests("hello", 3, KIB)


def test_streams_opened_by_our_client_on_connect_reach_node(as_client: Connector) -> None:
    link = as_client(greet=greet)
    assert good(link.peer.call("readMany", count=3)) == digests("hello", 3, KIB)


@pytest.mark.parametrize("glued", [False, True])
def test_streams_opened_by_node_on_connect_reach_our_client(
    as_client: Connector, glued: bool
) -> None:
    link = as_client(listen={"openOnConnect": GREETINGS, "glued": glued})
    received = [sha256(link.accept().read()) for _ in range(3)]
    assert received == digests("hello", 3, KIB)
