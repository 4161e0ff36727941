"""Servers are killed while clients write to them: each row is in the dataset once, in order."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from ..helpers.spark.ingesting import Producer, held
from ..helpers.spark.killing import Nursery
from ..helpers.timeouts import WAIT
from ..helpers.waiting import wait_for

pytestmark = [pytest.mark.spark, pytest.mark.hang_bound(180)]

# Changes to the file system of a commit, and some of the next one.
CHANGES = 16


def survive(directory: Path, clients: int, deaths: Sequence[int], pause: float) -> None:
    """Have clients write while one server after another dies.

    Args:
        deaths: of each server the change to the file system at which it kills itself, before or
            behind it; 0 for one that is killed within ``pause`` seconds. Between them is one that
            lives until it has taken rows.
    """
    chosen = random.Random(5)
    nursery = Nursery(directory)
    producers: list[Producer] = []
    try:
        producers += [Producer(nursery.url, number) for number in range(clients)]
        for each in producers:
            each.start()
        for after in deaths:
            before = producers[0].done
            wait_for(lambda before=before: producers[0].done > before + 1)
            nursery.kill()
            nursery.wait_dead()
            nursery.start(after=after)
            if not after:
                producers[0].stopping.wait(chosen.uniform(0, pause))  # the moment is any
                nursery.kill()
            nursery.wait_dead()
            nursery.start()
        for each in producers:
            each.stopping.set()
        for each in producers:
            each.join(2 * WAIT)
            assert not each.is_alive()
    finally:
        for each in producers:
            each.stopping.set()
        nursery.close()
    for each in producers:
        if each.failure is not None:
            raise each.failure
    found = held(directory)
    for each in producers:
        assert [one for one in found if one // 1_000_000 == each.number] == each.ids
    assert len(found) == sum(each.done for each in producers) > 0


def test_kills_at_any_moment_lose_and_double_nothing(tmp_path: Path) -> None:
    survive(tmp_path, clients=3, deaths=[0, 37, 0, 64, 0, 11], pause=0.4)


def test_a_kill_at_each_step_of_a_commit_loses_and_doubles_nothing(tmp_path: Path) -> None:
    survive(tmp_path, clients=1, deaths=range(1, CHANGES), pause=0)
