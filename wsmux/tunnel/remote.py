"""Run a command on a server that allows it, much like ``subprocess.Popen``."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from ..exceptions import StreamError, StreamReset
from ..mux.connection import Connection
from ..mux.stream import Stream
from ..runtime.arguments import strings
from ..runtime.closing import Closing
from ..runtime.deadline import Deadline
from .errors import TunnelError
from .exchange import HEAD_TIMEOUT, ask
from .programs import SIGNALS
from .request_head import Request

__all__ = ["RemoteProcess"]

# Maximum length of the line with the result, which may contain an error message.
MAX_LINE = 1024


class RemoteProcess(Closing):
    """Start a command; leaving a ``with`` block kills it if it is still running.

    ::

        with RemoteProcess(connection, ["sort"]) as process:
            process.stdio.write(text)
            process.stdio.close_write()
            result = process.stdio.read()
            code = process.wait()

    Args:
        connection: to a server with a ``TunnelServer`` that allows the program.
        argv: the program, by the name that the server uses, and its arguments; at most 8 KiB,
            quoted.
        timeout: seconds for the server to answer.

    Attributes:
        stdio: reads stdout and writes stdin; ``close_write()`` ends stdin.
        stderr: reads stderr. The command blocks if stdout or stderr is not read.

    Raises:
        TunnelError: the server does not allow the program (403), or is busy (503).
        WsmuxError: the connection ended.
        TypeError: ``argv`` is not a collection of strings, for example a single string.
    """

    def __init__(
        self, connection: Connection, argv: Sequence[str], *, timeout: float = HEAD_TIMEOUT
    ) -> None:
        command = strings("argv", argv, "sort")
        if not command:
            raise ValueError("argv is empty: name a program")
        deadline = Deadline(timeout)
        self._code: int | None = None
        self._opened: list[Stream] = []
        try:
            program, *arguments = command
            self._control = self._open(connection, deadline)
            token = ask(self._control, Request("EXEC", program, tuple(arguments)), deadline)
            self.stdio: Stream = self._join(connection, Request("STDIO", token), deadline)
            self.stderr: Stream = self._join(connection, Request("STDERR", token), deadline)
        except BaseException:
            self.close()
            raise

    def _open(self, connection: Connection, deadline: Deadline) -> Stream:
        self._opened.append(connection.open_stream(deadline.remaining()))
        return self._opened[-1]

    def _join(self, connection: Connection, request: Request, deadline: Deadline) -> Stream:
        stream = self._open(connection, deadline)
        with suppress(StreamReset):  # the command did not start, as ``wait`` reports
            ask(stream, request, deadline)
        return stream

    def send_signal(self, name: str) -> None:
        """Send a signal to the command and its process group.

        Args:
            name: one of ``HUP``, ``INT``, ``QUIT``, ``TERM`` and ``KILL``.

        Raises:
            ValueError: it is another name.
            WsmuxError: the command or the connection has ended.
        """
        if name not in SIGNALS:
            raise ValueError(f"{name!r} is none of {', '.join(SIGNALS)}")
        self._control.write(f"{name}\n".encode())

    def wait(self, timeout: float | None = None) -> int:
        """Wait until the command has ended and all its output has been sent; return its exit code.

        As in ``subprocess``, the code is ``-N`` if signal ``N`` ended the command.

        Raises:
            TimeoutError: it is still running.
            TunnelError: it could not be started, or the server's answer is invalid.
            WsmuxError: the connection ended; the command is killed.
        """
        if self._code is None:
            self._control.timeout = timeout
            line = bytearray()
            while not line.endswith(b"\n") and len(line) < MAX_LINE:
                byte = self._control.read(1)
                if not byte:
                    break
                line += byte
            self._code = _code(line.decode("utf-8", "replace").rstrip("\n"))
        return self._code

    def close(self) -> None:
        """Release the command; the server kills it if it is still running."""
        for stream in self._opened:
            if not stream.closed:
                try:
                    stream.close() if self._code is not None else stream.reset()
                except StreamError:
                    continue  # it has ended in the meantime


def _code(line: str) -> int:
    how, _, number = line.partition(" ")
    if how == "failed":
        raise TunnelError(502, f"the command cannot run: {number}")
    if how not in ("exit", "signal") or not number.isascii() or not number.isdigit():
        raise TunnelError(502, "the server did not report how the command ended")
    return int(number) if how == "exit" else -int(number)
