"""Call procedures of a River server, from any number of threads.

What becomes of calls when something is lost:

- *A connection.* It is made again, and calls hear nothing of it: whatever was not acknowledged is
  sent once more, and arrives once. A peer that falls silent is given up after
  ``heartbeat_interval`` times ``heartbeats_until_dead``.
- *The way to the server*, for longer than ``session_disconnect_grace``: the session ends, at both
  sides for themselves, and with it its calls, in UNEXPECTED_DISCONNECT. So it is when there is no
  server yet: a call waits for one as long as the grace. Attempts to connect go on all the time, and
  a call that is made later has a session, and a grace, of its own.
- *A stream or socket that was handed over*: it cannot be made again, so the session ends with it.
- *The server's state*: it was started again, or another one took its place. It refuses to resume
  the session, whose calls end as above. The next session begins at once. A session that never had a
  connection goes to the new server with all its calls.
- *The client's state*: a new client with the ``client_id`` of another takes its place. At the
  server the calls of the old one end, as soon as it has no connection, or gives no sign of life for
  a second. Of two that live, the first one stays; the other cannot connect.

A call that has ended so may have been handled: only its answer is known to be lost.

Procedures can be called by their names, ``client.files.size("a.txt")``. What a call returns depends
on the procedure's kind, which only a schema tells. Without one a call by name is an rpc, and the
other kinds are said: ``client.files.watch.subscribe("a.txt")``.
"""

from __future__ import annotations

import math
import ssl
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ..runtime.closing import Closing
from ..runtime.deadline import Deadline, deadline_in
from .abort import Abort, checked
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
    """Return what a schema, or the services themselves, tell.

    Raises:
        ValueError: it is no schema.
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

    Items serve names that are no Python names, or those of methods.
    """

    # Any name may be a procedure: nothing would ever end a loop over them.
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
        """Return the procedures of the schema too, for completion in a shell."""
        return [*super().__dir__(), *(() if self._known is None else self._known.procedures)]


class ProcedureProxy:
    """A procedure of a client. Its arguments and errors are those of the client's methods."""

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
        """Call it as its kind is: see ``rpc``, ``subscribe``, ``upload`` and ``stream``."""
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
        """Call a procedure that sends responses; see ``Client.subscribe``."""
        return self._client.subscribe(*self._where, init, timeout, abort=abort)

    def upload(
        self, init: Any = None, timeout: float | None = None, *, abort: Abort | None = None
    ) -> Upload[Any, Any]:
        """Call a procedure that takes requests; see ``Client.upload``."""
        return self._client.upload(*self._where, init, timeout, abort=abort)

    def stream(
        self, init: Any = None, timeout: float | None = None, *, abort: Abort | None = None
    ) -> StreamCall[Any, Any]:
        """Call a procedure that does both; see ``Client.stream``."""
        return self._client.stream(*self._where, init, timeout, abort=abort)


class Client(Closing):
    """Call procedures over one session, which survives its connections; made by ``connect``.

    Every method may be called from any thread. Leaving a ``with`` block closes the client.

    Services are attributes, and items for names that are taken or no Python names:
    ``client.files.size("a.txt")`` is ``client["files"]["size"]("a.txt")``. With a schema a call
    has the shape of its kind: a value, a ``Subscription``, an ``Upload`` or a ``StreamCall``;
    without one it is an rpc, and the others are said: ``client.files.watch.subscribe()``.

    Each call may have a ``timeout``, in seconds; without one it has that of ``connect``, and with
    ``math.inf`` none. It may be given an ``Abort``, which cancels it when it is set.

    Attributes:
        client_id: the id that the server knows this client by.
    """

    # Any name may be a service: nothing would ever end a loop over them.
    __iter__ = None
    __contains__ = None

    def __init__(
        self,
        engine: ClientEngine,
        raises: bool,
        schema: ServedSchema | None,
        timeout: float | None,
        abort: Abort | Callable[[], Abort] | None,
    ) -> None:
        self._engine = engine
        self._raises = raises
        self._schema = schema
        self._timeout = timeout
        self._abort = abort
        self.client_id: str = engine.connector.own_id

    def __repr__(self) -> str:
        connector = self._engine.connector
        return f"<Client {self.client_id} of {connector.peer_id} {connector.state.name.lower()}>"

    def __getattr__(self, name: str) -> ServiceProxy:
        if name.startswith("_"):  # none of ours, and not yet made while it is being made
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return self[name]

    def __getitem__(self, name: str) -> ServiceProxy:
        return ServiceProxy(self, name, self._schema)

    def __dir__(self) -> Iterable[str]:
        """Return the services of the schema too, for completion in a shell."""
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
        """Call a procedure that answers once, and return its response.

        Raises:
            RiverError: the answer is an error, the call was aborted (CANCEL), or the session was
                lost (UNEXPECTED_DISCONNECT).
            TimeoutError: no answer in ``timeout`` seconds; the call was cancelled.
            EncodeError: the codec cannot carry ``init``, or it is above ``Options.max_size``.
        """
        deadline = deadline_in(self._time(timeout))
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
        """Start an rpc and return at once; ``result()`` of what this returns waits for the answer.

        The time of the call begins now; it is looked at when somebody waits for the result. Only
        the caller bounds how many calls are under way; a server refuses those beyond its
        ``Options.max_streams``, 1,024 by default.

        Raises:
            EncodeError: the codec cannot carry ``init``, or it is above ``Options.max_size``.
        """
        deadline = deadline_in(self._time(timeout), outlives=True)
        return self._submit(service, procedure, init, deadline, abort)

    def _submit(
        self, service: str, procedure: str, init: Any, deadline: Deadline, abort: Abort | None
    ) -> PendingCall:
        engine = self._engine
        call = self._pending(f"{service}.{procedure}", deadline, None, self._chosen(abort))
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
        """Start an rpc for each of ``inits``, in order, for the price of one lock and one send.

        An init that the codec cannot carry is the failure of its own call alone, whose result
        raises ``EncodeError``. ``completions`` tells in which order the calls end.
        """
        name, deadline = f"{service}.{procedure}", deadline_in(self._time(timeout), outlives=True)
        abort = self._chosen(abort)
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
        return PendingCall(engine, engine.mutex, name, self._raises, deadline, completions, abort)

    def _time(self, timeout: float | None) -> float | None:
        """Return the seconds of a call, ``None`` if it has no end."""
        chosen = self._timeout if timeout is None else timeout
        return None if chosen == math.inf else chosen

    def _chosen(self, abort: Abort | None) -> Abort | None:
        """Return what aborts a call that was given this, or nothing."""
        if abort is None:
            default = self._abort
            abort = default() if callable(default) else default
        return checked(abort)

    def completions(self) -> Completions:
        """Return what tells in which order calls end that ``submit_many`` is given it with."""
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
        """Call a procedure that sends responses; iterate what this returns.

        ``timeout`` is for the whole of it, and raises ``TimeoutError`` in a read.
        """
        call = self._open(service, procedure, init, CLOSED, abort)
        return Subscription(call, Deadline(self._time(timeout), outlives=True))

    def upload(
        self,
        service: str,
        procedure: str,
        init: Any,
        timeout: float | None = None,
        *,
        abort: Abort | None = None,
    ) -> Upload[Any, Any]:
        """Call a procedure that takes requests and answers once."""
        call = self._open(service, procedure, init, 0, abort)
        return Upload(call, Deadline(self._time(timeout), outlives=True))

    def stream(
        self,
        service: str,
        procedure: str,
        init: Any,
        timeout: float | None = None,
        *,
        abort: Abort | None = None,
    ) -> StreamCall[Any, Any]:
        """Call a procedure that takes requests and sends responses."""
        call = self._open(service, procedure, init, 0, abort)
        return StreamCall(call, Deadline(self._time(timeout), outlives=True))

    def _open(
        self, service: str, procedure: str, init: Any, flags: int, abort: Abort | None
    ) -> Call:
        engine, name = self._engine, f"{service}.{procedure}"
        call = Call(engine, engine.mutex, name, self._raises, self._chosen(abort))
        engine.open(call, service, procedure, init, flags)
        return call

    def protobuf(self, service: ServiceDescriptor) -> ProtobufStub:
        """Return what calls the methods of a protobuf service.

        Args:
            service: its descriptor, ``files_pb2.DESCRIPTOR.services_by_name["Files"]``.

        Raises:
            TypeError: it is no descriptor of a service.
            ImportError: protobuf is not installed.
        """
        from .protobuf.stub import ProtobufStub  # needs a package that others do without

        return ProtobufStub(self._engine, service, self._raises, self._time)

    def wait_connected(self, timeout: float | None = None) -> None:
        """Connect now, and wait for it.

        Raises:
            TimeoutError: there is no connection in time; attempts go on.
            RiverError: there is none, and no further attempt: the server has refused for good, or
                ``is_fatal`` says so.
        """
        self._engine.connect(Deadline(timeout))

    @property
    def session(self) -> SessionInfo | None:
        """What the present session is at this moment; ``None`` before the first call, and between
        two sessions.
        """
        return self._engine.describe_session()

    def end_session(self, reason: str = "ended by the client") -> None:
        """End the session, its calls and the connection now; the next call begins another.

        The calls raise ``RiverError`` with UNEXPECTED_DISCONNECT and the reason. Never blocks.
        """
        self._engine.end_session(reason)

    @property
    def closed(self) -> bool:
        """Whether the client was closed, or its thread has failed: no call will be answered."""
        return self._engine.connector.state is ConnectorState.CLOSED

    def close(self, timeout: float | None = 5.0) -> None:
        """End every call and the connection; closing twice is fine.

        What was sent before has ``timeout`` seconds, and one for the socket, to get out.
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
    """Return a client of a River server; it connects with the first call, or at once if ``eager``.

    Args:
        target: ``ws://``, ``wss://``, ``tcp://host:port`` or ``unix:///path``; a ``Connection``,
            on which each attempt opens a stream; a function that returns a connected socket or a
            ``Stream`` for each attempt, within ``Options.connection_timeout``; or a ``Stream`` or
            socket, which are there once.
        codec: ``"msgpack"``, ``"json"``, ``"protobuf"`` or a codec; the server must use the same.
        options: times and bounds.
        client_id: names this client, at random by default. Keep it secret from other clients.
        server_id: what the server is called.
        metadata: what the handshake carries, or a function that makes it for each connection and
            whenever the server asks; it may block.
        schema: what the server offers: its schema as served, as JSON or data, or the services
            themselves. Calls by attribute then know their kinds, and wrong names are errors.
        timeout: seconds of each call that has no ``timeout`` of its own, from its start to its end,
            be it a subscription; ``math.inf`` lets one go on for ever. By default no call ends by
            itself.
        abort: aborts each call that has no ``abort`` of its own; or a function that is asked for
            one when a call is made, such as one that knows the request which is being served.
        eager: connect now; this does not wait for it.
        connect_on_call: connect when a call is made and there is no connection.
        is_fatal: told what made an attempt fail, tells whether it is of no use to try again; then
            the session ends, and the next call begins again. By default nothing is.
        headers: further headers, as a mapping or as lines, or a quick function that makes them
            for each attempt, such as one with a token that is renewed.
        ssl_context, http_options: as in ``wsmux.connect``.
        errors: ``"raise"`` raises ``RiverError`` for error results; ``"results"`` returns ``Ok``
            and ``Err`` instead of values.
        on_session_status: called with ``"created"`` or ``"closed"``, and the session's id.
        on_connection_status: called with the state of the connection, such as ``"connected"``.
        on_protocol_error: called with the kind of failure, a sentence, and the server's code if it
            refused. Callbacks run in a thread of their own, and may block.

    Raises:
        ValueError: an argument is wrong.
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
    return Client(engine, errors == "raise", offer, timeout, abort)
