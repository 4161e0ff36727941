"""Name the values that tell about a connection."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

__all__ = ["ConnectionStats", "Request"]


class Request(NamedTuple):
    """Tell what a client asked for when it connected; header names are in lower case."""

    path: str
    query: str
    headers: Mapping[str, str]
    remote_address: str


class ConnectionStats(NamedTuple):
    """Hold a snapshot of one connection; sizes are bytes, times seconds."""

    streams: int
    unaccepted: int
    streams_opened: int
    streams_accepted: int
    streams_refused: int
    waiting_readers: int
    waiting_writers: int
    waiting_for_room: int
    unread_bytes: int
    queued_bytes: int
    bytes_received: int
    bytes_sent: int
    rtt: float | None
