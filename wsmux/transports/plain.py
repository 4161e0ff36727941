"""Choose the pure parts for a wire: the machine, and the framing for its carrier."""

from __future__ import annotations

from ..config import Config
from ..protocols.base import MuxProtocol, Role
from ..protocols.carrier import ByteFraming, Framing
from ..protocols.dialects import JS_WS, WSMUX_V1, Dialect
from ..protocols.native import NativeProtocol
from ..websocket.framing import WebSocketFraming

__all__ = ["PROTOCOLS", "byte_parts", "protocol_of", "subprotocols", "websocket_parts"]

PROTOCOLS: dict[str, Dialect] = {dialect.name: dialect for dialect in (WSMUX_V1, JS_WS)}


def check(name: str) -> str:
    """Return the name of a wire.

    Raises:
        ValueError: there is none of that name.
    """
    if name not in PROTOCOLS:
        raise ValueError(f"protocol must be one of {', '.join(PROTOCOLS)}, not {name!r}")
    return name


def subprotocols(names: tuple[str, ...]) -> list[str]:
    """Return what a handshake offers for these wires; ``js-ws`` has no subprotocol."""
    offers = (PROTOCOLS[check(name)].subprotocol for name in names)
    return [offer for offer in offers if offer is not None]


def protocol_of(subprotocol: str | None, names: tuple[str, ...]) -> str | None:
    """Return the wire of these that a subprotocol stands for."""
    return next((name for name in names if PROTOCOLS[name].subprotocol == subprotocol), None)


def websocket_parts(name: str, role: Role, config: Config) -> tuple[Framing, MuxProtocol]:
    """Return framing and machine for a wire over a WebSocket."""
    framing = WebSocketFraming(role, config.max_message_size, config.max_fragments)
    return framing, NativeProtocol(role, config, PROTOCOLS[check(name)])


def byte_parts(name: str, role: Role, config: Config) -> tuple[Framing, MuxProtocol]:
    """Return framing and machine for a wire over a plain byte stream."""
    dialect = PROTOCOLS[check(name)]
    framing = ByteFraming(config.max_message_size, dialect.type_width)
    return framing, NativeProtocol(role, config, dialect)
