"""Start a process that inherits nothing from this one except what it is given.

``subprocess`` leaves a signal ignored in the child if it is ignored here, as SIGINT and SIGQUIT are
in processes that a script starts with ``&``, and SIGHUP under ``nohup``: a client's signal would
have no effect. Resetting it in a ``preexec_fn`` is unsafe, since that runs Python in the fork of a
process with threads. Handling the signal here, which exec would undo, needs the main thread and
changes the application. ``env --default-signal`` exists only in GNU, and a wrapper in Python takes
time to start and hides why the program cannot run. ``posix_spawn`` resets signals and their mask in
the C library, from any thread, and reports errors of the program.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import IO, Any

__all__ = ["Spawned"]

# Where Linux lists the descriptors of a process.
OPEN = "/proc/self/fd"


class Spawned:
    """Run a program in a session of its own, with three pipes and default signal handling.

    Args:
        path: the file of the program.
        argv: its arguments, its own name first.
        environment: its complete environment.

    Attributes:
        pid: its process id.
        stdin, stdout, stderr: this side's ends of the pipes, unbuffered; the caller must close
            them.

    Raises:
        OSError: it cannot be run, or the system has no descriptor or process left.
        ValueError: an argument contains a null character.
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

    def await_end(self) -> None:
        """Wait until it has ended, without reaping it: so its process id stays its own.

        Where the system or other code reaps it, as it does with SIGCHLD ignored and under gevent,
        until then. ``poll`` lets other greenlets run, which ``waitid`` does not.
        """
        try:
            ended = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return
        except (AttributeError, OSError):  # Python or the system has them not, or none is left
            with suppress(ChildProcessError):
                os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
            return
        try:
            poller = select.poll()
            poller.register(ended, select.POLLIN)
            poller.poll()
        finally:
            os.close(ended)

    def wait(self) -> int:
        """Wait until it has ended, and return its exit code, negative for a signal.

        As in ``subprocess``, the code is 0 if other code in this process has already waited for it.
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
    if end <= 2:  # started without the standard three; dup2 would overwrite it
        end = fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 3)
        theirs.callback(os.close, end)
    return pipe, end


def _inherited() -> list[int]:
    """Return the descriptors above the standard three that a new program would inherit.

    Python's own are not inheritable, but a server's listening sockets may be, for its workers.
    """
    try:
        numbers = [int(name) for name in os.listdir(OPEN)]
    except OSError:  # there is no /proc
        numbers = list(range(os.sysconf("SC_OPEN_MAX")))
    found = []
    for number in numbers:
        try:
            inherited = number > 2 and os.get_inheritable(number)
        except OSError:  # not open, or closed meanwhile, like that of the directory
            continue
        if inherited:
            found.append(number)
    return found
