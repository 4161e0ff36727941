"""Plant a race for the restless interpreter, which must find it."""

from __future__ import annotations

import sys
import threading

import pytest

from wsmux.testing import restless
from wsmux.testing.scheduling import _Yields

from ..helpers.timeouts import WAIT


class Racy:
    """Count as nobody should: another thread may come between the reading and the writing."""

    def __init__(self) -> None:
        self.count = 0

    def add(self) -> None:
        before = self.read()
        self.count = before + 1

    def read(self) -> int:
        return self.count


def lost_updates(rounds: int) -> int:
    racy = Racy()

    def work() -> None:
        for _ in range(rounds):
            racy.add()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return 4 * rounds - racy.count


def test_a_restless_interpreter_finds_a_race() -> None:
    before = sys.getswitchinterval()
    with restless(odds=0.2, seed=3):
        assert any(lost_updates(2000) for _ in range(50))
    assert sys.getswitchinterval() == before
    assert sys.getprofile() is None
    assert threading.getprofile() is None


def test_a_thread_yields_at_the_same_calls_again_with_the_same_seed() -> None:
    drawn: list[list[float]] = []

    def draw(seed: int) -> None:
        hook = _Yields(0.5, seed)
        drawn.append([hook._random() for _ in range(5)])

    for seed in (1, 1, 2):
        thread = threading.Thread(target=draw, args=(seed,), name="other-thread")
        thread.start()
        thread.join(WAIT)
        assert not thread.is_alive()
    assert drawn[0] == drawn[1] != drawn[2]


def test_odds_beyond_one_are_refused() -> None:
    with pytest.raises(ValueError, match="odds must be between 0 and 1, not 2"):
        restless(odds=2).__enter__()
