"""Send what programs push to their gateway: requests, and the responses of services.

Each destination of a request gets an envelope with a uid of its own; the reference gateway uses one
uid for all. So an answer is tied to the twin that was asked, and a second one is recognised.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import TypeVar

from ...runtime.deadline import Deadline
from ...runtime.logs import logger
from ..errors import CANNOT_PARSE, EXPIRED, BadMessage, BusError, CallTimeout, TwinsUnavailable
from ..session.asked_requests import AskedRequests
from ..session.identity_session import IdentitySession, clock
from ..session.relay_pool import RelayPool
from ..session.resender import Unanswered
from ..wire import envelope as envelopes
from ..wire.address import Address, put_address
from ..wire.envelope import JSON_SCHEMA
from ..wire.messages import Envelope
from .backlog import Waiting
from .expiry import Expiry
from .json_messages import (
    MAX_LIFE,
    JsonError,
    OutgoingRequest,
    OutgoingResponse,
    caller_of,
    incoming_response,
    parse_request,
    parse_response,
)
from .queue_names import reply_queue
from .redis_store import REPLY, RedisStore, Tracked, asked_key
from .uploads import Uploads

__all__ = ["Half", "Outbound", "life_left", "undeliverable"]


class Half:
    """Hold what both directions, ``Outbound`` and ``Inbound``, use.

    Args:
        endpoint: the session that signs and checks for the twin.
        relay_pool: the connections to relays.
        store: the lists of programs.
        asked: remembers the requests of other twins.
        uploads: the file plugin.
        expiry: knows when the requests of programs expire.
    """

    def __init__(
        self,
        endpoint: IdentitySession,
        relay_pool: RelayPool,
        store: RedisStore,
        asked: AskedRequests,
        uploads: Uploads,
        expiry: Expiry,
    ) -> None:
        self._endpoint = endpoint
        self._relay_pool = relay_pool
        self._store = store
        self._asked = asked
        self._uploads = uploads
        self._expiry = expiry


# Seconds to write the outcome of an expired message to Redis.
GRACE = 60.0

# Seconds between retries while the directory of twins is unavailable.
PAUSE = 1.0

_log = logger("wsmux.bus")

T = TypeVar("T")


def life_left(timestamp: int, expiration: int, now: int) -> int:
    """Return the seconds that a message has left; all of them if its timestamp is in the future."""
    return expiration if timestamp > now else timestamp + expiration - now


def undeliverable(reference: str | None, code: int, text: str) -> bytes:
    """Return the error response for a request that this gateway cannot send."""
    return incoming_response(reference, b"", "", None, 0, JsonError(code, text))


class Outbound(Half):
    """Make envelopes of what programs push, and send them; for the threads of a pool."""

    def request(self, raw: bytes) -> None:
        """Handle a message taken from ``msgbus.system.local``."""
        try:
            request = parse_request(raw)
            queue = reply_queue(request.reply_to)
        except (BadMessage, ValueError) as error:
            self._refuse(raw, error)
            return
        life = life_left(request.timestamp, request.expiration, clock())
        deadline = Deadline(max(0, life))
        if self._uploads.is_ours(request.command) and life > 0:
            tracked, errors = self._uploads.prepare(request, life, deadline)
        else:
            tracked, errors = self._prepare(request, life, deadline)
        told = [(queue, undeliverable(request.reference, *error)) for error in errors]
        self._store.sending(raw, tracked, told, Deadline(max(0, life) + GRACE))
        for each in tracked:
            if each.waiting.module is None:
                self.send(each)
            else:
                self._uploads.start(each)

    def response(self, raw: bytes) -> None:
        """Handle a message taken from ``msgbus.system.reply``."""
        try:
            response = parse_response(raw)
            if response.reference is None:
                raise BadMessage("'ref' is missing: it names the request that is answered")
            life = life_left(response.timestamp, MAX_LIFE, clock())
            self._answer(response, response.reference, Deadline(max(0, life)))
        except BusError as error:
            _log.warning("an answer from a service is dropped: %s", error)
        self._store.done(REPLY, raw, Deadline(GRACE))

    def send(self, tracked: Tracked) -> None:
        """Hand an envelope to a relay, waiting for one; if it expires, answer its caller."""
        envelope = envelopes.parse(tracked.signed)
        life = envelopes.time_left(envelope, clock())
        try:
            if life <= 0:
                raise CallTimeout("the request expired before it was answered")
            self._relay_pool.send(tracked.signed, Deadline(life), envelope.destination.twin)
            self._expiry.add(tracked.waiting.uid, envelope.timestamp + envelope.expiration)
        except CallTimeout as error:
            self._expired(tracked.waiting, error.message)
        except ValueError:
            _log.info("%s is kept for the next start: the gateway is closing", tracked.waiting.uid)

    def tell_expired(self) -> None:
        """Answer the callers whose requests have expired without an answer."""
        for uid in self._expiry.take(clock()):
            try:
                found = self._store.tracked(uid, Deadline(GRACE))
                if found is not None:
                    self._expired(found.waiting, "the request expired before it was answered")
            except BusError as error:
                _log.warning("a caller will be told later that its request expired: %s", error)
                self._expiry.add(uid, clock())

    def unanswered(self) -> Iterator[Unanswered]:
        """Yield the requests without an answer, to be sent again, but for uploads."""
        for each in self._store.unanswered(Deadline(GRACE)):
            envelope = envelopes.parse(each.signed)
            life = envelopes.time_left(envelope, clock())
            if life > 0 and each.waiting.module is None:
                self._expiry.note_resent(each.waiting.uid)
                yield Unanswered(each.signed, Deadline(life), envelope.destination.twin)

    def _expired(self, waiting: Waiting, text: str) -> None:
        message = undeliverable(waiting.reference, EXPIRED, text)
        self._store.answer(waiting, message, Deadline(GRACE))
        self._expiry.remove(waiting.uid)

    def _refuse(self, raw: bytes, error: Exception) -> None:
        """Drop an invalid request, and send its program an error if the request names a list."""
        text = error.message if isinstance(error, BusError) else str(error)
        _log.warning("a request of a program is dropped: %s", text)
        told = []
        caller = caller_of(raw)
        if caller is not None:
            try:
                told = [(reply_queue(caller[0]), undeliverable(caller[1], CANNOT_PARSE, text))]
            except ValueError:
                _log.info("its sender gets no error: the list %r is not allowed", caller[0][:80])
        self._store.sending(raw, [], told, Deadline(GRACE))

    def _prepare(
        self, request: OutgoingRequest, life: int, deadline: Deadline
    ) -> tuple[list[Tracked], list[JsonError]]:
        """Return the envelopes of a request, and the errors of destinations without one."""
        tracked, errors = [], []
        for number in request.destinations:
            try:
                if life <= 0:
                    raise BusError(EXPIRED, "the request had expired when it was taken")
                tracked.append(self._envelope(request, number, life, deadline))
            except BusError as error:
                errors.append(JsonError(error.code, error.message))
        return tracked, errors

    def _envelope(
        self, request: OutgoingRequest, number: int, life: int, deadline: Deadline
    ) -> Tracked:
        endpoint = self._endpoint
        twin = endpoint.twin(number, deadline)
        uid = str(uuid.uuid4())
        signed, _ = endpoint.request(
            uid,
            twin,
            Address(number),
            request.command,
            request.data,
            life,
            deadline,
            schema=request.schema or JSON_SCHEMA,
            tags=request.tags,
        )
        return Tracked(Waiting(uid, request.reference, request.reply_to, None, life), signed)

    def _answer(self, response: OutgoingResponse, uid: str, deadline: Deadline) -> None:
        endpoint, now = self._endpoint, clock()
        source = str(response.destination)
        if life_left(response.timestamp, MAX_LIFE, now) <= 0:
            raise BusError(EXPIRED, f"the answer to {uid} had expired when it was taken")
        asked = Envelope(
            uid=uid,
            timestamp=min(response.timestamp, now),
            expiration=MAX_LIFE,
            schema=response.schema or JSON_SCHEMA,
        )
        put_address(asked.source, response.destination)
        if response.error is not None:
            signed = endpoint.error(asked, *response.error)
        else:
            number = response.destination.twin
            twin = self._patiently(lambda: endpoint.twin(number, deadline), deadline)
            encrypted = self._asked.was_encrypted(uid, source)
            signed = endpoint.response(asked, twin, response.data, deadline, encrypted=encrypted)
        self._asked.answered(uid, source, signed)
        try:
            self._store.answered(asked_key(uid, source), signed, deadline)
        except BusError as error:  # a copy of the request gets no answer, and this one does
            _log.warning("the answer to %s is not remembered: %s", uid, error)
        self._relay_pool.send(signed, deadline, response.destination.twin)

    def _patiently(self, look_up: Callable[[], T], deadline: Deadline) -> T:
        """Retry the look-up while the directory is unavailable: nothing repeats a lost answer."""
        while True:
            try:
                return look_up()
            except TwinsUnavailable:
                if deadline.expired() or not self._store.pause(PAUSE):
                    raise
