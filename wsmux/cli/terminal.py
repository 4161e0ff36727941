"""Write data and talk, and use rich and tqdm where they are installed and somebody looks."""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from ..runtime.deadline import LONGEST_WAIT
from ..runtime.hints import how_to_install

__all__ = [
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


class CommandError(Exception):
    """Report why a subcommand failed, in one sentence, with its exit status."""

    def __init__(self, message: str, status: int = 1) -> None:
        super().__init__(message)
        self.status = status


def missing(module: str, extra: str = "cli") -> CommandError:
    """Return the error for a module that an option needs and that is not installed."""
    return CommandError(f"{module} is not installed: {how_to_install(extra)}")


def sentence(error: Exception) -> str:
    """Return what an error says, without the number that the system has for it."""
    if isinstance(error, OSError) and error.strerror and error.filename is None:
        return error.strerror
    return str(error)


def installed(module: str) -> bool:
    """Return whether a module can be imported, without doing so."""
    try:
        return importlib.util.find_spec(module) is not None
    except ValueError:  # sys.modules says that it is not there
        return False


def positive_int(text: str) -> int:
    """Parse an argument that must be a whole number from 1 up."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def seconds(text: str) -> float:
    """Parse an argument that must be a duration above 0; sockets take no endless one."""
    value = float(text)
    if not 0 < value <= LONGEST_WAIT:
        raise argparse.ArgumentTypeError(f"must be above 0, and at most {LONGEST_WAIT:.0f}")
    return value


def emit(text: str) -> None:
    """Write a line of data to stdout, at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def talk(text: str) -> None:
    """Write a line of talk to stderr, at once."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def tqdm_class(wanted: bool | None = None) -> Any:
    """Return tqdm, or ``None`` when there should be no progress bar.

    Args:
        wanted: true forces one; ``None`` asks for one if stderr is a terminal and tqdm is there.

    Raises:
        CommandError: one is forced and tqdm is not installed.
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
    """Hold rows of text under a title, with notes below."""

    def __init__(
        self,
        title: str,
        columns: Sequence[str],
        rows: Iterable[Sequence[str]],
        notes: Iterable[str] = (),
    ) -> None:
        self.title = title
        self.columns = list(columns)
        self.rows = [list(row) for row in rows]
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
    """Write a table to stdout: by rich on a terminal, else aligned text."""
    if not sys.stdout.isatty():
        emit(f"{table}\n")
        return
    try:
        from rich.console import Console
        from rich.table import Table as RichTable
    except ImportError:
        emit(f"{table}\n")
        return
    drawn = RichTable(title=table.title, title_justify="left", title_style="bold")
    for place, name in enumerate(table.columns):
        drawn.add_column(name, justify="right" if place else "left", overflow="fold")
    for row in table.rows:
        drawn.add_row(*row)
    console = Console(highlight=False)
    console.print(drawn)
    for note in table.notes:
        console.print(note, markup=False)
