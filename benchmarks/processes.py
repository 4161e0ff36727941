"""Run the client and server process of a variant, and those that stand beside them."""

from __future__ import annotations

import json
import math
import os
import select
import subprocess
import sys
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Self

from wsmux.cli.children import end, undisturbed
from wsmux.cli.terminal import CommandError

from .environment import cores
from .peer import Peer

# Seconds for a process to end after its stdin has.
PATIENCE = 20.0

# Seconds for an answer beyond those that it is meant to take, of which much may go to what is
# opened before; and how many times those it may.
LATENESS, STRETCH = 150.0, 20.0

# Where this package and the library are, for processes that would find another copy or none.
ROOT = Path(__file__).parents[1]


def processor_seconds() -> float:
    """Return what this process has used of processors, with all below it that are or were."""
    used: dict[int, float] = {}
    below: dict[int, list[int]] = {}
    tick = os.sysconf("SC_CLK_TCK")
    for each in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            fields = each.read_text().rpartition(")")[2].split()
            pid = int(each.parent.name)
            used[pid] = sum(map(int, fields[11:15])) / tick  # its own, and of those it waited for
            below.setdefault(int(fields[1]), []).append(pid)
    found = [os.getpid()]
    for pid in found:
        found += below.get(pid, [])
    return sum(used.get(pid, 0.0) for pid in found)


class MeasurementFailed(CommandError):
    """Report why there is no figure; the others can still be taken."""


class Worker:
    """Hold a process that runs a context manager of this package, as ``worker.py`` does.

    Args:
        module: of this package. name: of the context manager there. arguments: of that.
        peer: whose Python, hidden modules and environment it has. core: the one that it is put on.

    Attributes:
        told: what the context manager has yielded.

    Raises:
        CommandError: it has ended instead.
    """

    def __init__(
        self,
        module: str,
        name: str,
        *arguments: Any,
        peer: Peer | None = None,
        core: int | None = None,
    ) -> None:
        hides = peer.hides if peer else ()
        hidden = "".join(f"sys.modules[{each!r}] = None; " for each in hides)
        program = (
            f"import sys; {hidden}sys.path.insert(0, {str(ROOT)!r}); "
            f"from {__package__}.worker import main; main(*{(core, module, name, *arguments)})"
        )
        environment = {**os.environ, **(peer.environment if peer else {})}
        python = peer.python(name) if peer else None
        with ExitStack() as stack:
            with undisturbed():
                self.process = subprocess.Popen(
                    [python or sys.executable, "-c", program],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    env={name: value for name, value in environment.items() if value is not None},
                    text=True,
                )
                stack.callback(self.close, at_once=True)
            self.told = self._answer(LATENESS)
            stack.pop_all()

    def ask(self, lasting: float = 0.0, within: float = math.inf, **question: Any) -> Any:
        """Return the answer to a question that is meant to take so many seconds.

        Args:
            lasting: the seconds. within: those that it may take, at most.
            question: what is asked.

        Raises:
            CommandError: there is none, or it is an error. BrokenPipeError: it has ended.
        """
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(question) + "\n")
        self.process.stdin.flush()
        return self._answer(min(within, LATENESS + STRETCH * lasting))

    def _answer(self, longest: float) -> Any:
        """Return what the next line tells, for which nothing else was written before."""
        assert self.process.stdout is not None
        poller = select.poll()  # unlike select(), it takes any descriptor
        poller.register(self.process.stdout, select.POLLIN)
        if not poller.poll(longest * 1000):
            raise CommandError(f"no answer in {longest:.0f} s")
        line = self.process.stdout.readline()
        if not line:
            raise CommandError(f"a process ended with status {self.process.wait()}")
        answer = json.loads(line)
        if "error" in answer:
            raise CommandError(answer["error"])
        return answer["value"]

    def close(self, at_once: bool = False) -> None:
        """End it."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        if at_once:
            self.process.kill()
        with suppress(BrokenPipeError):
            self.process.stdin.close()
        end(self.process, PATIENCE)
        self.process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class Workers(ExitStack):
    """Hold processes of those that stand beside a client, which begin when they are wanted."""

    def __init__(self) -> None:
        super().__init__()
        self._held: dict[tuple[Any, ...], Worker] = {}

    def worker(self, *arguments: Any) -> Worker:
        """Return the one that runs what ``Worker`` is told so."""
        if arguments not in self._held:
            self._held[arguments] = self.enter_context(Worker(*arguments))
        return self._held[arguments]


class Processes:
    """Hold both processes of one variant, each on a core of its own if ``pinned``.

    That they do not even begin is a failure of each figure, and of no other variant's.
    """

    def __init__(self, peer: Peer, pinned: bool) -> None:
        self.peer = peer
        self.pinned = pinned
        self._running: list[Worker] = []
        self._broken: str | None = None  # why they do not begin

    def _begin(self) -> None:
        places: list[int | None] = [*cores()[:2]] if self.pinned else [None, None]
        told: tuple[Any, ...] = ()
        try:
            for role, core in zip(("server", "client"), places, strict=True):
                worker = Worker("worker", role, self.peer.name, *told, peer=self.peer, core=core)
                self._running.append(worker)
                told = (worker.told,)
        except BaseException:
            self.close(at_once=True)
            raise

    def measure(self, name: str, seconds: float, within: float | None = None) -> float:
        """Return one figure.

        Args:
            name: of the measure.
            seconds: what it is meant to take. within: what it may take, at most.

        Raises:
            MeasurementFailed: there is none; the next one is taken by new processes.
        """
        try:
            if self._broken is not None:
                raise CommandError(self._broken)
            if not self._running:
                self._begin()
            most = math.inf if within is None else within
            return float(self._running[-1].ask(seconds, most, measure=name, seconds=seconds))
        except (CommandError, BrokenPipeError) as error:
            self.close(at_once=True)
            raise MeasurementFailed(str(error)) from None

    def close(self, at_once: bool = False) -> None:
        """End both processes, the client first."""
        with ExitStack() as stack:
            for worker in self._running:
                stack.callback(worker.close, at_once)
        self._running.clear()

    def __enter__(self) -> Self:
        try:
            self._begin()
        except CommandError as error:
            self._broken = f"it does not begin: {error}"
        return self

    def __exit__(self, *error: object) -> None:
        self.close(at_once=error[0] is not None)
