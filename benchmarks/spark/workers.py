"""Run the processes, and ask them for figures."""

from __future__ import annotations

import json
import select
import subprocess
import sys
from collections.abc import Mapping
from typing import Any, Self

from wsmux.cli.children import end, undisturbed
from wsmux.cli.spark_session import ROOT
from wsmux.cli.terminal import CommandError

from .row import NEAR

__all__ = ["Workers"]

# Seconds for a process to end after its stdin has.
PATIENCE = 20.0

# Seconds for an answer beyond those that it is meant to take, and how many times those it may.
LATENESS, STRETCH = 180.0, 20.0


class Workers:
    """Hold a server, a delay line, a client, and a Spark session if that is wanted.

    Args:
        delays: the distances.
        spark: whether there is to be a session.
        bulk: whether the server is to hold bulk.
    """

    def __init__(self, delays: tuple[int, ...], spark: bool, bulk: bool = False) -> None:
        self._running: list[subprocess.Popen[str]] = []
        self._roles: dict[bool, subprocess.Popen[str]] = {}
        try:
            near = self._answer(self._start("server", {"bulk": bulk}))["addresses"][str(NEAR)]
            far = {delay: near for delay in delays if delay != NEAR}
            addresses = self._answer(self._start("delay", far))["addresses"]
            addresses[str(NEAR)] = near
            for within in (False, True) if spark else (False,):
                self._roles[within] = self._start("spark" if within else "client", addresses)
            for process in self._roles.values():
                self._answer(process)
        except BaseException:
            self.close()
            raise

    def measure(self, row: str, within_spark: bool, delay: int, seconds: float) -> float:
        """Return one figure.

        Raises:
            CommandError: there is none.
        """
        process = self._roles[within_spark]
        assert process.stdin is not None
        order = {"row": row, "delay": delay, "seconds": seconds}
        process.stdin.write(json.dumps(order) + "\n")
        process.stdin.flush()
        answer = self._answer(process, seconds)
        if "error" in answer:
            raise CommandError(answer["error"])
        return float(answer["value"])

    def _start(self, role: str, argument: Mapping[Any, Any] | None = None) -> subprocess.Popen[str]:
        program = (
            f"import sys; sys.path.insert(0, {str(ROOT)!r}); "
            f"from benchmarks.spark.worker import main; main(*sys.argv[1:])"
        )
        with undisturbed():
            process = subprocess.Popen(
                [sys.executable, "-c", program, role, json.dumps(argument or {})],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            self._running.append(process)
        return process

    def _answer(self, process: subprocess.Popen[str], seconds: float = 0.0) -> dict[str, Any]:
        assert process.stdout is not None
        longest = LATENESS + STRETCH * seconds
        if not select.select([process.stdout], [], [], longest)[0]:
            raise CommandError(f"a process did not answer in {longest:.0f} s")
        line = process.stdout.readline()
        if not line:
            raise CommandError("a process ended; what it said is above")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """End the processes, the clients first."""
        for process in reversed(self._running):
            if process.stdin is not None:
                process.stdin.close()
            end(process, PATIENCE)
            if process.stdout is not None:
                process.stdout.close()
        self._running.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
