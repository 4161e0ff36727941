"""Servers are killed at any moment, over and over: nothing is lost, doubled or half there."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..helpers.spark.killing import survive

pytestmark = [pytest.mark.spark, pytest.mark.hang_bound(180)]


def test_a_few_kills_lose_nothing(tmp_path: Path) -> None:
    survive(tmp_path, kills=16, seed=1)
