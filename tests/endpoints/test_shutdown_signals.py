"""A process that is stopped or exits lets what it serves be shut down; in other processes."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading

import pytest

from wsmux.endpoints.shutdown_signals import QUICK, shut_down_on_signals

from ..helpers.commands import PATIENCE
from ..helpers.load.measuring import CHECKOUT

# ``say`` writes a line at once; the process is sent the signals that the program asks for.
BEFORE = """
import os, signal, sys, threading, time
from wsmux.endpoints.shutdown_signals import shut_down_at_exit, shut_down_on_signals

def say(text):
    os.write(1, f"{text}\\n".encode())

def send(number):
    os.kill(os.getpid(), number)

def late(timeout):  # more than the process needs to end
    time.sleep(0.2)
    say(f"late {timeout}")

def soon(timeout):
    say(f"soon {timeout}")

def join(deadline):
    say(f"joined within {0 < deadline.remaining() <= 1}")

"""


def run(program: str) -> tuple[list[str], int, str]:
    """Run a program; return the lines it said, its status, and what else it wrote."""
    done = subprocess.run(
        [sys.executable, "-c", BEFORE + program],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    return done.stdout.splitlines(), done.returncode, done.stderr


def test_a_process_dies_by_its_signal_after_the_last_shutdown() -> None:
    said, status, _ = run("""
shut_down_on_signals(soon, 3.0)
shut_down_on_signals(late, None)
send(signal.SIGTERM)
threading.Event().wait()
""")
    assert (sorted(said), status) == (["late None", "soon 3.0"], -signal.SIGTERM)


def test_what_the_signal_did_before_happens_beside_it_and_the_exit_waits() -> None:
    said, status, _ = run("""
def handle(number, frame):
    say("before")
    sys.exit(5)

signal.signal(signal.SIGTERM, handle)
shut_down_on_signals(late, 3.0)
send(signal.SIGTERM)
threading.Event().wait()
""")
    assert (said, status) == (["before", "late 3.0"], 5)


def test_an_interrupt_leaves_little_time() -> None:
    said, _, errors = run("""
shut_down_on_signals(late, 10.0)
shut_down_on_signals(soon, 0.5)
send(signal.SIGINT)
threading.Event().wait()
""")
    assert sorted(said) == [f"late {QUICK}", "soon 0.5"]
    assert "KeyboardInterrupt" in errors


def test_sigquit_stays_as_it_is_where_nobody_handles_it() -> None:
    said, _, _ = run("""
signal.signal(signal.SIGQUIT, signal.SIG_DFL)  # a shell has its background jobs ignore it
shut_down_on_signals(soon, None)
say(signal.getsignal(signal.SIGQUIT) == signal.SIG_DFL)
""")
    assert said == ["True"]


def test_the_second_signal_does_not_wait() -> None:
    said, status, _ = run("""
begun = threading.Event()

def stuck(timeout):
    begun.set()
    threading.Event().wait()

shut_down_on_signals(stuck, None)
send(signal.SIGTERM)
begun.wait()
say("begun")
send(signal.SIGTERM)
threading.Event().wait()
""")
    assert (said, status) == (["begun"], -signal.SIGTERM)


# A shutdown with much time, which one with less ends; and one that ends by nothing. The signal is
# sent again until its handler is called, which CPython does not do if the main thread is just about
# to wait.
GRACEFUL = """
ended, exiting, handled = threading.Event(), threading.Event(), threading.Event()
quits = []

def stop(number, frame):
    say("handled")
    handled.set()

def leave(number, frame):
    sys.exit(5)

def leave_quickly(number, frame):
    quits.append(number)
    sys.exit(5)

def graceful(timeout):
    say(f"graceful {timeout}")
    if timeout == 20.0:
        awaited.wait()
        while not quits:
            send(quick)
            time.sleep(0.1)
        ended.wait()
    ended.set()

def stuck(timeout):
    if timeout == 20.0:
        threading.Event().wait()
    say(f"stuck {timeout}")

"""


@pytest.mark.parametrize("number", ["SIGINT", "SIGQUIT"])
def test_a_quick_stop_leaves_little_time_to_a_graceful_one(number: str) -> None:
    said, status, _ = run(f"""{GRACEFUL}
awaited, quick = handled, signal.{number}
signal.signal(signal.SIGTERM, stop)
signal.signal(quick, leave_quickly)
shut_down_on_signals(graceful, 20.0)
shut_down_on_signals(stuck, 20.0)
send(signal.SIGTERM)
threading.Event().wait()
""")
    lines = ["graceful 1.0", "graceful 20.0", "handled", "stuck 1.0"]
    assert (sorted(said), status) == (lines, 5)


def test_a_quick_stop_leaves_little_time_to_a_process_that_exits() -> None:
    said, _, _ = run(f"""{GRACEFUL}
import atexit
atexit.register(exiting.set)
awaited, quick = exiting, signal.SIGQUIT
signal.signal(signal.SIGTERM, leave)
signal.signal(signal.SIGQUIT, leave_quickly)
shut_down_on_signals(graceful, 20.0)
shut_down_on_signals(stuck, None)
shut_down_at_exit(stuck, 20.0, 20.0, join)
send(signal.SIGTERM)
threading.Event().wait()
""")
    assert sorted(said[:3]) == ["graceful 1.0", "graceful 20.0", "stuck 1.0"]


# In the middle of the beginning, another signal comes.
MEANWHILE = """
import _thread
start = _thread.start_new_thread

def starts(function, arguments):
    _thread.start_new_thread = start
    signal.raise_signal(meanwhile)
    return start(function, arguments)

_thread.start_new_thread = starts
"""


def test_a_signal_that_comes_while_a_shutdown_begins_leaves_none_of_them_out() -> None:
    said, status, _ = run(f"""{GRACEFUL}{MEANWHILE}
meanwhile = signal.SIGQUIT  # its handler exits
signal.signal(signal.SIGTERM, stop)
signal.signal(signal.SIGQUIT, leave)
shut_down_on_signals(stuck, 20.0)
shut_down_on_signals(graceful, 3.0)
send(signal.SIGTERM)
threading.Event().wait()
""")
    # The hurried one may be called once more, too, as it may not have ended yet.
    assert {"graceful 3.0", "handled", "stuck 1.0"} <= set(said)
    assert status == 5


def test_what_another_handler_raises_while_a_shutdown_begins_leaves_nothing_out() -> None:
    """One of a signal that shuts nothing down."""
    said, status, _ = run(f"""{MEANWHILE}
def times_out(number, frame):
    raise TimeoutError

meanwhile = signal.SIGALRM
signal.signal(signal.SIGALRM, times_out)
signal.signal(signal.SIGTERM, lambda number, frame: say("handled"))
shut_down_on_signals(soon, 3.0)
shut_down_on_signals(late, 4.0)
try:
    send(signal.SIGTERM)
    threading.Event().wait()
except TimeoutError:
    say("timed out")
""")
    assert (sorted(said), status) == (["handled", "late 4.0", "soon 3.0", "timed out"], 0)


def test_what_another_handler_raises_at_any_step_leaves_nothing_half_begun() -> None:
    said, _, errors = run("""
import itertools
from tests.helpers.interrupts import signalled_at
from wsmux.endpoints.shutdown_signals import _process

def times_out(number, frame):
    raise TimeoutError

calls, begun = [], 0
signal.signal(signal.SIGALRM, times_out)
signal.signal(signal.SIGTERM, lambda number, frame: None)
shut_down_on_signals(lambda timeout: calls.append(1), 3.0)
shut_down_on_signals(lambda timeout: calls.append(2), 3.0)
for step in itertools.count(1):
    _process.forked()  # as if no signal had come
    signal.signal(signal.SIGUSR1, lambda number, frame: None)  # or some steps are left out
    calls.clear()
    try:
        signalled = signalled_at(step, lambda: signal.raise_signal(signal.SIGTERM), signal.SIGALRM)
    except TimeoutError:
        signalled = True
    if _process._begun:
        begun += 1
        assert _process._done.wait(20), step
        assert sorted(calls) == [1, 2], step
        while len(sys._current_frames()) > 1:  # they would end what begins anew
            time.sleep(0.001)
    else:
        assert not calls, step
    if not signalled:
        break
say(begun > 20)
""")
    assert said == ["True"], errors


def test_what_one_handler_raises_does_not_leave_out_another() -> None:
    said, status, _ = run(f"""{MEANWHILE}
meanwhile = signal.SIGTERM
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGTERM, lambda number, frame: say("handled"))
shut_down_on_signals(soon, 3.0)
try:
    send(signal.SIGINT)
    threading.Event().wait()
except KeyboardInterrupt:
    say("interrupted")
""")
    assert {"handled", "interrupted"} <= set(said)
    assert status == 0


def test_a_stop_that_was_not_hurried_leaves_no_thread_behind() -> None:
    said, _, _ = run("""
signal.signal(signal.SIGTERM, lambda number, frame: say("goes on"))
shut_down_on_signals(late, 3.0)
before = len(sys._current_frames())
send(signal.SIGTERM)
while len(sys._current_frames()) > before:
    time.sleep(0.01)
""")
    assert sorted(said) == ["goes on", "late 3.0"]


def test_a_signal_after_the_shutdown_kills() -> None:
    said, status, _ = run("""
shut_down_on_signals(soon, None)
try:
    send(signal.SIGINT)
    threading.Event().wait()
except KeyboardInterrupt:
    say("goes on")
send(signal.SIGTERM)
threading.Event().wait()
""")
    assert (sorted(said), status) == (["goes on", f"soon {QUICK}"], -signal.SIGTERM)


def test_a_shutdown_that_fails_is_logged_and_keeps_nobody() -> None:
    said, status, errors = run("""
def fails(timeout):
    raise ValueError("of the shutdown")

shut_down_on_signals(fails, None)
shut_down_on_signals(late, None)
send(signal.SIGTERM)
threading.Event().wait()
""")
    assert (said, status) == (["late None"], -signal.SIGTERM)
    assert "closing the connections gracefully failed" in errors
    assert "of the shutdown" in errors


def test_what_is_added_twice_is_shut_down_once_with_the_later_time() -> None:
    said, _, _ = run("""
shut_down_on_signals(soon, 3.0)
shut_down_on_signals(soon, 4.0)
send(signal.SIGTERM)
threading.Event().wait()
""")
    assert said == ["soon 4.0"]


def test_a_time_that_was_given_counts_before_and_behind_one_that_was_not() -> None:
    said, _, _ = run("""
shut_down_on_signals(soon, 3.0)
shut_down_on_signals(soon, 4.0, unasked=True)
shut_down_on_signals(late, 5.0, unasked=True)
shut_down_on_signals(late, 6.0)
send(signal.SIGTERM)
threading.Event().wait()
""")
    assert sorted(said) == ["late 6.0", "soon 3.0"]


def test_a_forked_child_shuts_down_for_itself_once_its_server_has_set_its_handlers() -> None:
    said, status, _ = run("""
shut_down_on_signals(soon, 3.0)
if child := os.fork():
    os.waitpid(child, 0)
    say("parent")
    os._exit(0)
signal.signal(signal.SIGTERM, lambda number, frame: say("the worker's own"))
shut_down_on_signals(soon, 4.0)
send(signal.SIGTERM)
sys.exit()
""")
    assert sorted(said[:2]) == ["soon 4.0", "the worker's own"]
    assert (said[2:], status) == (["parent"], 0)


# An exit without a signal


def test_an_exit_shuts_down_one_after_another_and_waits_for_threads() -> None:
    said, status, _ = run("""
shut_down_at_exit(late, 3.0, None, join)
shut_down_at_exit(soon, 4.0, None, join)
sys.exit(5)
""")
    assert said == ["late 3.0", "soon 4.0", "joined within True", "joined within True"]
    assert status == 5


def test_an_exit_gives_as_long_as_a_signal_would() -> None:
    said, _, _ = run("""
shut_down_on_signals(soon, 7.0)
shut_down_at_exit(soon, 3.0, None, join)
""")
    assert said == ["soon 7.0", "joined within True"]


def test_nothing_gets_more_time_than_the_process_has() -> None:
    said, _, _ = run("""
def last(timeout):
    say(f"last {0 < timeout < 2.5}")

shut_down_at_exit(soon, 2.0, 2.5, join)
shut_down_at_exit(last, 9.0, 2.5, join)
""")
    assert said[:2] == ["soon 2.0", "last True"]
    said, _, _ = run("""
signal.signal(signal.SIGTERM, lambda number, frame: None)
shut_down_on_signals(late, None)
shut_down_at_exit(late, 9.0, 2.5, join)
send(signal.SIGTERM)
""")
    assert said == ["late 2.5", "joined within True"]


def test_what_a_signal_has_begun_is_not_begun_again_at_exit() -> None:
    said, _, _ = run("""
signal.signal(signal.SIGTERM, lambda number, frame: sys.exit())
shut_down_on_signals(late, 3.0)
shut_down_at_exit(late, 3.0, None, join)
shut_down_at_exit(soon, 4.0, None, join)
send(signal.SIGTERM)
threading.Event().wait()
""")
    assert sorted(said) == ["joined within True"] * 2 + ["late 3.0", "soon 4.0"]


@pytest.mark.parametrize(("number", "time"), [("SIGTERM", 3.0), ("SIGQUIT", QUICK)])
def test_what_a_signal_could_not_begin_is_shut_down_at_exit(number: str, time: float) -> None:
    """From 3.12 on no thread can be started while a process that exits waits for its threads."""
    said, _, errors = run(f"""
import _thread

def none(function, arguments):
    raise RuntimeError("can't create new thread at interpreter shutdown")

_thread.start_new_thread = none
signal.signal(signal.{number}, lambda number, frame: say("handled"))
shut_down_on_signals(soon, 3.0)
send(signal.{number})
""")
    assert said == ["handled", f"soon {time}"]
    assert "no thread can be started" in errors


def test_a_signal_during_the_exit_begins_nothing_again() -> None:
    said, status, errors = run("""
def stopped(timeout):
    send(signal.SIGTERM)
    say(f"stopped {timeout}")

signal.signal(signal.SIGTERM, lambda number, frame: say("handled"))
shut_down_on_signals(stopped, 3.0)
shut_down_at_exit(stopped, 3.0, None, join)
""")
    assert said == ["handled", "stopped 3.0", "joined within True"]
    assert (status, errors) == (0, "")


def test_one_that_fails_at_exit_is_logged_and_keeps_nobody() -> None:
    said, status, errors = run("""
def fails(timeout):
    raise ValueError("of the shutdown")

shut_down_at_exit(fails, 3.0, None, join)
shut_down_at_exit(soon, 3.0, None, join)
""")
    assert (said[0], status) == ("soon 3.0", 0)
    assert "of the shutdown" in errors


def test_a_forked_child_shuts_down_nothing_of_its_parent() -> None:
    said, _, _ = run("""
shut_down_at_exit(soon, 3.0, None, join)
if child := os.fork():
    os.waitpid(child, 0)
    say("parent")
else:
    sys.exit()
""")
    assert said == ["parent", "soon 3.0", "joined within True"]


def test_only_the_main_thread_may_ask_for_it() -> None:
    caught: list[Exception] = []

    def ask() -> None:
        try:
            shut_down_on_signals(lambda timeout: None, 0)
        except ValueError as error:
            caught.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join(PATIENCE)
    assert len(caught) == 1
    with pytest.raises(ValueError, match="main thread"):
        raise caught[0]
