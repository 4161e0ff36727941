"""Send a file to another twin: negotiate, send chunks of 512 KiB, then close, all with one uid.

``upload_progress`` decides what to send when. A receiver of this package acknowledges each chunk,
which limits the chunks in flight, and confirms at the end that the file is complete; what was lost
on the way is sent again. The reference gateway does neither; it is sent everything once.
"""

from __future__ import annotations

import json
import os
import stat
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO

from ...runtime import clock
from ...runtime.deadline import Deadline
from ...runtime.logs import logger
from ...runtime.parking import Condition
from ..errors import FAILED, BusError, CallTimeout, TwinsUnavailable, one_line
from ..session.identity_session import IdentitySession, life_until
from ..session.relay_pool import RelayPool
from ..wire.address import Address
from .json_messages import JsonError
from .upload_progress import Ask, Message, Place, UploadProgress, Wait, Write
from .upload_receiver import CLOSE, MAX_SIZE, NEGOTIATE, WRITE

__all__ = ["SendJob", "negotiation", "open_file"]

CHUNK = 512 * 1024

# Unacknowledged bytes in flight, if the receiver acknowledges.
WINDOW = 8 * CHUNK

_log = logger("wsmux.bus")


def open_file(path: str) -> BinaryIO:
    """Open a file for upload: a regular one of at most ``MAX_SIZE`` bytes.

    Raises:
        BusError: code 500; the file cannot be read, is not regular, or is too large.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # opening a pipe would block
    except (OSError, ValueError) as error:
        raise BusError(FAILED, f"the file cannot be read: {error}") from error
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode) or found.st_size > MAX_SIZE:
        os.close(fd)
        raise BusError(FAILED, f"{path!r} is not a regular file of at most {MAX_SIZE} bytes")
    return os.fdopen(fd, "rb")


def negotiation(size: int, command: str | None) -> bytes:
    """Return the payload that begins an upload, or asks for its state."""
    return json.dumps({"size": size, "cmd": command}).encode()


class _Source:
    """Read the chunks of a file, some of them again, and hash each once."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._hashed = 0
        self._hash = sha256()

    def read(self, offset: int, length: int) -> bytes:
        """Return a chunk.

        Raises:
            BusError: code 500; the file has become shorter, or cannot be read.
        """
        try:
            self._file.seek(offset)
            chunk = self._file.read(length)
        except OSError as error:
            raise BusError(FAILED, f"the file cannot be read: {error.strerror}") from error
        if len(chunk) != length:
            raise BusError(FAILED, "the file became shorter while it was sent: upload it again")
        if offset <= self._hashed < offset + length:
            self._hash.update(chunk[self._hashed - offset :])
            self._hashed = offset + length
        return chunk

    def digest(self, size: int) -> str:
        """Return the hash of the file up to ``size``, reading what was not sent from here."""
        while self._hashed < size:
            self.read(self._hashed, min(CHUNK, size - self._hashed))
        return self._hash.hexdigest()


class SendJob:
    """Send one file; its own thread calls ``run``, other threads report what happens.

    Args:
        endpoint: signs for this twin.
        relay_pool: the connections to relays.
        uid: the id of the upload, also for its repetition after a restart.
        twin: the number of the receiver.
        path, size, command: the file, and what the receiver is to call with it.
        life: seconds until the upload expires.
        resumed: whether an earlier gateway may have sent some of it.
    """

    def __init__(
        self,
        endpoint: IdentitySession,
        relay_pool: RelayPool,
        uid: str,
        twin: int,
        path: Path,
        size: int,
        command: str | None,
        life: float,
        *,
        resumed: bool,
    ) -> None:
        self._endpoint = endpoint
        self._relay_pool = relay_pool
        self._uid = uid
        self._twin = twin
        self._path = path
        self._size = size
        self._command = command
        self._deadline = Deadline(life)
        self._condition = Condition()
        self._progress = UploadProgress(size, CHUNK, WINDOW, resumed=resumed)
        self._error: BusError | None = None
        self._refusal = ""  # what a relay said last
        self._stopped = False

    def tell(self, payload: bytes, error: JsonError | None, *, of_relay: bool) -> None:
        """Record an answer of the receiver, or an error of a relay."""
        with self._condition:
            if error is None:
                self._progress.answered(_said(payload), clock.monotonic())
            elif of_relay and not self._progress.was_sent_once():
                # It may be about a copy, and whatever was lost is sent again.
                self._refusal = f"; a relay said: {one_line(error.message)}"
            else:
                self._error = BusError(error.code, error.message, twin=self._twin)
            self._condition.notify_all()

    def connection_lost(self) -> None:
        """Record that a connection to a relay was lost, maybe with something of this upload."""
        with self._condition:
            self._progress.lost(clock.monotonic())
            self._condition.notify_all()

    def stop(self) -> None:
        """End ``run``, because the gateway closes."""
        with self._condition:
            self._stopped = True
            self._condition.notify_all()

    def run(self) -> bool:
        """Send the file; blocks until the receiver has it, if the receiver acknowledges.

        Returns:
            Whether it was sent; ``False`` if the gateway closed before.

        Raises:
            BusError: the receiver reported an error, or the file cannot be read. CallTimeout: it
                was not confirmed before it expired.
        """
        with open_file(str(self._path)) as file:
            source = _Source(file)
            while (step := self._next()) is not None:
                self._take(step, source)
        return self._progress.is_done()

    def _next(self) -> Message | None:
        """Wait until there is something to send; ``None`` if there is nothing more."""
        with self._condition:
            while not (self._stopped or self._progress.is_done()):
                if self._error is not None:
                    raise self._error
                if self._deadline.expired():
                    text = f"the upload expired before it was confirmed{self._refusal}"
                    raise CallTimeout(text, self._twin)
                step = self._progress.next(clock.monotonic())
                if not isinstance(step, Wait):
                    return step
                left = self._deadline.remaining()
                assert left is not None
                self._condition.wait(min(left, max(0.0, step.until - clock.monotonic())))
        return None

    def _take(self, step: Message, source: _Source) -> None:
        if isinstance(step, Ask):
            command, data = NEGOTIATE, negotiation(self._size, self._command)
        elif isinstance(step, Write):
            command, data = WRITE, source.read(step.place.offset, step.length)
        else:
            digest = source.digest(self._size)
            command, data = CLOSE, json.dumps({"size": self._size, "sha256": digest}).encode()
        try:
            self._send(command, data, step.place)
        except TwinsUnavailable as error:
            with self._condition:
                if not self._progress.delay(clock.monotonic()):
                    raise
            _log.info("the upload %s goes on later: %s", self._uid, error)
        else:
            with self._condition:
                self._progress.sent(clock.monotonic())

    def _send(self, command: str, data: bytes, place: Place) -> None:
        endpoint, deadline = self._endpoint, self._deadline
        twin, left = endpoint.twin(self._twin, deadline), deadline.remaining()
        assert left is not None
        to, life = Address(twin.id), life_until(left)
        signed, _ = endpoint.request(
            self._uid, twin, to, command, data, life, deadline, tags=place.tags()
        )
        try:
            self._relay_pool.send(signed, deadline, twin.id)
        except ValueError:
            _log.info("the upload %s is kept for the next start: the gateway closes", self._uid)
            self.stop()


def _said(payload: bytes) -> dict[str, Any]:
    """Return the members of an answer; none if it is not of this protocol."""
    try:
        said = json.loads(payload.decode())
    except (ValueError, RecursionError):
        return {}  # the reference gateway may send anything
    return said if isinstance(said, dict) else {}
