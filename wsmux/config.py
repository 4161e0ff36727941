"""Name every limit of a connection, with its unit and its reason."""

from __future__ import annotations

from dataclasses import dataclass, fields

__all__ = ["Config"]

KIB = 1024
MIB = 1024 * KIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Hold the limits of one connection; frozen, checked when made.

    Sizes are bytes, durations are seconds, ``None`` means no limit. Every instance may be shared
    by any number of connections and threads.
    """

    receive_window: int = 256 * KIB
    """Unread bytes a peer may send per stream. 256 KiB keeps the tail latency of small messages
    under bulk at half of what 1 MiB costs, at three quarters of its throughput. On ``yamux`` it is
    at least 256 KiB, and grows with the round-trip time by up to ``max_connection_buffer // 2`` in
    all."""

    max_frame_size: int = 64 * KIB
    """Most bytes of one stream in one turn. A turn of this size lets streams interleave; below
    32 KiB the cost per message shows."""

    max_message_size: int = MIB
    """Longest message accepted, refused by its header with 1009. As ``websockets``. Where messages
    are a stream of bytes (``yamux``, ``bymux``), longer ones are read in pieces."""

    max_fragments: int = 1024
    """Most fragments one message may come in, so that tiny fragments cannot cost much memory."""

    max_streams: int = 1024
    """Streams the peer may have open at once; further ones are refused. About 1 KiB each."""

    max_unaccepted: int = 256
    """Streams the peer opened that nobody has accepted yet; further ones are refused. As Yamux."""

    max_pending_opens: int = 256
    """Streams opened here that the peer has not answered; ``open_stream`` waits beyond it, so
    that a well-behaved peer's accept queue is not overrun."""

    max_cancelled: int = 1024
    """Ids kept of streams that stopped reading while the peer still writes; oldest dropped."""

    max_send_queue: int = 256 * KIB
    """Bytes waiting for the socket; writers wait beyond it. 64 KiB loses up to a third of the
    throughput with 8 writers, 1 MiB delays small messages."""

    max_control_frames: int = 1000
    """Answers the peer provoked that wait for the socket; the connection ends beyond it. As
    Envoy."""

    max_control_bytes: int = 256 * KIB
    """The same in bytes."""

    max_connection_buffer: int = 16 * MIB
    """Unread bytes of all streams of a connection. From three quarters on, new streams get the
    smallest window; beyond it the stream that holds most is reset. On ``yamux``, where each stream
    may hold 256 KiB unasked, that is allowed for as many streams as there are."""

    max_process_buffer: int = 256 * MIB
    """Unread bytes of all connections of the process, with the same two reactions."""

    ping_interval: float | None = 20.0
    """Seconds without a byte from the peer after which a ping is sent; below the 60 s after which
    most proxies cut."""

    ping_timeout: float | None = 20.0
    """Further seconds without a byte after which the connection counts as lost."""

    idle_timeout: float | None = None
    """Seconds without an open stream after which the connection is closed with 1000. Off, because
    a client that keeps a connection for later use is the ordinary case."""

    open_timeout: float | None = 10.0
    """Seconds a stream opened by the peer may wait to be accepted before it is refused, so that
    calls nested deeper than there are workers end in a typed refusal."""

    handshake_timeout: float = 10.0
    """Seconds for the whole handshake, whatever the number of reads it takes."""

    max_handshake_size: int = 64 * KIB
    """Bytes of the request or response head."""

    close_timeout: float = 10.0
    """Seconds that ``close()`` waits for the peer's part of the closing handshake, by default."""

    stream_timeout: float | None = None
    """What ``stream.timeout`` starts as."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is None and "None" not in str(field.type):
                raise ValueError(f"Config.{field.name} cannot be None")
            if value is not None and not value > 0:
                raise ValueError(f"Config.{field.name} must be above 0, not {value!r}")
            if field.type == "int" and not isinstance(value, int):
                raise ValueError(f"Config.{field.name} must be a whole number, not {value!r}")
        if self.receive_window > MAX_WINDOW:
            raise ValueError(f"Config.receive_window must fit 32 bits, not {self.receive_window!r}")
        if self.max_frame_size + MAX_HEAD > self.max_message_size:
            raise ValueError("Config.max_message_size must exceed max_frame_size by 16")


# The ACK body of the founding text is a uint32.
MAX_WINDOW = 2**32 - 1

# Longest id (8) with type (2) and length (4) that stands before a payload, rounded up.
MAX_HEAD = 16

# What a new stream gets while memory is short; small enough for 1,024 streams in 16 MiB.
SMALLEST_WINDOW = 16 * KIB
