"""A lock is held by one, freed by the dead, and waited for no longer than told."""

from __future__ import annotations

import fcntl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from wsmux.rpc import RiverError
from wsmux.spark.tables.file_lock import FileLock

from ...helpers.timeouts import WAIT

# Soon over, for a lock that nobody is going to free.
SHORT = 0.05

HOLDER = """
import fcntl, sys
file = open(sys.argv[1], "w")
fcntl.flock(file, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def held_elsewhere(path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Have another process hold a lock until it is killed."""
    command = [sys.executable, "-c", HOLDER, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        yield process
        process.kill()


def free(path: Path) -> bool:
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def test_the_file_is_locked_while_it_is_held(tmp_path: Path) -> None:
    lock = FileLock(tmp_path / "_lock", "d/_lock", WAIT)
    for _ in range(2):
        with lock.held():
            assert not free(tmp_path / "_lock")
        assert free(tmp_path / "_lock")


def test_an_error_frees_the_lock(tmp_path: Path) -> None:
    lock = FileLock(tmp_path / "_lock", "d/_lock", SHORT)
    with pytest.raises(LookupError), lock.held():
        raise LookupError
    with lock.held():
        assert not free(tmp_path / "_lock")


def test_a_process_that_keeps_it_is_not_waited_for_for_ever(tmp_path: Path) -> None:
    lock = FileLock(tmp_path / "_lock", "datasets/d/_lock", SHORT)
    with held_elsewhere(tmp_path / "_lock"), pytest.raises(RiverError) as caught, lock.held():
        pytest.fail("it is held twice")
    assert caught.value.code == "BUSY"
    text = "datasets/d/_lock was held by another process for 0.05 s: nothing was changed, and "
    assert caught.value.message == text + "asking again is safe"
    with lock.held():  # what failed holds nothing
        assert not free(tmp_path / "_lock")


def test_a_thread_that_keeps_it_is_not_waited_for_for_ever(tmp_path: Path) -> None:
    lock = FileLock(tmp_path / "_lock", "d/_lock", SHORT)
    found: list[RiverError] = []

    def another() -> None:
        with pytest.raises(RiverError) as caught, lock.held():
            pytest.fail("it is held twice")
        found.append(caught.value)

    with lock.held():
        thread = threading.Thread(target=another)
        thread.start()
        thread.join(WAIT)
    assert [each.code for each in found] == ["BUSY"]
    assert "d/_lock was held by this process for 0.05 s" in found[0].message


def test_the_lock_of_a_killed_process_is_had_at_once(tmp_path: Path) -> None:
    lock = FileLock(tmp_path / "_lock", "d/_lock", WAIT)
    entered = threading.Event()

    def wait() -> None:
        with lock.held():
            entered.set()

    with held_elsewhere(tmp_path / "_lock") as process:
        thread = threading.Thread(target=wait)
        thread.start()
        assert not entered.wait(SHORT)
        process.kill()
        assert entered.wait(WAIT)
        thread.join(WAIT)


def test_one_thread_at_a_time_holds_it(tmp_path: Path) -> None:
    locks = [FileLock(tmp_path / "_lock", "d/_lock", WAIT) for _ in range(2)]
    inside: list[int] = []
    most = 0

    def work(lock: FileLock) -> None:
        nonlocal most
        for _ in range(20):
            with lock.held():
                inside.append(1)
                most = max(most, len(inside))
                inside.pop()

    threads = [threading.Thread(target=work, args=(lock,)) for lock in locks * 3]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT)
        assert not thread.is_alive()
    assert most == 1


def test_what_is_no_file_is_an_error_and_frees_the_lock(tmp_path: Path) -> None:
    (tmp_path / "_lock").symlink_to(tmp_path / "elsewhere")
    lock = FileLock(tmp_path / "_lock", "d/_lock", SHORT)
    for _ in range(2):
        with pytest.raises(OSError, match="symbolic links"), lock.held():
            pytest.fail("it followed a link")
    assert not (tmp_path / "elsewhere").exists()
