"""Bound every test of this folder, and give them eyes for what leaks to the user's terminal."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .rawpeer import Meeting, meet

HERE = Path(__file__).parent

# Seconds that a test may take, and one that is marked as long.
HANG_BOUND = 10.0
LONG_HANG_BOUND = 600.0


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents and item.get_closest_marker("hang_bound") is None:
            long = item.get_closest_marker("long") is not None
            item.add_marker(pytest.mark.hang_bound(LONG_HANG_BOUND if long else HANG_BOUND))


@pytest.fixture
def quiet(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> Iterator[Callable[[], None]]:
    """Check, when called and at the end, that nothing was printed or logged as a problem."""

    def check() -> None:
        assert capfd.readouterr() == ("", "")
        problems = [r for r in caplog.records if r.levelno >= logging.WARNING]
        assert not problems, [record.getMessage() for record in problems]

    yield check
    check()


@pytest.fixture(params=["client", "server"])
def meeting(request: pytest.FixtureRequest) -> Iterator[Meeting]:
    """Meet a peer by hand, in each role."""
    with meet(request.param) as met:
        yield met
