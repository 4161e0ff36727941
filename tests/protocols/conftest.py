"""Compare events by their kinds too: as tuples, they are equal where their fields are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import get_args

import pytest

from wsmux.protocols.events import Event


def _same(event: tuple[object, ...], other: object) -> bool:
    return type(event) is type(other) and tuple.__eq__(event, other)


def _differ(event: tuple[object, ...], other: object) -> bool:
    return not _same(event, other)


@pytest.fixture(autouse=True, scope="package")
def kinds_told_apart() -> Iterator[None]:
    """Let no event of these tests pass for one of another kind."""
    with pytest.MonkeyPatch.context() as patch:
        for kind in get_args(Event):
            patch.setattr(kind, "__eq__", _same)
            patch.setattr(kind, "__ne__", _differ)
        yield
