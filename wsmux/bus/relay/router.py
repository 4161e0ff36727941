"""Decide what a relay does with an envelope from a connection. Pure: times are arguments.

The checks are in the order of the reference relay. ``check`` uses the envelope alone; when it
returns ``Forward`` and that session is not connected here, ``onward`` uses the destination's
record.

One departure from the reference relay: expired envelopes are not delivered, and their requester
gets an error.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from ..errors import FROM_RELAY, MESSAGE_EXPIRED
from ..twins.records import Twin
from ..wire.address import Address, address_of
from ..wire.envelope import (
    Kind,
    is_fail_fast,
    is_for_relay,
    kind_of,
    pong_for,
    relay_error,
    time_left,
)
from ..wire.messages import Envelope
from ..wire.names import is_nobody

__all__ = [
    "EXPIRED",
    "FULL",
    "LIMITED",
    "MISSING_DESTINATION",
    "NOBODY",
    "NO_RELAYS",
    "NO_SESSION",
    "OFFLINE",
    "REASONS",
    "UNKNOWN_TWIN",
    "WRONG_SOURCE",
    "Ask",
    "Decision",
    "Drop",
    "Federate",
    "Forward",
    "Queue",
    "Reply",
    "check",
    "failure",
    "onward",
]

# Texts of the reference relay.
LIMITED = "exceeded rate limits, dropping message"
WRONG_SOURCE = "message wrong source"
MISSING_DESTINATION = "message with missing destination"
UNKNOWN_TWIN = "unknown twin destination"
NO_RELAYS = "relay info is not set for this twin"
OFFLINE = "destination offline"
EXPIRED = MESSAGE_EXPIRED

# What this relay says of a destination that no connection may have.
NO_SESSION = "a session whose name begins with '@' is that of a name, and this is none"

# What counts the requests to names that nobody has joined; the text names them.
NOBODY = "nobody has joined the name"

# What counts the requests to names that have as many as they may, of one twin or of all.
FULL = "the queue of the name is full"

REASONS = frozenset(
    {
        LIMITED,
        WRONG_SOURCE,
        MISSING_DESTINATION,
        UNKNOWN_TWIN,
        NO_RELAYS,
        NO_SESSION,
        OFFLINE,
        EXPIRED,
        NOBODY,
        FULL,
    }
)


class Forward(NamedTuple):
    """Send it to this session if it is connected here; otherwise ask ``onward``."""

    address: Address


class Queue(NamedTuple):
    """Queue it for this session."""

    address: Address


class Federate(NamedTuple):
    """Forward it to one of these relays."""

    domains: tuple[str, ...]


class Reply(NamedTuple):
    """Send this envelope to the connection that the message came from, and drop the message."""

    envelope: Envelope


class Drop(NamedTuple):
    """Drop it without an answer."""

    reason: str


class Ask(NamedTuple):
    """Answer it here: it is a request to the relay itself."""


Decision = Forward | Queue | Federate | Reply | Drop | Ask


def failure(
    envelope: Envelope, sender: Address, text: str, now: int, code: int = FROM_RELAY
) -> Reply | Drop:
    """Decide on an envelope that is not passed on: only requests are answered.

    Args:
        envelope: the envelope.
        sender: the connection's own address, which gets the answer whatever the envelope claims.
        text: the text of the error.
        now: Unix seconds.
        code: the code of the error; another one for what the reference relay lacks.
    """
    if kind_of(envelope) is not Kind.REQUEST:
        return Drop(text)
    return Reply(relay_error(envelope, text, now, code=code, to=sender))


def check(envelope: Envelope, sender: Address, now: int) -> Forward | Reply | Drop | Ask:
    """Decide on an envelope that a connection sent at ``now``, in Unix seconds."""
    if address_of(envelope.source) != sender:
        return failure(envelope, sender, WRONG_SOURCE, now)
    if kind_of(envelope) is Kind.PING:
        return Reply(pong_for(envelope))
    destination = address_of(envelope.destination)
    asks = is_for_relay(envelope)
    if destination is None and not asks:
        return failure(envelope, sender, MISSING_DESTINATION, now)
    if time_left(envelope, now) <= 0:
        return failure(envelope, sender, EXPIRED, now)
    if destination is None:
        return Ask()
    return Forward(destination)


def onward(
    envelope: Envelope, sender: Address, twin: Twin | None, domains: Collection[str], now: int
) -> Queue | Federate | Reply | Drop:
    """Decide on an envelope for a session that is not connected here, after ``check``.

    Args:
        envelope: the envelope.
        sender: the address of the connection that sent it.
        twin: the destination's record, ``None`` if there is none.
        domains: the domains of this relay.
        now: Unix seconds.
    """
    destination = address_of(envelope.destination)
    if twin is None or destination is None:
        return failure(envelope, sender, UNKNOWN_TWIN, now)
    if not twin.relays:
        return failure(envelope, sender, NO_RELAYS, now)
    if not any(relay in domains for relay in twin.relays):
        return Federate(twin.relays)
    if is_nobody(destination):
        return failure(envelope, sender, NO_SESSION, now)
    if is_fail_fast(envelope.tags):
        return failure(envelope, sender, OFFLINE, now)
    return Queue(destination)
