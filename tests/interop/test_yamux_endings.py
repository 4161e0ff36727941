"""End streams and connections between here and two published Yamux peers, in both roles.

What the peers do differently, or cannot do:

- Neither can give a code with a reset, nor tell the code of ours: it is always 0. What we send is
  seen in the frames that they log.
- A reader that waits in PyPI sees our reset as a clean end. One that comes later gets an error, and
  with it loses what had arrived.
- npm may reset a stream that it has not acknowledged, which is how the wire refuses one.
- GO_AWAY 0 ends the connection in both, running streams included: npm ends them without an error
  and leaves the carrier open, PyPI drops what nobody has read and hangs up.
- PyPI says GO_AWAY and hangs up in one call, with no end of its streams. npm ends each of its
  streams first; when it aborts, it resets them, and says GO_AWAY 0 for most errors of its own.
- A lost connection, too, ends streams in npm without an error. In PyPI it looks like a clean end
  to readers that wait.
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest

import wsmux

from ..helpers.interop.link import (
    BULK_WAIT,
    KIB,
    LARGE,
    MIB,
    WAIT,
    Connector,
    Link,
    by_either,
    digests,
    good,
    node_only,
    python_only,
    spawn,
    write_and_close,
    write_in_chunks,
    yamux_marks,
)
from ..helpers.interop.peer_process import PeerError, PeerProcess, generate, sha256

pytestmark = yamux_marks

WINDOW = 256 * KIB

# What the peers know when the connection goes: both readers return as if the stream had ended.
ENDED_UNSAID = {"node": "closed", "python": "eof"}


@pytest.fixture
def connector(yamux_connector: Connector) -> Connector:
    """Return the function that makes a link to a Yamux peer."""
    return yamux_connector


def frames(link: Link, way: str, kind: str, flag: str = "", count: int = 1) -> list[dict[str, Any]]:
    """Wait until `count` frames of a kind went one way between the peer and us; return all."""
    found: list[dict[str, Any]] = link.peer.call(
        "waitFrames", way=way, type=kind, flag=flag, count=count
    )["frames"]
    return found


def used_pair(link: Link, opener: str) -> tuple[wsmux.Stream, int]:
    """Return both ends of a stream on which a byte went each way, so that it is acknowledged."""
    stream, handle = link.pair(opener)
    stream.write(b"?")
    link.peer.call("read", stream=handle)
    link.peer.call("write", stream=handle, hex=b"!".hex())
    assert stream.read(1) == b"!"
    return stream, handle


def blocked_reading(link: Link, handle: int) -> Future[Any]:
    """Let the peer read a stream to its end, and return once it waits for bytes."""
    reading = link.peer.submit("readAll", stream=handle)
    link.peer.call("waitReading", stream=handle)
    return reading


# Reset


@by_either
def test_our_reset_carries_its_code_and_ends_the_reader_of_the_peer(
    link: Link, opener: str
) -> None:
    stream, handle = used_pair(link, opener)
    reading = blocked_reading(link, handle)
    stream.reset(4001)
    (reset,) = frames(link, "received", "window", "RST")
    assert (reset["stream"], reset["length"]) == (stream.id, 4001)
    if link.peer.name == "python":
        assert link.peer.answer(reading)["end"] == "eof"
    else:
        with pytest.raises(PeerError, match="StreamResetError"):
            link.peer.answer(reading)
    link.assert_alive()


@by_either
def test_our_reset_reaches_a_peer_that_reads_only_afterwards(link: Link, opener: str) -> None:
    stream, handle = used_pair(link, opener)
    before = link.peer.call("waitData", way="received", atLeast=1)["dataBytes"]
    stream.write(b"half")
    link.peer.call("waitData", way="received", atLeast=before + 4)
    stream.reset(4002)
    frames(link, "received", "window", "RST")
    with pytest.raises(PeerError, match="StreamReset") as caught:
        link.peer.call("readAll", stream=handle)
    assert caught.value.error["received"] == (4 if link.peer.name == "node" else 0)


@by_either
def test_our_reset_ends_the_blocked_writer_of_the_peer(link: Link, opener: str) -> None:
    stream, handle = link.pair(opener)
    args = {"seed": "unwanted", "size": LARGE, "chunk": LARGE}
    writing = link.peer.submit("write", BULK_WAIT, stream=handle, **args)
    assert stream.read(1)
    link.peer.call("waitData", way="sent", atLeast=WINDOW)
    stream.reset(77)
    with pytest.raises(PeerError, match="StreamResetError|Stream is closed"):
        link.peer.answer(writing, BULK_WAIT)
    link.assert_alive()


@by_either
def test_bytes_that_cross_our_reset_do_no_harm(link: Link, opener: str) -> None:
    for _ in range(20):
        stream, handle = link.pair(opener)
        args = {"seed": "crossing", "size": WINDOW, "chunk": 10_000}
        writing = link.peer.submit("write", BULK_WAIT, stream=handle, **args)
        assert stream.read(1)
        stream.reset(5)
        writing.exception(BULK_WAIT)  # it may have been done before
    link.assert_alive()


@by_either
def test_reset_by_the_peer_ends_our_blocked_read(link: Link, opener: str) -> None:
    stream, handle = used_pair(link, opener)
    reading = spawn(stream.read)
    link.peer.call("reset", stream=handle)
    with pytest.raises(wsmux.StreamReset) as caught:
        reading.result(WAIT)
    assert (caught.value.code, caught.value.side) == (0, "remote")
    link.assert_alive()


@by_either
def test_reset_by_the_peer_ends_our_blocked_write(link: Link, opener: str) -> None:
    stream, handle = used_pair(link, opener)
    link.peer.call("stall", stream=handle)
    writing = spawn(stream.write, generate("unwanted", LARGE))
    link.peer.call("waitData", way="received", atLeast=WINDOW)
    link.peer.call("reset", stream=handle)
    with pytest.raises(wsmux.StreamReset) as caught:
        writing.result(WAIT)
    assert caught.value.code == 0
    with pytest.raises(wsmux.StreamReset):
        stream.write(b"too late")
    link.assert_alive()


@by_either
def test_reset_by_the_peer_after_its_end_leaves_our_reader_its_clean_end(
    link: Link, opener: str
) -> None:
    stream, handle = used_pair(link, opener)
    link.peer.call("write", stream=handle, hex=b"whole".hex())
    link.peer.call("close", stream=handle)
    link.peer.call("reset", stream=handle)
    with pytest.raises(wsmux.StreamReset):
        write_until_refused(stream)
    assert stream.read() == b"whole"
    link.assert_alive()


def write_until_refused(stream: wsmux.Stream) -> None:
    while True:
        stream.write(b"more")


def test_reset_of_a_stream_that_was_never_acknowledged(link: Link) -> None:
    stream, handle = link.open_pair()
    link.peer.call("reset", stream=handle)
    acknowledged = link.peer.name == "python"
    with pytest.raises(wsmux.StreamReset if acknowledged else wsmux.StreamRefused):
        stream.read()
    link.assert_alive()


def test_stream_dropped_by_an_exception_is_reset_at_the_peer(link: Link) -> None:
    stream, handle = used_pair(link, "wsmux")
    with pytest.raises(ZeroDivisionError), stream:
        raise ZeroDivisionError
    assert frames(link, "received", "window", "RST")[0]["stream"] == stream.id
    with pytest.raises(PeerError):
        link.peer.call("write", stream=handle, seed="too late", size=WINDOW)


# Reading no further has no word in Yamux


def test_peer_writes_to_its_end_after_we_read_no_further(link: Link) -> None:
    stream, handle = link.accept_pair()
    args = {"seed": "unwanted", "size": LARGE, "chunk": LARGE}
    writing = link.peer.submit("write", BULK_WAIT, stream=handle, **args)
    assert stream.read(1)
    stream.close_read()
    link.peer.answer(writing, BULK_WAIT)
    link.peer.call("close", stream=handle)
    stream.write(b"ours goes on")
    stream.close_write()
    assert link.peer.call("readAll", stream=handle)["length"] == len(b"ours goes on")
    assert link.connection.wait_drained(WAIT)


# Refusing streams


def test_streams_that_are_not_wanted_are_refused(connector: Connector) -> None:
    link = connector(accept_streams=False)
    opened = link.peer.call("open")
    (refusal,) = frames(link, "received", "window", "RST")
    assert (refusal["stream"], refusal["length"]) == (opened["id"], 0)
    with pytest.raises(PeerError):
        link.peer.call("write", stream=opened["handle"], seed="unwanted", size=WINDOW)
    link.assert_alive()


def test_streams_beyond_the_accept_queue_are_refused_and_the_others_served(
    connector: Connector,
) -> None:
    link = connector(config=wsmux.Config(max_unaccepted=5))
    opened = [link.peer.call("open") for _ in range(8)]
    refused = frames(link, "received", "window", "RST", count=3)
    assert [frame["stream"] for frame in refused] == [stream["id"] for stream in opened[5:]]
    for theirs in opened[:5]:
        stream = link.accept()
        stream.write(b"served")
        stream.close()
        assert link.peer.call("readAll", stream=theirs["handle"])["end"] == "fin"
    link.assert_alive()


@node_only  # PyPI refuses no stream
def test_stream_refused_by_node_may_be_tried_again(connector: Connector) -> None:
    link = connector(node_config={"maxInboundStreams": 2})
    streams = [link.open() for _ in range(3)]
    with pytest.raises(wsmux.StreamRefused) as caught:
        streams[2].read()
    assert caught.value.retry_safe
    streams[0].reset()
    handles = [link.peer.call("accept")["handle"] for _ in range(2)]
    with pytest.raises(PeerError):
        link.peer.call("readAll", stream=handles[0])
    again = link.open()
    again.write(b"now")
    again.close_write()
    handle = link.peer.call("accept")["handle"]
    assert link.peer.call("readAll", stream=handle)["length"] == 3


# Going away


def test_our_go_away_is_said_once_and_ends_the_connection_there(link: Link) -> None:
    stream, handle = used_pair(link, "wsmux")
    reading = blocked_reading(link, handle)
    link.connection.go_away()
    (word,) = frames(link, "received", "goaway")
    assert word["length"] == 0
    link.peer.call("waitClosed")
    assert link.peer.answer(reading)["end"] == ENDED_UNSAID[link.peer.name]
    if link.peer.name == "node":  # we hear of nothing that it has sent before the answer
        link.connection.ping(WAIT)
        stream.timeout = 0.01
        with pytest.raises(TimeoutError):
            stream.read()
    else:
        with pytest.raises(wsmux.ConnectionClosed):
            stream.read()
    link.connection.close(timeout=WAIT)
    assert len(frames(link, "received", "goaway")) == 1


def test_go_away_by_the_peer_ends_the_iteration(link: Link) -> None:
    iterating = spawn(list, link.connection)
    link.peer.call("goAway", code=0)
    assert iterating.result(WAIT) == []
    with pytest.raises((wsmux.ConnectionClosedOK, wsmux.StreamRefused)):
        link.connection.open_stream(timeout=WAIT)


def test_go_away_by_the_peer_behind_its_streams_loses_nothing(link: Link) -> None:
    args = {"count": 20, "seed": "last", "size": 20_000, "chunk": 20_000}
    link.peer.call("sendMany", BULK_WAIT, **args)
    link.peer.call("goAway", code=0)
    received = {sha256(link.accept().read()) for _ in range(20)}
    assert received == set(digests("last", 20, 20_000))


@by_either
def test_go_away_by_the_peer_is_never_a_clean_end_of_what_it_cut(link: Link, opener: str) -> None:
    stream, handle = used_pair(link, opener)
    reading = spawn(stream.read)
    link.peer.call("goAway", code=0)
    if link.peer.name == "node":  # ends its streams before
        assert reading.result(WAIT) == b""
        assert frames(link, "sent", "window", "FIN")
    else:
        with pytest.raises(wsmux.ConnectionClosed):
            reading.result(WAIT)


@pytest.mark.parametrize(("code", "meaning"), [(1, 1002), (2, 1011)])
def test_go_away_with_a_code_ends_everything_with_an_error(
    link: Link, code: int, meaning: int
) -> None:
    reader, _ = used_pair(link, "wsmux")
    writer, full = link.open_pair()
    link.peer.call("stall", stream=full)
    waiting = [
        spawn(reader.read),
        spawn(writer.write, generate("unwanted", LARGE)),
        spawn(link.connection.accept_stream),
    ]
    link.peer.call("waitData", way="received", atLeast=WINDOW)
    link.peer.call("goAway", code=code, graceful=False)
    (word,) = frames(link, "sent", "goaway")
    assert word["length"] == code
    for future in waiting[:2]:  # npm resets its streams before
        with pytest.raises((wsmux.StreamReset, wsmux.StreamRefused, wsmux.ConnectionClosedError)):
            future.result(WAIT)
    with pytest.raises(wsmux.ConnectionClosedError) as caught:
        waiting[2].result(WAIT)
    assert caught.value.code == meaning
    assert f"GO_AWAY code {code}" in caught.value.reason


@node_only  # PyPI has no such call
def test_node_that_aborts_resets_its_streams_and_says_that_all_is_well(link: Link) -> None:
    stream, _ = used_pair(link, "wsmux")
    reading = spawn(stream.read)
    link.peer.call("goAway", graceful=False)
    assert [word["length"] for word in frames(link, "sent", "goaway")] == [0]
    with pytest.raises(wsmux.StreamReset):
        reading.result(WAIT)


# The end of the connection


def test_our_close_says_go_away_and_ends_everything_in_the_peer(link: Link) -> None:
    stream, handle = used_pair(link, "wsmux")
    reading = blocked_reading(link, handle)
    link.connection.close(timeout=WAIT)
    link.peer.call("waitClosed")
    assert [word["length"] for word in frames(link, "received", "goaway")] == [0]
    assert link.peer.answer(reading)["end"] == ENDED_UNSAID[link.peer.name]
    with pytest.raises(wsmux.ConnectionClosedOK):
        stream.read()


def test_our_close_with_an_error_says_so(link: Link) -> None:
    link.connection.close(timeout=WAIT, code=1011, reason="out of order")
    link.peer.call("waitClosed")
    assert [word["length"] for word in frames(link, "received", "goaway")] == [2]


def test_connection_closed_right_behind_its_streams_loses_nothing(link: Link) -> None:
    streams = [link.open() for _ in range(20)]
    reading = link.peer.submit("readMany", BULK_WAIT, count=20)
    for index, stream in enumerate(streams):
        write_and_close(stream, generate(f"last-{index}", 20_000))
    if link.peer.name == "python":  # drops what nobody has read when it hears GO_AWAY
        link.peer.call("waitData", way="received", atLeast=20 * 20_000)
        answers = link.peer.answer(reading, BULK_WAIT)
        link.connection.close(timeout=WAIT)
    else:
        link.connection.close(timeout=WAIT)
        answers = link.peer.answer(reading, BULK_WAIT)
    assert good(answers) == digests("last", 20, 20_000)


@python_only
def test_python_drops_what_nobody_has_read_when_we_close(link: Link) -> None:
    stream, handle = link.open_pair()
    write_and_close(stream, b"lost there")
    link.connection.close(timeout=WAIT)
    link.peer.call("waitClosed")
    with pytest.raises(PeerError, match="MuxedStreamReset"):
        link.peer.call("readAll", stream=handle)


@by_either
def test_peer_that_hangs_up_without_a_word_is_never_a_clean_end(link: Link, opener: str) -> None:
    stream, handle = used_pair(link, opener)
    writer, full = link.open_pair()
    link.peer.call("stall", stream=full)
    waiting = [
        spawn(stream.read),
        spawn(writer.write, generate("unwanted", LARGE)),
        spawn(link.connection.accept_stream),
    ]
    link.peer.call("waitData", way="received", atLeast=WINDOW)
    link.peer.call("hangUp")
    for future in waiting:
        with pytest.raises(wsmux.ConnectionClosed):
            future.result(WAIT)


def test_connection_cut_here_looks_like_a_good_end_in_the_peer(link: Link) -> None:
    stream, handle = used_pair(link, "wsmux")
    reading = blocked_reading(link, handle)
    link.connection.abort()
    assert link.peer.answer(reading)["end"] == ENDED_UNSAID[link.peer.name]
    with pytest.raises(wsmux.ConnectionClosedError):
        stream.read()


def test_our_close_during_bulk_ends_both_sides(link: Link) -> None:
    stream, handle = link.open_pair()
    link.peer.call("stall", stream=handle)
    downward = spawn(write_in_chunks, stream, generate("down", 8 * MIB), MIB)
    args = {"seed": "up", "size": 8 * MIB, "chunk": 64 * KIB}
    upward = link.peer.submit("write", BULK_WAIT, stream=handle, **args)
    link.peer.call("waitData", way="received", atLeast=WINDOW)
    link.connection.close(timeout=WAIT)
    link.peer.call("waitClosed")
    assert downward.exception(WAIT) is not None
    with pytest.raises(PeerError):
        link.peer.answer(upward, BULK_WAIT)


def test_death_of_the_peer_ends_our_read_with_an_error(
    connector: Connector, mortal_peer: PeerProcess
) -> None:
    link = connector(peer=mortal_peer)
    stream, _ = used_pair(link, "wsmux")
    reading = spawn(stream.read)
    mortal_peer.kill()
    with pytest.raises(wsmux.ConnectionClosedError) as caught:
        reading.result(WAIT)
    assert caught.value.code == 1006


def test_silent_peer_is_noticed(connector: Connector, mortal_peer: PeerProcess) -> None:
    link = connector(peer=mortal_peer, config=wsmux.Config(ping_interval=0.2, ping_timeout=1.0))
    stream, _ = used_pair(link, "wsmux")
    mortal_peer.freeze()
    with pytest.raises(wsmux.ConnectionClosedError):
        stream.read()
    mortal_peer.kill()
