"""Lend the socket of an I/O thread to another thread, and take it back."""

from __future__ import annotations

import os
import select
import socket
import threading
from collections.abc import Iterator

import pytest

from wsmux.runtime.deadline import Deadline
from wsmux.runtime.parking import EventParker
from wsmux.transport.socket_io import Wakeup
from wsmux.transport.socket_poller import SocketPoller

IN, OUT = select.POLLIN, select.POLLOUT


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    near, far = socket.socketpair()
    with near, far:
        yield near, far


@pytest.fixture
def wakeup() -> Iterator[Wakeup]:
    made = Wakeup()
    yield made
    made.close()


@pytest.fixture
def poller(ends: tuple[socket.socket, socket.socket], wakeup: Wakeup) -> Iterator[SocketPoller]:
    """Watch the near end for bytes."""
    made = SocketPoller(wakeup)
    made.watch(ends[0].fileno())
    made.want(IN)
    yield made
    made.close()


def test_bytes_are_not_reported_while_the_socket_is_lent(
    poller: SocketPoller, ends: tuple[socket.socket, socket.socket], wakeup: Wakeup
) -> None:
    near, far = ends
    parker = EventParker()
    assert poller.lend(parker) == near.fileno()
    far.send(b"x")
    assert poller.wait(0) == []
    wakeup.set()
    assert poller.wait(0) == [(wakeup.fd, IN)]
    wakeup.clear()
    poller.want(IN | OUT)  # whoever reads does not send what the system had no room for
    assert poller.wait(0) == [(near.fileno(), OUT)]
    poller.take_back(parker)
    assert poller.wait(0) == [(near.fileno(), IN | OUT)]


def test_it_is_lent_to_one_thread_at_a_time(poller: SocketPoller) -> None:
    first, second = EventParker(), EventParker()
    assert poller.lend(first) >= 0
    assert poller.lend(second) == -1
    poller.take_back(second)  # it has nothing to give back
    assert poller.lent is first
    poller.take_back(first)
    assert poller.lend(second) >= 0


def test_an_end_is_reported_even_while_it_is_lent(
    poller: SocketPoller, ends: tuple[socket.socket, socket.socket]
) -> None:
    near, far = ends
    poller.lend(EventParker())
    far.close()
    assert poller.wait(0) == [(near.fileno(), select.POLLHUP)]


def test_a_thread_that_has_borrowed_it_is_sent_away_before_it_is_closed(
    poller: SocketPoller, ends: tuple[socket.socket, socket.socket]
) -> None:
    near, far = ends
    parker = EventParker()
    parker.begin_beside(poller.lend(parker))
    closing = threading.Thread(target=poller.unwatch)
    closing.start()
    closing.join()
    assert not parker.park_beside(Deadline(None))
    parker.end_beside()
    assert (poller.lent, poller.lend(parker)) == (None, -1)
    poller.take_back(parker)
    far.send(b"x")
    assert poller.wait(0) == []
    poller.watch(near.fileno())
    poller.want(IN)
    assert poller.wait(0) == [(near.fileno(), IN)]


def test_an_interrupted_return_leaves_the_socket_watched(
    poller: SocketPoller,
    ends: tuple[socket.socket, socket.socket],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is made good by another call."""

    class Interrupted(BaseException):
        pass

    class Raising:
        def modify(self, fd: int, events: int) -> None:
            raise Interrupted

    near, far = ends
    parker = EventParker()
    poller.lend(parker)
    far.send(b"x")
    with monkeypatch.context() as patch:
        patch.setattr(poller, "poller", Raising())
        with pytest.raises(Interrupted):
            poller.take_back(parker)
    poller.take_back(parker)
    assert poller.wait(0) == [(near.fileno(), IN)]
    assert poller.lent is None


def test_without_epoll_nothing_is_lent(
    ends: tuple[socket.socket, socket.socket], wakeup: Wakeup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where gevent has patched the standard library."""
    monkeypatch.delattr(select, "epoll")
    near, far = ends
    poller = SocketPoller(wakeup)
    assert not poller.lends
    poller.watch(near.fileno())
    poller.want(IN)
    assert poller.wait(0) == []
    far.send(b"x")
    assert poller.wait(60) == [(near.fileno(), IN)]
    poller.unwatch()
    assert poller.wait(0) == []
    poller.close()


def test_a_forked_child_closes_its_copy_and_the_parent_goes_on(
    poller: SocketPoller, ends: tuple[socket.socket, socket.socket]
) -> None:
    near, far = ends
    child = os.fork()
    if not child:
        try:
            poller.forked()
            os._exit(0 if poller.poller.closed and poller.lend(EventParker()) < 0 else 1)
        finally:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    far.send(b"x")
    assert poller.wait(60) == [(near.fileno(), IN)]
