"""Name a few twins, and look them up in a table."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from wsmux.bus.errors import TwinsUnavailable
from wsmux.bus.twins.records import Twin, TwinDirectory
from wsmux.bus.wire.keys import Identity, KeyType
from wsmux.runtime.deadline import Deadline

__all__ = ["DOMAIN", "Person", "Table", "person", "table_of"]

DOMAIN = "relay.test"


@dataclass(frozen=True)
class Person:
    """A twin with its keys."""

    id: int
    identity: Identity

    def record(self, *, relays: tuple[str, ...] = (DOMAIN,), key: bool = True) -> Twin:
        pk = self.identity.e2e_public if key else None
        return Twin(self.id, self.identity.account, relays, pk)


def person(number: int, key_type: KeyType = KeyType.ED25519) -> Person:
    """Return the twin of a number, always with the same keys."""
    return Person(number, Identity.from_secret(f"0x{number:064x}", key_type))


@dataclass
class Table(TwinDirectory):
    """Keep twins in memory, count what is asked, and fail on demand."""

    twins: dict[int, Twin] = field(default_factory=dict)
    writable: bool = False
    down: bool = False
    asked: list[int] = field(default_factory=list)
    name: str = "table"

    def get(self, twin_id: int, deadline: Deadline) -> Twin | None:
        self.asked.append(twin_id)
        if self.down:
            raise TwinsUnavailable("the table is down")
        return self.twins.get(twin_id)

    def find(self, account: bytes, deadline: Deadline) -> Twin | None:
        if self.down:
            raise TwinsUnavailable("the table is down")
        return next((twin for twin in self.twins.values() if twin.account == account), None)

    def update(
        self, identity: Identity, relays: Iterable[str], pk: bytes | None, deadline: Deadline
    ) -> bool:
        if not self.writable:
            return False
        twin = self.find(identity.account, deadline)
        assert twin is not None
        self.twins[twin.id] = twin._replace(relays=tuple(relays), pk=pk)
        return True


def table_of(*people: Person, keys: bool = True) -> Table:
    """Return the records of these twins."""
    return Table({each.id: each.record(key=keys) for each in people})
