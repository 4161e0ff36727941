"""Call a River server often, with and without idle subscriptions of another client.

``python -m tests.helpers.load.idle_subscriptions COUNT TURNS``.
"""

from __future__ import annotations

import time
from typing import Any

from wsmux import rpc

from .measuring import WAIT, far_end, per_cent, report, wait_until

# Calls a second, one after another, and how many of them a phase has.
RATE, CALLS = 1000, 2000

# Threads that the server may have beside those it had before.
FEW = 4


class Phase:
    """Call at the rate, or as fast as it goes when that is slower; note how it went.

    Attributes:
        answered: calls with the right answer.
        rate: calls a second.
        seconds: what each call took.
    """

    def __init__(self, client: rpc.Client) -> None:
        self.answered = 0
        self.seconds: list[float] = []
        start = time.perf_counter()
        for number in range(CALLS):
            time.sleep(max(0.0, start + number / RATE - time.perf_counter()))
            begun = time.perf_counter()
            self.answered += client.rpc("test", "same", number, WAIT) == number
            self.seconds.append(time.perf_counter() - begun)
        self.rate = CALLS / (time.perf_counter() - start)


def figures(phases: list[Phase], threads: list[int]) -> dict[str, Any]:
    """Return those of the middle one of the phases, and the most threads of the server."""
    return {
        "answered": [phase.answered for phase in phases],
        "rate": per_cent([phase.rate for phase in phases], 50),
        "p50_ms": per_cent([per_cent(phase.seconds, 50) for phase in phases], 50) * 1000,
        "p99_ms": per_cent([per_cent(phase.seconds, 99) for phase in phases], 50) * 1000,
        "threads": max(threads),
    }


def main(count: str, turns: str) -> dict[str, Any]:
    alone: list[Phase] = []
    beside: list[Phase] = []
    few: list[int] = []
    many: list[int] = []
    heard = 0
    with (
        far_end("river", "", count) as far,
        rpc.connect(far.url) as caller,
        rpc.connect(far.url) as watcher,
    ):
        for turn in range(1, int(turns) + 1):
            alone.append(Phase(caller))
            few.append(far.threads())
            watching = [watcher.subscribe("test", "watch", None) for _ in range(int(count))]
            for each in watching:
                assert [each.read(WAIT) for _ in range(turn)] == list(range(turn))
            # The workers that began them rest for ten seconds before they end.
            wait_until(lambda: far.threads() <= few[0] + FEW)
            beside.append(Phase(caller))
            many.append(far.threads())
            caller.rpc("test", "change", turn, WAIT)
            heard += sum(each.read(WAIT) == turn for each in watching)
            for each in watching:
                each.cancel()
    return {"alone": figures(alone, few), "beside": figures(beside, many), "heard": heard}


if __name__ == "__main__":
    report(main)
