"""Serve datasets, topics, calls and streams on one port.

A WebSocket without a subprotocol carries River calls; one that offers ``wsmux.v1`` carries streams,
each with a header in its first line (``protocol``). Several processes may serve one directory, on
one port (``shared``) or behind a load balancer.

::

    with wsmux.spark.serve_data("/srv/data", port=8765) as server:
        server.serve_forever()
"""

from __future__ import annotations

import os
import socket
import ssl
import time
from collections.abc import Iterable, Mapping
from typing import Any, TypedDict, Unpack

from ...config import MIB, Config, Resume
from ...endpoints.acceptor import DRAIN, MAX_CONNECTIONS, listen
from ...endpoints.connection_options import ConnectionOptions, resume_options
from ...handshake.access import Access, TokenCheck, is_loopback
from ...rpc import RpcHandler, Service, Serving, SessionInfo, handler
from ...runtime.arguments import check_seconds
from ...runtime.deadline import Deadline
from ...runtime.logs import logger
from ...runtime.threads import daemon_thread
from ...server import Server
from ..protocol import INGEST, READ, WRITE
from ..store.base import DAY, DatasetStore, Retention, TopicStore
from ..store.datasets import DeltaDatasets
from ..store.directory import is_address
from ..topics.sqlite_topics import SqliteTopics
from .arrow_stream import Limits
from .ingest_stream import GroupCommit, IngestStream
from .named_streams import Handler, NamedStream, NamedStreams, ReadStream, WriteStream
from .services import DatasetService, TopicService

__all__ = ["DataServer", "Stores", "serve_data"]


# Handlers of calls running at once; a subscription to a topic occupies one while it lasts.
CALL_WORKERS = 1024

# Streams of one connection served at once, each by a thread that is made when it is needed: all
# that a connection may have.
STREAM_WORKERS = 1024

# Seconds between sweeps; fewer if the stores' time to live is shorter.
SWEEP = 30.0

# Bulk data over a slow link needs a larger window than ordinary connections.
WINDOW = MIB

# What those need who want topics beside datasets in S3.
_TOPICS = 'pass topics=SqliteTopics("/srv/topics"), or RedisTopics("redis://...")'

_log = logger("wsmux.spark")


class Stores(TypedDict, total=False):
    """Define the options with which ``serve_data`` makes stores."""

    storage_options: Mapping[str, str]
    """What reaches an s3:// address, as delta-rs has it; environment variables count too."""
    ttl: float
    """Seconds to keep staged parts, replaced versions and ids of transactions; default a day."""
    retention: Retention
    """How much topics keep; everything by default."""
    sync: bool
    """False skips the fsyncs that make commits survive a crash of the machine."""
    lock_timeout: float
    """Seconds that a change waits for concurrent ones before it fails with BUSY; default 30."""
    auto_optimize: int | None
    """Small files of a dataset that are joined in the background once there are so many; default
    250, ``None`` never does so."""


class DataServer(Server):
    """Serve stores until ``shutdown``; usually made by ``serve_data``.

    Args:
        listener: a listening socket; owned by the server.
        datasets, topics: the stores to serve; either may be omitted.
        token: the access check; see ``Access``.
        services: further River services.
        streams: further streams by name; each a function of the stream and its header, or a
            ``NamedStream``.
        limits: the bounds of record batches.
        ingest: how the rows of ingest clients are gathered for a commit.
        config: the limits of connections that carry streams.
        stream_timeout: seconds that a read or write of a stream may block.
        sweep: seconds between sweeps of the stores.
        workers: streams of one connection served at once, each by a thread; the ingest
            clients of a process have one for each dataset.
        origins, ssl_context, max_connections: as for ``wsmux.serve``.
        resume: let connections for streams go on after a cut, see ``wsmux.serve``. Not by default:
            a task that was killed holds its streams for as long, and who follows it may wait.
        rpc: the options of River calls; see ``rpc.Serving``.

    Attributes:
        host, port, url: the listening address.
        connections: the open connections that carry streams.
        rpc: the handler of River calls.

    Raises:
        ValueError: a name is taken, or a token or an origin is invalid.
        TypeError: tokens or origins are not a collection of strings.
    """

    def __init__(
        self,
        listener: socket.socket,
        *,
        datasets: DatasetStore | None = None,
        topics: TopicStore | None = None,
        token: TokenCheck | None = None,
        services: Iterable[Service] = (),
        streams: Mapping[str, Handler | NamedStream] | None = None,
        limits: Limits | None = None,
        ingest: GroupCommit | None = None,
        config: Config | None = None,
        stream_timeout: float | None = DAY,
        sweep: float = SWEEP,
        workers: int = STREAM_WORKERS,
        origins: Iterable[str] | None = None,
        ssl_context: ssl.SSLContext | None = None,
        max_connections: int = MAX_CONNECTIONS,
        resume: Resume | bool = False,
        rpc: Serving | None = None,
    ) -> None:
        access = Access(token)
        check_seconds(sweep=sweep, stream_timeout=DAY if stream_timeout is None else stream_timeout)
        self._own = _own_streams(datasets, topics, limits or Limits(), ingest or GroupCommit())
        self._topics = topics
        self._stores = [store for store in (datasets, topics) if store is not None]
        connection_options = ConnectionOptions(
            config=config or Config(receive_window=WINDOW),
            stream_handler=_streams(self._own, streams or {}, stream_timeout),
            workers=workers,
            resume=resume_options(resume),
        )
        offered = [*services]
        offered += [DatasetService(datasets)] if datasets is not None else []
        offered += [TopicService(topics)] if topics is not None else []
        calls: Serving = {"workers": CALL_WORKERS, **(rpc or {})}
        self.rpc: RpcHandler = handler(offered, **calls)
        self._sweeper = daemon_thread(target=self._sweep, args=(sweep,), name="wsmux-data-sweeper")
        try:
            super().__init__(
                None,
                listener,
                connection_options,
                protocols=("wsmux",),
                transport="websocket",
                origins=origins,
                ssl_context=ssl_context,
                max_connections=max_connections,
                access=access,
            )
        except BaseException:
            self.rpc.shutdown(0)
            raise
        self._sweeper.start()

    def __repr__(self) -> str:
        return f"<DataServer {self.url} connections={len(self.connections)}>"

    def list_sessions(self) -> list[SessionInfo]:
        """Return ``rpc.list_sessions()``."""
        return self.rpc.list_sessions()

    def shutdown(self, timeout: float | None = DRAIN) -> None:
        """Stop accepting, let streams end for ``timeout`` seconds, then close the rest.

        Pending calls end with UNEXPECTED_DISCONNECT. Committed data is safe.
        """
        self._shut_down_once(timeout)

    def _take_leave(self, deadline: Deadline) -> None:
        ingest = self._own.get(INGEST)
        if isinstance(ingest, IngestStream):
            ingest.stop()
        super()._take_leave(deadline)

    def _end(self, deadline: Deadline) -> None:
        closing = self._end_connections(deadline)
        self.rpc.shutdown(closing.remaining())
        self._join_threads(closing)
        if self._topics is not None:
            self._topics.close()
        self._sweeper.join(closing.remaining())
        if self._topics is not None:
            self._topics.close()  # what the sweeper has opened since

    def _take(self, sock: socket.socket, environ: dict[str, Any], offered: list[str]) -> bool:
        if offered:
            return False
        self.rpc.serve_socket(self._upgrade(sock, environ, None), websocket=True)
        return True

    def _sweep(self, seconds: float) -> None:
        while not self._stopping.wait(seconds):
            for store in self._stores:
                try:
                    store.expire(time.time())
                except Exception:
                    _log.exception("sweeping %r failed", store)


def _own_streams(
    datasets: DatasetStore | None, topics: TopicStore | None, limits: Limits, ingest: GroupCommit
) -> dict[str, Handler | NamedStream]:
    """Return the streams of the stores."""
    found: dict[str, Handler | NamedStream] = {}
    if datasets is not None or topics is not None:
        found[READ] = ReadStream(datasets, topics, limits)
        found[WRITE] = WriteStream(datasets, topics, limits)
    if datasets is not None:
        found[INGEST] = IngestStream(datasets, ingest)
    return found


def _streams(
    own: Mapping[str, Handler | NamedStream],
    streams: Mapping[str, Handler | NamedStream],
    timeout: float | None,
) -> NamedStreams:
    """Return the handler of all streams."""
    taken = sorted(own.keys() & streams.keys())
    if taken:
        raise ValueError(f"the stream name {taken[0]!r} is reserved; choose another name")
    return NamedStreams({**streams, **own}, timeout)


class Serve(Stores, total=False):
    """Define further options of ``serve_data``; see ``DataServer``."""

    datasets: DatasetStore
    topics: TopicStore
    services: Iterable[Service]
    streams: Mapping[str, Handler | NamedStream]
    limits: Limits
    ingest: GroupCommit
    config: Config
    stream_timeout: float | None
    sweep: float
    workers: int
    origins: Iterable[str]
    ssl_context: ssl.SSLContext
    max_connections: int
    resume: Resume | bool
    rpc: Serving


def serve_data(
    directory: str | os.PathLike[str] | None = None,
    host: str = "127.0.0.1",
    port: int = 0,
    *,
    token: TokenCheck | None = None,
    shared: bool = False,
    **options: Unpack[Serve],
) -> DataServer:
    """Listen and serve datasets and topics in background threads; return the running server.

    Args:
        directory: where to store them, each dataset as a Delta table; if omitted, in temporary
            directories. Or pass your own stores as ``datasets`` and ``topics``; with a directory,
            ``topics`` alone, such as ``RedisTopics``, which servers of several hosts share. With
            ``s3://BUCKET/PREFIX`` datasets are there, and there are no topics unless you pass them.
        host, port: where to listen; port 0 takes a free one, available as ``server.port``.
        token: what clients must send as ``Authorization: Bearer TOKEN``: a string, several, or a
            function that returns whether a token is valid. Required unless the address is loopback.
        shared: let other processes listen on the same port, for the same directory. Leave
            ``resume`` out then: a client that comes back may reach another process.
        options: see ``Stores`` and ``DataServer``.

    Raises:
        ValueError: an argument is invalid, or is for topics, and those cannot be in S3.
        OSError: the address cannot be listened on, or the directory cannot be used.
        RiverError: CORRUPT; the directory holds something else. STORE_FAILED; S3 cannot be used,
            and why. ImportError: ``obstore`` is not there, which S3 needs.
    """
    if token is None and not is_loopback(host):
        raise ValueError(f"{host} can be reached from other machines: a token is required")
    stores: dict[str, Any] = {
        name: options.pop(name)  # type: ignore[misc]
        for name in Stores.__annotations__
        if name in options
    }
    serving: dict[str, Any] = dict(options)
    own = serving.keys() & {"datasets", "topics"}
    objects = directory is not None and is_address(directory)
    if isinstance(serving.get("topics"), str | os.PathLike):
        raise ValueError(f"topics={serving['topics']!r:.200} is no store: {_TOPICS}")
    if directory is not None and "datasets" in own:
        raise ValueError("directory and datasets exclude each other")
    if directory is None and stores and own:
        raise ValueError(f"{', '.join(stores)}: set these on your own stores")
    if "retention" in stores and "topics" in own:
        raise ValueError("retention: set it on your own topics")
    if "retention" in stores and objects:
        raise ValueError(f"retention is for topics, and there are none in S3: {_TOPICS}")
    if directory is not None or not own:
        if "topics" not in own and not objects:
            not_theirs = ("auto_optimize", "storage_options")
            serving["topics"] = SqliteTopics(directory, **_but(stores, *not_theirs))
        serving["datasets"] = DeltaDatasets(directory, **_but(stores, "retention"))
    serving.setdefault("sweep", min(SWEEP, stores.get("ttl", DAY)))
    listener = listen(host, port, shared=shared)
    try:
        return DataServer(listener, token=token, **serving)
    except BaseException:
        listener.close()
        raise


def _but(options: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name not in names}
