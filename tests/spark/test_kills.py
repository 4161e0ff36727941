"""Servers are killed at any moment, over and over: nothing is lost, doubled or half there."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..helpers.spark.killing import survive

pytestmark = [pytest.mark.spark, pytest.mark.hang_bound(180)]


@pytest.mark.parametrize("file_format", ["parquet", "arrow"])
def test_a_few_kills_lose_nothing(tmp_path: Path, file_format: str) -> None:
    survive(tmp_path, file_format, kills=8, seed=1)
