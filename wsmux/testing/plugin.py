"""Provide the test tools to pytest: time limits, a leak guard, a proxy, frequent thread switches.

``pytest_plugins = ["wsmux.testing.plugin"]`` in ``conftest.py`` provides

- the marker ``hang_bound(seconds)``: a test that takes longer, including its fixtures, ends the run
  with the stacks of all threads. The ini option ``hang_bound`` sets a limit for all other tests.
- the fixture ``nothing_left_behind``: a test that leaves threads, descriptors or much memory behind
  fails; the ini option ``leak_settle`` sets how long they may take to go. Fixtures of a wider scope
  are set up before it, so their resources do not count.
- the fixture ``fault_proxy``: ``fault_proxy(target, **options)`` makes a ``FaultProxy`` that is
  closed after the test.
- the fixture ``restless``: the interpreter switches threads as often as possible.
"""

from __future__ import annotations

import faulthandler
import os
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from .faultproxy import FaultProxy
from .guards import SETTLE, LeakError, guard_against_hanging, held, wait_until_gone
from .scheduling import restless as made_restless

__all__ = ["fault_proxy", "nothing_left_behind", "restless"]

STDERR = pytest.StashKey[int]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Register the ini options."""
    parser.addini("hang_bound", "seconds a test may take, its fixtures included", default="0")
    parser.addini("leak_settle", "seconds for threads and descriptors to go", default=str(SETTLE))


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker, and duplicate standard error before output is captured."""
    config.addinivalue_line(
        "markers", "hang_bound(seconds): dump all stacks and end the run after so many seconds"
    )
    config.stash[STDERR] = os.dup(2)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Undo ``pytest_configure``."""
    faulthandler.cancel_dump_traceback_later()
    if STDERR in config.stash:
        os.close(config.stash[STDERR])
        del config.stash[STDERR]


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, object, object]:
    """Start the time limit of a test."""
    marker = item.get_closest_marker("hang_bound")
    seconds = float(item.config.getini("hang_bound") if marker is None else marker.args[0])
    if seconds > 0:
        guard_against_hanging(seconds, item.config.stash[STDERR])
    return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown() -> Generator[None, object, object]:
    """End the time limit of a test."""
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


@pytest.fixture
def nothing_left_behind(pytestconfig: pytest.Config) -> Iterator[None]:
    """Fail a test that leaves threads, descriptors or memory behind."""
    before = held()
    yield
    try:
        wait_until_gone(before, float(pytestconfig.getini("leak_settle")))
    except LeakError as error:
        pytest.fail(str(error), pytrace=False)


@pytest.fixture
def fault_proxy() -> Iterator[Callable[..., FaultProxy]]:
    """Return ``fault_proxy(target, **options)``."""
    with ExitStack() as stack:

        def make(target: int | tuple[str, int], **options: Any) -> FaultProxy:
            return stack.enter_context(FaultProxy(target, **options))

        yield make


@pytest.fixture
def restless() -> Iterator[None]:
    """Make the interpreter switch threads after every microsecond."""
    with made_restless():
        yield
