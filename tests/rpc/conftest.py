"""Give the tests of River a clock that they move."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from wsmux.rpc import testing


@pytest.fixture
def clock() -> Iterator[testing.Clock]:
    """Yield the clock of all that a test begins, so that no time is over before it looks."""
    clock = testing.Clock()
    clock.start()
    yield clock
    clock.stop()
