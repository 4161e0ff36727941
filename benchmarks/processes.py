"""Run the client and server process of a variant."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from wsmux.cli.children import end, undisturbed
from wsmux.cli.terminal import CommandError

from .peer import Peer

__all__ = ["MeasurementFailed", "Processes", "cores"]

# Seconds for a process to end after its stdin has.
PATIENCE = 5.0

# Seconds for an answer beyond those that it is meant to take, and how many times those it may.
LATENESS, STRETCH = 30.0, 20.0

# The same for a measure that opens much before it begins, and for a process to begin.
HEAVY_LATENESS = 150.0

# Where this package and the library are, for processes that would find another copy or none.
ROOT = Path(__file__).parents[1]


class MeasurementFailed(CommandError):
    """Report why there is no figure; the others can still be taken."""


def cores() -> list[int]:
    """Return the cores this process may use; none where the system cannot tell."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


class Processes:
    """Hold both processes of one variant, each on a core of its own if ``pinned``.

    That they do not even begin is a failure of each figure, and of no other variant's.
    """

    def __init__(self, peer: Peer, pinned: bool) -> None:
        self.peer = peer
        self.pinned = pinned
        self._places: list[int | None] = [*cores()[:2]] if pinned else [None, None]
        self._running: list[subprocess.Popen[str]] = []
        self._broken: str | None = None  # why they do not begin

    def _begin(self) -> None:
        try:
            server = self._start("server", self._places[0])
            address = self._answer(server)["address"]
            self._client = self._start("client", self._places[1], address)
            self._answer(self._client)
        except BaseException:
            self.close(at_once=True)
            raise

    def measure(self, name: str, seconds: float, heavy: bool = False) -> float:
        """Return one figure; a ``heavy`` one may take longer.

        Raises:
            MeasurementFailed: there is none; the next one is taken by new processes.
        """
        try:
            if self._broken is not None:
                raise CommandError(self._broken)
            if not self._running:
                self._begin()
            return self._measure(name, seconds, HEAVY_LATENESS if heavy else LATENESS)
        except (CommandError, BrokenPipeError) as error:
            self.close(at_once=True)
            raise MeasurementFailed(str(error)) from None

    def _measure(self, name: str, seconds: float, lateness: float) -> float:
        assert self._client.stdin is not None
        self._client.stdin.write(json.dumps({"measure": name, "seconds": seconds}) + "\n")
        self._client.stdin.flush()
        answer = self._answer(self._client, lateness + STRETCH * seconds)
        if "error" in answer:
            raise CommandError(answer["error"])
        return float(answer["value"])

    def _start(self, role: str, core: int | None, address: str = "") -> subprocess.Popen[str]:
        hidden = "".join(f"sys.modules[{module!r}] = None; " for module in self.peer.hides)
        call = f"{(role, self.peer.name, core, address)}"
        program = (
            f"import sys; {hidden}sys.path.insert(0, {str(ROOT)!r}); "
            f"from benchmarks.worker import main; main(*{call})"
        )
        environment = dict(os.environ)
        for variable, value in self.peer.environment.items():
            environment.pop(variable, None)
            if value is not None:
                environment[variable] = value
        with undisturbed():
            process = subprocess.Popen(
                [self.peer.python_of(role) or sys.executable, "-c", program],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=environment,
                text=True,
            )
            self._running.append(process)
        return process

    def _answer(
        self, process: subprocess.Popen[str], longest: float = HEAVY_LATENESS
    ) -> dict[str, Any]:
        """Return the next answer, for which nothing else was written before."""
        assert process.stdout is not None
        if not select.select([process.stdout], [], [], longest)[0]:
            raise CommandError(f"no answer in {longest:.0f} s")
        line = process.stdout.readline()
        if not line:
            raise CommandError(f"a process ended with status {process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self, at_once: bool = False) -> None:
        """End both processes, the client first."""
        for process in reversed(self._running):
            assert process.stdin is not None
            assert process.stdout is not None
            if at_once:
                process.kill()
            with suppress(BrokenPipeError):
                process.stdin.close()
            end(process, PATIENCE)
            process.stdout.close()
        self._running.clear()

    def __enter__(self) -> Self:
        try:
            self._begin()
        except CommandError as error:
            self._broken = f"it does not begin: {error}"
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close(at_once=exc is not None)
