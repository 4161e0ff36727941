"""Drivers, workers and servers of a query are killed at any moment: each row arrives once."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..helpers.spark.stream_killing import survive


@pytest.mark.spark
@pytest.mark.hang_bound(600)
def test_a_few_kills_lose_and_double_nothing(tmp_path: Path, java: str) -> None:
    survive(tmp_path, java, kills=6, seed=3)


@pytest.mark.long
@pytest.mark.hang_bound(14_400)
def test_two_hundred_kills_lose_and_double_nothing(tmp_path: Path, java: str) -> None:
    survive(tmp_path, java, kills=200, seed=4)
