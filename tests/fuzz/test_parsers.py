"""Every parser takes any bytes, in bounded time and memory: the seeds, and mutations of them."""

from __future__ import annotations

import pytest

from ..helpers.tables import each_case
from .__main__ import NAMES
from .corpus import read, regressions
from .harnesses import HARNESSES
from .mutations import Found, run

MIB = 1024 * 1024

# What a million inputs may cost: the processor's seconds for one, and bytes kept for all.
SLOWEST, GROWTH = 1.0, 16 * MIB

A_SAMPLE, ALL = 3000, 1_000_000


def test_the_command_knows_every_parser() -> None:
    assert set(NAMES) == set(HARNESSES)


@each_case
@pytest.mark.parametrize("name", NAMES)
def test_seeds_are_borne(name: str) -> None:
    """Those that once broke a parser are among them; they lead to answers of several kinds."""
    seeds = read(name)
    labels = {HARNESSES[name](data) for data in seeds}
    assert len(labels) >= 4


def test_every_regression_is_of_a_parser() -> None:
    assert {parser for parser, _ in regressions()} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_sample_of_mutations_is_borne(name: str) -> None:
    outcome = run(name, HARNESSES[name], read(name), A_SAMPLE, seed=0)
    assert outcome.labels >= 12


def test_what_a_parser_does_not_bear_is_found() -> None:
    def brittle(data: bytes) -> str:
        if b"\xff" in data:
            raise KeyError("no such byte")
        return str(len(data))

    with pytest.raises(Found) as caught:
        run("brittle", brittle, [b"seed"], A_SAMPLE, seed=0)
    assert b"\xff" in caught.value.data
    assert isinstance(caught.value.__cause__, KeyError)


def test_the_same_seed_gives_the_same_inputs() -> None:
    tried: list[list[bytes]] = []
    for _ in range(2):
        inputs: list[bytes] = []
        run("any", lambda data, kept=inputs: str(kept.append(data)), [b"a", b"bc"], 200, seed=7)
        tried.append(inputs)
    assert tried[0] == tried[1]
    assert len(set(tried[0])) > 100


@pytest.mark.long
@pytest.mark.hang_bound(1800)
@pytest.mark.parametrize("name", NAMES)
def test_a_million_mutations_are_borne(name: str) -> None:
    outcome = run(name, HARNESSES[name], read(name), ALL, seed=1)
    assert outcome.slowest <= SLOWEST
    assert outcome.growth <= GROWTH
