"""Tell the two forms of the native wire apart.

The js-ws dialect differs where the shipped package does: types of two bytes, no subprotocol, no
GO_AWAY, codes all the application's. It works around the package's defects:

- CLOSE waits until every byte is acknowledged or five seconds have passed, since the package can
  lose data that arrives together with CLOSE. For an end that waits so, credit is returned as soon
  as all is read; but on a stream that the peer opened not behind our own CLOSE, where a late ACK
  opens a phantom stream there.
- The window announced fits one message, since the package sends all its credit in one.
- Reading stops with ERROR 0, since an unasked CLOSE Write is an error there; one that comes is
  answered as the package answers it.
- Bytes behind a complete body are ignored; an ACK on a lower id never seen counts as late.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["CODE_REFUSED", "CODE_UNKNOWN", "JS_WS", "WSMUX_V1", "Dialect"]

CODE_UNKNOWN = 0
CODE_REFUSED = 3  # nobody took the stream; ours, not the founding text's


@dataclass(frozen=True, slots=True)
class Dialect:
    """Tell the two forms of the wire apart."""

    name: str
    subprotocol: str | None
    type_width: int
    first_application_code: int
    refused_code: int
    shipped: bool  # behave as, and towards, the shipped js-ws package


WSMUX_V1 = Dialect("wsmux", "wsmux.v1", 1, 64, CODE_REFUSED, shipped=False)
JS_WS = Dialect("js-ws", None, 2, 1, CODE_UNKNOWN, shipped=True)
