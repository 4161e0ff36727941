"""Drive a process that runs a real peer, by JSON lines; jsonlines.mjs tells their form."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import signal
import subprocess
import threading
from collections import deque
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from .jsonlines import generate

__all__ = ["PeerError", "PeerProcess", "generate", "sha256"]

HERE = Path(__file__).parent

COMMAND_TIMEOUT = 10.0

# What an answer may take beyond the command's own timeout, which it keeps; a busy machine only.
ANSWER_GRACE = 5.0

EXIT_TIMEOUT = 5.0
STDERR_LINES = 50


class PeerError(AssertionError):
    """Report that a command failed in the peer, with the error that it threw there."""

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


def sha256(data: bytes) -> str:
    """Return the digest as the peer writes it."""
    return hashlib.sha256(data).hexdigest()


class PeerProcess:
    """Run a peer and send it commands; any number of them may be under way at once."""

    @classmethod
    def node(cls, program: str, modules: Path) -> Self:
        """Run a program of this directory in Node; `modules` holds its node_modules."""
        return cls("node", ["node", str(HERE / program)], INTEROP_MODULES=str(modules))

    @classmethod
    def python(cls, program: str, interpreter: Path) -> Self:
        """Run a program of this directory in another Python, apart from this environment.

        It may import from this directory what needs nothing but the standard library.
        """
        return cls("python", [str(interpreter), "-E", "-s", str(HERE / program)])

    def __init__(self, name: str, command: list[str], **variables: str) -> None:
        self.name = name
        self._command = command
        self._variables = variables
        self.uncaught: list[dict[str, Any]] = []
        self._ids = itertools.count(1)
        self._mutex = threading.Lock()
        self._pending: dict[int, tuple[str, Future[Any]]] = {}
        self._stderr: deque[str] = deque(maxlen=STDERR_LINES)
        self._ready: Future[str] = Future()
        self._process = subprocess.Popen(
            command,
            env={**os.environ, **variables},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        self._threads = [
            threading.Thread(target=target, name=f"{name}-{target.__name__}", daemon=True)
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

    def another(self) -> Self:
        """Start a second process of the same program."""
        return type(self)(self.name, self._command, **self._variables)

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
            PeerError: the command failed, or ran out of time, in the peer.
        """
        return self.answer(self.submit(command, timeout, **args), timeout)

    def answer(self, future: Future[Any], timeout: float = COMMAND_TIMEOUT) -> Any:
        """Return the answer that `submit` promised."""
        try:
            return future.result(timeout + ANSWER_GRACE)
        except FutureTimeoutError as error:  # chained to what the test itself failed of, if it did
            raise AssertionError(f"no answer from {self.name} within {timeout:.0f} s") from error

    def alive(self) -> bool:
        """Return whether the process has not ended; a frozen one has not."""
        return self._process.poll() is None

    def last_words(self) -> str:
        """Return the last lines that the process has written to its standard error."""
        return "".join(list(self._stderr)) or "nothing"

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
        return f"{command}: the {self.name} process ended; it said: {self.last_words()}"
