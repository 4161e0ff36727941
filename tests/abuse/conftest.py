"""Bound every test of this folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ..helpers.marking import bound


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    bound(items, Path(__file__).parent)


@pytest.fixture
def figure(
    request: pytest.FixtureRequest, capfd: pytest.CaptureFixture[str]
) -> Callable[[str], None]:
    """Return what shows a measured figure to who runs the test by name."""
    writer = request.config.get_terminal_writer()

    def show(text: str) -> None:
        with capfd.disabled():
            writer.line(f"\n{request.node.name}: {text}")

    return show
