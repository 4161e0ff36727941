"""Make conversations up: a seed gives the same steps for ever, on every wire.

A step names who acts, what is done, on which stream (counted as they are opened), and a number:
the bytes to write, or the code to end with. ``ours`` is the connection of this package, ``theirs``
the published peer. No step needs credit that comes late, and none races with another.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import NamedTuple

__all__ = ["Step", "payload", "script"]

MOST_STREAMS = 3
STEPS = (4, 12)
LONGEST = 24


class Step(NamedTuple):
    """One thing that one side does: open, write, close or reset."""

    side: str
    verb: str
    stream: int
    number: int = 0


class _Half:
    """Keep what one side may still do on a stream."""

    def __init__(self) -> None:
        self.open = {"ours": True, "theirs": True}
        self.written = {"ours": False, "theirs": False}


def payload(step: Step) -> bytes:
    """Return what a step writes."""
    return bytes(65 + (step.stream * 7 + offset) % 26 for offset in range(step.number))


def script(seed: str) -> list[Step]:
    """Return the steps of a conversation."""
    rng = random.Random(seed)
    return list(_steps(rng, rng.randint(*STEPS)))


def _steps(rng: random.Random, count: int) -> Iterator[Step]:
    streams: list[_Half] = []
    for _ in range(count):
        side = rng.choice(("ours", "theirs"))
        live = [index for index, half in enumerate(streams) if half.open[side]]
        if len(streams) < MOST_STREAMS and (not live or rng.random() < 0.2):
            yield Step(side, "open", len(streams))
            streams.append(_Half())
            continue
        if not live:
            continue
        stream = rng.choice(live)
        half = streams[stream]
        chance = rng.random()
        if chance < 0.65:
            half.written[side] = True
            yield Step(side, "write", stream, rng.randint(1, LONGEST))
        elif chance < 0.9:
            half.open[side] = False
            yield Step(side, "close", stream)
        elif half.open["ours"] and half.open["theirs"]:
            half.open = {"ours": False, "theirs": False}
            yield Step(side, "reset", stream, rng.randint(1, 60))
