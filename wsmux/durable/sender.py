"""Send a durable stream: from a source that can be read again, or from a journal.

No thread of its own: the calls of the application read what the receiver says. One thread may write
while another one waits for commits; whoever finds the other one reading waits for what it reads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from ..config import KIB
from ..exceptions import (
    ConcurrencyError,
    RemoteProtocolError,
    StreamReset,
    StreamWriteClosed,
    WriteTimeout,
)
from ..mux.stream import end_read, read_until
from ..protocols.durable import MAX_DATA, NO_EPOCH, DurableSender, Phase, Refused
from ..runtime.closing import Leaving
from ..runtime.deadline import Deadline, call_within, deadline_in
from ..runtime.interrupts import is_interrupt
from ..runtime.parking import Condition
from .errors import DurableInterrupted, DurableLost, DurableRefused

if TYPE_CHECKING:
    from ..mux.connection import Connection
    from ..mux.stream import Stream
    from .interfaces import Journal

__all__ = ["DurableStream", "begun", "open_durable"]

# Bytes of answers read at once; an answer to a COMMIT has nine.
CHUNK = 16 * KIB

# Times that a write reads what the receiver has said: one that says ever more holds up nobody.
MOST_READS = 16

# Seconds to wait for the reason of a receiver that has stopped reading.
REASON_TIMEOUT = 10.0


def open_durable(
    connection: Connection,
    name: str,
    epoch: bytes | None,
    size: int | None,
    journal: Journal | None,
    timeout: float | None,
) -> DurableStream:
    """Open a durable stream; see ``Connection.open_stream``."""
    if journal is not None:
        if epoch is not None:
            raise ValueError("a journal has an epoch of its own: leave out epoch=")
        epoch = journal.epoch
    machine = DurableSender(name, NO_EPOCH if epoch is None else epoch, size)
    deadline = Deadline(timeout)
    return begun(connection.open_stream(deadline.remaining()), machine, deadline, journal)


def begun(
    stream: Stream, machine: DurableSender, deadline: Deadline, journal: Journal | None = None
) -> DurableStream:
    """Begin a durable stream on one that is open, such as behind the first lines of its server.

    After an error the stream is reset. The errors are those of ``Connection.open_stream``.
    """
    made = DurableStream(stream, machine, journal)
    try:
        made.begin(deadline)
    except BaseException:
        stream.reset()
        raise
    return made


class DurableStream(Leaving):
    """Write data of which the receiver says how far it is committed; made by ``open_stream``.

    It has what ``shutil.copyfileobj`` and ``tqdm.wrapattr`` need of a file::

        with connection.open_stream(durable="upload-17") as stream, open(path, "rb") as file:
            file.seek(stream.offset)
            shutil.copyfileobj(file, stream)

    Whatever ends it early, open the name again and go on at its ``offset``. Leaving the block ends
    the stream with ``close``, or after an exception with ``suspend``.

    Attributes:
        name: as opened.
        timeout: seconds that ``write`` and ``close`` may block, ``None`` for no limit.
    """

    def __init__(self, stream: Stream, machine: DurableSender, journal: Journal | None) -> None:
        self.name = machine.opened.name
        self.timeout = stream.timeout
        stream.timeout = None  # each call has a deadline of its own
        self._stream = stream
        self._machine = machine
        self._journal = journal
        # Guards the machine and what follows; nobody blocks on the network while holding it.
        self._changed = Condition(threading.Lock())
        self._writing = self._flushing = self._closed = False
        # Until when the thread that reads does so, if one does.
        self._reading: Deadline | None = None
        self._refusal: Refused | None = None
        # What a timeout left of a frame; of the thread that writes or flushes.
        self._unsent = b""
        # What was committed when a part of what was written had filled the journal.
        self._filled = -1

    def __repr__(self) -> str:
        state = "closed" if self._closed else "open"
        return f"<DurableStream {self.name!r} {state} {self._machine.committed}/{self.offset}>"

    @property
    def offset(self) -> int:
        """The offset of the next byte to write: at first what the receiver has committed.

        With a journal, the end of the journal.
        """
        return self._machine.sent if self._journal is None else self._journal.end

    @property
    def committed(self) -> int:
        """The offset before which everything is committed, as the last call has learned."""
        return self._machine.committed

    @property
    def closed(self) -> bool:
        """Whether ``close`` or ``suspend`` was called."""
        return self._closed

    def writable(self) -> bool:
        """Return true."""
        return True

    def flush(self) -> None:
        """Do nothing: writes are sent at once."""

    def begin(self, deadline: Deadline) -> None:
        """Send OPEN and wait for the answer; for ``open_durable``."""
        self._send(self._machine.open(), deadline)
        self._await(lambda: self._machine.phase is Phase.FLOWING, deadline)
        if (journal := self._journal) is not None:
            committed = self._machine.committed
            if not journal.start <= committed <= journal.end:
                raise DurableLost(self.name, committed, journal.start, journal.end)
            journal.trim(committed)

    def write(self, data: Any, /) -> int:
        """Send all of ``data``; return its length. With a journal, it is kept there first.

        Blocks while the receiver does not read, and while the journal is full. After an error a
        journal has kept what is before ``offset``, and the next stream sends it.

        Raises:
            WriteTimeout: timed out after taking ``bytes_written`` bytes; write the rest to go on.
                Of what was taken, the next call sends what could not be sent.
            DurableRefused: the receiver takes no more.
            DurableInterrupted, StreamReset, ConnectionClosed: open the name again.
            LocalProtocolError: more than the ``size`` that it was opened for.
            ConcurrencyError: another thread is writing, or closing.
            ValueError: the stream is closed.
        """
        deadline, taken, most = deadline_in(self.timeout), 0, self._largest_part()
        with memoryview(data) as given, given.cast("B") as view, self._alone(deadline):
            self._drain()
            try:
                while taken < len(view):
                    self._send_kept(deadline)
                    taken += self._keep(bytes(view[taken : taken + most]), deadline)
                self._send_kept(deadline)
            except TimeoutError:
                if taken < len(view):
                    raise WriteTimeout(self._stream.id, taken, len(view)) from None
            return len(view)

    def wait_committed(self, timeout: float | None = None, upto: int | None = None) -> int:
        """Wait until everything written so far is committed; return the committed offset.

        It is the receiver's handler that decides when it commits.

        Args:
            timeout: seconds, ``None`` for no limit.
            upto: the offset that is enough, of what was written.

        Raises:
            TimeoutError: it is not within ``timeout`` seconds; the stream stays usable.
            ValueError: the stream is closed.

        The others are those of ``write``.
        """
        deadline = Deadline(timeout)
        with self._changed:
            self._check_open_locked()
            target = self.offset if upto is None else min(upto, self.offset)
        while True:
            self._flush(deadline)
            self._await(lambda: self._machine.committed >= target or self._left(), deadline)
            if self._machine.committed >= target:
                return self._machine.committed

    def close(self, digest: bytes | None = None) -> None:
        """End the data, and wait until the receiver has committed all of it.

        Blocks for at most ``timeout`` seconds. If it fails, the stream is closed nevertheless; open
        the name again and close that. Does nothing if the stream is closed.

        Args:
            digest: the SHA-256 of all data from offset 0, for the receiver to check.

        Raises:
            DurableRefused: the receiver does not take it, such as for another digest.
            TimeoutError: it did not answer in time.
            LocalProtocolError: less was written than the ``size`` that it was opened for.

        The others are those of ``write``.
        """
        if self._closed:
            return
        deadline = deadline_in(self.timeout)
        with self._alone(deadline):
            try:
                self._send_kept(deadline)
                self._drain()
                with self._changed:
                    self._check_refused()
                    end = self._machine.end(digest)
                self._send(end, deadline)
                self._await(lambda: self._machine.phase is Phase.OVER, deadline)
            except BaseException:
                self.suspend()
                raise
            self._closed = True
            self._stream.close()

    def suspend(self) -> None:
        """Leave without an end: the name goes on when it is opened again. Never blocks."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
            self._changed.notify_all()
        self._stream.close()

    def _leave(self, error: BaseException | None) -> None:
        """Close; after an exception suspend, so that partial data never looks complete."""
        if error is None:
            self.close()
        else:
            self.suspend()

    # Writing

    @contextmanager
    def _alone(self, deadline: Deadline) -> Iterator[None]:
        """Become the one thread that writes, once no waiting thread sends what was left."""
        with self._changed:
            self._check_open_locked()
            if self._writing:
                raise ConcurrencyError(f"another thread is writing to {self.name!r}")
            self._writing = True
        try:
            with self._changed:
                while self._flushing:
                    if deadline.expired():
                        raise TimeoutError(self._behind())
                    self._changed.wait(deadline.remaining())
            yield
        finally:
            self._writing = False
            self._hand_over()

    def _flush(self, deadline: Deadline) -> None:
        """Send what is left, unless another thread does."""
        with self._changed:
            if self._writing or self._flushing:
                return
            self._flushing = True
        try:
            self._send_kept(deadline)
        finally:
            with self._changed:
                self._flushing = False
                self._changed.notify_all()
            self._hand_over()

    def _left(self) -> bool:
        """Return whether something is to be sent, and no thread sends it."""
        if self._writing or self._flushing:
            return False
        journal = self._journal
        return bool(self._unsent) or (journal is not None and self._machine.sent < journal.end)

    def _hand_over(self) -> None:
        """Let a thread that waits for commits send what this one has left when its time ended."""
        with self._changed:
            if not self._left():
                return
            self._changed.notify_all()
            reading = self._reading
        if reading is not None:
            end_read(self._stream, reading)

    def _check_open_locked(self) -> None:
        if self._closed:
            raise ValueError(f"the durable stream {self.name!r} is closed")

    def _largest_part(self) -> int:
        """Return how many bytes are taken at once: of a small journal half of what it keeps.

        So one part can be committed while the next one is written.
        """
        journal = self._journal
        return MAX_DATA if journal is None else min(MAX_DATA, max(1, journal.max_bytes // 2))

    def _keep(self, data: bytes, deadline: Deadline) -> int:
        """Take responsibility for a part of what is written; return how much of it.

        That is all of it, or what a small journal has room for: a receiver that commits whole
        records may need just that for the next one. Once the journal was full, it waits for an
        eighth, as a receiver that commits each byte must not get each in a frame of its own; but
        what is committed then may have been all that it could, so a rest is filled once for each.
        """
        journal = self._journal
        if journal is None:
            self._unsent = self._framed(data)
            return len(data)
        eighth = min(len(data), max(1, journal.max_bytes // 8))
        while True:
            with self._changed:  # whoever has read of this has trimmed the journal, too
                committed = self._machine.committed
            room = max(0, journal.max_bytes - (journal.end - journal.start))
            with suppress(TimeoutError):  # another user of the journal was faster
                if room >= (eighth if committed == self._filled else 1):
                    journal.append(data[:room], 0)
                    if room < len(data):
                        self._filled = committed
                    return min(room, len(data))
            if committed == journal.end:  # it is empty, so waiting would be in vain
                raise TimeoutError(self._behind())
            self._send_kept(deadline)
            self._await(partial(self._has_more_than, committed), deadline)

    def _has_more_than(self, committed: int) -> bool:
        return self._machine.committed > committed

    def _framed(self, data: bytes) -> bytes:
        with self._changed:
            self._check_refused()
            return self._machine.data(len(data)) + data

    def _send_kept(self, deadline: Deadline) -> None:
        """Send what a timeout has left, and what the journal has more."""
        while True:
            if self._unsent:
                self._send(self._unsent, deadline)
            journal, sent = self._journal, self._machine.sent
            if journal is None or sent >= journal.end:
                return
            self._unsent = self._framed(journal.read(sent, MAX_DATA))

    def _send(self, data: bytes, deadline: Deadline) -> None:
        """Send a part of the protocol; what cannot be sent in time stays in ``_unsent``."""
        self._unsent = data
        try:
            call_within(deadline, self._stream.write, self._unsent)
        except WriteTimeout as error:
            self._unsent = self._unsent[error.bytes_written :]
            raise
        except (StreamWriteClosed, StreamReset):  # on js-ws, a reset of this half
            self._why()
            raise
        except BaseException as error:
            self._repair(error)
            raise
        self._unsent = b""

    def _repair(self, error: BaseException) -> None:
        """Reset the stream after an interrupt: nobody knows how much of a frame has gone."""
        if is_interrupt(error):
            self._stream.reset()

    def _why(self) -> None:
        """Raise what the receiver says who has stopped reading; return if it says nothing."""
        try:
            self._await(lambda: False, Deadline(REASON_TIMEOUT))
        except TimeoutError:
            return

    # Reading

    def _await(self, reached: Callable[[], bool], deadline: Deadline) -> None:
        """Read what the receiver says, until that is enough, or the stream cannot go on."""
        tried = False
        while True:
            with self._changed:
                while self._reading is not None and not reached():
                    self._check_open_locked()
                    if deadline.expired():
                        raise TimeoutError(self._behind())
                    self._changed.wait(deadline.remaining())
                if reached():
                    return
                if tried and deadline.expired():  # there may always be something to read
                    raise TimeoutError(self._behind())
                self._reading = ends = Deadline(deadline.remaining())
            with self._read_by_this_thread():
                try:
                    self._receive(ends)
                except TimeoutError:
                    if deadline.expired():
                        raise
            tried = True

    def _drain(self) -> None:
        """Read what the receiver has said, unless another thread does. Never blocks."""
        with self._changed:
            if self._reading is not None:
                return
            self._reading = ends = Deadline(0.0)
        with self._read_by_this_thread():
            try:
                for _ in range(MOST_READS):
                    self._receive(ends)
            except TimeoutError:
                return

    @contextmanager
    def _read_by_this_thread(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            self._repair(error)
            raise
        finally:
            with self._changed:
                self._reading = None
                self._changed.notify_all()

    def _receive(self, deadline: Deadline) -> None:
        if self._refusal is None:
            try:
                data = read_until(self._stream, CHUNK, deadline)
            except TimeoutError:
                raise TimeoutError(self._behind()) from None
            if not data:
                raise DurableInterrupted(
                    f"the receiver of {self.name!r} ended the stream without saying why: open it "
                    "again, and see whether durable streams are served there"
                )
            self._answered(data)
        self._check_refused()

    def _check_refused(self) -> None:
        if self._refusal is not None:
            raise DurableRefused(*self._refusal, "remote")

    def _answered(self, data: bytes) -> None:
        with self._changed:
            opened, before = self._machine.phase is Phase.OPENED, self._machine.committed
            try:
                answers = self._machine.receive(data)
            except RemoteProtocolError:
                self._stream.reset()
                raise
            for answer in answers:
                if isinstance(answer, Refused):
                    self._refusal = answer
            # What ACCEPTED says has yet to be compared with the journal.
            if self._journal is not None and not opened and self._machine.committed > before:
                self._journal.trim(self._machine.committed)

    def _behind(self) -> str:
        return (
            f"the receiver of {self.name!r} has committed {self._machine.committed} of "
            f"{self._machine.sent} bytes sent, and did not answer in time"
        )
