"""Bound every test of this folder, and let them meet a peer by hand."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ..helpers.marking import bound
from ..helpers.raw_peer import Meeting, meet


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    bound(items, Path(__file__).parent)


@pytest.fixture(params=["client", "server"])
def meeting(request: pytest.FixtureRequest) -> Iterator[Meeting]:
    """Meet a peer by hand, in each role."""
    with meet(request.param) as met:
        yield met
