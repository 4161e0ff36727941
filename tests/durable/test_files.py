"""The length of a file is the offset, whatever ends between any two steps."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from wsmux.durable import DurableRefused, FileOffsets, ReceivedStream, Refusal, files
from wsmux.durable.files import upload_handler

from ..helpers.durable import EPOCH, pattern, receiving
from ..helpers.timeouts import WAIT
from ..helpers.waiting import wait_for

OTHER = bytes(16)
DATA = pattern(0, 1_000_000)
DIGEST = hashlib.sha256(DATA).digest()


def hidden(folder: Path, name: str, suffix: str, epoch: bytes = EPOCH) -> Path:
    return folder / f".{name}.{epoch.hex()}.{suffix}"


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def send(
    offsets: FileOffsets,
    data: bytes = DATA,
    *,
    name: str = "a",
    epoch: bytes = EPOCH,
    digest: bytes | None = None,
    size: bool = True,
) -> int:
    """Send data to its end; return where that began."""
    with receiving(offsets.receive, offsets) as connect:
        known = len(data) if size else None
        stream = connect().open_stream(WAIT, durable=name, epoch=epoch, size=known)
        stream.timeout = WAIT
        start = stream.offset
        try:
            stream.write(data[start:])
            stream.close(digest)
        finally:
            stream.suspend()
        return start


def send_part(offsets: FileOffsets, data: bytes, *, name: str = "a", epoch: bytes = EPOCH) -> None:
    """Send data without an end, and wait until it is committed."""
    with receiving(offsets.receive, offsets) as connect:
        stream = connect().open_stream(WAIT, durable=name, epoch=epoch)
        stream.write(data[stream.offset :])
        assert stream.wait_committed(WAIT) == len(data)
        stream.suspend()


def refused(offsets: FileOffsets, data: bytes = DATA, **options: Any) -> DurableRefused:
    with pytest.raises(DurableRefused) as raised:
        send(offsets, data, **options)
    return raised.value


def test_a_file_has_its_name_when_it_is_whole(tmp_path: Path) -> None:
    offsets = FileOffsets(tmp_path / "new" / "folder")
    assert send(offsets, digest=DIGEST) == 0
    folder = tmp_path / "new" / "folder"
    assert (folder / "a").read_bytes() == DATA
    assert names(folder) == {"a", hidden(folder, "a", "done").name}
    assert (folder / "a").stat().st_mode & 0o777 == 0o600
    assert folder.stat().st_mode & 0o777 == 0o700


def test_a_part_is_called_otherwise_and_goes_on(tmp_path: Path) -> None:
    offsets = FileOffsets(tmp_path)
    send_part(offsets, DATA[:300_001])
    assert names(tmp_path) == {hidden(tmp_path, "a", "part").name}
    assert offsets.committed("a", EPOCH) == 300_001
    assert send(FileOffsets(tmp_path), digest=DIGEST) == 300_001
    assert (tmp_path / "a").read_bytes() == DATA


def test_an_empty_file_is_a_file(tmp_path: Path) -> None:
    for _ in range(2):
        assert send(FileOffsets(tmp_path), b"", size=False) == 0
    assert (tmp_path / "a").read_bytes() == b""


def test_what_a_killed_receiver_wrote_counts_to_the_byte(tmp_path: Path) -> None:
    hidden(tmp_path, "a", "part").write_bytes(DATA[:77])  # written, and never committed
    assert send(FileOffsets(tmp_path), digest=DIGEST) == 77
    assert (tmp_path / "a").read_bytes() == DATA


def test_each_epoch_has_its_own_offset(tmp_path: Path) -> None:
    offsets = FileOffsets(tmp_path)
    send_part(offsets, DATA[:100])
    assert offsets.committed("a", OTHER) == 0
    send_part(offsets, b"another", epoch=OTHER)
    assert (offsets.committed("a", EPOCH), offsets.committed("a", OTHER)) == (100, 7)
    assert send(offsets, digest=DIGEST) == 100
    assert (tmp_path / "a").read_bytes() == DATA


# The end, cut between any two steps


def test_a_sender_who_has_not_heard_of_the_end_hears_it_again(tmp_path: Path) -> None:
    send(FileOffsets(tmp_path), digest=DIGEST)
    assert send(FileOffsets(tmp_path), digest=DIGEST) == len(DATA)
    (tmp_path / "a").rename(tmp_path / "taken away")
    assert send(FileOffsets(tmp_path)) == len(DATA)
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("step", ["written", "marked", "linked"])
def test_a_receiver_killed_at_the_end_finishes_it_later(
    tmp_path: Path, step: str, replace: bool
) -> None:
    part = hidden(tmp_path, "a", "part")
    part.write_bytes(DATA)
    if step != "written":
        hidden(tmp_path, "a", "done").write_bytes(len(DATA).to_bytes(8, "big"))
    if step == "linked":
        os.link(part, tmp_path / "a")
    offsets = FileOffsets(tmp_path, replace=replace)
    assert send(offsets, digest=DIGEST) == len(DATA)
    assert (tmp_path / "a").read_bytes() == DATA
    assert names(tmp_path) == {"a", hidden(tmp_path, "a", "done").name}


def test_a_finished_file_takes_no_more(tmp_path: Path) -> None:
    offsets = FileOffsets(tmp_path)
    send(offsets, DATA[:100], size=False)
    error = refused(offsets, DATA[:101], size=False)
    assert error.kind is Refusal.EXISTS
    assert "finished with 100 bytes" in error.reason
    assert (tmp_path / "a").read_bytes() == DATA[:100]


def test_a_file_of_another_epoch_stays(tmp_path: Path) -> None:
    offsets = FileOffsets(tmp_path)
    send(offsets, b"older", epoch=OTHER)
    assert refused(offsets).kind is Refusal.EXISTS
    assert (tmp_path / "a").read_bytes() == b"older"
    assert send(FileOffsets(tmp_path, replace=True)) == 0
    assert (tmp_path / "a").read_bytes() == DATA


def test_a_file_that_was_replaced_is_not_finished_any_more(tmp_path: Path) -> None:
    offsets = FileOffsets(tmp_path, replace=True)
    send(offsets, b"of a longer name", name="a.b", epoch=OTHER)
    for data, epoch in ((b"one", OTHER), (b"two", EPOCH), (b"one", OTHER)):
        assert send(offsets, data, epoch=epoch, digest=hashlib.sha256(data).digest()) == 0
        assert (tmp_path / "a").read_bytes() == data
        (tmp_path / "a").rename(tmp_path / "taken away")
        assert send(offsets, data, epoch=epoch) == len(data)  # who has not heard of the end
        (tmp_path / "taken away").rename(tmp_path / "a")
    assert hidden(tmp_path, "a.b", "done", OTHER).exists()


@pytest.mark.parametrize("step", ["marked", "dropped", "replaced"])
def test_a_receiver_killed_while_it_replaces_tells_nobody_wrong(tmp_path: Path, step: str) -> None:
    send(FileOffsets(tmp_path, replace=True), b"one", epoch=OTHER)
    hidden(tmp_path, "a", "part").write_bytes(b"two")
    hidden(tmp_path, "a", "done").write_bytes((3).to_bytes(8, "big"))
    if step != "marked":
        hidden(tmp_path, "a", "done", OTHER).unlink()
    if step == "replaced":
        hidden(tmp_path, "a", "part").rename(tmp_path / "a")
    offsets = FileOffsets(tmp_path, replace=True)
    assert send(offsets, b"one", epoch=OTHER) == (3 if step == "marked" else 0)
    assert (tmp_path / "a").read_bytes() == b"one"
    assert send(offsets, b"two") == (0 if step == "replaced" else 3)
    assert (tmp_path / "a").read_bytes() == b"two"


def test_the_mark_of_a_file_is_gone_for_good_before_it_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offsets = FileOffsets(tmp_path, replace=True)
    send(offsets, b"one", epoch=OTHER)
    synced, replace = list[bool](), Path.replace
    mark = hidden(tmp_path, "a", "done", OTHER)

    def sync(folder: Path) -> None:
        synced.append(mark.exists())

    def replacing(path: Path, target: Path) -> Path:
        if target.name == "a":
            assert synced[-1] is False
            # Another process finishes its file now.
            mark.write_bytes((3).to_bytes(8, "big"))
        return replace(path, target)

    monkeypatch.setattr(files, "sync_path", sync)
    monkeypatch.setattr(Path, "replace", replacing)
    send(offsets, b"two")
    assert synced[-1] is False
    monkeypatch.undo()
    assert send(offsets, b"one", epoch=OTHER) == 0


def test_a_file_made_meanwhile_stays(tmp_path: Path) -> None:
    offsets = FileOffsets(tmp_path)

    def handle(stream: ReceivedStream) -> None:
        (tmp_path / "a").write_bytes(b"made by hand")
        offsets.receive(stream)

    with receiving(handle, offsets) as connect:
        stream = connect().open_stream(WAIT, durable="a", epoch=EPOCH)
        stream.write(DATA)
        with pytest.raises(DurableRefused, match="was made meanwhile") as raised:
            stream.close()
    assert raised.value.kind is Refusal.EXISTS
    assert (tmp_path / "a").read_bytes() == b"made by hand"
    assert not hidden(tmp_path, "a", "done").exists()


def test_a_wrong_digest_drops_what_came(tmp_path: Path) -> None:
    offsets = FileOffsets(tmp_path)
    hidden(tmp_path, "a", "part").write_bytes(b"X" + DATA[1:100])
    error = refused(offsets, digest=DIGEST)
    assert error.kind is Refusal.DIGEST
    assert names(tmp_path) == set()
    assert send(offsets, digest=DIGEST) == 0


# Names


@pytest.mark.parametrize(
    "name",
    ["../a", "/etc/passwd", "a/b", ".", "..", ".hidden", "a\0b", "a\nb", "n" * 201, "ä" * 101],
)
def test_a_name_that_is_none_of_a_file_is_refused(tmp_path: Path, name: str) -> None:
    error = refused(FileOffsets(tmp_path), b"", name=name)
    assert error.kind is Refusal.NAME
    assert names(tmp_path) == set()


@pytest.mark.parametrize("name", ["n" * 200, "ä" * 100, "a b.tar.gz", "-rf", "a.part", "ß\\ü"])
def test_other_names_are_names_of_files(tmp_path: Path, name: str) -> None:
    send(FileOffsets(tmp_path), name=name, digest=DIGEST)
    assert (tmp_path / name).read_bytes() == DATA


def test_a_link_in_the_folder_is_not_followed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    outside = tmp_path / "outside"
    outside.write_bytes(b"stays")
    folder = tmp_path / "folder"
    offsets = FileOffsets(folder, replace=True)
    hidden(folder, "a", "part").symlink_to(outside)
    assert refused(offsets).kind is Refusal.FAILED
    (folder / "b").symlink_to(outside)
    assert send(offsets, name="b") == 0
    assert not (folder / "b").is_symlink()
    assert outside.read_bytes() == b"stays"


# Bounds


def test_a_file_that_is_too_large_is_refused_at_once(tmp_path: Path) -> None:
    offsets = FileOffsets(tmp_path, max_size=99)
    error = refused(offsets, DATA[:100])
    assert error.kind is Refusal.TOO_LARGE
    assert names(tmp_path) == set()
    assert send(offsets, DATA[:99]) == 0


def test_a_file_of_unknown_size_is_refused_where_it_becomes_too_large(tmp_path: Path) -> None:
    offsets = FileOffsets(tmp_path, max_size=500_000)
    send_part(offsets, DATA[:400_000])
    assert refused(offsets, size=False).kind is Refusal.TOO_LARGE
    assert names(tmp_path) == set()


def test_no_file_comes_without_space_for_it(tmp_path: Path) -> None:
    free = shutil.disk_usage(tmp_path).free
    offsets = FileOffsets(tmp_path, min_free=2 * free)
    for size in (True, False):
        error = refused(offsets, size=size)
        assert error.kind is Refusal.NO_SPACE
        assert error.temporary


def test_a_full_disk_is_told_and_what_fits_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, left = os.write, [300_000]

    def scarce(file: int, data: bytes | memoryview) -> int:
        if os.readlink(f"/proc/self/fd/{file}").endswith(".part"):
            if not left[0]:
                raise OSError(errno.ENOSPC, "No space left on device")
            data = data[: left[0]]
            left[0] -= len(data)
        return write(file, data)

    monkeypatch.setattr(os, "write", scarce)
    offsets = FileOffsets(tmp_path)
    error = refused(offsets)
    assert error.kind is Refusal.NO_SPACE
    assert "at 300000 bytes" in error.reason
    assert offsets.committed("a", EPOCH) == 300_000
    left[0] = len(DATA)
    assert send(offsets, digest=DIGEST) == 300_000
    assert (tmp_path / "a").read_bytes() == DATA


def test_a_write_that_fails_is_told_of_and_what_was_written_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    offsets = FileOffsets(tmp_path)
    send_part(offsets, DATA[:1000])
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", failing(os.write, errno.EIO))
        assert refused(offsets).kind is Refusal.FAILED
    assert "Input/output error" in caplog.text
    assert send(offsets, digest=DIGEST) == 1000


def test_a_lock_that_fails_is_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(fcntl, "flock", failing(fcntl.flock, errno.ENOLCK))
    assert refused(FileOffsets(tmp_path)).kind is Refusal.FAILED


def failing(call: Callable[..., Any], number: int) -> Callable[..., Any]:
    """Return the call, which fails for unfinished files alone."""

    def fail(file: int, *arguments: Any) -> Any:
        if os.readlink(f"/proc/self/fd/{file}").endswith(".part"):
            raise OSError(number, os.strerror(number))
        return call(file, *arguments)

    return fail


def test_a_part_that_expires_as_it_is_opened_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flock, removed = fcntl.flock, list[Path]()

    def removing(file: int, operation: int) -> None:
        flock(file, operation)
        if not removed:
            removed.append(hidden(tmp_path, "a", "part"))
            removed[0].unlink()

    monkeypatch.setattr(fcntl, "flock", removing)
    assert send(FileOffsets(tmp_path), digest=DIGEST) == 0
    assert removed
    assert (tmp_path / "a").read_bytes() == DATA


@pytest.mark.parametrize(("size", "seconds"), [(100_000, WAIT), (2 * len(DATA), 0.0)])
def test_much_or_old_data_is_committed_while_more_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, seconds: float
) -> None:
    monkeypatch.setattr(files, "COMMIT_EVERY", size)
    monkeypatch.setattr(files, "COMMIT_SECONDS", seconds)
    monkeypatch.setattr(files, "LINGER", WAIT)
    commits: list[int] = []

    class Noting(FileOffsets):
        def commit(self, name: str, epoch: bytes, offset: int) -> None:
            super().commit(name, epoch, offset)
            commits.append(offset)

    offsets = Noting(tmp_path)
    with receiving(offsets.receive, offsets) as connect:
        stream = connect().open_stream(WAIT, durable="a", epoch=EPOCH)
        stream.write(DATA)
        wait_for(lambda: commits and commits[-1] > len(DATA) - 100_000)
        stream.close()
    assert commits == sorted(commits)


def fail_sync(monkeypatch: pytest.MonkeyPatch, suffix: str, times: int) -> None:
    sync, left = os.fsync, [times]

    def fail(file: int) -> None:
        if os.readlink(f"/proc/self/fd/{file}").endswith(suffix) and left[0]:
            left[0] -= 1
            raise OSError(errno.EIO, "Input/output error")
        sync(file)

    monkeypatch.setattr(os, "fsync", fail)


def test_what_cannot_be_synced_is_not_committed_and_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A later sync may succeed though the data is lost, so the length must not tell of it."""
    offsets = FileOffsets(tmp_path)
    send_part(offsets, DATA[:1000])
    with receiving(offsets.receive, offsets) as connect:
        stream = connect().open_stream(WAIT, durable="a", epoch=EPOCH)
        assert stream.offset == 1000
        fail_sync(monkeypatch, ".part", 1)
        stream.write(DATA[1000:])
        with pytest.raises(DurableRefused, match="OSError") as raised:
            stream.wait_committed(WAIT)
        assert raised.value.kind is Refusal.FAILED
        assert stream.committed == 1000
        stream.suspend()
    assert hidden(tmp_path, "a", "part").read_bytes() == DATA[:1000]
    assert "Input/output error" in caplog.text
    assert send(offsets, digest=DIGEST) == 1000
    assert (tmp_path / "a").read_bytes() == DATA


def test_a_part_that_cannot_be_synced_is_not_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    hidden(tmp_path, "a", "part").write_bytes(DATA[:77])
    fail_sync(monkeypatch, ".part", 1)
    assert refused(FileOffsets(tmp_path)).kind is Refusal.FAILED


def test_nothing_is_told_before_data_and_names_are_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    sync = os.fsync

    def noting(file: int) -> None:
        sync(file)
        synced.append(Path(os.readlink(f"/proc/self/fd/{file}")).suffix)

    monkeypatch.setattr(os, "fsync", noting)
    offsets = FileOffsets(tmp_path)
    with receiving(offsets.receive, offsets) as connect:
        stream = connect().open_stream(WAIT, durable="a", epoch=EPOCH)
        stream.write(DATA)
        stream.wait_committed(WAIT)
        assert synced == ["", ".part"]  # the folder has the name of the part
        stream.close()
        assert synced[2:] == [".part", ".new", "", ""]


# Others who use the folder


def test_a_part_that_another_process_writes_is_busy(tmp_path: Path) -> None:
    offsets, part = FileOffsets(tmp_path), hidden(tmp_path, "a", "part")
    part.write_bytes(DATA[:5])
    with part.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        error = refused(offsets)
        assert error.kind is Refusal.BUSY
    assert send(offsets) == 5


def test_a_part_that_grew_meanwhile_is_opened_again(tmp_path: Path) -> None:
    offsets, part = FileOffsets(tmp_path), hidden(tmp_path, "a", "part")

    def handle(stream: ReceivedStream) -> None:
        part.write_bytes(DATA[:5])
        offsets.receive(stream)

    with (
        receiving(handle, offsets) as connect,
        connect().open_stream(WAIT, durable="a", epoch=EPOCH) as stream,
        pytest.raises(DurableRefused, match="has written 'a' meanwhile"),
    ):
        stream.close()


def test_an_offset_other_than_the_length_cannot_be_committed(tmp_path: Path) -> None:
    offsets = FileOffsets(tmp_path)
    with pytest.raises(ValueError, match="its file has 0 bytes"):
        offsets.commit("a", EPOCH, 1)
    send(offsets)
    offsets.commit("a", EPOCH, len(DATA))  # as a handler may, once more
    with pytest.raises(ValueError, match="its file has 1000000 bytes"):
        offsets.commit("a", EPOCH, 1)


# Time


def aged(path: Path, seconds: float) -> Path:
    path.write_bytes(b"x")
    then = path.stat().st_mtime - seconds
    os.utime(path, (then, then))
    return path


def test_what_is_unfinished_expires(tmp_path: Path) -> None:
    older = [aged(hidden(tmp_path, "b", suffix), 100) for suffix in ("part", "done", "new")]
    newer = [aged(hidden(tmp_path, "c", suffix), 0) for suffix in ("part", "done", "new")]
    others = [aged(tmp_path / name, 100) for name in ("d", "d.part")]
    written = aged(hidden(tmp_path, "e", "part"), 100)
    with written.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        send(FileOffsets(tmp_path, expires=50))
    assert not any(path.exists() for path in older)
    assert all(path.exists() for path in [*newer, *others, written])


def test_nothing_expires_when_told_so(tmp_path: Path) -> None:
    part = aged(hidden(tmp_path, "b", "part"), 10**8)
    send(FileOffsets(tmp_path, expires=None))
    assert part.exists()


def test_a_folder_is_swept_now_and_then_only(tmp_path: Path) -> None:
    offsets = FileOffsets(tmp_path)
    send(offsets)
    part = aged(hidden(tmp_path, "b", "part"), 10**8)
    send(offsets, name="c")
    assert part.exists()


def test_what_waits_for_more_is_committed(tmp_path: Path) -> None:
    offsets = FileOffsets(tmp_path)
    send_part(offsets, DATA[:3])
    assert offsets.committed("a", EPOCH) == 3


@pytest.mark.parametrize("sent", [b"", b"abc"])
def test_a_sender_that_sends_nothing_is_told_to_come_again(tmp_path: Path, sent: bytes) -> None:
    offsets, ended, come = FileOffsets(tmp_path), threading.Event(), threading.Event()
    handle = upload_handler(offsets, None, 0.01)

    def noting(stream: ReceivedStream) -> None:
        assert come.wait(WAIT)
        try:
            handle(stream)
        finally:
            ended.set()

    with receiving(noting, offsets) as connect:
        stream = connect().open_stream(WAIT, durable="a", epoch=EPOCH)
        stream.write(sent)
        come.set()
        assert ended.wait(WAIT)
        with pytest.raises(DurableRefused, match=r"nothing came for 0\.01 s") as raised:
            stream.close()
        assert raised.value.temporary
    assert offsets.committed("a", EPOCH) == len(sent)
