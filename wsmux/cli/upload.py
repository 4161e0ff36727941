"""Upload a file of any size, which goes on after either side was killed.

The server is ``wsmux serve --uploads FOLDER``, or a route of ``wsmux.flask.uploads``. It checks the
SHA-256 of the whole file at the end, and the line on stdout is the name that it has there. Run the
same command again after it was killed, and it goes on; while the server is away, it waits.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import socket
import ssl
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .addresses import PROTOCOLS, add_connecting, add_subprotocol, add_token, connecting, url
from .terminal import CommandError, emit, seconds, sentence, talk, tqdm_class

if TYPE_CHECKING:
    from ..durable import DurableStream

EPILOG = "Example: wsmux upload big.iso wss://example.org/uploads --token-file FILE"

CHUNK = 256 * 1024

# Seconds without progress after which the command fails; and the pauses between attempts.
PATIENCE = 60.0
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0

# Bytes a second that a server may take to read again what it has of a file, and to finish it.
SLOWEST = 32 * 1024 * 1024

# Of HTTP, those that may pass.
PASSING = {408, 425, 429, 500, 502, 503, 504}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``wsmux upload``."""
    parser.add_argument("file", type=Path, metavar="FILE", help="a regular file")
    parser.add_argument("url", type=url, metavar="URL", help="ws://, wss:// or tcp:// address")
    parser.add_argument(
        "--name",
        help="of the file at the server; by default its own, with what tells this file from others",
    )
    parser.add_argument("--protocol", choices=PROTOCOLS, default="wsmux")
    add_subprotocol(parser)
    parser.add_argument(
        "--timeout",
        type=seconds,
        default=PATIENCE,
        help=f"seconds of attempts without progress until it fails; {PATIENCE:.0f} by default",
    )
    parser.add_argument(
        "--progress",
        action=argparse.BooleanOptionalAction,
        help="show a progress bar; by default if stderr is a terminal",
    )
    add_connecting(parser)
    add_token(parser)


def run(args: argparse.Namespace) -> int:
    """Upload until the server has all, or will not take it, or nothing goes on for too long."""
    options = connecting(args, args.url)
    with _open(args.file) as file:
        upload = _Upload(file.fileno(), args)
        upload.run(options)
    emit(upload.name)
    return 0


def _open(path: Path) -> Any:
    if not path.is_file():  # also before a pipe is opened, which would wait
        text = "is not a regular file" if path.exists() else "does not exist"
        raise CommandError(f"{path} {text}", status=2)
    return path.open("rb", buffering=0)


class _Upload:
    """Send one file, over one connection after another."""

    def __init__(self, file: int, args: argparse.Namespace) -> None:
        self._file = file
        self._path: Path = args.file
        self._args = args
        self._status = os.fstat(file)
        identity = self._identity(self._status)
        self._epoch = identity[:16]
        suffix = "".join(self._path.suffixes[-2:])
        stem = self._path.name.removesuffix(suffix)
        self.name: str = args.name or f"{stem}-{identity.hex()[:12]}{suffix}"
        self._hash, self._hashed = hashlib.sha256(), 0
        self._best = -1
        self._since = time.monotonic()
        bar_class = tqdm_class(args.progress)
        self._bar = bar_class and bar_class(
            total=self._size, desc=self.name, unit="B", unit_scale=True, unit_divisor=1024
        )

    @property
    def _size(self) -> int:
        return self._status.st_size

    def _identity(self, status: os.stat_result) -> bytes:
        """Return what tells this file, as it is now, from any other."""
        parts = (
            socket.gethostname(),
            os.path.realpath(self._path),
            f"{status.st_dev}:{status.st_ino}:{status.st_size}:{status.st_mtime_ns}",
        )
        return hashlib.sha256("\0".join(parts).encode(errors="surrogateescape")).digest()

    def run(self, options: dict[str, Any]) -> None:
        """Connect, and send what the server does not have, until it has all.

        Raises:
            CommandError: the file cannot be read, or has changed.
            WsmuxError, OSError: the server does not take it, or nothing went on for too long.
        """
        from ..exceptions import WsmuxError
        from ..runtime.backoff import Backoff

        pause, last = Backoff(FIRST_PAUSE, LONGEST_PAUSE, 0.5), ""
        try:
            while True:
                best = self._best
                try:
                    self._attempt(options)
                    return
                except (WsmuxError, OSError) as error:
                    if self._best > best:
                        pause.reset()
                    waited = time.monotonic() - self._since
                    if not _passes(error, self._best >= 0) or waited >= self._args.timeout:
                        raise
                    if (told := sentence(error)) != last:
                        talk(f"wsmux upload: {told}; trying again")
                        last = told
                time.sleep(pause.next())
        finally:
            if self._bar is not None:
                self._bar.close()

    def _attempt(self, options: dict[str, Any]) -> None:
        import wsmux

        timeout = self._args.timeout
        with (
            wsmux.connect(
                self._args.url,
                protocol=self._args.protocol,
                timeout=timeout,
                accept_streams=False,
                **options,
            ) as connection,
            connection.open_stream(
                timeout, durable=self.name, epoch=self._epoch, size=self._size
            ) as stream,
        ):
            stream.timeout = timeout + self._size / SLOWEST  # a lost server is found by pings
            self._progress(stream)
            self._hash_up_to(stream.offset)
            while stream.offset < self._size:
                data = self._read(stream.offset)
                if stream.offset + len(data) > self._hashed:
                    self._hash.update(data[self._hashed - stream.offset :])
                    self._hashed = stream.offset + len(data)
                stream.write(data)
                self._progress(stream)
            if self._identity(os.fstat(self._file)) != self._identity(self._status):
                raise CommandError(f"{self._path} has changed while it was sent: upload it again")
            stream.close(self._hash.digest())
            self._progress(stream)

    def _progress(self, stream: DurableStream) -> None:
        if stream.committed > self._best:
            self._best, self._since = stream.committed, time.monotonic()
        if self._bar is not None:
            self._bar.update(stream.offset - self._bar.n)

    def _hash_up_to(self, offset: int) -> None:
        while self._hashed < offset:
            data = self._read(self._hashed)[: offset - self._hashed]
            self._hash.update(data)
            self._hashed += len(data)
            self._since = time.monotonic()  # a server that tires of waiting will find it done

    def _read(self, offset: int) -> bytes:
        try:
            data = os.pread(self._file, min(CHUNK, self._size - offset), offset)
        except OSError as error:
            raise CommandError(f"{self._path} cannot be read: {sentence(error)}") from error
        if not data:
            raise CommandError(f"{self._path} became shorter while it was sent: upload it again")
        return data


def _passes(error: Exception, met: bool) -> bool:
    """Return whether another attempt may succeed after an error.

    Args:
        error: of the last attempt.
        met: the server has received a part of this file before, so it can be talked to.
    """
    from ..durable import DurableInterrupted, DurableRefused
    from ..exceptions import ConnectionClosed, HandshakeError, StreamError

    if isinstance(error, DurableRefused):
        return error.temporary
    if isinstance(error, HandshakeError):
        return error.status in PASSING or (met and error.status is None)
    if isinstance(error, ssl.SSLError):
        return False
    return isinstance(error, (ConnectionClosed, DurableInterrupted, StreamError, OSError))
