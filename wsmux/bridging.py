"""Join two connections, of any two wires, so that their peers' streams reach each other."""

from __future__ import annotations

from .connection import Connection
from .deadlines import Deadline
from .exceptions import (
    BAD_GATEWAY,
    ConnectionClosed,
    ForkedError,
    LocalProtocolError,
    StreamRefused,
)
from .logs import logger
from .pump import End, Pump
from .starting import daemon_thread, start_thread

__all__ = ["bridge"]

REASON = "the other side of the bridge has ended"

_log = logger("wsmux")


def bridge(one: Connection, other: Connection) -> None:
    """Carry the streams that either peer opens to the other one, until a connection has ended.

    Blocks. Each stream that comes on one connection is opened on the other; bytes, ends and resets
    go both ways as they come, with the flow control of both wires kept: a peer that does not read
    holds up the writer of that stream at the other end, and nothing else. A stream that cannot be
    opened there within its ``Config.open_timeout`` is refused.

    When one connection has ended, what it had received is delivered (``Config.close_timeout`` is
    given for progress), and the other one is closed: with the same code after a good end, else
    with 1014 (bad gateway). Nobody else may accept or use streams of the two meanwhile.

    What a wire cannot say is lost on it: on ``bymux`` a reset looks like a clean end, ``yamux``
    resets both halves at once, and application codes below 64 become 0 on ``wsmux``. A refusal is
    seen as such by peers that can tell it from a reset (``wsmux``).

    Raises:
        TypeError: one of them is no connection.
    """
    for each in (one, other):
        if not isinstance(each, Connection):
            kind = type(each).__name__
            raise TypeError(
                f"bridge() joins two connections, as connect() returns them, not {kind}"
            )
    pump = Pump(one, other)
    acceptors = [
        daemon_thread(
            target=_accept, args=(incoming, outgoing, pump), name=f"{incoming.name}-bridge"
        )
        for incoming, outgoing in ((one, other), (other, one))
    ]
    code = BAD_GATEWAY
    try:
        for thread in acceptors:
            start_thread(thread)
        ended = pump.run(one, other)
        code = _code_behind(ended)
    finally:
        closing = Deadline(one.config.close_timeout)
        for connection in (one, other):
            connection.close(closing.remaining(), code=code, reason=REASON)
        for thread in acceptors:
            if thread.ident is not None:
                thread.join()
        pump.close()


def _code_behind(ended: Connection) -> int:
    error = ended.error
    clean = isinstance(error, ConnectionClosed) and error.code in (1000, 1001)
    return error.code if clean and isinstance(error, ConnectionClosed) else BAD_GATEWAY


def _accept(incoming: Connection, outgoing: Connection, pump: Pump) -> None:
    """Open on one connection what the peer of the other has opened."""
    try:
        for stream in incoming:
            try:
                further = outgoing.open_stream(outgoing.config.open_timeout)
            except (StreamRefused, LocalProtocolError, TimeoutError) as error:
                _log.info("stream %d of %s finds no way on: %s", stream.id, incoming.name, error)
                End(stream).refuse(stream._engine.protocol.refused_code)
            else:
                pump.add(stream, further)
    except (ConnectionClosed, ForkedError) as error:
        _log.debug("the bridge from %s ends: %s", incoming.name, error)
    finally:
        pump.added_all(incoming)
