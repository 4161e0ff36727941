"""Threads that serve connections in the place of a WSGI server's are known until they end."""

from __future__ import annotations

import threading

import pytest

import wsmux
from wsmux.flask import detached_threads
from wsmux.flask.detached_threads import DetachedThreads
from wsmux.runtime.deadline import Deadline
from wsmux.runtime.parking import OneShotEvent

from ..helpers.timeouts import WAIT


def test_what_fails_in_a_thread_of_ours_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    threads = DetachedThreads()

    def fails() -> None:
        raise LookupError("of this test")

    threads.start(fails, "wsmux-route-1")
    threads.join(Deadline(WAIT))
    assert "serving a connection failed" in caplog.text
    assert "of this test" in caplog.text


def test_nobody_waits_longer_than_asked_for_threads_of_ours() -> None:
    threads, over = DetachedThreads(), OneShotEvent()
    threads.start(over.wait, "wsmux-route-1")
    threads.join(Deadline(0.0))
    over.set()
    threads.join(Deadline(WAIT))


def test_a_thread_that_does_not_start_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise wsmux.NoThreadError("none left")

    threads = DetachedThreads()
    monkeypatch.setattr(detached_threads, "start_thread", refuse)
    with pytest.raises(wsmux.NoThreadError):
        threads.start(lambda: None, "wsmux-route-1")
    threads.join(Deadline(None))
