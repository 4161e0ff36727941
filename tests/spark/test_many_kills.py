"""The same as ``test_kills``, for longer."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..helpers.spark.killing import survive

pytestmark = [pytest.mark.long, pytest.mark.hang_bound(900)]


def test_two_hundred_kills_lose_nothing(tmp_path: Path) -> None:
    survive(tmp_path, kills=200, seed=2)
