"""Drivers, workers, executors and servers are killed at any moment: each row arrives once.

``WSMUX_SPARK_KILLS`` says how often in each of the long tests, 250 by default, and
``WSMUX_SPARK_SEED`` in which order.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from ..helpers.fixtures import Tell
from ..helpers.spark.stream_killing import LOCAL, STANDALONE, survive

KILLS = int(os.environ.get("WSMUX_SPARK_KILLS", "250"))
SEED = int(os.environ.get("WSMUX_SPARK_SEED") or random.randrange(1 << 32))


@pytest.mark.spark
@pytest.mark.hang_bound(600)
def test_a_few_kills_lose_and_double_nothing(tmp_path: Path, java: str) -> None:
    survive(tmp_path, java, kills=6, seed=3)


@pytest.mark.long
@pytest.mark.hang_bound(14_400)
@pytest.mark.parametrize("where", [LOCAL, STANDALONE])
def test_hundreds_of_kills_lose_and_double_nothing(
    tmp_path: Path, java: str, tell: Tell, where: str
) -> None:
    tell(f"WSMUX_SPARK_SEED={SEED}, {KILLS} kills")
    tell(survive(tmp_path, java, KILLS, SEED, where))
