"""What a receiver of files makes of messages that are lost, doubled or out of order."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wsmux.bus.errors import FAILED, TOO_MANY, BusError
from wsmux.bus.gateway import upload_receiver
from wsmux.bus.gateway.upload_progress import Ask, Message, Place, UploadProgress, Wait, Write
from wsmux.bus.gateway.upload_receiver import CLOSE, NEGOTIATE, WRITE, Finished, UploadReceiver
from wsmux.bus.session.identity_session import clock
from wsmux.bus.wire.address import Address
from wsmux.bus.wire.messages import Envelope

from ...helpers.examples import examples

OFFER = b'{"size": 3}'
BEGUN = {"acks": True, "resume": True, "received": 0}
LIFE = 60


class Record:
    """The record of complete uploads, which outlives a receiver."""

    def __init__(self) -> None:
        self.finished: dict[tuple[str, Address], Finished] = {}
        self.calls: list[Finished] = []
        self.down = False

    def is_finished(self, envelope: Envelope, source: Address) -> bool:
        if self.down:
            raise BusError(FAILED, "Redis is gone")
        return (envelope.uid, source) in self.finished

    def finish(self, envelope: Envelope, source: Address, finished: Finished) -> None:
        if not self.is_finished(envelope, source):
            self.finished[envelope.uid, source] = finished
            self.calls.append(finished)


class Receiving:
    """An upload without a gateway."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.record = Record()
        self.receiver = self._new()

    def take(
        self,
        command: str,
        payload: bytes,
        offset: int | None = None,
        *,
        uid: str = "u",
        twin: int = 1,
        session: str | None = None,
        life: int = LIFE,
        attempt: int = 1,
    ) -> Any:
        envelope = Envelope(uid=uid, timestamp=clock(), expiration=life)
        envelope.request.command = command
        if offset is not None:
            envelope.tags = Place(offset, attempt).tags()
        answer = self.receiver.take(envelope, Address(twin, session), payload)
        return None if answer is None else json.loads(answer)

    def restart(self) -> None:
        """Start another receiver after one that left its incomplete files."""
        parts = list(self.folder.glob("*.part"))
        self.receiver.close()
        for part in parts:
            part.touch()
        self.receiver = self._new()

    def kept(self) -> list[Path]:
        return list(self.folder.iterdir())

    def _new(self) -> UploadReceiver:
        return UploadReceiver(self.folder, b"secret", self.record)


@pytest.fixture
def receiving(tmp_path: Path) -> Iterator[Receiving]:
    made = Receiving(tmp_path / "theirs")
    yield made
    made.receiver.close()


def end(data: bytes) -> bytes:
    return json.dumps({"size": len(data), "sha256": sha256(data).hexdigest()}).encode()


def missing(received: int, attempt: int = 1) -> dict[str, int]:
    return {"received": received, "missing": received, "attempt": attempt}


def test_nobody_writes_into_the_upload_of_another(receiving: Receiving) -> None:
    receiving.take(NEGOTIATE, OFFER)
    with pytest.raises(BusError, match="negotiate it first"):
        receiving.take(WRITE, b"abc", twin=2)
    assert receiving.take(WRITE, b"abc") == {"received": 3}


@pytest.mark.parametrize("uid", ["../../etc/passwd", "/etc/passwd", "", ".", "a\0b"])
def test_no_name_of_another_is_used(receiving: Receiving, uid: str) -> None:
    receiving.take(NEGOTIATE, OFFER, uid=uid)
    assert [len(path.stem) for path in receiving.kept()] == [32]


def test_names_depend_on_the_uid_the_sender_and_the_secret(tmp_path: Path) -> None:
    receiving = Receiving(tmp_path / "one")
    for uid, twin in (("u", 1), ("v", 1), ("u", 2)):
        receiving.take(NEGOTIATE, OFFER, uid=uid, twin=twin)
    names = {path.name for path in receiving.kept()}
    assert len(names) == 3
    other = UploadReceiver(tmp_path / "two", b"another", receiving.record)
    envelope = Envelope(uid="u", timestamp=clock(), expiration=LIFE)
    envelope.request.command = NEGOTIATE
    other.take(envelope, Address(1), OFFER)
    assert not {path.name for path in (tmp_path / "two").iterdir()} & names
    for each in (receiving.receiver, other):
        each.close()


@pytest.mark.parametrize("offer", [b'{"size": 4}', b'{"size": 3, "cmd": "other"}'])
def test_an_upload_keeps_what_was_negotiated(receiving: Receiving, offer: bytes) -> None:
    receiving.take(NEGOTIATE, OFFER)
    with pytest.raises(BusError, match="already been negotiated"):
        receiving.take(NEGOTIATE, offer)
    assert receiving.take(WRITE, b"abc") == {"received": 3}


def test_more_than_was_agreed_on_ends_the_upload(receiving: Receiving) -> None:
    receiving.take(NEGOTIATE, OFFER)
    with pytest.raises(BusError, match="agreed on"):
        receiving.take(WRITE, b"abcd")
    assert receiving.kept() == []


@pytest.mark.parametrize("payload", [b"{", b"[]", b"\xff", b'{"sha256": "00"}', b'{"sha256": 5}'])
def test_a_wrong_end_ends_the_upload(receiving: Receiving, payload: bytes) -> None:
    receiving.take(NEGOTIATE, OFFER)
    receiving.take(WRITE, b"abc")
    with pytest.raises(BusError):
        receiving.take(CLOSE, payload)
    assert receiving.kept() == []


def test_an_end_may_say_nothing(receiving: Receiving) -> None:
    receiving.take(NEGOTIATE, OFFER)
    receiving.take(WRITE, b"abc")
    assert receiving.take(CLOSE, b"") == {"done": True}
    (path,) = receiving.kept()
    assert path.read_bytes() == b"abc"
    assert path.stat().st_mode & 0o777 == 0o600


def test_an_unknown_command_ends_the_upload(receiving: Receiving) -> None:
    receiving.take(NEGOTIATE, OFFER)
    with pytest.raises(BusError, match="no command"):
        receiving.take("file.rename", b"")
    assert receiving.kept() == []


def test_what_is_not_whole_is_removed(receiving: Receiving) -> None:
    receiving.take(NEGOTIATE, OFFER)
    assert len(receiving.kept()) == 1
    receiving.receiver.close()
    assert receiving.kept() == []
    receiving.take(NEGOTIATE, OFFER, uid="v")
    receiving.restart()
    assert receiving.kept() == []


# Messages that come twice, late, or not at all


def test_a_repeated_negotiation_is_told_where_the_receiver_stands(receiving: Receiving) -> None:
    assert receiving.take(NEGOTIATE, OFFER, 0) == BEGUN | {"attempt": 1}
    receiving.take(WRITE, b"ab", 0)
    again = receiving.take(NEGOTIATE, OFFER, 0, attempt=2)
    assert again == BEGUN | {"received": 2, "attempt": 2}


def test_chunks_that_are_here_are_dropped(receiving: Receiving) -> None:
    receiving.take(NEGOTIATE, OFFER, 0)
    for offset, chunk in ((0, b"a"), (0, b"a"), (0, b"ab"), (1, b"b"), (2, b"c"), (0, b"abc")):
        receiving.take(WRITE, chunk, offset)
    assert receiving.take(CLOSE, end(b"abc"), 3) == {"done": True, "attempt": 1}
    assert [path.read_bytes() for path in receiving.kept()] == [b"abc"]


def test_a_chunk_after_a_lost_one_is_not_written(receiving: Receiving) -> None:
    receiving.take(NEGOTIATE, OFFER, 0)
    assert receiving.take(WRITE, b"c", 2, attempt=4) == missing(0, 4)
    assert receiving.take(CLOSE, end(b"abc"), 3) == missing(0)
    for offset, chunk in enumerate((b"a", b"b", b"c")):
        receiving.take(WRITE, chunk, offset)
    assert receiving.take(CLOSE, end(b"abc"), 3) == {"done": True, "attempt": 1}


def test_what_comes_after_the_end_is_told_of_the_end(receiving: Receiving) -> None:
    receiving.take(NEGOTIATE, OFFER, 0)
    receiving.take(WRITE, b"abc", 0)
    receiving.take(CLOSE, end(b"abc"), 3)
    for _ in range(2):
        for command, payload in ((CLOSE, end(b"abc")), (WRITE, b"abc"), (NEGOTIATE, OFFER)):
            assert receiving.take(command, payload, 0) == {"done": True, "attempt": 1}
        receiving.restart()
    assert len(receiving.kept()) == len(receiving.record.calls) == 1


def test_a_restarted_receiver_lets_the_sender_begin_again(receiving: Receiving) -> None:
    receiving.take(NEGOTIATE, OFFER, 0)
    receiving.take(WRITE, b"ab", 0)
    receiving.restart()
    assert receiving.take(WRITE, b"c", 2) == missing(0)
    assert receiving.take(CLOSE, end(b"abc"), 3) == missing(0)
    with pytest.raises(BusError, match="negotiate it first"):
        receiving.take(WRITE, b"c")
    assert receiving.take(NEGOTIATE, OFFER, 0, attempt=2) == BEGUN | {"attempt": 2}


def test_an_incomplete_file_that_somebody_removes_is_sent_again(receiving: Receiving) -> None:
    receiving.take(NEGOTIATE, OFFER, 0)
    receiving.take(WRITE, b"abc", 0)
    (part,) = receiving.kept()
    part.unlink()
    assert receiving.take(CLOSE, end(b"abc"), 3) == missing(0)
    assert receiving.take(NEGOTIATE, OFFER, 0, attempt=2) == BEGUN | {"attempt": 2}


def test_an_end_that_was_not_recorded_is_not_confirmed(receiving: Receiving) -> None:
    receiving.take(NEGOTIATE, OFFER, 0)
    receiving.take(WRITE, b"abc", 0)
    receiving.record.down = True
    assert receiving.take(CLOSE, end(b"abc"), 3) is None
    assert receiving.take(WRITE, b"abc", 0) == {"received": 3, "attempt": 1}
    assert receiving.take(NEGOTIATE, OFFER, 0, uid="v") is None
    receiving.record.down = False
    assert receiving.take(CLOSE, end(b"abc"), 3) == {"done": True, "attempt": 1}
    assert len(receiving.record.calls) == 1


def test_a_receiver_killed_before_the_end_was_recorded_doubles_no_file(
    receiving: Receiving,
) -> None:
    paths = []
    for down in (True, False):
        receiving.record.down = False
        receiving.take(NEGOTIATE, OFFER, 0)
        receiving.take(WRITE, b"abc", 0)
        receiving.record.down = down
        receiving.take(CLOSE, end(b"abc"), 3)
        paths += receiving.kept()
        receiving.restart()
    assert paths[0] == paths[1]
    assert [each.path for each in receiving.record.calls] == paths[:1]


def test_no_upload_replaces_the_file_of_another_one(receiving: Receiving) -> None:
    receiving.take(NEGOTIATE, OFFER)
    receiving.take(WRITE, b"abc")
    receiving.take(CLOSE, b"")
    receiving.record.finished.clear()  # it was long ago
    receiving.take(NEGOTIATE, OFFER)
    receiving.take(WRITE, b"xyz")
    with pytest.raises(BusError, match="with a new one"):
        receiving.take(CLOSE, b"")
    assert [path.read_bytes() for path in receiving.kept()] == [b"abc"]


# Bounds


@pytest.mark.parametrize("idle", [True, False])
def test_an_upload_that_nobody_completes_is_discarded(
    receiving: Receiving, monkeypatch: pytest.MonkeyPatch, idle: bool
) -> None:
    receiving.take(NEGOTIATE, OFFER, 0)
    receiving.receiver.discard_ended()
    assert len(receiving.kept()) == 1
    if idle:
        monkeypatch.setattr(upload_receiver, "IDLE", 0.0)
    receiving.take(WRITE, b"a", 0, life=LIFE if idle else 0)
    receiving.receiver.discard_ended()
    assert receiving.kept() == []
    assert receiving.take(WRITE, b"b", 1) == missing(0)


def test_an_upload_discarded_under_a_message_is_begun_again(
    receiving: Receiving, monkeypatch: pytest.MonkeyPatch
) -> None:
    receiving.take(NEGOTIATE, OFFER, 0)
    touch = upload_receiver._Upload.touch

    def discard_first(upload: upload_receiver._Upload, *rest: Any) -> None:
        upload.discard()
        touch(upload, *rest)

    monkeypatch.setattr(upload_receiver._Upload, "touch", discard_first)
    assert receiving.take(WRITE, b"a", 0) == missing(0)


def test_no_more_uploads_are_open_than_allowed(
    receiving: Receiving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upload_receiver, "MAX_OPEN", 2)
    for uid in "ab":
        receiving.take(NEGOTIATE, OFFER, 0, uid=uid)
    with pytest.raises(BusError, match="2 uploads are under way") as caught:
        receiving.take(NEGOTIATE, OFFER, 0, uid="c")
    assert caught.value.code == TOO_MANY
    receiving.take(WRITE, b"abc", 0, uid="a")
    receiving.take(CLOSE, end(b"abc"), 3, uid="a")
    assert receiving.take(NEGOTIATE, OFFER, 0, uid="c") == BEGUN | {"attempt": 1}


def test_a_twin_has_its_share_of_uploads_alone(receiving: Receiving) -> None:
    for number in range(upload_receiver.MAX_OF_TWIN):
        receiving.take(NEGOTIATE, OFFER, 0, uid=str(number))
    for session in (None, "another"):
        with pytest.raises(BusError, match="twin 1 has 4 uploads under way") as caught:
            receiving.take(NEGOTIATE, OFFER, 0, uid="one more", session=session)
        assert caught.value.code == TOO_MANY
    assert receiving.take(NEGOTIATE, OFFER, 0, uid="0") == BEGUN | {"attempt": 1}  # has its place
    assert receiving.take(NEGOTIATE, OFFER, 0, twin=2) == BEGUN | {"attempt": 1}
    receiving.take(WRITE, b"abc", 0, uid="0")
    receiving.take(CLOSE, end(b"abc"), 3, uid="0")
    assert receiving.take(NEGOTIATE, OFFER, 0, uid="one more") == BEGUN | {"attempt": 1}


# What survives a crash of the machine


def test_a_file_and_its_name_are_on_the_disk_before_the_sender_is_told(
    receiving: Receiving, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[tuple[str, str]] = []
    sync, rename, finish = os.fsync, Path.replace, receiving.record.finish

    def synced(descriptor: int) -> None:
        sync(descriptor)
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        done.append(("synced", "folder" if path.is_dir() else path.suffix))
        assert path.is_dir() or path.read_bytes() == b"abc"

    def renamed(path: Path, target: Path) -> Path:
        done.append(("renamed", path.suffix))
        return rename(path, target)

    def recorded(envelope: Envelope, source: Address, finished: Finished) -> None:
        done.append(("recorded", ""))
        finish(envelope, source, finished)

    receiving.take(NEGOTIATE, OFFER, 0)
    receiving.take(WRITE, b"abc", 0)
    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "replace", renamed)
    monkeypatch.setattr(receiving.record, "finish", recorded)
    assert receiving.take(CLOSE, end(b"abc"), 3) == {"done": True, "attempt": 1}
    assert done == [
        ("synced", ".part"),
        ("renamed", ".part"),
        ("synced", "folder"),
        ("recorded", ""),
    ]


@pytest.mark.parametrize("fails_at", [1, 2])
def test_a_disk_that_does_not_keep_the_file_ends_the_upload_with_a_reason(
    receiving: Receiving, monkeypatch: pytest.MonkeyPatch, fails_at: int
) -> None:
    calls = []

    def fail(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) == fails_at:
            raise OSError(errno.EIO, "Input/output error")

    receiving.take(NEGOTIATE, OFFER, 0)
    receiving.take(WRITE, b"abc", 0)
    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(BusError, match="cannot be written: Input/output error"):
        receiving.take(CLOSE, end(b"abc"), 3)
    assert receiving.kept() == []
    assert receiving.record.calls == []


def test_a_full_disk_ends_the_upload_with_a_reason(
    receiving: Receiving, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> bool:
        raise OSError(errno.ENOSPC, "No space left on device")

    receiving.take(NEGOTIATE, OFFER, 0)
    monkeypatch.setattr(upload_receiver._Upload, "write", fail)
    with pytest.raises(BusError, match="cannot be written: No space left"):
        receiving.take(WRITE, b"abc", 0)
    assert receiving.kept() == []


# Both sides, with a bad wire between them

DATA = bytes(range(50))
CHUNK, WINDOW = 7, 21


class Sending:
    """Send ``DATA`` to a receiver; messages and answers wait until they are delivered or lost."""

    def __init__(self, receiving: Receiving) -> None:
        self.now = 0.0
        self.progress = UploadProgress(len(DATA), CHUNK, WINDOW)
        self.messages: list[Message] = []
        self.answers: list[dict[str, Any]] = []
        self._receiving = receiving

    def work(self) -> None:
        """Do one step; if there is nothing to do or to deliver, let time pass."""
        if self.progress.is_done():
            return
        step = self.progress.next(self.now)
        if not isinstance(step, Wait):
            self.messages.append(step)
            self.progress.sent(self.now)
        elif not self.messages and not self.answers:
            self.now = step.until

    def deliver(self, message: Message) -> None:
        if isinstance(message, Ask):
            command, payload = NEGOTIATE, b'{"size": 50}'
        elif isinstance(message, Write):
            offset = message.place.offset
            command, payload = WRITE, DATA[offset : offset + message.length]
        else:
            command, payload = CLOSE, end(DATA)
        place = message.place
        answer = self._receiving.take(command, payload, place.offset, attempt=place.attempt)
        if answer is not None:
            self.answers.append(answer)

    def answer(self, answer: dict[str, Any]) -> None:
        self.progress.answered(answer, self.now)


HARM = st.sampled_from(
    ["none"] * 8 + ["lose", "double", "swap", "lose answer", "cut", "restart", "down", "up"]
)


@settings(max_examples=examples(150), deadline=None)
@given(harms=st.lists(HARM, max_size=120))
def test_a_file_arrives_once_and_whole_over_any_wire(
    tmp_path_factory: pytest.TempPathFactory, harms: list[str]
) -> None:
    receiving = Receiving(tmp_path_factory.mktemp("theirs"))
    sending = Sending(receiving)
    for harm in harms + ["up"] + ["none"] * 300:
        sending.work()
        if harm == "lose":
            del sending.messages[:1]
        elif harm == "double":
            sending.messages += sending.messages[:1]
        elif harm == "swap":
            sending.messages[:2] = sending.messages[:2][::-1]
        elif harm == "lose answer":
            del sending.answers[:1]
        elif harm == "cut":
            sending.messages.clear()
            sending.progress.lost(sending.now)
        elif harm == "restart":
            receiving.restart()
        elif harm in ("up", "down"):
            receiving.record.down = harm == "down"
        else:
            for answer in sending.answers[:1]:
                sending.answer(answer)
            del sending.answers[:1]
            for message in sending.messages[:1]:
                sending.deliver(message)
            del sending.messages[:1]
    assert sending.progress.is_done()
    assert [path.read_bytes() for path in receiving.kept()] == [DATA]
    assert len(receiving.record.calls) == 1


def test_a_directory_that_cannot_be_written_any_more_keeps_what_is_discarded(
    receiving: Receiving, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Until the next start; neither those who look after uploads nor a close fail."""

    def refuse(path: Path, missing_ok: bool = False) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    for uid in ("under way", "ended"):
        receiving.take(NEGOTIATE, OFFER, uid=uid)
    receiving.take(WRITE, b"a", 0, uid="ended", life=0)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", refuse)
        receiving.receiver.discard_ended()
        receiving.receiver.close()
    assert "is left until the next start: Read-only file system" in caplog.text
    assert len(receiving.kept()) == 2
    receiving.restart()
    assert receiving.kept() == []
