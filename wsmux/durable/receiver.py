"""Receive durable streams: run a handler for each, behind what it has committed.

Of senders that use one name, the newest has it. The one before is told so, its handler finds its
stream superseded, and only when it has returned is the newer one answered: so no effect of the
older one happens behind the offset that the newer one begins at.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from ..config import KIB
from ..exceptions import ConnectionClosed, RemoteProtocolError, StreamError
from ..protocols.durable import Data, DurableReceiver, End, Open, Phase, Received
from ..runtime.deadline import Deadline, call_within, deadline_in
from ..runtime.logs import logger
from ..runtime.parking import Condition
from .errors import DurableError, DurableInterrupted, DurableRefused, Refusal

if TYPE_CHECKING:
    from ..mux.connection import Connection
    from ..mux.stream import Stream
    from .interfaces import Offsets

__all__ = ["DurableHandler", "ReceivedStream"]

# Bytes read from the stream at once.
CHUNK = 256 * KIB

# Committed bytes of which the sender is told at once, even if more has come already. A sender reads
# what it is told when it writes, so it must not get a COMMIT for each byte of a chunk. Of the rest
# it is told before a read waits for more, which the sender may send only then.
TELL = 16 * KIB

# Durable streams of a handler at once.
MAX_STREAMS = 64

# Seconds until OPEN has come; until a sender takes what it is told; until a superseded one does;
# and until its handler has returned.
OPEN_TIMEOUT = 10.0
TELL_TIMEOUT = 30.0
SUPERSEDED_TIMEOUT = 1.0
HANDOVER = 10.0

_log = logger("wsmux")

Handler = Callable[..., object]


class ReceivedStream:
    """Read the data of a durable stream, and say how far it has its effect.

    One thread reads; any may commit.

    Attributes:
        connection: that carries it.
        timeout: seconds that each read may block, ``None`` for no limit.
        offset: of the next byte that ``read`` returns; at first what was committed before.
        committed: the offset before which everything is committed.
        digest: the SHA-256 of all data, once ``read`` has returned ``b""``, if the sender gave it.
    """

    def __init__(self, stream: Stream, offsets: Offsets) -> None:
        self.connection: Connection = stream.connection
        self.timeout: float | None = stream.timeout
        self.offset = self.committed = 0
        self.digest: bytes | None = None
        stream.timeout = None  # each call has a deadline of its own
        self._stream = stream
        self._offsets = offsets
        self._machine = DurableReceiver()
        self._pieces: deque[memoryview] = deque()
        self._superseded = self._waiting = False
        # The first guards the machine, and whether a read waits. The second is held while the store
        # commits and the sender is told, so that both happen in the order of the offsets.
        self._lock, self._telling = threading.Lock(), threading.Lock()

    def __repr__(self) -> str:
        return f"<ReceivedStream {self._opened.name!r} {self.committed}/{self.offset}>"

    @property
    def _opened(self) -> Open:
        return self._machine.opened or Open("", b"", None)

    @property
    def name(self) -> str:
        """The name under which the sender opened it."""
        return self._opened.name

    @property
    def epoch(self) -> bytes:
        """The sender's epoch, 16 bytes."""
        return self._opened.epoch

    @property
    def size(self) -> int | None:
        """The final offset, as the sender has announced it; ``None`` if it has not."""
        return self._opened.size

    def readable(self) -> bool:
        """Return true."""
        return True

    def read(self, size: int | None = -1, /) -> bytes:
        """Return up to ``size`` bytes as soon as any are there; without a size, all to the end.

        ``b""`` means that the sender has ended the data, or that ``size`` is 0. Before a wait the
        sender is told what is committed, as by ``commit``.

        Raises:
            TimeoutError: no bytes arrived in time.
            DurableInterrupted: the sender left before the end, or took nothing of what it is told
                in 30 s, whatever ``timeout`` is.
            DurableRefused: another sender has taken over the name.
            StreamReset, ConnectionClosed: the stream, or its connection, was lost.
            RemoteProtocolError: the sender broke the protocol.
        """
        if size is None or size < 0:
            return b"".join(iter(lambda: self.read(CHUNK), b""))
        deadline = deadline_in(self.timeout)
        while size and not self._pieces and self._machine.phase in (Phase.OPENED, Phase.FLOWING):
            self.check()
            with self._waits(deadline):
                self._keep(self._received(deadline))
        if not size or not self._pieces:
            return b""
        piece = self._pieces.popleft()
        if len(piece) > size:
            self._pieces.appendleft(piece[size:])
            piece = piece[:size]
        self.offset += len(piece)
        return bytes(piece)

    def commit(self, offset: int | None = None) -> None:
        """Record that everything before ``offset``, by default all that was read, has its effect.

        Blocks until the offset is stored, and up to 30 s until the sender is told, or its
        connection has a place for that. The sender may be told of several at once.

        Raises:
            DurableInterrupted: the sender took nothing in these 30 s; the offset is stored.
            DurableRefused: another sender has taken over the name; nothing is stored.
            ValueError: the offset is lower than before, or was not read yet.

        The others are those of the store and of ``Stream.write``; then it may be stored.
        """
        with self._telling:
            self.check()
            offset = self.offset if offset is None else offset
            if not self.committed <= offset <= self.offset:
                raise ValueError(
                    f"offset {offset} of {self.name!r} cannot be committed: {self.committed} is, "
                    f"and {self.offset} was read"
                )
            self._offsets.commit(self.name, self.epoch, offset)
            self.committed = offset
            with self._lock:
                told, received = self._machine.committed, self._machine.received
                soon = offset < received and offset - told < TELL and not self._waiting
                if offset == told or soon:
                    return
                frame = self._machine.commit(offset)
            self._tell(frame)

    def check(self) -> None:
        """Return if no other sender has taken over the name; ``read`` and ``commit`` do so, too.

        For a handler that works for long without either, which the newer sender has to wait for.

        Raises:
            DurableRefused: another sender has.
        """
        if self._superseded:
            raise _superseded(self.name)

    # For ``DurableHandler``

    def begin(self) -> Open:
        """Wait for OPEN and return it."""
        deadline = Deadline(OPEN_TIMEOUT)
        try:
            while self._machine.phase is Phase.NEW:
                self._keep(self._received(deadline))
        except TimeoutError:
            text = f"a stream did not begin as a durable one within {OPEN_TIMEOUT:g} s"
            raise DurableInterrupted(text) from None
        return self._opened

    def accept(self, committed: int) -> None:
        """Answer OPEN."""
        if committed < 0:
            raise ValueError(f"the store has an offset of {committed} for {self.name!r}")
        size = self.size
        if size is not None and committed > size:
            raise DurableRefused(
                Refusal.EXISTS,
                f"{committed} bytes of {self.name!r} are committed, of which there are {size}: use "
                "another epoch for other data",
            )
        self.offset = self.committed = committed
        with self._telling, self._lock:
            frame = self._machine.accept(committed)
        self._tell(frame)

    def complete(self) -> None:
        """Commit what is left, and answer END."""
        if self.read(1):
            raise DurableRefused(Refusal.FAILED, "the handler returned before the end of the data")
        if self.committed < self.offset:
            self.commit()
        with self._telling, self._lock:
            frame = self._machine.complete()
        self._tell(frame)

    def refuse(self, kind: Refusal, reason: str) -> None:
        """Send the sender the reason why it cannot continue, if it can still be sent."""
        with self._telling, self._lock:
            if self._machine.phase is Phase.OVER:
                return
            frame = self._machine.refuse(kind, reason)
        # The sender may have gone, or read nothing; then it cannot be told.
        with suppress(ConnectionClosed, StreamError, TimeoutError, ValueError):
            self._tell(frame)

    def supersede(self) -> None:
        """Make its handler return, whose sender has been replaced. Never blocks."""
        self._superseded = True
        self._stream.close_read()

    def reset(self) -> None:
        """End it whatever it waits for. Never blocks."""
        self._stream.reset()

    def _tell(self, frame: bytes) -> None:
        try:
            timeout = SUPERSEDED_TIMEOUT if self._superseded else TELL_TIMEOUT
            call_within(Deadline(timeout), self._stream.write, frame)
        except TimeoutError as error:
            self._stream.reset()
            raise DurableInterrupted(
                f"the sender of {self.name!r} did not take what is committed for {timeout:g} s"
            ) from error
        except BaseException:
            self._stream.reset()  # with a part of a frame sent, nothing can follow
            raise

    @contextmanager
    def _waits(self, deadline: Deadline) -> Iterator[None]:
        """Tell the sender at once what is committed, and so far was not told."""
        with self._lock:
            self._waiting = True  # a thread that commits from here on sees it
            untold = self.committed > self._machine.committed
        try:
            if untold:
                self._tell_committed(deadline)
            yield
        finally:
            with self._lock:
                self._waiting = False

    def _tell_committed(self, deadline: Deadline) -> None:
        if not self._telling.acquire(timeout=deadline.park_seconds()):
            raise TimeoutError(f"another thread was committing {self.name!r} all the time")
        try:
            with self._lock:
                if self.committed == self._machine.committed:
                    return
                frame = self._machine.commit(self.committed)
            self._tell(frame)
        finally:
            self._telling.release()

    def _received(self, deadline: Deadline) -> list[Received]:
        try:
            data = call_within(deadline, self._stream.read, CHUNK)
        except ValueError:
            self.check()
            raise
        if not data:
            raise DurableInterrupted(
                f"the sender of {self.name!r} left before the end; what is committed stays so"
            )
        with self._lock:
            return self._machine.receive(data)

    def _keep(self, events: list[Received]) -> None:
        for event in events:
            if isinstance(event, Data):
                self._pieces.append(event.data)
            elif isinstance(event, End):
                self.digest = event.digest


class DurableHandler:
    """Serve durable streams; it is what ``serve`` and ``Mux`` take as a handler of streams.

    ::

        server = wsmux.serve(stream_handler=DurableHandler(handle, offsets=store))

    ``handle(stream)`` is called with each ``ReceivedStream``, from the offset on that the store has
    committed. It reads, has its effect, and commits; when it returns after the end of the data,
    what is left is committed, and the sender is told that all is there. When it raises, the sender
    is told why, or at least that it failed, and may open the name again. Then, and after anything
    else that ends the stream early, the next call begins at what is committed: once or more often
    happens what is between an effect and its commit, and nothing if both are one write.

    Use one object for all streams of a store in a process: it knows who uses which name.

    Args:
        handler: takes a ``ReceivedStream``, and the variables of a route.
        offsets: the store.
        max_streams: how many there may be at once; further ones are refused as ``BUSY``.
    """

    def __init__(
        self, handler: Handler, *, offsets: Offsets, max_streams: int = MAX_STREAMS
    ) -> None:
        if not callable(handler):
            kind = type(handler).__name__
            raise TypeError(f"durable streams are served by a function of a stream, not {kind}")
        if max_streams < 1:
            raise ValueError(f"max_streams must be at least 1, not {max_streams}")
        self._handler = handler
        self._offsets = offsets
        self._senders = _Senders(max_streams)

    def __call__(self, stream: Stream, **variables: Any) -> None:
        """Serve one stream to its end."""
        received = ReceivedStream(stream, self._offsets)
        with (
            _refusing(received),
            self._senders.only(received, received.begin()),
            _refusing(received),  # before the name is free again
        ):
            received.accept(self._offsets.committed(received.name, received.epoch))
            self._handler(received, **variables)
            received.complete()


@contextmanager
def _refusing(received: ReceivedStream) -> Iterator[None]:
    """Send the sender what ends its stream, unless it knows that."""
    try:
        yield
    except DurableRefused as error:
        received.refuse(error.kind, error.reason)
        _log.info("the durable stream %r ended: %s", received.name, error)
    except RemoteProtocolError as error:
        received.refuse(Refusal.MALFORMED, str(error))
        _log.info("the durable stream %r ended: %s", received.name, error)
    except (ConnectionClosed, StreamError, DurableError) as error:
        received.reset()
        _log.info("the durable stream %r was interrupted: %s", received.name, error)
    except Exception as error:
        _log.exception("the handler of the durable stream %r failed", received.name)
        received.refuse(Refusal.FAILED, f"the receiver failed ({type(error).__name__})")


class _Senders:
    """Know which stream has which name."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._changed = Condition(threading.Lock())
        self._openings = 0
        # With the number of its opening: threads that wait for a name may wake in any order.
        self._by_name: dict[str, tuple[int, ReceivedStream]] = {}

    @contextmanager
    def only(self, received: ReceivedStream, opened: Open) -> Iterator[None]:
        """Become the only stream of its name; the one before ends.

        Raises:
            DurableRefused: that has another epoch or does not end in time, or there are too many;
                or a later one has become it.
        """
        self._take(received, opened)
        try:
            yield
        finally:
            with self._changed:
                del self._by_name[opened.name]
                self._changed.notify_all()

    def _take(self, received: ReceivedStream, opened: Open) -> None:
        deadline = Deadline(HANDOVER)
        with self._changed:
            self._openings += 1
            number = self._openings
        while True:
            with self._changed:
                found = self._by_name.get(opened.name)
                if found is None:
                    if len(self._by_name) >= self._most:
                        text = f"{self._most} durable streams are open: try again later"
                        raise DurableRefused(Refusal.BUSY, text)
                    self._by_name[opened.name] = number, received
                    return
            other, holder = found
            if holder.epoch != opened.epoch:
                text = f"a sender of another epoch is sending {opened.name!r}: try again later"
                raise DurableRefused(Refusal.BUSY, text)
            if other > number:
                raise _superseded(opened.name)
            holder.supersede()
            self._wait_for_end(opened.name, holder, deadline)

    def _wait_for_end(self, name: str, older: ReceivedStream, deadline: Deadline) -> None:
        with self._changed:
            while (found := self._by_name.get(name)) is not None and found[1] is older:
                if deadline.expired():
                    text = f"the handler of the sender of {name!r} before has not returned yet"
                    raise DurableRefused(Refusal.BUSY, text)
                self._changed.wait(deadline.remaining())


def _superseded(name: str) -> DurableRefused:
    text = f"another sender has opened {name!r} in the same epoch"
    return DurableRefused(Refusal.SUPERSEDED, text)
