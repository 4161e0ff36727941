"""Find the session of each client that reconnects, on the server.

One lock guards the table. Under it nothing is read, written or waited for, and no transport's mutex
is taken. Sessions of other processes are theirs to find; see ``handover``. A second lock is held
while this process begins to listen for them, or ends; threads that answer clients do not need it.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import ssl
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from ..config import Resume
from ..exceptions import HandshakeError, NoThreadError, WsmuxError
from ..handshake.greeting import receive_greeting, send_greeting
from ..handshake.request import Request
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
from ..runtime.files import private_folder
from ..runtime.logs import logger
from ..runtime.parking import Condition, OneShotEvent
from ..transport.resumable_transport import Carrier, ResumableTransport

if TYPE_CHECKING:
    from .handover import TakeOver

__all__ = ["ResumableSessions"]

# Told to a client that was let in only to return to a session, and begins one.
FULL = "as many connections are open as this server takes, or as this user may have"

_log = logger("wsmux")


# Told to a client that returns elsewhere, or as somebody else; not what it was before.
ELSEWHERE = "the session began on another path, or as another user"


def origin_of(request: Request | None) -> bytes:
    """Return what a client that returns has to have in common with the one that began: 32 bytes.

    They stand for the path and the user of its request; a plain socket has neither.
    """
    told = None if request is None else [request.path, request.user]
    return hashlib.sha256(json.dumps(told).encode()).digest()


class _Entry:
    """One session, where it began, and its transport, once there is one."""

    def __init__(self, session: Session, origin: bytes) -> None:
        self.session = session
        self.origin = origin
        self.transport: ResumableTransport | None = None


class ResumableSessions:
    """Hold the sessions of one server or route.

    Args:
        resume: the limits.

    Raises:
        PermissionError: ``resume.workers`` is a directory that others have access to.
        OSError: it cannot be made.
    """

    def __init__(self, resume: Resume) -> None:
        self._resume = resume
        self._workers = None if resume.workers is None else Path(resume.workers)
        if self._workers is not None:
            private_folder(self._workers)
        self.forked()
        fork.register(self)

    def forked(self) -> None:
        """Start over: a forked child has no sessions, and is another process to its clients."""
        self._epoch = os.urandom(EPOCH_SIZE)
        self._lock = threading.Lock()
        self._entries: dict[bytes, _Entry] = {}
        self._detached: OrderedDict[bytes, ResumableTransport] = OrderedDict()
        self._stopping = False
        self._told_changed = Condition(self._lock)
        self._untold: set[bytes] = set()  # sessions given up, whose clients do not know it yet
        self._listening = threading.Lock()
        self._take_over: TakeOver | None = None
        self._told = False

    def __len__(self) -> int:
        return len(self._entries)

    def may_return(self) -> bool:
        """Return whether there may be sessions to return to, here or in another process."""
        return self._workers is not None or bool(self._entries)

    def greet(
        self,
        sock: socket.socket,
        deadline: Deadline,
        returns: bool = False,
        passes: bool = True,
        request: Request | None = None,
    ) -> Session | OneShotEvent:
        """Read the HELLO of a new carrier, and answer it.

        Blocks until it has arrived. Returns the new session, of which the caller owns the socket;
        or, if the socket went to the session it resumes, an event that is set once this process has
        closed it.

        Args:
            returns: no new session is begun, since the server is full.
            passes: the caller does nothing with the socket but close it, if it went to another
                process.
            request: over which the carrier came. Its path and user are those of the session.

        Raises:
            HandshakeError: it was refused, or is no HELLO; the socket is closed.
            TimeoutError, OSError: as above.
        """
        with _closed_by_errors(sock):
            message = receive_greeting(sock, Role.SERVER, deadline)
            hello, signed, mac = parse_hello(message)
            origin = origin_of(request)
            if not hello.resuming:
                self._listen()
            elif self._is_foreign(hello):
                passes = passes and not isinstance(sock, ssl.SSLSocket)
                return self._hand_over(sock, hello, origin + message, deadline, passes)
            return self._answer(sock, hello, signed, mac, origin, deadline, returns)

    def _answer(
        self,
        sock: socket.socket,
        hello: Hello,
        signed: bytes,
        mac: bytes,
        origin: bytes,
        deadline: Deadline,
        returns: bool = False,
    ) -> Session | OneShotEvent:
        """Answer a HELLO that is for this process; see ``greet``."""
        found = self._find(hello, signed, mac, origin, returns)
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
            carrier = Carrier(
                sock, hello.received, hello.oldest, True, released.set, hello.generation
            )
            if found.offer(carrier):
                return released
            found = Refusal(True, "the session has just ended")
        if found is None:  # no answer, so the client tries again
            raise HandshakeError(
                "a client resumed a session that is still being made; it will try again"
            )
        try:
            _refuse(sock, found, deadline)
        finally:
            self._has_been_told(hello.session)

    def _find(
        self,
        hello: Hello,
        signed: bytes,
        mac: bytes,
        origin: bytes,
        returns: bool = False,
        looks: bool = False,
    ) -> Session | ResumableTransport | Refusal | None:
        """Return the new session, the transport of the one that is resumed, or a refusal.

        ``None`` if its transport is still being made: the client may have read WELCOME, lost the
        first carrier and come back before the thread that sent it goes on.

        Args:
            looks: nothing is changed, so that the HELLO can still be used.
        """
        with self._lock:
            entry = self._entries.get(hello.session)
            if self._stopping:
                return Refusal(True, "the server shuts down")
            if not hello.resuming:
                if returns:
                    return Refusal(False, FULL)
                if entry is not None:
                    return Refusal(False, "there is a session of this id")
                return self._new_locked(hello, origin)
            if entry is None or hello.epoch != self._epoch:
                return Refusal(True, "this server does not have the session")
            if not is_signed(entry.session.key, signed, mac):
                return Refusal(False, "HELLO is not signed with the key of the session")
            if origin != entry.origin:
                return Refusal(False, ELSEWHERE)
            if entry.transport is None:
                return None
            if hello.generation <= entry.session.generation:
                return Refusal(False, "a later carrier was there before")
            if not looks:
                entry.session.generation = hello.generation
            return entry.transport

    def _new_locked(self, hello: Hello, origin: bytes) -> Session:
        session = Session(hello.session, self._resume.buffer, self._resume.grace)
        session.met(hello.buffer)
        session.epoch, session.key = self._epoch, os.urandom(KEY_SIZE)
        self._entries[hello.session] = _Entry(session, origin)
        return session

    def forget(self, session: Session) -> None:
        """Drop a new session for which there will be no transport."""
        with self._lock:
            self._entries.pop(session.id, None)

    def stop(self) -> None:
        """Give up the sessions without a carrier, now and from now on: nobody is let in."""
        with self._lock:
            self._stopping = True
            self._untold.update(self._detached)
            waiting = list(self._detached.values())
        for transport in waiting:
            transport.lose("the server shuts down")
        with self._listening:
            if self._take_over is not None:
                self._take_over.shutdown()

    def wait_told(self, deadline: Deadline) -> None:
        """Wait until the clients of all sessions that ``stop`` has given up know it."""
        with self._told_changed:
            while self._untold and not deadline.expired():
                self._told_changed.wait(deadline.remaining())

    def _has_been_told(self, session: bytes) -> None:
        with self._told_changed:
            self._untold.discard(session)
            self._told_changed.notify_all()

    # Other processes

    def _is_foreign(self, hello: Hello) -> bool:
        """Return whether another process may have the session."""
        return self._workers is not None and hello.epoch != self._epoch

    def _listen(self) -> None:
        """Let other processes pass clients to this one, as soon as it has a session."""
        if self._workers is None or self._take_over is not None:
            return
        with self._listening:
            if self._take_over is not None or self._stopping:
                return
            from .handover import TakeOver  # not needed by clients

            try:
                self._take_over = TakeOver(
                    self._workers, self._epoch, self._check, self._resumed_elsewhere
                )
            except (OSError, NoThreadError) as error:
                _log.warning(
                    "clients can return to their sessions only if they reach this process itself, "
                    "as it cannot listen in Resume.workers, %s: %s",
                    self._workers,
                    error,
                )

    def _hand_over(
        self, sock: socket.socket, hello: Hello, message: bytes, deadline: Deadline, passes: bool
    ) -> OneShotEvent:
        """Pass a client to the process that has its session."""
        from .handover import hand_over

        assert self._workers is not None
        if not passes:
            if not self._told:
                self._told = True
                _log.warning(
                    "a client of another worker loses its session: a socket whose TLS ends here, "
                    "or that this server shuts down, cannot be passed on; let a proxy end TLS, and "
                    "run gunicorn or wsmux.serve"
                )
            found: Refusal | None = Refusal(True, "this server does not have the session")
        else:
            found = hand_over(self._workers, hello.epoch, message, sock, deadline)
        if found is not None:
            _refuse(sock, found, deadline)
        sock.close()
        _log.info("a client was passed to the process that has its session")
        released = OneShotEvent()
        released.set()
        return released

    def _check(self, hello: Hello, signed: bytes, mac: bytes, origin: bytes) -> Refusal | bool:
        """Return whether a client of another process may resume; see ``handover``."""
        if not hello.resuming:
            return Refusal(False, "only sessions that exist are passed on")
        found = self._find(hello, signed, mac, origin, looks=True)
        return found if isinstance(found, Refusal) else found is not None

    def _resumed_elsewhere(
        self,
        sock: socket.socket,
        hello: Hello,
        signed: bytes,
        mac: bytes,
        origin: bytes,
        deadline: Deadline,
    ) -> None:
        """Answer a client that another process passed here."""
        with _closed_by_errors(sock):
            self._answer(sock, hello, signed, mac, origin, deadline)

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
                self._untold.add(session.id)
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


@contextmanager
def _closed_by_errors(sock: socket.socket) -> Iterator[None]:
    """Close a socket whose client cannot be served.

    Raises:
        HandshakeError: instead of any other error of ours.
    """
    try:
        yield
    except WsmuxError as error:
        sock.close()
        if isinstance(error, HandshakeError):
            raise
        raise HandshakeError(str(error)) from error
    except OSError:
        sock.close()
        raise


def _refuse(sock: socket.socket, refusal: Refusal, deadline: Deadline) -> NoReturn:
    send_greeting(sock, Role.SERVER, refusal.encode(), deadline)
    raise HandshakeError(f"a client may not resume: {refusal.reason}")
