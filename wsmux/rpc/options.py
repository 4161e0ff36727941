"""Define the timeouts and limits of River, with their defaults and reasons."""

from __future__ import annotations

from dataclasses import dataclass, fields

from ..config import KIB, MIB

__all__ = ["Options"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Hold the settings of a client or server; immutable, validated on creation.

    Durations are in seconds. The defaults of the times are those of the TypeScript implementation.
    """

    heartbeat_interval: float = 1.0
    """Seconds between the server's heartbeats; the client answers each one."""

    heartbeats_until_dead: int = 2
    """Intervals without a message after which a connection, but not its session, is closed."""

    session_disconnect_grace: float = 5.0
    """Grace period: seconds that a session outlives its connection, or waits for its first; should
    exceed connecting plus handshaking. When it is over, the calls of the session fail."""

    handshake_timeout: float = 1.0
    """Seconds to wait for the other side's handshake once connected."""

    connection_timeout: float = 2.0
    """Seconds to establish a connection."""

    transparent_reconnect: bool = True
    """Whether sessions survive their connections; each side decides for itself."""

    backoff_base: float = 0.15
    """Upper bound in seconds of the wait before the second attempt in a row, doubled for each
    further one. Each wait is drawn between 0 and its bound, so that clients do not all return at
    once."""

    backoff_jitter: float = 0.2
    """Seconds added to the upper bound of each wait. With 0, each wait is exactly its bound."""

    backoff_max: float = 32.0
    """Maximum seconds between attempts, without jitter. Attempts continue without end. While a call
    waits or a grace period runs, they come sooner: every two seconds, and before half of the grace
    period."""

    max_size: int = 16 * MIB
    """Maximum size in bytes of one value that a call sends (an init, a request or a response), as
    encoded by the codec. A larger one raises ``EncodeError``, and nothing is sent. Use the same on
    both ends: a received message above this size, up to four times it, ends only its call, with
    ``RiverError``; a larger one ends its connection, and the second time its session. From 16 KiB
    to 1 GiB."""

    send_buffer_messages: int | None = None
    """Unacknowledged messages, of all calls together, at which writers wait. By default 1,024 at a
    server, and 65,536 at a client, since other implementations acknowledge an upload only once per
    heartbeat. A peer loses its session if it provokes 32 times as many, or 32,768 more, without
    acknowledging them: at a server, all that is sent counts, at a client what answers the server by
    itself, and none of its calls, of which any number may be pending."""

    send_buffer_bytes: int | None = None
    """The same in bytes: by default 16 MiB at a server, and 64 MiB at a client. The result of an
    rpc or upload does not wait. Instead, a server starts no further call of a session that has so
    many bytes to acknowledge, until it does: beyond them are at most the results of the calls that
    run by then, up to ``workers``. What a peer provokes without a call, such as refusals, may be
    four times as much; beyond that it loses its session."""

    unread_bytes: int = 32 * MIB
    """Maximum of unread bytes of one call, its messages as received, without the newest one, which
    may be of any size; beyond it the call is cancelled. Messages are acknowledged before they are
    read, since River acknowledges all calls of a session together: a writer does not wait for a
    slow reader."""

    unread_messages: int | None = None
    """The same in messages; by default, any number."""

    ack_messages: int = 64
    """Received messages after which an ACK is sent, if nothing was sent meanwhile."""

    ack_bytes: int = MIB
    """The same in bytes."""

    tombstones: int = 200
    """Refused or cancelled streams remembered per session, so that the client is told once."""

    max_streams: int = 1024
    """Maximum of open calls per session at a server; further ones are refused."""

    worker_timeout: float = 10.0
    """Seconds that a call waits at a server for a worker before it is refused."""

    max_sessions: int = 10_000
    """Maximum of sessions of a server, including those without a connection; more are refused."""

    newcomer_wins: bool = False
    """What a server does when a client connects with a new session and the id of a client that is
    connected. By default the connected client is asked for a sign of life, and stays if it answers.
    True ends its session at once, as other implementations do: two live clients with the same id
    then keep ending each other's calls, and so can anyone who knows the id of a client."""

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
        # Leaves room for the protocol's own messages, and fits in a 32-bit length.
        if not 16 * KIB <= self.max_size <= KIB * MIB:
            raise ValueError(
                f"Options.max_size must be from 16 KiB to 1 GiB, but is {self.max_size!r}"
            )
