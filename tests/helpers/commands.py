"""Run ``python -m wsmux`` as a user does."""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

from wsmux.cli.main import main

# A test fails rather than hangs.
PATIENCE = 120.0


def command(*arguments: str, module: str = "wsmux") -> list[str]:
    return [sys.executable, "-m", module, *arguments]


def run(
    *arguments: str,
    module: str = "wsmux",
    data: bytes | None = None,
    without: tuple[str, ...] = (),
    **options: Any,
) -> subprocess.CompletedProcess[bytes]:
    """Run a command to its end; ``without`` are modules that look as if not installed."""
    program = command(*arguments, module=module)
    if without:
        hidden = "".join(f"sys.modules[{module!r}] = None; " for module in without)
        code = f"import sys; {hidden}import {module}.__main__"
        program = [sys.executable, "-c", code, *arguments]
    stdin = {"stdin": subprocess.DEVNULL} if data is None else {"input": data}
    stdin |= {"stdin": options.pop("stdin")} if "stdin" in options else {}
    options = {"timeout": PATIENCE} | options
    return subprocess.run(program, capture_output=True, check=False, **stdin, **options)


def run_here(*arguments: str, data: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """Run a command that ends by itself, in this process: none has to start.

    Stdin is a file of ``data``; stdout and stderr are files too, and no terminals.
    """
    root, handler = logging.getLogger(), signal.getsignal(signal.SIGTERM)
    handlers, level, stdin = root.handlers[:], root.level, sys.stdin
    with TemporaryFile("w+") as given, TemporaryFile("w+") as said, TemporaryFile("w+") as told:
        given.buffer.write(data)
        given.seek(0)
        try:
            sys.stdin = given
            with redirect_stdout(said), redirect_stderr(told):
                status = main(arguments)
        finally:
            sys.stdin = stdin
            signal.signal(signal.SIGTERM, handler)
            root.handlers[:] = handlers
            root.setLevel(level)
        results = []
        for each in (said, told):
            each.flush()
            each.buffer.seek(0)
            results.append(each.buffer.read())
    return subprocess.CompletedProcess(arguments, status, *results)


def children(process: subprocess.Popen[bytes]) -> int:
    """Return how many processes a process has started that still run."""
    return len(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split())


@contextmanager
def served(*arguments: str, status: int = 130) -> Iterator[str]:
    """Run ``wsmux serve``; yield the URL, then end it with Ctrl-C and check how it ends."""
    with running("serve", *arguments, status=status) as url:
        yield url


@contextmanager
def running(*arguments: str, status: int = 130) -> Iterator[str]:
    """Do the same with any command that serves."""
    process = subprocess.Popen(
        command(*arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        url = process.stdout.readline().strip()
        assert url, process.communicate(timeout=PATIENCE)[1]
        yield url
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == status
    finally:
        process.kill()
        _, errors = process.communicate(timeout=PATIENCE)
        assert "Traceback" not in errors, errors


@contextmanager
def subscribed(*arguments: str, says: str = "subscribed to ") -> Iterator[IO[str]]:
    """Run a command that prints messages until Ctrl-C; yield its stdout once it has begun."""
    process = subprocess.Popen(
        command(*arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        said = process.stderr.readline()
        assert says in said, said
        yield process.stdout
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 130
    finally:
        process.kill()
        process.communicate(timeout=PATIENCE)
