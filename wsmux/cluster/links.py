"""Open streams to the connections of other nodes, and let other nodes open some to ours.

Between two nodes there is one wsmux connection, a *link*: over a Unix socket on the same host,
where the system says that its peer is of the same user; elsewhere over a WebSocket, whose client
shows a token made with the shared key, which needs TLS to be of use on a network that others can
read. The node that wants a stream opens one on the link, and sends a request in it; the other node
opens one to its client, answers, and joins the two. The first is then used as if it were the
client's. So bytes cross two wires, each with its flow control, and never Redis.

The node that dials says who it is, by the first stream; from then on both open streams on the link.
If two nodes dial each other at once, both keep the link of the one whose id is smaller; the other
link is ended, by the node that has dialled it, once its last stream has ended. A request that was
on its way by then, or on a link that has broken, is made once more.

A request or answer is four bytes, its size, most significant first, and as many of JSON. A request
has ``v``, ``name``, ``node`` and ``member``; an answer ``v`` and ``ok``, or ``error``, which is
``not-connected`` or ``unreachable``, with ``text``. A request that has ``ask`` instead of ``name``
and ``member`` is a question to the node itself: ``status``, with ``stalled_after``, or ``share``,
with ``from``, whether both may use the link. The answer to the former is larger, and has
``status``; that to the latter ``ok``, and between hosts ``token``, which is made as that of a
client, so that only who has the key is let in by the node that has dialled. A node of an earlier
version answers that nobody is connected; then each uses a link of its own.

Threads: at each end one serves the link and reads the requests, so a node that sends none holds
back its own alone; they are answered in a pool, since a client may be slow, one by one for each
client. No lock is held during any of this. Of several threads that want a link to the same node,
one makes it, and the others wait for that.
"""

from __future__ import annotations

import json
import os
import socket
import ssl
import struct
import tempfile
import threading
import time
from collections.abc import Callable, Hashable
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

from ..client import connect, from_socket
from ..config import MIB, SMALLEST_WINDOW, Config
from ..diagnostics.status import STALLED_AFTER
from ..endpoints.acceptor import listen, listen_unix
from ..endpoints.connection_options import ConnectionOptions
from ..exceptions import (
    ConnectionClosed,
    ForkedError,
    HandshakeError,
    StreamError,
    StreamRefused,
    WsmuxError,
)
from ..handshake.access import Access
from ..handshake.request import Request
from ..mux.connection import Connection
from ..mux.stream import Stream
from ..protocols.abuse_limits import LATE_PER_STREAM
from ..protocols.base import Role
from ..runtime.closing import Ending
from ..runtime.deadline import Deadline, call_within
from ..runtime.files import private_folder
from ..runtime.logs import logger
from ..runtime.parking import Condition
from ..runtime.thread_pool import SerialExecutor, ThreadPool
from ..runtime.threads import daemon_thread, start_thread
from ..runtime.unix_sockets import check_same_user, remove_left
from ..server import Server
from .errors import ClusterError, NotConnected, Unreachable
from .members import Held, Members
from .records import VERSION, Node, Presence, check_token, link_token, parse_fields
from .splicer import Splicer

__all__ = ["LinkServer", "Links", "host_id", "open_to"]

# Bytes of a request or an answer, and of the status of a process within one.
MAX_MESSAGE = 4096
MAX_STATUS = 128 * 1024

# Seconds to read the request of a stream, and to open one to the client.
ANSWER_TIME = 10.0

# Requests that wait for their answers, and threads that make them.
MAX_WAITING, ANSWERERS = 4096, 32

# Connections from other nodes.
MAX_LINKS = 1024

# Seconds after which a thread looks again that waits for another one: a signal may have ended that.
LOOK = 1.0

# Streams that each node may open on a link, and those of a client beyond which other nodes open no
# more.
MAX_STREAMS, MAX_OF_CLIENT = 2048, 1024

# More than any node does.
NEVER = 2**62

# Bytes of all windows of a link, while new ones have the usual size, and grow.
WINDOWS = 96 * MIB

# What a link may hold. It joins two nodes that trust each other, and has the streams of all their
# clients: limits that end a connection because of what one peer does would end the streams of all
# because of what one client does, or many do together. So resets are not counted, and what else
# each stream may cause has room for all streams at once, and for as many that have just ended.
#
# Nor is a stream reset since others are not read. Beyond ``WINDOWS``, 2,048 streams of either node
# have 16 KiB each, 64 MiB in all; and 32 MiB are for streams that this node has opened, and that
# have ended, but were not read. The other node's keep their places until then.
LINK = Config(
    max_streams=MAX_STREAMS,
    max_window_bytes=WINDOWS,
    max_connection_buffer=WINDOWS + 2 * MAX_STREAMS * SMALLEST_WINDOW + 32 * MIB,
    max_cancelled=4 * MAX_STREAMS,
    max_control_frames=4 * MAX_STREAMS * LATE_PER_STREAM,
    max_control_bytes=MIB,
    max_resets=NEVER,
    reset_rate=NEVER,
)

_SIZE = struct.Struct(">I")

_log = logger("wsmux.cluster")


def host_id() -> str:
    """Return what two processes share if one can open the Unix sockets of the other."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.stat('/proc/self/ns/mnt').st_ino}"
    except OSError:
        return socket.gethostname()


def socket_folder() -> Path:
    """Return the folder of the sockets of this user's nodes, after making it.

    What killed processes have left in it is removed.

    Raises:
        PermissionError: other users have access to it.
    """
    folder = Path(tempfile.gettempdir()) / f"wsmux-cluster-{os.getuid()}"
    private_folder(folder)
    remove_left(folder)
    return folder


def open_to(members: Members, held: Held, deadline: Deadline) -> Stream:
    """Open a stream to a client of this process.

    Raises:
        NotConnected: its connection has ended, or ends, or it has left this name.
        Unreachable: it did not answer earlier streams in time, or refuses more.
    """
    try:
        stream = held.connection.open_stream(deadline.remaining())
    except (ConnectionClosed, ForkedError) as error:
        raise NotConnected(f"its connection has ended: {error}") from error
    except StreamError as error:
        raise NotConnected(f"its connection ends: {error}") from error
    except (WsmuxError, TimeoutError) as error:
        raise Unreachable(f"no stream can be opened to it: {error}") from error
    # It may have left since it was found; nothing may reach it by a name that it has no more.
    if held.presence in members:
        return stream
    stream.reset()
    raise NotConnected(f"it has just left, and is not {held.presence.name!r} any more")


class LinkServer:
    """Take the links of other nodes, and join their streams to our clients'.

    Args:
        node: the id of this node.
        members: the connections of this node.
        splicer: joins streams.
        adopt: called with the id of another node and a link of it, on which this one may open
            streams, too.
        status: returns the status of this process as JSON of at most so many bytes, given the
            seconds after which something is stalled.
        key: the shared key.
        address: host and port on which nodes of other hosts reach this one, if they may.
        ssl_context: a server-side context.

    Attributes:
        path: the Unix socket.
        url: the address on which it listens for other hosts; empty if it does not.

    Raises:
        OSError: an address cannot be used.
    """

    def __init__(
        self,
        node: str,
        members: Members,
        splicer: Splicer,
        adopt: Callable[[str, Connection], object],
        status: Callable[[float, int], bytes],
        *,
        key: bytes | None,
        address: tuple[str, int] | None,
        ssl_context: ssl.SSLContext | None,
    ) -> None:
        self._node = node
        self._members = members
        self._splicer = splicer
        self._adopt = adopt
        self._status = status
        self._key = key
        self._pool = ThreadPool(ANSWERERS, "wsmux-cluster")
        self._answers = SerialExecutor(self._pool)
        self._waiting = 0
        self._lock = threading.Lock()
        self.path = str(socket_folder() / f"{node}.sock")
        self.url = ""
        self._servers: list[Server] = []
        try:
            self._servers += (self._server(listen_unix(self.path)),)
            if address is not None:
                assert key is not None
                access = Access(partial(self._check, key))
                self._servers += (self._server(listen(*address), access, ssl_context),)
                self.url = self._servers[1].url
        except BaseException:
            self.close()
            raise

    def _server(
        self,
        listener: socket.socket,
        access: Access | None = None,
        ssl_context: ssl.SSLContext | None = None,
    ) -> Server:
        return Server(
            self.serve,
            listener,
            ConnectionOptions(config=LINK),
            protocols=("wsmux",),
            transport="tcp" if access is None else "websocket",
            origins=None,
            ssl_context=ssl_context,
            max_connections=MAX_LINKS,
            access=access,
            authorize=None if access is None else _source,
        )

    def close(self) -> None:
        """End all links, and with them the streams of other nodes to our clients."""
        with ExitStack() as steps:  # each of them, even if one fails
            steps.callback(Path(self.path).unlink, missing_ok=True)  # if its server never began
            steps.callback(self._pool.close)
            for server in self._servers:
                steps.callback(server.shutdown, 0.0)

    def _check(self, key: bytes, token: str) -> str:
        return check_token(key, token, self._node, time.time())

    def serve(self, link: Connection) -> None:
        """Answer the requests of another node, until the link has ended."""
        for stream in link:
            deadline = Deadline(ANSWER_TIME)
            with self._lock:
                full = self._waiting >= MAX_WAITING
                self._waiting += not full
            if full:
                _log.warning("%d streams wait for their clients: another is refused", MAX_WAITING)
                stream.reset()
                continue
            action = self._action(link, stream, deadline)
            if action is None:
                with self._lock:
                    self._waiting -= 1
            else:
                # One after another for each client, so that one that is slow holds one thread.
                self._answers.submit(*action)

    def _action(
        self, link: Connection, stream: Stream, deadline: Deadline
    ) -> tuple[Hashable, Callable[[], None]] | None:
        """Return what answers a request, one by one for which key.

        ``None`` if the answer is given already.
        """
        try:
            request = call_within(deadline, _receive, stream)
            ours = request.get("node") == self._node
            if ours and request.get("ask") == "status":
                tell = partial(self._tell, stream, request.get("stalled_after"), deadline)
                return link, partial(self._run, stream, tell)
            if ours and request.get("ask") == "share":
                answer = self._share(link, request.get("from"))
                call_within(deadline, _send, stream, answer)
                stream.close()
                return None
            name, member = str(request.get("name")), str(request.get("member"))
            for client in self._members.find(name, member) if ours else ():
                join = partial(self._answer, stream, client, deadline)
                return client.connection, partial(self._run, stream, join)
            left = {"error": "not-connected", "text": "it has left"}
            call_within(deadline, _send, stream, left)
            stream.close()
        except (WsmuxError, OSError, ValueError) as error:
            self._give_up(stream, error)
        return None

    def _share(self, link: Connection, source: Any) -> dict[str, Any]:
        """Let this node open streams on a link that another one has dialled; return the answer."""
        if not isinstance(source, str) or link.user not in (None, source):
            text = f"this link is of node {link.user}, and not of {source!r:.40}"
            return {"error": "unreachable", "text": text}
        self._adopt(source, link)
        if link.user is None or self._key is None:  # of the same host
            return {"ok": True}
        return {"ok": True, "token": link_token(self._key, self._node, source, time.time())}

    def _run(self, stream: Stream, answer: Callable[[], None]) -> None:
        try:
            answer()
        except (WsmuxError, OSError) as error:
            self._give_up(stream, error)
        finally:
            with self._lock:
                self._waiting -= 1

    def _answer(self, stream: Stream, client: Held, deadline: Deadline) -> None:
        try:
            # What is on its way to it is held by the link, also when the asker has ended.
            count = client.connection.stats().streams
            if count >= MAX_OF_CLIENT:
                raise Unreachable(f"it has {count} streams open, and {MAX_OF_CLIENT} are the most")
            joined = open_to(self._members, client, deadline)
        except ClusterError as error:
            kind = "not-connected" if isinstance(error, NotConnected) else "unreachable"
            call_within(deadline, _send, stream, {"error": kind, "text": str(error)[:1000]})
            stream.close()
            return
        try:
            call_within(deadline, _send, stream, {"ok": True})
        except BaseException:
            joined.reset()
            raise
        self._splicer.add(stream, joined)

    def _tell(self, stream: Stream, after: Any, deadline: Deadline) -> None:
        fits = isinstance(after, int | float) and after > 0
        try:
            status = self._status(float(after) if fits else STALLED_AFTER, MAX_STATUS)
        except Exception:  # a function of the application may be asked what is to be shown
            _log.exception("the status of this process cannot be told to another node")
            told = {"error": "unreachable", "text": "its status cannot be told: see its log"}
            call_within(deadline, _send, stream, told)
        else:
            answer = b'{"v": %d, "status": %s}' % (VERSION, status)
            call_within(deadline, _send_bytes, stream, answer)
        stream.close()

    def _give_up(self, stream: Stream, error: Exception) -> None:
        _log.info("a stream of another node was not joined: %s", error)
        with suppress(WsmuxError, OSError):
            stream.reset()


def _source(request: Request) -> str:
    """Return the id of the node whose token was checked before."""
    return request.headers["authorization"].split()[-1].partition(".")[0]


class Links:
    """Hold the links to other nodes. Any thread may use it.

    Args:
        node: the id of this node.
        host: that of this process; see ``host_id``.
        key, ssl_context: as of the cluster; the context is a client-side one.
        serve: answers the requests on a link that this node has dialled, until that has ended.
    """

    def __init__(
        self,
        node: str,
        host: str,
        key: bytes | None,
        ssl_context: ssl.SSLContext | None,
        serve: Callable[[Connection], object],
    ) -> None:
        self._node = node
        self._serve = serve
        self._host = host
        self._key = key
        self._ssl_context = ssl_context
        self._lock = threading.Lock()
        self._links: dict[str, Link] = {}
        self._closed = False

    def open(self, presence: Presence, node: Node, deadline: Deadline) -> Stream:
        """Return a stream that is joined to one of another node's client.

        Raises:
            NotConnected: the client has left.
            Unreachable: the node or the client did not answer in time.
        """
        what = f"node {node.id[:8]}, which has {presence.name!r},"
        request = {"name": presence.name, "node": node.id, "member": presence.id}
        stream, answer = self._request(node, request, what, MAX_MESSAGE, deadline)
        if answer.get("ok") is True:
            return stream
        stream.close()
        kind = NotConnected if answer.get("error") == "not-connected" else Unreachable
        raise kind(f"{presence.name!r} cannot be reached: {str(answer.get('text'))[:1000]}")

    def ask_status(self, node: Node, after: float, deadline: Deadline) -> dict[str, Any]:
        """Return the status of another node's process, as it tells it; it has to be checked.

        Raises:
            Unreachable: the node did not answer in time, or is of an earlier version.
        """
        request = {"ask": "status", "node": node.id, "stalled_after": after}
        most = MAX_STATUS + MAX_MESSAGE
        stream, answer = self._request(node, request, "it", most, deadline)
        stream.close()
        status = answer.get("status")
        if isinstance(status, dict):
            return status
        if answer.get("error") == "not-connected":
            raise Unreachable("it is of an earlier version, which does not tell its status")
        raise Unreachable(str(answer.get("text"))[:1000])

    def _request(
        self, node: Node, request: dict[str, Any], what: str, most: int, deadline: Deadline
    ) -> tuple[Stream, dict[str, Any]]:
        """Return the stream of a request, and its answer, of at most so many bytes.

        Raises:
            Unreachable: there was none in time. It names the node as ``what``, and its cause is a
                ``TimeoutError`` if the time was up.
        """
        again = True
        while True:
            stream: Stream | None = None
            try:
                stream = self._connected(node, deadline).open_stream(deadline.remaining())
                call_within(deadline, _send, stream, request)
                return stream, call_within(deadline, _receive, stream, most)
            except (WsmuxError, OSError, ValueError) as error:  # the latter for an odd path or URL
                if stream is not None:
                    stream.reset()
                if again and isinstance(error, ConnectionClosed | StreamRefused):
                    again = False  # the link has been lost, or given up for another one
                    continue
                does = "cannot be reached" if stream is None else "gave no answer"
                raise Unreachable(f"{what} {does}: {error}") from error
            except BaseException:
                if stream is not None:
                    stream.reset()
                raise

    def _link(self, node: str) -> Link:
        with self._lock:
            if self._closed:
                raise HandshakeError("this node has left the cluster")
            return self._links.setdefault(node, Link(self._node < node))

    def _connected(self, node: Node, deadline: Deadline) -> Connection:
        while True:
            link = self._link(node.id)
            connection = link.connected(partial(self._dial, node), deadline)
            if connection is not None:
                return connection  # else it was forgotten between the two calls

    def adopt(self, node: str, connection: Connection) -> None:
        """Open streams on a link that another node has dialled, unless there is a better one.

        Raises:
            HandshakeError: this node has left.
        """
        while not self._link(node).adopt(connection):
            pass  # it was forgotten between the two calls

    def _dial(self, node: Node, deadline: Deadline) -> Connection:
        """Return a link to a node, which serves its requests, too, if it is of this version."""
        connection = self._dialled(node, deadline)
        try:
            if self._is_shared(node, connection, deadline):
                name = f"wsmux-cluster-{node.id[:8]}"
                start_thread(daemon_thread(self._serve_own, name=name, args=(connection,)))
        except BaseException:
            connection.abort()
            raise
        return connection

    def _serve_own(self, connection: Connection) -> None:
        """Answer the other node on a link that this one has dialled."""
        try:
            self._serve(connection)
        except ConnectionClosed as error:
            _log.debug("the link %s has ended: %s", connection.name, error)
        except Exception:
            _log.exception("the link %s could not be served; it ends", connection.name)
            connection.abort()

    def _is_shared(self, node: Node, connection: Connection, deadline: Deadline) -> bool:
        """Ask another node whether it opens streams on this link, too; return whether it may."""
        with connection.open_stream(deadline.remaining()) as stream:
            question = {"ask": "share", "node": node.id, "from": self._node}
            call_within(deadline, _send, stream, question)
            answer = call_within(deadline, _receive, stream)
        if answer.get("ok") is not True:
            return False
        if node.host != self._host:
            assert self._key is not None
            try:
                source = check_token(self._key, str(answer.get("token")), self._node, time.time())
            except PermissionError as error:
                raise HandshakeError(f"it does not have the key: {error}") from error
            if source != node.id:
                raise HandshakeError(f"it says that it is node {source[:8]}")
        return True

    def _dialled(self, node: Node, deadline: Deadline) -> Connection:
        if node.host == self._host:
            sock = socket.socket(socket.AF_UNIX)
            try:
                sock.settimeout(deadline.remaining())
                sock.connect(node.path)
                check_same_user(sock)
                return from_socket(sock, role=Role.CLIENT, config=LINK)
            except BaseException:
                sock.close()
                raise
        if not node.url:
            raise HandshakeError("it is on another host, and listens for none: give it listen=")
        if self._key is None:
            raise HandshakeError("it is on another host, and this node has no key= to show")
        token = link_token(self._key, self._node, node.id, time.time())
        return connect(
            node.url,
            headers={"Authorization": f"Bearer {token}"},
            ssl_context=self._ssl_context if node.url.startswith("wss:") else None,
            timeout=deadline.remaining(),
            config=LINK,
        )

    def drop_ended(self) -> None:
        """Forget the links that have no connection, as those to nodes that have died."""
        with self._lock:
            for node, link in list(self._links.items()):
                if link.end_unused():
                    del self._links[node]

    def close(self) -> None:
        """End all links, and with them the streams to clients of other nodes."""
        with self._lock:
            self._closed = True
            links = list(self._links.values())
        for each in links:
            each.close()


class Link:
    """Hold the connection to one node, which either of the two has made, when it was needed.

    Of ``_over`` and ``_connection``, ``connected`` and ``close`` each set one before they read the
    other, so a connection that is made meanwhile is closed by one of them.

    Args:
        prefers_ours: of two connections, both nodes keep the one that this node has dialled.
    """

    def __init__(self, prefers_ours: bool) -> None:
        self._prefers_ours = prefers_ours
        self._changed = Condition(threading.Lock())
        self._connection: Connection | None = None
        self._ours = False  # whether this node has dialled that
        self._given_up: list[Connection] = []  # which it has dialled, and whose streams go on
        self._dialled = False
        self._over = False
        self._ending = Ending()

    def current(self) -> Connection | None:
        """Return the connection, if it is open."""
        connection = self._connection
        return None if connection is None or connection.closed else connection

    def connected(
        self, dial: Callable[[Deadline], Connection], deadline: Deadline
    ) -> Connection | None:
        """Return the connection, after making it, or after another thread or node has made it.

        ``None`` says that the link was closed, or forgotten as unused.
        """
        dials = False
        try:
            with self._changed:
                while True:
                    connection = self.current()
                    if self._over:
                        return None
                    if connection is not None:
                        return connection
                    if not self._dialled:
                        self._dialled = dials = True  # no signal is handled in between
                        break
                    if deadline.expired():
                        raise TimeoutError("another thread is still connecting to it")
                    remaining = deadline.remaining()
                    self._changed.wait(LOOK if remaining is None else min(LOOK, remaining))
            return self._dial(dial, deadline)
        finally:
            if dials:
                self._dialled = False  # before any call, around which a signal may be handled
                if self._over:
                    self.close()
                with self._changed:
                    self._changed.notify_all()

    def _dial(
        self, dial: Callable[[Deadline], Connection], deadline: Deadline
    ) -> Connection | None:
        try:
            made = dial(deadline)
        except (WsmuxError, OSError, ValueError):
            found = self.current()  # the other node has dialled meanwhile
            if found is None:
                raise
            return found
        with self._changed:
            self._keep_locked(made, True)
        return None if self._over else self._connection

    def adopt(self, connection: Connection) -> bool:
        """Use a connection that the other node has dialled; return false if the link is over."""
        with self._changed:
            if not self._over:
                self._keep_locked(connection, False)
                self._changed.notify_all()
            return not self._over

    def _keep_locked(self, connection: Connection, ours: bool) -> None:
        """Use a connection from now on, unless there is one that both nodes prefer."""
        before, before_ours = self.current(), self._ours
        if before is None or before_ours is ours or ours is self._prefers_ours:
            self._connection, self._ours = connection, ours
        else:
            before, before_ours = connection, ours
        if before is not None and before_ours:
            self._given_up.append(before)

    def end_unused(self) -> bool:
        """End the link if it has no connection, and none is being made; return whether it had.

        Connections that were given up are ended, too, if they have no streams any more.
        """
        with self._changed:
            # Of one that was lost, the streams that were open are counted for ever.
            ended = [each for each in self._given_up if each.closed or not each.stats().streams]
            self._given_up = [each for each in self._given_up if each not in ended]
            if self.current() is None and not self._given_up and not self._dialled:
                self._over = True
            over = self._over
        for each in ended:
            each.close(0.0)
        return over

    def close(self) -> None:
        """End the connection, also one that is just being made."""
        self._over = True
        self._ending.run(self._close)

    def _close(self) -> None:
        with self._changed:
            given_up, self._given_up = self._given_up, []
            self._changed.notify_all()
        for each in (self._connection, *given_up):
            if each is not None:
                each.close(0.0)


def _send(stream: Stream, fields: dict[str, Any]) -> None:
    _send_bytes(stream, json.dumps({"v": VERSION, **fields}).encode())


def _send_bytes(stream: Stream, data: bytes) -> None:
    stream.write(_SIZE.pack(len(data)) + data)


def _receive(stream: Stream, most: int = MAX_MESSAGE) -> dict[str, Any]:
    """Return the request or answer of ``most`` bytes that a stream begins with.

    Raises:
        ValueError: it is none, or of another version.
    """
    (size,) = _SIZE.unpack(_exactly(stream, _SIZE.size))
    if size > most:
        raise ValueError(f"a message of {size} bytes came, {most} at most were expected")
    return parse_fields(_exactly(stream, size), "a message of another node")


def _exactly(stream: Stream, size: int) -> bytes:
    data = bytearray(size)
    if stream.fill(data) < size:
        raise ValueError("the stream ended within a message")
    return bytes(data)
