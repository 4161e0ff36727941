"""Offer fixtures that tests of several folders ask for; a plugin of ``conftest``."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator

import pytest


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


Tell = Callable[[str], None]


@pytest.fixture
def tell(capfd: pytest.CaptureFixture[str]) -> Tell:
    """Print a line of figures at once, past the capturing."""

    def show(line: str) -> None:
        with capfd.disabled():
            sys.stdout.write(f"\n  {line}")
            sys.stdout.flush()

    return show
