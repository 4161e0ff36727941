"""Open streams to the connections of other nodes, and let other nodes open some to ours.

Between two nodes there is a wsmux connection for each direction, a *link*: over a Unix socket on
the same host, where the system says that its peer is of the same user; elsewhere over a WebSocket,
whose client shows a token made with the shared key, which needs TLS to be of use on a network that
others can read. The node that wants a stream opens one on the link, and sends a request in it; the
other node opens one to its client, answers, and joins the two. The first is then used as if it were
the client's. So bytes cross two wires, each with its flow control, and never Redis.

A request or answer is four bytes, its size, most significant first, and as many of JSON. A request
has ``v``, ``name``, ``node`` and ``member``; an answer ``v`` and ``ok``, or ``error``, which is
``not-connected`` or ``unreachable``, with ``text``. A request that has ``ask`` instead of ``name``
and ``member`` is a question to the node itself: ``status``, with ``stalled_after``. Its answer is
larger, and has ``status``; a node of an earlier version answers that nobody is connected.

Threads: one of each link serves it and reads the requests, so a node that sends none holds back its
own alone; they are answered in a pool, since a client may be slow, one by one for each client. No
lock is held during any of this. Of several threads that want a link to the same node, one makes it,
and the others wait for that.
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
from ..config import Config
from ..diagnostics.status import STALLED_AFTER
from ..endpoints.acceptor import listen, listen_unix
from ..endpoints.connection_options import ConnectionOptions
from ..exceptions import ConnectionClosed, ForkedError, HandshakeError, StreamError, WsmuxError
from ..handshake.access import Access
from ..mux.connection import Connection
from ..mux.stream import Stream
from ..protocols.base import Role
from ..runtime.deadline import Deadline, call_within
from ..runtime.files import private_folder
from ..runtime.logs import logger
from ..runtime.parking import Condition
from ..runtime.thread_pool import SerialExecutor, ThreadPool
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

# Streams of one link, far more than a client may have; and what the links of a node may hold.
LINK = Config(max_streams=16_384)

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
        status: Callable[[float, int], bytes],
        *,
        key: bytes | None,
        address: tuple[str, int] | None,
        ssl_context: ssl.SSLContext | None,
    ) -> None:
        self._node = node
        self._members = members
        self._splicer = splicer
        self._status = status
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
            self._serve,
            listener,
            ConnectionOptions(config=LINK),
            protocols=("wsmux",),
            transport="tcp" if access is None else "websocket",
            origins=None,
            ssl_context=ssl_context,
            max_connections=MAX_LINKS,
            access=access,
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

    def _serve(self, link: Connection) -> None:
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
            name, member = str(request.get("name")), str(request.get("member"))
            for client in self._members.find(name, member) if ours else ():
                answer = partial(self._answer, stream, client, deadline)
                return client.connection, partial(self._run, stream, answer)
            left = {"error": "not-connected", "text": "it has left"}
            call_within(deadline, _send, stream, left)
            stream.close()
        except (WsmuxError, OSError, ValueError) as error:
            self._give_up(stream, error)
        return None

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


class Links:
    """Hold the links to other nodes. Any thread may use it.

    Args:
        node: the id of this node.
        host: that of this process; see ``host_id``.
        key, ssl_context: as of the cluster; the context is a client-side one.
    """

    def __init__(
        self, node: str, host: str, key: bytes | None, ssl_context: ssl.SSLContext | None
    ) -> None:
        self._node = node
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
        try:
            connection = self._connected(node, deadline)
            stream = connection.open_stream(deadline.remaining())
        except (WsmuxError, OSError, ValueError) as error:  # the latter for an odd path or URL
            raise Unreachable(f"{what} cannot be reached: {error}") from error
        try:
            call_within(deadline, _send, stream, request)
            return stream, call_within(deadline, _receive, stream, most)
        except (WsmuxError, OSError, ValueError) as error:
            stream.reset()
            raise Unreachable(f"{what} gave no answer: {error}") from error
        except BaseException:
            stream.reset()
            raise

    def _connected(self, node: Node, deadline: Deadline) -> Connection:
        while True:
            with self._lock:
                if self._closed:
                    raise HandshakeError("this node has left the cluster")
                link = self._links.setdefault(node.id, Link())
            connection = link.connected(partial(self._dial, node), deadline)
            if connection is not None:
                return connection  # else it was forgotten between the two calls

    def _dial(self, node: Node, deadline: Deadline) -> Connection:
        if node.host == self._host:
            sock = socket.socket(socket.AF_UNIX)
            try:
                sock.settimeout(deadline.remaining())
                sock.connect(node.path)
                check_same_user(sock)
                return from_socket(sock, role=Role.CLIENT, config=LINK, accept_streams=False)
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
            accept_streams=False,
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
    """Hold the connection to one node, which is made when it is needed.

    Of ``_over`` and ``_connection``, ``connected`` and ``close`` each set one before they read the
    other, so a connection that is made meanwhile is closed by one of them.
    """

    def __init__(self) -> None:
        self._changed = Condition(threading.Lock())
        self._connection: Connection | None = None
        self._dialled = False
        self._over = False

    def connected(
        self, dial: Callable[[Deadline], Connection], deadline: Deadline
    ) -> Connection | None:
        """Return the connection, after making it, or after another thread has made it.

        ``None`` says that the link was closed, or forgotten as unused.
        """
        dials = False
        try:
            with self._changed:
                while True:
                    connection = self._connection
                    if self._over:
                        return None
                    if connection is not None and not connection.closed:
                        return connection
                    if not self._dialled:
                        self._dialled = dials = True  # no signal is handled in between
                        break
                    if deadline.expired():
                        raise TimeoutError("another thread is still connecting to it")
                    remaining = deadline.remaining()
                    self._changed.wait(LOOK if remaining is None else min(LOOK, remaining))
            made = self._connection = dial(deadline)
            return None if self._over else made
        finally:
            if dials:
                self._dialled = False  # before any call, around which a signal may be handled
                if self._over:
                    self.close()
                with self._changed:
                    self._changed.notify_all()

    def end_unused(self) -> bool:
        """End the link if it has no connection, and none is being made; return whether it had."""
        with self._changed:
            if self._connection is None or self._connection.closed:
                self._over = not self._dialled
            return self._over

    def close(self) -> None:
        """End the connection, also one that is just being made."""
        self._over = True
        if self._connection is not None:
            self._connection.close(0.0)
        with self._changed:
            self._changed.notify_all()


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
