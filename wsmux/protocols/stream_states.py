"""Define all states of a stream and all transitions between them.

A stream is two independent halves. Rule 1: states change only here, by ``advance``. Rule 2: the
tables do not depend on the side of the connection. A pair that is not in a table is illegal:
``advance`` raises ``KeyError`` and nothing changes; the caller, which knows the cause, names the
broken rule.

::

    writing half                                   reading half

            DATA                                           DATA
           ┌────┐                                         ┌────┐
           │    ▼  CLOSE                                  │    ▼  PEER_CLOSE
           └─ OPEN ──────────► CLOSED                     └─ OPEN ───────────► ENDED
               │ │ DEFER         ▲                            │ │ PEER_RESET
               │ └───► CLOSING ──┘ CLOSE                      │ └────────────► ABORTED
               │         │ RESET / PEER_STOP                  │ STOP
               │ RESET   ▼                                    ▼      PEER_CLOSE / PEER_RESET
               ├──────► RESET                              STOPPED ────────► FORGOTTEN
               │ PEER_STOP                                 │    ▲
               └──────► STOPPED                            └────┘ DATA (discarded)

A half that has ended ignores late input, such as an echo or a repeated close.
"""

from __future__ import annotations

from enum import Enum, auto

__all__ = [
    "READ_TABLE",
    "WRITE_TABLE",
    "ReadInput",
    "ReadState",
    "WriteInput",
    "WriteState",
    "advance_read",
    "advance_write",
]


class WriteState(Enum):
    """The state of the half that this side writes."""

    __hash__ = object.__hash__  # an enum's own is a function in Python, and each change needs two

    OPEN = auto()
    CLOSING = auto()  # closed by the application, waiting until the peer has taken all bytes
    CLOSED = auto()
    RESET = auto()
    STOPPED = auto()  # the peer has stopped reading


class WriteInput(Enum):
    """An input of the writing half."""

    __hash__ = object.__hash__

    DATA = auto()
    DEFER = auto()
    CLOSE = auto()
    RESET = auto()
    PEER_STOP = auto()


class ReadState(Enum):
    """The state of the half that this side reads."""

    __hash__ = object.__hash__

    OPEN = auto()
    ENDED = auto()
    ABORTED = auto()
    STOPPED = auto()  # this side has stopped reading; the peer may not know yet
    FORGOTTEN = auto()  # the same, and the peer has ended its half


class ReadInput(Enum):
    """An input of the reading half."""

    __hash__ = object.__hash__

    DATA = auto()
    STOP = auto()
    PEER_CLOSE = auto()
    PEER_RESET = auto()


_W, _WI, _R, _RI = WriteState, WriteInput, ReadState, ReadInput

WRITE_TABLE: dict[tuple[WriteState, WriteInput], WriteState] = {
    (_W.OPEN, _WI.DATA): _W.OPEN,
    (_W.OPEN, _WI.DEFER): _W.CLOSING,
    (_W.OPEN, _WI.CLOSE): _W.CLOSED,
    (_W.OPEN, _WI.RESET): _W.RESET,
    (_W.OPEN, _WI.PEER_STOP): _W.STOPPED,
    (_W.CLOSING, _WI.DEFER): _W.CLOSING,
    (_W.CLOSING, _WI.CLOSE): _W.CLOSED,
    (_W.CLOSING, _WI.RESET): _W.RESET,
    (_W.CLOSING, _WI.PEER_STOP): _W.STOPPED,
} | {
    (state, late): state
    for state in (_W.CLOSED, _W.RESET, _W.STOPPED)
    for late in (_WI.DEFER, _WI.CLOSE, _WI.RESET, _WI.PEER_STOP)
}

READ_TABLE: dict[tuple[ReadState, ReadInput], ReadState] = {
    (_R.OPEN, _RI.DATA): _R.OPEN,
    (_R.OPEN, _RI.STOP): _R.STOPPED,
    (_R.OPEN, _RI.PEER_CLOSE): _R.ENDED,
    (_R.OPEN, _RI.PEER_RESET): _R.ABORTED,
    (_R.STOPPED, _RI.DATA): _R.STOPPED,
    (_R.STOPPED, _RI.STOP): _R.STOPPED,
    (_R.STOPPED, _RI.PEER_CLOSE): _R.FORGOTTEN,
    (_R.STOPPED, _RI.PEER_RESET): _R.FORGOTTEN,
} | {
    (state, late): state
    for state in (_R.ENDED, _R.ABORTED, _R.FORGOTTEN)
    for late in (_RI.STOP, _RI.PEER_CLOSE, _RI.PEER_RESET)
}


def advance_write(state: WriteState, happened: WriteInput) -> WriteState:
    """Return the next state of a writing half; raise ``KeyError`` if the transition is illegal."""
    return WRITE_TABLE[state, happened]


def advance_read(state: ReadState, happened: ReadInput) -> ReadState:
    """Return the next state of a reading half; raise ``KeyError`` if the transition is illegal."""
    return READ_TABLE[state, happened]
