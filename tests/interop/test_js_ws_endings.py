"""End streams and connections between here and the npm package `@matrixai/ws`, in both roles.

Unless a test says otherwise, Node must end without an uncaught exception.
"""

from __future__ import annotations

import time

import pytest

import wsmux

from ..helpers.interop.link import (
    BULK_WAIT,
    KIB,
    LARGE,
    MANY_CHUNK,
    MIB,
    SMALL,
    WAIT,
    Connector,
    Link,
    by_either,
    marks,
    spawn,
    write_in_chunks,
)
from ..helpers.interop.peer_process import PeerError, generate, sha256

pytestmark = marks

# What the library lets an end of stream wait for acknowledgements, less what a busy machine takes.
CLOSE_DELAY = 4.0


# Abort and cancel


@by_either
def test_our_reset_reaches_the_reader_of_node_with_its_code(link: Link, opener: str) -> None:
    stream, handle = link.pair(opener)
    stream.write(b"half a message")
    link.peer.call("read", stream=handle)
    reading = link.peer.submit("readAll", stream=handle)
    stream.reset(4001)
    with pytest.raises(PeerError) as caught:
        link.peer.answer(reading)
    assert caught.value.code == 4001
    link.assert_alive()


@by_either
def test_our_reset_reaches_the_writer_of_node_with_its_code(link: Link, opener: str) -> None:
    stream, handle = link.pair(opener)
    stream.reset(70_000)
    with pytest.raises(PeerError) as caught:
        link.peer.call("writerClosed", stream=handle)
    assert caught.value.code == 70_000
    link.assert_alive()


@by_either
def test_reset_while_node_sends_leaves_the_connection_alive(link: Link, opener: str) -> None:
    stream, handle = link.pair(opener)
    args = {"seed": "unwanted", "size": LARGE, "chunk": KIB}
    writing = link.peer.submit("write", BULK_WAIT, stream=handle, **args)
    assert stream.read(1)
    stream.reset(77)
    with pytest.raises(PeerError) as caught:
        link.peer.answer(writing, BULK_WAIT)
    assert caught.value.code == 77
    link.assert_alive()


@by_either
def test_close_read_stops_the_writer_of_node_and_not_ours(link: Link, opener: str) -> None:
    stream, handle = link.pair(opener)
    args = {"seed": "unwanted", "size": LARGE, "chunk": KIB}
    writing = link.peer.submit("write", BULK_WAIT, stream=handle, **args)
    assert stream.read(1)
    stream.close_read()
    with pytest.raises(PeerError) as caught:
        link.peer.answer(writing, BULK_WAIT)
    assert caught.value.code == 0
    stream.write(b"ours goes on")
    stream.close_write()
    assert link.peer.call("readAll", stream=handle)["sha256"] == sha256(b"ours goes on")
    link.assert_alive()


@by_either
def test_abort_by_node_ends_our_read_with_its_code(link: Link, opener: str) -> None:
    stream, handle = link.pair(opener)
    reading = spawn(stream.read)
    link.peer.call("abort", stream=handle, code=4002)
    with pytest.raises(wsmux.StreamReset) as caught:
        reading.result(WAIT)
    assert caught.value.code == 4002
    link.assert_alive()


@by_either
def test_cancel_by_node_ends_our_blocked_write_with_its_code(link: Link, opener: str) -> None:
    stream, handle = link.pair(opener)
    writing = spawn(stream.write, generate("unwanted", LARGE))
    link.peer.call("waitQueued", stream=handle, atLeast=MIB, timeout=WAIT)
    link.peer.call("cancel", stream=handle, code=4003)
    with pytest.raises(wsmux.StreamReset) as caught:
        writing.result(WAIT)
    assert caught.value.code == 4003
    link.assert_alive()


@by_either
def test_cancel_of_both_halves_by_node_ends_read_and_write(link: Link, opener: str) -> None:
    stream, handle = link.pair(opener)
    reading = spawn(stream.read)
    link.peer.call("cancelBoth", stream=handle, code=4004)
    with pytest.raises(wsmux.StreamReset) as caught:
        reading.result(WAIT)
    assert caught.value.code == 4004
    with pytest.raises(wsmux.StreamReset) as caught:
        stream.write(b"too late")
    assert caught.value.code == 4004
    link.assert_alive()


def test_stream_cancelled_right_after_opening_disturbs_nothing(link: Link) -> None:
    link.peer.call("openAndCancel", code=9)
    fence = link.peer.call("open")["handle"]
    link.peer.call("write", stream=fence, hex=b"fence".hex())
    assert read_first_living(link) == b"fence"
    link.assert_alive()


def read_first_living(link: Link) -> bytes:
    """Return what comes on the first accepted stream that is not reset."""
    while True:
        try:
            return link.accept().read(SMALL)
        except wsmux.StreamReset:
            continue


# The package cannot bear DATA that crosses its own cancel; what this means for us


def send_data_that_crosses_a_cancel(link: Link, stream: wsmux.Stream, handle: int) -> None:
    """Let Node read DATA only after its cancel, of which we have heard in the meantime."""
    link.peer.call("pauseSocket")
    stream.write(b"on its way")
    link.peer.call("cancel", stream=handle, code=5)
    with pytest.raises(wsmux.StreamReset):
        write_until_refused(stream)
    link.peer.call("resumeSocket")


def write_until_refused(stream: wsmux.Stream) -> None:
    while True:
        stream.write(b"more")


def test_data_crossing_a_cancel_by_node_ends_the_connection_with_its_complaint(
    link: Link,
) -> None:
    stream, handle = link.open_pair()
    send_data_that_crosses_a_cancel(link, stream, handle)
    with pytest.raises(wsmux.ConnectionClosedError) as caught:
        link.connection.accept_stream(timeout=WAIT)
    assert caught.value.code == 1002
    assert "overflowed" in caught.value.reason


def test_data_crossing_a_cancel_of_its_own_stream_throws_in_node_only(link: Link) -> None:
    link.uncaught_expected = True
    stream, handle = link.accept_pair()
    send_data_that_crosses_a_cancel(link, stream, handle)
    assert "overflowed" in str(link.peer.call("waitUncaught"))
    link.assert_alive()


# Refusing streams


def test_streams_that_are_not_wanted_end_in_node_with_code_zero(connector: Connector) -> None:
    link = connector(accept_streams=False)
    handle = link.peer.call("open")["handle"]
    with pytest.raises(PeerError) as caught:
        link.peer.call("readAll", stream=handle)
    assert caught.value.code == 0
    with pytest.raises(PeerError) as caught:
        link.peer.call("writerClosed", stream=handle)
    assert caught.value.code == 0
    link.assert_alive()


def test_streams_beyond_the_accept_queue_are_refused_and_the_others_served(
    connector: Connector,
) -> None:
    link = connector(config=wsmux.Config(max_unaccepted=5))
    handles = [link.peer.call("open")["handle"] for _ in range(8)]
    for handle in handles[5:]:
        with pytest.raises(PeerError) as caught:
            link.peer.call("readAll", stream=handle)
        assert caught.value.code == 0
    for handle in handles[:5]:
        stream = link.accept()
        stream.write(b"served")
        stream.close()
        assert link.peer.call("readAll", stream=handle)["sha256"] == sha256(b"served")
    link.assert_alive()


# Codes and the application's own errors


class NoSuchFile(Exception):
    """Stand for an application's error, number 404 on the wire."""


def code_to_reason(code: int) -> BaseException:
    """Know one code only."""
    return NoSuchFile() if code == 404 else LookupError(code)


def reason_to_code(reason: BaseException) -> int:
    """Know one error only."""
    return 404 if isinstance(reason, NoSuchFile) else 500


@by_either
def test_code_from_node_is_raised_as_the_reason_it_stands_for(
    connector: Connector, opener: str
) -> None:
    link = connector(code_to_reason=code_to_reason)
    stream, handle = link.pair(opener)
    link.peer.call("abort", stream=handle, code=404)
    with pytest.raises(NoSuchFile) as caught:
        stream.read()
    assert isinstance(caught.value.__cause__, wsmux.StreamReset)


@by_either
def test_reason_given_to_reset_reaches_node_as_its_code(connector: Connector, opener: str) -> None:
    link = connector(reason_to_code=reason_to_code)
    stream, handle = link.pair(opener)
    stream.reset(NoSuchFile())
    with pytest.raises(PeerError) as caught:
        link.peer.call("readAll", stream=handle)
    assert caught.value.code == 404


@by_either
def test_exception_in_a_with_block_reaches_node_as_its_code(
    connector: Connector, opener: str
) -> None:
    link = connector(reason_to_code=reason_to_code)
    stream, handle = link.pair(opener)
    stream.write(b"half a message")
    with pytest.raises(NoSuchFile), stream:
        raise NoSuchFile
    with pytest.raises(PeerError) as caught:
        link.peer.call("readAll", stream=handle)
    assert caught.value.code == 404


def test_largest_code_that_a_double_holds_survives_both_ways(link: Link) -> None:
    largest = 2**53 - 1
    stream, handle = link.open_pair()
    link.peer.call("abort", stream=handle, code=largest)
    with pytest.raises(wsmux.StreamReset) as there:
        stream.read()
    other, handle = link.open_pair()
    other.reset(largest)
    with pytest.raises(PeerError) as here:
        link.peer.call("readAll", stream=handle)
    assert (there.value.code, here.value.code) == (largest, largest)


# The end of the connection


@by_either
def test_stop_by_node_ends_everything_here_with_code_and_reason(link: Link, opener: str) -> None:
    stream, handle = link.pair(opener)
    writer, full = link.pair(opener)
    waiting = [
        spawn(stream.read),
        spawn(writer.write, generate("unwanted", LARGE)),
        spawn(link.connection.accept_stream),
    ]
    link.peer.call("waitQueued", stream=full, atLeast=MIB, timeout=WAIT)
    link.peer.call("stop", code=4321, reason="over and out")
    for future in waiting:
        with pytest.raises(wsmux.ConnectionClosedError) as caught:
            future.result(WAIT)
        assert (caught.value.code, caught.value.reason) == (4321, "over and out")


def test_our_close_ends_everything_in_node_with_code_and_reason(link: Link) -> None:
    stream, handle = link.open_pair()
    reading = link.peer.submit("readAll", stream=handle)
    link.connection.close(code=4322, reason="done here")
    closed = link.peer.call("waitClosed")
    assert (closed["by"], closed["code"], closed["reason"]) == ("peer", 4322, "done here")
    with pytest.raises(PeerError) as caught:
        link.peer.answer(reading)
    assert caught.value.close == (4322, "done here")


def test_normal_stop_by_node_ends_the_iteration(link: Link) -> None:
    iterating = spawn(list, link.connection)
    link.peer.call("stop", code=1000, reason="")
    assert iterating.result(WAIT) == []


def test_our_close_during_bulk_ends_both_sides(link: Link) -> None:
    stream, handle = link.open_pair()
    downward = spawn(write_in_chunks, stream, generate("down", 8 * MIB), MIB)
    args = {"seed": "up", "size": 8 * MIB, "chunk": 64 * KIB}
    upward = link.peer.submit("write", BULK_WAIT, stream=handle, **args)
    link.peer.call("waitQueued", stream=handle, atLeast=MIB, timeout=WAIT)
    link.connection.close(code=4323, reason="enough")
    assert link.peer.call("waitClosed")["code"] == 4323
    assert downward.exception(WAIT) is not None
    with pytest.raises(PeerError):
        link.peer.answer(upward, BULK_WAIT)


def test_death_of_node_ends_our_read_with_an_error(link: Link) -> None:
    stream, _ = link.open_pair()
    reading = spawn(stream.read)
    link.peer.kill()
    with pytest.raises(wsmux.ConnectionClosedError) as caught:
        reading.result(WAIT)
    assert caught.value.code == 1006


def test_compression_offered_by_node_is_not_taken(as_server: Connector) -> None:
    assert as_server().peer.call("report")["extensions"] == ""


def test_our_close_waits_for_the_last_acknowledgement_and_no_longer(link: Link) -> None:
    stream, handle = link.open_pair()
    write_in_chunks(stream, generate("last words", 100_000), MANY_CHUNK)
    begun = time.monotonic()
    closing = spawn(link.connection.close)
    reading = link.peer.submit("readAll", stream=handle)
    closing.result(WAIT)
    assert time.monotonic() - begun < CLOSE_DELAY
    assert link.peer.answer(reading)["length"] == 100_000


# Keepalive. These tests need real time: they prove that a limit passes without harm.


def test_our_answers_to_pings_keep_the_connection_of_node_alive(connector: Connector) -> None:
    link = connector(node_config={"keepAliveIntervalTime": 100, "keepAliveTimeoutTime": 1000})
    link.assert_alive()
    link.peer.call("waitPings", answered=15)
    link.assert_alive()


def test_our_pings_keep_the_connection_of_node_alive(connector: Connector) -> None:
    link = connector(
        node_config={"keepAliveTimeoutTime": 1000}, config=wsmux.Config(ping_interval=0.1)
    )
    link.assert_alive()
    link.peer.call("waitPings", received=15)
    link.assert_alive()


def test_ping_measures_the_way_to_node_and_back(link: Link) -> None:
    assert 0 < link.connection.ping(timeout=WAIT) < WAIT


def test_silent_node_is_noticed(connector: Connector) -> None:
    link = connector(config=wsmux.Config(ping_interval=0.2, ping_timeout=1.0))
    stream, _ = link.open_pair()
    link.peer.freeze()
    with pytest.raises(wsmux.ConnectionClosedError):
        stream.read()
