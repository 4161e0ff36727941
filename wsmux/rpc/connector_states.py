"""Hold the states of a client's connection, every move between them, and what is told of them.

::

                  CONNECT              WAITED             DIALLED              WELCOMED
    NO_CONNECTION ───────► BACKING_OFF ──────► CONNECTING ───────► HANDSHAKING ────────► CONNECTED
          ▲     LOST           │                   │                   │                     │
          └────────────────────┴───────────────────┴───────────────────┴─────────────────────┘

    any of them ── CLOSE ──► CLOSED

``CONNECT`` does nothing once a connection is under way. A pair that is not in the table is
illegal: ``advance`` raises ``KeyError`` and nothing changes.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import NamedTuple

from .envelope import Envelope
from .failures import FailureKind
from .session import Session

__all__ = [
    "TABLE",
    "ConnectorEvent",
    "ConnectorInput",
    "ConnectorState",
    "Dial",
    "Failure",
    "Hangup",
    "HelloWanted",
    "MetadataWanted",
    "Received",
    "SessionClosed",
    "SessionCreated",
    "StatusChanged",
    "advance",
]


class ConnectorState(Enum):
    """Say how far a client's connection is."""

    NO_CONNECTION = auto()
    BACKING_OFF = auto()
    CONNECTING = auto()
    HANDSHAKING = auto()
    CONNECTED = auto()
    CLOSED = auto()


class ConnectorInput(Enum):
    """Say what can happen to it."""

    CONNECT = auto()
    WAITED = auto()
    DIALLED = auto()
    WELCOMED = auto()
    LOST = auto()
    CLOSE = auto()


_S, _I = ConnectorState, ConnectorInput

_LIVE = (_S.BACKING_OFF, _S.CONNECTING, _S.HANDSHAKING, _S.CONNECTED)

TABLE: dict[tuple[ConnectorState, ConnectorInput], ConnectorState] = (
    {
        (_S.NO_CONNECTION, _I.CONNECT): _S.BACKING_OFF,
        (_S.BACKING_OFF, _I.WAITED): _S.CONNECTING,
        (_S.CONNECTING, _I.DIALLED): _S.HANDSHAKING,
        (_S.HANDSHAKING, _I.WELCOMED): _S.CONNECTED,
        (_S.NO_CONNECTION, _I.LOST): _S.NO_CONNECTION,
    }
    | {(state, _I.CONNECT): state for state in _LIVE}
    | {(state, _I.LOST): _S.NO_CONNECTION for state in _LIVE}
    | {(state, _I.CLOSE): _S.CLOSED for state in _S}
)


def advance(state: ConnectorState, happened: ConnectorInput) -> ConnectorState:
    """Return the next state; ``KeyError`` when the move is illegal."""
    return TABLE[state, happened]


class Dial(NamedTuple):
    """Make a connection, then call ``dialled`` or ``dial_failed`` with this number."""

    attempt: int


class HelloWanted(NamedTuple):
    """The connection stands: call ``hello`` with metadata or ``None``, or ``hello_failed``."""

    attempt: int


class Hangup(NamedTuple):
    """Close this connection with code 1000, or stop making it; nothing more is heard of it."""

    attempt: int


class SessionCreated(NamedTuple):
    """A session began; calls may use it, connected or not."""

    session: Session


class SessionClosed(NamedTuple):
    """A session is over: its calls end with ``UNEXPECTED_DISCONNECT``."""

    session: Session
    reason: str


class StatusChanged(NamedTuple):
    """The connection is in another state."""

    state: ConnectorState


class Received(NamedTuple):
    """A message arrived for the layer above."""

    session: Session
    envelope: Envelope


class MetadataWanted(NamedTuple):
    """The server asks for new metadata: call ``refresh``, or do nothing if there is none."""

    session: Session


class Failure(NamedTuple):
    """Something went wrong that is worth telling; what follows from it is told apart.

    ``code`` is the server's when it refused the handshake.
    """

    kind: FailureKind
    text: str
    code: str | None = None


ConnectorEvent = (
    Dial
    | HelloWanted
    | Hangup
    | SessionCreated
    | SessionClosed
    | StatusChanged
    | Received
    | MetadataWanted
    | Failure
)
