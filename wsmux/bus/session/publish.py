"""Update the record of the own twin: its encryption key and its relays."""

from __future__ import annotations

import json
from collections.abc import Callable

from ...runtime.backoff import Backoff
from ...runtime.deadline import Deadline
from ...runtime.logs import logger
from ..errors import BusError
from ..twins.records import TwinDirectory, twin_record
from ..wire.keys import Identity

__all__ = ["publish"]

# Seconds for one attempt, and between attempts at first and at most.
TIMEOUT = 60.0
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0

_log = logger("wsmux.bus")


def publish(
    identity: Identity,
    number: int,
    domains: tuple[str, ...],
    twins: TwinDirectory,
    pause: Callable[[float], bool],
) -> bool:
    """Compare a twin's record with the wanted key and relays, and update it if possible.

    Blocks and retries while the directory is unavailable.

    Args:
        identity: the keys of the twin.
        number: the number of the twin.
        domains: the domains of its relays.
        twins: the directory.
        pause: waits for so many seconds; ``False`` stops the retries.

    Returns:
        Whether the record is correct now. If not, a warning shows how it should be.
    """
    backoff = Backoff(FIRST_PAUSE, LONGEST_PAUSE, least=0.5)
    while True:
        try:
            return _attempt(identity, number, domains, twins)
        except BusError as error:
            _log.warning("the record of twin %d cannot be compared: %s", number, error)
        if not pause(backoff.next()):
            return False


def _attempt(
    identity: Identity, number: int, domains: tuple[str, ...], twins: TwinDirectory
) -> bool:
    deadline = Deadline(TIMEOUT)
    found = twins.get(number, deadline)
    if found is None:
        _log.warning("the directory has no twin %d: other twins cannot find it", number)
        return False
    wanted = found._replace(relays=domains, pk=identity.e2e_public)
    if set(found.relays) == set(domains) and found.pk == wanted.pk:
        return True
    if twins.update(identity, domains, wanted.pk, deadline):
        _log.info("the record of twin %d was brought up to date", number)
        return True
    record = json.dumps(twin_record(wanted))
    _log.warning("the record of twin %d is not up to date; it should be %s", number, record)
    return False
