"""Name every time and bound of River, with its default and its reason."""

from __future__ import annotations

from dataclasses import dataclass, fields

from ..config import KIB, MIB

__all__ = ["Options"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Hold the settings of one client or server; frozen, checked when made.

    Durations are seconds. The defaults of the times are those of the TypeScript implementation.
    """

    heartbeat_interval: float = 1.0
    """Seconds between the server's heartbeats; the client answers each."""

    heartbeats_until_dead: int = 2
    """Intervals without a message after which a connection, not its session, is given up."""

    session_disconnect_grace: float = 5.0
    """Seconds that a session outlives its connection, or waits for its first; above connecting and
    handshaking. Then its calls fail."""

    handshake_timeout: float = 1.0
    """Seconds for the other side's handshake once connected."""

    connection_timeout: float = 2.0
    """Seconds to make a connection."""

    transparent_reconnect: bool = True
    """Whether sessions survive their connections; both sides decide for themselves."""

    backoff_base: float = 0.15
    """Most seconds before the second attempt of a row; doubled for each further one. Each wait is
    drawn from nothing up to its most, so that clients do not come all at once."""

    backoff_jitter: float = 0.2
    """Seconds added to the most of each wait. With 0, waits are as long as they may be, always."""

    backoff_max: float = 32.0
    """Most seconds between attempts, less jitter. They go on for ever. While a call waits, or a
    session's grace runs, they come sooner: every two seconds, and before half of the grace."""

    max_size: int = 16 * MIB
    """Bytes of one value that a call sends, be it an init, a request or a response, as the codec
    packs it. A larger one raises ``EncodeError``, and nothing is sent. Give both ends the same: a
    message that is larger here, but at most four times so, ends its call alone, in ``RiverError``;
    beyond that it ends its connection, and the second time its session. From 16 KiB to 1 GiB."""

    send_buffer_messages: int | None = None
    """Messages not acknowledged, of all calls together, at which writers wait. By default 1,024 at
    a server, and 65,536 at a client, since shipped servers acknowledge an upload once a heartbeat.
    A peer that provokes 32 times as many, or 32,768 more, and goes on without acknowledging them,
    loses its session."""

    send_buffer_bytes: int | None = None
    """The same in bytes: 16 MiB at a server by default, and 64 MiB at a client."""

    unread_messages: int = 10_000
    """Messages of one call that nobody has read; beyond it the call is cancelled."""

    unread_bytes: int = 16 * MIB
    """The same in bytes, without the newest message, which may be as large as any."""

    ack_messages: int = 64
    """Messages received after which they are acknowledged, if nothing else was sent meanwhile."""

    ack_bytes: int = MIB
    """The same in bytes."""

    tombstones: int = 200
    """Streams of a session, refused or cancelled, that are remembered, to be told of once."""

    max_streams: int = 1024
    """Calls that one session may have open at a server; further ones are refused."""

    worker_timeout: float = 10.0
    """Seconds that a call waits at a server for one of the workers; then it is refused."""

    max_sessions: int = 10_000
    """Sessions of one server, those without a connection included; further ones are refused."""

    newcomer_wins: bool = False
    """What a server does with a client that comes with the id of one which is connected, and with
    another session. By default the connected one is asked for a sign of life, and stays if it gives
    it. True ends its session at once, as shipped servers do: of two live clients with one id each
    then ends the calls of the other, again and again, and so may whoever knows a client's id."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is None and field.type == "int | None":
                continue
            if field.type in ("int", "int | None") and (not isinstance(value, int) or value < 1):
                raise ValueError(f"Options.{field.name} must be a whole number from 1 up")
            if field.type == "float" and not value >= 0:
                raise ValueError(f"Options.{field.name} must not be negative, but is {value!r}")
        if not self.heartbeat_interval:
            raise ValueError("Options.heartbeat_interval must be above 0")
        # So that what the protocol itself has to say fits, and lengths of 32 bits can tell it.
        if not 16 * KIB <= self.max_size <= KIB * MIB:
            raise ValueError(
                f"Options.max_size must be from 16 KiB to 1 GiB, but is {self.max_size!r}"
            )
