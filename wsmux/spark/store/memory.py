"""Let topics live in this process's memory: for tests, and for what may be lost."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from ..protocol import Code, Receipt, refusal
from ..source.ranges import overlaps
from .backend import Home, Homes, S, Staged
from .base import DAY, Part, Retention
from .files import sized
from .topic_state import TopicState
from .topics import HomeTopics

__all__ = ["MemoryHome", "MemoryHomes", "MemoryTopics"]


@dataclass(slots=True)
class _Txn:
    info: dict[str, Any]
    used: float
    parts: dict[str, tuple[Staged, list[Any], float]] = field(default_factory=dict)


class MemoryHome(Home[S]):
    """One home; nothing is written down."""

    def __init__(self, name: str, state: type[S], entry: Mapping[str, Any]) -> None:
        self.name = name
        self._state = state()
        self._state.apply(entry)
        self._lock = threading.RLock()
        self._txns: dict[str, _Txn] = {}
        self._released: dict[str, list[int]] = {}

    @contextmanager
    def locked(self) -> Iterator[S]:
        with self._lock:
            yield self._state

    view = locked

    def append(self, entry: Mapping[str, Any]) -> None:
        self._state.apply(entry)

    # Transactions

    def stage(self, key: str, info: Mapping[str, Any]) -> None:
        with self._lock:
            self._txns.setdefault(key, _Txn(dict(info), time.time()))

    def staged(self, key: str) -> dict[str, Any] | None:
        with self._lock:
            txn = self._txns.get(key)
            return None if txn is None else txn.info

    def transactions(self) -> list[str]:
        with self._lock:
            return sorted(self._txns)

    def drop(self, key: str, before: float | None = None) -> None:
        with self._lock:
            txn = self._txns.get(key)
            if txn is not None and (before is None or txn.used < before):
                del self._txns[key]

    def prune(self, key: str, keep: set[str], before: float | None = None) -> bool:
        with self._lock:
            parts = self._txns[key].parts if key in self._txns else {}
            for name, (_, _, made) in list(parts.items()):
                if name not in keep and (before is None or made < before):
                    del parts[name]
            return not parts.keys() - keep

    def tidy(self, before: float) -> None:
        """Leave nothing behind: processes end with their memory."""

    # Parts

    def new_part(self, key: str, partition: int, attempt: int, schema: Any) -> Part:
        return _MemoryPart(self, key, partition, attempt)

    def keep(self, key: str, staged: Staged, batches: list[Any]) -> None:
        """Add a finished part."""
        with self._lock:
            txn = self._used(key)
            txn.parts[staged.receipt.file] = (staged, batches, txn.used)

    def touch(self, key: str) -> None:
        """Note that a transaction is being written to."""
        with self._lock:
            self._used(key)

    def _used(self, key: str) -> _Txn:
        txn = self._txns.get(key)
        if txn is None:
            text = "the transaction was aborted, or has expired, while it was written"
            raise refusal(Code.NO_TXN, text)
        txn.used = time.time()
        return txn

    def part(self, key: str, file: str) -> Staged | None:
        with self._lock:
            parts = self._txns[key].parts if key in self._txns else {}
            return parts[file][0] if file in parts else None

    def read(
        self, file: str, schema: Any, columns: Sequence[int], groups: Sequence[int], span: range
    ) -> Iterator[Any]:
        key, _, name = file.partition("/")
        with self._lock:
            txn = self._txns.get(key)
            if txn is None or name not in txn.parts:
                raise FileNotFoundError(file)
            batches = txn.parts[name][1]
        for place, start, end in overlaps(groups, span.start, span.stop):
            yield batches[place].select(list(columns)).slice(start, end - start)

    # Consumers

    def released(self) -> dict[str, list[int]]:
        with self._lock:
            return dict(self._released)

    def release(self, query: str, offsets: Sequence[int]) -> None:
        with self._lock:
            self._released[query] = list(offsets)


class _MemoryPart(Part):
    def __init__(self, home: MemoryHome[Any], key: str, partition: int, attempt: int) -> None:
        self._home = home
        self._key = key
        self._partition = partition
        self._attempt = attempt
        self._batches: list[Any] = []

    def write(self, batch: Any) -> None:
        self._home.touch(self._key)
        self._batches += sized(batch)

    def finish(self, size: int, crc: int) -> Receipt:
        groups = [batch.num_rows for batch in self._batches]
        name = f"p{self._partition}-{self._attempt}-{uuid.uuid4().hex[:16]}.memory"
        receipt = Receipt(self._partition, self._attempt, sum(groups), size, crc, name)
        self._home.keep(self._key, Staged(receipt, groups), self._batches)
        return receipt

    def discard(self) -> None:
        self._batches = []


class MemoryHomes(Homes[S]):
    """Hold homes."""

    def __init__(self, state: type[S]) -> None:
        self._kind = state
        self._lock = threading.Lock()
        self._homes: dict[str, MemoryHome[S]] = {}

    def find(self, name: str) -> MemoryHome[S] | None:
        with self._lock:
            return self._homes.get(name)

    def make(self, name: str, entry: Mapping[str, Any]) -> MemoryHome[S]:
        with self._lock:
            if name not in self._homes:
                self._homes[name] = MemoryHome(name, self._kind, entry)
            return self._homes[name]

    def names(self) -> list[str]:
        with self._lock:
            return sorted(self._homes)

    def tidy(self, before: float) -> None:
        """Leave nothing behind: a home is made at once."""

    def check_schema(self, schema: Any) -> None:
        """Take any that can be stored at all."""


class MemoryTopics(HomeTopics):
    """Keep topics in memory; see ``HomeTopics``."""

    def __init__(
        self,
        *,
        ttl: float = DAY,
        retention: Retention | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(MemoryHomes(TopicState), ttl=ttl, retention=retention, clock=clock)
