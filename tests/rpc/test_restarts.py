"""A server is killed and started again under load: no call is wrong, runs twice, or hangs."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import NamedTuple

import pytest

from wsmux import rpc

from ..helpers.fixtures import Tell
from ..helpers.ports import free_port
from ..helpers.rpc.noting_server import LONG_WORK, NotingServer, noting
from ..helpers.timeouts import WAIT
from ..helpers.waiting import wait_for

THREADS = 8
KILLS = 10
LOST = "UNEXPECTED_DISCONNECT"

# The grace of a session runs from its beginning, and from each loss of an established connection.
# So a call ends within one of its start or of the last kill; and within two of its start, since a
# server that was started again refuses the session. A busy machine adds to it.
GRACE = rpc.Options().session_disconnect_grace
MARGIN = 2.0

# Seconds for which the server is up, and down before it is started again; once for longer than the
# grace.
UP, DOWN, LONG_DOWN = (0.0, 1.0), (0.0, 0.5), GRACE + 1.0


class Outcome(NamedTuple):
    """Say how a call has ended, and when it was begun and over."""

    number: int
    end: str
    begun: float
    over: float

    @property
    def seconds(self) -> float:
        return self.over - self.begun

    def since_kill(self, kills: list[float]) -> float:
        """Return the seconds from the last of those kills, or from the start, to the end."""
        return self.over - max([self.begun, *(kill for kill in kills if kill < self.over)])


class Caller:
    """Call in a thread, one call after the other, until told to stop."""

    def __init__(self, client: rpc.Client, numbers: count[int]) -> None:
        self.outcomes: list[Outcome] = []
        self.stop = threading.Event()
        self._client = client
        self._numbers = numbers
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def join(self) -> None:
        self.stop.set()
        self._thread.join(WAIT)

    def _run(self) -> None:
        while not self.stop.is_set():
            number = next(self._numbers)
            started = time.monotonic()
            try:
                answer = self._client.rpc("numbers", "note", number, WAIT)
                end = "answered" if answer == number else f"wrong: {answer}"
            except rpc.RiverError as error:
                end = error.code
            except TimeoutError:
                end = "never"
            self.outcomes.append(Outcome(number, end, started, time.monotonic()))


def kill_and_restart(server: NotingServer, chance: random.Random) -> list[float]:
    """Kill a server ten times, at moments that nobody foresees, and start it again; return when.

    Half of the moments are near to the first call that it gets, so that sessions are cut of which
    nothing was acknowledged.
    """
    kills = []
    long_one = chance.randrange(KILLS)
    for kill in range(KILLS):
        noted = len(server.notes())
        if kill % 2:
            wait_for(lambda noted=noted: len(server.notes()) > noted)
        time.sleep(chance.uniform(*UP))  # the moment of the kill
        kills.append(time.monotonic())
        server.kill()
        time.sleep(LONG_DOWN if kill == long_one else chance.uniform(*DOWN))
        server.start()
    return kills


@pytest.mark.long
@pytest.mark.parametrize("clients", [1, THREADS])
@pytest.mark.parametrize("seed", range(2))
def test_ten_kills_under_eight_threads_make_no_call_wrong_or_double(
    clients: int, seed: int, tmp_path: Path, tell: Tell
) -> None:
    numbers = count()
    with ExitStack() as stack:
        server = stack.enter_context(noting(free_port(), tmp_path / "notes"))
        made = [stack.enter_context(rpc.connect(server.url)) for _ in range(clients)]
        callers = [Caller(made[place % clients], numbers) for place in range(THREADS)]
        for caller in callers:
            stack.callback(caller.join)
        kills = kill_and_restart(server, random.Random(seed))
        before = [len(caller.outcomes) for caller in callers]
        for caller, done in zip(callers, before, strict=True):
            # The first one may have been under way when the server was killed.
            wait_for(lambda c=caller, d=done: any(o.end == "answered" for o in c.outcomes[d:]))
        for caller in callers:
            caller.join()
    outcomes = [outcome for caller in callers for outcome in caller.outcomes]
    slowest = max(outcome.seconds for outcome in outcomes)
    since = max(outcome.since_kill(kills) for outcome in outcomes)
    ends = Counter(outcome.end for outcome in outcomes)
    tell(f"{clients} clients, {dict(ends)}, slowest {slowest:.2f} s, {since:.2f} s after a kill")
    assert set(ends) == {"answered", LOST}
    noted = server.notes()
    assert [number for number, times in Counter(noted).items() if times > 1] == []
    assert {outcome.number for outcome in outcomes if outcome.end == "answered"} <= set(noted)
    assert ends["answered"] >= THREADS
    assert since <= GRACE + MARGIN
    assert slowest <= 2 * GRACE + LONG_WORK + MARGIN
