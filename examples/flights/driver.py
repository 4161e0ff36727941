"""Start the processes of the demonstration of Spark, and give orders to the one that has it."""

from __future__ import annotations

import json
import os
import secrets
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Self

from wsmux.cli.children import end, undisturbed
from wsmux.cli.terminal import CommandError

from .spark_session import ROOT

__all__ = ["Driver", "environment", "serving"]

# Seconds for a server to tell its address, and for an answer; a busy machine is slow to start Java.
START, ANSWER = 60.0, 300.0

# Seconds that a process has to end when it is told to, and that what it has started has.
PATIENCE = 10.0

# Characters of what a process said last that are told when it has ended.
LAST_WORDS = 2000


def environment(work: Path) -> dict[str, str]:
    """Return what the processes are to find around them, a token of their own among it."""
    path = os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", "")))
    token = secrets.token_hex(16)
    return {**os.environ, "WSMUX_TOKEN": token, "PYTHONPATH": path, "TMPDIR": str(work)}


@contextmanager
def serving(arguments: list[str], around: Mapping[str, str], log: Path) -> Iterator[str]:
    """Run Python with arguments until the block ends; yield the first line that it prints."""
    with ExitStack() as stack:
        with undisturbed():
            process, said = _start(arguments, around, log)
            stack.callback(_stop, process, said)
        yield _line(process, said, START, log).strip()


def _stop(process: subprocess.Popen[bytes], said: IO[bytes]) -> None:
    process.terminate()
    said.close()
    _close_stdin(process)
    end(process, PATIENCE)


class Driver:
    """Hold a process with a Spark session; make one, and enter it, ``undisturbed``."""

    def __init__(self, settings: Mapping[str, str], around: Mapping[str, str], log: Path) -> None:
        program = "import sys; from examples.flights.job import main; main(sys.argv[1])"
        self._log = log
        self._done: dict[str, Any] = {}
        self._process, self._said = _start(["-c", program, json.dumps(settings)], around, log)

    def ready(self) -> None:
        """Wait for the session."""
        self.answer()

    def order(self, place: Mapping[str, str], what: str, **options: Any) -> None:
        """Have a job begun."""
        assert self._process.stdin is not None
        order = {"place": place, "what": what, "with": options}
        with suppress(BrokenPipeError):  # the answer will tell more
            self._process.stdin.write(json.dumps(order).encode() + b"\n")

    def progress(self) -> float | None:
        """Wait until more of the job is done; return how much, or ``None`` when all is done."""
        answer = json.loads(_line(self._process, self._said, ANSWER, self._log))
        if "error" in answer:
            raise CommandError(answer["error"])
        self._done = answer.get("done", {})
        return None if "done" in answer else float(answer["add"])

    def answer(self, add: Callable[[float], object] = float) -> dict[str, Any]:
        """Wait until the job is done; return what it tells."""
        while (share := self.progress()) is not None:
            add(share)
        return self._done

    def kill(self) -> None:
        """End the process by SIGKILL, and with it Java and Python's workers."""
        deadline = time.monotonic() + PATIENCE
        while (pids := _session(self._process.pid)) and time.monotonic() < deadline:
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)  # nobody tells of the end of a process that is not one's own
        self._process.wait()
        self._said.close()
        _close_stdin(self._process)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()


def _start(
    arguments: list[str], around: Mapping[str, str], log: Path
) -> tuple[subprocess.Popen[bytes], IO[bytes]]:
    """Start Python in a session of its own, so that Ctrl-C is for this process, which ends it."""
    with log.open("ab") as file:
        process = subprocess.Popen(
            [sys.executable, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=file,
            env=dict(around),
            start_new_session=True,
            bufsize=0,  # so that select tells of every line
        )
    assert process.stdout is not None
    return process, process.stdout


def _line(process: subprocess.Popen[bytes], said: IO[bytes], patience: float, log: Path) -> str:
    if not select.select([said], [], [], patience)[0]:
        raise CommandError(f"a process said nothing for {patience:.0f} s; {_last_words(log)}")
    line = said.readline().decode()
    if not line:
        raise CommandError(f"a process ended with {process.wait()}; {_last_words(log)}")
    return line


def _last_words(log: Path) -> str:
    text = log.read_text(errors="replace").strip()
    return f"it said last:\n{text[-LAST_WORDS:]}" if text else "it said nothing of why"


def _close_stdin(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    with suppress(BrokenPipeError):
        process.stdin.close()


def _session(leader: int) -> list[int]:
    """Return the processes of a session that are alive, whatever groups they have made."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            state, _, _, session = path.read_text().rpartition(")")[2].split()[:4]
            if int(session) == leader and state != "Z":
                found.append(int(path.parent.name))
    return found
