"""Publish the connections and sessions of a process to its own user, for ``wsmux top PID``.

A Unix socket in a private directory of the user sends each client one JSON document of
``wsmux.diagnostics.status`` and reads nothing. Root has access, too.
"""

from __future__ import annotations

import json
import os
import socket
import tempfile
import threading
from contextlib import suppress
from pathlib import Path

from ..exceptions import NoThreadError
from ..runtime import fork
from ..runtime.arguments import check_seconds
from ..runtime.closing import Leaving
from ..runtime.files import private_folder
from ..runtime.logs import logger
from ..runtime.parking import OneShotEvent
from ..runtime.threads import daemon_thread, register, start_thread
from .status import STALLED_AFTER, Sources, Watched, document

__all__ = ["LiveSocket", "socket_path"]

# Seconds that a client may take to read its document, while others wait.
PATIENCE = 5.0

BACKLOG = 16

# Seconds before a failed accept is retried.
PAUSE = 1.0

_log = logger("wsmux")
_taken = threading.Lock()  # held by the only one of this process


def socket_path(pid: int, user: int) -> Path:
    """Return the path at which the process of a user publishes."""
    return Path(tempfile.gettempdir()) / f"wsmux-{user}" / f"{pid}.sock"


class LiveSocket(Leaving):
    """Publish connections and sessions until ``stop``, from a daemon thread; one per process.

    ::

        with wsmux.serve(handler) as server, wsmux.LiveSocket(server):
            server.serve_forever()  # and "wsmux top PID" from another terminal

    The socket is in the directory for temporary files, which clients must share.

    Args:
        connections: a connection, a ``Server`` or ``Mux``, a server, handler or client of
            ``wsmux.rpc``, whose River sessions are published, a collection of these, or a function
            that returns one and is called each time. Servers and clients are weakly held.
        stalled_after: seconds without progress after which something is reported as stalled.

    Raises:
        ValueError: ``stalled_after`` is not above 0.
        RuntimeError: this process already publishes its connections.
        NoThreadError: no thread could be started.
        OSError: the socket cannot be created, or other users have access to its directory.
    """

    def __init__(self, connections: Sources, *, stalled_after: float = STALLED_AFTER) -> None:
        check_seconds(stalled_after=stalled_after)
        self._watched = Watched(connections, sessions=True)
        self._stalled_after = stalled_after
        self._pid = os.getpid()
        if not _taken.acquire(blocking=False):
            raise RuntimeError("this process already publishes its connections")
        self.path: Path = socket_path(self._pid, os.getuid())
        try:
            self._listener = _listen(self.path)
        except OSError:
            _taken.release()
            raise
        self._stopping, self._stopped = threading.Lock(), OneShotEvent()
        try:
            self._thread = daemon_thread(target=self._run, name="wsmux-live")
            start_thread(self._thread)
        except NoThreadError:
            self._let_go()
            raise
        fork.register(self)
        register(self)

    def stop(self) -> None:
        """Stop publishing. Waits up to five seconds for a client that is being served."""
        if os.getpid() != self._pid or not self._stopping.acquire(blocking=False):
            return
        self._stopped.set()
        self._listener.shutdown(socket.SHUT_RDWR)  # wakes accept()
        self._thread.join()
        self._let_go()

    def leave(self) -> None:
        """End with the interpreter; see ``runtime.threads``."""
        self.stop()

    def _let_go(self) -> None:
        self._listener.close()
        with suppress(FileNotFoundError):  # already removed
            self.path.unlink()
        _taken.release()

    def forked(self) -> None:
        """Close the socket in a forked child, which may publish its own connections."""
        self._listener.close()
        with suppress(RuntimeError):  # the parent had released it
            _taken.release()

    def _leave(self, error: BaseException | None) -> None:
        self.stop()

    def _run(self) -> None:
        try:
            while True:
                try:
                    asking, _ = self._listener.accept()
                except OSError as error:
                    if self._stopped.wait(0.0):
                        return
                    _log.warning("serving a client of %s failed: %s", self.path, error)
                    self._stopped.wait(PAUSE)  # a descriptor may become free
                    continue
                with asking:
                    self._tell(asking)
        except Exception:
            _log.exception("the connections are no longer published")

    def _tell(self, asking: socket.socket) -> None:
        told = json.dumps(document(self._watched.sources(), self._stalled_after))
        asking.settimeout(PATIENCE)
        try:
            asking.sendall(told.encode())
        except OSError as error:
            _log.debug("a client of %s has left: %s", self.path, error)


def _listen(path: Path) -> socket.socket:
    private_folder(path.parent)
    path.unlink(missing_ok=True)  # left by a killed process with the same pid
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind(str(path))
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener
