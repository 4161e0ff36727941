"""Call twins over relays and answer their calls, from any number of threads.

Threads and locks:

- One thread per relay connects, reads and answers pings (see ``relay_connection``). It parses each
  message, checks answers against the twin record that was looked up for the call, and sets the
  result of the call's future. It never looks up a twin and never blocks.
- One thread, started with the first call, ends calls that have timed out (see ``pending``).
- Service functions run in threads of a pool (see ``services``).
- The calling thread looks up the other twin, encrypts, signs and sends.

Each table has its own lock, in its own module. No lock is held while another is taken, or while
sending, looking up a twin or calling user code.

A request is sent once. If the connection that took it is lost, the request or its answer may be
lost too; the call then ends in ``CallTimeout`` when it expires, and the command may or may not have
run. A request that no relay has room for waits until it expires.
"""

from __future__ import annotations

import secrets
import ssl
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

from ..exceptions import ForkedError
from ..runtime import fork
from ..runtime.arguments import strings
from ..runtime.closing import Closing
from ..runtime.deadline import LONGEST_WAIT, Deadline
from ..runtime.logs import logger
from .errors import FAILED, UNKNOWN_TWIN, BusError, Replayed, remote_error
from .services import Function, Services, decode, encode
from .session.identity_session import IdentitySession, life_until
from .session.pending import Call, PendingCalls
from .session.relay_connection import RelayStatus
from .session.relay_pool import RelayPool
from .twins.records import TwinDirectory
from .twins.sources import twins_from
from .wire.address import Address, address_of, is_text, parse_address
from .wire.envelope import JSON_SCHEMA, Kind, kind_of
from .wire.keys import Identity
from .wire.messages import Envelope

__all__ = ["Client", "Reply"]

# Default timeout of a call, in seconds.
TIMEOUT = 30.0

# Seconds to look up this twin's own number.
FIND_TIMEOUT = 20.0

WORKERS = 16

_log = logger("wsmux.bus")


class Reply(NamedTuple):
    """Hold the decrypted payload of an answer and its media type."""

    data: bytes
    schema: str


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
        twins: a directory, or what ``twins_from`` takes, such as the path of a file.
        twin: this twin's number; looked up by its account if omitted.
        session: the name of this session, random by default. A later connection with the same twin
            and session replaces the earlier one.
        gateway: use no session name, and so receive the messages that are addressed to the twin
            alone, as its gateway does.
        e2e: encrypt payloads where possible; see ``identity_session``. False never encrypts.
        ssl_context: the TLS settings for connections to relays.

    Raises:
        BusError: code 103; the directory has no twin with this account.
        TwinsUnavailable: the directory could not be asked.
        ValueError: an address, or the number of relays, is invalid.
    """

    def __init__(
        self,
        identity: Identity,
        relays: str | Sequence[str],
        twins: TwinDirectory | str | Sequence[str],
        *,
        twin: int | None = None,
        session: str | None = None,
        gateway: bool = False,
        e2e: bool = True,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        if gateway and session is not None:
            raise ValueError("gateway and session exclude each other: give one of the two")
        if session is not None and not is_text(session):
            raise ValueError(f"expected a session name of valid Unicode, got {session[:80]!r}")
        urls = urls_of(relays)
        directory, self._owned = directory_of(twins)
        try:
            number = own_twin(identity, directory, twin, Deadline(FIND_TIMEOUT))
            chosen = secrets.token_hex(8) if session is None and not gateway else session
            self.address: Address = Address(number, chosen)
            self.name: str = f"wsmux-bus-{self.address}"
            self._endpoint = IdentitySession(identity, self.address, directory, e2e)
            make_token, receive = self._endpoint.token, self._receive
            self._relay_pool = RelayPool(urls, make_token, receive, ssl_context)
        except BaseException:
            if self._owned is not None:
                self._owned.close()
            raise
        self._calls = PendingCalls(self.name)
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
    ) -> Any:
        """Call a command and return its answer; both payloads are JSON.

        Args:
            to: a twin's number, ``"twin:session"`` or an address. Without a session, the request
                goes to the gateway of the twin.
            command: the name of the command.
            payload: any value that JSON can represent.
            timeout: seconds for the whole call, after which the request expires everywhere.
            tags: ``"fail-fast"`` makes relays refuse a request that they cannot deliver at once.

        Raises:
            BusError: the twin is unknown (103), the twin answered with an error, or a relay did
                (0).
            CallTimeout: no answer came in time; ``retry_safe`` says whether the request was sent.
            TypeError, ValueError: the payload is not JSON, or the client is closed.
        """
        return self._wait(self.submit(to, command, payload, timeout=timeout, tags=tags))

    def submit(
        self,
        to: int | str | Address,
        command: str,
        payload: Any = None,
        *,
        timeout: float = TIMEOUT,
        tags: str | None = None,
    ) -> Future[Any]:
        """Send a request as ``call`` does, and return the future of its answer.

        Blocks for the look-up of the twin and until a relay takes the request. Errors before that
        are raised here; later ones, including the timeout, are set on the future. Cancelling the
        future discards the answer, but the command still runs.
        """
        return self._submit(to, command, encode(payload), JSON_SCHEMA, timeout, tags, decode)

    def call_raw(
        self,
        to: int | str | Address,
        command: str,
        data: bytes,
        schema: str = JSON_SCHEMA,
        *,
        timeout: float = TIMEOUT,
        tags: str | None = None,
    ) -> Reply:
        """Call a command with bytes of any media type, and return those of the answer.

        Most peers accept JSON only. Arguments and errors are those of ``call``.
        """
        reply: Reply = self._wait(self._submit(to, command, data, schema, timeout, tags, Reply))
        return reply

    def _submit(
        self,
        to: int | str | Address,
        command: str,
        data: bytes,
        schema: str,
        timeout: float,
        tags: str | None,
        read: Callable[[bytes, str], Any],
    ) -> Future[Any]:
        self._check_process()
        if not command:
            raise ValueError("the command is empty: name what to call")
        if not 0 < timeout <= LONGEST_WAIT:
            raise ValueError(f"expected a timeout up to {LONGEST_WAIT:.0f} seconds, got {timeout}")
        destination = to if isinstance(to, Address) else parse_address(str(to))
        deadline, life = Deadline(timeout), life_until(timeout)
        self._relay_pool.start()
        twin = self._endpoint.twin(destination.twin, deadline)
        uid = str(uuid.uuid4())
        signed, sealed = self._endpoint.request(
            uid, twin, destination, command, data, life, deadline, schema=schema, tags=tags
        )
        future: Future[Any] = Future()
        call = Call(uid, twin, destination, command, sealed, deadline, future, read)
        self._calls.add(call)
        try:
            self._relay_pool.send(signed, deadline, twin.id)
        except BaseException:
            self._calls.remove(call)
            raise
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
        """
        self._check_process()
        self._services.add(functions, workers)
        self._relay_pool.start()

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

        Blocks for at most ``timeout`` seconds while running functions finish and their answers are
        sent.
        """
        if self._in_child:
            return
        self._closed = True
        deadline = Deadline(timeout)
        self._services.close(deadline)
        self._calls.close(_closed_error, deadline)
        self._relay_pool.close(deadline)
        if self._owned is not None:
            self._owned.close()

    def forked(self) -> None:
        """Disable the copy in a forked child; see ``runtime.fork``."""
        self._in_child = True

    def _check_process(self) -> None:
        if self._in_child:
            raise ForkedError(f"{self.name} belongs to the parent process")

    # Threads of the connections

    def _receive(self, envelope: Envelope, size: int) -> None:
        match kind_of(envelope):
            case Kind.REQUEST:
                self._services.take(envelope, size)
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
        if not from_relay and not call.is_asked(source):
            text = "an answer from twin %s is dropped: %s was asked"
            _log.warning(text, shown, call.destination.shown())
            return
        try:
            received = self._endpoint.accept(envelope, lambda _: call.twin, sealed=call.sealed)
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


def urls_of(relays: str | Iterable[str]) -> list[str]:
    """Return a list of relay addresses; a single address may be given as a string.

    Raises:
        TypeError: ``relays`` is not a collection of strings.
    """
    given = [relays] if isinstance(relays, str) else relays
    return list(strings("relays", given, "wss://relay.test"))


def directory_of(
    twins: TwinDirectory | str | Sequence[str],
) -> tuple[TwinDirectory, TwinDirectory | None]:
    """Return a directory, and again as second item if it was made here, for the caller to close."""
    if isinstance(twins, TwinDirectory):
        return twins, None
    made = twins_from([twins] if isinstance(twins, str) else twins)
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
        text = f"no twin has the account {identity.address}: register it, or give its number"
        raise BusError(UNKNOWN_TWIN, text, retry_safe=True)
    return found.id


def _closed_error(call: Call) -> Exception:
    return BusError(FAILED, "the client was closed before the answer came", twin=call.twin.id)
