"""Make folders private, and files safe from a crash."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

__all__ = ["FULL", "private_folder", "sync_path", "write_synced"]

# Errors that mean that the disk, or the share of this user, has no room.
FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


def private_folder(folder: Path) -> None:
    """Make a folder that only this user can access, if it is missing.

    Raises:
        PermissionError: other users have access to what is there, or it is another thing.
        OSError: it cannot be made.
    """
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise PermissionError(f"{folder} must be a directory that only this user can access")


def sync_path(path: Path) -> None:
    """Make a file, or the names in a folder, safe from a crash; blocks for the disk.

    Raises:
        OSError: it could not be; what is on the disk is unknown then.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_synced(path: Path, new: Path, data: bytes) -> None:
    """Give a file this content and no other, whatever crashes; its owner alone may read it.

    Args:
        path: the file.
        new: another one of its folder, which becomes it.
        data: the content.
    """
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(descriptor)
    new.replace(path)
    sync_path(path.parent)
