"""Give the tests of load a longer bound, and a way to tell their figures."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ..marking import bound

Tell = Callable[[str], None]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    bound(items, Path(__file__).parent, seconds=1800.0)


@pytest.fixture
def tell(capfd: pytest.CaptureFixture[str]) -> Tell:
    """Print a line of figures at once, past the capturing."""

    def show(line: str) -> None:
        with capfd.disabled():
            sys.stdout.write(f"\n  {line}")
            sys.stdout.flush()

    return show
