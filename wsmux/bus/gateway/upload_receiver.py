"""Receive files that other twins upload, in chunks, into one directory.

In the reference gateway the remote side names the file, and any twin may write to any upload. Here
names of files cannot be guessed, an upload belongs to the twin and session that began it, and has a
size agreed beforehand. At the end the size is checked, and the hash if the sender gave one.

A sender of this package says with each message where it belongs; see ``upload_progress``. Then a
chunk that is here already is dropped, and after one that was lost the sender is told from where to
send again. A repeated negotiation is the question where this side stands. Of other senders, chunks
are written in the order in which they came.

What is not complete ends with this process, or when it expires: then the sender is told to begin
again at 0. A complete file and its name are put on the disk, then that is recorded by
``FinishedUploads``, and only then is the sender told. So it is received once, and kept, even if
this process or its machine dies in between. Its name depends on the upload alone, so that the
second time it gets the name that it had.

One twin has a share of the uploads in progress, so that it cannot keep out all others.

Threads and locks: any thread may call. One lock guards the table, and one each upload; the second
is held while a file is written, and the first may be taken under it.
"""

from __future__ import annotations

import filecmp
import hmac
import json
import os
import threading
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Protocol

from ...runtime.deadline import Deadline
from ...runtime.files import sync_path
from ...runtime.logs import logger
from ..errors import FAILED, TOO_MANY, BusError
from ..services import decode
from ..session.identity_session import deadline_of
from ..wire.address import Address
from ..wire.envelope import JSON_SCHEMA
from ..wire.messages import Envelope
from .queue_names import command_queue
from .upload_progress import read_tags

__all__ = ["CLOSE", "NEGOTIATE", "WRITE", "Finished", "FinishedUploads", "UploadReceiver"]

NEGOTIATE, WRITE, CLOSE = "file.negotiate", "file.write", "file.close"

# Bytes of one file; uploads in progress at once, from all twins and from one, which are as many as
# its gateway sends.
MAX_SIZE = 1024 * 1024 * 1024
MAX_OPEN, MAX_OF_TWIN = 16, 4

# Seconds without a message after which an upload is discarded, even if it has not expired.
IDLE = 300.0

# Suffix of incomplete files.
PART = ".part"

_log = logger("wsmux.bus")

Key = tuple[str, Address]


class Finished(NamedTuple):
    """Describe a complete file, and the command that its sender wants called."""

    path: Path
    size: int
    command: str | None


class FinishedUploads(Protocol):
    """Record which uploads are complete, beyond the life of this process."""

    def is_finished(self, envelope: Envelope, source: Address) -> bool:
        """Return whether the upload of this request was recorded.

        Raises:
            BusError: it is not known.
        """

    def finish(self, envelope: Envelope, source: Address, finished: Finished) -> None:
        """Record it and call its command, both once, however often this is called.

        Raises:
            BusError: it may not be recorded.
        """


class _Gone(Exception):
    """The upload was discarded by another thread."""


class _Upload:
    """Write one file; used with its lock held."""

    def __init__(self, path: Path, size: int, command: str | None, end: Deadline) -> None:
        self.lock = threading.Lock()
        self.finished = Finished(path, size, command)
        self.received = 0
        self._end, self._idle = end, Deadline(IDLE)
        self._complete = self._gone = False
        self._hash = sha256()
        self._part = path.with_suffix(PART)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        self._file: BinaryIO = os.fdopen(os.open(self._part, flags, 0o600), "wb")

    def is_over(self) -> bool:
        """Return whether it has expired, or no message of it came for long."""
        return self._end.expired() or self._idle.expired()

    def touch(self, end: Deadline) -> None:
        """Record a message of it, which expires then.

        Raises:
            _Gone: it was discarded meanwhile.
        """
        if self._gone:
            raise _Gone
        self._end, self._idle = end, Deadline(IDLE)

    def write(self, data: bytes, offset: int | None) -> bool:
        """Write what is new of a chunk; return ``False`` if something before it is missing."""
        if offset is not None:
            if offset > self.received:
                return False
            data = data[self.received - offset :]
        size = self.finished.size
        if self.received + len(data) > size:
            raise BusError(FAILED, f"more than the {size} bytes that were agreed on")
        if data:
            self._file.write(data)
            self._hash.update(data)
            self.received += len(data)
        return True

    def complete(self, digest: object) -> None:
        """Give the file its name, and put both on the disk; does nothing if that was done."""
        path, size, _ = self.finished
        if self._complete:
            return
        if self.received != size:
            text = f"{self.received} of {size} bytes arrived: some were lost, upload again"
            raise BusError(FAILED, text)
        if digest is not None and digest != self._hash.hexdigest():
            text = (
                "the hash differs: chunks arrived out of order, or the file changed; upload again"
            )
            raise BusError(FAILED, text)
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        # A process that was killed before the end was recorded left the file.
        if path.exists() and not filecmp.cmp(path, self._part, shallow=False):
            raise BusError(FAILED, "another file had the id of this upload: upload with a new one")
        self._part.replace(path)
        try:
            sync_path(path.parent)
        except OSError:
            path.unlink(missing_ok=True)  # the sender is told that it was not received
            raise
        self._complete = True

    def discard(self) -> None:
        self._gone = True
        with suppress(OSError):  # what cannot be written any more is not wanted any more
            self._file.close()
        try:
            self._part.unlink(missing_ok=True)
        except OSError as error:  # as in a directory that cannot be written any more
            _log.warning("%s is left until the next start: %s", self._part, error.strerror)


class UploadReceiver:
    """Receive the uploads of other twins.

    Args:
        directory: the directory for files; created if missing.
        secret: the key of file names, the same in each process.
        finished: records which uploads are complete.
        max_size: the maximum number of bytes per file.

    Raises:
        OSError: the directory cannot be used.
    """

    def __init__(
        self, directory: Path, secret: bytes, finished: FinishedUploads, max_size: int = MAX_SIZE
    ) -> None:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        for left in directory.glob(f"*{PART}"):
            left.unlink()  # left by a gateway that crashed
        self._directory = directory
        self._secret = secret
        self._finished = finished
        self._max_size = max_size
        self._lock = threading.Lock()
        self._uploads: dict[Key, _Upload] = {}

    def take(self, envelope: Envelope, source: Address, payload: bytes) -> bytes | None:
        """Handle a request of an upload, and return the answer.

        ``None`` says nothing to the sender, which asks again: the record could not be used.

        Raises:
            BusError: code 429; as many uploads as there may be are in progress, of its twin or of
                all. Code 500; the request failed. Unless it was a negotiation, the upload that it
                belongs to is discarded.
        """
        said = self._handle(envelope, source, payload)
        if said is None:
            return None
        place = read_tags(envelope.tags)
        if place is not None:
            said["attempt"] = place.attempt
        return json.dumps(said).encode()

    def discard_ended(self) -> None:
        """Discard uploads that have expired, or of which nothing came for long."""
        with self._lock:
            over = [item for item in self._uploads.items() if item[1].is_over()]
        for key, upload in over:
            _log.info(
                "the upload %r of twin %s is discarded: nothing more of it came",
                *(key[0][:80], key[1].shown()),
            )
            self._forget(key, upload)

    def close(self) -> None:
        """Discard incomplete uploads."""
        with self._lock:
            left = list(self._uploads.items())
        for key, upload in left:
            self._forget(key, upload)

    def _handle(self, envelope: Envelope, source: Address, payload: bytes) -> dict[str, Any] | None:
        key: Key = (envelope.uid, source)
        with self._lock:
            upload = self._uploads.get(key)
        if upload is None:
            try:
                if self._finished.is_finished(envelope, source):
                    return {"done": True}
            except BusError as error:
                _log.warning("a message of the upload %r is dropped: %s", envelope.uid[:80], error)
                return None
            if envelope.request.command != NEGOTIATE:
                return _unknown(envelope)
            upload = self._begin(key, _members(payload), deadline_of(envelope))
        try:
            with upload.lock:
                upload.touch(deadline_of(envelope))
                if envelope.request.command == NEGOTIATE:
                    return self._negotiated(upload, _members(payload))
                return self._continue(key, upload, envelope, payload)
        except _Gone:
            return _unknown(envelope)

    def _continue(
        self, key: Key, upload: _Upload, envelope: Envelope, payload: bytes
    ) -> dict[str, Any] | None:
        """Handle a chunk or the end, with the lock of the upload held."""
        command, place = envelope.request.command, read_tags(envelope.tags)
        try:
            if command == WRITE:
                if upload.write(payload, None if place is None else place.offset):
                    return {"received": upload.received}
                return _missing(upload.received)
            if command != CLOSE:
                raise BusError(FAILED, f"uploads have no command {command[:80]!r}")
            if place is not None and upload.received < upload.finished.size:
                return _missing(upload.received)
            upload.complete(_members(payload).get("sha256") if payload else None)
        except (OSError, BusError) as error:
            self._remove(key, upload)
            upload.discard()
            if isinstance(error, FileNotFoundError) and place is not None:
                return _missing(0)  # another process removed the incomplete file
            if isinstance(error, OSError):
                raise BusError(FAILED, f"the file cannot be written: {error.strerror}") from error
            raise
        try:
            self._finished.finish(envelope, key[1], upload.finished)
        except BusError as error:
            _log.warning("the upload %r is not confirmed yet: %s", key[0][:80], error)
            return None
        self._remove(key, upload)
        return {"done": True}

    def _offer(self, members: dict[str, Any]) -> tuple[int, str | None]:
        """Return the size and command of a negotiation."""
        size, command = members.get("size"), members.get("cmd")
        if type(size) is not int or not 0 <= size <= self._max_size:
            raise BusError(FAILED, f"'size' must be a number from 0 to {self._max_size}")
        if command is not None:
            if not isinstance(command, str):
                raise BusError(FAILED, "'cmd' must be the name of a command")
            try:
                command_queue(command)
            except ValueError as error:
                raise BusError(FAILED, str(error)) from error
        return size, command

    def _negotiated(self, upload: _Upload, members: dict[str, Any]) -> dict[str, Any]:
        if self._offer(members) != (upload.finished.size, upload.finished.command):
            text = "this upload has already been negotiated, with another size or command"
            raise BusError(FAILED, text)
        return {"acks": True, "resume": True, "received": upload.received}

    def _begin(self, key: Key, members: dict[str, Any], end: Deadline) -> _Upload:
        size, command = self._offer(members)
        self.discard_ended()
        path = self._directory / self._name(key)
        with self._lock:
            self._check_room_locked(key[1].twin)
            try:
                upload = self._uploads[key] = _Upload(path, size, command, end)
            except OSError as error:
                raise BusError(FAILED, f"no file can be made: {error.strerror}") from error
            return upload

    def _check_room_locked(self, twin: int) -> None:
        """Refuse one upload more than there may be."""
        if sum(source.twin == twin for _, source in self._uploads) >= MAX_OF_TWIN:
            text = (
                f"twin {twin} has {MAX_OF_TWIN} uploads under way here, as many as it may:"
                " try again when one is complete"
            )
            raise BusError(TOO_MANY, text)
        if len(self._uploads) >= MAX_OPEN:
            raise BusError(TOO_MANY, f"{MAX_OPEN} uploads are under way: try again later")

    def _name(self, key: Key) -> str:
        text = f"{key[1]} {key[0]}"
        return hmac.digest(self._secret, text.encode(), "sha256").hex()[:32]

    def _forget(self, key: Key, upload: _Upload) -> None:
        with upload.lock:
            self._remove(key, upload)
            upload.discard()

    def _remove(self, key: Key, upload: _Upload) -> None:
        with self._lock:
            if self._uploads.get(key) is upload:
                del self._uploads[key]


def _missing(received: int) -> dict[str, Any]:
    """Return the answer that more is to be sent from there."""
    return {"received": received, "missing": received}


def _unknown(envelope: Envelope) -> dict[str, Any]:
    """Return the answer to a message of an upload that was never begun, or is gone."""
    command = envelope.request.command
    if command in (WRITE, CLOSE) and read_tags(envelope.tags) is not None:
        return _missing(0)
    raise BusError(FAILED, "unknown upload: negotiate it first")


def _members(payload: bytes) -> dict[str, Any]:
    value = decode(payload, JSON_SCHEMA)
    if not isinstance(value, dict):
        raise BusError(FAILED, "the payload is not a JSON object")
    return value
