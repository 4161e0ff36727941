"""Run allowed commands for clients, each connected by three streams.

``EXEC`` opens the control stream: its answer is a token, with which the client opens the other two
streams by ``STDIO`` and ``STDERR``. Then the command starts. On the control stream the client may
send signal names, one per line; the last line from the server is ``exit CODE`` or
``signal NUMBER``, sent when the command has ended and all its output has been passed on.

The command gets its own session, no shell, a small environment, default signal handling (whatever
the server ignores), and the server's working directory. If the client disconnects, or resets a
stream, the whole process group is killed. The process is reaped last, so that its pid is not reused
before.
"""

from __future__ import annotations

import os
import secrets
import select
import shutil
import signal
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import IO, TypeVar

from ..exceptions import StreamWriteClosed, WsmuxError
from ..mux.stream import Stream
from ..mux.stream_socket import CHUNK
from ..runtime.arguments import strings
from ..runtime.deadline import Deadline
from ..runtime.logs import logger
from ..runtime.parking import Condition
from ..runtime.threads import daemon_thread
from ..transport.socket_io import Wakeup
from .errors import TunnelError
from .exchange import HEAD_TIMEOUT, answer
from .request_head import Request
from .spawning import Spawned

__all__ = ["SIGNALS", "Programs"]

# Concurrent commands, with five threads and three streams each.
MAX_PROCESSES = 16

# Signals that a client may send.
SIGNALS = {name: getattr(signal, f"SIG{name}") for name in ("HUP", "INT", "QUIT", "TERM", "KILL")}

# Maximum length of a line with a signal name.
MAX_LINE = 16

# Variables that a command inherits; the server's environment may contain secrets.
ENVIRONMENT = ("HOME", "LANG", "LC_ALL", "LOGNAME", "PATH", "TMPDIR", "TZ", "USER")

Result = TypeVar("Result")

_log = logger("wsmux.tunnel")


class Programs:
    """Hold the allowed programs, and the running commands.

    Args:
        allowed: absolute paths, or names that are looked up on ``PATH`` once, now.
        max_processes: concurrent commands; further requests are answered with 503.

    Raises:
        ValueError: there is no such program.
        TypeError: they are not a collection of strings.
    """

    def __init__(self, allowed: Iterable[str] = (), max_processes: int = MAX_PROCESSES) -> None:
        self._paths: dict[str, str] = {}
        for name in strings("programs", allowed, "/usr/bin/sort"):
            path = shutil.which(name)
            if path is None or ("/" in name and not os.path.isabs(name)):
                raise ValueError(f"{name!r} is no program on PATH, nor the absolute path of one")
            self._paths[name] = os.path.abspath(path)
        self._max_processes = max_processes
        self._lock = threading.Lock()
        self._running: dict[str, _Running] = {}

    def run(self, control: Stream, request: Request) -> None:
        """Serve the control stream of a command, until the command has ended."""
        if not self._paths:
            raise TunnelError(403, "commands are not allowed here")
        path = self._paths.get(request.target)
        if path is None:
            raise TunnelError(403, f"{request.target} is not on the list of allowed commands")
        token = secrets.token_hex(16)
        with self._lock:
            if len(self._running) >= self._max_processes:
                raise TunnelError(503, f"{self._max_processes} commands are already running")
            running = self._running[token] = _Running(control, path, request)
        try:
            running.run(token)
        finally:
            with self._lock:
                del self._running[token]

    def attach(self, stream: Stream, request: Request) -> None:
        """Serve one of the other two streams, identified by the token given to the client."""
        with self._lock:
            running = self._running.get(request.target)
        if running is None or not running.belongs(stream):
            raise TunnelError(403, "no command has this token")
        running.attach(stream, request.method)


class _Stopped(Exception):
    """Leave a copying loop: the client has disconnected, and the command was killed."""


class _Running:
    """One command, its pipes and its streams.

    Five threads: one for each of the three streams (that of the control stream waits for the
    process), one that copies stdin, and one that handles the client's signals.
    """

    def __init__(self, control: Stream, path: str, request: Request) -> None:
        self._control = control
        self._path = path
        self._argv = [request.target, *request.arguments]
        self._changed = Condition()  # guards all attributes below
        self._taken: set[str] = set()  # which of the other two streams have been requested
        self._streams: dict[str, Stream] = {}
        self._process: Spawned | None = None
        self._writing = 0  # how many of stdout and stderr have not ended
        self._early: list[int] = []  # signals for when it has started
        self._reaped = False
        self._stopped = False  # the client has disconnected
        self._over = False
        self._wake = Wakeup()

    def belongs(self, stream: Stream) -> bool:
        """Return whether a stream belongs to the client that started the command."""
        return stream.connection is self._control.connection

    def run(self, token: str) -> None:
        """Run the thread of the control stream."""
        threads: list[threading.Thread] = []
        try:
            answer(self._control, 200, token)
            self._start(self._obey, threads)
            process = self._started(Deadline(HEAD_TIMEOUT))
            if process is None:
                return
            self._start(self._copy_in, threads)
            # Not reaped yet: a zombie keeps its process group id from being reused.
            process.await_end()
            with self._changed:
                while self._writing:
                    self._changed.wait()
            code = self._reap(process)
            if not self._stopped:
                self._say(f"signal {-code}" if code < 0 else f"exit {code}")
        finally:
            self._close(threads)

    def _start(self, target: Callable[[], None], threads: list[threading.Thread]) -> None:
        name = f"{self._control.connection.name}{target.__name__.replace('_', '-')}"
        threads.append(daemon_thread(target=target, name=name))
        threads[-1].start()

    def _started(self, deadline: Deadline) -> Spawned | None:
        """Start the process once both streams are there; return ``None`` if it cannot start."""
        with self._changed:
            while len(self._streams) < 2:
                if self._stopped:
                    return None
                if deadline.expired():
                    _log.info("a client did not open the streams of its command in time")
                    self._control.reset()
                    return None
                self._changed.wait(deadline.remaining())
        try:
            process = Spawned(
                self._path,
                self._argv,
                {name: os.environ[name] for name in ENVIRONMENT if name in os.environ},
            )
        except (OSError, ValueError) as error:
            _log.warning("%s cannot run: %s", self._path, error)
            self._say(f"failed {error}")
            return None
        for pipe in (process.stdin, process.stdout, process.stderr):
            os.set_blocking(pipe.fileno(), False)
        with self._changed:
            self._process, self._writing = process, 2
            for number in self._early:
                self._signal(number)
            self._changed.notify_all()
        return process

    def _say(self, line: str) -> None:
        self._control.timeout = HEAD_TIMEOUT
        self._control.write(f"{line}\n".encode("utf-8", "replace"))
        self._control.close_write()

    def _reap(self, process: Spawned) -> int:
        with self._changed:
            self._reaped = True
        return process.wait()

    def _close(self, threads: Iterable[threading.Thread]) -> None:
        """End everything that remains, and release it."""
        process = self._process
        if process is not None and not self._reaped:  # a thread could not be started
            self._kill()
            self._reap(process)
        with self._changed:
            self._over = True
            self._changed.notify_all()
            while self._writing:
                self._changed.wait()
            streams = list(self._streams.values())
        for stream in (self._control, *streams):
            if not stream.closed:
                stream.close_read()  # wakes its reader
        self._wake.set()
        for thread in threads:
            if thread.ident is not None:
                thread.join()
        for pipe in (process.stdin, process.stdout, process.stderr) if process else ():
            pipe.close()
        self._wake.close()

    # Signals

    def _kill(self) -> None:
        """Kill the process group and stop copying, even if other processes hold the pipes.

        Does nothing once the process has been reaped: then all its output was passed on.
        """
        with self._changed:
            if self._reaped or self._stopped:
                return
            self._stopped = True
            self._signal(signal.SIGKILL)
            streams = list(self._streams.values())
            self._changed.notify_all()
        self._wake.set()
        for stream in streams:
            if not stream.closed:
                stream.reset()

    def _signal(self, number: int) -> None:
        with self._changed:
            if self._process is None:
                if number not in self._early:
                    self._early.append(number)
            elif not self._reaped:
                # It is a zombie at worst, or no process, where others in this one reap it. That the
                # system gives its id away meanwhile takes all ids to be used once.
                with suppress(ProcessLookupError):
                    os.killpg(self._process.pid, number)

    def _obey(self) -> None:
        """Send the signals that the client names; kill the command if it disconnects."""
        rest = b""
        try:
            while data := self._control.read(MAX_LINE):
                *lines, rest = (rest + data).split(b"\n")
                if len(rest) > MAX_LINE:
                    lines.append(rest)
                for line in lines:
                    self._signal(SIGNALS[line.decode("ascii", "replace")])
        except KeyError as error:
            _log.warning("%s is killed: its client sent the unknown signal %s", self._path, error)
        except (WsmuxError, ValueError) as error:  # ValueError once it has ended
            _log.debug("%s can no longer be signalled: %s", self._path, error)
        self._kill()

    # Copying

    def attach(self, stream: Stream, kind: str) -> None:
        """Run the thread of another stream: copy the process's output to it."""
        with self._changed:
            if kind in self._taken or self._over:
                raise TunnelError(400, f"the command already has its {kind}")
            self._taken.add(kind)
        answer(stream, 200, "OK")
        with self._changed:
            self._streams[kind] = stream
            self._changed.notify_all()
            while self._process is None and not self._over:
                self._changed.wait()
            process = self._process
        if process is None:
            stream.reset()
            return
        try:
            self._copy_out(process.stdout if kind == "STDIO" else process.stderr, stream)
        except _Stopped:
            stream.reset()
        except WsmuxError:
            self._kill()
            raise
        finally:
            with self._changed:
                self._writing -= 1
                self._changed.notify_all()
                while not self._over:  # the other direction may still be in use
                    self._changed.wait()

    def _copy_out(self, pipe: IO[bytes], stream: Stream) -> None:
        try:
            poller = self._poller(pipe, select.POLLIN)
            while data := self._when_ready(poller, partial(os.read, pipe.fileno(), CHUNK)):
                stream.write(data)
            stream.close_write()
        except StreamWriteClosed:
            return  # the command gets EPIPE
        finally:
            pipe.close()

    def _copy_in(self) -> None:
        assert self._process is not None
        pipe, stream = self._process.stdin, self._streams["STDIO"]
        try:
            poller = self._poller(pipe, select.POLLOUT)
            while data := stream.read(CHUNK):
                view = memoryview(data)
                while view:
                    view = view[self._when_ready(poller, partial(os.write, pipe.fileno(), view)) :]
        except _Stopped:
            return
        except WsmuxError as error:
            _log.info("%s is killed: %s", self._path, error)
            self._kill()
        except BrokenPipeError:
            stream.close_read()  # the command has closed its stdin
        except ValueError:
            return  # it has ended
        finally:
            pipe.close()

    def _poller(self, pipe: IO[bytes], events: int) -> select.poll:
        poller = select.poll()
        poller.register(pipe.fileno(), events)
        poller.register(self._wake.fd, select.POLLIN)
        return poller

    def _when_ready(self, poller: select.poll, call: Callable[[], Result]) -> Result:
        while True:
            if self._stopped or self._over:
                raise _Stopped
            try:
                return call()
            except BlockingIOError:
                poller.poll()
