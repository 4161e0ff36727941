"""Twins that call and answer each other with clients of the bus."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Sequence
from typing import Self

from wsmux.bus.client import Client
from wsmux.bus.errors import BusError
from wsmux.bus.session.relay_connection import LinkState
from wsmux.bus.twins.records import TwinDirectory

from .relays import identity

__all__ = ["ClientTwin"]


class ClientTwin:
    """One twin on several relays, its own gateway, that echoes what it is asked.

    Attributes:
        handled: how often each payload was echoed here; callers send none twice.
        answers: how often each payload came back.
        refused: none; a client only logs what it cannot believe.
    """

    def __init__(self, number: int, urls: Sequence[str], directory: TwinDirectory) -> None:
        self.handled: Counter[str] = Counter()
        self.answers: Counter[str] = Counter()
        self.refused: list[BusError] = []
        self._lock = threading.Lock()
        self._client = Client(identity(number), urls, directory, twin=number, gateway=True)
        self._client.serve({"echo": self._echo})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def is_connected(self) -> bool:
        """Return whether every link stands."""
        return all(status.state is LinkState.CONNECTED for status in self._client.relays())

    def call(self, twin: int, payload: bytes, life: int) -> bytes:
        """Ask another twin to echo a JSON payload; see ``Client.call``."""
        future = self._client.submit(twin, "echo", json.loads(payload), timeout=life)
        future.add_done_callback(lambda _: self._count(self.answers, payload.decode()))
        return json.dumps(future.result()).encode()

    def _echo(self, payload: object) -> object:
        self._count(self.handled, json.dumps(payload))
        return payload

    def _count(self, counter: Counter[str], payload: str) -> None:
        with self._lock:
            counter[payload] += 1
