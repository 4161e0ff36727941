"""Name the two sides, and whatever else needs an id."""

from __future__ import annotations

import secrets

__all__ = ["SERVER_ID", "new_id"]

# What a server is called unless it is told otherwise, by convention.
SERVER_ID = "SERVER"

# Bytes of randomness in an id; as many as shipped ones have.
ID_BYTES = 9


def new_id() -> str:
    """Return an id that nobody can guess."""
    return secrets.token_urlsafe(ID_BYTES)
