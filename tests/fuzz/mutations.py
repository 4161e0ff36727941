"""Mutate inputs at random, reproducibly, and keep those after which a parser says something new.

It has no coverage to go by, only the labels of ``harnesses``. It is for machines without atheris,
and for measuring memory and time, which a coverage engine would spoil.
"""

from __future__ import annotations

import random
import resource
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

from .harnesses import Harness

__all__ = ["Found", "Outcome", "mutated", "run"]

# Bytes of an input, and inputs kept beside the seeds; the oldest of these goes.
LONGEST = 4096
MOST_KEPT = 512

# Labels that can be told apart.
LABELS = 2**16

# Values at which parsers go wrong, in every width.
EDGES = tuple(
    (edge % 2 ** (8 * width)).to_bytes(width, "big")
    for width in (1, 2, 4, 8)
    for edge in (0, 1, 2, 63, 64, 125, 126, 127, 128, 255, 256, -1, -2, 2 ** (8 * width - 1))
)

# Pieces that mean something to one parser or another.
WORDS = (
    *EDGES,
    *(b"\x80\x00", b"\xc0\xaf", b"\xed\xa0\x80", b"\xff\xff\xff\xff\xff\xff\xff\xff"),
    *(b"{", b"}", b"[", b"]", b'"', b'":', b",", b"NaN", b"1e999", b'{"$t":"', b'{"$b":"', b"\\u"),
    *(b"[" * 300, b"\x91" * 300, b"9" * 300, b"\xdd\xff\xff\xff\xff", b"\xc7\x01\x00"),
    *(b".", b"=", b"-", b"eyJ", b"\x0a\xff", b"\x1a\x00", b"%00"),
)

# Runs before memory is first measured: caches and pools fill in them.
WARM_UP = 2000


class Found(Exception):
    """Report an input that a parser did not bear; its cause says how."""

    def __init__(self, name: str, data: bytes) -> None:
        super().__init__(f"{name} does not bear {data.hex()}")
        self.data = data


class Outcome(NamedTuple):
    """Say what a number of runs cost.

    Attributes:
        runs: inputs that were tried.
        slowest: the processor's seconds for the slowest of them.
        growth: bytes by which the resident set grew since the first of them.
        labels: how many different labels came.
    """

    runs: int
    slowest: float
    growth: int
    labels: int


def run(name: str, harness: Harness, seeds: Sequence[bytes], runs: int, seed: int) -> Outcome:
    """Try the seeds and then mutations of them; the same seed gives the same inputs.

    Raises:
        Found: an input raised what it must not; the cause is chained.
    """
    rng = random.Random(f"{name} {seed}")
    kept: list[bytes] = []
    labels = bytearray(LABELS)  # of a fixed size, for the memory is measured
    slowest, first_size = 0.0, 0
    for number in range(runs):
        data = seeds[number] if number < len(seeds) else mutated(rng, seeds, kept)
        began = time.thread_time()
        try:
            label = harness(data)
        except Exception as error:
            raise Found(name, data) from error
        slowest = max(slowest, time.thread_time() - began)
        place = crc32(label.encode()) % LABELS
        if not labels[place]:
            labels[place] = 1
            kept.append(data)
            del kept[:-MOST_KEPT]
        if number == min(WARM_UP, runs - 1):
            first_size = _resident()
    return Outcome(runs, slowest, _resident() - first_size, sum(labels))


def mutated(rng: random.Random, seeds: Sequence[bytes], kept: Sequence[bytes]) -> bytes:
    """Return a new input made of one or two of those there are."""
    pool = kept if kept and rng.random() < 0.7 else seeds
    data = bytearray(rng.choice(pool))
    for _ in range(1 + int(rng.expovariate(0.7))):
        _mutate(rng, data, seeds)
    return bytes(data[:LONGEST])


def _mutate(rng: random.Random, data: bytearray, seeds: Sequence[bytes]) -> None:
    start = rng.randrange(len(data) + 1)
    end = min(len(data), start + int(rng.expovariate(0.2)))
    match rng.randrange(8):
        case 0 if data:
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        case 1 if data:
            data[rng.randrange(len(data))] = rng.randrange(256)
        case 2:
            data[start:start] = rng.choice(WORDS)
        case 3:
            word = rng.choice(WORDS)
            data[start : start + len(word)] = word
        case 4:
            del data[start:end]
        case 5:
            data[start:start] = data[start:end]
        case 6:
            other = rng.choice(seeds)
            cut = rng.randrange(len(other) + 1)
            data[start:] = other[cut:]
        case _:
            data[start:start] = rng.randbytes(rng.randrange(5))


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
