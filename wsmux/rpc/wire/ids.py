"""Name the two sides, and whatever else needs an id."""

from __future__ import annotations

import os
import secrets
from collections import deque

__all__ = ["SERVER_ID", "new_id"]

# What a server is called unless it is told otherwise, by convention.
SERVER_ID = "SERVER"

# Bytes of randomness in an id; as many as shipped ones have.
ID_BYTES = 9


# Characters that so many bytes make, and ids that are made at a time: asking the system for each
# costs more than the rest of naming a message.
ID_LENGTH = ID_BYTES * 4 // 3
STOCK = 64

_stock: deque[str] = deque()
os.register_at_fork(after_in_child=_stock.clear)  # a child must not name things as its parent does


def new_id() -> str:
    """Return an id that nobody can guess."""
    try:
        return _stock.pop()
    except IndexError:
        made = secrets.token_urlsafe(ID_BYTES * STOCK)
        ids = [made[at : at + ID_LENGTH] for at in range(0, len(made), ID_LENGTH)]
        _stock.extend(ids[1:])
        return ids[0]
