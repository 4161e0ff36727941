"""A spawned program gets its pipes, its arguments and default signals, and nothing else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from wsmux.tunnel import spawning
from wsmux.tunnel.spawning import Spawned

LOOK = """
import os, signal
print(sorted(number for number in signal.Signals if signal.getsignal(number) is signal.SIG_IGN))
print(signal.pthread_sigmask(signal.SIG_BLOCK, []))
print(sorted(int(fd) for fd in os.listdir('/proc/self/fd'))[:-1])  # the last is the directory's
print(os.getsid(0) == os.getpid(), sorted(os.environ.items()))
"""

# Python itself ignores two, in every process.
SEEN = """[<Signals.SIGPIPE: 13>, <Signals.SIGXFSZ: 25>]
set()
[0, 1, 2]
True [('LC_ALL', 'C.UTF-8')]
"""


@contextmanager
def spawned(*argv: str) -> Iterator[Spawned]:
    process = Spawned(argv[0], argv, {"LC_ALL": "C.UTF-8"})
    with process.stdin, process.stdout, process.stderr:
        yield process


@pytest.fixture
def unlike_default() -> Iterator[None]:
    """Ignore and block signals, and hold a descriptor that children would inherit."""
    ignored = (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM, signal.SIGUSR1)
    before = {kind: signal.signal(kind, signal.SIG_IGN) for kind in ignored}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGUSR2])
    fd = os.open(os.devnull, os.O_RDONLY)
    os.set_inheritable(fd, True)
    try:
        yield
    finally:
        os.close(fd)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for kind, handler in before.items():
            signal.signal(kind, handler)


@pytest.mark.parametrize("listed", [True, False], ids=["with /proc", "without"])
def test_a_program_inherits_no_signals_descriptors_or_environment(
    unlike_default: None, listed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not listed:
        monkeypatch.setattr(spawning, "OPEN", "/no/such/folder")
        monkeypatch.setattr(os, "sysconf", lambda name: 4096)
    with spawned(sys.executable, "-I", "-S", "-c", LOOK) as process:
        assert process.stdout.read().decode() == SEEN
        assert process.stderr.read() == b""
        assert process.wait() == 0


def test_bytes_pass_and_the_exit_code_is_that_of_subprocess() -> None:
    with spawned("/bin/sh", "-c", "cat; echo err >&2; kill -9 $$") as process:
        process.stdin.write(b"through")
        process.stdin.close()
        assert process.stdout.read() == b"through"
        assert process.stderr.read() == b"err\n"
        assert process.wait() == -signal.SIGKILL
        assert process.wait() == 0  # no longer its child


@pytest.mark.parametrize("there", [True, False])
def test_the_end_is_awaited_without_reaping(there: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also by a Python that was built without ``pidfd_open``, as many are."""
    if not there:
        monkeypatch.delattr(os, "pidfd_open", raising=False)
    with spawned("/bin/sh", "-c", "exit 7") as process:
        process.await_end()
        process.await_end()
        assert process.wait() == 7


@pytest.mark.parametrize("kind", ["missing", "not executable", "no program", "null"])
def test_what_cannot_be_run_raises_and_leaves_nothing_open(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "program"
    if kind != "missing":
        path.write_bytes(b"\x7fELF, but not really")
        path.chmod(0o644 if kind == "not executable" else 0o755)
    before = sorted(os.listdir(spawning.OPEN))
    with pytest.raises(ValueError if kind == "null" else OSError, match=r"."):
        Spawned(str(path), [str(path), "\0" if kind == "null" else "-"], {})
    assert sorted(os.listdir(spawning.OPEN)) == before


WITHOUT_THE_STANDARD_THREE = """
import os
from wsmux.tunnel.spawning import Spawned
for fd in (0, 1, 2):
    os.close(fd)
process = Spawned("/bin/sh", ["sh", "-c", "cat; echo err >&2"], {})
process.stdin.write(b"through")
process.stdin.close()
assert process.stdout.read() == b"through"
assert process.stderr.read() == b"err\\n"
os._exit(process.wait() + 7)
"""


def test_a_process_that_closed_its_own_three_hands_over_the_right_pipes() -> None:
    command = [sys.executable, "-c", WITHOUT_THE_STANDARD_THREE]
    assert subprocess.run(command, check=False, timeout=120).returncode == 7
