"""Plant faults for the checker of locks, which must find them."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

import wsmux
from wsmux.testing import LockOrder, LockOrderError

from ..helpers.timeouts import WAIT


@pytest.fixture
def module() -> ModuleType:
    """Return a module under test, whose locks are to be watched."""
    made: Any = ModuleType("planted")
    made.threading, made.select = threading, select
    source = "def two(): return threading.Lock(), \\\n threading.Lock()\n"
    source += "def one(): return threading.Lock()\n"
    exec(source, vars(made))
    return made


def in_thread(action: Callable[[], object]) -> None:
    thread = threading.Thread(target=action, name="other-thread")
    thread.start()
    thread.join(WAIT)
    assert not thread.is_alive()


def take(*locks: Any) -> None:
    """Take locks one inside the other."""
    if locks:
        with locks[0]:
            take(*locks[1:])


def test_locks_taken_in_one_order_pass(module: Any) -> None:
    with LockOrder([module]) as order:
        first, second = module.two()
        in_thread(lambda: take(first, second))
        take(first, second)
        take(second)
    assert (order.locks, order.acquisitions) == (2, 5)
    assert len(order.edges) == 1
    assert module.threading is threading


def test_locks_taken_in_both_orders_are_found_with_both_stacks(module: Any) -> None:
    def take_both_ways() -> None:
        with LockOrder([module]):
            first, second = module.two()
            in_thread(lambda: take(first, second))
            take(second, first)

    with pytest.raises(LockOrderError, match="locks are taken in a circle") as caught:
        take_both_ways()
    text = str(caught.value)
    assert "planted:1 -> planted:2 -> planted:1" in text
    assert "in other-thread, held since" in text
    assert "in MainThread, held since" in text
    assert text.count("in take") >= 4


def test_a_circle_of_three_is_found(module: Any) -> None:
    with LockOrder([module]) as order:
        locks = [module.one() for _ in range(3)]  # one line makes them: each is told apart
        for one, other in zip(locks, locks[1:] + locks[:1], strict=True):
            take(one, other)
        assert len(order.cycles()) == 1
        with pytest.raises(LockOrderError, match="planted:3 #1"):
            order.check()
        order.edges.clear()


def test_an_order_among_locks_of_one_line_passes(module: Any) -> None:
    with LockOrder([module]):
        locks = [module.one() for _ in range(3)]
        take(*locks)
        take(locks[0], locks[2])


def test_a_lock_that_is_only_tried_makes_no_circle(module: Any) -> None:
    with LockOrder([module]):
        first, second = module.two()
        take(first, second)
        with second:
            assert first.acquire(blocking=False)
            first.release()


def test_a_thread_that_would_wait_for_itself_is_told(module: Any) -> None:
    with LockOrder([module]):
        lock = module.one()
        with lock, pytest.raises(LockOrderError, match="which it holds itself"):
            lock.acquire()


def test_a_lock_of_the_thread_itself_may_be_taken_again_if_it_is_made_for_it(module: Any) -> None:
    with LockOrder([module]) as order:
        lock = module.threading.RLock()
        take(lock, lock, lock)
    assert order.acquisitions == 1


def test_conditions_give_their_lock_away_while_they_wait(module: Any) -> None:
    with LockOrder([module]) as order:
        condition, told = module.threading.Condition(), []

        def tell() -> None:
            with condition:
                told.append(1)
                condition.notify()

        with condition:
            thread = threading.Thread(target=tell)
            thread.start()
            assert condition.wait_for(lambda: told, WAIT)
        thread.join(WAIT)
    assert not order.edges


@pytest.mark.parametrize("call", ["recv", "poll"])
def test_a_lock_held_across_a_blocking_call_is_found(module: Any, call: str) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.send(b"x")

        def wait_under_a_lock() -> None:
            with LockOrder([module]):
                lock = module.one()
                poller = module.select.poll()
                poller.register(ours, select.POLLIN)
                with lock:
                    assert ours.recv(1) if call == "recv" else poller.poll(1000)

        with pytest.raises(LockOrderError, match="planted:3.* held across a blocking call"):
            wait_under_a_lock()


def test_a_lock_may_be_held_across_a_blocking_call_where_that_is_known(module: Any) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, LockOrder([module], may_block=["planted"]):
        theirs.send(b"x")
        with module.one():
            assert ours.recv(1) == b"x"


def test_calls_that_do_not_block_pass_under_a_lock(module: Any) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, LockOrder([module]):
        ours.setblocking(False)
        lock = module.one()
        with lock:
            ours.send(b"x")
            module.select.poll().poll(0)


def test_a_lock_that_nobody_waits_for_may_be_held_across_a_blocking_call(module: Any) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, LockOrder([module]):
        theirs.send(b"x")
        lock = module.one()
        assert lock.acquire(False)
        assert ours.recv(1) == b"x"
        lock.release()


def test_everything_is_as_before_afterwards() -> None:
    from wsmux.transport import message_transport

    before = dict(vars(socket.socket))
    with LockOrder():
        assert message_transport.threading is not threading
    assert message_transport.threading is threading
    assert dict(vars(socket.socket)) == before


def test_a_connection_takes_its_locks_in_one_order() -> None:
    with LockOrder() as order:
        client, server = wsmux.pair()
        with client, server, client.open_stream(WAIT) as ours:
            ours.write(b"x" * 1000)
            ours.close_write()
            with server.accept_stream(WAIT) as theirs:
                assert theirs.read() == b"x" * 1000
        assert order.locks > 4
        assert order.acquisitions > 20
