"""Define every limit of a connection, with its unit and the reason for its default."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, fields

from .runtime.arguments import strings
from .runtime.ip_addresses import Proxies

__all__ = ["Config", "Recording", "Resume", "Unchosen", "UserLimits"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """Configure the flight recorder, which keeps the last frames of a connection.

    Pass it as ``Config(recording=...)``. In memory it keeps frame headers: time, direction, stream,
    type, length, credit and code. Payloads are kept only if ``payload`` is given. With both ends
    recording, headers cost pings, opens and bulk 4 to 6 %; whole frames cost bulk an eighth.

    When a connection ends abnormally, that is with anything but ``ConnectionClosedOK``, its
    recording goes to ``to``, from its I/O thread, after all threads waiting on the connection have
    been woken. ``dump_recording()`` returns the recording of any connection at any time. It is JSON
    text: a first line about the connection, then one line per frame. ``wsmux inspect`` shows it,
    ``wsmux replay`` runs it against a handler.
    """

    frames: int = 1024
    """Frames kept in each direction, at 64 bytes each (250 more for a whole frame); the oldest are
    dropped."""

    payload: int | None = None
    """Bytes of whole frames, including their payload, kept in each direction; the oldest are
    dropped. ``None`` keeps headers only. Anyone who can read the recording can read the payload."""

    to: str | os.PathLike[str] | Callable[[str], object] | None = None
    """An existing directory, in which each recording becomes a file, or a function called with the
    text. Exceptions it raises are logged."""

    files: int = 100
    """Recordings kept in the directory, over all processes; the oldest are deleted."""

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


# More than a few of the largest frames, and what fits the field of the handshake.
LEAST_RESUME_BUFFER, LARGEST_RESUME_BUFFER = 256 * KIB, 2048 * MIB


# With the name of a socket behind it, it must fit the 104 or 108 bytes of an address.
LONGEST_WORKERS = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class Resume:
    """Configure resumable connections, which outlive the sockets that carry them.

    While there is no socket, streams stay open, reads wait, writes wait once the buffers are full,
    and timeouts run on. A client connects again by itself; what the peer has not received is sent
    again. Both processes must live on: a server that was restarted does not know the session, and
    then every call raises ``ResumeLost``, as after ``grace``.
    """

    grace: float = 60.0
    """Seconds for which a side keeps a connection without a socket. A client gives up no later than
    its server."""

    buffer: int = 4 * MIB
    """Bytes sent and not yet acknowledged by the peer; beyond it writers wait as for a full socket.
    Throughput is at most this much for each round trip. Written data is not copied, but kept. With
    1 MiB, a writer on a fast path waits for acknowledgements."""

    max_detached: int = 1000
    """Connections of a server that may be without a socket at once; beyond it the one that has been
    so for longest is lost."""

    workers: str | os.PathLike[str] | None = None
    """A directory that the processes of a server share, such as the workers of gunicorn, if clients
    reach any of them: whichever it is passes the client's socket to the one that has its session.
    All have the same user and host; nobody else may have access to the directory, which is made.
    ``None`` for a server of one process. Clients do not use it."""

    def __post_init__(self) -> None:
        self._check_workers()
        if not isinstance(self.grace, int | float) or not 0 < self.grace <= MAX_GRACE:
            raise ValueError(
                f"Resume.grace must be above 0 s and at most {MAX_GRACE} s, not {self.grace!r}"
            )
        bounds = {
            "buffer": (LEAST_RESUME_BUFFER, LARGEST_RESUME_BUFFER),
            "max_detached": (1, 2**31),
        }
        for name, (least, most) in bounds.items():
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
                raise ValueError(
                    f"Resume.{name} must be a whole number from {least} to {most}, not {value!r}"
                )

    def _check_workers(self) -> None:
        workers = self.workers
        if workers is None:
            return
        if not isinstance(workers, str | os.PathLike) or not os.fspath(workers):
            raise ValueError(
                f'Resume.workers must be a directory, such as "/run/app/sessions", not {workers!r}'
            )
        if len(os.fsencode(workers)) > LONGEST_WORKERS:
            raise ValueError(
                f"Resume.workers must be a path of at most {LONGEST_WORKERS} bytes, as the system "
                f"limits the names of sockets, not {workers!r}"
            )


# Characters of a namespace, which is part of each key in Redis.
MAX_NAMESPACE = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class UserLimits:
    """Limit the connections and streams of each user; ``authorize=`` says who that is.

    Each ``Mux`` or server counts for itself, over all its routes and connections, and without
    ``redis`` each process too. Clients without a name, for which ``authorize`` has returned
    ``True``, are not counted. What has not been used of a minute may be used at once.
    """

    connections: int | None = None
    """Connections that a user may have open; a further one gets 429 before the upgrade. A client
    that returns to a resumable connection takes no place."""

    connects_per_minute: int | None = None
    """Connections that a user may begin, ended or open; a further one gets 429, with the seconds
    to wait in ``Retry-After``. Refused ones do not count. A WebSocket over which a client returns
    to a resumable connection does not either, up to ten times as many in a minute; one by which it
    asks for a connection that does not exist does."""

    streams_per_minute: int | None = None
    """Streams that a user may open, over all connections; a further one is refused, which raises
    ``StreamRefused`` at its opener where the wire has a word for that."""

    max_users: int = 10_000
    """Users without a connection that are remembered for a minute. Of more, those who left first
    are forgotten, and begin anew. About 250 bytes each, and their names."""

    redis: str | None = field(default=None, repr=False)
    """The URL of a Redis, such as ``redis://host/0``, through which all processes that name it
    count together; it needs the extra ``cluster``. While it does not answer, each counts for
    itself, and no client waits for it for more than half a second. The connections of a process
    that was killed leave the count within 15 s. Streams that several processes take within 50 ms
    may together be too many; then the user waits the longer afterwards."""

    namespace: str = "default"
    """Those who share a Redis count together where this is the same."""

    def __post_init__(self) -> None:
        if self.redis is not None and not (
            isinstance(self.redis, str)
            and self.redis.startswith(("redis://", "rediss://", "unix://"))
        ):  # the value is not told: it may have a password
            raise ValueError(
                "UserLimits.redis must be a redis://, rediss:// or unix:// URL, such as "
                "redis://localhost:6379/0"
            )
        if not (isinstance(self.namespace, str) and 0 < len(self.namespace) <= MAX_NAMESPACE):
            raise ValueError(
                f"UserLimits.namespace must be a text of 1 to {MAX_NAMESPACE} characters, not "
                f"{self.namespace!r:.200}"
            )
        for name in ("connections", "connects_per_minute", "streams_per_minute", "max_users"):
            value = getattr(self, name)
            if value is None and name != "max_users":
                continue
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"UserLimits.{name} must be a whole number above 0, not {value!r}")


class Unchosen(int):
    """A default that is lowered for a server that accepts fewer connections than the default."""

    def within(self, taken: int) -> int:
        """Return the default for ``taken`` connections: at most half of them, at least 1."""
        return max(1, min(self, taken // 2))


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Hold the limits of a connection, and some of a server; frozen and validated.

    Sizes are bytes, durations are seconds, ``None`` means no limit. An instance may be shared by
    any number of connections and threads.
    """

    receive_window: int = 256 * KIB
    """Initial limit of unread bytes per stream. 256 KiB keeps the tail latency of small messages
    under bulk at half of that with 1 MiB. On ``wsmux`` and ``yamux``, a window grows if its reader
    keeps up and the latency of the path limits it, by up to ``max_connection_buffer // 2`` over all
    streams; on ``yamux`` it is at least 256 KiB."""

    max_frame_size: int = 64 * KIB
    """Bytes of one stream to send before another stream is served: the quantum of fair queueing.
    This size lets streams interleave; below 32 KiB the cost per message shows. If the socket sends
    less than 8 MB/s, the quantum is what it sends in 8 ms, but at least 16 KiB."""

    max_message_size: int = MIB
    """Longest message accepted; longer ones are refused with 1009 as soon as their header is read.
    As in ``websockets``. Where messages form a byte stream (``yamux``, ``bymux``), longer ones are
    read in pieces."""

    max_fragments: int = 1024
    """Most fragments of one message, so that tiny fragments cannot use much memory."""

    max_streams: int = 1024
    """Streams the peer may have open at once; further ones are refused. About 1 KiB each."""

    max_unaccepted: int = 256
    """Streams opened by the peer and not yet accepted; further ones are refused. As in Yamux."""

    max_pending_opens: int = 256
    """Streams opened here that the peer has not acknowledged; beyond it ``open_stream`` blocks, so
    that the accept queue of a well-behaved peer does not overflow. With fewer than 4 it may block
    for up to 20 ms, for which the answers to 3 openings may wait for another message."""

    max_cancelled: int = 1024
    """Stream ids remembered after this side stopped reading while the peer still writes; the oldest
    are dropped."""

    max_send_queue: int = 256 * KIB
    """Bytes queued for the socket; beyond it writers block. 64 KiB loses up to a third of the
    throughput with 8 writers, 1 MiB delays large messages. Small writes (up to 16 KiB) on streams
    with nothing queued skip the queue; together they may exceed the limit by ``max_frame_size``."""

    max_control_frames: int = 1000
    """Queued answers to frames of the peer; beyond it the connection ends. As in Envoy."""

    max_control_bytes: int = 256 * KIB
    """The same limit in bytes."""

    max_empty_frames: int = 128
    """Frames per five seconds that change nothing, such as empty data or credit of 0. If this or
    any of the next four limits is exceeded, the connection ends with 1008. As in zmuxio."""

    max_pings: int = 128
    """Pings and unsolicited pongs per five seconds; each KiB of data received and each stream
    allows one more. As in zmuxio. A client that measures in a loop needs more."""

    max_updates_per_frame: int = 10
    """Credit grants for each data frame sent: ``5 + 2 * (streams + 10 * frames)`` in all. As in
    Envoy. A peer that reads byte by byte and grants credit for each needs more."""

    max_resets: int = 1000
    """Burst of streams that the peer opened and then reset, or caused this side to refuse or reset.
    As in nghttp2."""

    reset_rate: float = 33.0
    """Further such streams per second. As in nghttp2."""

    max_connection_buffer: int = 16 * MIB
    """Bytes buffered for a connection: unread bytes of all streams, and the received part of
    incomplete messages. Above three quarters of it, new streams get the smallest window. Beyond it,
    the stream with the most unread bytes is reset or, if an incomplete message holds more, the
    connection ends with 1008. On ``yamux``, where each stream may always hold 256 KiB, the limit is
    at least that times the number of streams."""

    max_window_bytes: int | None = None
    """Bytes of all windows together, and unread bytes of streams that have ended. Beyond it no
    window grows, and new streams get the smallest one, 16 KiB; and a stream of the peer counts for
    ``max_streams`` until all of it was read. ``None`` counts no windows, so that streams whose
    readers are slow may reach ``max_connection_buffer``. They do not if that is above the sum of
    this and ``max_streams`` smallest windows for each direction: then slow readers make writers
    wait, and reset no stream, as between the processes of a cluster. On ``yamux`` the smallest
    window is 256 KiB."""

    max_process_buffer: int = 256 * MIB
    """The same for all connections of the process, including incomplete messages of River and RMB;
    the largest holder gives way. While it is exceeded, connections that hold 16 KiB or more of an
    incomplete message stop reading."""

    ping_interval: float | None = 20.0
    """Seconds without a byte from the peer before a ping is sent; below the 60 s after which most
    proxies drop a connection."""

    ping_timeout: float | None = 20.0
    """Further seconds without a byte after which the connection is considered lost."""

    idle_timeout: float | None = None
    """Seconds without an open stream after which the connection is closed with 1000. Off by
    default, since clients commonly keep a connection for later use."""

    open_timeout: float | None = 10.0
    """Seconds a stream opened by the peer may wait to be accepted before it is refused, so that
    calls nested more deeply than there are workers end in a typed refusal."""

    half_open_timeout: float | None = 300.0
    """Seconds without progress after which a half-closed stream is reset if it is the peer's turn;
    up to an eighth more. As in Yamux. A stream with bytes that this side has not read, or whose
    answer this side has yet to write, may remain idle indefinitely."""

    message_timeout: float | None = 30.0
    """Seconds one message or frame may take to arrive, up to an eighth more; then the connection
    ends with 1008. Enough for the longest message over a link of 35 KB/s."""

    stall_timeout: float | None = 30.0
    """Seconds the peer's system may accept no bytes while some are queued, up to an eighth more;
    then the connection ends with 1008. Accepting even a few bytes resets the time."""

    tcp_user_timeout: float | None = 30.0
    """Seconds after which the operating system gives up a TCP connection that does not acknowledge
    sent data (``TCP_USER_TIMEOUT``) or, if none is in flight, its keepalive probes
    (``SO_KEEPALIVE``). Without it, a writer on a dead path blocks for about a quarter of an
    hour."""

    handshake_timeout: float = 10.0
    """Seconds for the whole handshake, however many reads it takes."""

    max_handshake_size: int = 64 * KIB
    """Bytes of the head of a request or response."""

    max_handshake_buffer: int | None = 4 * MIB
    """Bytes of all incomplete request heads of a server. Beyond it, the one with the largest
    product of size and age is refused with 503. Room for 64 of the longest, or 4,096 of 1 KiB."""

    max_handshakes_per_address: int | None = Unchosen(128)
    """Connections from one address to a server whose request head is incomplete; further ones get
    429. Enough for an office of hundreds whose clients all reconnect at once, since a head takes
    one to three round trips; an eighth of a server's default ``max_connections``. The default
    follows ``max_connections`` as that of ``max_connections_per_address`` does.
    ``trusted_proxies``, and the connections that ``max_connections_per_address`` does not count,
    are exempt."""

    max_connections_per_address: int | None = Unchosen(512)
    """Connections from one address to a server, including those in their handshake; further ones
    get 429. The default is half of a server's default ``max_connections``; for a server with a
    smaller ``max_connections``, half of that, but at least 1. A number given here is used
    unchanged. The capacity of a WSGI server is unknown, so there the default is always 512: give a
    number that fits. An address is an IPv4 address or a /64 network of IPv6. Connections from
    127.0.0.1, ::1 or a Unix socket are not counted, since all clients of a proxy on this machine
    come from there. A proxy elsewhere counts as one address unless it is listed in
    ``trusted_proxies``. Under a WSGI server, each process counts separately."""

    trusted_proxies: Collection[str] = ()
    """IP networks of the reverse proxies in front of a server, such as ``["10.0.0.0/8", "::1"]``,
    and ``"unix"`` for one that connects over a Unix socket. Their clients are counted by the
    address in ``X-Forwarded-For``, or else in ``Forwarded``: the rightmost that is not a trusted
    proxy. List only proxies that write one of these headers, and that drop or extend both as
    received from the client."""

    close_timeout: float = 10.0
    """Default number of seconds that ``close()`` waits for the peer's closing handshake."""

    stream_timeout: float | None = None
    """Initial value of ``stream.timeout``."""

    recording: Recording | None = None
    """Settings of the flight recorder; off by default. Connections of River and RMB are not
    recorded."""

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if each.name == "trusted_proxies":
                self._check_proxies()
                continue
            if each.name == "recording":
                if not (value is None or isinstance(value, Recording)):
                    raise ValueError(f"Config.recording must be a Recording, not {value!r}")
                continue
            if value is None and "None" not in str(each.type):
                raise ValueError(f"Config.{each.name} cannot be None")
            if value is not None and not value > 0:
                raise ValueError(f"Config.{each.name} must be above 0, not {value!r}")
            whole = str(each.type).startswith("int") and value is not None
            if whole and not isinstance(value, int):
                raise ValueError(f"Config.{each.name} must be a whole number, not {value!r}")
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
        object.__setattr__(self, "trusted_proxies", proxies)  # users cannot change it


# A month; in milliseconds it fits the 32 bits of WELCOME.
MAX_GRACE = 30 * 86400

# The body of an ACK in the native protocol is a uint32.
MAX_WINDOW = 2**32 - 1

# Id (up to 8), type (2) and length (4) in front of a payload, rounded up.
MAX_HEAD = 16

# Window of a new stream while memory is short; small enough for 1,024 streams in 16 MiB.
SMALLEST_WINDOW = 16 * KIB
