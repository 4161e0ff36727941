"""Accept an upgrade on the socket that a WSGI server gives."""

from __future__ import annotations

import socket

import pytest

from wsmux.exceptions import HandshakeError
from wsmux.handshake.websocket_server import accept


def test_a_client_that_has_left_is_a_refusal_and_no_failure_of_the_application() -> None:
    ours, theirs = socket.socketpair()
    with ours:
        theirs.close()
        environ = {
            "werkzeug.socket": ours,
            "REQUEST_METHOD": "GET",
            "HTTP_HOST": "a.test",
            "HTTP_UPGRADE": "websocket",
            "HTTP_CONNECTION": "Upgrade",
            "HTTP_SEC_WEBSOCKET_KEY": "dGhlIHNhbXBsZSBub25jZQ==",
            "HTTP_SEC_WEBSOCKET_VERSION": "13",
        }
        with pytest.raises(HandshakeError, match="the client disconnected before the answer"):
            accept(environ, None)
