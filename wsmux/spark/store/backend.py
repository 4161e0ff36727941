"""Say where one dataset or topic lives: its log, its transactions, the parts that they stage.

What a commit means is told once, in ``datasets`` and ``topics``, for every kind of home.

A part is staged where it stays: only an entry of the log makes it visible. So there is nothing to
move in a commit, and nothing that a crash can leave half done.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Generic, NamedTuple, Protocol, Self, TypeVar

from ..protocol import Code, Receipt, refusal
from .base import Part

__all__ = ["Home", "Homes", "Staged", "State", "checked_parts"]


class State(Protocol):
    """What the entries of a log add up to."""

    id: str

    def apply(self, entry: Mapping[str, Any]) -> None:
        """Add an entry; KeyError, TypeError, ValueError or IndexError if it is none."""

    def to_json(self) -> dict[str, Any]:
        """Return everything."""

    def files_of(self) -> dict[str, set[str]]:
        """Return the names of all files by their transactions' keys."""

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Return what ``to_json`` returned."""


S = TypeVar("S", bound=State)


class Staged(NamedTuple):
    """A finished part: its receipt, and the rows that can be read apart in it."""

    receipt: Receipt
    groups: list[int]


class Home(ABC, Generic[S]):
    """The home of one dataset or topic.

    Attributes:
        name: what it is called.
    """

    name: str

    @abstractmethod
    def locked(self) -> AbstractContextManager[S]:
        """Keep everybody else, in any process, from changing it; give the newest state."""

    @abstractmethod
    def view(self) -> AbstractContextManager[S]:
        """Give the newest state, to be looked at only, and briefly."""

    @abstractmethod
    def append(self, entry: Mapping[str, Any]) -> None:
        """Add an entry to the log, with the lock held."""

    # Transactions

    @abstractmethod
    def stage(self, key: str, info: Mapping[str, Any]) -> None:
        """Begin a transaction, unless there is one of that key."""

    @abstractmethod
    def staged(self, key: str) -> dict[str, Any] | None:
        """Return what a transaction was begun with."""

    @abstractmethod
    def transactions(self) -> list[str]:
        """Return the keys of all transactions, committed or not."""

    @abstractmethod
    def drop(self, key: str, before: float | None = None) -> None:
        """Forget a transaction and its parts; only one last used before a time, if given."""

    @abstractmethod
    def prune(self, key: str, keep: set[str], before: float | None = None) -> bool:
        """Remove the parts of a transaction that are not named; only old ones, if given.

        Tell whether no other ones are left.
        """

    @abstractmethod
    def tidy(self, before: float) -> None:
        """Remove what processes that are no more have left behind."""

    # Parts

    @abstractmethod
    def new_part(self, key: str, partition: int, attempt: int, schema: Any) -> Part:
        """Begin a part of a transaction, whose batches have a stored schema."""

    @abstractmethod
    def part(self, key: str, file: str) -> Staged | None:
        """Return a finished part of a transaction."""

    @abstractmethod
    def read(
        self, file: str, schema: Any, columns: Sequence[int], groups: Sequence[int], span: range
    ) -> Iterator[Any]:
        """Yield rows of a file, named with its transaction; see ``FileFormat.read``.

        Raises:
            RiverError: CORRUPT. FileNotFoundError: it is gone.
        """

    # Consumers

    @abstractmethod
    def released(self) -> dict[str, list[int]]:
        """Return the offsets that each known query has released."""

    @abstractmethod
    def release(self, query: str, offsets: Sequence[int]) -> None:
        """Note what a query has released, with the lock held."""


class Homes(ABC, Generic[S]):
    """Find and make the homes of all datasets, or of all topics."""

    @abstractmethod
    def find(self, name: str) -> Home[S] | None:
        """Return the home of a name."""

    @abstractmethod
    def make(self, name: str, entry: Mapping[str, Any]) -> Home[S]:
        """Return the home of a name; if there is none, make it, with a first entry."""

    @abstractmethod
    def names(self) -> list[str]:
        """Return the names of all."""

    @abstractmethod
    def tidy(self, before: float) -> None:
        """Remove homes whose making was cut short."""

    @abstractmethod
    def check_schema(self, schema: Any) -> None:
        """Raise ``RiverError`` with WRONG_SCHEMA for a schema that cannot be kept here."""

    def get(self, name: str, what: str, code: Code) -> Home[S]:
        """Return the home of a name.

        Raises:
            RiverError: there is none.
        """
        home = self.find(name)
        if home is None:
            raise refusal(code, f"there is no {what} {name}")
        return home


def checked_parts(home: Home[Any], key: str, receipts: Sequence[Receipt]) -> list[Staged]:
    """Return the parts that receipts name, those without rows left out.

    Raises:
        RiverError: WRONG_RECEIPT.
    """
    parts = []
    for receipt in receipts:
        staged = home.part(key, receipt.file)
        receipt.check(None if staged is None else staged.receipt)
        if staged is not None and receipt.rows:
            parts.append(staged)
    return parts
