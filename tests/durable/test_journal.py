"""A journal keeps what was written, whatever ends between any two steps."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

import wsmux
from wsmux.durable import DurableHandler, Journal, JournalDamaged, JournalError, JournalFull
from wsmux.durable import journal as journal_module
from wsmux.exceptions import ForkedError

from ..helpers.checkout import ROOT
from ..helpers.durable import Sink, pattern, receiving
from ..helpers.examples import examples
from ..helpers.timeouts import WAIT

# Bytes of a record before its data.
HEAD = 27


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "journal"


def segments(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.name.isdigit())


def everything(journal: Journal) -> bytes:
    return journal.read(journal.start, journal.end - journal.start)


def test_what_is_written_is_read_and_dropped(folder: Path) -> None:
    with Journal(folder) as journal:
        assert (journal.start, journal.end, len(journal.epoch)) == (0, 0, 16)
        assert journal.read(0, 10) == b""
        assert journal.append(b"hello ") == 6
        assert journal.append(b"world") == 11
        assert journal.read(3, 5) == b"lo wo"
        assert journal.read(3, 100) == b"lo world"
        journal.trim(4)
        journal.trim(2)  # what is dropped is not kept again
        assert (journal.start, journal.end) == (4, 11)
        for offset in (3, 12):
            with pytest.raises(ValueError, match=f"keeps 4 to 11, not {offset}"):
                journal.read(offset, 1)
        with pytest.raises(ValueError, match="ends at 11, before 12"):
            journal.trim(12)
    for call in (lambda: journal.append(b"x"), lambda: journal.read(4, 1), journal.sync):
        with pytest.raises(ValueError, match="is closed"):
            call()
    journal.close()


@pytest.mark.parametrize("segment_bytes", [1, 100, 10_000_000])
def test_it_is_the_same_when_it_is_opened_again(folder: Path, segment_bytes: int) -> None:
    data = pattern(0, 3_000_000)
    with Journal(folder, segment_bytes=segment_bytes) as journal:
        epoch, at = journal.epoch, 0
        for size in (1, 7, 100_000, 2_500_000, 399_992):
            journal.append(data[at : at + size])
            at += size
        journal.trim(50_003)
    with Journal(folder, segment_bytes=segment_bytes) as journal:
        assert journal.epoch == epoch
        assert (journal.start, journal.end) == (50_003, 3_000_000)
        assert everything(journal) == data[50_003:]
        for offset, size in ((50_003, 1), (100_000, 20), (2_999_999, 5), (1_048_575, 2_000_000)):
            assert journal.read(offset, size) == data[offset : offset + size]
        journal.trim(journal.end)
        assert len(segments(folder)) == 1
        journal.append(b"more")
    with Journal(folder, segment_bytes=segment_bytes) as journal:
        assert (journal.start, everything(journal)) == (3_000_000, b"more")


def test_files_of_which_nothing_is_kept_are_removed(folder: Path) -> None:
    with Journal(folder, segment_bytes=10) as journal:
        for _ in range(10):
            journal.append(bytes(10))
        assert len(segments(folder)) == 10
        journal.trim(35)
        assert [int(path.name) for path in segments(folder)] == list(range(30, 100, 10))


def test_a_full_journal_waits_for_room(folder: Path) -> None:
    with Journal(folder, max_bytes=10) as journal:
        journal.append(bytes(8))
        with pytest.raises(TimeoutError, match="keeps 8 bytes that are not committed"):
            journal.append(bytes(3), timeout=0)
        with pytest.raises(ValueError, match="11 bytes are more than a journal of 10"):
            journal.append(bytes(11))
        found: list[int] = []
        writing = threading.Thread(target=lambda: found.append(journal.append(bytes(3), WAIT)))
        writing.start()
        journal.trim(1)
        writing.join(WAIT)
        assert found == [11]


def test_closing_ends_a_waiting_writer(folder: Path) -> None:
    journal = Journal(folder, max_bytes=1)
    journal.append(b"x")
    raised: list[BaseException] = []

    def write() -> None:
        try:
            journal.append(b"y", WAIT)
        except ValueError as error:
            raised.append(error)

    writing = threading.Thread(target=write)
    writing.start()
    journal.close()
    writing.join(WAIT)
    assert "is closed" in str(raised[0])


@pytest.mark.parametrize(
    "options", [{"max_bytes": 0}, {"segment_bytes": 0}, {"sync_every": -1}, {"max_bytes": -5}]
)
def test_bounds_are_positive(folder: Path, options: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="must be at least"):
        Journal(folder, **options)


# Kills and power cuts


def test_a_last_record_that_is_cut_at_any_byte_is_left_out(folder: Path, tmp_path: Path) -> None:
    with Journal(folder) as journal:
        journal.append(b"the first")
        (path,) = segments(folder)
        whole = path.stat().st_size
        journal.append(b"the second")
    size = path.stat().st_size
    for cut in range(whole, size):
        copy = shutil.copytree(folder, tmp_path / str(cut))
        os.truncate(copy / path.name, cut)
        for _ in range(2):
            with Journal(copy) as journal:
                assert everything(journal) == b"the first"
        with Journal(copy) as journal:
            journal.append(b", and more")
            assert everything(journal) == b"the first, and more"
        shutil.rmtree(copy)


def test_a_last_record_with_any_wrong_byte_is_left_out(folder: Path, tmp_path: Path) -> None:
    with Journal(folder) as journal:
        journal.append(b"the first")
        (path,) = segments(folder)
        whole = path.stat().st_size
        journal.append(b"the second")
    data = path.read_bytes()
    for place in range(whole, len(data)):
        copy = shutil.copytree(folder, tmp_path / str(place))
        changed = bytearray(data)
        changed[place] ^= 0x41
        (copy / path.name).write_bytes(changed)
        with Journal(copy) as journal:
            assert everything(journal) == b"the first"
        shutil.rmtree(copy)


def test_a_hole_in_what_was_not_synced_is_cut_off(folder: Path) -> None:
    with Journal(folder, sync_every=None) as journal:
        journal.append(b"one")
        journal.sync()
        journal.append(b"two")
        journal.append(b"three")
        (path,) = segments(folder)
        data = path.read_bytes()
    for place, left in ((data.index(b"two"), b"one"), (data.index(b"three"), b"onetwo")):
        path.write_bytes(data[:place] + b"\0" + data[place + 1 :])
        with Journal(folder) as journal:
            assert everything(journal) == left
    path.write_bytes(data.replace(b"one", b"0ne"))
    with pytest.raises(JournalDamaged, match="a record is damaged"):
        Journal(folder)


def test_any_wrong_byte_with_whole_records_behind_is_damage(folder: Path, tmp_path: Path) -> None:
    with Journal(folder) as journal:
        for part in (b"one", b"two", b"three"):
            journal.append(part)
    (path,) = segments(folder)
    data = path.read_bytes()
    last = data.index(b"three") - HEAD
    for place in range(last):  # the last record says that those before it were synced
        copy = shutil.copytree(folder, tmp_path / str(place))
        changed = bytearray(data)
        changed[place] ^= 0x41
        (copy / path.name).write_bytes(changed)
        with pytest.raises(JournalDamaged, match="Restore it from a copy") as caught:
            Journal(copy)
        assert caught.value.path == str(copy / path.name)
        assert caught.value.position <= place
        shutil.rmtree(copy)


def test_damage_of_a_file_before_the_last_is_never_cut_off(folder: Path) -> None:
    with Journal(folder, segment_bytes=1) as journal:
        journal.append(b"one")
        journal.append(b"two")
    first, second = segments(folder)
    os.truncate(first, first.stat().st_size - 1)
    with pytest.raises(JournalDamaged, match="a record is damaged"):
        Journal(folder)
    first.write_bytes(b"")
    with pytest.raises(JournalDamaged, match="begins with offset 3, and the one before ends at 0"):
        Journal(folder)
    first.unlink()
    with Journal(folder) as journal:  # as if it had been dropped
        assert (journal.start, journal.end) == (3, 6)
    second.unlink()
    (folder / "epoch").write_bytes(b"short")
    with pytest.raises(JournalDamaged, match="it has 5 bytes, not 32"):
        Journal(folder)


def test_data_without_an_epoch_are_damage(folder: Path) -> None:
    with Journal(folder) as journal:
        journal.append(b"one")
    (folder / "epoch").unlink()
    with pytest.raises(JournalDamaged, match="missing, though there are data"):
        Journal(folder)


def test_data_that_look_like_records_are_none(folder: Path, tmp_path: Path) -> None:
    with Journal(tmp_path / "other") as other:
        other.append(bytes(100))
        other.append(b"of another journal")
    (path,) = segments(tmp_path / "other")
    forged = path.read_bytes()
    with Journal(folder) as journal:
        journal.append(b"whole")
        (own,) = segments(folder)
        journal.append(forged)
    os.truncate(own, own.stat().st_size - 1)
    with Journal(folder) as journal:
        assert everything(journal) == b"whole"


def test_what_changes_under_an_open_journal_is_told(folder: Path) -> None:
    with Journal(folder) as journal:
        journal.append(b"hello")
        (path,) = segments(folder)
        data = path.read_bytes()
        path.write_bytes(data[:-1] + b"0")
        with pytest.raises(JournalDamaged, match="a record has changed"):
            journal.read(0, 5)
        path.write_bytes(data)


def test_a_killed_writer_loses_nothing_that_it_was_told(tmp_path: Path) -> None:
    program = (
        "import sys; from wsmux.durable import Journal\n"
        "journal = Journal(sys.argv[1], segment_bytes=5000, sync_every=None)\n"
        "number = journal.end // 8\n"
        "while True:\n"
        "    end = journal.append((number * 8).to_bytes(8, 'big')); number += 1\n"
        "    if number % 50 == 0: print(end, flush=True)\n"
    )
    told = 0
    for _ in range(3):
        process = subprocess.Popen(
            [sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        for _ in range(20):
            told = int(process.stdout.readline())
        process.kill()
        process.communicate()
        with Journal(tmp_path) as journal:
            assert journal.end >= told
            assert everything(journal) == pattern(0, journal.end)


# Faults


def full(*_: Any) -> int:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def broken(*_: Any) -> int:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def test_a_full_disk_keeps_what_is_there(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Journal(folder) as journal:
        journal.append(b"one")
        with monkeypatch.context() as patch:
            patch.setattr(journal_module.os, "pwrite", full)
            with pytest.raises(JournalFull, match="nothing was added"):
                journal.append(b"two")
            journal.trim(1)  # which must not need room
        assert (journal.start, everything(journal)) == (1, b"ne")
        journal.append(b"three")
        assert everything(journal) == b"nethree"
    with Journal(folder) as journal:
        assert everything(journal) == b"onethree"


_pwrite = os.pwrite


def in_part(file: int, data: bytes, place: int) -> int:
    return _pwrite(file, data[:4], place) if len(data) > 25 else full()


def test_a_write_in_part_is_written_over(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Journal(folder) as journal:
        journal.append(b"one")
        with monkeypatch.context() as patch:
            patch.setattr(journal_module.os, "pwrite", in_part)
            with pytest.raises(JournalFull):
                journal.append(b"two")
        journal.append(b"x")
    with Journal(folder) as journal:
        assert everything(journal) == b"onex"


def test_a_trim_written_in_part_leaves_the_data_whole(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Journal(folder, segment_bytes=1) as journal:
        journal.append(b"one")
        with monkeypatch.context() as patch:
            patch.setattr(journal_module.os, "pwrite", in_part)
            patch.setattr(journal_module.os, "ftruncate", broken)  # as if it were killed here
            with pytest.raises(JournalError):
                journal.trim(1)
    with Journal(folder, segment_bytes=1) as journal:
        with monkeypatch.context() as patch:
            patch.setattr(journal_module.os, "pwrite", in_part)
            journal.trim(1)
        journal.append(b"two")
    with Journal(folder, segment_bytes=1) as journal:
        assert everything(journal).endswith(b"netwo")


@pytest.mark.parametrize("left", [b"wJ\2\0", bytes(29), b"wJ" + bytes(100)])
def test_what_is_no_record_at_the_end_of_a_file_is_no_damage(folder: Path, left: bytes) -> None:
    with Journal(folder, segment_bytes=1) as journal:
        journal.append(b"one")
        journal.append(b"two")
    first = segments(folder)[0]
    whole = first.read_bytes()
    first.write_bytes(whole + left)
    with Journal(folder) as journal:
        assert everything(journal) == b"onetwo"
    first.write_bytes(left + whole)
    with pytest.raises(JournalDamaged, match="a record is damaged") as caught:
        Journal(folder)
    assert (caught.value.path, caught.value.position) == (str(first), 0)


def test_nothing_of_what_found_no_room_is_found_later(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def first_record(file: int, data: bytes, place: int) -> int:
        return _pwrite(file, data[:-100], place) if len(data) > 1000 else full()

    with Journal(folder) as journal:
        journal.append(b"one")
        with monkeypatch.context() as patch:
            patch.setattr(journal_module, "MAX_RECORD", 1000)
            patch.setattr(journal_module.os, "pwrite", first_record)
            with pytest.raises(JournalFull, match="nothing was added"):
                journal.append(bytes(2000))
        copy = shutil.copytree(folder, tmp_path / "killed")
    with Journal(copy) as journal:
        assert everything(journal) == b"one"


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_a_new_file_whose_name_cannot_be_synced_ends_it_until_it_is_opened_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def fail(path: Path) -> None:
        raise OSError(number, os.strerror(number))

    with Journal(folder, segment_bytes=1) as journal:
        journal.append(b"one")
        with monkeypatch.context() as patch:
            patch.setattr(journal_module, "sync_path", fail)
            with pytest.raises(JournalError, match="could not be synced"):
                journal.append(b"two")
        with pytest.raises(JournalError, match="open it again to see"):
            journal.append(b"two")
        assert journal.read(0, 9) == b"one"
    with Journal(folder) as journal:
        journal.append(b"two")
        assert everything(journal) == b"onetwo"


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENOSPC])
def test_a_new_file_that_cannot_be_made_is_tried_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    real = os.open

    def fail(path: Any, flags: int, *mode: int) -> int:
        if flags & os.O_TRUNC:
            raise OSError(number, os.strerror(number))
        return real(path, flags, *mode)

    with Journal(folder, segment_bytes=1) as journal:
        journal.append(b"one")
        with monkeypatch.context() as patch:
            patch.setattr(journal_module.os, "open", fail)
            with pytest.raises(JournalFull, match="nothing was added"):
                journal.append(b"two")
        journal.append(b"two")
        assert everything(journal) == b"onetwo"


def test_a_folder_that_cannot_be_opened_to_sync_it_is_tried_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: Path) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with Journal(folder, segment_bytes=1) as journal:
        journal.append(b"one")
        with monkeypatch.context() as patch:
            patch.setattr(journal_module, "sync_path", fail)
            with pytest.raises(JournalFull, match="nothing was added"):
                journal.append(b"two")
        journal.append(b"two")
        assert everything(journal) == b"onetwo"


def once(error: BaseException, real: Any) -> Any:
    """Return a call that does what it does, and is then interrupted the first time."""
    left = [error]

    def call(*arguments: Any) -> Any:
        result = real(*arguments)
        if left:
            raise left.pop()
        return result

    return call


@pytest.mark.parametrize("step", ["sync_path", "close"])
def test_an_interrupt_while_a_file_is_begun_leaves_it_usable(
    folder: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    with Journal(folder, segment_bytes=1) as journal:
        journal.append(b"one")
        target = journal_module if step == "sync_path" else journal_module.os
        with monkeypatch.context() as patch:
            patch.setattr(target, step, once(KeyboardInterrupt(), getattr(target, step)))
            with pytest.raises(KeyboardInterrupt):
                journal.append(b"two")
        assert everything(journal) == b"one"
        journal.trim(1)
        journal.append(b"two")
        assert everything(journal) == b"netwo"
    with Journal(folder) as journal:
        assert everything(journal) == b"netwo"


def test_what_an_interrupted_append_has_left_is_neither_read_nor_sent(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = Sink()
    with Journal(folder) as journal, receiving(sink.handle, sink) as connect:
        journal.append(b"one")
        with monkeypatch.context() as patch:
            patch.setattr(journal_module.os, "fsync", once(KeyboardInterrupt(), os.fsync))
            with pytest.raises(KeyboardInterrupt):
                journal.append(b"two")
        assert journal.read(0, 100) == b"one"
        with connect().open_stream(WAIT, durable="a", journal=journal) as stream:
            stream.timeout = WAIT
            assert stream.wait_committed(WAIT) == 3
            stream.write(b"new")
    assert sink.data["a"] == b"onenew"


def test_closing_cuts_off_what_an_interrupted_append_has_left(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Journal(folder) as journal:
        journal.append(b"one")
        with monkeypatch.context() as patch:
            patch.setattr(journal_module.os, "fsync", once(KeyboardInterrupt(), os.fsync))
            with pytest.raises(KeyboardInterrupt):
                journal.append(b"two")
    with Journal(folder) as journal:
        assert everything(journal) == b"one"


@pytest.mark.parametrize("call", ["fsync", "pwrite"])
def test_after_a_failure_it_takes_nothing_until_it_is_opened_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    with Journal(folder) as journal:
        journal.append(b"one")
        with monkeypatch.context() as patch:
            patch.setattr(journal_module.os, call, broken)
            with pytest.raises(JournalError, match="what is on the disk is unknown"):
                journal.append(b"two")
        for refused in (lambda: journal.append(b"x"), journal.sync, lambda: journal.trim(1)):
            with pytest.raises(JournalError, match="open it again to see"):
                refused()
        assert journal.read(0, 3) == b"one"
    with Journal(folder) as journal:
        assert everything(journal).startswith(b"one")


def test_a_close_whose_sync_fails_says_so(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(folder, sync_every=None)
    journal.append(b"one")
    monkeypatch.setattr(journal_module.os, "fsync", broken)
    with pytest.raises(JournalError, match="could not be synced"):
        journal.close()
    monkeypatch.undo()
    Journal(folder).close()


@pytest.mark.parametrize(
    ("sync_every", "expected"), [(0, [1, 1, 1, 1]), (2, [0, 0, 1, 0]), (None, [0, 0, 0, 0])]
)
def test_writes_are_synced_as_they_were_asked_to_be(
    folder: Path, monkeypatch: pytest.MonkeyPatch, sync_every: int | None, expected: list[int]
) -> None:
    with Journal(folder, sync_every=sync_every) as journal:
        synced: list[int] = []
        with monkeypatch.context() as patch:
            patch.setattr(journal_module.os, "fsync", synced.append)
            counts = []
            for _ in expected:
                journal.append(b"x")
                counts.append(len(synced))
                synced.clear()
            assert counts == expected
            journal.append(b"xx")
            journal.sync()
            assert synced


# Several users


def test_a_folder_that_cannot_be_written_is_not_kept(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(journal_module.os, "pwrite", full)
        with pytest.raises(OSError, match="No space left"):
            Journal(folder)
    Journal(folder).close()


def test_one_process_has_it_at_a_time(folder: Path) -> None:
    with Journal(folder), pytest.raises(JournalError, match=f"is open in process {os.getpid()}:"):
        Journal(folder)
    Journal(folder).close()


def test_it_belongs_to_the_parent_of_a_fork(folder: Path) -> None:
    with Journal(folder) as journal:
        journal.append(b"one")
        child = os.fork()
        if not child:
            status = 1
            try:
                journal.append(b"two")
            except ForkedError:
                journal.close()
                status = 0
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        journal.append(b"three")
        assert everything(journal) == b"onethree"


# Senders


def test_a_sender_keeps_in_it_what_is_not_committed(folder: Path) -> None:
    sink, data = Sink(), pattern(0, 1_000_000)
    with (
        Journal(folder, max_bytes=300_000, segment_bytes=50_000) as journal,
        receiving(sink.handle, sink) as connect,
        connect().open_stream(WAIT, durable="a", journal=journal) as stream,
    ):
        stream.timeout = WAIT
        for start in range(0, len(data), 100_000):
            stream.write(data[start : start + 100_000])
        stream.wait_committed(WAIT)
        assert (journal.start, journal.end) == (len(data), len(data))
        assert len(segments(folder)) == 1
    assert sink.data["a"] == data
    assert sink.kept["a"] == (journal.epoch, len(data))


SENDER = """
import sys, wsmux
from tests.helpers.durable import pattern
with (
    wsmux.Journal(sys.argv[1], sync_every=None, segment_bytes=100_000) as journal,
    wsmux.connect(sys.argv[2]) as connection,
    connection.open_stream(durable="a", journal=journal) as stream,
):
    while stream.offset < 2_000_000:
        stream.write(pattern(stream.offset, stream.offset + 1000))
        print(stream.offset, flush=True)
"""


def test_a_sender_that_is_killed_goes_on_with_what_it_has_kept(folder: Path) -> None:
    sink = Sink()
    handler = DurableHandler(sink.handle, offsets=sink)
    with wsmux.serve(stream_handler=handler) as server:
        command = [sys.executable, "-c", SENDER, str(folder), server.url]
        for lines in (1, 300, None):
            process = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT)
            assert process.stdout is not None
            if lines is None:
                process.communicate(timeout=WAIT)
                assert process.returncode == 0
            else:
                for _ in range(lines):
                    assert process.stdout.readline()
                process.kill()
                process.communicate()
    assert sink.data["a"] == pattern(0, 2_000_000)


def test_it_is_a_public_name() -> None:
    assert wsmux.Journal is Journal


class Crashing(RuleBasedStateMachine):
    """A journal beside a list of bytes; it is killed, or the power is cut, at any moment."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.data = b""  # all that was ever added
        self.start = self.synced = 0
        self.open()

    def open(self) -> None:
        self.journal = Journal(self.folder, segment_bytes=60, max_bytes=1000, sync_every=None)

    @rule(size=st.integers(0, 100))
    def append(self, size: int) -> None:
        if self.journal.end - self.journal.start + size <= 1000:
            data = bytes((len(self.data) + each) % 251 for each in range(size))
            self.data += data
            assert self.journal.append(data, 0) == len(self.data)

    @rule(part=st.floats(0, 1))
    def trim(self, part: float) -> None:
        self.start += int((len(self.data) - self.start) * part)
        self.journal.trim(self.start)

    @rule()
    def sync(self) -> None:
        self.journal.sync()
        self.synced = len(self.data)

    @rule()
    def kill(self) -> None:
        copy = Path(tempfile.mkdtemp())
        shutil.copytree(self.folder, copy, dirs_exist_ok=True)
        self.journal.close()
        shutil.rmtree(self.folder)
        self.folder = copy
        self.open()
        assert (self.journal.start, self.journal.end) == (self.start, len(self.data))

    @precondition(lambda self: len(self.data) > self.synced)
    @rule(cut=st.integers(1, 200))
    def cut_the_power(self, cut: int) -> None:
        copy = Path(tempfile.mkdtemp())
        shutil.copytree(self.folder, copy, dirs_exist_ok=True)
        self.journal.close()
        shutil.rmtree(self.folder)
        self.folder = copy
        last = segments(copy)[-1]
        os.truncate(last, max(0, last.stat().st_size - cut))
        self.open()
        # A segment is synced when the next is begun, so all before the last one is there.
        least = max(self.journal.start, min(self.synced, int(last.name)))
        assert least <= self.journal.end <= len(self.data)
        assert self.journal.start <= self.start
        self.data = self.data[: self.journal.end]
        self.start, self.synced = self.journal.start, len(self.data)

    @invariant()
    def it_has_what_was_added(self) -> None:
        assert self.journal.end == len(self.data)
        assert everything(self.journal) == self.data[self.journal.start :]

    def teardown(self) -> None:
        self.journal.close()
        shutil.rmtree(self.folder)


Crashing.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=25)
TestCrashing = Crashing.TestCase
