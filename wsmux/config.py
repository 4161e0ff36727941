"""Name every limit of a connection, with its unit and its reason."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from dataclasses import dataclass, fields

from .runtime.arguments import strings
from .runtime.ip_addresses import Proxies

__all__ = ["Config", "Recording", "Unchosen"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """What ``Config(recording=...)`` takes: connections made with it keep their last frames.

    The heads are kept, in memory: when, which way, stream, type, length, credit, code. What the
    connection carries is not, unless ``payload`` is given. Kept at both ends, heads cost pings,
    openings and bulk 4 to 6 %; whole frames cost bulk an eighth.

    A connection that ends abnormally, with anything but ``ConnectionClosedOK``, hands its recording
    to ``to``, in its I/O thread, after every thread that waited on it has been woken. Any
    connection tells it by ``dump_recording()``, whenever it is asked. It is text: JSON, a line for
    each frame after a first line about the connection. ``wsmux inspect`` shows it, ``wsmux replay``
    runs it against a handler.
    """

    frames: int = 1024
    """Frames kept in each direction, 64 bytes each (whole ones 250 more); the oldest go."""

    payload: int | None = None
    """Bytes of whole frames kept in each direction, what they carry among them; the oldest go.
    ``None`` keeps heads only. Whoever reads the recording reads what the connection carried."""

    to: str | os.PathLike[str] | Callable[[str], object] | None = None
    """A directory, which must exist, for a file each; or what is called with the text. What it
    raises is logged."""

    files: int = 100
    """Recordings kept in the directory, of all processes; the oldest go."""

    def __post_init__(self) -> None:
        for name in ("frames", "payload", "files"):
            value = getattr(self, name)
            if value is None and name == "payload":
                continue
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"Recording.{name} must be a whole number above 0, not {value!r}")
        if not (self.to is None or callable(self.to) or isinstance(self.to, str | os.PathLike)):
            raise ValueError(f"Recording.to must be a directory or callable, not {self.to!r}")


KIB = 1024
MIB = 1024 * KIB


class Unchosen(int):
    """A default that a server lowers where it takes fewer connections than by default."""

    def within(self, taken: int) -> int:
        """Return it for a server of so many connections: half of them at most, and 1 at least."""
        return max(1, min(self, taken // 2))


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Hold the limits of one connection, and of a server where that is said; frozen, checked.

    Sizes are bytes, durations are seconds, ``None`` means no limit. Every instance may be shared
    by any number of connections and threads.
    """

    receive_window: int = 256 * KIB
    """Unread bytes a peer may send per stream, at first. 256 KiB keeps the tail latency of small
    messages under bulk at half of what 1 MiB costs. On ``wsmux`` and ``yamux`` a window grows where
    its reader keeps up and the path is what holds it up, by up to ``max_connection_buffer // 2``
    in all; on ``yamux`` it is at least 256 KiB."""

    max_frame_size: int = 64 * KIB
    """Most bytes of one stream before another is served: the quantum of fair queueing. This size
    lets streams interleave; below 32 KiB the cost per message shows. Where the socket sends less
    than 8 MB/s, the quantum is what it sends in 8 ms, but at least 16 KiB."""

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
    throughput with 8 writers, 1 MiB delays large messages. Up to 16 KiB of a stream that has
    nothing else queued go before the rest, and together ``max_frame_size`` beyond the bound."""

    max_control_frames: int = 1000
    """Answers the peer provoked that wait for the socket; the connection ends beyond it. As
    Envoy."""

    max_control_bytes: int = 256 * KIB
    """The same in bytes."""

    max_empty_frames: int = 128
    """Frames in five seconds that change nothing, such as empty data and credit of 0; the
    connection ends with 1008 beyond it, as beyond each of the next four. As zmuxio."""

    max_pings: int = 128
    """Pings, and pongs nobody asked for, in five seconds; a further one for each KiB that comes
    along, and for each stream. As zmuxio. A client that measures in a loop needs more."""

    max_updates_per_frame: int = 10
    """Grants of credit for each data frame sent: ``5 + 2 * (streams + 10 * frames)`` in all. As
    Envoy. A peer that reads byte by byte and grants each one needs more."""

    max_resets: int = 1000
    """Streams at once that the peer opened and then reset, or gave cause to refuse or reset. As
    nghttp2."""

    reset_rate: float = 33.0
    """Further ones per second. As nghttp2."""

    max_connection_buffer: int = 16 * MIB
    """Bytes received and held for a connection: unread ones of all streams, and what has come of
    messages that are not whole. From three quarters on, new streams get the smallest window; beyond
    it the stream that holds most is reset, or, where a message that is not whole holds more, the
    connection ends with 1008. On ``yamux``, where each stream may hold 256 KiB unasked, that is
    allowed for as many streams as there are."""

    max_process_buffer: int = 256 * MIB
    """The same for all connections of the process, those of River and RMB among them as far as
    messages are not whole: the largest of all goes. While there is more, connections that wait for
    the rest of a message read no further."""

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

    half_open_timeout: float | None = 300.0
    """Seconds that a stream may stand still when one of its halves has ended and the peer is to
    move; then it is reset, an eighth of that later at most. As Yamux. A stream whose bytes wait
    for this side, or whose answer this side is still to write, may stand still for ever."""

    message_timeout: float | None = 30.0
    """Seconds that one message or frame may take to arrive, an eighth more at most; then the
    connection ends with 1008. A slow link of 35 KB/s takes the longest message in it."""

    stall_timeout: float | None = 30.0
    """Seconds in which the peer's system takes no byte while some are waiting for it, an eighth
    more at most; then the connection ends with 1008. One that takes few goes on."""

    tcp_user_timeout: float | None = 30.0
    """Seconds after which the system gives up a TCP connection that does not acknowledge what was
    sent (``TCP_USER_TIMEOUT``), or, when nothing is under way, its probes (``SO_KEEPALIVE``).
    Without it a writer waits about a quarter of an hour for a dead path."""

    handshake_timeout: float = 10.0
    """Seconds for the whole handshake, whatever the number of reads it takes."""

    max_handshake_size: int = 64 * KIB
    """Bytes of the request or response head."""

    max_handshake_buffer: int | None = 4 * MIB
    """Bytes of all the request heads of a server that have not come whole. Beyond it the one that
    holds most for longest is refused with 503. 64 of the longest fit, or 4,096 of 1 KiB."""

    max_handshakes_per_address: int | None = Unchosen(128)
    """Connections of one address to a server whose request head has not come whole; further ones
    get 429. Enough for an office of hundreds whose clients all come back at once, as a head takes
    a round trip or three; an eighth of what a server takes by default. The default follows
    ``max_connections`` as that of ``max_connections_per_address`` does. Not counted are
    ``trusted_proxies``, and what ``max_connections_per_address`` does not count."""

    max_connections_per_address: int | None = Unchosen(512)
    """Connections of one address to a server, those in their handshake included; further ones get
    429. The default is half of what a server takes by default, and where its ``max_connections`` is
    smaller, half of that, but 1 at least; a number that you give holds as it is. How many a WSGI
    server takes is not known, so there the default is 512 whatever it takes: give a number that
    fits. An address is one of IPv4 or a /64 network of IPv6.
    What comes from 127.0.0.1, ::1 or over a Unix socket is not counted: all the clients of a proxy
    on this machine do. A proxy elsewhere counts as one address unless ``trusted_proxies`` names it.
    Under a WSGI server each process counts for itself."""

    trusted_proxies: Collection[str] = ()
    """IP networks of the reverse proxies before a server, such as ``["10.0.0.0/8", "::1"]``, and
    ``"unix"`` for one that comes over a Unix socket. Their clients are counted by the address that
    ``X-Forwarded-For`` names, else ``Forwarded``: the rightmost that is no trusted proxy. Name only
    proxies that write one of these headers, and drop or extend what a client sends of both."""

    close_timeout: float = 10.0
    """Seconds that ``close()`` waits for the peer's part of the closing handshake, by default."""

    stream_timeout: float | None = None
    """What ``stream.timeout`` starts as."""

    recording: Recording | None = None
    """What a flight recorder keeps of the connection; none runs by default. River's and RMB's
    connections have none."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name == "trusted_proxies":
                self._check_proxies()
                continue
            if field.name == "recording":
                if not (value is None or isinstance(value, Recording)):
                    raise ValueError(f"Config.recording must be a Recording, not {value!r}")
                continue
            if value is None and "None" not in str(field.type):
                raise ValueError(f"Config.{field.name} cannot be None")
            if value is not None and not value > 0:
                raise ValueError(f"Config.{field.name} must be above 0, not {value!r}")
            whole = str(field.type).startswith("int") and value is not None
            if whole and not isinstance(value, int):
                raise ValueError(f"Config.{field.name} must be a whole number, not {value!r}")
        if self.receive_window > MAX_WINDOW:
            raise ValueError(f"Config.receive_window must fit 32 bits, not {self.receive_window!r}")
        if self.max_frame_size + MAX_HEAD > self.max_message_size:
            raise ValueError("Config.max_message_size must exceed max_frame_size by 16")

    def _check_proxies(self) -> None:
        proxies = strings("trusted_proxies", self.trusted_proxies, "10.0.0.0/8")
        try:
            Proxies(proxies)
        except ValueError as error:
            raise ValueError(f"Config.trusted_proxies: {error}") from error
        object.__setattr__(self, "trusted_proxies", proxies)  # not what a user may change


# The ACK body of the founding text is a uint32.
MAX_WINDOW = 2**32 - 1

# Longest id (8) with type (2) and length (4) that stands before a payload, rounded up.
MAX_HEAD = 16

# What a new stream gets while memory is short; small enough for 1,024 streams in 16 MiB.
SMALLEST_WINDOW = 16 * KIB
