"""Decide what a relay does with an envelope from a connection. Pure: times are arguments.

The order is that of the known relay. ``check`` looks at the envelope alone; where it says
``Forward`` and that session is not connected here, ``onward`` looks at the destination's record.

A departure from the founding text: expired envelopes go nowhere, and their requester hears of it.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from ..twins.records import Twin
from ..wire.address import Address, address_of, put_address
from ..wire.envelope import Kind, is_fail_fast, kind_of, pong_for, relay_error, time_left
from ..wire.messages import Envelope

__all__ = [
    "EXPIRED",
    "LIMITED",
    "MISSING_DESTINATION",
    "NO_RELAYS",
    "OFFLINE",
    "REASONS",
    "UNKNOWN_TWIN",
    "WRONG_SOURCE",
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

# The texts of the known relay.
LIMITED = "exceeded rate limits, dropping message"
WRONG_SOURCE = "message wrong source"
MISSING_DESTINATION = "message with missing destination"
UNKNOWN_TWIN = "unknown twin destination"
NO_RELAYS = "relay info is not set for this twin"
OFFLINE = "destination offline"
EXPIRED = "message has expired"

REASONS = frozenset(
    {LIMITED, WRONG_SOURCE, MISSING_DESTINATION, UNKNOWN_TWIN, NO_RELAYS, OFFLINE, EXPIRED}
)


class Forward(NamedTuple):
    """Hand it to this session if it is connected here; else ask ``onward``."""

    address: Address


class Queue(NamedTuple):
    """Keep it for this session."""

    address: Address


class Federate(NamedTuple):
    """Hand it to one of these relays."""

    domains: tuple[str, ...]


class Reply(NamedTuple):
    """Send this to the connection that the envelope came from; the envelope is dropped."""

    envelope: Envelope


class Drop(NamedTuple):
    """Forget it; nobody waits for an answer."""

    reason: str


Decision = Forward | Queue | Federate | Reply | Drop


def failure(envelope: Envelope, sender: Address, text: str, now: int) -> Reply | Drop:
    """Decide on an envelope that goes no further: only requests are answered.

    Args:
        sender: the connection's own address, which gets the answer whatever the envelope claims.
    """
    if kind_of(envelope) is not Kind.REQUEST:
        return Drop(text)
    error = relay_error(envelope, text, now)
    put_address(error.destination, sender)
    return Reply(error)


def check(envelope: Envelope, sender: Address, now: int) -> Forward | Reply | Drop:
    """Decide on an envelope that a connection sent at ``now``, in Unix seconds."""
    if address_of(envelope.source) != sender:
        return failure(envelope, sender, WRONG_SOURCE, now)
    if kind_of(envelope) is Kind.PING:
        return Reply(pong_for(envelope))
    destination = address_of(envelope.destination)
    if destination is None:
        return failure(envelope, sender, MISSING_DESTINATION, now)
    if time_left(envelope, now) <= 0:
        return failure(envelope, sender, EXPIRED, now)
    return Forward(destination)


def onward(
    envelope: Envelope, sender: Address, twin: Twin | None, domains: Collection[str], now: int
) -> Queue | Federate | Reply | Drop:
    """Decide on an envelope that ``check`` forwards to a session that is not connected here.

    Args:
        twin: the destination's record, ``None`` if there is none.
        domains: those of this relay.
    """
    destination = address_of(envelope.destination)
    if twin is None or destination is None:
        return failure(envelope, sender, UNKNOWN_TWIN, now)
    if not twin.relays:
        return failure(envelope, sender, NO_RELAYS, now)
    if not any(relay in domains for relay in twin.relays):
        return Federate(twin.relays)
    if is_fail_fast(envelope.tags):
        return failure(envelope, sender, OFFLINE, now)
    return Queue(destination)
