"""Give the tests of load a longer bound."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..helpers.marking import bound


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    bound(items, Path(__file__).parent, seconds=1800.0)
