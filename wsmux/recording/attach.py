"""Attach the flight recorder to a transport if configured; imported lazily."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..exceptions import LocalProtocolError
from ..protocols.base import Role
from ..protocols.framing import Framing
from ..protocols.resumable_framing import ResumableFraming
from ..runtime.logs import logger

if TYPE_CHECKING:
    from ..transport.message_transport import MessageTransport

__all__ = ["finish", "record", "recording_of"]

_log = logger("wsmux")


def record(transport: MessageTransport, wire: str, framing: Framing) -> None:
    """Start a recorder if the transport's ``Config`` has one, before anything is sent."""
    plan = transport.config.recording
    if plan is not None:
        from .recorder import Recorder

        client = transport.role is Role.CLIENT
        recorder = Recorder(plan, transport.role, transport.name, transport.config, wire, framing)
        if isinstance(framing, ResumableFraming):  # its first carrier was greeted before
            hello, welcome = framing.session.first_greetings(client)
            recorder.carried(client, hello.encode(None))
            recorder.carried(not client, welcome.encode())
        transport.frame_reader.recorder = recorder
        transport.queue.tap = recorder.sent


def finish(transport: MessageTransport) -> None:
    """Log the end of a transport, and make its recorder deliver the recording."""
    _log.debug("%s ended: %s", transport.name, transport.error)
    recorder = transport.frame_reader.recorder
    if recorder is not None:
        recorder.ended(transport.error)


def recording_of(transport: MessageTransport) -> str:
    """Return the recording of a transport.

    Raises:
        LocalProtocolError: it is not recorded.
    """
    recorder = transport.frame_reader.recorder
    if recorder is None:
        raise LocalProtocolError("this connection is not recorded: set Config(recording=...)")
    return recorder.text(transport.error)
