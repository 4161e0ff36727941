"""Run a proxy between the two ends of TCP connections that simulates a faulty network."""

from __future__ import annotations

import errno
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable

from ..runtime.closing import Closing
from ..transport.socket_io import Wakeup
from .carried import RESET, Carried
from .faultynet import FaultyNet
from .link import Faults, How

__all__ = ["FaultProxy"]

HOST = "127.0.0.1"

# Seconds that a call waits for the proxy's thread, which does nothing that takes long.
PATIENCE = 20.0

# Connections that may wait to be accepted; the system's default.
BACKLOG = 4096


class FaultProxy(Closing, FaultyNet):
    """Listen on loopback and carry each connection to a server; used as a context manager.

    ``up`` is the direction from clients to the server, ``down`` the other one. Without faults,
    bytes, half-closes and resets pass unchanged. One thread carries all connections and waits only
    in ``poll``. Every call returns once it has taken effect, or raises ``TimeoutError`` after 20
    seconds. All methods may be called from any thread.

    Args:
        target: the port on loopback, or the host and port, to which connections are carried.
        up, down: the faults of each direction; see ``set``.
        seed: the seed of jitter and ``chance``. With the same seed, the same bytes of the same
            connection are delayed equally.
        socket_buffer: the buffer size requested for each socket, so that a slow direction slows its
            sender down; ``None`` leaves it to the system, which uses megabytes.

    Attributes:
        host, port, url: where it listens; the ``url`` begins with ``ws://``.
        target: where new connections are carried to.
        accepted: the number of connections carried so far.
        refused: the number of connections ended at once, on request or because the server could not
            be reached.
        refusing: new connections are reset at once.
        chance: a ``random.Random`` with the seed, for the test's own choices.

    Raises:
        ValueError: a number is out of range.
        OSError: no port or descriptor is available.
    """

    def __init__(
        self,
        target: int | tuple[str, int],
        *,
        up: Faults | None = None,
        down: Faults | None = None,
        seed: int = 0,
        socket_buffer: int | None = 64 * 1024,
    ) -> None:
        if socket_buffer is not None and socket_buffer <= 0:
            raise ValueError(f"socket_buffer must be above 0, not {socket_buffer}")
        super().__init__(up, down, seed)
        self.target = target
        self.accepted: int = 0
        self.refused: int = 0
        self.refusing = False
        self._socket_buffer = socket_buffer
        self._orders: deque[_Order] = deque()
        self._active: set[Carried] = set()  # those that may need a step without an event
        self._failure: BaseException | None = None
        self._closing = False
        self._listener = socket.create_server((HOST, 0), backlog=BACKLOG)
        if socket_buffer is not None:
            self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, socket_buffer)
        self._listener.setblocking(False)
        self.host = HOST
        self.port: int = self._listener.getsockname()[1]
        self.url: str = f"ws://{HOST}:{self.port}"
        self._wakeup = Wakeup()
        self._poller = select.poll()
        self._owners: dict[int, Carried] = {}  # by descriptor
        self._thread = threading.Thread(target=self._run, name="wsmux-fault-proxy", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End all connections, the thread and all descriptors. Idempotent.

        Raises:
            TimeoutError: the thread did not end within 20 seconds.
            RuntimeError: the thread had failed before, which is the cause.
        """
        self._closing = True
        self._wakeup.set()
        self._thread.join(PATIENCE)
        if self._thread.is_alive():
            raise TimeoutError("the proxy's thread did not end in time")
        self._wakeup.close()
        self._check()

    @property
    def connections(self) -> int:
        """The number of connections being carried, including those that are ending."""
        return len(self._owners) // 2

    # Hooks of ``FaultyNet``

    def _end_all(self, how: How) -> None:
        for carried in set(self._owners.values()):
            carried.cut(how, time.monotonic())

    def _half_close_all(self, way: str) -> None:
        for carried in set(self._owners.values()):
            carried.half_close(way)

    def _check(self) -> None:
        if self._failure is not None:
            raise RuntimeError("the proxy's thread failed") from self._failure

    def _do(self, action: Callable[[], object]) -> None:
        """Run an action in the thread between two rounds, and wait until it is done."""
        if self._closing:
            raise RuntimeError("the proxy is closed")
        order = _Order(action)
        self._orders.append(order)
        self._wakeup.set()
        if not order.done.wait(PATIENCE) and self._thread.is_alive():
            raise TimeoutError("the proxy's thread did not answer in time")
        self._check()

    # The thread

    def _run(self) -> None:
        try:
            self._poller.register(self._wakeup.fd, select.POLLIN)
            self._poller.register(self._listener.fileno(), select.POLLIN)
            while not self._closing:
                self._round()
        except BaseException as error:
            self._failure = error
        finally:
            for carried in set(self._owners.values()):
                carried.close()
            self._owners.clear()
            self._listener.close()
            while self._orders:
                self._orders.popleft().done.set()

    def _round(self) -> None:
        stirred: set[Carried] = set()
        found = self._poller.poll(self._pause())
        now = time.monotonic()
        for fd, events in found:
            if fd == self._wakeup.fd:
                self._wakeup.clear()
            elif fd in self._owners:
                stirred.add(self._owners[fd])
                self._owners[fd].ready(fd, events, now)
        while self._orders:
            order = self._orders.popleft()
            order.action()
            stirred.update(self._owners.values())
            order.done.set()
        due = {c for c in self._active if (at := c.next_time()) is not None and at <= now}
        for carried in stirred | due:
            how = carried.step(now)
            if how is not None:
                self._cut_all(how, now)
            self._note(carried)
        if any(fd == self._listener.fileno() for fd, _ in found):
            self._accept()  # last, since it may reuse the number of a descriptor closed here

    def _cut_all(self, how: How, now: float) -> None:
        for carried in set(self._owners.values()):
            carried.cut(how, now, flush=True)
            self._note(carried)

    def _note(self, carried: Carried) -> None:
        """Track which connections may need a step without an event, and which have ended."""
        if carried.next_time() is None or carried.over:
            self._active.discard(carried)
        else:
            self._active.add(carried)
        if carried.over:
            known = [fd for fd, owner in self._owners.items() if owner is carried]
            for fd in known:
                del self._owners[fd]
            self.refused += bool(known) and carried.unreachable

    def _pause(self) -> float | None:
        """Return the milliseconds until something is due."""
        accepts = not all(way.frozen for way in self._ways.values())
        self._poller.modify(self._listener.fileno(), select.POLLIN if accepts else 0)
        times = [at for carried in self._active if (at := carried.next_time()) is not None]
        return max(0.0, min(times) - time.monotonic()) * 1000 if times else None

    def _accept(self) -> None:
        try:
            near, _ = self._listener.accept()
        except (BlockingIOError, ConnectionError):
            return  # it has already disconnected
        if self.refusing:
            self.refused += 1
            hang_up(near)
            return
        target = (HOST, self.target) if isinstance(self.target, int) else self.target
        try:
            far = socket.socket(socket.AF_INET6 if ":" in target[0] else socket.AF_INET)
        except OSError:  # no descriptor left
            self.refused += 1
            hang_up(near)
            return
        for sock in (near, far):
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._socket_buffer is not None:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self._socket_buffer)
        if self._socket_buffer is not None:
            far.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._socket_buffer)
        error = far.connect_ex(target)
        if error not in (0, errno.EINPROGRESS):
            self.refused += 1
            far.close()
            hang_up(near)
            return
        carried = Carried(near, far, self._ways, f"{self.seed} {self.accepted}", self._poller)
        self.accepted += 1
        self._owners |= dict.fromkeys(carried.descriptors(), carried)
        carried.step(time.monotonic())


def hang_up(sock: socket.socket) -> None:
    """Reset a connection that is not carried."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    sock.close()


class _Order:
    """An action for the thread."""

    __slots__ = ("action", "done")

    def __init__(self, action: Callable[[], object]) -> None:
        self.action = action
        self.done = threading.Event()
