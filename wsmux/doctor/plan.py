"""Describe an examination."""

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
    """Describe what to examine, and how.

    Attributes:
        url: a ``ws://``, ``wss://`` or ``tcp://`` URL.
        protocol: the wire.
        subprotocol: the name of the wire in the handshake; ``None`` offers none.
        headers: headers of the request.
        ssl_context: TLS settings, if any.
        timeout: seconds for each step that waits for an answer.
        idle: seconds of silence to test.
        echo: the server echoes streams, so they may be loaded.

    Raises:
        ValueError, TypeError: the URL is invalid, or a value cannot be sent in a request.
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
        # Before connecting, since each step connects by itself.
        object.__setattr__(self, "url", check_url(self.url, "ws", "wss", SCHEME))
        header_lines(self.headers)
        for offer in self.offers:
            check_subprotocol(offer)

    @property
    def plain(self) -> bool:
        """Whether the URL is for a plain socket."""
        return is_tcp(self.url)

    @property
    def offers(self) -> list[str]:
        """The subprotocols to offer in the handshake."""
        if self.subprotocol is ...:
            return subprotocols((self.protocol,))
        return [] if self.subprotocol is None else [self.subprotocol]

    def connect(self) -> Connection:
        """Return a connection that sends nothing by itself."""
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
        """Return a socket after the handshake, if there is one, without a reader.

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
