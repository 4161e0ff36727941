"""A process that forks data servers, so that a test can kill one and have the next at once.

A line on stdin, ``PORT AFTER``, starts a server of the directory; a line on stdout, ``PORT PID``,
tells that it listens, and a further one, ``dead``, that it is no more. A server kills itself
``AFTER`` that many changes to the file system or to the database, unless that is 0. All ends with
stdin. The parent imports everything once and has no threads.
"""

from __future__ import annotations

import functools
import gc
import itertools
import os
import signal
import sqlite3
import sys
from collections.abc import Callable
from typing import Any

from wsmux.runtime.lazy_imports import delta, pa, pc, pq
from wsmux.spark.server.data_server import serve_data

# What makes a difference to who comes after.
CHANGES = ("link", "rename", "unlink", "mkdir", "rmdir", "fsync")


def mortal(change: Callable[..., Any], count: itertools.count[int], after: int) -> Any:
    """Return what does the same, and dies when so many changes were made: before or behind it."""

    def change_or_die(*arguments: Any, **options: Any) -> Any:
        number = next(count)
        if number == after and after % 2:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            return change(*arguments, **options)
        finally:  # also where it failed: no other change has this number
            if number == after:
                os.kill(os.getpid(), signal.SIGKILL)

    return change_or_die


class Mortal(sqlite3.Connection):
    """Have each statement counted that is part of a change."""

    change: Callable[..., Any] = sqlite3.Connection.execute

    def execute(self, statement: str, *values: Any) -> Any:
        if statement.startswith(("SELECT", "PRAGMA")):
            return super().execute(statement, *values)
        return type(self).change(self, statement, *values)


def be_mortal() -> None:
    """Have the databases that are opened from now on count."""
    sqlite3.connect = functools.partial(sqlite3.connect, factory=Mortal)  # type: ignore[misc]


def die_after(changes: int) -> None:
    """Have this process kill itself before or behind a change that is to come."""
    count = itertools.count(1)
    for name in CHANGES:
        setattr(os, name, mortal(getattr(os, name), count, changes))
    Mortal.change = mortal(sqlite3.Connection.execute, count, changes)


def serve(directory: str, port: int, after: int, sweep: float) -> None:
    be_mortal()
    with serve_data(directory, port=port, sweep=sweep) as server:
        if after:
            die_after(after)
        os.write(1, f"{server.port} {os.getpid()}\n".encode())
        server.serve_forever()


def main() -> None:
    directory, sweep = sys.argv[1:]
    for module in (pa.schema, pc.equal, pq.ParquetWriter, delta.Schema):
        assert callable(module)  # imported by now
    gc.freeze()
    for line in sys.stdin:
        port, after = (int(word) for word in line.split())
        child = os.fork()
        if not child:
            os.close(0)
            serve(directory, port, after, float(sweep))
        os.waitpid(child, 0)
        os.write(1, b"dead\n")


if __name__ == "__main__":
    main()
