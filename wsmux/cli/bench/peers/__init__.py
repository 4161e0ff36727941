"""Hold one module for each measured library; each lists its variants in ``PEERS``."""

from __future__ import annotations

import importlib
import pkgutil

from ..peer import Peer

__all__ = ["BASE", "find_peers"]

# What ratios are taken against.
BASE = "raw"


def find_peers() -> dict[str, Peer]:
    """Return every variant by name, the base first."""
    found: dict[str, Peer] = {}
    for module in pkgutil.iter_modules(__path__):
        peers: list[Peer] = importlib.import_module(f"{__name__}.{module.name}").PEERS
        found |= {peer.name: peer for peer in peers}
    return {BASE: found[BASE], **found}
