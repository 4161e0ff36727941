"""Start a process that has nothing of this one but what it is given.

``subprocess`` leaves a signal ignored in the child that is ignored here, as SIGINT and SIGQUIT are
in what a script starts with ``&``, and SIGHUP under ``nohup``: a client's signal would do nothing.
Resetting it in a ``preexec_fn`` is unsafe, since that is Python run in the fork of a process with
threads. Handling the signal here, which exec would undo, needs the main thread and changes the
application. ``env --default-signal`` is GNU's alone, and a wrapper in Python costs its start and
hides why the program cannot run. ``posix_spawn`` resets signals and their mask in the C library,
from any thread, and raises what is wrong with the program.
"""

from __future__ import annotations

import fcntl
import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import IO, Any

__all__ = ["Spawned"]

# Where Linux lists a process's descriptors.
OPEN = "/proc/self/fd"


class Spawned:
    """Run a program in a session of its own, with three pipes and default signals.

    Args:
        path: the program's file.
        argv: its arguments, its own name first.
        environment: all that it gets of one.

    Attributes:
        pid: its number.
        stdin, stdout, stderr: this side's ends of the pipes, unbuffered; they are the caller's to
            close.

    Raises:
        OSError: it cannot be run, or the system has no descriptor or process to give. ValueError:
        an argument has a null character.
    """

    def __init__(self, path: str, argv: Sequence[str], environment: Mapping[str, str]) -> None:
        with ExitStack() as failed, ExitStack() as theirs:
            ends = [_pipe(writes, failed, theirs) for writes in (True, False, False)]
            actions: list[tuple[Any, ...]] = [
                (os.POSIX_SPAWN_DUP2, end, number) for number, (_, end) in enumerate(ends)
            ]
            actions += [(os.POSIX_SPAWN_CLOSE, fd) for fd in _inherited()]
            self.pid = os.posix_spawn(
                path,
                list(argv),
                environment,
                file_actions=actions,
                setsid=True,
                setsigmask=[],
                setsigdef=signal.valid_signals(),
            )
            failed.pop_all()
        self.stdin, self.stdout, self.stderr = (pipe for pipe, _ in ends)

    def wait(self) -> int:
        """Wait until it has ended, and return its exit code, negative for a signal.

        It is 0 where somebody else in this process has waited for it, as ``subprocess`` has it.
        """
        try:
            return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        except ChildProcessError:
            return 0


def _pipe(writes: bool, failed: ExitStack, theirs: ExitStack) -> tuple[IO[bytes], int]:
    """Return this side's end of a new pipe, and the child's, which is above the standard three."""
    reader, writer = os.pipe()
    ours, end = (writer, reader) if writes else (reader, writer)
    pipe = failed.enter_context(os.fdopen(ours, "wb" if writes else "rb", 0))
    theirs.callback(os.close, end)
    if end <= 2:  # this process was started without them; the next dup2 would overwrite it
        end = fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 3)
        theirs.callback(os.close, end)
    return pipe, end


def _inherited() -> list[int]:
    """Return the descriptors above the standard three that a new program would get.

    Python's own are none of them, but a server's listening sockets may be, for its workers' sake.
    """
    try:
        numbers = [int(name) for name in os.listdir(OPEN)]
    except OSError:  # no /proc here
        numbers = list(range(os.sysconf("SC_OPEN_MAX")))
    found = []
    for number in numbers:
        try:
            inherited = number > 2 and os.get_inheritable(number)
        except OSError:  # not open, or closed meanwhile, as that of the directory is
            continue
        if inherited:
            found.append(number)
    return found
