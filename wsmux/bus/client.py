"""Call twins over relays and answer their calls, from any number of threads.

Threads and locks:

- One thread per relay connects, reads and answers pings (see ``relay_connection``). It parses each
  message, checks answers against the twin record that was looked up for the call, and sets the
  result of the call's future. It never looks up a twin and never blocks.
- One thread, started with the first call, ends calls that have timed out; callbacks of futures run
  in a pool (see ``pending``).
- Service functions run in threads of a pool (see ``services``).
- The calling thread looks up the other twin, encrypts, signs and sends.
- One thread, started when a connection is lost, sends requests without an answer again (see
  ``resender``).

Each table has its own lock, in its own module. No lock is held while another is taken, or while
sending, looking up a twin or calling user code.

A request is sent again, byte for byte, when a connection is lost, since that may have taken it or
its answer with it; if its command is idempotent, also while no answer comes. What is lost otherwise
ends in ``CallTimeout`` when it expires, and the command may or may not have run. A request that no
relay has room for waits until it expires.

Names: the calling thread asks a relay which twin answers a name, and sends to the queue that the
workers of that twin share (see ``relay.names``). ``name_resolver`` remembers the owner for a while.
"""

from __future__ import annotations

import os
import secrets
import ssl
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple, TypeVar

from ..exceptions import ForkedError, NoThreadError
from ..runtime import fork
from ..runtime.arguments import strings
from ..runtime.closing import Closing
from ..runtime.deadline import LONGEST_WAIT, Deadline
from ..runtime.logs import logger
from .errors import (
    FAILED,
    NOBODY_JOINED,
    TOO_MANY,
    UNKNOWN_TWIN,
    WORKERS_GONE,
    BusError,
    CallTimeout,
    NobodyJoined,
    Replayed,
    relay_refused,
    remote_error,
)
from .services import Function, Services, check_command, decode, encode
from .session.identity_session import IdentitySession, life_until
from .session.name_resolver import NameResolver, presence_of
from .session.pending import Call, PendingCalls
from .session.relay_connection import RelayConnection, RelayStatus
from .session.relay_control import RelayControl, Standing
from .session.relay_pool import RelayPool
from .session.resender import Resender
from .topics import CREDIT, Subscription, TopicClient
from .twins.records import TwinDirectory
from .twins.sources import TwinSource, twins_from
from .wire.address import Address, address_of, is_text, parse_address
from .wire.envelope import JSON_SCHEMA, Kind, kind_of
from .wire.keys import Identity, KeyType
from .wire.messages import Envelope
from .wire.names import Presence, check_name, is_name, is_reserved, name_of, shared_address
from .wire.topics import Position

__all__ = ["Client", "Joined", "Reply"]

# Default timeout of a call, in seconds.
TIMEOUT = 30.0

# Seconds to look up this twin's own number.
FIND_TIMEOUT = 20.0

WORKERS = 16

# Seconds for a relay to accept that a worker joins or leaves; less where a client closes.
JOIN_TIMEOUT = 30.0
LEAVE_TIME = 1.0

# Requests to a name that one worker has at once, at most; as relays bound it.
MAX_AT_ONCE = 1024

Served = TypeVar("Served", bound=Function)

_log = logger("wsmux.bus")


class Reply(NamedTuple):
    """Hold the decrypted payload of an answer and its media type."""

    data: bytes
    schema: str


class _Asked(NamedTuple):
    """Hold what a call asks, for as many requests as it takes; ``call`` has the meanings.

    Attributes:
        read: converts the answer's bytes and schema to what the call returns; may raise.
    """

    to: int | str | Address
    command: str
    data: bytes
    schema: str
    tags: str | None
    read: Callable[[bytes, str], Any]
    idempotent: bool


class Joined(NamedTuple):
    """Describe whether this session shares in the calls of a name, at one relay.

    Attributes:
        name: the name.
        relay: the address of the relay.
        joined: whether it does, over the present connection.
        reason: why the relay refused, when it was last asked; empty if it did not.
    """

    name: str
    relay: str
    joined: bool
    reason: str


class Client(Closing):
    """Call other twins, and answer their calls, in one session of a twin.

    Every method may be called from any thread. Leaving a ``with`` block closes the client.

    The client connects on the first call, ``serve`` or ``wait_connected``, not when it is created:
    relays deliver queued requests as soon as it connects, and they would be refused if no function
    served them yet.

    Args:
        identity: the keys of the twin.
        relays: the addresses of up to four relays, ``ws://`` or ``wss://``, the preferred one
            first; messages are received from all of them.
        twins: a directory, the path of a file, the URL of a registrar, or several of them as
            ``twins_from`` takes them.
        twin: this twin's number; looked up by its account if omitted.
        session: the name of this session, random by default; it must not begin with ``@``. A later
            connection with the same twin and session replaces the earlier one.
        gateway: use no session name, and so receive the messages that are addressed to the twin
            alone, as its gateway does.
        name: share in the calls of this name, as ``join`` does, from the first ``serve`` on. A
            relay that refuses is asked again; ``joined`` tells why.
        names: the twins that own names which this side calls. No relay is believed about those.
        e2e: encrypt payloads where possible; see ``identity_session``. False never encrypts.
        ssl_context: the TLS settings for connections to relays.

    Raises:
        BusError: code 103; the directory has no twin with this account.
        TwinsUnavailable: the directory could not be asked.
        ValueError: an address, a name, or the number of relays, is invalid.
    """

    def __init__(
        self,
        identity: Identity,
        relays: str | Sequence[str],
        twins: TwinDirectory | TwinSource | Sequence[TwinSource],
        *,
        twin: int | None = None,
        session: str | None = None,
        gateway: bool = False,
        name: str | None = None,
        names: Mapping[str, int] | None = None,
        e2e: bool = True,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        if gateway and session is not None:
            raise ValueError("gateway and session exclude each other: give one of the two")
        if session is not None and not is_text(session):
            raise ValueError(f"expected a session name of valid Unicode, got {session[:80]!r}")
        if is_reserved(session):
            raise ValueError(f"a session must not begin with '@', as {session!r:.80}: names do")
        self._own_name = None if name is None else check_name(name)
        urls = urls_of(relays)
        directory, self._owned = directory_of(twins)
        try:
            number = own_twin(identity, directory, twin, Deadline(FIND_TIMEOUT))
            chosen = secrets.token_hex(8) if session is None and not gateway else session
            self.address: Address = Address(number, chosen)
            self.name: str = f"wsmux-bus-{self.address}"  # for threads and logs
            self._calls = PendingCalls(self.name, self._send_again)
            self._endpoint = IdentitySession(identity, self.address, directory, e2e)
            self._relay_pool = RelayPool(
                urls,
                self._endpoint.token,
                self._receive,
                ssl_context,
                urgent=self._is_awaited,
                lost=self._lost,
                changed=self._changed,
            )
            self._control = RelayControl(self._endpoint, self._relay_pool)
            self._resolver = NameResolver(self._control, self._relay_pool, names)
        except BaseException:
            if self._owned is not None:
                self._owned.close()
            raise
        self._topics = TopicClient(self._control, self._relay_pool, self._endpoint)
        self._standing = Standing(f"{self.name}-standing", self._control, self._relay_pool)
        name = f"{self.name}-resend"
        self._resender = Resender(name, self._relay_pool, self._calls.unanswered)
        self._services = Services(self.name, self._endpoint, self._relay_pool)
        self._closed = False
        self._in_child = False
        fork.register(self)

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{len(self._calls)} calls under way"
        return f"<Client {self.address} {state}>"

    # Calls

    def call(
        self,
        to: int | str | Address,
        command: str,
        payload: Any = None,
        *,
        timeout: float = TIMEOUT,
        tags: str | None = None,
        idempotent: bool = False,
    ) -> Any:
        """Call a command and return its answer; both payloads are JSON.

        Args:
            to: a name, a twin's number, ``"twin:session"`` or an address. With a name, one of its
                workers answers; if its connection ends first, the next one gets the request, too.
                So two workers may run it, and the first answer counts. Without a session, the
                request goes to the gateway of the twin.
            command: the name of the command.
            payload: any value that JSON can represent.
            timeout: seconds for the whole call, after which the request expires everywhere.
            tags: ``"fail-fast"`` makes relays refuse a request that they cannot deliver at once.
            idempotent: whether the command may run more than once. If so, the request is sent again
                not only when a connection is lost, but also after 2, 4, 8 and then every 16 seconds
                without an answer. Receivers of this package run it once and answer again; others
                may run each copy.

        Raises:
            BusError: the twin is unknown (103), the twin answered with an error, or a relay did
                (0).
            NobodyJoined: no worker has joined the name, and none has left within half a minute.
                With code 410, the workers went meanwhile, and one may have run the command.
            RelayRefused: with code 429, this twin, or all together, have as many requests in the
                queue of the name as they may; the text says which.
            CallTimeout: no answer came in time; ``retry_safe`` says whether the request was sent.
            NoThreadError: the system has no thread left; nothing was sent.
            TypeError, ValueError: the payload is not JSON, or the client is closed.
        """
        data = encode(payload)
        asked = _Asked(to, command, data, JSON_SCHEMA, tags, decode, idempotent)
        return self._call(asked, timeout)

    def submit(
        self,
        to: int | str | Address,
        command: str,
        payload: Any = None,
        *,
        timeout: float = TIMEOUT,
        tags: str | None = None,
        idempotent: bool = False,
    ) -> Future[Any]:
        """Send a request as ``call`` does, and return the future of its answer.

        Blocks for the look-up of the twin, or of the name, and until a relay takes the request.
        Errors before that are raised here; later ones, including the timeout, are set on the
        future. Cancelling the future discards the answer, but the command still runs. Callbacks of
        the future may call again and wait: each runs in one of up to 16 threads, or in that which
        adds it if the future is done.
        """
        data = encode(payload)
        asked = _Asked(to, command, data, JSON_SCHEMA, tags, decode, idempotent)
        return self._submit(asked, timeout)

    def call_raw(
        self,
        to: int | str | Address,
        command: str,
        data: bytes,
        schema: str = JSON_SCHEMA,
        *,
        timeout: float = TIMEOUT,
        tags: str | None = None,
        idempotent: bool = False,
    ) -> Reply:
        """Call a command with bytes of any media type, and return those of the answer.

        Most peers accept JSON only. Arguments and errors are those of ``call``.
        """
        asked = _Asked(to, command, data, schema, tags, Reply, idempotent)
        reply: Reply = self._call(asked, timeout)
        return reply

    def _call(self, asked: _Asked, timeout: float) -> Any:
        deadline = Deadline(timeout)
        future = self._submit(asked, timeout)
        try:
            return self._wait(future)
        except NobodyJoined as error:
            left = deadline.remaining()
            if not (left and isinstance(asked.to, str) and error.retry_safe):
                raise
        # Nothing ran. Its owner was remembered, and another twin may have the name now.
        return self._wait(self._submit(asked, left))

    def _submit(self, asked: _Asked, timeout: float) -> Future[Any]:
        self._check_process()
        to, command, data, schema, tags, read, idempotent = asked
        if not command:
            raise ValueError("the command is empty: name what to call")
        _check_timeout(timeout)
        deadline, life = Deadline(timeout), life_until(timeout)
        relay = None
        if isinstance(to, str) and is_name(to):
            self._relay_pool.start()
            destination, relay = self._resolver.resolve(to, deadline)
        else:
            destination = to if isinstance(to, Address) else parse_address(str(to))
        self._relay_pool.start()
        twin = self._endpoint.twin(destination.twin, deadline)
        uid = str(uuid.uuid4())
        signed, sealed = self._endpoint.request(
            uid, twin, destination, command, data, life, deadline, schema=schema, tags=tags
        )
        future = self._calls.future()
        call = Call(uid, twin, destination, command, sealed, deadline, future, read, signed)
        self._calls.add(call)
        try:
            self._relay_pool.send(signed, deadline, twin.id, relay)
        except BaseException as error:
            copies = self._calls.copies(call)
            self._calls.remove(call)
            if copies and isinstance(error, CallTimeout):  # after a loss, by the resender
                raise CallTimeout(error.message, twin.id) from error
            raise
        if idempotent:
            self._calls.repeat(call)
        return future

    def _wait(self, future: Future[Any]) -> Any:
        try:
            return future.result()
        except BaseException:
            if not future.done():
                future.cancel()  # interrupted: nothing waits for the answer
            raise

    # Services

    def serve(self, functions: Mapping[str, Function], workers: int = WORKERS) -> None:
        """Answer these commands from now on; returns at once.

        Each function is called with the payload, and with a ``ServiceRequest`` if it requires two
        arguments, in one of at most ``workers`` threads. Its return value is sent as JSON. A
        ``BusError`` that it raises is sent as the error; for any other exception, the caller gets
        its type and text with code 500. Calling this again adds commands.

        Raises:
            ValueError: a command is empty or already served, or the client is closed.
            TypeError: a function is not callable.
            NoThreadError: the system has no thread left; none of these commands is served.
        """
        self._check_process()
        pool = self._services.add(functions, workers)
        try:
            self._relay_pool.start()
            if self._own_name is not None:
                self._join(self._own_name, None)
        except NoThreadError:
            self._services.remove(pool)
            raise

    def service(self, command: str, *, workers: int = WORKERS) -> Callable[[Served], Served]:
        """Serve a command with the decorated function, which is returned unchanged; see ``serve``.

        ::

            @client.service("billing.add")
            def add(numbers):
                return sum(numbers)

        The client connects with the first function. To have requests that wait at a relay find all
        commands served, give them to ``serve`` together.

        Raises:
            TypeError, ValueError: as ``serve``; the decorator was used without a command.
        """
        check_command(command)

        def decorate(function: Served) -> Served:
            self.serve({command: function}, workers)
            return function

        return decorate

    # Topics

    def publish(self, topic: str, payload: Any, *, timeout: float = TIMEOUT) -> Position:
        """Publish a message to a topic of the relay; return its position once it is kept.

        The payload is JSON. It is signed, but not encrypted: the relay and every twin that may
        connect to it can read it. It is sent again when a connection or the relay fails, and kept
        once all the same.

        Args:
            topic: a letter and up to 63 letters, digits, dots, dashes or underscores; created with
                its first message.
            payload: any value that JSON can represent.
            timeout: seconds for all of it.

        Raises:
            RelayRefused: code 403, this twin may not publish to the topic; 429, a bound of the
                relay is reached; 501, the relay has no topics; 400 for anything else.
            CallTimeout: it was not kept in time, or its position was not heard of; ``retry_safe``
                says whether it was sent.
            TypeError, ValueError: the payload is not JSON, or too long, or the topic is invalid, or
                the client is closed.
        """
        return self.publish_raw(topic, encode(payload), timeout=timeout)

    def publish_raw(
        self, topic: str, data: bytes, schema: str = JSON_SCHEMA, *, timeout: float = TIMEOUT
    ) -> Position:
        """Publish bytes of any media type, up to 1 MiB; arguments and errors are as ``publish``."""
        self._check_process()
        _check_timeout(timeout)
        self._relay_pool.start()
        return self._topics.publish(topic, data, schema, timeout)

    def subscribe(
        self,
        topic: str,
        *,
        start: Position | str = "new",
        credit: int = CREDIT,
        timeout: float = TIMEOUT,
    ) -> Subscription:
        """Subscribe to a topic of the relay; close the subscription when it is not needed.

        Relays that share a Redis have the same topics; others have each its own. So a client of
        several relays should be one of relays that share.

        Args:
            topic: its name; it need not exist yet.
            start: ``"new"``, behind what has been published until now; ``"oldest"``, with the
                oldest message that is kept; or a position, or its text, behind which to begin.
            credit: messages, up to 1000, that may wait in this process, with about 4 MiB at most.
                The relay sends no more: what is not read in time stays there, until its bounds
                drop it.
            timeout: seconds to hear from the relay where the topic begins.

        Raises:
            RelayRefused: code 501, the relay has no topics; 503, it could not read this one.
            CallTimeout: no relay answered in time.
            ValueError: an argument is invalid, or the client is closed.
        """
        self._check_process()
        _check_timeout(timeout)
        self._relay_pool.start()
        return self._topics.subscribe(topic, start, credit, timeout)

    # Names

    def join(
        self, name: str, *, at_once: int | None = None, timeout: float = JOIN_TIMEOUT
    ) -> Presence:
        """Share in the calls of a name, until ``leave`` or ``close``; return who else does.

        All sessions of this twin that join a name get its calls in turn. The first twin that joins
        owns the name while it has workers, and half a minute longer; see ``names=`` of
        ``serve_relay`` for names that are kept for a twin. The session joins at every relay, and
        again after each lost connection; a relay that refused is asked again, too.

        A call is not handed to another worker before the connection of the one that has it ends.
        It is then: a command may run twice, in two workers. So it may if a caller that lost its
        connection sends it again through another relay of the same Redis. A copy that reaches the
        same worker again does not run again, and is answered as before.

        Blocks until a relay has accepted, or all that are connected have refused.

        Args:
            name: a letter and up to 63 letters, digits, dots, dashes or underscores.
            at_once: requests that this worker is given before it has answered, as many as ``serve``
                has threads by default.
            timeout: seconds. The session goes on to join after it, and after a refusal.

        Raises:
            NameTaken: the name belongs to another twin.
            RelayRefused: a bound of the relay is reached (429), or it knows no names (501).
            CallTimeout: no relay answered in time.
            ValueError: no command is served, which the calls of the name would be refused for; the
                name or ``at_once`` is invalid; the client is closed.
        """
        self._check_process()
        deadline = Deadline(timeout)
        key = self._join(check_name(name), at_once)
        self._relay_pool.start()
        answer = self._standing.wait(key, deadline)
        return presence_of(name, answer)

    def leave(self, name: str, *, timeout: float = JOIN_TIMEOUT) -> None:
        """Get no more calls of a name; those that this worker has, it answers.

        Blocks until the relays know, at most for ``timeout`` seconds; does nothing if the name was
        not joined.

        Raises:
            CallTimeout: a relay did not answer in time; it is told all the same.
        """
        self._check_process()
        if self._standing.remove(_key(name)) and not self._standing.wait_undone(Deadline(timeout)):
            raise CallTimeout(f"a relay did not confirm in time that {name!r} is left")

    def joined(self) -> list[Joined]:
        """Return, for each name and relay, whether this session shares in the calls."""
        serials = {each.url: each.serial for each in self._relay_pool.connections()}
        return [
            Joined(key.removeprefix(_KEY), url, 0 != serials.get(url) == state.serial, state.reason)
            for key in self._standing.wanted()
            if key.startswith(_KEY)
            for url, state in self._standing.states(key).items()
        ]

    def who(self, name: str, *, timeout: float = TIMEOUT) -> Presence:
        """Ask who answers the calls of a name; blocks for the answer of a relay.

        Raises:
            NobodyJoined: nobody has joined it within half a minute.
            RelayRefused: the relay knows no names (501).
            CallTimeout: no relay answered in time.
            ValueError: the name is invalid, or the client is closed.
        """
        self._check_process()
        self._relay_pool.start()
        return self._resolver.who(check_name(name), Deadline(timeout))

    def _join(self, name: str, at_once: int | None) -> str:
        """Start to join a name; return the key of the standing request."""
        if not self._services.any_served():
            raise ValueError(f"serve commands before joining {name!r}: its calls need them")
        count = min(self._services.threads(), MAX_AT_ONCE) if at_once is None else at_once
        if not 1 <= count <= MAX_AT_ONCE:
            raise ValueError(f"expected at_once from 1 to {MAX_AT_ONCE}, got {count}")
        self._endpoint.share(shared_address(self.address.twin, name))
        payload = {"name": name, "at_once": count}
        self._standing.add(_key(name), "relay.join", payload, "relay.leave")
        return _key(name)

    # State

    def wait_connected(self, timeout: float | None = None) -> None:
        """Wait until at least one relay is connected.

        Args:
            timeout: seconds; ``None`` waits without limit.

        Raises:
            CallTimeout: no relay was connected in time; the message says why. The client keeps
                trying.
        """
        self._check_process()
        self._relay_pool.start()
        self._relay_pool.wait_connected(Deadline(timeout))

    def relays(self) -> list[RelayStatus]:
        """Return the state of the connection to each relay, and why it is down if it is.

        The state is ``CONNECTING`` until the first call, ``serve`` or ``wait_connected``.
        """
        return self._relay_pool.status()

    @property
    def closed(self) -> bool:
        """Whether the client was closed."""
        return self._closed

    def close(self, timeout: float | None = 5.0) -> None:
        """Accept no more requests, end every call and connection; may be called twice.

        Blocks for at most ``timeout`` seconds while the names are left, running functions and
        callbacks of futures finish, and answers are sent.
        """
        if self._in_child:
            return
        self._closed = True
        deadline = Deadline(timeout)
        self._leave_all(deadline)
        self._services.close(deadline)
        self._calls.close(_closed_error, deadline)
        self._topics.close()
        self._control.close()
        self._standing.close(deadline)
        self._relay_pool.close(deadline)
        self._calls.join(deadline)  # behind the others, since callbacks may wait for these
        if self._owned is not None:
            self._owned.close()

    def _leave_all(self, deadline: Deadline) -> None:
        """Leave every name, so that no request is taken that is not run."""
        for key in self._standing.wanted():
            self._standing.remove(key)
        left = deadline.remaining()
        soon = Deadline(LEAVE_TIME if left is None else min(left, LEAVE_TIME))
        if not self._standing.wait_undone(soon):
            _log.info("%s closes before a relay confirmed that its names are left", self.name)

    def forked(self) -> None:
        """Disable the copy in a forked child; see ``runtime.fork``."""
        self._in_child = self._topics.in_child = True

    def _check_process(self) -> None:
        if self._in_child:
            raise ForkedError(f"{self.name} belongs to the parent process")

    def _send_again(self, data: bytes) -> None:
        self._relay_pool.offer(data)

    # Threads of the connections

    def _is_awaited(self) -> bool:
        """Return whether calls of this client wait for a relay, or those of others may."""
        calls = len(self._calls) > 0 or self._services.any_served()
        return calls or self._topics.is_awaited()

    def _lost(self) -> None:
        self._control.lost()
        if not self._closed:
            self._resender.lost()

    def _changed(self) -> None:
        self._standing.changed()

    def _receive(self, envelope: Envelope, size: int, relay: RelayConnection) -> None:
        if self._control.take(envelope):
            return
        match kind_of(envelope):
            case Kind.REQUEST:
                self._services.take(envelope, size, relay)
            case Kind.RESPONSE | Kind.ERROR as kind:
                self._answered(envelope, kind)
            case kind:
                _log.debug("a message of kind %s is dropped", kind)

    def _answered(self, envelope: Envelope, kind: Kind) -> None:
        call = self._calls.find(envelope.uid)
        source = address_of(envelope.source)
        shown = source.shown() if source else "0"
        if call is None:
            _log.info("an answer from twin %s is dropped: no call waits for it", shown)
            return
        from_relay = source is None and kind is Kind.ERROR
        if from_relay and self._calls.copies(call):
            # It may be about a copy, while another one has been delivered.
            _log.info("the relay's error %r ends no repeated call", envelope.error.message[:200])
            return
        if not from_relay and not call.is_asked(source):
            text = "an answer from twin %s is dropped: %s was asked"
            _log.warning(text, shown, call.destination.shown())
            return
        try:
            received = self._endpoint.accept(envelope, lambda _: call.twin, sealed=call.sealed)
            name = name_of(call.destination)
            if from_relay and name is not None:
                code = envelope.error.code
                if code != TOO_MANY:
                    self._resolver.forget(name)
                if code in (NOBODY_JOINED, WORKERS_GONE, TOO_MANY):
                    raise relay_refused(code, envelope.error.message)
            if kind is Kind.ERROR:
                error, asked = envelope.error, None if from_relay else call.twin.id
                raise remote_error(error.code, error.message, asked)
            outcome = call.read(received.payload, envelope.schema)
        except Replayed as error:
            _log.debug("%s", error)
            return
        except BusError as error:
            outcome = error
        self._calls.settle(call, outcome)


def _check_timeout(timeout: float) -> None:
    if not 0 < timeout <= LONGEST_WAIT:
        raise ValueError(f"expected a timeout up to {LONGEST_WAIT:.0f} seconds, got {timeout}")


# What the keys of the standing requests begin with that join names.
_KEY = "join "


def _key(name: str) -> str:
    return _KEY + name


def urls_of(relays: str | Iterable[str]) -> list[str]:
    """Return a list of relay addresses; a single address may be given as a string.

    Raises:
        TypeError: ``relays`` is not a collection of strings.
    """
    given = [relays] if isinstance(relays, str) else relays
    return list(strings("relays", given, "wss://relay.test"))


def directory_of(
    twins: TwinDirectory | TwinSource | Sequence[TwinSource],
) -> tuple[TwinDirectory, TwinDirectory | None]:
    """Return a directory, and again as second item if it was made here, for the caller to close."""
    if isinstance(twins, TwinDirectory):
        return twins, None
    made = twins_from([twins] if isinstance(twins, str | os.PathLike) else twins)
    return made, made


def own_twin(
    identity: Identity, twins: TwinDirectory, number: int | None, deadline: Deadline
) -> int:
    """Return the number of the twin that an identity belongs to; blocks if it must be looked up.

    Raises:
        BusError: code 103; no twin has this account.
        TwinsUnavailable: the directory could not be asked.
    """
    if number is not None:
        return number
    found = twins.find(identity.account, deadline)
    if found is None:
        text = f"no twin has the account {identity.address}, of key type {identity.key_type}"
        fix = _other_type(identity, twins, deadline) or "register it, or give its number"
        raise BusError(UNKNOWN_TWIN, f"{text}: {fix}", retry_safe=True)
    return found.id


def _other_type(identity: Identity, twins: TwinDirectory, deadline: Deadline) -> str | None:
    """Return what to do if a twin has the account that the same secret has with another type."""
    for key_type in KeyType:
        try:
            account = identity.with_key_type(key_type).account
        except ImportError:
            continue
        twin = twins.find(account, deadline)
        if twin is not None:
            return f"twin {twin.id} has that of key type {key_type}: give that type (-k {key_type})"
    return None


def _closed_error(call: Call) -> Exception:
    return BusError(FAILED, "the client was closed before the answer came", twin=call.twin.id)
