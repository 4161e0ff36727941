"""What a sender wrote and nobody has committed is in its journal, and is sent again."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import wsmux
from wsmux.durable import DurableLost, ReceivedStream

from ..helpers.durable import (
    EPOCH,
    MemoryJournal,
    MemoryOffsets,
    Sink,
    committing,
    pattern,
    receiving,
)
from ..helpers.timeouts import WAIT

DATA = pattern(0, 1_000_000)


def test_a_journal_is_trimmed_as_the_receiver_commits(protocol: str) -> None:
    sink, journal = Sink(), MemoryJournal(limit=300_000)
    with (
        receiving(sink.handle, sink, protocol) as connect,
        connect().open_stream(WAIT, durable="a", journal=journal) as stream,
    ):
        stream.timeout = WAIT
        for start in range(0, len(DATA), 100_000):  # more than three times what fits
            stream.write(DATA[start : start + 100_000])
        assert stream.offset == journal.end == len(DATA)
        stream.wait_committed(WAIT)
        assert journal.start == len(DATA)
    assert sink.data["a"] == DATA
    assert journal.trimmed == sorted(journal.trimmed)
    assert sink.kept["a"] == (journal.epoch, len(DATA))


@pytest.mark.parametrize("committed", [0, 4, 8])
def test_what_was_not_committed_is_sent_again_before_anything_new(committed: int) -> None:
    sink, journal = Sink(), MemoryJournal()
    journal.append(b"old data", 0)  # by a process that was killed
    sink.commit("a", EPOCH, committed)
    sink.data["a"] = bytearray(b"old data"[:committed])
    with (
        receiving(sink.handle, sink) as connect,
        connect().open_stream(WAIT, durable="a", journal=journal) as stream,
    ):
        assert (stream.offset, stream.committed) == (8, committed)
        assert journal.start == committed
        stream.write(b", new data")
    assert sink.data["a"] == b"old data, new data"


def test_what_is_kept_is_sent_without_a_further_write() -> None:
    sink, journal = Sink(), MemoryJournal()
    journal.append(DATA, 0)
    with receiving(sink.handle, sink) as connect:
        stream = connect().open_stream(WAIT, durable="a", journal=journal)
        assert stream.wait_committed(WAIT) == len(DATA)
        stream.suspend()
    assert sink.data["a"] == DATA


@pytest.mark.parametrize(("committed", "words"), [(4, "lost what"), (20, "was never sent")])
def test_a_receiver_that_needs_what_is_gone_is_an_error(committed: int, words: str) -> None:
    sink, journal = Sink(), MemoryJournal(start=8)
    journal.append(b"12345678", 0)
    sink.commit("a", EPOCH, committed)
    with (
        receiving(sink.handle, sink) as connect,
        pytest.raises(DurableLost, match=words) as raised,
    ):
        connect().open_stream(WAIT, durable="a", journal=journal)
    assert (raised.value.committed, raised.value.oldest, raised.value.newest) == (committed, 8, 16)
    assert not journal.trimmed


def test_a_write_to_a_full_journal_waits_and_times_out() -> None:
    journal, go_on = MemoryJournal(limit=10), threading.Event()
    with receiving(committing(8, go_on), MemoryOffsets()) as connect:
        stream = connect().open_stream(WAIT, durable="a", journal=journal)
        stream.write(b"1234567890")
        stream.timeout = 0.01
        with pytest.raises(wsmux.WriteTimeout, match="0 of 4") as raised:
            stream.write(b"abcd")
        assert raised.value.bytes_written == 0
        go_on.set()
        stream.timeout = WAIT
        assert stream.write(b"abcd") == 4
        stream.close()
    assert (journal.start, journal.end) == (14, 14)


@pytest.mark.parametrize("limit", [1, 10, 99_999])
def test_a_journal_may_be_smaller_than_what_is_written(limit: int) -> None:
    data = DATA[: 20 * limit + 1]
    sink, journal = Sink(), MemoryJournal(limit)
    with (
        receiving(sink.handle, sink) as connect,
        connect().open_stream(WAIT, durable="a", journal=journal) as stream,
    ):
        stream.timeout = WAIT
        assert stream.write(data) == len(data)
        assert stream.wait_committed(WAIT) == len(data)
    assert sink.data["a"] == data


@pytest.mark.parametrize(
    ("limit", "record", "piece", "count"),
    [(10, 7, 70, 1), (80, 79, 9, 79)],
    ids=["in one piece", "nearly as large as the journal"],
)
def test_a_receiver_that_commits_whole_records_needs_no_larger_journal(
    limit: int, record: int, piece: int, count: int
) -> None:
    journal, store = MemoryJournal(limit), MemoryOffsets()

    def handle(stream: ReceivedStream) -> None:
        held = b""
        while data := stream.read(100):
            held += data
            whole = len(held) - len(held) % record
            stream.commit(stream.offset - len(held) + whole)
            held = held[whole:]

    with (
        receiving(handle, store) as connect,
        connect().open_stream(WAIT, durable="a", journal=journal) as stream,
    ):
        stream.timeout = WAIT
        for _ in range(count):
            assert stream.write(bytes(piece)) == piece
    assert store.kept["a"][1] == count * piece


def test_a_small_journal_of_files_takes_a_large_write(tmp_path: Path) -> None:
    sink = Sink()
    with (
        receiving(sink.handle, sink) as connect,
        wsmux.Journal(tmp_path, max_bytes=100_000, sync_every=None) as journal,
        connect().open_stream(WAIT, durable="a", journal=journal) as stream,
    ):
        stream.timeout = WAIT
        stream.write(DATA)
        assert journal.end == len(DATA)
    assert sink.data["a"] == DATA


def test_a_journal_that_another_has_filled_is_not_waited_for() -> None:
    sink, journal = Sink(), MemoryJournal(limit=10)
    with receiving(sink.handle, sink) as connect:
        stream = connect().open_stream(WAIT, durable="a", journal=journal)
        journal.max_bytes = 0  # what is there is committed, and yet nothing fits
        with pytest.raises(wsmux.WriteTimeout):
            stream.write(b"x")
        stream.close()


def test_a_journal_has_its_own_epoch() -> None:
    client, server = wsmux.pair()
    with client, server, pytest.raises(ValueError, match="leave out epoch="):
        client.open_stream(durable="a", epoch=EPOCH, journal=MemoryJournal())
