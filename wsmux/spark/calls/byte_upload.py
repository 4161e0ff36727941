"""Send the bytes of a task as a durable stream, which goes on after any process was killed.

The server keeps how much of a name it has committed, and whoever opens the name goes on there: the
same task over another connection, or another attempt at it. So nothing is there twice, however
often Spark runs the task. What is not committed is kept by the task, to be sent again, and bounded.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterable
from typing import Any

from ...config import MIB
from ...durable import DurableRefused, DurableStream, Refusal
from ...durable.sender import begun
from ...protocols.durable import NO_EPOCH, DurableSender
from ...runtime.arguments import check_seconds
from ...runtime.backoff import Backoff
from ...runtime.deadline import Deadline
from ..connection_settings import Recipe
from ..errors import SparkError
from ..retries import LONGEST_RETRY, Retries, SourceFailed

__all__ = ["upload_bytes"]

# Bytes that are kept until they are committed.
BUFFER = 16 * MIB

# Bytes a second that a server may take to read again what it has, for the digest.
SLOWEST = 32 * MIB

# Seconds before the first return to a name that another attempt has taken over.
SUPERSEDED_PAUSE = 1.0

# Codes of errors beside those of a refusal, which have its name.
DATA_LOST, OTHER_DATA = "DATA_LOST", "OTHER_DATA"


def upload_bytes(
    recipe: Recipe,
    name: str,
    chunks: Iterable[Any],
    *,
    epoch: bytes | None = None,
    stream: str | None = None,
    timeout: float | None = None,
    buffer: int = BUFFER,
) -> int:
    """Send bytes in order to the server's handler of durable streams; return how many there are.

    It returns when the server has committed all of them and has compared their SHA-256. Each byte
    has its effect once where a durable stream promises that, such as in the files of
    ``wsmux.FileOffsets``, whether connections are lost, or the server, the task or its executor is
    killed, or Spark runs several attempts at once:

        def send(partition, rows):
            yield upload_bytes(conn, f"day-17-{partition}", (encode(row) for row in rows))

        rdd.mapPartitionsWithIndex(send).sum()

    Another attempt begins where the server stands. It reads the bytes before that from ``chunks``,
    and does not send them; so each attempt must give the same bytes, or fails with DIGEST and the
    server drops them. Of two attempts at once the newer one goes on, and the older one comes back
    later, to find the work done.

    Args:
        recipe: the connection settings. Its ``retries`` are attempts without progress.
        name: stands for these bytes at the server, for every attempt.
        chunks: bytes, in pieces of any size, which are read once.
        epoch: 16 bytes that tell these bytes from others of the same name; see ``open_stream``.
        stream: of a server of named streams, the name of the stream whose handler it is.
        timeout: seconds that the server may take to take bytes, to commit, and to finish;
            ``recipe.call_timeout`` by default.
        buffer: the most bytes, beside one piece, that are kept until they are committed. A handler
            that commits less often is waited for in vain.

    Raises:
        SparkError: the server refused the bytes, with the name of the ``Refusal`` as its code; it
            has lost what it had committed, DATA_LOST; it has more than ``chunks``, OTHER_DATA; or
            it could not be reached, as ``Recipe.open_stream`` tells. Exceptions from ``chunks`` are
            raised unchanged.
        ValueError: the name, the epoch, the timeout or the buffer is not allowed.
    """
    if buffer < 1:
        raise ValueError(f"buffer must be at least 1 byte, not {buffer}")
    time_limit = recipe.call_timeout if timeout is None else timeout
    check_seconds(timeout=time_limit)
    return _Upload(recipe, name, chunks, epoch, stream, time_limit, buffer).run()


class _Upload:
    """Send the bytes of one attempt, over one stream after another."""

    def __init__(
        self,
        recipe: Recipe,
        name: str,
        chunks: Iterable[Any],
        epoch: bytes | None,
        stream: str | None,
        timeout: float,
        buffer: int,
    ) -> None:
        self._link = recipe.link()
        self._retries = Retries(recipe.retries, recipe.retry_backoff)
        self._superseded = Backoff(SUPERSEDED_PAUSE, LONGEST_RETRY, least=0.5)
        self._name = name
        self._what = f"upload {name!r}"
        self._epoch = NO_EPOCH if epoch is None else epoch
        self._route = stream
        self._timeout = timeout
        self._buffer = buffer
        self._chunks = iter(chunks)
        self._hash = hashlib.sha256()
        # What may have to be sent again: the bytes from offset ``_start`` to ``_end``.
        self._kept: deque[bytes] = deque()
        self._start = self._end = 0
        self._committed = 0  # the largest offset that the server was seen to have

    def run(self) -> int:
        """Send until the server has all, or will not take it, or nothing goes on."""
        self._retries.call(self._attempt, self._failure, _passes)
        return self._end

    def _attempt(self) -> None:
        try:
            self._send_rest()
        except DurableRefused as error:
            if error.kind is Refusal.SUPERSEDED:  # longer, the more often another attempt was here
                self._retries.wait_at_least(self._superseded.next())
            raise

    def _send_rest(self) -> None:
        machine = DurableSender(self._name, self._epoch, None)
        opened = self._link.open_stream(self._route)
        with begun(opened, machine, Deadline(self._timeout)) as stream:
            stream.timeout = self._timeout + stream.offset / SLOWEST
            self._go_to(stream.offset)
            try:
                self._send(stream)
            finally:
                self._drop(stream.committed)

    def _send(self, stream: DurableStream) -> None:
        for data in self._kept:
            stream.write(data)
        while data := self._pull():
            stream.write(data)
            if self._end - stream.committed > self._buffer:
                stream.wait_committed(stream.timeout, upto=self._end - self._buffer)
            self._drop(stream.committed)
        stream.close(self._hash.digest())

    def _pull(self) -> bytes:
        """Return the next bytes of the task, and keep them; none at their end."""
        try:
            for chunk in self._chunks:
                # A buffer that its owner fills again must not change what is kept.
                data = chunk if isinstance(chunk, bytes) else bytes(memoryview(chunk))
                if data:
                    self._hash.update(data)
                    self._kept.append(data)
                    self._end += len(data)
                    return data
        except Exception as error:
            raise SourceFailed(error) from error
        return b""

    def _go_to(self, offset: int) -> None:
        """Keep exactly what is behind an offset that the server has."""
        if offset < self._start:
            raise self._link.error(
                DATA_LOST,
                f"the server has {offset} bytes of {self._name!r} and had committed {self._start}, "
                "which are not kept here: run the task again, to send them anew",
                self._what,
            )
        while self._end < offset:
            self._drop(self._end)
            if not self._pull():
                raise self._link.error(
                    OTHER_DATA,
                    f"the server has {offset} bytes of {self._name!r}, and this task {self._end}: "
                    "use another name or epoch for other data",
                    self._what,
                )
        self._drop(offset)
        if self._start < offset:
            self._kept[0] = self._kept[0][offset - self._start :]
            self._start = offset

    def _drop(self, committed: int) -> None:
        """Keep nothing of what is committed, but for a piece of which a part is not."""
        if committed > self._committed:
            self._committed = committed
            self._retries.succeeded()
        while self._kept and self._start + len(self._kept[0]) <= committed:
            self._start += len(self._kept.popleft())

    def _failure(self, error: Exception) -> SparkError:
        if isinstance(error, DurableRefused):
            return self._link.error(error.kind.name, error.reason, self._what)
        return self._link.failure(error, self._what)


def _passes(error: Exception) -> bool:
    """Return whether the same may succeed later."""
    if isinstance(error, DurableRefused):
        return error.temporary or error.kind is Refusal.SUPERSEDED
    return True
