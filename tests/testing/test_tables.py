"""Each row of a table is checked once, and each that fails is named."""

from __future__ import annotations

import pytest

from ..helpers.tables import GROUPS, each_row


def test_each_row_is_checked_once() -> None:
    seen: list[int] = []
    check = each_row(range(25))(seen.append)
    for group in range(GROUPS):
        check(group)
    assert sorted(seen) == list(range(25))


def test_every_row_that_fails_is_named_with_its_reason() -> None:
    @each_row(range(3 * GROUPS), name="row {}".format)
    def check(row: int) -> None:
        if row == 0:
            with pytest.raises(KeyError):
                pass
        assert row != GROUPS, "is wrong"

    with pytest.raises(pytest.fail.Exception) as told:
        check(0)
    assert str(told.value).startswith("2 rows:\nrow 0:\n")
    assert "DID NOT RAISE" in str(told.value)
    assert f"row {GROUPS}:" in str(told.value)
    assert "is wrong" in str(told.value)
    check(1)
