"""Register the wires: their subprotocols, and their machines and framings."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ..config import Config
from ..runtime.arguments import strings
from .base import MuxProtocol, Role
from .bymux import BymuxProtocol
from .bymux_state import BymuxState
from .framing import ByteFraming, Framing, NoFraming
from .native import JS_WS, WSMUX_V1, Dialect, NativeProtocol
from .resumable_framing import ResumableFraming
from .resumption import SUBPROTOCOL_PREFIX, Session
from .websocket import WebSocketFraming
from .yamux import YamuxProtocol

__all__ = [
    "WIRES",
    "Wire",
    "check_subprotocol",
    "is_resumable",
    "protocol_of",
    "resumable",
    "resumable_wire",
    "served_protocols",
    "subprotocols",
    "wire",
]

# RFC 6455 section 4.1: a subprotocol is a token, like a header name.
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


@dataclass(frozen=True)
class Wire:
    """Describe a wire.

    Attributes:
        name: its name in ``connect(protocol=)``.
        subprotocol: offered in the handshake, or ``None``.
        machine: makes one end of a connection; only Bymux has an initial state.
        byte_framing: makes the framing over a plain byte stream.
    """

    name: str
    subprotocol: str | None
    machine: Callable[[Role, Config, BymuxState | None], MuxProtocol]
    byte_framing: Callable[[Config], Framing]

    def over_websocket(
        self, role: Role, config: Config, state: BymuxState | None
    ) -> tuple[Framing, MuxProtocol]:
        """Return framing and machine over a WebSocket."""
        machine = self.machine(role, config, state)
        limits = (config.max_message_size, config.max_fragments)
        return WebSocketFraming(role, *limits, machine.keeps_boundaries), machine

    def over_carriers(
        self, role: Role, config: Config, state: BymuxState | None, session: Session
    ) -> tuple[Framing, MuxProtocol]:
        """Return framing and machine over one WebSocket after another."""
        machine = self.machine(role, config, state)
        limits = (config.max_message_size, config.max_fragments)
        return ResumableFraming(role, *limits, session), machine

    def over_bytes(
        self, role: Role, config: Config, state: BymuxState | None
    ) -> tuple[Framing, MuxProtocol]:
        """Return framing and machine over a plain byte stream."""
        return self.byte_framing(config), self.machine(role, config, state)


def _native(dialect: Dialect) -> Wire:
    def machine(role: Role, config: Config, state: BymuxState | None) -> MuxProtocol:
        return NativeProtocol(role, config, dialect)

    def framing(config: Config) -> Framing:
        return ByteFraming(config.max_message_size, dialect.type_width)

    return Wire(dialect.name, dialect.subprotocol, machine, framing)


def _yamux(role: Role, config: Config, state: BymuxState | None) -> MuxProtocol:
    return YamuxProtocol(role, config)


def _no_framing(config: Config) -> Framing:
    return NoFraming()


WIRES = {
    wire.name: wire
    for wire in (
        _native(WSMUX_V1),
        _native(JS_WS),
        Wire("yamux", YamuxProtocol.subprotocol, _yamux, _no_framing),
        Wire("bymux", BymuxProtocol.subprotocol, BymuxProtocol, _no_framing),
    )
}


def wire(name: str) -> Wire:
    """Return the wire with this name.

    Raises:
        TypeError: the name is not a string.
        ValueError: there is no such wire.
    """
    if not isinstance(name, str):
        kind = type(name).__name__
        raise TypeError(f"protocol must be one of {', '.join(WIRES)}, a string, not {kind}")
    if name not in WIRES:
        raise ValueError(f"protocol must be one of {', '.join(WIRES)}, not {name!r}")
    return WIRES[name]


def subprotocols(names: tuple[str, ...]) -> list[str]:
    """Return the subprotocols to offer for these wires; ``js-ws`` has none."""
    offers = (wire(name).subprotocol for name in names)
    return [offer for offer in offers if offer is not None]


def resumable(names: tuple[str, ...]) -> list[str]:
    """Return the subprotocols under which these wires are carried by resumable connections."""
    return [f"{SUBPROTOCOL_PREFIX}{wire(name).name}" for name in names]


def is_resumable(subprotocol: str) -> bool:
    """Return whether this subprotocol is of a resumable connection."""
    return subprotocol.startswith(SUBPROTOCOL_PREFIX)


def resumable_wire(subprotocol: str) -> str:
    """Return the name of the wire that such a subprotocol carries."""
    return subprotocol.removeprefix(SUBPROTOCOL_PREFIX)


def served_protocols(given: Iterable[str]) -> tuple[str, ...]:
    """Return the names of the wires to serve.

    Raises:
        TypeError: it is not a collection of strings.
        ValueError: it is empty, or one is not the name of a wire.
    """
    names = strings("protocols", given, "wsmux")
    if not names:
        raise ValueError(
            "protocols is empty, and a server serves one wire at least: name one, or leave it out"
        )
    subprotocols(names)
    return names


def check_subprotocol(name: str) -> str:
    """Return the name of a subprotocol.

    Raises:
        TypeError: it is not a string.
        ValueError: it cannot be sent in a handshake, such as a list of several.
    """
    if not isinstance(name, str):
        kind = type(name).__name__
        raise TypeError(f"subprotocol must be a string, such as 'yamux', or None, not {kind}")
    if not _TOKEN.fullmatch(name):
        raise ValueError(f"subprotocol must be a single token of HTTP, not {name!r}")
    return name


def protocol_of(subprotocol: str | None, names: tuple[str, ...]) -> str | None:
    """Return which of these wires has this subprotocol, resumable or not."""
    if subprotocol is not None and is_resumable(subprotocol):
        name = resumable_wire(subprotocol)
        return name if name in names else None
    return next((name for name in names if wire(name).subprotocol == subprotocol), None)
