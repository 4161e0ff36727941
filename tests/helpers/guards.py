"""Guard every test: none may hang, or leave a thread, a descriptor or much memory behind."""

from __future__ import annotations

import gc
import signal

import pytest

pytest_plugins = ["wsmux.testing.plugin"]


def pytest_configure() -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A shell starts background jobs so, and the processes that the tests interrupt inherit it.
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection() -> None:
    """Do not look through what is collected again and again for garbage: it takes a fifth more."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Take the tests themselves off the garbage collector, which else looks at all of them.

    With what garbage there is: to look for it takes longer than all that it would free is worth.
    """
    gc.enable()
    gc.freeze()


@pytest.fixture(autouse=True)
def guarded(nothing_left_behind: None) -> None:
    """Have every test guarded."""
