"""Write data and messages, using rich and tqdm if installed and on a terminal."""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from ..runtime.deadline import LONGEST_WAIT
from ..runtime.hints import how_to_install
from ..runtime.logs import printable

__all__ = [
    "MAX_MESSAGE",
    "CommandError",
    "Table",
    "emit",
    "installed",
    "missing",
    "positive_int",
    "seconds",
    "sentence",
    "show",
    "talk",
    "tqdm_class",
]


# Characters of a message; those of servers are shorter.
MAX_MESSAGE = 64 * 1024


class CommandError(Exception):
    """Report why a subcommand failed, in one sentence, with its exit status."""

    def __init__(self, message: str, status: int = 1) -> None:
        super().__init__(message)
        self.status = status


def missing(module: str, extra: str = "cli") -> CommandError:
    """Return the error for a missing module that an option needs."""
    return CommandError(f"{module} is not installed: {how_to_install(extra)}")


def sentence(error: Exception) -> str:
    """Return the text of an error, without the system's error number."""
    if isinstance(error, OSError) and error.strerror and error.filename is None:
        return error.strerror
    return str(error)


def installed(module: str) -> bool:
    """Return whether a module can be imported, without importing it."""
    try:
        return importlib.util.find_spec(module) is not None
    except ValueError:  # marked as absent in sys.modules
        return False


def positive_int(text: str) -> int:
    """Parse a whole number of at least 1."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def seconds(text: str) -> float:
    """Parse a duration above 0; sockets need a finite one."""
    value = float(text)
    if not 0 < value <= LONGEST_WAIT:
        raise argparse.ArgumentTypeError(f"must be above 0, and at most {LONGEST_WAIT:.0f}")
    return value


def emit(text: str) -> None:
    """Write a line of data to stdout and flush."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def talk(text: str) -> None:
    """Write a message to stderr, as one line, and flush.

    A server may have written a part of it, so line breaks and terminal codes are escaped.
    """
    sys.stderr.write(f"{printable(text, MAX_MESSAGE)}\n")
    sys.stderr.flush()


def tqdm_class(wanted: bool | None = None) -> Any:
    """Return tqdm, or ``None`` if no progress bar is wanted.

    Args:
        wanted: true requires one; with ``None`` there is one if stderr is a terminal and tqdm is
            installed.

    Raises:
        CommandError: one is required and tqdm is not installed.
    """
    if wanted is False or (wanted is None and not sys.stderr.isatty()):
        return None
    try:
        from tqdm import tqdm
    except ImportError:
        if wanted:
            raise missing("tqdm") from None
        return None
    return tqdm


class Table:
    """Hold rows of text under a title, with notes below; cells are escaped as by ``talk``."""

    def __init__(
        self,
        title: str,
        columns: Sequence[str],
        rows: Iterable[Sequence[str]],
        notes: Iterable[str] = (),
    ) -> None:
        self.title = title
        self.columns = list(columns)
        self.rows = [[printable(cell, MAX_MESSAGE) for cell in row] for row in rows]
        self.notes = list(notes)

    def __str__(self) -> str:
        lines = [self.columns, *self.rows]
        widths = [max(len(line[i]) for line in lines) for i in range(len(self.columns))]
        text = [self.title]
        for line in lines:
            first, *rest = (
                cell.ljust(width) if not place else cell.rjust(width)
                for place, (cell, width) in enumerate(zip(line, widths, strict=True))
            )
            text.append("  ".join((first, *rest)).rstrip())
        return "\n".join([*text, *self.notes])


def show(table: Table) -> None:
    """Write a table to stdout: with rich on a terminal, otherwise as aligned text."""
    if not sys.stdout.isatty():
        emit(f"{table}\n")
        return
    try:
        from rich.console import Console
        from rich.table import Table as RichTable
        from rich.text import Text
    except ImportError:
        emit(f"{table}\n")
        return
    drawn = RichTable(title=table.title, title_justify="left", title_style="bold")
    for place, name in enumerate(table.columns):
        drawn.add_column(name, justify="right" if place else "left", overflow="fold")
    for row in table.rows:
        drawn.add_row(*map(Text, row))  # a plain string may hold markup
    console = Console(highlight=False)
    console.print(drawn)
    for note in table.notes:
        console.print(note, markup=False)
