"""Keep the offsets of durable streams in a table, in the same transaction as their effects.

::

    offsets = SqlOffsets(lambda: sqlite3.connect("orders.db"))

    @mux.durable_route("/orders", offsets=offsets)
    def handle(stream):
        with closing(sqlite3.connect("orders.db")) as database:
            while rows := read_rows(stream):
                with database:  # one transaction
                    database.executemany("INSERT INTO orders VALUES (?, ?)", rows)
                    offsets.record(
                        database, stream.name, stream.epoch, stream.offset, since=stream.committed
                    )
                stream.commit()

If the process is killed before the end of the transaction, neither is there, and behind it both
are, so each row is there once. ``stream.commit()`` then only tells the sender.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import closing
from typing import Any

from ..protocols.durable import Refusal
from .errors import DurableRefused

__all__ = ["SqlOffsets"]

# What stands for the first, second... argument of a statement, by the ``paramstyle`` of PEP 249.
_MARKS: dict[str, Callable[[int], str]] = {
    "qmark": lambda place: "?",
    "format": lambda place: "%s",
    "pyformat": lambda place: "%s",
    "numeric": lambda place: f":{place}",
}

_TABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)?")


class SqlOffsets:
    """Keep offsets in a table of any database with a driver of PEP 249. Any thread may use it.

    The table is made if it is missing: ``name``, the key; ``epoch``, 32 hexadecimal digits; and
    ``position``, a number of 64 bits. Where the database compares names without case, as MySQL and
    MariaDB do by default, make it beforehand with a binary collation of ``name``; otherwise a name
    that is taken for another one is refused.

    Args:
        connect: returns a connection of its own for each call, whose transactions are not committed
            by themselves; it is closed after the call, which gives it back to a pool.
        table: the name of the table, perhaps with that of its schema and a dot before it.
        paramstyle: that of the driver, ``module.paramstyle``: ``"qmark"`` for ``sqlite3``,
            ``"pyformat"`` for ``psycopg`` and most others.

    Raises:
        ValueError: the name of the table or the style is not one.
    """

    def __init__(
        self,
        connect: Callable[[], Any],
        table: str = "wsmux_offsets",
        *,
        paramstyle: str = "qmark",
    ) -> None:
        if not _TABLE.fullmatch(table):
            raise ValueError(f"table must be letters, digits and underscores, not {table!r}")
        if paramstyle not in _MARKS:
            raise ValueError(f"paramstyle must be one of {', '.join(_MARKS)}, not {paramstyle!r}")
        self._connect = connect
        marks = [_MARKS[paramstyle](place) for place in range(1, 6)]
        # What may stand in a statement is checked above: a table cannot be an argument of one.
        self._select = f"SELECT name, epoch, position FROM {table} WHERE name = {marks[0]}"
        # One statement, so that of two transactions the later one waits for the row, or fails.
        self._update = (
            f"UPDATE {table} SET epoch = {marks[0]}, position = {marks[1]} "
            f"WHERE name = {marks[2]} AND (epoch <> {marks[3]} OR position <= {marks[4]})"
        )
        self._advance = (
            f"UPDATE {table} SET position = {marks[0]} "
            f"WHERE name = {marks[1]} AND epoch = {marks[2]} AND position = {marks[3]}"
        )
        self._insert = (
            f"INSERT INTO {table} (name, epoch, position) VALUES ({', '.join(marks[:3])})"
        )
        with closing(connect()) as connection:
            connection.cursor().execute(
                f"CREATE TABLE IF NOT EXISTS {table} (name VARCHAR(255) NOT NULL PRIMARY KEY, "
                "epoch CHAR(32) NOT NULL, position BIGINT NOT NULL)"
            )
            connection.commit()

    def committed(self, name: str, epoch: bytes) -> int:
        """Return the committed offset; 0 if the name is unknown, or has another epoch."""
        with closing(self._connect()) as connection:
            try:
                found = self._find(connection.cursor(), name)
            finally:
                connection.rollback()  # it may go back to a pool
        return found[1] if found is not None and found[0] == epoch.hex() else 0

    def commit(self, name: str, epoch: bytes, offset: int) -> None:
        """Record an offset in a transaction of its own.

        Raises: as ``record``.
        """
        with closing(self._connect()) as connection:
            try:
                self.record(connection, name, epoch, offset)
                connection.commit()
            except BaseException:
                connection.rollback()
                raise

    def record(
        self, connection: Any, name: str, epoch: bytes, offset: int, *, since: int | None = None
    ) -> None:
        """Record an offset in the caller's transaction, which the caller commits.

        Args:
            connection: in whose transaction the effect is.
            name, epoch: of the stream.
            offset: behind what has its effect in this transaction.
            since: where that begins, ``stream.committed``. With it, of two processes that receive
                the same bytes only one can commit their effect, such as of one whose connection is
                lost and that goes on with what it has, and of the one to which the sender went.

        Raises:
            DurableRefused: more of the stream is committed already, by another receiver, or the
                database takes another name for this one: roll back.
            TypeError: the driver does not count the rows that it changes, as ``since`` needs.
        """
        cursor = connection.cursor()
        digits = epoch.hex()
        if since:
            cursor.execute(self._advance, (offset, name, digits, since))
        else:
            most = offset if since is None else since
            cursor.execute(self._update, (digits, offset, name, digits, most))
        if cursor.rowcount == 1:
            return
        if since is not None and cursor.rowcount < 0:
            raise TypeError(
                "the driver does not count the rows that it changes (rowcount is -1), as since= "
                f"needs: leave it out, and let only one process at a time receive {name!r}"
            )
        found = self._find(cursor, name)
        if found is None and not since:
            cursor.execute(self._insert, (name, digits, offset))
        # Some drivers do not count rows that had these values already, or count none at all. Lower
        # values are of a snapshot: had the row still had them, it would have these now.
        elif found != (digits, offset) or since not in (None, offset):
            there = found[1] if found is not None and found[0] == digits else 0
            raise DurableRefused(
                Refusal.SUPERSEDED,
                f"{there} bytes of {name!r} are committed, or more meanwhile: not the "
                f"{offset if since is None else since} behind which these come",
            )

    def _find(self, cursor: Any, name: str) -> tuple[str, int] | None:
        """Return epoch and offset of a name, ``None`` if there are none.

        Raises:
            DurableRefused: the database takes another name for this one.
        """
        cursor.execute(self._select, (name,))
        row = cursor.fetchone()
        if row is None:
            return None
        if isinstance(row[0], str) and row[0] != name:  # a column of bytes compares them
            raise DurableRefused(
                Refusal.NAME,
                f"the database takes {name!r} for the name {row[0]!r}, which it has: give the "
                "column of names a binary collation, or use names that differ by more than case",
            )
        return str(row[1]), int(row[2])
