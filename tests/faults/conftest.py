"""Bound every test of this folder, and give them eyes for what leaks to the user's terminal."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ..marking import bound
from .rawpeer import Meeting, meet


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    bound(items, Path(__file__).parent)


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
