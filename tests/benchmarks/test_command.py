"""Report what ``python -m benchmarks`` has found, for people and machines; nothing is measured."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from benchmarks import command, environment, schedule
from benchmarks.command import SCHEMA, Progress
from benchmarks.measures import SPARK_MEASURES
from benchmarks.results import Figures, Pass
from wsmux.cli.terminal import CommandError
from wsmux.rpc.testing import Clock

from ..helpers.benchmark_commands import run

ENVIRONMENT = {
    "machine": {"cpu": "a CPU", "cores": 2, "architecture": "x86_64", "memory_gib": 8},
    "load": [0.1, 0.2, 0.3],
    "system": "a system",
    "python": "CPython 3",
    "openssl": "OpenSSL 3",
    "wsmux": "0.1.0",
    "packages": {"websockets": "17"},
    "others": {},
}

USAGE = 2


def bench(*arguments: str) -> int:
    return command.run(command.parser().parse_args(arguments))


Find = Callable[..., None]


@pytest.fixture
def find(monkeypatch: pytest.MonkeyPatch) -> Find:
    """Return what makes a run find figures; those given are of one variant and measure."""

    def find(**changed: Any) -> None:
        figures: Figures = {
            "upload": {"raw": [100.0, 101.0, 99.0], "wsmux": [800.0, 810.0, 790.0]},
            "tail-p99": {"naive": [1000.0, 1100.0, 1050.0], "wsmux": [200.0, 210.0, 190.0]},
            "idle-stream-server": {"wsmux": [1.5, 1.6, None]},
        }
        for measure, values in changed.items():
            figures[measure.replace("_", "-")]["wsmux"] = values
        monkeypatch.setattr(command, "_measure", lambda planned: [Pass(True, figures)])

    monkeypatch.setattr(command, "orders", lambda args: [])
    monkeypatch.setattr(environment, "describe", lambda peers: ENVIRONMENT)
    return find


def test_people_are_told(find: Find, capsys: pytest.CaptureFixture[str]) -> None:
    find()
    assert bench() == 0
    text = capsys.readouterr().out
    assert "a CPU, 2 cores" in text
    assert "websockets 17" in text
    assert "800 (790-810)" in text
    assert "1.6 (1.5-1.6), 1 failed" in text
    assert "met     wsmux, upload, pinned: 8.00 x raw" in text


def test_it_runs_without_what_only_some_variants_need() -> None:
    """A variant may be measured by a Python that has little else installed."""
    without = (
        "cryptography",
        "flask",
        "grpc",
        "gunicorn",
        "msgpack",
        "pyspark",
        "redis",
        "requests",
    )
    done = run("--peers", "nobody", without=without)
    assert done.returncode == USAGE
    assert b"nobody" in done.stderr
    assert b"Traceback" not in done.stderr


def test_check_fails_when_something_is_missed(find: Find) -> None:
    find(idle_stream_server=[1.5, 1.6, 1.7])
    assert bench("--check") == 0
    find()
    assert bench("--check") == 1  # a measurement failed


def test_the_json_has_a_schema(find: Find, capsys: pytest.CaptureFixture[str]) -> None:
    find()
    assert bench("--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert set(told) == {"schema", "taken_at", "environment", "passes", "targets"}
    assert told["schema"] == SCHEMA
    assert told["environment"] == ENVIRONMENT
    assert set(told["passes"][0]) == {"kind", "pinned", "measures", "failures"}
    upload = told["passes"][0]["measures"]["upload"]
    assert set(upload) == {"unit", "variants"}
    wanted = {"values", "median", "min", "max", "base", "ratios", "ratio"}
    assert all(set(variant) == wanted for variant in upload["variants"].values())
    assert set(told["targets"][0]) == {
        *("measure", "variant", "pinned", "kind", "must", "goal", "upper"),
        *("figure", "figures", "met", "goal_met"),
    }


@pytest.mark.parametrize("option", ["--rpc", "--bus", "--spark", "--cluster"])
def test_all_has_calls_and_relays(option: str) -> None:
    with pytest.raises(CommandError, match="--all measures calls and relays, too") as caught:
        bench("--all", option)
    assert caught.value.status == USAGE


# Progress, and what is quick


@pytest.fixture
def clock() -> Iterator[Clock]:
    made = Clock()
    made.start()
    yield made
    made.stop()


def test_what_was_taken_is_told_once_a_second(
    capsys: pytest.CaptureFixture[str], clock: Clock
) -> None:
    progress = Progress(5)
    for figure in range(4):
        progress.tell(f"upload {figure}")
        clock.advance(0.6)
    progress.tell("the last")
    told = capsys.readouterr().err.splitlines()
    assert told == ["1 of 5: upload 0", "3 of 5: upload 2", "5 of 5: the last"]


def test_how_much_is_to_come_is_told_first(capsys: pytest.CaptureFixture[str], find: Find) -> None:
    find()
    bench()
    assert capsys.readouterr().err.splitlines()[0] == "0 figures are to be taken"


def test_spark_is_quick_in_a_minute_and_a_half(monkeypatch: pytest.MonkeyPatch) -> None:
    """One distance of each, first those that need no session; whatever else the machine does."""
    monkeypatch.setattr(schedule, "missing_module", lambda python, names: None)
    (quick,) = schedule.orders(command.parser().parse_args(["--spark", "--quick"]))
    (usual,) = schedule.orders(command.parser().parse_args(["--spark"]))
    assert (quick.within, usual.within) == (75.0, math.inf)
    groups = [SPARK_MEASURES[name].group for name in quick.measures]
    assert sorted(groups) == sorted({SPARK_MEASURES[name].group for name in usual.measures})
    needs = [len(SPARK_MEASURES[name].needs) for name in quick.measures]
    assert needs == sorted(needs)
    named = schedule.orders(
        command.parser().parse_args(["--spark", "--quick", "--measures", "sync"])
    )
    assert named[0].measures == ["sync-0ms", "sync-1ms", "sync-5ms"]
