"""Install the npm package `@matrixai/ws` once and drive a Node process that uses it.

Needs node, npm and a POSIX system (file locks).
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import itertools
import json
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections import deque
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from pathlib import Path
from types import TracebackType
from typing import Any, Self

__all__ = ["NodePeer", "PeerError", "Unavailable", "generate", "install_modules", "sha256"]

HERE = Path(__file__).parent

NPM_OPTIONS = ("--no-audit", "--no-fund", "--no-package-lock", "--ignore-scripts")

COMMAND_TIMEOUT = 10.0
INSTALL_TIMEOUT = 300.0

# What an answer may take beyond the command's own timeout, which Node keeps; a busy machine only.
ANSWER_GRACE = 5.0

EXIT_TIMEOUT = 5.0
LOCK_POLL = 0.1
STDERR_LINES = 50


class Unavailable(Exception):
    """Say why the real peer cannot be run here."""


class PeerError(AssertionError):
    """Report that a command failed in Node, with the error that it threw there."""

    def __init__(self, command: str, error: dict[str, Any]) -> None:
        super().__init__(f"{command}: {json.dumps(error)}")
        self.error = error

    @property
    def code(self) -> int | None:
        """Return the wire code that the error carries, if it carries one."""
        code: int | None = self.error.get("code")
        return code

    @property
    def close(self) -> tuple[int, str]:
        """Return the close code and reason of the connection that the error tells of."""
        return self.error["data"]["errorCode"], self.error["data"]["reason"]


def generate(seed: str, size: int) -> bytes:
    """Return `size` bytes that depend on `seed` only, the same as the peer makes of it."""
    return hashlib.shake_256(seed.encode()).digest(size)


def sha256(data: bytes) -> str:
    """Return the digest as the peer writes it."""
    return hashlib.sha256(data).hexdigest()


def install_modules() -> Path:
    """Install what package.json names into a cache outside the repository, if not yet there.

    Returns the directory that holds `node_modules`.

    Raises:
        Unavailable: node or npm is missing, or the installation failed.
    """
    for program in ("node", "npm"):
        if shutil.which(program) is None:
            raise Unavailable(f"{program} is not on the PATH")
    manifest = (HERE / "package.json").read_bytes()
    given = os.environ.get("WSMUX_INTEROP_CACHE")
    base = Path(given) if given else Path.home() / ".cache" / "wsmux-interop"
    target = base / hashlib.sha256(manifest).hexdigest()[:16]
    if target.exists():
        return target
    base.mkdir(parents=True, exist_ok=True)
    with (base / "lock").open("w") as lock:
        _take_lock(lock.fileno())
        if not target.exists():
            _install_into(target, manifest)
    return target


def _take_lock(descriptor: int) -> None:
    deadline = time.monotonic() + INSTALL_TIMEOUT
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if time.monotonic() >= deadline:
                raise Unavailable("another process holds the installation lock") from error
            time.sleep(LOCK_POLL)
        else:
            return


def _install_into(target: Path, manifest: bytes) -> None:
    # Renamed when whole, so that an interrupted installation is never taken for a good one.
    scratch = Path(tempfile.mkdtemp(dir=target.parent))
    try:
        (scratch / "package.json").write_bytes(manifest)
        done = subprocess.run(
            ["npm", "install", *NPM_OPTIONS],
            cwd=scratch,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=INSTALL_TIMEOUT,
            check=False,
        )
        if done.returncode != 0:
            raise Unavailable(f"npm install failed: {done.stderr.strip()[-500:]}")
        scratch.rename(target)
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"npm install took longer than {INSTALL_TIMEOUT:.0f} s") from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


class NodePeer:
    """Run peer.mjs and send it commands; any number of them may be under way at once."""

    def __init__(self, modules: Path) -> None:
        self.uncaught: list[dict[str, Any]] = []
        self._ids = itertools.count(1)
        self._mutex = threading.Lock()
        self._pending: dict[int, tuple[str, Future[Any]]] = {}
        self._stderr: deque[str] = deque(maxlen=STDERR_LINES)
        self._ready: Future[str] = Future()
        self._process = subprocess.Popen(
            ["node", str(HERE / "peer.mjs")],
            env={**os.environ, "INTEROP_MODULES": str(modules)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        self._threads = [
            threading.Thread(target=target, name=f"node-{target.__name__}", daemon=True)
            for target in (self._read_answers, self._read_stderr)
        ]
        for thread in self._threads:
            thread.start()
        self.version = self._ready.result(COMMAND_TIMEOUT)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def submit(self, command: str, timeout: float = COMMAND_TIMEOUT, **args: Any) -> Future[Any]:
        """Send a command and return the promise of its answer."""
        number = next(self._ids)
        future: Future[Any] = Future()
        request = {"id": number, "cmd": command, "timeout": round(timeout * 1000), **args}
        with self._mutex:
            self._pending[number] = (command, future)
            assert self._process.stdin is not None
            try:
                self._process.stdin.write(json.dumps(request) + "\n")
                self._process.stdin.flush()
            except (OSError, ValueError) as error:
                raise AssertionError(self._obituary(command)) from error
        return future

    def call(self, command: str, timeout: float = COMMAND_TIMEOUT, **args: Any) -> Any:
        """Send a command and return its answer.

        Raises:
            PeerError: the command failed, or ran out of time, in Node.
        """
        return self.answer(self.submit(command, timeout, **args), timeout)

    def answer(self, future: Future[Any], timeout: float = COMMAND_TIMEOUT) -> Any:
        """Return the answer that `submit` promised."""
        try:
            return future.result(timeout + ANSWER_GRACE)
        except FutureTimeoutError:
            raise AssertionError(f"no answer from node within {timeout:.0f} s") from None

    def kill(self) -> None:
        """End the process as a crash would: nothing is said to anybody."""
        self._process.kill()
        self._process.wait(EXIT_TIMEOUT)

    def freeze(self) -> None:
        """Stop the process without ending it; its sockets stay open and silent."""
        self._process.send_signal(signal.SIGSTOP)

    def close(self) -> None:
        """End the process, by force if it does not go by itself."""
        assert self._process.stdin is not None
        self._process.send_signal(signal.SIGCONT)
        # A process that has died already cannot take what is still buffered for it.
        with self._mutex, contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(EXIT_TIMEOUT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(EXIT_TIMEOUT)
        for thread in self._threads:
            thread.join(EXIT_TIMEOUT)
        for pipe in (self._process.stdout, self._process.stderr):
            assert pipe is not None
            pipe.close()

    def _read_answers(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._dispatch(json.loads(line))
        with self._mutex:
            orphans = list(self._pending.values())
            self._pending.clear()
        for command, future in orphans:
            future.set_exception(AssertionError(self._obituary(command)))
        if not self._ready.done():
            self._ready.set_exception(AssertionError(self._obituary("start")))

    def _dispatch(self, message: dict[str, Any]) -> None:
        match message.get("event"):
            case "ready":
                self._ready.set_result(message["version"])
            case "uncaught":
                self.uncaught.append(message["error"])
            case _:
                with self._mutex:
                    command, future = self._pending.pop(message["id"])
                if message["ok"]:
                    future.set_result(message["result"])
                else:
                    future.set_exception(PeerError(command, message["error"]))

    def _read_stderr(self) -> None:
        assert self._process.stderr is not None
        self._stderr.extend(self._process.stderr)

    def _obituary(self, command: str) -> str:
        return f"{command}: the node process ended; it said: {''.join(self._stderr) or 'nothing'}"
