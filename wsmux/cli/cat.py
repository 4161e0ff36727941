"""Connect stdin and stdout to one stream, as netcat does to a socket.

The end of stdin ends only the writing half; the end of the server's data ends stdout. The command
ends when both have ended, or when the server's data has ended and stdin is a terminal.
"""

from __future__ import annotations

import argparse
import os
import stat
import sys
import threading
import time
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from .addresses import PROTOCOLS, add_connecting, add_subprotocol, add_token, connecting, url
from .terminal import seconds, tqdm_class

if TYPE_CHECKING:
    from ..mux.connection import Connection
    from ..mux.stream import Stream

EPILOG = "Example: wsmux cat ws://127.0.0.1:8765/ < file > answer"

CHUNK = 64 * 1024


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``wsmux cat``."""
    parser.add_argument("url", type=url, metavar="URL", help="ws://, wss:// or tcp:// address")
    parser.add_argument(
        "--listen", action="store_true", help="accept the first stream that the server opens"
    )
    parser.add_argument("--protocol", choices=PROTOCOLS, default="wsmux")
    add_subprotocol(parser)
    add_copying(parser)
    add_connecting(parser, resumes=False)
    add_token(parser)


def add_copying(parser: argparse.ArgumentParser) -> None:
    """Add what ``Copy`` reads."""
    parser.add_argument("-d", "--no-stdin", action="store_true", help="send nothing, only read")
    parser.add_argument(
        "--timeout", type=seconds, help="seconds to connect, and without data in either direction"
    )
    parser.add_argument(
        "--progress",
        action=argparse.BooleanOptionalAction,
        help="show a progress bar; by default if stderr is a terminal and stdin and stdout are not",
    )


def run(args: argparse.Namespace) -> int:
    """Copy in both directions until both have ended."""
    import wsmux

    connection = wsmux.connect(
        args.url,
        protocol=args.protocol,
        timeout=args.timeout,
        **connecting(args, args.url),
        accept_streams=args.listen,
    )
    with connection, _stream(connection, args) as stream:
        stream.timeout = args.timeout
        Copy(stream, args, urlsplit(args.url).hostname).run()
    return 0


def _stream(connection: Connection, args: argparse.Namespace) -> Stream:
    if args.listen:
        return connection.accept_stream(args.timeout)
    return connection.open_stream(args.timeout)


class Copy:
    """Copy stdin to the stream in a thread, and the stream to stdout in the calling thread.

    Args:
        stream: its timeout is ``args.timeout``.
        args: those of ``add_copying``.
        name: of the far end, for the progress bar.
    """

    def __init__(self, stream: Stream, args: argparse.Namespace, name: str | None) -> None:
        self._stream = stream
        self._reads_stdin = not args.no_stdin
        self._timeout: float | None = args.timeout
        self._last_write = time.monotonic()
        self._failure: Exception | None = None
        # Descriptors: a buffered file in use by a daemon thread cannot be shut down at exit.
        self._in, self._out = sys.stdin.fileno(), sys.stdout.fileno()
        self._tqdm = tqdm_class(self._wants_bar(args))
        self._name = name

    def _wants_bar(self, args: argparse.Namespace) -> bool | None:
        typed = self._reads_stdin and os.isatty(self._in)
        return False if args.progress is None and (typed or os.isatty(self._out)) else args.progress

    def _size(self) -> int | None:
        """Return the remaining bytes of stdin, if it is a file."""
        status = os.fstat(self._in)
        if not self._reads_stdin or not stat.S_ISREG(status.st_mode):
            return None
        return max(0, status.st_size - os.lseek(self._in, 0, os.SEEK_CUR))

    def run(self) -> None:
        """Copy until both directions have ended.

        Raises:
            WsmuxError, OSError: one of them failed.
        """
        sender = threading.Thread(target=self._send, name="wsmux-cat-stdin", daemon=True)
        if self._reads_stdin:
            sender.start()
        else:
            self._stream.close_write()
        self._receive()
        if self._reads_stdin and not os.isatty(self._in):
            sender.join()
        if self._failure is not None:
            raise self._failure

    def _measured(self, method: str) -> AbstractContextManager[Any]:
        """Return the stream, wrapped in a progress bar if that direction should have one."""
        if self._tqdm is None or method != ("write" if self._reads_stdin else "read"):
            return nullcontext(self._stream)
        bar: AbstractContextManager[Any] = self._tqdm.wrapattr(
            self._stream, method, total=self._size(), desc=self._name, file=sys.stderr
        )
        return bar

    def _send(self) -> None:
        from ..exceptions import StreamWriteClosed

        try:
            with self._measured("write") as stream:
                while chunk := os.read(self._in, CHUNK):
                    stream.write(chunk)
                    self._last_write = time.monotonic()
            self._stream.close_write()
        except StreamWriteClosed:
            return  # the server has stopped reading, as it may
        except ValueError as error:
            if not self._stream.closed:  # otherwise the command is ending
                self._fail(error)
        except Exception as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        self._failure = error
        if not self._stream.closed:
            self._stream.reset()  # wakes the reading thread

    def _receive(self) -> None:
        with self._measured("read") as stream:
            while chunk := self._read(stream):
                view = memoryview(chunk)
                while view:
                    view = view[os.write(self._out, view) :]

    def _read(self, stream: Any) -> bytes:
        while True:
            try:
                data: bytes = stream.read(CHUNK)
            except TimeoutError:
                since = time.monotonic() - self._last_write
                if self._timeout is not None and since < self._timeout:
                    continue  # not idle: there was data in the other direction
                raise
            except Exception:
                if self._failure is not None:  # the original failure, which caused this one
                    raise self._failure from None
                raise
            return data
