"""Hold what the stores of a directory have in common: which one it is, and safe ways into it.

::

    DIRECTORY/wsmux-store.json    tells that the directory is a store, and of which kind
    DIRECTORY/datasets/NAME/      see ``datasets``
    DIRECTORY/topics.sqlite       see ``topics.database``
    DIRECTORY/topics/NAME/        see ``topics.segments``

Names come from this package only, and no link is followed, so nothing outside of the directory is
read or written.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import tempfile
import uuid
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Any

from ...runtime.files import sync_path
from ..protocol import Code, refusal

__all__ = [
    "LAYOUT",
    "MARKER",
    "check_inside",
    "check_layout",
    "checked_path",
    "is_address",
    "open_directory",
    "read_object",
    "real_directory",
    "temporary_directory",
    "write_new",
]

MARKER = "wsmux-store.json"
LAYOUT = 1

_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")


def is_address(directory: str | os.PathLike[str]) -> bool:
    """Return whether this names something that is no directory of a file system."""
    return _ADDRESS.match(os.fspath(directory)) is not None


def open_directory(directory: str | os.PathLike[str]) -> Path:
    """Return a directory that is a store; make it one if it is empty, or not there.

    Raises:
        ValueError: it is the address of an object store. RiverError: CORRUPT, if it holds something
            else. OSError: it cannot be used.
    """
    if is_address(directory):
        text = (
            f"{os.fspath(directory)!r:.200} is an address, and this is kept in a directory of a "
            "file system with flock and hard links: name a directory; only datasets can be in an "
            "object store, at s3://BUCKET/PREFIX"
        )
        raise ValueError(text)
    path = Path(directory)
    new = [each for each in (path, *path.parents) if not each.exists()]
    path.mkdir(parents=True, exist_ok=True)
    path = path.resolve(strict=True)
    # The maker of the folder may have been killed before it did so.
    for each in (path, *new[1:]):
        with suppress(PermissionError):  # a folder that may be written to, and not read
            sync_path(each.parent)
    # Before the marker: another process may make it a store now, and the marker comes first then.
    names = _visible(path)
    marker = read_object(path / MARKER, MARKER)
    if marker is None:
        if any(name not in ("datasets", "topics") for name in names):
            text = f"{path} holds other things and is no store: name an empty directory"
            raise refusal(Code.CORRUPT, text)
        hidden = path / f".{uuid.uuid4().hex}"
        write_new(hidden, json.dumps({"layout": LAYOUT}).encode(), sync=True)
        os.rename(hidden, path / MARKER)
    else:
        check_layout(marker, str(path / MARKER))
    for inner in ("datasets", "topics"):
        if not real_directory(path / inner, inner):
            (path / inner).mkdir(exist_ok=True)
    # Whoever has made what is there: what is committed below is no safer than these names.
    sync_path(path)
    return path


def check_layout(marker: dict[str, Any], shown: str) -> None:
    """Raise CORRUPT unless a marker is that of a store as it is known here."""
    if marker.get("layout") != LAYOUT:
        text = f"{shown} tells of a layout that is not known here: {marker}"
        raise refusal(Code.CORRUPT, text[:1000])


def _visible(path: Path) -> list[str]:
    return [name for name in os.listdir(path) if not name.startswith(".") and name != MARKER]


def temporary_directory(owner: object, what: str) -> str:
    """Make a directory that goes with its owner."""
    path = tempfile.mkdtemp(prefix=f"wsmux-{what}-")
    weakref.finalize(owner, _remove_own, path, os.getpid())
    return path


def _remove_own(path: str, process: int) -> None:
    """Remove a temporary directory, but not in a forked process, whose parent needs it."""
    if os.getpid() == process:
        shutil.rmtree(path, ignore_errors=True)


def real_directory(path: Path, shown: str) -> bool:
    """Return whether a directory is there.

    Raises:
        RiverError: CORRUPT, if something else is.
    """
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return False
    if not stat.S_ISDIR(mode):
        kind = "a symbolic link" if stat.S_ISLNK(mode) else "a file"
        raise refusal(Code.CORRUPT, f"{shown} is {kind}, not a directory")
    return True


def check_inside(name: str, shown: str) -> None:
    """Raise CORRUPT unless a name is that of a file below a folder."""
    parts = Path(name).parts
    if not parts or Path(name).is_absolute() or ".." in parts or "://" in name:
        raise refusal(Code.CORRUPT, f"{shown} is outside of its folder")
    if "\0" in name:
        raise refusal(Code.CORRUPT, f"{shown!r} is the name of no file")


def checked_path(root: Path, name: str, shown: str) -> Path:
    """Return the path of a file of a table or topic: below its folder, and no link on the way.

    Raises:
        RiverError: CORRUPT. FileNotFoundError: it is gone.
    """
    check_inside(name, shown)
    path = root
    for part in Path(name).parts:
        path = path / part
        mode = path.lstat().st_mode
        if stat.S_ISLNK(mode):
            raise refusal(Code.CORRUPT, f"{shown} is not a file of the store")
    if not stat.S_ISREG(mode):
        raise refusal(Code.CORRUPT, f"{shown} is not a file of the store")
    return path


def write_new(path: Path, data: bytes, *, sync: bool) -> None:
    """Write a file that is not there yet."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]
        if sync:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


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
