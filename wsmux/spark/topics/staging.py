"""Stage what transactions write to topics: files that no segment names yet."""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from ...rpc import RiverError
from ...runtime.lazy_imports import pa
from ..protocol import Code, Receipt, refusal
from ..store.base import Part
from ..store.schemas import conform, first_line
from .database import Database
from .segments import SegmentWriter

__all__ = ["NOTES", "StagedPart", "Staging", "new_receipt", "over"]

# How often within ``ttl`` the time of a transaction's last write is stored.
NOTES = 4


# What identifies a transaction in a store.
Txn = TypeVar("Txn", contravariant=True)


class PartWriter(Protocol):
    """Write one part; raises the errors of pyarrow and of the system."""

    rows: int

    def write(self, batch: Any) -> None:
        """Add a batch of the stored schema."""

    def close(self) -> str:
        """Have all of it kept; return its ``groups``."""

    def abandon(self) -> None:
        """Drop what was written."""


class StagingOf(Protocol[Txn]):
    """Record the parts of transactions; see ``Staging``."""

    def writer(self, topic: str, file: str, schema: Any) -> PartWriter:
        """Return the writer of a new part of a topic."""

    def note(self, txn: Txn, noted: float) -> float:
        """Store when a transaction was last written to, if that is due; return the time stored."""

    def keep(self, txn: Txn, receipt: Receipt, groups: str) -> None:
        """Add a finished part to its transaction."""

    def now(self) -> float:
        """Return the time, in seconds since 1970."""


def new_receipt(partition: int, attempt: int) -> Receipt:
    """Return the receipt of a part that is to be written, with a file name of its own."""
    name = f"p{partition}-{attempt}-{uuid.uuid4().hex[:16]}.arrow"
    return Receipt(partition, attempt, 0, 0, 0, name)


def over() -> RiverError:
    """Return the error for a part whose transaction has ended."""
    text = "the transaction was aborted or committed, or has expired, while it was written"
    return refusal(Code.NO_TXN, text)


class Staging:
    """Record the parts of transactions.

    Args:
        path: the folder that holds a folder for each topic. ttl: see ``SqliteTopics``. clock:
            returns the seconds since 1970.
    """

    def __init__(
        self,
        database: Database,
        path: Path,
        ttl: float,
        clock: Callable[[], float],
        *,
        sync: bool,
    ) -> None:
        self._database = database
        self._path = path
        self._ttl = ttl
        self._clock = clock
        self._sync = sync

    def new_part(self, topic: str, txn: int, partition: int, attempt: int, schema: Any) -> Part:
        """Begin a part of a transaction, whose batches have the stored schema.

        Raises:
            RiverError: NO_TXN, STORE_FAILED or BAD_ARROW.
        """
        return StagedPart(self, txn, new_receipt(partition, attempt), topic, schema)

    def writer(self, topic: str, file: str, schema: Any) -> SegmentWriter:
        """Return the writer of a new file of a topic."""
        return SegmentWriter(self._path / topic / file, schema, sync=self._sync)

    def note(self, txn: int, noted: float) -> float:
        """Store when a transaction was last written to, if that is due; return the time stored.

        Raises:
            RiverError: NO_TXN; it is over.
        """
        now = self._clock()
        if abs(now - noted) <= self._ttl / NOTES:
            return noted
        with self._database.write() as db:
            self._touch(db, txn, now)
        return now

    def keep(self, txn: int, receipt: Receipt, groups: str) -> None:
        """Add a finished part to its transaction.

        Raises:
            RiverError: NO_TXN; it is over.
        """
        with self._database.write() as db:
            self._touch(db, txn, self._clock())
            told = receipt.file, receipt.partition, receipt.attempt, receipt.rows, receipt.bytes
            row = txn, *told, receipt.crc, groups
            db.execute("INSERT INTO parts VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)

    def _touch(self, db: sqlite3.Connection, txn: int, now: float) -> None:
        if not db.execute("UPDATE txns SET used = ? WHERE id = ?", (now, txn)).rowcount:
            raise over()

    def now(self) -> float:
        """Return the time, in seconds since 1970."""
        return self._clock()


class StagedPart(Part, Generic[Txn]):
    """Write one part as one file, or what a store has in the place of files."""

    def __init__(
        self, staging: StagingOf[Txn], txn: Txn, begun: Receipt, topic: str, schema: Any
    ) -> None:
        self._staging = staging
        self._txn = txn
        self._begun = begun
        self._schema = schema
        self._shown = f"topics/{topic}/{begun.file}"
        self._noted = staging.now()
        with self._guarded():
            self._writer = staging.writer(topic, begun.file, schema)
        self._open = True

    def write(self, batch: Any) -> None:
        self._noted = self._staging.note(self._txn, self._noted)
        if batch.num_rows:
            fitting = conform(batch, self._schema)
            with self._guarded():
                self._writer.write(fitting)

    def finish(self, size: int, crc: int) -> Receipt:
        with self._guarded():
            groups = self._writer.close()
        begun, rows = self._begun, self._writer.rows
        receipt = Receipt(begun.partition, begun.attempt, rows, size, crc, begun.file)
        self._staging.keep(self._txn, receipt, groups)
        self._open = False
        return receipt

    def discard(self) -> None:
        if self._open:
            self._open = False
            self._writer.abandon()

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """Turn the errors of the system and of pyarrow into refusals.

        Raises:
            RiverError: NO_TXN, STORE_FAILED or BAD_ARROW.
        """
        try:
            yield
        except FileNotFoundError as error:
            text = "the transaction has expired, or its topic was removed, while it was written"
            raise refusal(Code.NO_TXN, text) from error
        except pa.ArrowException as error:
            text = f"{self._shown} cannot be written: {first_line(error)}"
            raise refusal(Code.BAD_ARROW, text) from error
        except OSError as error:
            text = f"{self._shown}: {error.strerror or error}"
            raise refusal(Code.STORE_FAILED, text) from error
