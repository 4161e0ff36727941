"""Hold large objects in places of every kind, and have each named with its place."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import weakref
from collections import deque

from wsmux.testing.large_objects import largest

MIB = 1024 * 1024

# The size of each, in MiB, which no other object has, and fewer than five others exceed. What is
# written to is the smallest: the zeros of bytes take no memory before.
AT_A_MODULE, IN_AN_OBJECT, IN_A_THREAD, ITSELF = 211, 223, 227, 109

FROZEN = f"""
import gc
from wsmux.testing.large_objects import largest
gc.freeze()
kept = bytes({AT_A_MODULE} * {MIB})
print(*largest(), sep="\\n")
"""


class Session:
    def __init__(self) -> None:
        self.queue = deque([b"small", bytes(IN_AN_OBJECT * MIB)])


def line_of(mib: int) -> str:
    lines = largest()
    found = [line for line in lines if f" of {mib * 1024} KiB" in line]
    assert len(found) == 1, lines
    return found[0]


def test_a_name_of_a_module_that_the_collector_put_aside() -> None:
    done = subprocess.run([sys.executable, "-c", FROZEN], capture_output=True, text=True)
    assert done.stdout == (
        f"bytes of {AT_A_MODULE * 1024} KiB as kept in the names of module __main__\n"
    ), done.stderr


def test_what_an_object_holds_and_who_holds_that() -> None:
    sessions = [Session()]
    line = line_of(IN_AN_OBJECT)
    assert line.startswith(f"bytes of {IN_AN_OBJECT * 1024} KiB in deque in "), line
    assert "Session" in line
    del sessions


def test_a_name_in_a_function_that_another_thread_runs() -> None:
    begun, gate = threading.Event(), threading.Event()

    def waiting() -> None:
        message = bytes(IN_A_THREAD * MIB)
        begun.set()
        gate.wait()
        del message

    thread = threading.Thread(target=waiting)
    thread.start()
    begun.wait()
    line = line_of(IN_A_THREAD)
    gate.set()
    thread.join()
    assert line.startswith(f"bytes of {IN_A_THREAD * 1024} KiB as message in "), line
    assert f"waiting ({__file__}:" in line


def test_an_object_that_is_large_itself() -> None:
    items = bytearray(ITSELF * MIB - sys.getsizeof(bytearray()))
    assert line_of(ITSELF).startswith("bytearray of ")
    del items


class Rows(bytearray):
    """A bytearray that may have weak references."""


def test_nothing_is_held_by_looking_at_it() -> None:
    found: list[weakref.ref[Rows]] = []

    def function_that_has_large_rows() -> None:
        rows = Rows(ITSELF * MIB - sys.getsizeof(Rows()))
        found.append(weakref.ref(rows))
        assert line_of(ITSELF).startswith("Rows of ")

    gc.disable()
    try:
        function_that_has_large_rows()
        assert found[0]() is None
    finally:
        gc.enable()


def test_small_objects_are_none_of_them() -> None:
    assert all(int(line.split()[2]) >= 1024 for line in largest())
    assert len(largest()) <= 5
