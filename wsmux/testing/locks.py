"""Detect locks that are taken in different orders, or held during blocking socket calls.

Locks are identified by the line that creates them. A wrong order is detected even if it did not
block this time: the acquisitions of all threads form a graph of "held while waiting for", and a
cycle in it is a potential deadlock. Two locks created by the same line are separate nodes where one
is requested while the other is held.
"""

from __future__ import annotations

import importlib
import select
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Collection, Iterable
from types import FrameType, ModuleType, TracebackType
from typing import Any, NamedTuple, Self

from ..runtime.arguments import strings

__all__ = ["LockOrder", "LockOrderError"]

# Modules of every connection, whatever else is loaded.
NEEDED = (
    "wsmux.endpoints.acceptor",
    "wsmux.handshake.admission",
    "wsmux.transport.message_transport",
    "wsmux.runtime.memory",
    "wsmux.runtime.thread_pool",
    "wsmux.transport.send_queue",
    "wsmux.transport.socket_io",
    "wsmux.endpoints.stream_handlers",
)

# A sender holds the send lock while the socket is full. Only the I/O thread ever waits for it, in
# ``finish``, after it has shut down the socket, which ends the sender's wait.
MAY_BLOCK = ("wsmux.transport.send_queue",)

# Socket methods that may block.
CALLS = ("accept", "connect", "recv", "recv_into", "send", "sendall", "sendmsg")

Node = tuple[str, int]  # the line that created a lock, and its number where needed
Stack = list[traceback.FrameSummary]


class LockOrderError(AssertionError):
    """Report locks taken in conflicting orders, or held during a blocking call, with stacks."""


class Edge(NamedTuple):
    """Record that a thread held one lock and requested another."""

    thread: str
    held_since: Stack
    asked_at: Stack


class LockOrder:
    """Watch the locks that some modules create; used as a context manager.

    Only objects created inside the block are watched, and only during the block. At its end it
    raises its findings, unless the block raised. A thread that requests a ``Lock`` it already
    holds, and would wait forever, raises at once.

    A lock may be held during a blocking socket call, or a ``poll``, if no thread ever waits for it:
    merely trying to acquire a lock does not block.

    Args:
        modules: the modules, or their names, whose ``threading`` and ``select`` are replaced
            meanwhile. By default all loaded modules of wsmux, and those of connections.
        may_block: modules whose locks may be held during blocking calls in any case; by default the
            one of wsmux whose lock is released when the socket is shut down.

    Attributes:
        edges: for each pair of locks, the first thread that held the one and requested the other.
        locks: the number of locks created.
        acquisitions: the approximate number of acquisitions: threads do not synchronise their
            counts.

    Raises:
        LockOrderError: a cycle, or a lock held during a blocking call, with all stacks.

    >>> import wsmux
    >>> from wsmux.testing import LockOrder
    >>> with LockOrder() as order:
    ...     client, server = wsmux.pair()
    ...     with client, server:
    ...         ok = client.ping(timeout=5) > 0
    >>> ok, order.locks > 0
    (True, True)
    """

    def __init__(
        self,
        modules: Iterable[str | ModuleType] | None = None,
        *,
        may_block: Collection[str] = MAY_BLOCK,
    ) -> None:
        self._may_block = frozenset(strings("may_block", may_block, MAY_BLOCK[0]))
        if isinstance(modules, str | bytes):
            strings("modules", modules, "wsmux.mux.stream")  # raises
        self._modules = [
            importlib.import_module(module) if isinstance(module, str) else module
            for module in (_of_wsmux() if modules is None else modules)
        ]
        self.edges: dict[tuple[Node, Node], Edge] = {}
        self.locks: int = 0
        self.acquisitions: int = 0
        self._waited_for: set[str] = set()  # lines whose locks some thread waits for
        self._across: dict[str, Edge] = {}  # lines whose locks were held during a blocking call
        self._guard = threading.Lock()
        self._local = _Held()
        self._kept: list[tuple[Any, str, Any]] = []
        self._threading = _Makers(threading, self)
        self._select = _Polls(select, self)

    def __enter__(self) -> Self:
        for module in self._modules:
            for name, standing in (("threading", self._threading), ("select", self._select)):
                if getattr(module, name, None) in (threading, select):
                    self._exchange(module, name, standing)
        for name in CALLS:
            self._exchange(socket.socket, name, self._watched(getattr(socket.socket, name)))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        while self._kept:
            owner, name, value = self._kept.pop()
            if value is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, value)
        if error is None:
            self.check()

    def check(self) -> None:
        """Raise the findings so far."""
        found = [self._told(cycle) for cycle in self.cycles()]
        with self._guard:
            across = [
                (line, edge)
                for line, edge in self._across.items()
                if line in self._waited_for and line.partition(":")[0] not in self._may_block
            ]
        found += [
            f"{line}, which others wait for, is held across a blocking call\n{_both(edge)}"
            for line, edge in across
        ]
        if found:
            raise LockOrderError("\n".join(found))

    def cycles(self) -> list[list[Node]]:
        """Return the locks of each cycle, with the first one repeated at the end."""
        with self._guard:
            graph: dict[Node, list[Node]] = {}
            for held, asked in self.edges:
                graph.setdefault(held, []).append(asked)
        found: list[list[Node]] = []
        done: set[Node] = set()
        for start in graph:
            path = _way_back(graph, start)
            if path is not None and not done & set(path):
                found.append(path)
                done |= set(path)
        return found

    def _told(self, cycle: list[Node]) -> str:
        steps = list(zip(cycle, cycle[1:], strict=False))
        names = " -> ".join(f"{line} #{number}" if number else line for line, number in cycle)
        stacks = "\n".join(_both(self.edges[step]) for step in steps)
        return f"locks are taken in a circle: {names}\n{stacks}"

    def _exchange(self, owner: Any, name: str, value: Any) -> None:
        self._kept.append((owner, name, vars(owner).get(name, _ABSENT)))
        setattr(owner, name, value)

    def _watched(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def watched(sock: socket.socket, *args: Any, **kwargs: Any) -> Any:
            if self._local.held and sock.gettimeout() != 0:
                self.blocks()
            return call(sock, *args, **kwargs)

        return watched

    # Reports of the locks

    def made(self) -> tuple[str, int]:
        """Return the line that creates a lock, and the lock's number."""
        frame: FrameType | None = sys._getframe(2)
        while frame is not None and frame.f_code.co_filename == __file__:
            frame = frame.f_back
        assert frame is not None
        with self._guard:
            self.locks += 1
            return f"{frame.f_globals.get('__name__')}:{frame.f_lineno}", self.locks

    def asks(self, lock: WatchedLock, waits: bool) -> None:
        """Record that a thread is about to acquire a lock."""
        if not waits:
            return
        held = self._local.held
        self._waited_for.add(lock.line)
        for other, since in held:
            if other is lock:
                raise LockOrderError(
                    f"the thread would wait for {lock.line}, which it holds itself, for ever\n"
                    + _both(Edge(threading.current_thread().name, since(), _stack()))
                )
            same = other.line == lock.line
            pair = (other.line, other.number * same), (lock.line, lock.number * same)
            if pair not in self.edges:
                edge = Edge(threading.current_thread().name, since(), _stack())
                with self._guard:
                    self.edges.setdefault(pair, edge)

    def has(self, lock: WatchedLock) -> None:
        """Record that the calling thread has acquired a lock."""
        self.acquisitions += 1
        self._local.held.append((lock, _Since(sys._getframe(2))))
        lock.holders = self._local.held

    def lets_go(self, lock: WatchedLock) -> None:
        """Record that a lock is released, by any thread."""
        held, lock.holders = lock.holders, None
        if held is not None:
            held[:] = [entry for entry in held if entry[0] is not lock]

    def blocks(self) -> None:
        """Record that the calling thread is about to block, other than on a lock."""
        for lock, since in self._local.held:
            if lock.line not in self._across:
                edge = Edge(threading.current_thread().name, since(), _stack())
                with self._guard:
                    self._across.setdefault(lock.line, edge)


class WatchedLock:
    """A ``threading.Lock`` that reports its use."""

    _make: Callable[[], Any] = staticmethod(threading.Lock)

    def __init__(self, order: LockOrder) -> None:
        self._order = order
        self._lock = self._make()
        self.line, self.number = order.made()
        self.holders: list[tuple[WatchedLock, _Since]] | None = None

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        self._order.asks(self, blocking and timeout != 0)
        got: bool = self._lock.acquire(blocking, timeout)
        if got:
            self._order.has(self)
        return got

    def release(self) -> None:
        self._order.lets_go(self)
        self._lock.release()

    def locked(self) -> bool:
        held: bool = self._lock.locked()
        return held

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def _at_fork_reinit(self) -> None:
        self._lock._at_fork_reinit()
        self.holders = None


class WatchedRLock(WatchedLock):
    """A ``threading.RLock`` that reports the outermost acquisition of each thread."""

    _make = staticmethod(threading.RLock)

    def __init__(self, order: LockOrder) -> None:
        super().__init__(order)
        self._depth = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if self._lock._is_owned():
            self._depth += 1
            return bool(self._lock.acquire())
        if not super().acquire(blocking, timeout):
            return False
        self._depth = 1
        return True

    def release(self) -> None:
        if self._lock._is_owned() and self._depth > 1:
            self._depth -= 1
            self._lock.release()
        else:
            super().release()

    # Methods that ``threading.Condition`` calls on its lock.

    def _is_owned(self) -> bool:
        return bool(self._lock._is_owned())

    def _release_save(self) -> Any:
        self._order.lets_go(self)
        return self._depth, self._lock._release_save()

    def _acquire_restore(self, state: Any) -> None:
        self._order.asks(self, waits=True)
        depth, kept = state
        self._lock._acquire_restore(kept)
        self._depth = depth
        self._order.has(self)


class _Since:
    """Remember where a lock was acquired; the stack is extracted only on request."""

    __slots__ = ("_frame", "_line")

    def __init__(self, frame: FrameType) -> None:
        self._frame = frame
        self._line = frame.f_lineno

    def __call__(self) -> Stack:
        frames = [(frame, line) for frame, line in traceback.walk_stack(self._frame)]
        frames[0] = (self._frame, self._line)
        stack = traceback.StackSummary.extract(iter(frames))[::-1]
        return [entry for entry in stack if entry.filename != __file__]


class _Held(threading.local):
    """Hold the locks that the thread holds."""

    def __init__(self) -> None:
        self.held: list[tuple[WatchedLock, _Since]] = []


class _Standing:
    """A replacement for a module inside another one."""

    def __init__(self, module: ModuleType, order: LockOrder) -> None:
        self._module = module
        self._order = order

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


class _Makers(_Standing):
    """A replacement for ``threading``."""

    def Lock(self) -> WatchedLock:
        return WatchedLock(self._order)

    def RLock(self) -> WatchedRLock:
        return WatchedRLock(self._order)

    def Condition(self, lock: Any = None) -> threading.Condition:
        watched: Any = WatchedRLock(self._order) if lock is None else lock
        return threading.Condition(watched)


class _Polls(_Standing):
    """A replacement for ``select``."""

    def poll(self) -> _Poll:
        return _Poll(select.poll(), self._order)

    def epoll(self) -> _Poll:
        return _Poll(select.epoll(), self._order)


class _Poll:
    """A ``select.poll`` or ``select.epoll`` object that reports."""

    def __init__(self, poll: Any, order: LockOrder) -> None:
        self._poll = poll
        self._order = order

    def __getattr__(self, name: str) -> Any:
        return getattr(self._poll, name)

    def poll(self, timeout: float | None = None) -> list[tuple[int, int]]:
        if timeout != 0:
            self._order.blocks()
        found: list[tuple[int, int]] = self._poll.poll(timeout)
        return found


_ABSENT = object()


def _of_wsmux() -> list[str]:
    for name in NEEDED:
        importlib.import_module(name)
    return [
        name
        for name in sys.modules
        if name.startswith("wsmux.") and not name.startswith(__package__)
    ]


def _stack() -> Stack:
    """Return the stack of the caller, without the frames of this module."""
    return [entry for entry in traceback.extract_stack() if entry.filename != __file__]


def _both(edge: Edge) -> str:
    held = "".join(traceback.format_list(edge.held_since))
    asked = "".join(traceback.format_list(edge.asked_at))
    return f"in {edge.thread}, held since\n{held}then at\n{asked}"


def _way_back(graph: dict[Node, list[Node]], start: Node) -> list[Node] | None:
    """Return a path from a node back to itself."""
    paths, seen = [[start]], {start}
    while paths:
        path = paths.pop()
        for after in graph.get(path[-1], ()):
            if after == start:
                return [*path, start]
            if after not in seen:
                seen.add(after)
                paths.append([*path, after])
    return None
