"""Test procedures and clients: call a handler directly, or link both ends and cut the connection.

``call`` runs one handler as a server does, with schemas, errors and deferred actions, but without a
client, connection or port. ``linked`` connects a real client to a real server in one process; the
test can cut, refuse and restore its connections, and with a ``Clock`` it waits for no timeout,
heartbeat or grace period. No other part of wsmux imports this module.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from ..exceptions import NoThreadError
from ..protocols.base import Role
from ..runtime import clock
from ..runtime.deadline import Deadline
from ..runtime.parking import Parker, Waiter, wake
from ..runtime.threads import daemon_thread, start_thread
from .client import Client, connect
from .engine.call_dispatcher import CallDispatcher
from .engine.call_streams import Err
from .engine.server_calls import Context, Replies
from .engine.session_record import SessionRecord
from .errors import CANCEL, DEADLINE_EXCEEDED, UNCAUGHT_ERROR, RiverError
from .fake_clock import Clock
from .options import Options
from .server import RpcHandler, Serving, handler
from .services import Procedure, Service
from .session.session import Session
from .wire.codec import Codec
from .wire.envelope import (
    CANCELLED,
    CLOSE_PAYLOAD,
    CLOSED,
    OPEN,
    Envelope,
    error_result,
    is_close,
    read_cancel,
    timeout_field,
)
from .wire.ids import SERVER_ID, new_id
from .wire.json_codec import codec_of

__all__ = ["Clock", "Link", "call", "linked"]

# Nothing is acknowledged here, so no write may wait for it, and all requests arrive at once.
_UNBOUNDED = Options(
    send_buffer_messages=2**31,
    send_buffer_bytes=2**62,
    unread_bytes=2**62,
    worker_timeout=1e9,
)

_FROM_SERVICE: Any = object()  # the state made by the service


def call(
    service: Service,
    procedure: str,
    init: Any = None,
    requests: Iterable[Any] = (),
    *,
    state: Any = _FROM_SERVICE,
    context: Any = None,
    metadata: Any = None,
    client_id: str = "test",
    codec: str | Codec = "msgpack",
    timeout: float = 10.0,
) -> Any:
    """Run one handler, and return what a client would get.

    >>> files = Service("files")
    >>> @files.rpc(init={"type": "string"})
    ... def size(ctx, init):
    ...     return len(ctx.state[init])
    >>> call(files, "size", "a.txt", state={"a.txt": "four"}, codec="json")
    4

    Args:
        service, procedure: what is called.
        init, requests: what the client sends; the requests of an upload or a stream, all at once.
            Of a ``ProtobufService``, messages: the one request as ``init``, or all as ``requests``.
        state: what the handler finds as ``ctx.state``; by default the service makes it, and
            disposes of it.
        context, metadata, client_id: what it finds under these names.
        codec: what init, requests and responses go through.
        timeout: seconds for the whole call, which the handler finds in ``ctx.deadline``.

    Returns:
        The response of an rpc or upload; of the other kinds, the list of responses. A declared
        error that was written instead of raised stands in it as an ``Err``.

    Raises:
        RiverError: the answer is an error, such as INVALID_REQUEST for an init that its schema
            forbids.
        TimeoutError: the handler did not end in time; its call was cancelled. For one that goes on
            for ever, see ``linked``.
        KeyError: the service has no such procedure.
        Exception: whatever the handler raised and the procedure does not declare.
    """
    known = service.procedures[procedure]
    served = service if state is _FROM_SERVICE else _Stated(service, state)
    played = _Played(served, known, codec_of(codec), context, client_id, timeout)
    return played.run(init, requests, metadata)


class _Stated(Service):
    """A service with a state supplied by the test, which is not disposed of."""

    def __init__(self, service: Service, state: Any) -> None:
        super().__init__(service.name)
        self._held = state
        self.procedures = service.procedures

    def make_state(self, context: Any) -> Any:
        return self._held


class _Played:
    """Simulate the session and the client of one call, around the real dispatcher."""

    def __init__(
        self,
        service: Service,
        procedure: Procedure,
        codec: Codec,
        context: Any,
        client_id: str,
        timeout: float,
    ) -> None:
        self._timeout = timeout
        self._procedure = procedure
        self._codec = codec
        self._mutex = threading.Lock()
        self._over = threading.Event()
        self._raised: BaseException | None = None
        self._session = Session(
            Role.SERVER,
            new_id(),
            SERVER_ID,
            client_id,
            codec=codec,
            options=_UNBOUNDED,
            new_id=new_id,
            now=clock.monotonic(),
        )
        self._session.attach(clock.monotonic())
        self._record = SessionRecord(self._session, _UNBOUNDED)
        self._dispatcher = CallDispatcher(
            {service.name: service},
            Replies(self._mutex, codec, _UNBOUNDED, name="wsmux-rpc-test", workers=1),
            self._mutex,
            _UNBOUNDED,
            name="wsmux-rpc-test",
            context=context,
            middleware=(self._watch,),
            workers=1,
            max_workers=1,
            expose_errors=True,
            alarm=Waiter(),
        )

    def _watch(self, ctx: Context, init: Any, step: Callable[[], Any]) -> Any:
        ctx.defer(self._over.set)
        try:
            return step()
        except BaseException as error:
            self._raised = error
            raise

    def _too_late(self) -> TimeoutError:
        name = f"{self._procedure.service}.{self._procedure.name}"
        return TimeoutError(f"{name} did not end in {self._timeout:g} s")

    def run(self, init: Any, requests: Iterable[Any], metadata: Any) -> Any:
        self._record.metadata = metadata
        with self._mutex:
            self._dispatcher.begin_session_locked(self._record)
        deadline = Deadline(self._timeout)
        try:
            procedure = self._procedure
            takes = procedure.kind.takes_requests
            self._send(procedure.write_init(init), OPEN if takes else OPEN | CLOSED)
            if takes:
                for request in requests:
                    self._send(procedure.write_request(request), 0)
                self._send(CLOSE_PAYLOAD, CLOSED)
            answers = self._answers()
            refused = any(flags & CANCELLED for _, flags in answers)  # before any handler ran
            if not refused and not self._over.wait(deadline.remaining()):
                self._send(error_result(RiverError(CANCEL, "out of time")), CANCELLED)
                raise self._too_late()
            answers += self._answers()
        finally:
            self._end()
        return self._result(answers)

    def _send(self, payload: Any, flags: int) -> None:
        opens = flags & OPEN
        envelope = Envelope(
            new_id(),
            self._session.peer_id,
            SERVER_ID,
            0,
            0,
            "stream",
            flags,
            None,
            self._procedure.service if opens else None,
            self._procedure.name if opens else None,
            timeout=timeout_field(self._timeout) if opens else None,
        )
        data = self._codec.encode(envelope, self._codec.pack(payload))
        wakes: list[Parker] = []
        self._dispatcher.dispatch(self._record, self._codec.decode(data), len(data), wakes)
        wake(wakes)

    def _answers(self) -> list[tuple[Any, int]]:
        with self._mutex:
            sent = self._session.data_to_send()
        decoded = [self._codec.decode(data) for data in sent]
        return [(each.payload, each.flags) for each in decoded]

    def _end(self) -> None:
        wakes: list[Parker] = []
        with self._mutex:
            self._record.ended = True
            error = RiverError(CANCEL, "the test is over")
            self._dispatcher.end_session_locked(self._record, error, wakes)
        wake(wakes)
        self._dispatcher.close(Deadline(1.0))

    def _cause(self, error: RiverError) -> BaseException:
        """Return what the handler raised, if a client is told only that it failed."""
        raised = self._raised
        return error if raised is None or error.code != UNCAUGHT_ERROR else raised

    def _result(self, answers: list[tuple[Any, int]]) -> Any:
        values: list[Any] = []
        for payload, flags in answers:
            if flags & CANCELLED:
                error = read_cancel(payload)
                if error.code == DEADLINE_EXCEEDED:
                    raise self._too_late()
                raise self._cause(error)
            if not is_close(payload):
                value = self._procedure.read_response(payload)
                if isinstance(value, RiverError) and value.code == UNCAUGHT_ERROR:
                    raise self._cause(value)
                values.append(Err(value) if isinstance(value, RiverError) else value)
        if isinstance(self._raised, RiverError):
            raise self._raised  # the last answer, which ends the call
        if self._procedure.kind.writes_responses:
            return values
        (value,) = values
        return value


class Link:
    """A client and a server in one process, and the link between them; made by ``linked``.

    Attributes:
        client: the client; it connects with its first call.
        handler: the server; ``restart`` replaces it.
    """

    def __init__(self, services: Iterable[Service], serving: Serving, **client: Any) -> None:
        self._services = list(services)
        self._serving = serving
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._held = False
        self.handler: RpcHandler = handler(self._services, **serving)
        self.client: Client = connect(self._dial, **client)

    def cut(self) -> None:
        """Cut the connection, if there is one; the client reconnects by itself."""
        with self._lock:  # also taken before a socket is closed
            sockets, self._sockets = self._sockets, set()
            for sock in sockets:
                sock.shutdown(socket.SHUT_RDWR)

    def hold(self) -> None:
        """Cut the connection, and refuse new ones until ``release``."""
        with self._lock:
            self._held = True
        self.cut()

    def release(self) -> None:
        """Allow connections again."""
        with self._lock:
            self._held = False

    def restart(self) -> None:
        """Stop the server, losing its sessions, and start another with the same services.

        An error of a service's ``dispose`` is raised once the other server is there.
        """
        self.hold()
        try:
            try:
                self.handler.shutdown(0)
            finally:
                self.handler = handler(self._services, **self._serving)
        finally:
            self.release()

    def close(self) -> None:
        """Close the client and the server, and wait up to five seconds for their threads."""
        self.client.close()
        try:
            self.handler.shutdown()
        finally:
            self.hold()
            deadline = Deadline(5.0)
            for thread in self._threads:
                thread.join(deadline.remaining())

    def _dial(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        with self._lock:
            if self._held:
                ours.close()
                theirs.close()
                raise ConnectionRefusedError("the link is held")
            # A copy, so that it can be cut whichever side has closed the original.
            copy = theirs.dup()
            self._sockets.add(copy)
        try:
            thread = daemon_thread(self._serve, name="wsmux-rpc-link", args=(theirs, copy))
            start_thread(thread)
        except NoThreadError:
            ours.close()
            theirs.close()
            with self._lock:
                self._sockets.discard(copy)
                copy.close()
            raise
        self._threads.append(thread)
        return ours

    def _serve(self, sock: socket.socket, copy: socket.socket) -> None:
        try:
            self.handler(sock)
        finally:
            with self._lock:
                self._sockets.discard(copy)
                copy.close()


@contextmanager
def linked(
    services: Iterable[Service],
    serving: Serving | None = None,
    *,
    clock: Clock | None = None,
    **client: Any,
) -> Iterator[Link]:
    """Join a client to a server in this process, without a port, until the block is left.

    ::

        with linked([files]) as link:
            upload = link.client.upload("files", "put", "a.txt")
            upload.write(b"one")
            link.cut()  # neither side notices
            upload.write(b"two")
            assert upload.finish() == 6

    With a ``Clock``, time passes in the block when the test says so:

        clock = Clock()
        with linked([files], clock=clock) as link:
            call = link.client.submit("files", "slow", None, timeout=30)
            clock.advance(30)
            assert call.done()

    Args:
        services: what is offered.
        serving: the options of the server, see ``Serving``; with ``Options`` of short times, say.
        clock: takes the place of the real clock until the block is left.
        client: those of ``wsmux.rpc.connect``.

    Raises:
        RuntimeError: another ``Clock`` is in use.
    """
    if clock is not None:
        clock.start()
    with ExitStack() as ends:
        if clock is not None:
            ends.callback(clock.stop)
        link = Link(services, serving or {}, **client)
        ends.callback(link.close)
        if clock is not None:
            ends.callback(clock.stop)  # what ends the link takes real time
        yield link
