"""A durable stream goes on at what is committed, whichever side or connection ended before."""

from __future__ import annotations

import hashlib
import io
import shutil
import threading
from collections.abc import Callable
from contextlib import suppress

import pytest

import wsmux
from wsmux.durable import (
    DurableHandler,
    DurableInterrupted,
    DurableRefused,
    DurableStream,
    ReceivedStream,
    Refusal,
)

from ..helpers.connections import Spawn
from ..helpers.durable import EPOCH, HeldSink, MemoryOffsets, Sink, committing, pattern, receiving
from ..helpers.timeouts import WAIT
from ..helpers.waiting import wait_for, wait_for_reader, wait_for_writer

KIB = 1024
DATA = pattern(0, 3_000_000)  # more than some windows, and no multiple of anything


def test_a_stream_arrives_whole_and_is_committed(protocol: str) -> None:
    sink = Sink()
    with receiving(sink.handle, sink, protocol) as connect:
        connection = connect()
        with connection.open_stream(WAIT, durable="a", size=len(DATA)) as stream:
            stream.timeout = WAIT
            assert (stream.offset, stream.committed, stream.closed) == (0, 0, False)
            shutil.copyfileobj(io.BytesIO(DATA), stream)
            assert stream.wait_committed(WAIT) == stream.committed == len(DATA)
        assert stream.closed
        assert stream.committed == stream.offset == len(DATA)
    assert sink.data["a"] == DATA
    assert sink.kept["a"][1] == len(DATA)


@pytest.mark.parametrize("lost", ["suspend", "reset", "abort"])
def test_another_connection_goes_on_at_what_is_committed(protocol: str, lost: str) -> None:
    sink = Sink()
    with receiving(sink.handle, sink, protocol) as connect:
        for start in range(0, len(DATA), 1_000_000):
            connection = connect()
            stream = connection.open_stream(WAIT, durable="a", epoch=EPOCH)
            stream.timeout = WAIT
            assert stream.offset == start
            stream.write(DATA[start : start + 1_000_000])
            assert stream.wait_committed(WAIT) == start + 1_000_000
            if lost == "abort":
                connection.abort()
            stream.suspend()
        with connect().open_stream(WAIT, durable="a", epoch=EPOCH) as stream:
            assert stream.offset == len(DATA)
            stream.close(hashlib.sha256(DATA).digest())
    assert sink.data["a"] == DATA
    assert sink.calls == [0, 1_000_000, 2_000_000, 3_000_000]


def fail_within(stream: DurableStream) -> None:
    with stream:
        stream.write(b"half")
        stream.wait_committed(WAIT)
        raise ZeroDivisionError


def test_an_exception_in_the_block_leaves_the_name_open() -> None:
    sink = Sink()
    with receiving(sink.handle, sink) as connect:
        stream = connect().open_stream(WAIT, durable="a")
        with pytest.raises(ZeroDivisionError):
            fail_within(stream)
        assert stream.closed
        with connect().open_stream(WAIT, durable="a") as stream:
            assert stream.offset == 4
            stream.write(b" whole")
    assert sink.data["a"] == b"half whole"


def test_another_epoch_begins_at_0() -> None:
    sink = Sink()
    with receiving(sink.handle, sink) as connect:
        for number, epoch in enumerate((EPOCH, bytes(16), EPOCH)):
            with connect().open_stream(WAIT, durable="a", epoch=epoch) as stream:
                assert stream.offset == 0
                stream.write(b"content %d" % number)
    assert sink.data["a"] == b"content 2"
    assert sink.kept["a"] == (EPOCH, 9)


def test_an_empty_stream_is_complete(protocol: str) -> None:
    sink = Sink()
    with receiving(sink.handle, sink, protocol) as connect:
        connect().open_stream(WAIT, durable="nothing", size=0).close()
    assert sink.data["nothing"] == b""


def test_the_receiver_sees_what_the_sender_says() -> None:
    seen: list[object] = []

    def handle(stream: ReceivedStream) -> None:
        seen.extend([stream.name, stream.epoch, stream.size, stream.digest])
        assert stream.readable()
        seen.append(stream.read(0))
        seen.append(stream.read())
        seen.append(stream.digest)
        seen.append(repr(stream))

    digest = hashlib.sha256(b"data").digest()
    with receiving(handle, MemoryOffsets()) as connect:
        stream = connect().open_stream(WAIT, durable="Zähler", epoch=EPOCH, size=4)
        assert stream.writable()
        assert stream.write(bytearray(b"data")) == 4
        stream.flush()
        stream.close(digest)
        stream.close()
        assert repr(stream) == "<DurableStream 'Zähler' closed 4/4>"
    assert seen[:4] == ["Zähler", EPOCH, 4, None]
    assert seen[4:] == [b"", b"data", digest, "<ReceivedStream 'Zähler' 0/4>"]


# What the handler decides


def test_what_is_read_and_not_committed_comes_again() -> None:
    store, seen, read = MemoryOffsets(), list[bytes](), threading.Event()

    def handle(stream: ReceivedStream) -> None:
        first = stream.read(4)
        seen.append(first)
        stream.commit(stream.offset - 2)
        read.set()
        while stream.read(100):
            pass

    with receiving(handle, store) as connect:
        stream = connect().open_stream(WAIT, durable="a")
        stream.write(b"0123")
        assert read.wait(WAIT)
        stream.suspend()
        with connect().open_stream(WAIT, durable="a") as stream:
            assert stream.offset == 2
            stream.write(b"2345")
    assert seen == [b"0123", b"2345"]
    assert store.kept["a"][1] == 6


@pytest.mark.parametrize("offset", [-1, 1, 5])
def test_a_handler_commits_only_what_it_read_and_never_back(offset: int) -> None:
    failures: list[ValueError] = []

    def handle(stream: ReceivedStream) -> None:
        stream.read(2)
        stream.commit()
        stream.read(2)
        with pytest.raises(ValueError, match="2 is, and 4 was read") as raised:
            stream.commit(offset)
        failures.append(raised.value)

    with (
        receiving(handle, MemoryOffsets()) as connect,
        connect().open_stream(WAIT, durable="a") as stream,
    ):
        stream.write(b"0123")
    assert len(failures) == 1


def test_what_is_committed_is_told_before_more_is_waited_for(protocol: str) -> None:
    """Here of 150 bytes 100 are; the rest of the next record comes only after that."""

    def handle(stream: ReceivedStream) -> None:
        assert len(stream.read(100)) == 100
        stream.commit()
        while stream.read(9):
            pass

    with (
        receiving(handle, MemoryOffsets(), protocol) as connect,
        connect().open_stream(WAIT, durable="a") as stream,
    ):
        stream.timeout = WAIT
        stream.write(bytes(150))
        assert stream.wait_committed(WAIT, upto=100) == 100


def test_a_commit_of_another_thread_is_told_while_a_read_waits() -> None:
    handled: list[ReceivedStream] = []

    def handle(stream: ReceivedStream) -> None:
        assert len(stream.read(150)) == 150
        handled.append(stream)
        stream.read(9)

    with (
        receiving(handle, MemoryOffsets()) as connect,
        connect().open_stream(WAIT, durable="a") as stream,
    ):
        stream.timeout = WAIT
        stream.write(bytes(150))
        wait_for(lambda: handled)
        wait_for_reader(handled[0].connection)
        handled[0].commit(100)
        assert stream.wait_committed(WAIT, upto=100) == 100


def test_a_read_waits_for_a_commit_no_longer_than_it_may() -> None:
    go_on, timed_out, asked = threading.Event(), threading.Event(), threading.Event()

    class Slow(MemoryOffsets):
        def commit(self, name: str, epoch: bytes, offset: int) -> None:
            if offset == 150:
                asked.set()
                assert go_on.wait(WAIT)
            super().commit(name, epoch, offset)

    def handle(stream: ReceivedStream) -> None:
        assert len(stream.read(100)) == 100
        stream.commit()
        assert len(stream.read(50)) == 50
        committing = threading.Thread(target=stream.commit)
        committing.start()
        assert asked.wait(WAIT)
        stream.timeout = 0.01
        with pytest.raises(TimeoutError, match="was committing"):
            stream.read(1)
        timed_out.set()
        go_on.set()
        committing.join(WAIT)
        stream.timeout = WAIT
        assert not stream.read(1)

    with (
        receiving(handle, Slow()) as connect,
        connect().open_stream(WAIT, durable="a") as stream,
    ):
        stream.timeout = WAIT
        stream.write(bytes(150))
        assert timed_out.wait(WAIT)


def test_a_refusal_of_the_handler_reaches_the_sender(protocol: str) -> None:
    def handle(stream: ReceivedStream) -> None:
        stream.read(1)
        raise DurableRefused(Refusal.NO_SPACE, "the disk is full")

    with receiving(handle, MemoryOffsets(), protocol) as connect:
        stream = connect().open_stream(WAIT, durable="a")
        stream.timeout = WAIT
        with pytest.raises(DurableRefused, match=r"the receiver refuses .* disk is full") as raised:
            write_for_ever(stream)
        assert raised.value.kind is Refusal.NO_SPACE
        assert raised.value.temporary
        assert raised.value.side == "remote"
        for call in (stream.wait_committed, stream.close):
            with pytest.raises(DurableRefused):
                call()
        assert stream.closed


def write_for_ever(stream: DurableStream) -> None:
    while True:
        stream.write(bytes(64 * KIB))


def test_a_writer_that_waits_learns_of_a_refusal(spawn: Spawn) -> None:
    go_on = threading.Event()

    def handle(stream: ReceivedStream) -> None:
        assert go_on.wait(WAIT)
        raise DurableRefused(Refusal.TOO_LARGE, "enough")

    with receiving(handle, MemoryOffsets()) as connect:
        connection = connect()
        stream = connection.open_stream(WAIT, durable="a")
        writing = spawn(write_for_ever, stream)
        wait_for_writer(connection)
        go_on.set()
        with pytest.raises(DurableRefused, match="enough"):
            writing.result(WAIT)
        stream.suspend()


def test_a_failing_handler_tells_that_it_failed_and_the_log_why(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def handle(stream: ReceivedStream) -> None:
        raise ZeroDivisionError("secret of the server")

    with receiving(handle, MemoryOffsets()) as connect:
        stream = connect().open_stream(WAIT, durable="a")
        with pytest.raises(DurableRefused, match="ZeroDivisionError") as raised:
            stream.close()
    assert raised.value.kind is Refusal.FAILED
    assert "secret" not in str(raised.value)
    assert "secret of the server" in caplog.text


def test_a_handler_that_returns_early_has_not_completed_it() -> None:
    with receiving(lambda stream: stream.read(1), MemoryOffsets()) as connect:
        stream = connect().open_stream(WAIT, durable="a")
        stream.write(b"0123")
        with pytest.raises(DurableRefused, match="returned before the end"):
            stream.close()


def test_a_store_that_cannot_be_read_refuses_the_stream(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(MemoryOffsets):
        def committed(self, name: str, epoch: bytes) -> int:
            raise OSError("no such disk")

    with (
        receiving(Sink().handle, Broken()) as connect,
        pytest.raises(DurableRefused, match="OSError"),
    ):
        connect().open_stream(WAIT, durable="a")
    assert "no such disk" in caplog.text


def test_a_store_that_fails_to_commit_commits_nothing(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Sink):
        def commit(self, name: str, epoch: bytes, offset: int) -> None:
            raise OSError("disk on fire")

    store = Broken()
    with receiving(store.handle, store) as connect:
        stream = connect().open_stream(WAIT, durable="a")
        stream.write(b"data")
        with pytest.raises(DurableRefused, match="OSError"):
            stream.wait_committed(WAIT)
        assert stream.committed == 0
        stream.suspend()
    assert "disk on fire" in caplog.text


@pytest.mark.parametrize(
    ("committed", "kind"), [(-1, Refusal.FAILED), (5, Refusal.EXISTS)], ids=str
)
def test_a_store_that_has_what_cannot_be_refuses_the_stream(
    committed: int, kind: Refusal, caplog: pytest.LogCaptureFixture
) -> None:
    store = MemoryOffsets()
    store.kept["a"] = EPOCH, committed
    with receiving(Sink().handle, store) as connect, pytest.raises(DurableRefused) as raised:
        connect().open_stream(WAIT, durable="a", epoch=EPOCH, size=4)
    assert raised.value.kind is kind


# Two senders of one name


def test_the_newer_sender_of_an_epoch_wins(protocol: str) -> None:
    sink = Sink()
    with receiving(sink.handle, sink, protocol) as connect:
        older = connect().open_stream(WAIT, durable="a")
        older.timeout = WAIT
        older.write(b"older")
        older.wait_committed(WAIT)
        with connect().open_stream(WAIT, durable="a") as newer:
            assert newer.offset == 5
            with pytest.raises(DurableRefused, match="another sender") as raised:
                write_for_ever(older)
            assert raised.value.kind is Refusal.SUPERSEDED
            assert not raised.value.temporary
            older.suspend()
            newer.write(b" newer")
    assert sink.data["a"] == b"older newer"


def test_the_newer_one_is_answered_when_the_handler_of_the_older_has_returned() -> None:
    order: list[str] = []
    working = threading.Event()

    def handle(stream: ReceivedStream) -> None:
        if working.is_set():
            assert stream.read() == b"newer"
            return
        assert stream.read(5) == b"older"
        working.set()
        with pytest.raises(DurableRefused, match="another sender"):
            stream.read(1)
        order.append("effect")
        with pytest.raises(DurableRefused, match="another sender"):
            stream.commit()
        order.append("returned")

    class Noting(MemoryOffsets):
        def committed(self, name: str, epoch: bytes) -> int:
            order.append("asked")
            return super().committed(name, epoch)

    with receiving(handle, Noting()) as connect:
        older = connect().open_stream(WAIT, durable="a")
        older.write(b"older")
        assert working.wait(WAIT)
        with connect().open_stream(WAIT, durable="a") as newer:
            assert newer.offset == 0  # the commit of the older one came too late
            newer.write(b"newer")
        with pytest.raises(DurableRefused, match="another sender"):
            older.wait_committed(WAIT)
        older.suspend()
    assert order == ["asked", "effect", "returned", "asked"]


def test_a_sender_of_another_epoch_waits_for_the_older_one() -> None:
    sink = Sink()
    with receiving(sink.handle, sink) as connect:
        older = connect().open_stream(WAIT, durable="a", epoch=EPOCH)
        with pytest.raises(DurableRefused, match="another epoch") as raised:
            connect().open_stream(WAIT, durable="a", epoch=bytes(16))
        assert raised.value.kind is Refusal.BUSY
        assert raised.value.temporary
        older.close()
        wait_for(lambda: opens(connect, "a", bytes(16)))


def test_no_more_streams_than_allowed() -> None:
    sink = Sink()
    with receiving(sink.handle, sink, max_streams=1) as connect:
        first = connect().open_stream(WAIT, durable="a")
        with pytest.raises(DurableRefused, match="1 durable streams are open") as raised:
            connect().open_stream(WAIT, durable="b")
        assert raised.value.kind is Refusal.BUSY
        first.close()
        wait_for(lambda: opens(connect, "b", EPOCH))


def opens(connect: Callable[[], wsmux.Connection], name: str, epoch: bytes) -> bool:
    """Return whether a stream can be opened, as the receiver may still be leaving the last one."""
    try:
        connect().open_stream(WAIT, durable=name, epoch=epoch).close()
    except DurableRefused as error:
        if error.kind is not Refusal.BUSY:
            raise
        return False
    return True


# Peers that do not keep to it


def test_a_stream_that_is_no_durable_one_is_refused_as_malformed() -> None:
    sink = Sink()
    with receiving(sink.handle, sink) as connect, connect().open_stream(WAIT) as stream:
        stream.timeout = WAIT
        stream.write(b"GET / HTTP/1.1")
        answer = stream.readall()
        assert answer[:2] == bytes([19, Refusal.MALFORMED])
        assert b"durable=" in answer


def test_a_peer_that_serves_no_durable_streams_is_told_apart() -> None:
    client, server = wsmux.pair()

    def echo() -> None:
        for stream in server:
            with suppress(wsmux.ConnectionClosed), stream:  # the client closes once it has read
                stream.write(stream.read(100))

    thread = threading.Thread(target=echo)
    thread.start()
    with client, server:
        with pytest.raises(wsmux.FrameError, match="type 16 to 19, not 119"):
            client.open_stream(WAIT, durable="a")
        client.close()
        thread.join(WAIT)


def test_a_peer_that_ends_the_stream_at_once_is_told_apart() -> None:
    client, server = wsmux.pair()

    def end() -> None:
        for stream in server:
            stream.close_write()

    thread = threading.Thread(target=end)
    thread.start()
    with client, server:
        with pytest.raises(DurableInterrupted, match="whether durable streams are served"):
            client.open_stream(WAIT, durable="a")
        client.close()
        thread.join(WAIT)


def test_a_sender_that_leaves_interrupts_the_handler(protocol: str) -> None:
    ended: list[BaseException] = []

    def handle(stream: ReceivedStream) -> None:
        try:
            stream.read()
        except BaseException as error:
            ended.append(error)
            raise

    with receiving(handle, MemoryOffsets(), protocol) as connect:
        stream = connect().open_stream(WAIT, durable="a")
        stream.write(b"half")
        stream.suspend()
        wait_for(lambda: ended)
    assert isinstance(ended[0], DurableInterrupted)


# What is wrong on this side


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"durable": ""}, "from 1 to 255"),
        ({"durable": "a", "epoch": b"x"}, "an epoch has 16 bytes"),
        ({"durable": "a", "size": -1}, "a size is from 0"),
        ({"epoch": EPOCH}, "give durable=NAME"),
        ({"size": 3}, "give durable=NAME"),
    ],
)
def test_bad_arguments_open_nothing(options: dict[str, object], words: str) -> None:
    client, server = wsmux.pair()
    with client, server:
        with pytest.raises(ValueError, match=words):
            client.open_stream(**options)  # type: ignore[call-overload]
        assert client.stats().streams_opened == 0


def test_a_handler_is_a_function_and_its_bound_a_number() -> None:
    with pytest.raises(TypeError, match="not str"):
        DurableHandler("no", offsets=MemoryOffsets())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at least 1, not 0"):
        DurableHandler(print, offsets=MemoryOffsets(), max_streams=0)


def test_more_or_less_than_the_size_is_an_error() -> None:
    sink = Sink()
    with receiving(sink.handle, sink) as connect:
        stream = connect().open_stream(WAIT, durable="a", size=4)
        with pytest.raises(wsmux.LocalProtocolError, match="opened for 4"):
            stream.write(b"01234")
        stream.write(b"012")
        with pytest.raises(wsmux.LocalProtocolError, match="the end of 'a' at 3"):
            stream.close()
        assert stream.closed
        with connect().open_stream(WAIT, durable="a", size=4) as stream:
            stream.write(DATA[: 4 - stream.offset])


def test_a_closed_stream_takes_nothing() -> None:
    sink = Sink()
    with receiving(sink.handle, sink) as connect:
        stream = connect().open_stream(WAIT, durable="a")
        stream.suspend()
        for call in (lambda: stream.write(b"x"), stream.wait_committed):
            with pytest.raises(ValueError, match="'a' is closed"):
                call()
        stream.close()


# Time


def test_a_write_that_times_out_goes_on_where_it_stopped(protocol: str) -> None:
    sink = HeldSink()
    with receiving(sink.handle, sink, protocol) as connect:
        stream = connect().open_stream(WAIT, durable="a", size=len(DATA))
        stream.timeout = 0.05
        with pytest.raises(wsmux.WriteTimeout) as raised:
            stream.write(DATA)
        taken = raised.value.bytes_written
        assert 0 < taken < len(DATA)
        assert stream.offset == taken
        sink.go_on.set()
        stream.timeout = WAIT
        stream.write(DATA[taken:])
        stream.close()
    assert sink.data["a"] == DATA


def test_waiting_for_commits_times_out_and_can_go_on() -> None:
    go_on = threading.Event()
    with receiving(committing(4, go_on), MemoryOffsets()) as connect:
        stream = connect().open_stream(WAIT, durable="a")
        stream.write(b"data")
        with pytest.raises(TimeoutError, match="committed 0 of 4"):
            stream.wait_committed(0.01)
        go_on.set()
        assert stream.wait_committed(WAIT) == 4
        stream.close()


def test_a_read_of_the_handler_times_out() -> None:
    timed_out = threading.Event()

    def handle(stream: ReceivedStream) -> None:
        stream.timeout = 0.01
        with pytest.raises(TimeoutError):
            stream.read(1)
        timed_out.set()
        stream.timeout = WAIT
        assert stream.read(4) == b"data"

    with (
        receiving(handle, MemoryOffsets()) as connect,
        connect().open_stream(WAIT, durable="a") as stream,
    ):
        assert timed_out.wait(WAIT)
        stream.write(b"data")


# Threads


def test_one_thread_writes_while_another_waits_for_commits(protocol: str, spawn: Spawn) -> None:
    sink = Sink()
    with receiving(sink.handle, sink, protocol) as connect:
        stream = connect().open_stream(WAIT, durable="a")
        stream.timeout = WAIT
        stream.write(DATA[:8])
        waits = [spawn(stream.wait_committed, WAIT) for _ in range(3)]
        for start in range(8, len(DATA), 10_000):
            stream.write(DATA[start : start + 10_000])
        assert all(wait.result(WAIT) >= 8 for wait in waits)
        stream.close()
    assert sink.data["a"] == DATA


def test_a_second_writer_is_told_so(spawn: Spawn) -> None:
    go_on = threading.Event()

    def handle(stream: ReceivedStream) -> None:
        assert go_on.wait(WAIT)
        while stream.read(64 * KIB):
            pass

    with receiving(handle, MemoryOffsets()) as connect:
        connection = connect()
        stream = connection.open_stream(WAIT, durable="a")
        writing = spawn(stream.write, DATA)
        wait_for_writer(connection)
        for call in (lambda: stream.write(b"x"), stream.close):
            with pytest.raises(wsmux.ConcurrencyError, match="another thread is writing"):
                call()
        go_on.set()
        assert writing.result(WAIT) == len(DATA)
        stream.close()


def test_a_commit_for_each_byte_holds_up_nobody() -> None:
    """The sender reads what it is told only when it writes, so it must not be told of each."""
    store = MemoryOffsets()

    def handle(stream: ReceivedStream) -> None:
        while stream.read(1):
            stream.commit()

    with (
        receiving(handle, store) as connect,
        connect().open_stream(WAIT, durable="a") as stream,
    ):
        stream.timeout = WAIT
        stream.write(bytes(200_000))
    assert store.kept["a"][1] == 200_000


def test_a_writer_lets_a_thread_that_waits_send_what_was_left(spawn: Spawn) -> None:
    sink = HeldSink()
    with receiving(sink.handle, sink) as connect:
        connection = connect()
        stream = connection.open_stream(WAIT, durable="a")
        stream.timeout = 0.01
        with pytest.raises(wsmux.WriteTimeout) as raised:
            stream.write(DATA)
        taken = raised.value.bytes_written
        waiting = spawn(stream.wait_committed, WAIT)
        wait_for_writer(connection)  # it sends the rest of the frame
        with pytest.raises(TimeoutError, match="did not answer in time"):
            stream.write(DATA[taken:])
        assert stream.offset == taken
        sink.go_on.set()
        assert waiting.result(WAIT) >= taken
        stream.timeout = WAIT
        stream.write(DATA[taken:])
        stream.close()
    assert sink.data["a"] == DATA


@pytest.mark.parametrize("waiting", [1, 3])
def test_what_a_writer_leaves_is_sent_by_a_thread_that_waits_already(
    protocol: str, spawn: Spawn, waiting: int
) -> None:
    sink = HeldSink()
    with receiving(sink.handle, sink, protocol) as connect:
        connection = connect()
        stream = connection.open_stream(WAIT, durable="a")
        stream.timeout = 0.2
        data = DATA[: 256 * KIB]  # one frame, which with its head is more than a window
        writing = spawn(stream.write, data)
        wait_for(lambda: connection.stats().waiting_writers or writing.done())
        waits = [spawn(stream.wait_committed, WAIT) for _ in range(waiting)]
        wait_for(lambda: connection.stats().waiting_readers or writing.done())
        assert writing.result(WAIT) == len(data)
        wait_for_writer(connection)  # one of those who wait sends the rest
        sink.go_on.set()
        assert [each.result(WAIT) for each in waits] == [len(data)] * waiting
        stream.timeout = WAIT
        stream.close()
    assert sink.data["a"] == data


def test_what_a_thread_that_waits_leaves_is_sent_by_another_one(spawn: Spawn) -> None:
    sink = HeldSink()
    with receiving(sink.handle, sink) as connect:
        connection = connect()
        stream = connection.open_stream(WAIT, durable="a")
        stream.timeout = 0.01
        assert stream.write(DATA[: 256 * KIB]) == 256 * KIB
        first = spawn(stream.wait_committed, 0.2)
        wait_for(lambda: connection.stats().waiting_writers or first.done())
        second = spawn(stream.wait_committed, WAIT)
        wait_for(lambda: connection.stats().waiting_readers or first.done())
        with pytest.raises(TimeoutError):
            first.result(WAIT)
        wait_for_writer(connection)
        sink.go_on.set()
        assert second.result(WAIT) == 256 * KIB
        stream.timeout = WAIT
        stream.close()
    assert sink.data["a"] == DATA[: 256 * KIB]


def test_leaving_wakes_a_thread_that_waits_for_commits(spawn: Spawn) -> None:
    go_on = threading.Event()

    def handle(stream: ReceivedStream) -> None:
        assert go_on.wait(WAIT)
        stream.read()

    with receiving(handle, MemoryOffsets()) as connect:
        connection = connect()
        stream = connection.open_stream(WAIT, durable="a")
        stream.write(b"data")
        waits = [spawn(stream.wait_committed) for _ in range(2)]
        wait_for_reader(connection)
        stream.suspend()
        for waiting in waits:
            with pytest.raises(ValueError, match="closed"):
                waiting.result(WAIT)
        go_on.set()


def test_a_newer_sender_waits_for_the_handler_of_a_lost_connection() -> None:
    working, order = threading.Event(), list[str]()

    def handle(stream: ReceivedStream) -> None:
        if not working.is_set():
            stream.read(4)
            working.set()
            wait_for(lambda: superseded(stream))
            order.append("returned")
            stream.commit()
        order.append("called")
        stream.read()

    with receiving(handle, MemoryOffsets()) as connect:
        connection = connect()
        older = connection.open_stream(WAIT, durable="a")
        older.write(b"data")
        assert working.wait(WAIT)
        connection.abort()
        newer = connect().open_stream(WAIT, durable="a")
        assert newer.offset == 0
        newer.close()
    assert order == ["returned", "called"]


def test_a_receiver_that_always_says_something_holds_up_no_time_limit() -> None:
    client, server = wsmux.pair()
    ended = threading.Event()

    def flood() -> None:
        stream = server.accept_stream(WAIT)
        stream.fill(bytearray(35))  # OPEN
        stream.write(b"\x10" + bytes(16) + bytes(8))
        try:
            while not ended.is_set():
                stream.write((b"\x11" + bytes(8)) * 1000)
        except wsmux.StreamError:
            return

    thread = threading.Thread(target=flood)
    thread.start()
    with client, server:
        stream = client.open_stream(WAIT, durable="a")
        assert stream.write(b"data") == 4
        with pytest.raises(TimeoutError, match="committed 0 of 4"):
            stream.wait_committed(0.05)
        ended.set()
        stream.suspend()
        thread.join(WAIT)


def test_a_handler_that_works_for_long_can_ask_whether_it_is_still_wanted() -> None:
    working, wanted = threading.Event(), threading.Event()

    def handle(stream: ReceivedStream) -> None:
        if not working.is_set():
            stream.check()
            working.set()
            wait_for(lambda: superseded(stream))
            stream.check()
            wanted.set()
        stream.read()

    with receiving(handle, MemoryOffsets()) as connect:
        older = connect().open_stream(WAIT, durable="a")
        assert working.wait(WAIT)
        connect().open_stream(WAIT, durable="a").close()
        older.suspend()
    assert not wanted.is_set()


def superseded(stream: ReceivedStream) -> bool:
    try:
        stream.check()
    except DurableRefused:
        return True
    return False


def test_each_thread_that_waits_for_commits_has_its_own_limit(spawn: Spawn) -> None:
    go_on = threading.Event()
    with receiving(committing(4, go_on), MemoryOffsets()) as connect:
        connection = connect()
        stream = connection.open_stream(WAIT, durable="a")
        stream.write(b"data")
        waiting = spawn(stream.wait_committed, WAIT)
        wait_for_reader(connection)
        with pytest.raises(TimeoutError, match="committed 0 of 4"):
            stream.wait_committed(0.01)
        go_on.set()
        assert waiting.result(WAIT) == 4
        stream.close()


def test_waiting_for_commits_beside_a_writer_that_waits_has_a_limit(spawn: Spawn) -> None:
    sink = HeldSink()
    with receiving(sink.handle, sink) as connect:
        connection = connect()
        stream = connection.open_stream(WAIT, durable="a")
        writing = spawn(stream.write, DATA)
        wait_for_writer(connection)
        with pytest.raises(TimeoutError, match="committed 0 of"):
            stream.wait_committed(0.01)
        sink.go_on.set()
        writing.result(WAIT)
        stream.close()
    assert sink.data["a"] == DATA


def test_the_end_of_what_a_write_took_may_be_sent_by_the_next_call() -> None:
    sink = HeldSink()
    with receiving(sink.handle, sink) as connect:
        stream = connect().open_stream(WAIT, durable="a")
        stream.timeout = 0.01
        # One frame, which with its head and OPEN is more than a window.
        assert stream.write(DATA[: 256 * KIB]) == stream.offset == 256 * KIB
        sink.go_on.set()
        assert stream.wait_committed(WAIT) == 256 * KIB
        stream.timeout = WAIT
        stream.close()
    assert sink.data["a"] == DATA[: 256 * KIB]
