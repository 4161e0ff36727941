"""Say what to examine."""

from __future__ import annotations

import socket
import ssl
from dataclasses import dataclass, field
from types import EllipsisType
from typing import Any

from ..client import connect
from ..config import Config
from ..handshake.headers import header_lines
from ..handshake.tcp import SCHEME, connect_tcp, is_tcp
from ..handshake.websocket_client import shake_hands
from ..mux.connection import Connection
from ..protocols.registry import check_subprotocol, subprotocols
from ..runtime.deadline import Deadline
from ..runtime.hints import check_url

__all__ = ["Plan"]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Say what to examine, and how.

    Attributes:
        url: ``ws://``, ``wss://`` or ``tcp://``.
        protocol: the wire.
        subprotocol: what the wire is called in the handshake; ``None`` offers nothing.
        headers: of the request.
        ssl_context: how to do TLS, if at all.
        timeout: seconds for each step that waits for an answer.
        idle: seconds of silence to try.
        echo: whether the server sends back what a stream carries, so that it may be given load.

    Raises:
        ValueError, TypeError: it is no such URL, or what cannot stand in a request.
    """

    url: str
    protocol: str = "wsmux"
    subprotocol: str | EllipsisType | None = ...
    headers: list[str] | None = None
    ssl_context: ssl.SSLContext | None = None
    timeout: float = 5.0
    idle: float = 2.0
    echo: bool = False
    config: Config = field(default_factory=lambda: Config(ping_interval=None, close_timeout=0.5))

    def __post_init__(self) -> None:
        # Before anything is dialled: each step dials for itself.
        object.__setattr__(self, "url", check_url(self.url, "ws", "wss", SCHEME))
        header_lines(self.headers)
        for offer in self.offers:
            check_subprotocol(offer)

    @property
    def plain(self) -> bool:
        """Whether it is a socket without a WebSocket."""
        return is_tcp(self.url)

    @property
    def offers(self) -> list[str]:
        """What the handshake offers."""
        if self.subprotocol is ...:
            return subprotocols((self.protocol,))
        return [] if self.subprotocol is None else [self.subprotocol]

    def connect(self) -> Connection:
        """Return a connection that keeps silent where it has nothing to say."""
        options: dict[str, Any] = {}
        if not self.plain:
            options = {"headers": self.headers, "subprotocol": self.subprotocol}
        return connect(
            self.url,
            protocol=self.protocol,
            timeout=self.timeout,
            config=self.config,
            ssl_context=self.ssl_context,
            **options,
        )

    def dial(self, offers: list[str], deadline: Deadline) -> socket.socket:
        """Return a socket after the handshake, if there is one, and nothing that reads it.

        Raises:
            HandshakeError, TimeoutError, OSError: as ``connect``.
        """
        if self.plain:
            return connect_tcp(self.url, self.ssl_context, deadline)
        tls = {} if self.ssl_context is None else {"sslopt": {"context": self.ssl_context}}
        sock, _ = shake_hands(
            self.url,
            subprotocols=offers,
            headers=self.headers,
            deadline=deadline,
            max_size=self.config.max_handshake_size,
            options=tls,
        )
        return sock
