"""Run a command on a server that allows it, with stdin, stdout, stderr and exit status.

SIGINT and SIGTERM are passed on to it; a second Ctrl-C ends this process at once, and the command.
"""

from __future__ import annotations

import argparse
import os
import queue
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

from .addresses import PROTOCOLS, add_connecting, add_subprotocol, add_token, connecting, url
from .terminal import seconds

if TYPE_CHECKING:
    from ..mux.stream import Stream
    from ..tunnel.remote import RemoteProcess

EPILOG = (
    "Example: wsmux exec --token-file FILE wss://example.org/tunnel -- sort -r < names. The server "
    "must allow the program: wsmux serve --exec sort. The exit status is the command's, 128+N if "
    "signal N ended it; 1 with a line on stderr if it has none. The command has no terminal, and "
    "thus no window size."
)

CHUNK = 64 * 1024

# Seconds for the rest of the command's stderr, once it has ended.
PATIENCE = 10.0

PASSED_ON = {signal.SIGINT: "INT", signal.SIGTERM: "TERM"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``wsmux exec``."""
    parser.add_argument("url", type=url, metavar="URL", help="ws://, wss:// or tcp:// address")
    parser.add_argument("argv", nargs="+", metavar="ARG", help="the program and its arguments")
    parser.add_argument("-d", "--no-stdin", action="store_true", help="send nothing")
    parser.add_argument("--protocol", choices=PROTOCOLS, default="wsmux")
    add_subprotocol(parser)
    parser.add_argument("--timeout", type=seconds, help="seconds to connect; 10 by default")
    add_connecting(parser, resumes=False)
    add_token(parser)


def run(args: argparse.Namespace) -> int:
    """Run the command; return its exit status."""
    import wsmux

    from ..tunnel.remote import RemoteProcess

    connection = wsmux.connect(
        args.url,
        protocol=args.protocol,
        timeout=args.timeout,
        **connecting(args, args.url),
        accept_streams=False,
    )
    with connection, RemoteProcess(connection, args.argv) as process, _signals(process):
        code = _Copy(process, reads_stdin=not args.no_stdin).run()
    return code if code >= 0 else 128 - code


class _Copy:
    """Copy stdin and stderr in threads, and stdout in the calling thread."""

    def __init__(self, process: RemoteProcess, *, reads_stdin: bool) -> None:
        self._process = process
        self._reads_stdin = reads_stdin
        # Descriptors: a buffered file in use by a daemon thread cannot be shut down at exit.
        self._in = sys.stdin.fileno()
        self._failure: Exception | None = None

    def run(self) -> int:
        """Return the exit code once the command has ended and all its output was written here.

        Raises:
            WsmuxError, OSError: the first failure.
        """
        process = self._process
        errors = threading.Thread(target=self._errors, name="wsmux-exec-stderr", daemon=True)
        errors.start()
        if self._reads_stdin:
            threading.Thread(target=self._send, name="wsmux-exec-stdin", daemon=True).start()
        else:
            process.stdio.close_write()
        try:
            _copy_out(process.stdio, sys.stdout.fileno())
            code = process.wait()
        except Exception:
            if self._failure is not None:
                raise self._failure from None
            raise
        errors.join(PATIENCE)
        if self._failure is not None:
            raise self._failure
        return code

    def _errors(self) -> None:
        try:
            _copy_out(self._process.stderr, sys.stderr.fileno())
        except ValueError:
            return  # the command is ending here
        except Exception as error:
            self._fail(error)

    def _send(self) -> None:
        from ..exceptions import StreamWriteClosed

        stdio = self._process.stdio
        try:
            while chunk := os.read(self._in, CHUNK):
                stdio.write(chunk)
            stdio.close_write()
        except (StreamWriteClosed, ValueError):
            return  # it has closed stdin, or ended
        except Exception as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        self._failure = self._failure or error
        self._process.close()  # wakes the calling thread; the server kills the command


def _copy_out(stream: Stream, descriptor: int) -> None:
    while chunk := stream.read(CHUNK):
        view = memoryview(chunk)
        while view:
            view = view[os.write(descriptor, view) :]


@contextmanager
def _signals(process: RemoteProcess) -> Iterator[None]:
    """Pass signals on in a thread: a handler may run while any lock of the connection is held."""
    from ..exceptions import WsmuxError

    caught: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    interrupted = False

    def catch(number: int, frame: FrameType | None) -> None:
        nonlocal interrupted
        if number == signal.SIGINT and interrupted:
            raise KeyboardInterrupt
        interrupted = interrupted or number == signal.SIGINT
        caught.put(PASSED_ON[signal.Signals(number)])

    def pass_on() -> None:
        while (name := caught.get()) is not None:
            try:
                process.send_signal(name)
            except (WsmuxError, ValueError):
                return  # it has ended

    before = {number: signal.signal(number, catch) for number in PASSED_ON}
    thread = threading.Thread(target=pass_on, name="wsmux-exec-signals", daemon=True)
    thread.start()
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        caught.put(None)
