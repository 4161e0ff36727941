"""Hold the options that all ways to make a connection share, and make connections from them."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from ..config import Config, Resume
from ..exceptions import CloseCode, ConnectionClosed, ForkedError, NoThreadError
from ..handshake.request import Request
from ..mux.connection import Connection, StartOn
from ..mux.error_codes import CodeToReason, ReasonToCode
from ..protocols.base import MuxProtocol, Role
from ..protocols.bymux_state import BymuxState
from ..protocols.framing import Framing
from ..protocols.registry import is_resumable, resumable_wire, wire
from ..protocols.resumable_framing import ResumableFraming
from ..protocols.resumption import Session
from ..recording.attach import record
from ..runtime.deadline import Deadline
from ..runtime.logs import logger
from ..runtime.parking import OneShotEvent
from ..transport.message_transport import MessageTransport
from ..transport.resumable_transport import Carriers, ResumableTransport
from .resumable_sessions import ResumableSessions
from .stream_handlers import StreamHandler, StreamWorkers

__all__ = ["DEFAULT_WORKERS", "ConnectionHandler", "ConnectionOptions", "resume_options"]

ConnectionHandler = Callable[[Connection], object]

# Default number of threads that run the stream handlers of one connection.
DEFAULT_WORKERS = 64

_log = logger("wsmux")


def resume_options(resume: Resume | bool) -> Resume | None:
    """Return the limits of resumable connections, ``None`` if they are not wanted.

    Raises:
        TypeError: it is something else.
    """
    if isinstance(resume, Resume):
        return resume
    if not isinstance(resume, bool):
        raise TypeError(f"resume must be True, False or a wsmux.Resume, not {resume!r}")
    return Resume() if resume else None


@dataclass(frozen=True, kw_only=True)
class ConnectionOptions:
    """Hold the options; ``connect`` describes each field, but for those of a server.

    Attributes:
        admit_stream: called for each stream that the peer opens, under the connection's mutex;
            false refuses it. It must not block.
    """

    config: Config = field(default_factory=Config)
    accept_streams: bool = True
    stream_handler: StreamHandler | None = None
    start_on: StartOn = "open"
    workers: int = DEFAULT_WORKERS
    code_to_reason: CodeToReason | None = None
    reason_to_code: ReasonToCode | None = None
    bymux_state: BymuxState | None = None
    resume: Resume | None = None
    admit_stream: Callable[[], bool] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.config, Config):
            kind = type(self.config).__name__
            raise TypeError(
                f"config must be a wsmux.Config, such as Config(max_streams=8), not {kind}"
            )
        for name in ("stream_handler", "code_to_reason", "reason_to_code"):
            given = getattr(self, name)
            if given is not None and not callable(given):
                raise TypeError(f"{name} must be a function, not {type(given).__name__}")
        if self.start_on not in ("open", "data"):
            raise ValueError(f"start_on must be 'open' or 'data', not {self.start_on!r}")
        if self.workers < 1:
            raise ValueError(f"workers must be at least 1, not {self.workers}")

    def over_websocket(
        self, sock: socket.socket, role: Role, protocol: str, request: Request | None = None
    ) -> Connection:
        """Return a connection over a WebSocket after its handshake."""
        parts = wire(protocol).over_websocket(role, self.config, self.bymux_state)
        return self._connection(sock, role, parts, request)

    def over_carriers(
        self,
        sock: socket.socket,
        role: Role,
        protocol: str,
        session: Session,
        carriers: Carriers,
        request: Request | None = None,
    ) -> Connection:
        """Return a resumable connection over its first WebSocket, whose HELLO was answered."""
        parts = wire(protocol).over_carriers(role, self.config, self.bymux_state, session)
        return self._connection(sock, role, parts, request, carriers)

    def accepted(
        self,
        sock: socket.socket,
        protocol: str,
        request: Request | None,
        sessions: ResumableSessions | None,
        deadline: Deadline,
        awaiting: AbstractContextManager[object],
        returns: bool = False,
        passes: bool = True,
    ) -> Connection | OneShotEvent:
        """Return the connection of a client over a WebSocket after its handshake.

        Args:
            protocol: from ``check_request``.
            sessions: those of the server, if it resumes connections.
            awaiting: entered while the client's first message is awaited.
            returns: the client may only resume one, since the server is full.
            passes: as of ``ResumableSessions.greet``.

        If the socket went to a connection that it resumes, an event is returned that is set once
        this process has closed it.

        Raises:
            HandshakeError: what the client sends first is not allowed; the socket is closed.
            OSError, NoThreadError: it did not come, or the system has no descriptor or thread left.
        """
        if sessions is None or not is_resumable(protocol):
            return self.over_websocket(sock, Role.SERVER, protocol, request)
        with awaiting:
            session = sessions.greet(sock, deadline, returns, passes, request)
        if isinstance(session, OneShotEvent):
            return session
        try:
            wire_name = resumable_wire(protocol)
            return self.over_carriers(sock, Role.SERVER, wire_name, session, sessions, request)
        except BaseException:
            sessions.forget(session)
            raise

    def over_bytes(self, sock: socket.socket, role: Role, protocol: str) -> Connection:
        """Return a connection over a plain byte stream."""
        parts = wire(protocol).over_bytes(role, self.config, self.bymux_state)
        return self._connection(sock, role, parts, None)

    def _connection(
        self,
        sock: socket.socket,
        role: Role,
        parts: tuple[Framing, MuxProtocol],
        request: Request | None,
        carriers: Carriers | None = None,
    ) -> Connection:
        framing, machine = parts
        transport: MessageTransport
        try:
            if carriers is None:
                transport = MessageTransport(sock, framing, role, self.config)
            else:
                assert isinstance(framing, ResumableFraming)
                transport = ResumableTransport(sock, framing, role, self.config, carriers)
            record(transport, machine.name, framing)
            return Connection(
                transport,
                machine,
                accept_streams=self.accept_streams,
                start_on=self.start_on,
                code_to_reason=self.code_to_reason,
                reason_to_code=self.reason_to_code,
                request=request,
                admit_stream=self.admit_stream,
            )
        except (OSError, RuntimeError):  # no descriptor or thread left
            sock.close()
            raise

    def start_workers(self, connection: Connection) -> None:
        """Start serving incoming streams in the background, if there is a handler.

        Raises:
            NoThreadError: the system has no thread left; the connection is being closed.
        """
        if self.stream_handler is None:
            return
        try:
            StreamWorkers(connection, self.stream_handler, self.workers).start()
        except NoThreadError:
            connection.begin_close(code=CloseCode.GOING_AWAY, reason="no thread is left")
            raise

    def serve(self, connection: Connection, handler: ConnectionHandler | None) -> None:
        """Serve a connection in this thread until its handler returns, then close it.

        Without a handler for the connection, its streams are served until it ends.
        """
        try:
            if handler is not None:
                self.start_workers(connection)
                handler(connection)
            elif self.stream_handler is not None:
                StreamWorkers(connection, self.stream_handler, self.workers).run()
        except Exception as error:
            if connection.closed and isinstance(error, ConnectionClosed | ForkedError):
                _log.info("the handler of %s ended: %s", connection.name, error)
            else:
                _log.exception("the handler of %s failed; the connection ends", connection.name)
                connection.close(code=CloseCode.INTERNAL_ERROR, reason="internal error")
        finally:
            connection.close()
