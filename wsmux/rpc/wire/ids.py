"""Generate ids, and define the default id of a server."""

from __future__ import annotations

import os
import secrets
from collections import deque

__all__ = ["SERVER_ID", "new_id"]

# The default id of a server, by convention.
SERVER_ID = "SERVER"

# Random bytes of an id, as many as in other implementations.
ID_BYTES = 9

# Length of an id in characters, and ids made at a time: one system call per id would cost more than
# everything else here.
ID_LENGTH = ID_BYTES * 4 // 3
STOCK = 64

_stock: deque[str] = deque()
os.register_at_fork(after_in_child=_stock.clear)  # a child must not reuse its parent's ids


def new_id() -> str:
    """Return an unguessable id."""
    try:
        return _stock.pop()
    except IndexError:
        made = secrets.token_urlsafe(ID_BYTES * STOCK)
        ids = [made[at : at + ID_LENGTH] for at in range(0, len(made), ID_LENGTH)]
        _stock.extend(ids[1:])
        return ids[0]
