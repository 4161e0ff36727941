"""Find out which thread of a connection waits for what, and describe it in sentences.

This takes two steps. ``look_locked`` only copies numbers under the connection's mutex: thread names
are looked up, and texts made, elsewhere. ``findings`` makes sentences from the copy. So a stuck
connection costs the caller no more than the mutex, which no thread holds while waiting.
"""

from __future__ import annotations

import heapq
import threading
import time
from collections.abc import Iterator, Mapping, Set
from typing import NamedTuple

from ..runtime.parking import Waiter
from ..transport.message_transport import Outage
from .multiplexer import Multiplexer
from .stats import Cause, Finding, HalfStatus, StreamStats, Wait
from .stream_record import StreamRecord, read_closed, write_closed

__all__ = ["Look", "Names", "findings", "look", "thread_names"]

# The names of threads, by ident.
Names = Mapping[int | None, str]


class Look(NamedTuple):
    """Hold a snapshot of a connection; times are seconds before it.

    Attributes:
        streams: the requested streams, most interesting first.
        openers, acceptors: the threads in ``open_stream`` and ``accept_stream``.
        queued_bytes: data in the send queue.
        sending: a writer waits for the socket.
        socket_full: how long the peer's system has accepted nothing; ``None`` if nothing is queued.
        silent: how long nothing has arrived from the peer.
        unanswered: how long a ping sent during this silence has been unanswered.
        moved: bytes received and sent.
        error: why the connection ended.
        outage: that a resumable connection has no socket.
    """

    name: str
    streams: list[StreamStats]
    openers: list[Wait]
    acceptors: list[Wait]
    queued_bytes: int
    sending: bool
    socket_full: float | None
    silent: float
    unanswered: float | None
    bytes_received: int
    bytes_sent: int
    error: str | None
    outage: Outage | None


def thread_names() -> Names:
    """Return the names of all current threads."""
    return {thread.ident: thread.name for thread in threading.enumerate()}


def look(
    multiplexer: Multiplexer, names: Names, most: int | None = None, *, idle: bool = True
) -> Look:
    """Take a snapshot of a connection; blocks only for its mutex.

    Args:
        multiplexer: the connection's multiplexer.
        names: the result of ``thread_names``; may be used for several snapshots.
        most: the maximum number of streams to copy, those with waiting threads and most unread
            bytes first. All by default.
        idle: also copy streams without waiting threads and unread bytes; they cost 4 us each.
    """
    with multiplexer.mutex:
        return _look_locked(multiplexer, names, most, idle)


def _look_locked(multiplexer: Multiplexer, names: Names, most: int | None, idle: bool) -> Look:
    now = time.monotonic()
    transport, table, queue = multiplexer.transport, multiplexer.table, multiplexer.queue
    for_room = queue.waiters_locked()

    def waits(pairs: list[tuple[float, int]]) -> list[Wait]:
        return [_wait(since, thread, names, now) for since, thread in pairs]

    records = [record for record in table.records.values() if idle or any(_interest(record))]
    if most is not None and len(records) > most:
        records = heapq.nlargest(most, records, key=_interest)
    return Look(
        name=transport.name,
        streams=[_stream_locked(multiplexer, record, names, now, for_room) for record in records],
        openers=waits(table.openers.waits()),
        acceptors=waits(table.acceptors.waits()),
        queued_bytes=queue.queued_bytes_locked(),
        sending=queue.holder_waits_locked(),
        socket_full=transport.full_for(now),
        silent=transport.keep_alive.silence(now),
        unanswered=transport.keep_alive.unanswered(now),
        bytes_received=transport.frame_reader.bytes_received,
        bytes_sent=queue.bytes_sent,
        error=None if transport.error is None else str(transport.error),
        outage=transport.outage_locked(now),
    )


def _interest(record: StreamRecord) -> tuple[bool, bool, bool, int]:
    waits = record.writer.occupied(), not record.accepted, record.reader.occupied()
    return (*waits, record.buffer.size)


def _wait(since: float, thread: int, names: Names, now: float) -> Wait:
    return Wait(names.get(thread, f"thread {thread}"), max(0.0, now - since))


def _stream_locked(
    multiplexer: Multiplexer, record: StreamRecord, names: Names, now: float, for_room: Set[Waiter]
) -> StreamStats:
    reader, writer = record.reader, record.writer
    return StreamStats(
        id=record.number,
        opened_here=not record.peer_opened,
        accepted=record.accepted,
        reading=_reading(record),
        writing=_writing(record),
        window=record.window,
        unread_bytes=record.buffer.size,
        credit=multiplexer.credit_locked(record),
        peer_credit=multiplexer.protocol.peer_credit(record.id),
        bytes_received=record.received,
        bytes_sent=record.sent,
        reader=_wait(reader.since, reader.thread, names, now) if reader.occupied() else None,
        writer=_wait(writer.since, writer.thread, names, now) if writer.occupied() else None,
        writer_has_credit=writer in for_room,
        bridged=not reader.parks,
        offered=None if record.accepted or record.offered_at is None else now - record.offered_at,
        silent=None if record.heard is None else max(0.0, now - record.heard),
    )


def _reading(record: StreamRecord) -> HalfStatus:
    if record.read_failure is not None:
        return HalfStatus.CLOSED if record.read_failure is read_closed else HalfStatus.FAILED
    return HalfStatus.ENDED if record.ended else HalfStatus.OPEN


def _writing(record: StreamRecord) -> HalfStatus:
    if record.write_failure is None:
        return HalfStatus.OPEN
    return HalfStatus.CLOSED if record.write_failure is write_closed else HalfStatus.FAILED


# Sentences


def findings(seen: Look) -> list[Finding]:
    """Return the findings of a snapshot: the connection's first, then the longest first."""
    if seen.error is not None:
        return [Finding(Cause.ENDED, None, "", 0.0, 0, f"{seen.name} has ended: {seen.error}")]
    found = [*_of_streams(seen), *_of_waiters(seen)]
    found.sort(key=lambda finding: (not finding.cause.stalls, -finding.seconds))
    return [*_of_the_path(seen), *found]


def _of_the_path(seen: Look) -> Iterator[Finding]:
    """Yield causes that block all streams of the connection."""
    if seen.outage is not None:
        out = seen.outage
        again = (
            "" if out.next_attempt is None else f", the next attempt in {out.next_attempt:.1f} s"
        )
        failed = f"; the last attempt failed: {out.attempt}" if out.attempt else ""
        text = (
            f"no connection for {out.seconds:.1f} s ({out.reason}), {out.unacknowledged} bytes are "
            f"unacknowledged{again}; the session is given up in {out.grace_left:.1f} s{failed}"
        )
        yield Finding(Cause.DETACHED, None, "", out.seconds, seen.bytes_received, text)
        return
    if seen.unanswered is not None:
        text = (
            f"the peer has sent nothing for {seen.silent:.1f} s, "
            f"and not answered a ping for {seen.unanswered:.1f} s"
        )
        yield Finding(Cause.SILENT, None, "", seen.silent, seen.bytes_received, text)
    full, waiting = seen.socket_full, seen.queued_bytes
    if full is not None and (seen.sending or waiting):
        waits = "; a writer waits for it" if seen.sending else ""
        taken = f"has taken no byte for {full:.1f} s" if full else "takes no byte for now"
        text = (
            f"the socket is full: the peer's system {taken}, "
            f"and {waiting} bytes wait in the send queue{waits}"
        )
        yield Finding(Cause.SOCKET_FULL, None, "", full, seen.bytes_sent, text)


def _of_streams(seen: Look) -> Iterator[Finding]:
    full = [stream for stream in seen.streams if stream.full]
    for stream in seen.streams:
        writer, reader = stream.writer, stream.reader
        if writer is not None:
            yield _of_a_writer(seen, stream, writer, full)
        elif stream.full and not any(_starved(other) for other in seen.streams):
            yield _unread(stream)
        if reader is not None:
            yield _of_a_reader(stream, reader)
        if stream.offered is not None:
            text = (
                f"stream {stream.id}, which the peer opened, has waited {stream.offered:.1f} s "
                f"for somebody to accept it; {_count(seen.acceptors)} in accept_stream"
            )
            yield Finding(Cause.NOT_ACCEPTED, stream.id, "", stream.offered, 0, text)


def _starved(stream: StreamStats) -> bool:
    """Return whether a writer waits for credit."""
    return stream.writer is not None and not stream.writer_has_credit


def _of_a_writer(seen: Look, stream: StreamStats, writer: Wait, full: list[StreamStats]) -> Finding:
    who, seconds = writer
    where = f"{who} has waited {seconds:.1f} s in a write to stream {stream.id}"
    if stream.writer_has_credit:
        cause = Cause.NO_ROOM
        why = f"for room in the send queue, where {seen.queued_bytes} bytes wait for the socket"
    elif full:
        cause = Cause.BOTH_FULL
        ids = ", ".join(str(other.id) for other in full[:3]) + (", ..." if full[3:] else "")
        unread = sum(other.unread_bytes for other in full)
        why = (
            f"without credit, while {unread} bytes of the peer lie unread here on stream {ids} "
            "and it may send no more either: both sides write and neither reads"
        )
    elif not (stream.bytes_sent or stream.bytes_received):
        cause = Cause.NO_CREDIT
        why = "without credit: the peer has answered nothing on this stream yet"
    else:
        cause = Cause.NO_CREDIT
        why = "without credit: the peer's application does not read what it was sent"
    moved = stream.bytes_sent
    return Finding(cause, stream.id, who, seconds, moved, f"{where}, {why}")


def _unread(stream: StreamStats) -> Finding:
    lain = stream.silent or 0.0
    who = "nobody is reading it"
    if stream.bridged:
        who = "the bridge that reads it cannot send them on"
    text = (
        f"{stream.unread_bytes} bytes lie unread on stream {stream.id}, {who}, "
        f"and the peer may send no more; the last came {lain:.1f} s ago"
    )
    return Finding(Cause.UNREAD, stream.id, "", lain, stream.bytes_received, text)


def _of_a_reader(stream: StreamStats, reader: Wait) -> Finding:
    who, seconds = reader
    last = "has sent nothing on it yet"
    if stream.silent is not None:
        last = f"has sent nothing on it for {stream.silent:.1f} s"
    text = f"{who} has waited {seconds:.1f} s in a read of stream {stream.id}; the peer {last}"
    moved = stream.bytes_received
    return Finding(Cause.NOTHING_TO_READ, stream.id, who, seconds, moved, text)


def _of_waiters(seen: Look) -> Iterator[Finding]:
    for who, seconds in seen.openers:
        text = (
            f"{who} has waited {seconds:.1f} s in open_stream: the peer has not answered "
            "earlier streams, or permits no further one"
        )
        yield Finding(Cause.NO_OPENING, None, who, seconds, seen.bytes_received, text)
    for who, seconds in seen.acceptors:
        text = f"{who} has waited {seconds:.1f} s in accept_stream: the peer has opened no stream"
        yield Finding(Cause.NO_STREAM, None, who, seconds, 0, text)


def _count(waits: list[Wait]) -> str:
    return {0: "no thread is", 1: "one thread is"}.get(len(waits), f"{len(waits)} threads are")
