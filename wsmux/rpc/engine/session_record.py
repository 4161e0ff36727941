"""Hold the state of a server's session besides its counters, and send over its connection.

``server_engine`` describes the threads and locks.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, NamedTuple

from ...protocols.base import Message
from ...runtime.parking import Parker, WaitQueue
from ...transport.message_transport import MessageTransport
from ..options import Options
from ..session.metadata_refresh import MetadataRefresh
from ..session.session import Session

__all__ = ["NOBODY", "Caller", "Renewal", "SessionRecord"]


class Caller(NamedTuple):
    """Say whose connection it is, if the web application that has accepted it knows.

    Attributes:
        user: the name that ``authorize=`` gave.
        admits_call: counts a call that the user begins; false if it is one too many. Never blocks.
    """

    user: str | None = None
    admits_call: Callable[[], bool] | None = None


NOBODY = Caller()


class Renewal(NamedTuple):
    """Hold new metadata of a client, and the connection over which they came."""

    metadata: Any
    attachment: int
    channel: MessageTransport


class SessionRecord:
    """Hold a session's connection and its metadata.

    Only ``ServerEngine``, which owns it, changes its attributes. The modules that run and answer
    calls read ``ended`` and ``metadata``, and send with ``send_locked``. The server's mutex guards
    everything but ``order``, which is a lock itself; callers of the methods hold it.

    Attributes:
        session: its counters and its buffer.
        order: held by the thread that handles a message of the session; taken before the mutex.
        channel: the current connection, or ``None``.
        metadata: the result of the last validation.
        caller: whose the latest connection is; the user is the same for all of them.
        refresh: when new metadata are due.
        renewing: whether new metadata are being validated.
        renewed_next: what is to be validated after those.
        ended: whether the session is over, and nothing is sent any more.
        room: threads that wait for acknowledgements before they send more.
        waiting_runs: the same for generators, which wait without a thread.
    """

    def __init__(self, session: Session, options: Options) -> None:
        self.session = session
        self.order = threading.Lock()
        self.channel: MessageTransport | None = None
        self.metadata: Any = None
        self.caller = NOBODY
        self.refresh = MetadataRefresh(options)
        self.renewing = False
        self.renewed_next: Renewal | None = None
        self.ended = False
        self.room = WaitQueue()
        self.waiting_runs: set[Parker] = set()

    def next_timer(self) -> float | None:
        """Return the time of the next action of a connected session."""
        session, refresh = self.session.next_timer(), self.refresh.next_timer()
        if session is None or refresh is None:
            return refresh if session is None else session
        return min(session, refresh)

    def current(self, attachment: int) -> bool:
        """Return whether a connection, given by its number, is still the session's."""
        return self.session.attached and self.session.attachments == attachment

    def notify_room_locked(self, wakes: list[Parker]) -> None:
        """Wake writers that wait for room, or that must learn of the session's end."""
        self.room.notify(wakes)
        if self.waiting_runs:
            wakes += self.waiting_runs
            self.waiting_runs.clear()

    def send_locked(
        self, stream_id: str, packed: bytes, flags: int, *, provoked: bool = False
    ) -> MessageTransport | None:
        """Send a message, unless the session is over; for ``provoked`` see ``Session.send``.

        Returns the transport that the caller must flush after it has released the mutex, or
        ``None`` if the session has no connection.

        Raises:
            EncodeError: the codec cannot encode it; nothing has changed.
        """
        if self.ended:
            return None
        self.session.send(packed, stream_id=stream_id, flags=flags, provoked=provoked)
        return self.queue_locked()

    def queue_locked(self) -> MessageTransport | None:
        """Queue the session's output on its connection, under that one's mutex, and return it."""
        channel = self.channel
        if channel is not None and self.session.has_output():
            messages: list[Message] = [(data, b"") for data in self.session.data_to_send()]
            with channel.mutex:
                channel.queue.add_data_locked(messages)
        return channel
