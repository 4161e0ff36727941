"""Find the session of each client that reconnects, on the server.

One lock guards the table. Under it nothing is read, written or waited for, and no transport's mutex
is taken.
"""

from __future__ import annotations

import os
import socket
import threading
from collections import OrderedDict

from ..config import Resume
from ..exceptions import HandshakeError, WsmuxError
from ..handshake.greeting import receive_greeting, send_greeting
from ..protocols.base import Role
from ..protocols.resumption import (
    EPOCH_SIZE,
    KEY_SIZE,
    Hello,
    Refusal,
    Session,
    is_signed,
    parse_hello,
)
from ..runtime import fork
from ..runtime.deadline import Deadline
from ..runtime.logs import logger
from ..runtime.parking import OneShotEvent
from ..transport.resumable_transport import Carrier, ResumableTransport

__all__ = ["ResumableSessions"]

_log = logger("wsmux")


class _Entry:
    """One session, and its transport, once there is one."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.transport: ResumableTransport | None = None


class ResumableSessions:
    """Hold the sessions of one server or route.

    Args:
        resume: the limits.
    """

    def __init__(self, resume: Resume) -> None:
        self._resume = resume
        self._epoch = os.urandom(EPOCH_SIZE)
        self.forked()
        fork.register(self)

    def forked(self) -> None:
        """Start over: a forked child has no sessions."""
        self._lock = threading.Lock()
        self._entries: dict[bytes, _Entry] = {}
        self._detached: OrderedDict[bytes, ResumableTransport] = OrderedDict()
        self._stopping = False

    def __len__(self) -> int:
        return len(self._entries)

    def greet(
        self, sock: socket.socket, deadline: Deadline, returns: bool = False
    ) -> Session | OneShotEvent:
        """Read the HELLO of a new carrier, and answer it.

        Blocks until it has arrived. Returns the new session, of which the caller owns the socket;
        or, if the socket went to the session it resumes, an event that is set once that has closed
        it.

        Args:
            returns: no new session is begun, since the server is full.

        Raises:
            HandshakeError: it was refused, or is no HELLO; the socket is closed.
            TimeoutError, OSError: as above.
        """
        try:
            message = receive_greeting(sock, Role.SERVER, deadline)
            hello, signed, mac = parse_hello(message)
            found = self._find(hello, signed, mac, returns)
            if isinstance(found, Session):
                welcome = found.welcome()._replace(key=found.key)
                try:
                    send_greeting(sock, Role.SERVER, welcome.encode(), deadline)
                except BaseException:
                    self.forget(found)
                    raise
                return found
            if isinstance(found, ResumableTransport):
                released = OneShotEvent()
                carrier = Carrier(sock, hello.received, hello.oldest, True, released.set)
                if found.offer(carrier):
                    return released
                found = Refusal(True, "the session has just ended")
            if found is None:  # no answer, so the client tries again
                raise HandshakeError(
                    "a client resumed a session that is still being made; it will try again"
                )
            send_greeting(sock, Role.SERVER, found.encode(), deadline)
            raise HandshakeError(f"a client may not resume: {found.reason}")
        except WsmuxError as error:
            sock.close()
            if isinstance(error, HandshakeError):
                raise
            raise HandshakeError(str(error)) from error
        except OSError:
            sock.close()
            raise

    def _find(
        self, hello: Hello, signed: bytes, mac: bytes, returns: bool
    ) -> Session | ResumableTransport | Refusal | None:
        """Return the new session, the transport of the one that is resumed, or a refusal.

        ``None`` if its transport is still being made: the client may have read WELCOME, lost the
        first carrier and come back before the thread that sent it goes on.
        """
        with self._lock:
            entry = self._entries.get(hello.session)
            if self._stopping:
                return Refusal(True, "the server shuts down")
            if not hello.resuming:
                if returns:
                    return Refusal(False, "as many connections are open as this server takes")
                if entry is not None:
                    return Refusal(False, "there is a session of this id")
                return self._new_locked(hello)
            if entry is None or hello.epoch != self._epoch:
                return Refusal(True, "this server does not have the session")
            if not is_signed(entry.session.key, signed, mac):
                return Refusal(False, "HELLO is not signed with the key of the session")
            if entry.transport is None:
                return None
            if hello.generation <= entry.session.generation:
                return Refusal(False, "a later carrier was there before")
            entry.session.generation = hello.generation
            return entry.transport

    def _new_locked(self, hello: Hello) -> Session:
        session = Session(hello.session, self._resume.buffer, self._resume.grace)
        session.met(hello.buffer)
        session.epoch, session.key = self._epoch, os.urandom(KEY_SIZE)
        self._entries[hello.session] = _Entry(session)
        return session

    def forget(self, session: Session) -> None:
        """Drop a new session for which there will be no transport."""
        with self._lock:
            self._entries.pop(session.id, None)

    def stop(self) -> None:
        """Give up the sessions without a carrier, now and from now on: nobody is let in."""
        with self._lock:
            self._stopping = True
            waiting = list(self._detached.values())
        for transport in waiting:
            transport.lose("the server shuts down")

    # As the ``Carriers`` of the transports

    def started(self, transport: ResumableTransport) -> None:
        session = transport.session
        with self._lock:
            entry = self._entries.get(session.id)
            if entry is not None:  # otherwise the table started over in a forked child
                entry.transport = transport

    def lost(self, transport: ResumableTransport) -> None:
        session = transport.session
        with self._lock:
            self._detached[session.id] = transport
            given_up, reason = None, ""
            if self._stopping:
                given_up, reason = transport, "the server shuts down"
            elif len(self._detached) > self._resume.max_detached:
                _, given_up = self._detached.popitem(last=False)
                reason = f"more than {self._resume.max_detached} sessions have no connection"
        if given_up is not None:
            _log.info("%s is given up: %s", given_up.name, reason)
            given_up.lose(reason)

    def found(self, transport: ResumableTransport) -> None:
        session = transport.session
        with self._lock:
            self._detached.pop(session.id, None)

    def ended(self, transport: ResumableTransport) -> None:
        session = transport.session
        with self._lock:
            self._detached.pop(session.id, None)
            self._entries.pop(session.id, None)

    def hurry(self) -> None:
        """Do nothing: only a client connects."""

    def next_attempt(self) -> float | None:
        return None
