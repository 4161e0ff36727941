"""Identify the process at the other end of a Unix socket, and remove sockets of dead processes."""

from __future__ import annotations

import errno
import os
import socket
import struct
import time
from contextlib import suppress
from pathlib import Path

from ..exceptions import HandshakeError

__all__ = ["check_same_user", "remove_left"]

# Seconds after which nobody is about to listen on a socket that refuses connections.
LEFT_AFTER = 60.0

_CREDENTIALS = struct.Struct("3i")


def check_same_user(sock: socket.socket) -> None:
    """Check that a connected Unix socket leads to a process of this user, where the system tells.

    Raises:
        HandshakeError: it does not.
    """
    if hasattr(socket, "SO_PEERCRED"):
        told = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        _, user, _ = _CREDENTIALS.unpack(told)
        if user != os.getuid():
            raise HandshakeError(f"its socket is of user {user}, and not of {os.getuid()}")


def remove_left(folder: Path) -> None:
    """Remove the sockets ``*.sock`` of a folder on which killed processes had listened."""
    for path in folder.glob("*.sock"):
        with suppress(FileNotFoundError):  # another process has removed it
            if time.time() - path.stat().st_mtime > LEFT_AFTER and _is_left(path):
                path.unlink()


def _is_left(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)  # a server that is busy must not be waited for
        return probe.connect_ex(str(path)) == errno.ECONNREFUSED
