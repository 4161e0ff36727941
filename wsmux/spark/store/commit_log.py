"""Keep a log in a directory, so that several processes may add to it, and any may be killed.

An entry is a file, ``%020d.json``. It is written under a name that nobody looks at, made safe from
a crash, and then linked to its own name, which the system does once and for one process only. So
an entry is there whole or not at all, and there are never two of one number.

Now and then the state that the entries add up to is kept too, as ``%020d.state.json``: the entries
up to it are dropped then, but for the last one, by which whoever was there last knows that nothing
is missing.
"""

from __future__ import annotations

import json
import os
import re
import stat
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ...rpc import RiverError
from ..protocol import Code, refusal

__all__ = ["CommitLog", "Start", "read_object", "remove_file", "sync_directory", "write_new"]

_ENTRY = re.compile(r"([0-9]{20})(\.state)?\.json")

# Entries from one kept state to the next, at least; more where a state is large.
BETWEEN_STATES = 64


def sync_directory(path: Path) -> None:
    """Make the names in a directory safe from a crash."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_new(path: Path, data: bytes, *, sync: bool) -> None:
    """Write a file that is not there yet."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        if sync:
            os.fsync(file.fileno())


def remove_file(path: Path) -> None:
    """Remove a file, whoever was faster."""
    path.unlink(missing_ok=True)


def read_object(path: Path, shown: str) -> dict[str, Any] | None:
    """Return the JSON object in a file, ``None`` if the file is not there.

    Raises:
        RiverError: CORRUPT.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        text = f"{shown} cannot be read: {error.strerror}"
        raise refusal(Code.CORRUPT, text) from error
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise refusal(Code.CORRUPT, f"{shown} is not a file")
        with open(descriptor, "rb", closefd=False) as file:
            values = json.loads(file.read())
    except (OSError, ValueError, RecursionError) as error:
        raise refusal(Code.CORRUPT, f"{shown} is damaged: {error}") from error
    finally:
        os.close(descriptor)
    if not isinstance(values, dict):
        raise refusal(Code.CORRUPT, f"{shown} is damaged: it is not an object")
    return values


class Start(NamedTuple):
    """The newest kept state, and the highest number of all; -1 stands for none."""

    number: int
    state: dict[str, Any] | None
    highest: int


class CommitLog:
    """Read and extend one log. It has no state, and needs no lock of its own.

    Args:
        path: the directory. shown: what to call it in errors. sync: whether to make sure that
            what was added survives a crash of the machine; it survives that of a process anyway.
    """

    def __init__(self, path: Path, shown: str, *, sync: bool = True) -> None:
        self.path = path
        self.shown = shown
        self._sync = sync

    def entry(self, number: int) -> dict[str, Any] | None:
        """Return an entry, ``None`` if it is not there (yet, or any more).

        Raises:
            RiverError: CORRUPT.
        """
        return self._load(f"{number:020d}.json")

    def holds(self, number: int) -> bool:
        """Return whether an entry is there."""
        return os.path.lexists(self.path / f"{number:020d}.json")

    def start(self) -> Start:
        """Return where to read on from.

        Raises:
            RiverError: CORRUPT, also for what does not belong here.
        """
        newest = highest = -1
        for name in self._names():
            if name.startswith("."):
                continue  # being written, or the system's
            found = _ENTRY.fullmatch(name)
            if found is None:
                raise self.corrupt(name, "does not belong here")
            highest = max(highest, int(found[1]))
            if found[2]:
                newest = max(newest, int(found[1]))
        if newest < 0:
            return Start(newest, None, highest)
        state = self._load(f"{newest:020d}.state.json")
        if state is None:  # replaced by a newer one meanwhile
            return self.start()
        return Start(newest, state, highest)

    def append(self, number: int, entry: Mapping[str, Any]) -> bool:
        """Add an entry; false if there is one of that number."""
        hidden = self.path / f".{uuid.uuid4().hex}"
        try:
            write_new(hidden, _dumped(entry), sync=self._sync)
            os.link(hidden, self.path / f"{number:020d}.json")
        except FileExistsError:
            return False
        finally:
            remove_file(hidden)
        if self._sync:
            sync_directory(self.path)
        return True

    def keep_state(self, number: int, make: Callable[[], Mapping[str, Any]]) -> None:
        """Keep the state after an entry, if it is time to, and drop what it makes needless."""
        states, entries = self._numbers()
        last = max(states, default=-1)
        if number - last < BETWEEN_STATES:
            return
        old = self._size(last)
        if old > sum(self._size(each, "") for each in range(last + 1, number + 1)):
            return  # keeping it again costs more than the entries since do
        hidden = self.path / f".{uuid.uuid4().hex}"
        try:
            write_new(hidden, _dumped(make()), sync=self._sync)
            os.rename(hidden, self.path / f"{number:020d}.state.json")
        finally:
            remove_file(hidden)
        if self._sync:
            sync_directory(self.path)
        for each in states:
            if each < number:
                remove_file(self.path / f"{each:020d}.state.json")
        for each in sorted(entries):
            if each < number:
                remove_file(self.path / f"{each:020d}.json")

    def _names(self) -> list[str]:
        try:
            return os.listdir(self.path)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise refusal(Code.CORRUPT, f"{self.shown} is missing") from error

    def _numbers(self) -> tuple[list[int], list[int]]:
        """Return the numbers of kept states, and of entries."""
        found = [_ENTRY.fullmatch(name) for name in self._names()]
        states = [int(each[1]) for each in found if each and each[2]]
        return states, [int(each[1]) for each in found if each and not each[2]]

    def _size(self, number: int, infix: str = ".state") -> int:
        try:
            return (self.path / f"{number:020d}{infix}.json").stat().st_size
        except FileNotFoundError:
            return 0

    def _load(self, name: str) -> dict[str, Any] | None:
        return read_object(self.path / name, f"{self.shown}/{name}")

    def corrupt(self, name: str, why: str) -> RiverError:
        """Return the error for one of its files."""
        return refusal(Code.CORRUPT, f"{self.shown}/{name} {why}")


def _dumped(values: Mapping[str, Any]) -> bytes:
    return json.dumps(values, separators=(",", ":")).encode() + b"\n"
