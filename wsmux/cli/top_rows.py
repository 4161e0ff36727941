"""Write connections as lines of a table, for ``wsmux top`` with one process and with a cluster."""

from __future__ import annotations

from typing import Any

from ..runtime.logs import printable

__all__ = ["COLUMNS", "MAX_TEXT", "connection_row", "size_text"]

# Characters of a text from a server.
MAX_TEXT = 300

COLUMNS = (
    "connection",
    "wire",
    "peer",
    "streams",
    "rtt",
    "in/s",
    "out/s",
    "received",
    "sent",
    "unread",
    "queued",
    "stalled",
)


def connection_row(now: dict[str, Any], before: dict[str, Any] | None, elapsed: float) -> list[str]:
    """Return the line of a connection, with the rates since it was seen before.

    Raises:
        KeyError, TypeError, ValueError: it is not described as it should be.
    """

    def rate(name: str) -> str:
        if before is None or elapsed <= 0:
            return "-"
        return size_text((now[name] - before[name]) / elapsed)

    rtt, stalled = now["rtt"], now["stalled"]
    return [
        printable(str(now["name"]), MAX_TEXT),
        printable(str(now["protocol"]), MAX_TEXT),
        printable(f"{now['remote_address'] or '-'} {now['path'] or ''}".strip(), MAX_TEXT),
        str(int(now["streams"])),
        "-" if rtt is None else f"{rtt * 1000:.2f} ms",
        rate("bytes_received"),
        rate("bytes_sent"),
        *(size_text(now[name]) for name in ("bytes_received", "bytes_sent")),
        *(size_text(now[name]) for name in ("unread_bytes", "queued_bytes")),
        "-" if stalled is None else f"{stalled:.1f} s",
    ]


def size_text(count: float) -> str:
    """Return a number of bytes, rounded and with its unit."""
    if count < 1024:
        return f"{count:.0f} B"
    units = ["KiB", "MiB", "GiB"]
    count /= 1024
    while count >= 1024 and len(units) > 1:
        count /= 1024
        del units[0]
    return f"{count:.{0 if count >= 10 else 1}f} {units[0]}"
