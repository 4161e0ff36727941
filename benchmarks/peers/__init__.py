"""Hold one module for each measured library; each lists its variants in ``PEERS``."""

from __future__ import annotations

import importlib
import pkgutil

from ..peer import Peer


def find_peers() -> dict[str, Peer]:
    """Return every variant by name, each behind its base."""
    found: dict[str, Peer] = {}
    for module in pkgutil.iter_modules(__path__):
        peers: list[Peer] = importlib.import_module(f"{__name__}.{module.name}").PEERS
        found |= {peer.name: peer for peer in peers}
    ordered: dict[str, Peer] = {}

    def add(peer: Peer) -> None:
        if peer.name not in ordered:
            if peer.base != peer.name:
                add(found[peer.base])
            ordered[peer.name] = peer

    for peer in found.values():
        add(peer)
    return ordered
