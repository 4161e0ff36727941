"""Reach connections by name from any process, on any host; publish and subscribe.

::

    cluster = Cluster("redis://localhost")

    @mux.route("/live")
    def live(connection):
        with cluster.member(connection, f"user:{current_user.id}"):
            for stream in connection:
                ...

    with cluster.open_stream("user:42") as stream:  # in any process that uses the same Redis
        stream.write(b"hello")

Redis has the names, leases and topics; the bytes of streams never go through it. See ``links`` for
them, ``directory`` for the names, and ``topics``.

A process is a *node* from the first use of the object on, and another one after a fork. Its lease
is renewed by one thread, which also repeats what could not be told to Redis, sweeps the members of
dead nodes, and forgets connections that have ended; without Redis, those that join do the latter.
While Redis is away, streams go on and names of this process are found; others raise
``Unreachable``.
"""

from __future__ import annotations

import atexit
import json
import os
import socket
import ssl
import threading
import uuid
import weakref
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from ..diagnostics.status import STALLED_AFTER, Sources, Watched, fitting_document
from ..mux.connection import Connection
from ..mux.stream import Stream
from ..runtime import fork
from ..runtime.arguments import check_seconds
from ..runtime.backoff import Backoff
from ..runtime.closing import Closing, Ending
from ..runtime.deadline import Deadline, call_within
from ..runtime.logs import logger
from ..runtime.parking import Condition
from ..runtime.thread_pool import ThreadPool
from ..runtime.threads import daemon_thread, register, start_thread
from .errors import ClusterError, NotConnected, Unreachable
from .links import MAX_STATUS, Links, LinkServer, host_id, open_to
from .members import Members
from .positions import MAX_MESSAGE, NEW, Position, Retention, parse_position
from .records import (
    EVERY_NAME,
    Known,
    Listed,
    Node,
    NodeProcess,
    Presence,
    check_key,
    check_name,
    name_prefix,
)
from .splicer import Splicer
from .status import (
    ASKERS,
    MAX_COUNTED,
    MAX_NAMES,
    MAX_NODES,
    ClusterCounts,
    ClusterStatus,
    ask_all,
    count,
)
from .subscription import Subscription
from .topics import MemoryTopics, TopicStore

__all__ = ["Cluster"]

# Seconds of a lease, and the part of it after which it is renewed.
LEASE, RENEWED = 15.0, 3

# Members of which one step tells Redis, and which are said again with each renewal.
SAID = 500

# Members of whom Redis was not told, while it was away, that they have come or gone.
MAX_UNSAID = 100_000

# Seconds to open a stream, by default.
OPEN_TIME = 10.0

# Seconds that all nodes have to tell their status, by default.
STATUS_TIME = 2.0

# Presences that ``who`` returns, by default.
MOST = 1000

# Seconds until Redis is tried again after a failure, at most.
LONGEST_PAUSE = 2.0

LEFT = "this cluster was left: close() has been called"

_log = logger("wsmux.cluster")


class Cluster(Closing):
    """Take part in a cluster. Any thread may use it; it is a context manager that leaves.

    Args:
        url: a Redis, ``redis://host:port/number``, ``rediss://...`` or ``unix://path``, of version
            6 or later, but not a Redis Cluster. Without it, the cluster is this process alone.
        namespace: clusters of different namespaces do not know each other.
        key: a secret that all nodes share, of 16 bytes at least. It signs what nodes say of
            themselves in Redis. Needed for ``listen``.
        listen: host and port, ``"10.0.0.5:7000"``, on which nodes of other hosts reach this one;
            port 0 picks a free one. By default only nodes of this host do, by a Unix socket.
        advertise: the URL by which they reach it, if that is another one.
        server_ssl, client_ssl: TLS contexts for connections from and to nodes of other hosts.
        retention: what each topic keeps.
        lease: seconds after which a killed process is no longer found.
        connections: what ``status`` tells of this process: a ``Mux`` or ``Server`` or what else
            ``wsmux.LiveSocket`` takes, weakly held. By default, the connections that have joined.

    Raises:
        ValueError, TypeError: an argument is wrong.
        ImportError: ``url`` needs the extra ``cluster``.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        namespace: str = "default",
        key: str | bytes | None = None,
        listen: str | None = None,
        advertise: str | None = None,
        server_ssl: ssl.SSLContext | None = None,
        client_ssl: ssl.SSLContext | None = None,
        retention: Retention = Retention(),  # noqa: B008
        lease: float = LEASE,
        connections: Sources | None = None,
    ) -> None:
        check_name(namespace, "namespace")
        if not 1.0 <= lease <= 3600.0:
            raise ValueError(f"lease must be 1 to 3600 seconds, not {lease!r}")
        self._options = _Options(
            url=url,
            namespace=namespace,
            key=check_key(key),
            address=None if listen is None else _address(listen),
            advertise=advertise,
            server_ssl=server_ssl,
            client_ssl=client_ssl,
            retention=Retention(*retention),
            lease=float(lease),
            watched=None if connections is None else Watched(connections, sessions=True),
        )
        if listen is not None and key is None:
            raise ValueError("listen= needs key=, a secret that all nodes share")
        if url is not None:
            _ = self._options.client()
        self._lock = threading.RLock()  # a signal handler may close what just begins
        self._node: _Running | None = None
        self._left = False
        fork.register(self)

    def __repr__(self) -> str:
        return f"<Cluster {self._options.namespace} of {self._options.shown}>"

    def forked(self) -> None:
        """Begin as another node in a forked child; the parent goes on."""
        self._lock = threading.RLock()
        node, self._node = self._node, None
        if node is not None:
            node.forked()

    @property
    def node(self) -> str:
        """The id of this process in the cluster; it takes part from now on."""
        return self._running().id

    def close(self) -> None:
        """Leave the cluster: its members are no longer found, and their streams from others end.

        Streams to other processes and subscriptions end, too. Connections stay open. Blocks for a
        round trip to Redis, and until the threads have ended. If it is interrupted, call it again.
        In a signal handler that interrupts it, it returns at once, and the first call goes on
        behind the handler.
        """
        with self._lock:
            self._left = True
            node = self._node
        if node is not None and node.close():
            self._node = None

    def _running(self) -> _Running:
        with self._lock:
            if self._left:
                raise ValueError(LEFT)
            node = self._node
            if node is None:
                node = self._node = _Running(self._options)
                if self._left:  # by a signal handler, to which there may have been no node
                    node.close()
                    raise ValueError(LEFT)
            return node

    # Names

    def join(self, connection: Connection, name: str) -> Presence:
        """Let others find a connection under a name, until ``leave``, or until it has ended.

        Several connections may have one name, and one may have several. Blocks for a round trip to
        Redis; if that fails, it is repeated in the background.

        Raises:
            TypeError, ValueError: the name is not 1 to 256 bytes without control characters, or
                ends with ``*``.
            ClusterError: this process has 100,000 members, or 1,000 of this name.
        """
        return self._running().join(connection, check_name(name))

    def leave(self, presence: Presence) -> None:
        """End what ``join`` began; afterwards no stream is opened to the connection by the name.

        Blocks for a round trip to Redis; if that fails, it is repeated in the background.

        Raises:
            ValueError: another process has joined it, which alone can end that.
        """
        node = self._running()
        if presence.node != node.id:
            raise ValueError(
                f"{presence.name!r} was joined by node {presence.node[:8]}, and this process is "
                f"{node.id[:8]}: only that one can end it"
            )
        node.remove(presence)

    @contextmanager
    def member(self, connection: Connection, *names: str) -> Iterator[None]:
        """Let others find a connection under some names while the block lasts."""
        node = self._running()
        joined: list[Presence] = []
        try:
            # One by one, so that what has joined leaves again if another cannot.
            joined.extend(node.join(connection, check_name(name)) for name in names)
            yield
        finally:
            for presence in joined:
                node.remove(presence)  # of the node that has joined, whatever this is by now

    def who(self, pattern: str = EVERY_NAME, *, most: int = MOST) -> list[Presence]:
        """Return the connections under a name, or under all names that begin with a text.

        Blocks for a round trip to Redis for each 500 names. Connections that have joined in the
        last moments may be missing, and those of a process that was killed are still returned until
        its lease ends.

        Args:
            pattern: a name, or the beginning of names with ``*`` behind it.
            most: the greatest number of connections.

        Raises:
            Unreachable: Redis has failed.
        """
        return self._running().who(*name_prefix(pattern), most)

    def status(
        self, *, timeout: float = STATUS_TIME, stalled_after: float = STALLED_AFTER
    ) -> ClusterStatus:
        """Return what each process of the cluster does, and which do not answer.

        All are asked at the same time. One that stands still, as a stopped one does, delays this by
        ``timeout`` at most, and is told of without its status. One whose lease has ended, since it
        still does or was killed, is not asked, but told of for ten minutes. Blocks for a round trip
        to Redis and one to each node, in bounded memory: 100 nodes are asked, and each answers with
        128 KiB at most.

        Args:
            timeout: seconds for all of it.
            stalled_after: seconds without progress after which something counts as stalled.

        Raises:
            ValueError: an argument is not above 0.
            Unreachable: Redis has failed.
        """
        check_seconds(timeout=timeout, stalled_after=stalled_after)
        return self._running().status(Deadline(timeout), stalled_after)

    def counts(self, *, timeout: float = STATUS_TIME) -> ClusterCounts:
        """Return what Redis knows of all processes, without asking them.

        Blocks for a round trip to Redis. Of more than 1,000 processes, the members and leases of
        those whose lease ends first are counted.

        Raises:
            ValueError: the timeout is not above 0.
            Unreachable: Redis has failed, or did not answer in time.
        """
        check_seconds(timeout=timeout)
        return self._running().counts(Deadline(timeout))

    # Streams

    def open_stream(
        self, to: str | Presence, *, header: bytes = b"", timeout: float | None = OPEN_TIME
    ) -> Stream:
        """Open a stream to a connection, wherever it is, and return it.

        It is a stream like others, with flow control from end to end. Of several connections with
        the name, one of this process is preferred, then the one that joined last. Blocks for a
        round trip to Redis and one to the node, unless the connection is of this process.

        Args:
            to: a name, or one connection of those that ``who`` returned.
            header: bytes that are written first.
            timeout: seconds for all of it; ``None`` for no limit.

        Raises:
            NotConnected: nobody has this name.
            Unreachable: Redis, the node or the client did not answer in time.
        """
        deadline = Deadline(timeout)
        stream = self._running().open(to, deadline)
        if header:
            before, stream.timeout = stream.timeout, deadline.remaining()
            try:
                stream.write(header)
            except BaseException:
                stream.reset()
                raise
            stream.timeout = before
        return stream

    def relay(self, one: Stream, other: Stream) -> None:
        """Join two streams, such as one from a client and one to another; return at once.

        Bytes, ends and resets go both ways as they come, and whoever does not read holds back the
        writer at the far end. Nothing else may use the two streams from now on: a handler may
        return, but has to keep them open, as one of a connection does, and one of ``stream_route``
        does not.
        """
        self._running().splicer.add(one, other)

    # Topics

    def publish(self, topic: str, data: bytes) -> Position:
        """Keep a message in a topic, and return its position.

        Blocks for a round trip to Redis, which keeps it as its own settings say.

        Raises:
            Unreachable: Redis has failed. Whether it was kept is not known; repeating it may
                publish it twice.
            ValueError: it has more than 1 MiB.
        """
        check_name(topic, "a topic")
        if not isinstance(data, bytes | bytearray | memoryview):
            raise TypeError(f"data must be bytes, not {type(data).__name__}")
        if len(data) > MAX_MESSAGE:
            raise ValueError(
                f"a message has at most {MAX_MESSAGE} bytes, not {len(data)}: open a stream for it"
            )
        return self._running().topics.append(topic, bytes(data))

    def subscribe(self, topic: str, since: Position | str = NEW) -> Subscription:
        """Return a subscription, from which the messages of a topic are read; close it.

        Args:
            topic: the topic, which need not exist yet.
            since: ``"new"``, ``"oldest"``, or a position behind which to begin, also as text.

        Raises:
            ValueError: there is no such place.
            Unreachable: Redis has failed, so that the newest position is not known.
        """
        check_name(topic, "a topic")
        return Subscription(self._running().topics, topic, parse_position(since))


@dataclass(frozen=True, repr=False)  # it has secrets
class _Options:
    """Hold what a node of this process is made of."""

    url: str | None
    namespace: str
    key: bytes | None
    address: tuple[str, int] | None
    advertise: str | None
    server_ssl: ssl.SSLContext | None
    client_ssl: ssl.SSLContext | None
    retention: Retention
    lease: float
    watched: Watched | None

    @property
    def shown(self) -> str:
        """The Redis, without the user and password that its URL may have."""
        return "this process" if self.url is None else self.url.rpartition("@")[2]

    def client(self) -> Any:
        """Return a client of Redis.

        Raises:
            ValueError: the URL is not one of Redis.
            ImportError: its library is missing.
        """
        from ..storage.redis_client import redis_client  # not needed without a URL

        assert self.url is not None
        return redis_client(self.url)


class _Running:
    """One running node."""

    def __init__(self, options: _Options) -> None:
        self.id = uuid.uuid4().hex
        self._options = options
        self._members = Members(self.id)
        self.splicer = Splicer()
        self._changed = Condition(threading.Lock())
        self._ending = Ending()
        self._closed = False
        self._lost = self._said = 0  # how often Redis has forgotten this node, and was told again
        self._checked: list[Presence] = []  # who is not yet said again
        self._read: Any = b"0"  # how far what Redis has of this node was compared
        self._anew = False
        self._unsaid: dict[Presence, bool] = {}  # whether it joins, for what Redis was not told
        self._look = Deadline(0.0, outlives=True)  # for ended members, by joins, without Redis
        self._askers = ThreadPool(ASKERS, "wsmux-cluster-status")
        self._process = NodeProcess(os.getpid(), socket.gethostname(), options.lease)
        self.topics: TopicStore
        if options.url is None:
            self._directory = None
            self._record = Node(self.id, host_id(), "", "")
            self.topics = MemoryTopics(options.retention)
            return
        from .directory import Directory
        from .redis_calls import RedisCalls
        from .redis_topics import RedisTopics

        client = self._client = options.client()
        calls = self._calls = RedisCalls(client)
        self._directory = Directory(calls, options.namespace, options.key, self._process)
        self.topics = RedisTopics(client, calls, options.namespace, options.retention)
        host = host_id()
        self._links = Links(self.id, host, options.key, options.client_ssl, self._serve)
        self._server = LinkServer(
            self.id,
            self._members,
            self.splicer,
            self._links.adopt,
            self._own_status,
            key=options.key,
            address=options.address,
            ssl_context=options.server_ssl,
        )
        url = options.advertise or self._server.url
        self._record = Node(self.id, host, self._server.path, url)
        try:
            self._thread = daemon_thread(target=self._keep, name="wsmux-cluster-lease")
            start_thread(self._thread)
            register(self)
            _running.add(self)
        except BaseException:
            with self._changed:
                self._closed = True
                self._changed.notify_all()
            self._server.close()
            raise

    def leave(self) -> None:
        """End with the interpreter; see ``runtime.threads``."""
        self.close()

    def forked(self) -> None:
        """Do nothing any more in a forked child, where other threads may have held the locks."""
        self._closed = True

    def close(self) -> bool:
        """End all that it has begun, each part even if another fails; may be repeated.

        Return false in a signal handler that interrupts it, before that has happened.
        """
        self._closed = True
        return self._ending.run(self._end)

    def _end(self) -> None:
        with ExitStack() as steps:  # which are taken last first
            steps.callback(_running.discard, self)
            steps.callback(self.splicer.close)
            steps.callback(self._askers.close)
            if self._directory is not None:
                steps.callback(self._links.close)
                steps.callback(self._server.close)
                steps.callback(self._stop_thread)
            steps.callback(self.topics.close)

    def _stop_thread(self) -> None:
        with self._changed:
            self._changed.notify_all()
        self._thread.join()

    def _withdraw(self) -> None:
        """Have nothing of this node found any more; its thread does so as the last thing."""
        from .directory import Directory
        from .redis_calls import CallsHere

        self._calls.close()  # first, so that nothing joins behind this
        calls = CallsHere(self._client)
        try:
            Directory(calls, self._options.namespace, self._options.key, self._process).withdraw(
                self._record
            )
        except Unreachable as error:
            _log.warning("this node is found until its lease ends: %s", str(error))

    # Names

    def join(self, connection: Connection, name: str) -> Presence:
        if self._directory is None and self._look.expired():  # there is no thread that would
            self._forget_ended()
        try:
            presence = self._members.add(connection, name)
        except ClusterError:
            if not self._forget_ended():
                raise
            presence = self._members.add(connection, name)
        if self._directory is not None:
            try:
                if not self._directory.join(self.id, [presence]):
                    self._announce()
                    self._directory.join(self.id, [presence])
            except Unreachable as error:
                self._say_later(presence, True, error)
            if self._closed:
                raise ValueError(LEFT)
            if presence not in self._members:  # it has ended, and was forgotten before it was said
                self._forget(presence)
        return presence

    def remove(self, presence: Presence) -> None:
        if self._closed:  # what it had joined has ended with it
            return
        if self._members.remove(presence) and self._directory is not None:
            self._forget(presence)

    def _forget(self, presence: Presence) -> None:
        assert self._directory is not None
        with self._changed:
            self._unsaid.pop(presence, None)
        try:
            self._directory.leave(self.id, [presence])
        except Unreachable as error:
            self._say_later(presence, False, error)

    def who(self, prefix: str, longer: bool, most: int) -> list[Presence]:
        if self._directory is None:
            return self._members.who(prefix, longer)[:most]
        return self._directory.who(prefix, longer, most)

    def status(self, deadline: Deadline, after: float) -> ClusterStatus:
        within = round(deadline.remaining() or 0.0, 2)  # for people
        listed = self._listed(deadline)

        def ask(node: Node) -> dict[str, Any]:
            if node.id != self.id:
                return self._links.ask_status(node, after, deadline)
            told: dict[str, Any] = json.loads(self._own_status(after, MAX_STATUS))
            return told

        nodes = ask_all([*listed.known, *listed.lost], self._askers, ask, deadline, within)
        nodes.sort(key=lambda each: (each.host or "", each.pid or 0, each.node))
        return ClusterStatus(self._options.namespace, nodes, listed.left_out, after)

    def _listed(self, deadline: Deadline) -> Listed:
        """Return the nodes that have a lease, and this one, which may have none yet."""
        count, names = self._members.names(MAX_NAMES)
        own = Known(self.id, self._record, self._process, "", None, count, names)
        if self._directory is None:
            return Listed([own], 0, [])
        listed = call_within(deadline, self._directory.nodes, MAX_NODES, MAX_NAMES)
        if any(each.id == self.id for each in listed.known):
            return listed
        others = listed.known[: MAX_NODES - 1]
        left_out = listed.left_out + len(listed.known) - len(others)
        left_out -= listed.left_out > 0  # it is one of those
        lost = [each for each in listed.lost if each.id != self.id]
        return Listed([own, *others], left_out, lost)

    def counts(self, deadline: Deadline) -> ClusterCounts:
        if self._directory is None:
            return count(self._listed(deadline))
        return count(call_within(deadline, self._directory.nodes, MAX_COUNTED, 0))

    def _own_status(self, after: float, size: int) -> bytes:
        watched = self._options.watched
        sources = self._members.connections() if watched is None else watched.sources()
        return fitting_document(sources, after, size)

    def open(self, to: str | Presence, deadline: Deadline) -> Stream:
        name, member = (to.name, to) if isinstance(to, Presence) else (check_name(to), None)
        failed: ClusterError | None = None
        if member is None or member.node == self.id:
            for held in self._members.find(name, member and member.id):
                try:
                    return open_to(self._members, held, deadline)
                except ClusterError as error:
                    failed = error
        if self._directory is not None and (member is None or member.node != self.id):
            for presence, node in call_within(deadline, self._directory.find, name):
                if node.id == self.id or member not in (None, presence):
                    continue
                try:
                    return self._links.open(presence, node, deadline)
                except ClusterError as error:
                    failed = error
        raise failed or NotConnected(f"nobody has joined as {name!r}")

    def _serve(self, link: Connection) -> None:
        self._server.serve(link)

    # Redis is told

    def _say_later(self, presence: Presence, joins: bool, error: Unreachable) -> None:
        # By its traceback, a log record that had an error would keep connections alive.
        does = "has joined" if joins else "has left"
        _log.warning("Redis is told again that %r %s: %s", presence.name, does, str(error))
        with self._changed:
            self._note_unsaid_locked(presence, joins)
            self._changed.notify_all()

    def _note_unsaid_locked(self, presence: Presence, joins: bool) -> None:
        if len(self._unsaid) >= MAX_UNSAID:
            self._unsaid, self._anew = {}, True
        self._unsaid[presence] = joins

    def _forget_ended(self) -> bool:
        """Remove the members whose connections have ended; return whether there were any."""
        self._look = Deadline(self._options.lease / RENEWED, outlives=True)
        ended = self._members.remove_ended()
        if self._directory is not None:
            with self._changed:
                for each in ended:
                    self._note_unsaid_locked(each, False)
        return bool(ended)

    def _announce(self) -> None:
        """Renew the lease; if it was unknown, say all again that was said."""
        self._renew()
        while self._said != self._lost:
            lost = self._lost
            self._join_all(self._members.who("", True))
            self._said = lost  # only now: it may have failed in between

    def _renew(self) -> None:
        assert self._directory is not None
        known = False
        try:
            known = self._directory.announce(self._record, self._options.lease)
        finally:
            if not known:  # or the answer was lost, and the next one says that it is known
                self._note_lost()

    def _note_lost(self) -> None:
        with self._changed:  # the lease is renewed by its thread and by those that join
            self._lost += 1

    def _join_all(self, presences: Sequence[Presence]) -> None:
        """Say who has joined, but for those who have left meanwhile, and renew the lease."""
        assert self._directory is not None
        for step in _steps(presences):
            self._renew()
            here = [each for each in step if each in self._members]
            if not self._directory.join(self.id, here):
                self._note_lost()
            # Who has left since then may have said so before.
            self._leave_all([each for each in step if each not in self._members])

    def _leave_all(self, presences: Sequence[Presence]) -> None:
        assert self._directory is not None
        for step in _steps(presences):
            self._renew()
            self._directory.leave(self.id, step)

    def _keep(self) -> None:
        """Renew the lease until the node is closed, end it, and close the client of Redis."""
        pause = Backoff(0.1, LONGEST_PAUSE)
        wait = 0.0
        while True:
            with self._changed:
                deadline = Deadline(wait, outlives=True)
                while not self._closed and not deadline.expired():
                    if self._unsaid and wait > LONGEST_PAUSE:
                        break
                    self._changed.wait(deadline.remaining())
                if self._closed:
                    break
            # From now on: behind a Redis that is far, the rest takes a part of a short lease.
            renewed = Deadline(self._options.lease / RENEWED, outlives=True)
            try:
                self._tend()
                pause.reset()
                wait = renewed.remaining() or 0.0
            except Unreachable as error:
                wait = pause.next()
                _log.warning("the lease is renewed again in %.1f s: %s", wait, str(error))
            except Exception:
                wait = LONGEST_PAUSE
                _log.exception("the lease of this node could not be renewed")
        # Here, where no signal handler interrupts it: who closed the client from elsewhere, after
        # an interrupted wait for this thread, would take it from what still uses it.
        with closing(self._client), closing(self.topics):
            self._withdraw()

    def _tend(self) -> None:
        assert self._directory is not None
        self._forget_ended()  # first: what follows fails while Redis is away
        if self._anew:  # so that Redis forgets all members, and is told again who is here
            self._directory.withdraw(self._record)
            self._anew = False
        self._announce()  # before what may take longer than the lease
        with self._changed:
            unsaid = dict(self._unsaid)
        self._join_all([each for each, joins in unsaid.items() if joins])
        self._leave_all([each for each, joins in unsaid.items() if not joins])
        with self._changed:
            for each, joins in unsaid.items():
                if self._unsaid.get(each) is joins:
                    del self._unsaid[each]
        self._repair()
        self._directory.sweep()
        self._links.drop_ended()

    def _repair(self) -> None:
        """Say of some members again that they have joined, and of others that they have left.

        Redis may have evicted the keys of the former. The latter are those whose joining was given
        up, and has come to Redis behind their leaving.
        """
        assert self._directory is not None
        if not self._checked:
            self._checked = self._members.who("", True)
        step, self._checked = self._checked[:SAID], self._checked[SAID:]
        self._join_all(step)
        self._read, said = self._directory.said(self.id, self._read)
        names = {name for name, _ in said}
        here = {name: {each.presence.id for each in self._members.find(name)} for name in names}
        left = [(name, id) for name, id in said if id not in here[name]]
        self._leave_all([Presence(name, self.id, id, 0.0) for name, id in left])


def _steps(presences: Sequence[Presence]) -> Iterator[Sequence[Presence]]:
    """Yield as many as one script may handle, and again."""
    for at in range(0, len(presences), SAID):
        yield presences[at : at + SAID]


# The nodes of this process. One that exits without leaving is otherwise found until its lease ends.
_running: weakref.WeakSet[_Running] = weakref.WeakSet()


@atexit.register
def _leave_at_exit() -> None:
    for node in list(_running):
        try:
            node.close()
        except Exception:
            _log.exception("a node could not leave its cluster at exit")


os.register_at_fork(after_in_child=_running.clear)


def _address(listen: str) -> tuple[str, int]:
    """Return the host and port of a text.

    Raises:
        ValueError: it is not of the form ``host:port``.
    """
    try:
        parts = urlsplit(f"//{listen}")
        if parts.hostname and parts.port is not None and not parts.path:
            return parts.hostname, parts.port
    except (ValueError, TypeError):
        pass
    raise ValueError(f"listen must be host:port, such as 10.0.0.5:7000, not {listen!r}")
