"""Make what was written survive a crash of the machine."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["sync_path"]


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
