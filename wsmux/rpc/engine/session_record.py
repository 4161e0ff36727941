"""Hold a server's state of a session besides its counters, and send over its connection.

``server_engine`` describes threads and locks.
"""

from __future__ import annotations

import threading
from typing import Any

from ...protocols.base import Message
from ...runtime.parking import Parker, WaitQueue
from ...transport.message_transport import MessageTransport
from ..options import Options
from ..session.metadata_refresh import MetadataRefresh
from ..session.session import Session

__all__ = ["SessionRecord"]


class SessionRecord:
    """Hold a session's connection, its metadata and when those are due.

    ``ServerEngine`` owns it, and alone changes its attributes. What runs and answers calls reads
    ``ended`` and ``metadata``, and sends with ``send_locked``. The server's mutex guards it, and is
    held for every method; ``order`` is a lock itself.

    Attributes:
        session: its counters and its buffer.
        order: held by the thread that handles a message of the session; taken before the mutex.
        channel: the present connection, or ``None``.
        metadata: what the last validation returned.
        refresh: when new metadata are due.
        renewing: new metadata are being checked.
        ended: the session is over; nothing is sent any more.
        room: threads that wait for acknowledgements, to send more.
        waiting_runs: the same for generators, which wait without a thread.
    """

    def __init__(self, session: Session, options: Options) -> None:
        self.session = session
        self.order = threading.Lock()
        self.channel: MessageTransport | None = None
        self.metadata: Any = None
        self.refresh = MetadataRefresh(options)
        self.renewing = False
        self.ended = False
        self.room = WaitQueue()
        self.waiting_runs: set[Parker] = set()

    def next_timer(self) -> float | None:
        """Return when a connected session next has something to do."""
        timers = (self.session.next_timer(), self.refresh.next_timer())
        return min((due for due in timers if due is not None), default=None)

    def current(self, attachment: int) -> bool:
        """Return whether the connection with that number is still the session's."""
        return self.session.attached and self.session.attachments == attachment

    def notify_room_locked(self, wakes: list[Parker]) -> None:
        """Make writers check again for room, or for the end of their session."""
        self.room.notify(wakes)
        if self.waiting_runs:
            wakes += self.waiting_runs
            self.waiting_runs.clear()

    def send_locked(self, stream_id: str, packed: bytes, flags: int) -> MessageTransport | None:
        """Send a message, unless the session is over.

        Returns the transport to flush once the mutex is released, if the session has a connection.

        Raises:
            EncodeError: the codec cannot encode it; nothing has changed.
        """
        if self.ended:
            return None
        self.session.send(packed, stream_id=stream_id, flags=flags)
        return self.queue_locked()

    def queue_locked(self) -> MessageTransport | None:
        """Queue the session's output on its connection, whose mutex is taken, and return that."""
        channel = self.channel
        if channel is not None and self.session.has_output():
            messages: list[Message] = [(data, b"") for data in self.session.data_to_send()]
            with channel.mutex:
                channel.queue.add_data_locked(messages)
        return channel
