"""Decide whether a received envelope is valid, and decrypt it.

The signature covers neither the kind of message nor the kind of payload, and a relay may deliver an
envelope twice, late, or to the wrong twin. The reference peers check expiry, sender, signature and
encryption only. In addition:

- The destination must be this twin and session.
- Twin 0, the source of relays, may send only errors and pongs; the reference peers accept anything
  from it.
- An accepted envelope is refused until it has expired. It is recognised by its signature, since the
  chunks of an upload share a uid; an altered envelope with the same signature is refused too. So
  that signatures can be remembered for as long, none is accepted for more than an hour after its
  timestamp, or if it is dated far ahead.
- A request that cannot be remembered is refused; see ``replay_cache``. An answer is accepted even
  then, because it ends its call: a copy finds none.
- The kind must be an expected one, and a request must name a command.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

from ..errors import BAD_SIGNATURE, FAILED, NO_PUBLIC_KEY, UNKNOWN_TWIN, BusError, Replayed
from ..twins.records import Twin
from .address import Address, address_of
from .envelope import Kind, accepted_until, digest, kind_of
from .keys import verify
from .messages import Envelope
from .replay_cache import REMEMBERED, ReplayCache

__all__ = ["AWAITED", "Received", "Verifier"]

# Kinds that a peer expects; pings are for relays.
AWAITED = frozenset({Kind.REQUEST, Kind.RESPONSE, Kind.ERROR, Kind.PONG})

# Kinds that twin 0 may send: relays have no account, so no more can be checked.
UNSIGNED = frozenset({Kind.ERROR, Kind.PONG})


class Received(NamedTuple):
    """Hold a valid envelope.

    Attributes:
        kind: the kind of its message.
        source: the sender; ``None`` for a relay.
        twin: the sender's record; ``None`` for a relay.
        payload: the payload, decrypted.
        encrypted: whether the payload was encrypted.
    """

    kind: Kind
    source: Address | None
    twin: Twin | None
    payload: bytes
    encrypted: bool


class Verifier:
    """Check the envelopes that arrive for one session of a twin.

    Args:
        address: the twin and session of this side.
        unseal: decrypts a ciphertext, given the sender's public key; as ``Box.open``.
        also: further destinations of this side: the queues of names that it shares in; may grow.
        lock: guards the replay cache; a ``threading.Lock()`` if several threads call ``accept``.
        remembered: the signatures of requests that are remembered, and of answers.
    """

    def __init__(
        self,
        address: Address,
        unseal: Callable[[bytes, bytes], bytes],
        lock: AbstractContextManager[object] | None = None,
        remembered: int = REMEMBERED,
        also: Collection[Address] = (),
    ) -> None:
        self._address = address
        self._also = also
        self._unseal = unseal
        self._lock = nullcontext() if lock is None else lock
        self._replays, self._answers = ReplayCache(remembered), ReplayCache(remembered)

    def accept(
        self,
        envelope: Envelope,
        now: int,
        find: Callable[[int], Twin | None],
        awaited: Collection[Kind] = AWAITED,
    ) -> Received:
        """Check an envelope and return its content.

        Blocks only for ``find``. An envelope that cannot be decrypted counts as accepted.

        Args:
            envelope: the envelope.
            now: Unix seconds.
            find: returns a twin, or ``None`` if there is none, or raises ``BusError``.
            awaited: the kinds that are accepted.

        Raises:
            BusError: code 102 if it has expired or is dated far ahead, 103 if the sender is
                unknown, 104 for a wrong signature, 105 for a ciphertext from a sender without a
                key, 106 for one that cannot be decrypted, 500 for anything else.
            Replayed: it was already accepted; it must not be answered.
        """
        kind, source = kind_of(envelope), address_of(envelope.source)
        twin = None if source is None else source.twin
        self._check_kind(envelope, kind, awaited, twin)
        self._check_destination(envelope, source)
        end = accepted_until(envelope, now)
        if source is None:
            if kind not in UNSIGNED:
                raise BusError(FAILED, f"a {kind} from twin 0: relays send errors and pongs only")
            return Received(kind, None, None, envelope.plain, False)
        sender = self._check_sender(envelope, source.twin, now, find)
        self._remember(envelope, kind, sender, end, now)
        payload = self._payload(envelope, sender)
        return Received(kind, source, sender, payload, envelope.HasField("cipher"))

    def _check_kind(
        self, envelope: Envelope, kind: Kind, awaited: Collection[Kind], twin: int | None
    ) -> None:
        if kind not in awaited:
            expected = ", ".join(sorted(awaited))
            raise BusError(FAILED, f"a message of kind {kind}: expected {expected}", twin=twin)
        if kind is Kind.REQUEST and not envelope.request.command:
            raise BusError(FAILED, "a request must name a command", twin=twin)

    def _check_destination(self, envelope: Envelope, source: Address | None) -> None:
        """Refuse envelopes for others; errors of the reference relay may have no destination."""
        destination = address_of(envelope.destination)
        ours = destination == self._address or destination in self._also
        if not ours and not (destination is None and source is None):
            raise BusError(
                FAILED,
                f"a message for {destination or 'nobody'} came to {self._address}",
                twin=None if source is None else source.twin,
            )

    def _check_sender(
        self, envelope: Envelope, number: int, now: int, find: Callable[[int], Twin | None]
    ) -> Twin:
        """Return the twin that signed an envelope."""
        signature = envelope.signature
        with self._lock:
            self._refuse_known(signature, number, now)
        twin = find(number)
        if twin is None:
            raise BusError(UNKNOWN_TWIN, f"unknown twin id '{number}'", twin=number)
        try:
            valid = verify(twin.account, digest(envelope), signature)
        except ImportError as failure:
            raise BusError(FAILED, str(failure), twin=number) from failure
        if not valid:
            raise BusError(
                BAD_SIGNATURE, "the signature is not of the account on record", twin=number
            )
        return twin

    def _remember(self, envelope: Envelope, kind: Kind, sender: Twin, end: int, now: int) -> None:
        """Remember the signature of an envelope, or refuse a request if that is not possible.

        The account is the source, since twins that share one could send a copy for each other.
        """
        signature, is_request = envelope.signature, kind is Kind.REQUEST
        replays = self._replays if is_request else self._answers
        with self._lock:
            self._refuse_known(signature, sender.id, now)  # accepted by another thread?
            added = replays.add(sender.account, signature, end, now)
        if is_request and not added:
            text = f"twin {sender.id} sent too much to tell this message from a copy"
            raise BusError(FAILED, text, twin=sender.id)

    def _refuse_known(self, signature: bytes, number: int, now: int) -> None:
        if self._replays.knows(signature, now) or self._answers.knows(signature, now):
            raise Replayed("this message was accepted before", number)

    def _payload(self, envelope: Envelope, twin: Twin) -> bytes:
        if not envelope.HasField("cipher"):
            return envelope.plain
        if twin.pk is None:
            raise BusError(
                NO_PUBLIC_KEY, f"twin {twin.id} encrypts, but has published no key", twin=twin.id
            )
        try:
            return self._unseal(envelope.cipher, twin.pk)
        except BusError as failure:
            raise BusError(failure.code, failure.message, twin=twin.id) from failure
