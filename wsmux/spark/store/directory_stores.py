"""Offer topics in a directory, which any number of processes may share, and be killed at any time.

::

    DIRECTORY/wsmux-store.json    tells that the directory is a store, and of which kind
    DIRECTORY/datasets/NAME/      see ``datasets``
    DIRECTORY/topics/NAME/        see ``directory``

The lock of a dataset or topic is ``flock``, so the file system must know it, among machines too if
several share the directory.
"""

from __future__ import annotations

import json
import os
import re
import time
import uuid
from collections.abc import Callable
from pathlib import Path

from ..protocol import Code, refusal
from .base import DAY, Retention
from .change_watch import POLL
from .commit_log import read_object, sync_directory, write_new
from .directory import DirectoryHomes, real_directory
from .file_lock import LOCK_TIMEOUT
from .files import FORMATS, FileFormat
from .topic_state import TopicState
from .topics import HomeTopics

__all__ = ["DirectoryTopics", "open_directory"]

MARKER = "wsmux-store.json"

_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
LAYOUT = 1


def open_directory(directory: str | os.PathLike[str]) -> Path:
    """Return a directory that is a store; make it one if it is empty, or not there.

    Raises:
        ValueError: it is the address of an object store. RiverError: CORRUPT, if it holds something
            else. OSError: it cannot be used.
    """
    if _ADDRESS.match(os.fspath(directory)):
        text = (
            f"{os.fspath(directory)!r:.200} is an address, and a store is a directory of a file "
            "system with flock and hard links: object stores have neither, and are not supported; "
            "name a directory"
        )
        raise ValueError(text)
    path = Path(directory)
    path.mkdir(parents=True, exist_ok=True)
    path = path.resolve(strict=True)
    marker = read_object(path / MARKER, MARKER)
    if marker is None:
        if any(name not in ("datasets", "topics") for name in _visible(path)):
            text = f"{path} holds other things and is no store: name an empty directory"
            raise refusal(Code.CORRUPT, text)
        hidden = path / f".{uuid.uuid4().hex}"
        write_new(hidden, json.dumps({"layout": LAYOUT}).encode(), sync=True)
        os.rename(hidden, path / MARKER)
        sync_directory(path)
    elif marker.get("layout") != LAYOUT:
        text = f"{path / MARKER} tells of a layout that is not known here: {marker}"
        raise refusal(Code.CORRUPT, text[:1000])
    for inner in ("datasets", "topics"):
        if not real_directory(path / inner, inner):
            (path / inner).mkdir(exist_ok=True)
    return path


def _visible(path: Path) -> list[str]:
    return [name for name in os.listdir(path) if not name.startswith(".") and name != MARKER]


def _format(name: str) -> FileFormat:
    if name not in FORMATS:
        raise ValueError(f"format must be one of {', '.join(FORMATS)}, not {name!r}")
    return FORMATS[name]


class DirectoryTopics(HomeTopics):
    """Keep topics in a directory; see ``HomeTopics``.

    Args:
        directory: where; it may hold datasets too.
        file_format: ``parquet`` or ``arrow``; what was written in the other one is read all the
            same.
        sync: false does without making sure that what was committed survives a crash of the
            machine.
        lock_timeout: seconds that a change waits for those of others before it fails with BUSY.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        file_format: str = "parquet",
        ttl: float = DAY,
        retention: Retention | None = None,
        sync: bool = True,
        lock_timeout: float = LOCK_TIMEOUT,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if not lock_timeout > 0:
            raise ValueError(f"lock_timeout must be above 0, not {lock_timeout!r}")
        chosen = _format(file_format)
        path = open_directory(directory) / "topics"
        homes = DirectoryHomes(
            path, "topics", TopicState, chosen, sync=sync, lock_timeout=lock_timeout
        )
        super().__init__(homes, ttl=ttl, retention=retention, poll=POLL, clock=clock)
