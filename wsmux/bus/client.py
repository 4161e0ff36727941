"""Call twins over relays and answer their calls, from any number of threads.

Threads and locks:

- One thread per relay connects, reads and answers pings (see ``relay_connection``). It parses what
  comes, checks answers, with the record of the twin that was looked up for the call, and puts them
  into their futures: an answer is handed over on arrival. It never looks anything up, and never
  waits.
- One thread ends calls whose time is over, from the first call on (see ``pending``).
- Functions that are served run in threads of their own (see ``services``).
- Whoever calls looks the other twin up, encrypts, signs and sends in its own thread.

Each table has a lock of its own, in its module; none is held while another is taken, and nothing is
sent, looked up or called under one.

What becomes of calls: a request is sent once. If the connection that took it is lost, the request
or its answer may be, and the call ends in ``CallTimeout`` when it expires; there is no telling
whether the command ran. Requests for which no relay has room wait for one as long as they live.
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
from .errors import FAILED, UNKNOWN_TWIN, BadMessage, BusError, Replayed, remote_error
from .services import Function, Services, decode, encode
from .session.identity_session import IdentitySession, life_until
from .session.pending import Call, PendingCalls
from .session.relay_connection import RelayStatus
from .session.relay_pool import RelayPool
from .twins.records import TwinDirectory
from .twins.sources import twins_from
from .wire import envelope as envelopes
from .wire.address import Address, address_of, is_text, parse_address
from .wire.envelope import JSON_SCHEMA, Kind, kind_of
from .wire.keys import Identity
from .wire.messages import Envelope

__all__ = ["Client", "Reply"]

# Seconds for an answer, where nothing is said.
TIMEOUT = 30.0

# Seconds to find out which twin this is.
FIND_TIMEOUT = 20.0

WORKERS = 16

_log = logger("wsmux.bus")


class Reply(NamedTuple):
    """Hold an answer as it came: its bytes, decrypted, and their media type."""

    data: bytes
    schema: str


class Client(Closing):
    """One session of a twin: call others, and answer calls.

    Every method may be called from any thread. Leaving a ``with`` block closes the client.

    It connects when it first calls, serves or is told to wait for a connection, and not before:
    what waits for it at a relay would come at once, and be refused if nobody served it yet.

    Args:
        identity: the keys of the twin.
        relays: the addresses of up to four relays, ``ws://`` or ``wss://``, the preferred one
            first; messages are taken from all of them.
        twins: a directory, or what ``twins_from`` takes, such as the path of a file.
        twin: this twin's number; looked up by its account if it is not given.
        session: the name of this session, at random by default. Whoever connects with the same
            twin and session takes the place of the one before.
        gateway: have no session, and so get what is sent to the twin alone, as its gateway does.
        e2e: encrypt where that is possible; see ``endpoint``. False never does.
        ssl_context: how to do TLS with the relays.

    Raises:
        BusError: code 103; the directory has no twin of this account. TwinsUnavailable: it could
            not be asked. ValueError: an address, or the number of relays, will not do.
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
            raise ValueError(f"the name of a session is whole text, unlike {session[:80]!r}")
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
            to: a twin's number, ``"twin:session"`` or an address. Without a session it goes to the
                gateway of the twin.
            command: what to call.
            payload: anything that JSON knows.
            timeout: seconds for all of it, after which the request expires everywhere.
            tags: ``"fail-fast"`` has relays refuse what they cannot deliver at once.

        Raises:
            BusError: the twin is unknown (103), answers with an error, or a relay does (0).
            CallTimeout: there was no answer in time; ``retry_safe`` tells whether it was sent.
            TypeError, ValueError: the payload is no JSON, or the client is closed.
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

        It may wait for the directory and for a relay. What goes wrong before the request is sent is
        raised here, and the rest by the future, when the time is over at the latest. Cancelling
        the future drops the answer; the command runs all the same.
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

        Most peers take JSON only. See ``call``.
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
            raise ValueError(f"a call takes from 0 to {LONGEST_WAIT:.0f} seconds, not {timeout}")
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
                future.cancel()  # interrupted: the answer is for nobody
            raise

    # Services

    def serve(self, functions: Mapping[str, Function], workers: int = WORKERS) -> None:
        """Answer these commands from now on; returns at once.

        Each function is called with the payload, and with a ``ServiceRequest`` if it needs two
        arguments, in one of at most ``workers`` threads. What it returns is the answer, as JSON.
        A ``BusError`` that it raises is the answer's error; of any other exception the caller
        learns the name and text, with code 500. Further calls add commands.

        Raises:
            ValueError: a command is empty or served already, or the client is closed.
        """
        self._check_process()
        self._services.add(functions, workers)
        self._relay_pool.start()

    # State

    def wait_connected(self, timeout: float | None = None) -> None:
        """Wait until there is a connection to one relay at least.

        Raises:
            CallTimeout: there is none in time; its text tells why, and attempts go on.
        """
        self._check_process()
        self._relay_pool.start()
        self._relay_pool.wait_connected(Deadline(timeout))

    def relays(self) -> list[RelayStatus]:
        """Return the state of each connection to a relay, and why it is not connected.

        A client connects with its first call, with ``serve`` or ``wait_connected``. Before, the
        state is ``CONNECTING``.
        """
        return self._relay_pool.status()

    @property
    def closed(self) -> bool:
        """Whether the client was closed."""
        return self._closed

    def close(self, timeout: float | None = 5.0) -> None:
        """Take no more requests, end every call and connection; closing twice is fine.

        Functions that run have ``timeout`` seconds to end, and their answers to get out.
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
        """Become useless in a forked child; see ``runtime.fork``."""
        self._in_child = True

    def _check_process(self) -> None:
        if self._in_child:
            raise ForkedError(f"{self.name} belongs to the parent process")

    # The threads of the links

    def _receive(self, data: bytes) -> None:
        try:
            envelope = envelopes.parse(data)
        except BadMessage as error:
            _log.warning("a message from a relay is dropped: %s", error)
            return
        match kind_of(envelope):
            case Kind.REQUEST:
                self._services.take(envelope, len(data))
            case Kind.RESPONSE | Kind.ERROR as kind:
                self._answered(envelope, kind)
            case kind:
                _log.debug("a message of kind %s is dropped", kind)

    def _answered(self, envelope: Envelope, kind: Kind) -> None:
        call = self._calls.find(envelope.uid)
        source = address_of(envelope.source)
        shown = source.shown() if source else "0"
        if call is None:
            _log.info("an answer of twin %s is dropped: no call is waiting for it", shown)
            return
        from_relay = source is None and kind is Kind.ERROR
        if not from_relay and not call.is_asked(source):
            text = "an answer of twin %s is dropped: %s was asked"
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
    """Return the addresses of relays, of which one may be given alone.

    Raises:
        TypeError: they are no collection of strings.
    """
    given = [relays] if isinstance(relays, str) else relays
    return list(strings("relays", given, "wss://relay.test"))


def directory_of(
    twins: TwinDirectory | str | Sequence[str],
) -> tuple[TwinDirectory, TwinDirectory | None]:
    """Return a directory, and once more if it was made here, for the caller to close."""
    if isinstance(twins, TwinDirectory):
        return twins, None
    made = twins_from([twins] if isinstance(twins, str) else twins)
    return made, made


def own_twin(
    identity: Identity, twins: TwinDirectory, number: int | None, deadline: Deadline
) -> int:
    """Return the number of the twin that an identity is; blocks if it must be looked up.

    Raises:
        BusError: code 103; there is none. TwinsUnavailable: nobody can tell.
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
