"""Send a file to another twin: negotiate, send chunks of 512 KiB, then close, all with one uid.

A receiver of this package acknowledges each chunk, which limits the chunks in flight, and reports
at the end whether the file is complete. The reference gateway does neither; it is sent everything
at once.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO

from ...runtime.deadline import Deadline
from ...runtime.parking import Condition
from ..errors import FAILED, BusError, CallTimeout
from ..session.identity_session import IdentitySession, life_until
from ..session.relay_pool import RelayPool
from ..twins.records import Twin
from ..wire.address import Address
from .json_messages import JsonError
from .upload_receiver import CLOSE, MAX_SIZE, WRITE

__all__ = ["SendJob", "open_file"]

CHUNK = 512 * 1024

# Unacknowledged bytes in flight, if the receiver acknowledges.
WINDOW = 8 * CHUNK


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


class SendJob:
    """Send one file; its own thread calls ``run``, other threads report the receiver's answers."""

    def __init__(
        self,
        endpoint: IdentitySession,
        relay_pool: RelayPool,
        uid: str,
        twin: Twin,
        path: Path,
        life: int,
    ) -> None:
        self._endpoint = endpoint
        self._relay_pool = relay_pool
        self._uid = uid
        self._twin = twin
        self._path = path
        self._deadline = Deadline(life)
        self._condition = Condition()
        self._acks = False
        self._received = 0
        self._done = False
        self._error: BusError | None = None
        self.started = False

    def tell(self, payload: bytes, error: JsonError | None) -> None:
        """Record an answer of the receiver."""
        with self._condition:
            if error is not None:
                self._error = BusError(error.code, error.message, twin=self._twin.id)
            elif payload:
                self._note_locked(payload)
            self._condition.notify_all()

    def unanswered(self) -> bool:
        """Return whether the negotiation timed out without an answer."""
        return not self.started and self._deadline.expired()

    def stop(self) -> None:
        """End the upload because the gateway closes."""
        self.tell(b"", JsonError(FAILED, "the gateway was closed: upload again"))

    def run(self) -> None:
        """Send the file; blocks until the receiver has it, if the receiver acknowledges.

        Raises:
            BusError: the receiver reported an error. CallTimeout: it did not acknowledge in time.
        """
        sent, digest = 0, sha256()
        with open_file(str(self._path)) as file:
            while chunk := file.read(CHUNK):
                self._wait(partial(self._has_room, sent))
                self._send(WRITE, chunk)
                sent += len(chunk)
                digest.update(chunk)
        self._send(CLOSE, json.dumps({"size": sent, "sha256": digest.hexdigest()}).encode())
        self._wait(lambda: self._done)

    def _has_room(self, sent: int) -> bool:
        return sent - self._received <= WINDOW - CHUNK

    def _note_locked(self, payload: bytes) -> None:
        try:
            said = json.loads(payload.decode())
        except (ValueError, RecursionError):
            return  # the reference gateway may send anything
        if isinstance(said, dict):
            self._acks = self._acks or said.get("acks") is True
            self._done = self._done or said.get("done") is True
            if type(said.get("received")) is int:
                self._received = max(self._received, said["received"])

    def _wait(self, ready: Callable[[], bool]) -> None:
        """Wait until the receiver acknowledges; raise the error that it reports."""
        with self._condition:
            while self._error is None and self._acks and not ready():
                if self._deadline.expired():
                    raise CallTimeout("the upload was not confirmed in time", self._twin.id)
                self._condition.wait(self._deadline.remaining())
            if self._error is not None:
                raise self._error

    def _send(self, command: str, data: bytes) -> None:
        endpoint, left = self._endpoint, self._deadline.remaining()
        assert left is not None
        twin, life = self._twin, life_until(left)
        signed, _ = endpoint.request(
            self._uid, twin, Address(twin.id), command, data, life, self._deadline
        )
        self._relay_pool.send(signed, self._deadline, twin.id)
