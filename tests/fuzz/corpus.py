"""Read the seeds of each parser, and the inputs that once broke one.

``make_seeds`` writes the seeds; ``regressions.txt`` beside them is written by hand, ``PARSER HEX``
a line, and each line stays for good.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["SEEDS", "read", "regressions"]

SEEDS = Path(__file__).parent / "seeds"


def read(name: str) -> list[bytes]:
    """Return the seeds of a parser, and what once broke it."""
    lines = (SEEDS / f"{name}.txt").read_text().splitlines()
    seeds = [bytes.fromhex(line) for line in lines if not line.startswith("#")]
    return seeds + [data for parser, data in regressions() if parser == name]


def regressions() -> list[tuple[str, bytes]]:
    """Return what once broke a parser, each with the parser's name."""
    lines = (SEEDS / "regressions.txt").read_text().splitlines()
    pairs = (line.split(" ") for line in lines if line and not line.startswith("#"))
    return [(parser, bytes.fromhex(data)) for parser, data in pairs]
