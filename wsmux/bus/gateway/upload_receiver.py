"""Receive files that other twins upload, in chunks, into one directory.

In the reference gateway the remote side names the file, and any twin may write to any upload. Here
files get random names, belong to the twin and session that began them, and have a size agreed
beforehand. At the end the size is checked, and the hash if the sender gave one.

The chunks of one upload are written in the order in which they came, by one thread at a time.
"""

from __future__ import annotations

import json
import os
import secrets
import threading
import time
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from ...runtime.logs import logger
from ..errors import FAILED, BusError
from ..services import decode
from ..wire.address import Address
from ..wire.envelope import JSON_SCHEMA
from ..wire.messages import Envelope
from .queue_names import command_queue

__all__ = ["CLOSE", "NEGOTIATE", "WRITE", "Finished", "UploadReceiver"]

NEGOTIATE, WRITE, CLOSE = "file.negotiate", "file.write", "file.close"

# Bytes of one file, and uploads in progress at once, from all twins.
MAX_SIZE = 1024 * 1024 * 1024
MAX_OPEN = 16

# Seconds without a chunk after which an upload is discarded.
IDLE = 300.0

# Suffix of incomplete files.
PART = ".part"

_log = logger("wsmux.bus")


class Finished(NamedTuple):
    """Describe a complete file, and the command that its sender wants called."""

    path: Path
    size: int
    command: str | None


class _Upload:
    """Write one file; used by one thread at a time."""

    def __init__(self, directory: Path, size: int, command: str | None) -> None:
        self.path = directory / secrets.token_hex(16)
        self.size = size
        self.command = command
        self.received = 0
        self.last = time.monotonic()
        self._hash = sha256()
        self._part = self.path.with_suffix(PART)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        self._file: BinaryIO = os.fdopen(os.open(self._part, flags, 0o600), "wb")

    def write(self, data: bytes) -> None:
        if self.received + len(data) > self.size:
            raise BusError(FAILED, f"more than the {self.size} bytes that were agreed on")
        self._file.write(data)
        self._hash.update(data)
        self.received += len(data)
        self.last = time.monotonic()

    def finish(self, digest: object) -> Finished:
        if self.received != self.size:
            text = f"{self.received} of {self.size} bytes arrived: some were lost, upload again"
            raise BusError(FAILED, text)
        if digest is not None and digest != self._hash.hexdigest():
            raise BusError(FAILED, "the hash differs: chunks arrived out of order; upload again")
        self._file.close()
        self._part.rename(self.path)
        return Finished(self.path, self.size, self.command)

    def discard(self) -> None:
        self._file.close()
        self._part.unlink(missing_ok=True)


class UploadReceiver:
    """Receive the uploads of other twins.

    Args:
        directory: the directory for files; created if missing.
        max_size: the maximum number of bytes per file.

    Raises:
        OSError: the directory cannot be used.
    """

    def __init__(self, directory: Path, max_size: int = MAX_SIZE) -> None:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        for left in directory.glob(f"*{PART}"):
            left.unlink()  # left by a gateway that crashed
        self._directory = directory
        self._max_size = max_size
        self._lock = threading.Lock()
        self._uploads: dict[tuple[str, Address], _Upload] = {}

    def take(
        self, envelope: Envelope, source: Address, payload: bytes
    ) -> tuple[bytes, Finished | None]:
        """Handle a request of an upload; return the answer, and the file if it is complete.

        Raises:
            BusError: code 500; the request failed, and the upload that it belongs to is discarded.
        """
        command, key = envelope.request.command, (envelope.uid, source)
        if command == NEGOTIATE:
            self._begin(key, _members(payload))
            return _json({"acks": True}), None
        with self._lock:
            upload = self._uploads.get(key)
        if upload is None:
            raise BusError(FAILED, "unknown upload: negotiate it first")
        try:
            if command == WRITE:
                upload.write(payload)
                return _json({"received": upload.received}), None
            if command != CLOSE:
                raise BusError(FAILED, f"uploads have no command {command[:80]!r}")
            digest = _members(payload).get("sha256") if payload else None
            finished = upload.finish(digest)
        except (OSError, BusError) as error:
            self._forget(key, upload)
            if isinstance(error, OSError):
                raise BusError(FAILED, f"the file cannot be written: {error.strerror}") from error
            raise
        with self._lock:
            self._uploads.pop(key, None)
        return _json({"done": True}), finished

    def close(self) -> None:
        """Discard incomplete uploads."""
        with self._lock:
            left = list(self._uploads.items())
        for key, upload in left:
            self._forget(key, upload)

    def _begin(self, key: tuple[str, Address], members: dict[str, Any]) -> None:
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
        self._give_up_idle()
        with self._lock:
            if key in self._uploads:
                raise BusError(FAILED, "this upload has already been negotiated")
            if len(self._uploads) >= MAX_OPEN:
                raise BusError(FAILED, f"{MAX_OPEN} uploads are under way: try again later")
            try:
                self._uploads[key] = _Upload(self._directory, size, command)
            except OSError as error:
                raise BusError(FAILED, f"no file can be made: {error.strerror}") from error

    def _give_up_idle(self) -> None:
        now = time.monotonic()
        with self._lock:
            idle = [item for item in self._uploads.items() if now - item[1].last > IDLE]
        for key, upload in idle:
            _log.info(
                "the upload %r of twin %s is discarded: no chunk arrived", key[0], key[1].shown()
            )
            self._forget(key, upload)

    def _forget(self, key: tuple[str, Address], upload: _Upload) -> None:
        with self._lock:
            self._uploads.pop(key, None)
        upload.discard()


def _members(payload: bytes) -> dict[str, Any]:
    value = decode(payload, JSON_SCHEMA)
    if not isinstance(value, dict):
        raise BusError(FAILED, "the payload is not a JSON object")
    return value


def _json(value: dict[str, Any]) -> bytes:
    return json.dumps(value).encode()
