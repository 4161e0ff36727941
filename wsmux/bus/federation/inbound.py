"""Check envelopes that other relays post, before they reach a session.

The reference relay accepts anything that parses, from anybody. Here the source must be a twin on
record that signed the envelope, which also excludes messages that claim to come from a relay; the
destination must belong to this relay; and copies and expired envelopes are not delivered, nor what
cannot be told from a copy (see ``replay_cache``). A post
that may succeed later is answered with 429 or 503, any other refusal is permanent.

An envelope that was already accepted is accepted again but not delivered: relays repeat a post
whose answer was lost. It is not counted either, so nobody can use up a twin's rate limit with
copies of its signed messages.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from http import HTTPStatus

from ...runtime.deadline import Deadline
from ...runtime.logs import logger
from ..errors import TOO_MANY, BadMessage, BusError
from ..relay.rate_limiter import Limiter, NoLimit
from ..relay.router import LIMITED, NO_SESSION, NOBODY, OFFLINE, UNKNOWN_TWIN
from ..twins.records import Twin, TwinDirectory
from ..wire.address import Address, address_of
from ..wire.envelope import (
    MAX_ENVELOPE,
    Kind,
    accepted_until,
    digest,
    is_fail_fast,
    kind_of,
    parse,
)
from ..wire.keys import verify
from ..wire.messages import Envelope
from ..wire.names import is_nobody, name_of
from ..wire.replay_cache import ReplayCache
from .http_post import TOTAL, Answer

__all__ = ["FederationInbound"]

# Kinds that twins send each other; pings and pongs stay between a twin and its relay.
FEDERATED = frozenset({Kind.REQUEST, Kind.RESPONSE, Kind.ERROR})

ACCEPTED = Answer(HTTPStatus.ACCEPTED, "")

_log = logger("wsmux.bus")


class _Refused(Exception):
    """Carry the answer to a refused post."""

    def __init__(self, status: HTTPStatus, text: str) -> None:
        super().__init__(text)
        self.answer = Answer(status, text)


class FederationInbound:
    """Accept envelopes that other relays post; may be used by any number of threads.

    Args:
        twins: the directory in which accounts and relays are looked up.
        domains: the domains of this relay.
        is_connected: returns whether a session is connected here, or a name may be called here;
            for an envelope that fails fast if the second argument is true.
        deliver: delivers the bytes of an envelope, which expires at the given Unix second and is of
            the given twin, to a session of this relay, connected or not; raises ``BusError`` if it
            neither sent nor queued them, with code 429 for a bound of the queue.
        limiter: limits what each source sends through other relays; owned by this object.
        clock: returns Unix seconds.
    """

    def __init__(
        self,
        twins: TwinDirectory,
        domains: Collection[str],
        is_connected: Callable[[Address, bool], bool],
        deliver: Callable[[Address, bytes, int, int], object],
        *,
        limiter: Limiter | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._twins = twins
        self._domains = frozenset(domains)
        self._is_connected = is_connected
        self._deliver = deliver
        self._limiter = limiter or NoLimit()
        self._clock = clock
        self._lock = threading.Lock()  # for the limiter and the replays; held without blocking
        self._replays = ReplayCache()
        self._under_way: set[bytes] = set()  # signatures of envelopes being delivered

    def receive(self, data: bytes) -> Answer:
        """Handle the body of a POST, and return the answer.

        Blocks for the directory of twins, at most the ``TOTAL`` seconds that the posting relay
        waits, and as ``deliver`` does.
        """
        deadline = Deadline(TOTAL)
        try:
            envelope, destination = self._parse(data)
            source = self._check_source(envelope, deadline)
            end = self._begin(envelope, source, len(data))
            if end is not None:
                self._accept(envelope, source, destination, data, end, deadline)
        except _Refused as refusal:
            if refusal.answer.text != LIMITED:  # already logged as a warning
                _log.info("refused a message from another relay: %s", refusal)
            return refusal.answer
        return ACCEPTED

    def _parse(self, data: bytes) -> tuple[Envelope, Address]:
        """Return the envelope and its destination, after the checks that need no look-up."""
        if len(data) > MAX_ENVELOPE:
            raise _Refused(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                f"an envelope has at most {MAX_ENVELOPE} bytes, not {len(data)}",
            )
        try:
            envelope = parse(data)
        except BadMessage as error:
            raise _Refused(HTTPStatus.BAD_REQUEST, error.message) from error
        kind = kind_of(envelope)
        if kind not in FEDERATED:
            raise _Refused(HTTPStatus.BAD_REQUEST, f"relays do not forward messages of kind {kind}")
        destination = address_of(envelope.destination)
        if destination is None:
            raise _Refused(HTTPStatus.BAD_REQUEST, "the message has no destination")
        self._check_life(envelope)
        return envelope, destination

    def _check_life(self, envelope: Envelope) -> int:
        """Return when an envelope expires."""
        try:
            return accepted_until(envelope, int(self._clock()))
        except BusError as error:
            raise _Refused(HTTPStatus.GONE, error.message) from error

    def _check_source(self, envelope: Envelope, deadline: Deadline) -> Twin:
        source = address_of(envelope.source)
        if source is None:
            raise _Refused(HTTPStatus.FORBIDDEN, "twin 0 cannot send through other relays")
        twin = self._find(source.twin, deadline)
        if twin is None:
            raise _Refused(HTTPStatus.UNAUTHORIZED, f"twin {source.twin}, the source, is unknown")
        try:
            valid = verify(twin.account, digest(envelope), envelope.signature)
        except ImportError as error:
            raise _Refused(HTTPStatus.SERVICE_UNAVAILABLE, str(error)) from error
        if not valid:
            raise _Refused(
                HTTPStatus.UNAUTHORIZED,
                f"the signature is not of the account on record for twin {source.twin}",
            )
        return twin

    def _begin(self, envelope: Envelope, source: Twin, size: int) -> int | None:
        """Count and remember an envelope, and mark it as being delivered.

        Returns:
            When it expires; ``None`` if it was already accepted.
        """
        end = self._check_life(envelope)  # the look-up of the source took time
        signature, now = envelope.signature, self._clock()
        with self._lock:
            if signature in self._under_way:
                raise _Refused(HTTPStatus.SERVICE_UNAVAILABLE, "the message is being delivered")
            if self._replays.knows(signature, int(now)):
                return None
            allowed = self._limiter.allows(source.id, size, now)
            added = allowed and self._replays.add(source.account, signature, end, int(now))
            if added:
                self._under_way.add(signature)
        if not allowed:
            _log.warning("twin %d exceeds its limit for messages posted by other relays", source.id)
            raise _Refused(HTTPStatus.TOO_MANY_REQUESTS, LIMITED)
        if not added:
            text = f"twin {source.id} sent too much to tell this message from a copy"
            raise _Refused(HTTPStatus.CONFLICT, text)
        return end

    def _accept(
        self,
        envelope: Envelope,
        source: Twin,
        destination: Address,
        data: bytes,
        end: int,
        deadline: Deadline,
    ) -> None:
        """Deliver an envelope that belongs here; forget it if that fails."""
        accepted = False
        try:
            self._check_destination(envelope, destination, deadline)
            self._deliver(destination, data, end, source.id)
            accepted = True
        except BusError as error:
            full = error.code == TOO_MANY
            status = HTTPStatus.TOO_MANY_REQUESTS if full else HTTPStatus.SERVICE_UNAVAILABLE
            raise _Refused(status, error.message) from error
        finally:
            with self._lock:
                self._under_way.discard(envelope.signature)
                if not accepted:
                    self._replays.forget(source.account, envelope.signature)

    def _check_destination(
        self, envelope: Envelope, destination: Address, deadline: Deadline
    ) -> None:
        """Refuse an envelope for another relay, or one that must not be queued."""
        fail_fast = is_fail_fast(envelope.tags)
        if self._is_connected(destination, fail_fast):
            return
        twin = self._find(destination.twin, deadline)
        if twin is None:
            raise _Refused(HTTPStatus.NOT_FOUND, UNKNOWN_TWIN)
        if self._domains.isdisjoint(twin.relays):
            raise _Refused(
                HTTPStatus.FORBIDDEN, f"this is not a relay of twin {twin.id}, the destination"
            )
        if is_nobody(destination):
            raise _Refused(HTTPStatus.NOT_FOUND, NO_SESSION)
        name = name_of(destination)
        if name is not None:
            raise _Refused(HTTPStatus.NOT_FOUND, f"{NOBODY} {name!r}")
        if fail_fast:
            raise _Refused(HTTPStatus.NOT_FOUND, OFFLINE)

    def _find(self, number: int, deadline: Deadline) -> Twin | None:
        try:
            return self._twins.get(number, deadline)
        except BusError as error:
            raise _Refused(HTTPStatus.SERVICE_UNAVAILABLE, error.message) from error
