"""Call procedures of a River server, from any number of threads.

What happens to calls when something is lost:

- *A connection.* The client reconnects, and calls do not notice: unacknowledged messages are
  retransmitted, and each arrives once. A silent peer is presumed dead after ``heartbeat_interval``
  times ``heartbeats_until_dead``.
- *The network, or the server,* for longer than ``session_disconnect_grace``: each side ends the
  session on its own, and its calls fail with UNEXPECTED_DISCONNECT. The same happens while there is
  no server yet: a call waits for one during the grace period. Attempts to connect continue without
  end, and a later call has a new session with a grace period of its own.
- *A stream or socket that was passed in*: it cannot be made again, so the session ends with it.
- *The server's state*: the server was restarted or replaced. It refuses to resume the session,
  whose calls fail as above. The next session begins at once. A session that never had a connection
  goes to the new server with all its calls.
- *The client's state*: a new client takes over the ``client_id`` of an old one. The server ends the
  calls of the old client as soon as that has no connection, or gives no sign of life for a second.
  Of two live clients the first one stays; the other cannot connect.

A call that failed in this way may still have been handled: only its answer is lost.

Procedures can be called by name, ``client.files.size("a.txt")``. What such a call returns depends
on the kind of the procedure, which the client knows only from a schema. Without a schema, a call by
name is an rpc, and the other kinds need a method: ``client.files.watch.subscribe("a.txt")``.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ..runtime.closing import Closing
from ..runtime.deadline import Deadline, deadline_in
from .abort import Abort, checked
from .engine.call_defaults import CallDefaults
from .engine.client_calls import Call, Completions, PendingCall, StreamCall, Subscription, Upload
from .engine.client_engine import ClientEngine
from .engine.dial import Headers, Target, dialler
from .engine.event_callbacks import EventCallbacks
from .options import Options
from .schema.document import ServedProcedure, ServedSchema, ServedService, read_schema, serialize
from .services import Kind, Service
from .session.connector import ConnectorState
from .session.session_info import SessionInfo
from .wire.codec import Codec
from .wire.envelope import CLOSED
from .wire.ids import SERVER_ID, new_id
from .wire.json_codec import codec_of
from .wire.message_size import most_read

if TYPE_CHECKING:
    from google.protobuf.descriptor import ServiceDescriptor

    from .protobuf.stub import ProtobufStub

__all__ = ["Client", "Offer", "ProcedureProxy", "ServiceProxy", "connect", "offer_of"]

Offer = ServedSchema | Mapping[str, Any] | str | bytes | Iterable[Service]


def offer_of(source: Offer | None) -> ServedSchema | None:
    """Return the schema of an offer: a schema as served, or the services themselves.

    Raises:
        ValueError: the schema is malformed.
    """
    if source is None or isinstance(source, ServedSchema):
        return source
    if isinstance(source, str | bytes | Mapping):
        return read_schema(source)
    return read_schema(serialize(source))


def _named(what: str, name: str, known: Mapping[str, Any]) -> AttributeError:
    names = ", ".join(sorted(known)) or "none"
    return AttributeError(f"the schema has no {what} {name!r}; it has {names}")


class ServiceProxy:
    """A service of a client; its attributes and items are its procedures.

    Use items for names that are not Python identifiers, or that clash with a method.
    """

    # Any name may be a procedure, so a loop over them would never end.
    __iter__ = None
    __contains__ = None

    def __init__(self, client: Client, name: str, schema: ServedSchema | None) -> None:
        known = None if schema is None else schema.services.get(name)
        if schema is not None and known is None:
            raise _named("service", name, schema.services)
        self._client = client
        self._name = name
        self._known: ServedService | None = known

    def __repr__(self) -> str:
        return f"<ServiceProxy {self._name} of {self._client!r}>"

    def __getattr__(self, name: str) -> ProcedureProxy:
        if name.startswith("__"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return self[name]

    def __getitem__(self, name: str) -> ProcedureProxy:
        procedure: ServedProcedure | None = None
        if self._known is not None:
            procedure = self._known.procedures.get(name)
            if procedure is None:
                raise _named(f"procedure of {self._name}:", name, self._known.procedures)
        return ProcedureProxy(self._client, self._name, name, procedure)

    def __dir__(self) -> Iterable[str]:
        """Include the procedures of the schema, for completion in a shell."""
        return [*super().__dir__(), *(() if self._known is None else self._known.procedures)]


class ProcedureProxy:
    """A procedure of a client. Arguments and errors are those of the client's methods."""

    def __init__(
        self, client: Client, service: str, name: str, known: ServedProcedure | None
    ) -> None:
        self._client = client
        self._where = service, name
        self._kind = None if known is None else known.kind
        if known is not None and known.description is not None:
            self.__doc__ = known.description

    def __repr__(self) -> str:
        kind = "procedure of unknown kind" if self._kind is None else str(self._kind)
        return f"<ProcedureProxy {'.'.join(self._where)}: {kind}>"

    def __call__(
        self, init: Any = None, timeout: float | None = None, *, abort: Abort | None = None
    ) -> Any:
        """Call the procedure by its kind: see ``rpc``, ``subscribe``, ``upload`` and ``stream``."""
        match self._kind:
            case Kind.SUBSCRIPTION:
                return self.subscribe(init, timeout, abort=abort)
            case Kind.UPLOAD:
                return self.upload(init, timeout, abort=abort)
            case Kind.STREAM:
                return self.stream(init, timeout, abort=abort)
            case _:
                return self.rpc(init, timeout, abort=abort)

    def rpc(
        self, init: Any = None, timeout: float | None = None, *, abort: Abort | None = None
    ) -> Any:
        """Call a procedure that answers once; see ``Client.rpc``."""
        return self._client.rpc(*self._where, init, timeout, abort=abort)

    def subscribe(
        self, init: Any = None, timeout: float | None = None, *, abort: Abort | None = None
    ) -> Subscription[Any]:
        """Call a procedure that sends many responses; see ``Client.subscribe``."""
        return self._client.subscribe(*self._where, init, timeout, abort=abort)

    def upload(
        self, init: Any = None, timeout: float | None = None, *, abort: Abort | None = None
    ) -> Upload[Any, Any]:
        """Call a procedure that takes many requests; see ``Client.upload``."""
        return self._client.upload(*self._where, init, timeout, abort=abort)

    def stream(
        self, init: Any = None, timeout: float | None = None, *, abort: Abort | None = None
    ) -> StreamCall[Any, Any]:
        """Call a procedure with many requests and many responses; see ``Client.stream``."""
        return self._client.stream(*self._where, init, timeout, abort=abort)


class Client(Closing):
    """Call procedures over a session that survives its connections; made by ``connect``.

    All methods are thread-safe. Leaving a ``with`` block closes the client.

    Services are attributes; use items for names that clash or are not Python identifiers:
    ``client.files.size("a.txt")`` is ``client["files"]["size"]("a.txt")``. With a schema, a call
    returns what its kind requires: a value, a ``Subscription``, an ``Upload`` or a ``StreamCall``.
    Without one it is an rpc, and the other kinds need a method: ``client.files.watch.subscribe()``.

    Each call takes a ``timeout`` in seconds; the default is the timeout given to ``connect``, and
    ``math.inf`` means none. A server of wsmux is told of it, and of a ``wsmux.deadline`` block, and
    ends the call by itself when that time is up: the caller gets ``TimeoutError`` whichever side is
    first. Other implementations ignore what they are told. Each call also takes an ``Abort``, which
    cancels the call when set.

    Attributes:
        client_id: the id by which the server identifies this client.
    """

    # Any name may be a service, so a loop over them would never end.
    __iter__ = None
    __contains__ = None

    def __init__(
        self,
        engine: ClientEngine,
        schema: ServedSchema | None,
        defaults: CallDefaults,
    ) -> None:
        self._engine = engine
        self._schema = schema
        self._defaults = defaults
        self.client_id: str = engine.connector.own_id

    def __repr__(self) -> str:
        connector = self._engine.connector
        return f"<Client {self.client_id} of {connector.peer_id} {connector.state.name.lower()}>"

    def __getattr__(self, name: str) -> ServiceProxy:
        if name.startswith("_"):  # a private attribute, missing or not set yet
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return self[name]

    def __getitem__(self, name: str) -> ServiceProxy:
        return ServiceProxy(self, name, self._schema)

    def __dir__(self) -> Iterable[str]:
        """Include the services of the schema, for completion in a shell."""
        return [*super().__dir__(), *(() if self._schema is None else self._schema.services)]

    def rpc(
        self,
        service: str,
        procedure: str,
        init: Any,
        timeout: float | None = None,
        *,
        abort: Abort | None = None,
    ) -> Any:
        """Call a procedure that answers once, and return its response. Blocks until it arrives.

        Raises:
            RiverError: the answer is an error, the call was aborted (CANCEL), or the session was
                lost (UNEXPECTED_DISCONNECT).
            TimeoutError: no answer arrived in ``timeout`` seconds; the call was cancelled.
            EncodeError: the codec cannot encode ``init``, or it exceeds ``Options.max_size``.
        """
        deadline = deadline_in(self._defaults.timeout_of(timeout))
        call = self._submit(service, procedure, init, deadline, abort)
        try:
            return call.result()
        except BaseException:
            if not call.over:
                call.cancel("the caller was interrupted")
            raise

    def submit(
        self,
        service: str,
        procedure: str,
        init: Any,
        timeout: float | None = None,
        *,
        abort: Abort | None = None,
    ) -> PendingCall:
        """Start an rpc and return at once; ``result()`` of the returned call waits for the answer.

        The timeout starts now. Here it is checked only while a thread waits for the result; a
        server of wsmux ends the call in any case. The caller alone limits the number of calls in
        flight; a server refuses those beyond its ``Options.max_streams``, 1,024 by default.

        Raises:
            EncodeError: the codec cannot encode ``init``, or it exceeds ``Options.max_size``.
        """
        deadline = deadline_in(self._defaults.timeout_of(timeout), outlives=True)
        return self._submit(service, procedure, init, deadline, abort)

    def _submit(
        self, service: str, procedure: str, init: Any, deadline: Deadline, abort: Abort | None
    ) -> PendingCall:
        engine = self._engine
        call = self._pending(
            f"{service}.{procedure}", deadline, None, self._defaults.abort_of(abort)
        )
        for error in engine.start([(call, init)], service, procedure):
            raise error
        return call

    def submit_many(
        self,
        service: str,
        procedure: str,
        inits: Iterable[Any],
        timeout: float | None = None,
        completions: Completions | None = None,
        *,
        abort: Abort | None = None,
    ) -> list[PendingCall]:
        """Start an rpc for each of ``inits``, in order, at the cost of one lock and one send.

        If the codec cannot encode an init, only that call fails: its ``result()`` raises
        ``EncodeError``. ``completions`` yields the calls in the order in which they end.
        """
        name, deadline = (
            f"{service}.{procedure}",
            deadline_in(self._defaults.timeout_of(timeout), outlives=True),
        )
        abort = self._defaults.abort_of(abort)
        calls = [(self._pending(name, deadline, completions, abort), init) for init in inits]
        self._engine.start(calls, service, procedure)
        return [call for call, _ in calls]

    def _pending(
        self,
        name: str,
        deadline: Deadline,
        completions: Completions | None,
        abort: Abort | None,
    ) -> PendingCall:
        engine = self._engine
        return PendingCall(
            engine, engine.mutex, name, self._defaults.raises, deadline, completions, abort
        )

    def completions(self) -> Completions:
        """Return a queue of ended calls, to be passed to ``submit_many``."""
        return Completions(self._engine, self._engine.mutex)

    def subscribe(
        self,
        service: str,
        procedure: str,
        init: Any,
        timeout: float | None = None,
        *,
        abort: Abort | None = None,
    ) -> Subscription[Any]:
        """Call a procedure that sends many responses; iterate over the returned subscription.

        ``timeout`` applies to the whole subscription; when it expires, a read raises
        ``TimeoutError``.
        """
        return Subscription(self._open(service, procedure, init, CLOSED, timeout, abort))

    def upload(
        self,
        service: str,
        procedure: str,
        init: Any,
        timeout: float | None = None,
        *,
        abort: Abort | None = None,
    ) -> Upload[Any, Any]:
        """Call a procedure that takes many requests and answers once."""
        return Upload(self._open(service, procedure, init, 0, timeout, abort))

    def stream(
        self,
        service: str,
        procedure: str,
        init: Any,
        timeout: float | None = None,
        *,
        abort: Abort | None = None,
    ) -> StreamCall[Any, Any]:
        """Call a procedure that takes many requests and sends many responses."""
        return StreamCall(self._open(service, procedure, init, 0, timeout, abort))

    def _open(
        self,
        service: str,
        procedure: str,
        init: Any,
        flags: int,
        timeout: float | None,
        abort: Abort | None,
    ) -> Call:
        engine, defaults, name = self._engine, self._defaults, f"{service}.{procedure}"
        deadline = deadline_in(defaults.timeout_of(timeout), outlives=True)
        call = Call(engine, engine.mutex, name, defaults.raises, deadline, defaults.abort_of(abort))
        engine.open(call, service, procedure, init, flags)
        return call

    def protobuf(self, service: ServiceDescriptor) -> ProtobufStub:
        """Return a stub that calls the methods of a protobuf service.

        Args:
            service: its descriptor, ``files_pb2.DESCRIPTOR.services_by_name["Files"]``.

        Raises:
            TypeError: ``service`` is not a service descriptor.
            ImportError: protobuf is not installed.
        """
        from .protobuf.stub import ProtobufStub  # needs protobuf, an optional package

        return ProtobufStub(self._engine, service, self._defaults)

    def wait_connected(self, timeout: float | None = None) -> None:
        """Connect now, and block until connected.

        Raises:
            TimeoutError: there was no connection in ``timeout`` seconds; attempts continue.
            RiverError: connecting failed and retrying will not help: the server refused
                permanently, or ``is_fatal`` returned true.
        """
        self._engine.connect(Deadline(timeout))

    @property
    def session(self) -> SessionInfo | None:
        """A snapshot of the session; ``None`` before the first call and between two sessions."""
        return self._engine.describe_session()

    def list_sessions(self) -> list[SessionInfo]:
        """Return ``session`` in a list, which is empty without one; for what shows several."""
        session = self.session
        return [] if session is None else [session]

    def end_session(self, reason: str = "ended by the client") -> None:
        """End the session, its calls and the connection now; the next call starts a new session.

        The calls raise ``RiverError`` with UNEXPECTED_DISCONNECT and the reason. Never blocks.
        """
        self._engine.end_session(reason)

    @property
    def closed(self) -> bool:
        """Whether the client was closed or its thread has failed; no call will be answered."""
        return self._engine.connector.state is ConnectorState.CLOSED

    def close(self, timeout: float | None = 5.0) -> None:
        """End every call and the connection; closing twice is safe.

        Blocks for ``timeout`` seconds at most, which data already sent has to be transmitted; the
        socket has one more for the closing handshake. An attempt to connect is not waited for.
        """
        self._engine.close(timeout)


def connect(
    target: Target,
    *,
    codec: str | Codec = "msgpack",
    options: Options | None = None,
    client_id: str | None = None,
    server_id: str = SERVER_ID,
    metadata: Any = None,
    schema: Offer | None = None,
    timeout: float | None = None,
    abort: Abort | Callable[[], Abort] | None = None,
    # connecting
    eager: bool = False,
    connect_on_call: bool = True,
    is_fatal: Callable[[Exception], bool] | None = None,
    headers: Headers | Callable[[], Headers] | None = None,
    ssl_context: ssl.SSLContext | None = None,
    # errors and events
    errors: str = "raise",
    on_session_status: Callable[[str, str], object] | None = None,
    on_connection_status: Callable[[str], object] | None = None,
    on_protocol_error: Callable[..., object] | None = None,
    **http_options: Any,
) -> Client:
    """Return a client of a River server; it connects on the first call, or now if ``eager``.

    Args:
        target: ``ws://``, ``wss://``, ``tcp://host:port`` or ``unix:///path``; a ``Connection``, on
            which each attempt opens a stream; a function that returns a connected socket or a
            ``Stream`` for each attempt, within ``Options.connection_timeout``; or a single
            ``Stream`` or socket, which cannot be replaced once lost.
        codec: ``"msgpack"``, ``"json"``, ``"protobuf"`` or a codec; the server must use the same.
        options: timeouts and limits.
        client_id: identifies this client; random by default. Keep it secret from other clients.
        server_id: the id of the server.
        metadata: the metadata of the handshake, or a function that returns it for each connection
            and whenever the server asks. The function may block; it is not called again meanwhile,
            and if its connection is over when it returns, the next one gets what it returned.
        schema: the schema as served, as JSON or decoded, or the services themselves. Calls by
            attribute then use the right kind, and unknown names are errors.
        timeout: the default timeout of each call in seconds, from its start to its end, even for a
            subscription; a call with ``math.inf`` has none. By default calls have no timeout.
        abort: the default ``abort`` of each call; or a function that returns one for each call,
            such as the ``Abort`` of the request being served.
        eager: connect now, without waiting for it.
        connect_on_call: connect when a call is made and there is no connection.
        is_fatal: takes the error of a failed attempt, and returns whether retrying is useless; if
            so, the session ends, and the next call starts a new one. By default no error is fatal.
        headers: additional HTTP headers, as a mapping or as lines, or a fast function that returns
            them for each attempt, for example with a renewed token.
        ssl_context, http_options: as in ``wsmux.connect``.
        errors: ``"raise"`` raises ``RiverError`` for error results; ``"results"`` returns ``Ok``
            and ``Err`` instead of values.
        on_session_status: called with ``"created"`` or ``"closed"``, and the session id.
        on_connection_status: called with the state of the connection, such as ``"connected"``.
        on_protocol_error: called with the kind of failure, a description, and the server's code if
            it refused. Callbacks run in a thread of their own, and may block.

    Raises:
        ValueError: an argument is invalid.
        TypeError: an argument has the wrong type, or there is no such option.
    """
    if errors not in ("raise", "results"):
        raise ValueError(f"errors must be 'raise' or 'results', not {errors!r}")
    if not callable(abort):
        checked(abort)
    if timeout is not None and not timeout >= 0:
        raise ValueError(f"timeout must be at least 0 seconds, not {timeout!r}")
    chosen, offer = codec_of(codec), offer_of(schema)
    own_id = new_id() if client_id is None else client_id
    callbacks = EventCallbacks(
        {
            "session_status": on_session_status,
            "connection_status": on_connection_status,
            "protocol_error": on_protocol_error,
        },
        f"wsmux-rpc-{own_id}",
    )
    limits = options or Options()
    dial = dialler(
        target,
        most_read(limits.max_size),
        headers=headers,
        ssl_context=ssl_context,
        options=http_options,
    )
    engine = ClientEngine(
        dial,
        chosen,
        limits,
        callbacks,
        client_id=own_id,
        server_id=server_id,
        metadata=metadata if callable(metadata) or metadata is None else lambda: metadata,
        connect_on_call=connect_on_call,
        is_fatal=is_fatal,
    )
    if eager:
        engine.connect(None)
    return Client(engine, offer, CallDefaults(errors == "raise", timeout, abort))
