"""Name twins by numbers alone: their keys come from those, so that every process knows all."""

from __future__ import annotations

from functools import lru_cache

from wsmux.bus.twins.records import Twin, TwinDirectory
from wsmux.bus.wire.keys import Identity, KeyType
from wsmux.runtime.deadline import Deadline

__all__ = ["DOMAIN", "Numbered", "identity"]

DOMAIN = "relay.bench"

# Twins that there are.
COUNT = 4096


def identity(number: int) -> Identity:
    """Return the keys of a twin."""
    return Identity.from_secret(f"0x{number:064x}", KeyType.SR25519)


@lru_cache(COUNT)
def _twin(number: int) -> Twin:
    keys = identity(number)
    return Twin(number, keys.account, (DOMAIN,), keys.e2e_public)


class Numbered(TwinDirectory):
    """Have the twins from 1 to ``COUNT``, all of one relay."""

    name = "the twins of the bench"

    def get(self, twin_id: int, deadline: Deadline) -> Twin | None:
        return _twin(twin_id) if 0 < twin_id <= COUNT else None

    def find(self, account: bytes, deadline: Deadline) -> Twin | None:
        twins = map(_twin, range(1, COUNT + 1))
        return next((twin for twin in twins if twin.account == account), None)
