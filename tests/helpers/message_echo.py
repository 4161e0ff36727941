"""Send every message back, over a channel of whole messages, be it of bytes or of text."""

from __future__ import annotations

import socket

from flask import Flask

from wsmux.config import MIB
from wsmux.exceptions import HandshakeError
from wsmux.flask.responses import Ended, Response, refusal, request
from wsmux.handshake.websocket_server import accept, check_upgrade
from wsmux.protocols.base import Role
from wsmux.protocols.websocket import WebSocketFraming
from wsmux.runtime.deadline import Deadline
from wsmux.transport.message_transport import MessageTransport, message_transport

__all__ = ["MESSAGES", "add_echo", "channel_over", "echo"]

# The path of the route.
MESSAGES = "/messages"

# What cases 9.1 to 9.6 send: 16 MiB in one message, and 4 MiB in fragments of 64 bytes,
# with an empty one at the end.
LARGEST = 16 * MIB
MOST_FRAGMENTS = 4 * MIB // 64 + 1

# Seconds that the peer has to take one message, and for its part of the closing handshake.
PATIENCE = 20.0


def channel_over(sock: socket.socket, role: Role) -> MessageTransport:
    """Return a channel that takes what the largest cases send."""
    framing = WebSocketFraming(role, LARGEST, MOST_FRAGMENTS)
    return message_transport(sock, framing, role, close_timeout=PATIENCE)


def echo(sock: socket.socket, role: Role) -> None:
    """Serve a socket whose handshake is done, until it ends.

    The next message is looked at when the one before is with the socket, so nothing piles up; a
    peer that does not take it in time is cut off.
    """
    channel = channel_over(sock, role)
    for batch in channel.batches():
        for kind, data in batch:
            with channel.mutex:
                ticket = channel.queue.add_data_locked([(b"", bytes(data))], kind)
            channel.flush(ticket, Deadline(PATIENCE))
            if channel.queue.sent < ticket and channel.error is None:
                channel.abort()


def add_echo(app: Flask) -> None:
    """Echo at a route of an application."""

    def messages() -> Response:
        environ = request.environ
        try:
            check_upgrade(environ, None)
            accepted = accept(environ, None)
        except HandshakeError as error:
            return refusal(error)
        echo(accepted.socket, Role.SERVER)
        return Ended(accepted.mode)

    app.add_url_rule(MESSAGES, view_func=messages, websocket=True)
