"""Log who came, who was refused and why, and who left: the lines of the logger ``wsmux.audit``.

A line is made of ``key=value``, at INFO. A value that a client may have chosen is quoted unless it
is plain, so that it cannot look like further keys; control characters are escaped. Neither the
query nor a header is logged, since they may hold secrets, but for an origin that is refused. Lines
of connections that were accepted and that ended are complete; of refusals, which cost a client
nothing, there is one a second, that tells how many were left out.

A peer that comes and goes causes any number of them, so the level of this logger is WARNING until
the application sets it to INFO; that of the loggers above it does not matter.
"""

from __future__ import annotations

import logging
import re

from ..handshake.request import Request
from ..mux.connection import Connection
from ..runtime import clock
from ..runtime.logs import MAX_VALUE, PACED, logger, printable

__all__ = ["Visit", "refused"]

# Characters of one value.
MAX_WORD = 200

# Characters of one value that is escaped by more: each takes 10 at most.
MAX_ESCAPED = 40

# Of values that need no quotes.
_PLAIN = re.compile(r"[A-Za-z0-9._:@/+~%,-]+")

_NOBODY = Request("", "", {}, "")

_log = logger("wsmux.audit")
if _log.level == logging.NOTSET:
    _log.setLevel(logging.WARNING)


def _word(value: str | None) -> str:
    """Return a value as it stands in a line."""
    if not value:
        return "-"
    if len(value) <= MAX_WORD and _PLAIN.fullmatch(value) and value != "-":
        return value
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    shown = printable(escaped, MAX_WORD)
    if len(shown) > MAX_VALUE - 2:  # the logger would cut off the closing quote
        shown = printable(escaped, MAX_ESCAPED)
    return f'"{shown}"'


def refused(request: Request | None, peer: str, status: int | None, why: str) -> None:
    """Log that a client was not let in.

    Args:
        request: what it has asked for, as far as this is known.
        peer: its address, where there is no request.
        status: of the HTTP response, if there was one.
        why: one sentence, without anything secret.
    """
    if not _log.isEnabledFor(logging.INFO):
        return
    asked = request or _NOBODY
    _log.info(
        "refused path=%s peer=%s user=%s status=%s why=%s",
        _word(asked.path),
        _word(asked.client_address or peer),
        _word(asked.user),
        status or "-",
        _word(why),
    )


class Visit:
    """Log that a client was let in, and, when it has left, what became of it.

    Args:
        peer: the address of the client, where there is no request.
    """

    def __init__(self, connection: Connection, peer: str) -> None:
        self._connection = connection
        self._peer = peer
        self._began = clock.monotonic()
        if not _log.isEnabledFor(logging.INFO):
            return
        _log.info(
            "accepted path=%s peer=%s user=%s connection=%s wire=%s",
            *self._who(),
            connection.protocol,
            extra=PACED,
        )

    def _who(self) -> tuple[str, str, str, str]:
        asked = self._connection.request or _NOBODY
        return (
            _word(asked.path),
            _word(asked.client_address or self._peer),
            _word(asked.user),
            self._connection.name,
        )

    def ended(self) -> None:
        """Log the end."""
        if not _log.isEnabledFor(logging.INFO):
            return
        stats, code = self._connection.stats(), self._connection.close_code
        _log.info(
            "closed path=%s peer=%s user=%s connection=%s code=%s seconds=%.3f streams=%d "
            "bytes_in=%d bytes_out=%d",
            *self._who(),
            "-" if code is None else code,
            clock.monotonic() - self._began,
            stats.streams_opened + stats.streams_accepted,
            stats.bytes_received,
            stats.bytes_sent,
            extra=PACED,
        )
