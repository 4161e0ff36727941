"""Count the sockets that clients open to a server, at the server's side."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

__all__ = ["CountingListener"]

# What the system calls a connection that both sides hold.
ESTABLISHED = "01"


class CountingListener(socket.socket):
    """Listen on a free port of loopback, and count what is accepted.

    Attributes:
        accepted: how many connections there have been.
        most: how many there were at once, at most; it rises only when one is accepted.
    """

    def __init__(self) -> None:
        super().__init__(socket.AF_INET)
        self.accepted = 0
        self.most = 0
        self.bind(("127.0.0.1", 0))
        self.listen(128)

    def accept(self) -> tuple[socket.socket, Any]:
        taken = super().accept()
        self.accepted += 1
        self.most = max(self.most, self._established())
        return taken

    def _established(self) -> int:
        """Return how many connections of this port the system knows of."""
        local = f"0100007F:{self.getsockname()[1]:04X}"
        table = [line.split() for line in Path("/proc/self/net/tcp").read_text().splitlines()]
        return sum(row[1] == local and row[3] == ESTABLISHED for row in table[1:])
