"""Show and compare results of ``python -m benchmarks`` that were kept as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks import command
from benchmarks.comparing import changes
from benchmarks.results import SCHEMA, Figures, Pass, Result, read
from wsmux.cli.terminal import CommandError

MACHINE = {"cpu": "a CPU", "cores": 2, "architecture": "x86_64", "memory_gib": 8}

ENVIRONMENT = {
    "machine": MACHINE,
    "load": [0.1, 0.2, 0.3],
    "system": "a system",
    "python": "CPython 3",
    "openssl": "OpenSSL 3",
    "wsmux": "0.1.0",
    "packages": {"websockets": None},
    "others": {},
}

USAGE = 2


def result(**changed: Any) -> Result:
    """Return what a run might have found; ``changed`` are figures of one variant and measure."""
    figures: Figures = {
        "upload": {"raw": [100.0, 101.0, 99.0], "wsmux": [800.0, 810.0, 790.0]},
        "tail-p99": {"naive": [1000.0, 1100.0, 1050.0], "wsmux": [200.0, 210.0, 190.0]},
        "idle-stream-server": {"wsmux": [1.5, 1.6, None]},
    }
    for measure, values in changed.items():
        figures[measure.replace("_", "-")]["wsmux"] = values
    return Result(ENVIRONMENT, [Pass(True, figures)], "2026-01-02T03:04:05+0000")


Keep = Callable[..., Path]


@pytest.fixture
def keep(tmp_path: Path) -> Keep:
    """Return what writes a result, or anything, into a file."""

    def keep(what: Any, name: str = "kept.json") -> Path:
        kept = what.as_json() if isinstance(what, Result) else what
        path = tmp_path / name
        path.write_text(kept if isinstance(kept, str) else json.dumps(kept))
        return path

    return keep


def bench(*arguments: object) -> int:
    return command.run(command.parser().parse_args([*map(str, arguments)]))


def test_a_result_is_the_same_when_it_is_read_again(keep: Keep) -> None:
    assert read(keep(result())) == result()


def test_a_kept_result_is_shown_again(keep: Keep, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench("--from", keep(result())) == 0
    text = capsys.readouterr().out
    assert "a CPU, 2 cores" in text
    assert "800 (790-810)" in text
    assert "1.6 (1.5-1.6), 1 failed" in text
    assert "met     wsmux, upload, pinned: 8.00 x raw" in text


def test_check_fails_when_something_is_missed(keep: Keep) -> None:
    path = keep(result(idle_stream_server=[1.5, 1.6, 1.7]))
    assert bench("--from", path, "--check") == 0
    assert bench("--from", keep(result()), "--check") == 1  # a measurement failed


def test_the_json_has_a_schema(keep: Keep, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench("--from", keep(result()), "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert set(told) == {"schema", "taken_at", "environment", "passes", "targets"}
    assert told["schema"] == SCHEMA
    assert set(told["passes"][0]) == {"kind", "pinned", "measures", "failures"}
    upload = told["passes"][0]["measures"]["upload"]
    assert set(upload) == {"unit", "variants"}
    wanted = {"values", "median", "min", "max", "base", "ratios", "ratio"}
    assert all(set(variant) == wanted for variant in upload["variants"].values())
    assert set(told["targets"][0]) == {
        *("measure", "variant", "pinned", "kind", "must", "goal", "upper"),
        *("figure", "figures", "met", "goal_met"),
    }


# What is compared


def test_the_same_figures_are_no_change(keep: Keep, capsys: pytest.CaptureFixture[str]) -> None:
    path = keep(result())
    assert bench("--from", path, "--compare", path) == 0
    assert "5 figures are in" in (text := capsys.readouterr().out)
    assert "0 slower, 0 faster" in text


def test_what_got_slower_is_told(keep: Keep, capsys: pytest.CaptureFixture[str]) -> None:
    old = keep(result(), "old.json")
    new = keep(result(upload=[300.0, 310.0, 320.0], idle_stream_server=[1.0, 1.0, 1.0]))
    assert bench("--from", new, "--compare", old) == 0
    text = capsys.readouterr().out
    assert "1 slower, 1 faster" in text
    assert "slower  wsmux, upload, pinned: 3.07 x raw, was 8" in text
    assert "faster  wsmux, idle stream, server, pinned: 1 KiB, was 1.55" in text


def test_check_fails_when_something_got_slower(keep: Keep) -> None:
    fine = {"upload": [800.0, 810.0, 790.0], "idle_stream_server": [1.5, 1.5, 1.5]}
    old, same = keep(result(**fine), "old.json"), keep(result(**fine), "same.json")
    assert bench("--from", same, "--compare", old, "--check") == 0
    new = keep(result(**fine | {"upload": [600.0, 610.0, 620.0]}))  # which is still met
    assert bench("--from", new, "--check") == 0
    assert bench("--from", new, "--compare", old, "--check") == 1


def test_the_changes_are_in_the_json(keep: Keep, capsys: pytest.CaptureFixture[str]) -> None:
    old, new = keep(result(), "old.json"), keep(result(upload=[300.0, 310.0, 320.0]))
    assert bench("--from", new, "--compare", old, "--json") == 0
    compared = json.loads(capsys.readouterr().out)["compared"]
    assert compared["figures"] == 5
    (change,) = compared["changes"]
    assert change["slower"]
    assert (change["measure"], change["variant"], change["base"]) == ("upload", "wsmux", "raw")


@pytest.mark.parametrize("values", [[700.0, 795.0, 900.0], [780.0, 785.0, 800.0]])
def test_a_change_within_the_spread_is_none(values: list[float | None]) -> None:
    assert changes(result(upload=values), result())[0] == []


def test_a_time_that_grows_is_slower() -> None:
    (change,) = changes(result(tail_p99=[500.0, 510.0, 520.0]), result())[0]
    assert change.slower
    (change,) = changes(result(tail_p99=[50.0, 51.0, 52.0]), result())[0]
    assert not change.slower


def test_what_the_other_has_not_is_not_compared() -> None:
    before = result()
    del before.passes[0].figures["upload"]
    assert changes(result(upload=[1.0, 1.0, 1.0]), before) == ([], 3)
    unpinned = Result(ENVIRONMENT, [Pass(False, before.passes[0].figures)], "")
    assert changes(result(), unpinned) == ([], 0)


# What is refused, before anything is measured


def refused(*arguments: object) -> str:
    with pytest.raises(CommandError) as caught:
        bench(*arguments)
    assert caught.value.status == USAGE
    return str(caught.value)


def test_another_machine_is_refused(keep: Keep) -> None:
    kept = result().as_json()
    kept["environment"] = ENVIRONMENT | {"machine": MACHINE | {"cpu": "another CPU"}}
    other, path = keep(kept, "other.json"), keep(result())
    reason = refused("--from", path, "--compare", other)
    assert "is of another machine: cpu another CPU, cores 2" in reason
    assert "this one is cpu a CPU" in reason
    assert "is of another machine" in refused("--measures", "opens", "--compare", other)


def test_a_machine_that_is_not_told_is_another(keep: Keep) -> None:
    kept = result().as_json()
    kept["environment"] = ENVIRONMENT | {"machine": "mine"}
    assert "another machine: 'mine'" in refused(
        "--from", keep(result()), "--compare", keep(kept, "other.json")
    )


def test_another_schema_is_refused(keep: Keep) -> None:
    path = keep(result().as_json() | {"schema": SCHEMA + 1})
    assert f"has schema {SCHEMA + 1}, and only {SCHEMA}" in refused("--compare", path)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "cannot be read"),
        ("[]", "is no result of these benchmarks"),
        ("{}", "is no result of these benchmarks"),
        (json.dumps({"schema": SCHEMA}), "no whole result of these benchmarks: KeyError: 'passes'"),
        (json.dumps({"schema": SCHEMA, "passes": [1]}), "no whole result of these benchmarks"),
        (json.dumps({"schema": SCHEMA, "passes": [], "environment": 1}), "no whole result"),
    ],
)
def test_a_broken_file_is_refused(keep: Keep, text: str, reason: str) -> None:
    path = keep(text)
    assert reason in refused("--compare", path)
    assert reason in refused("--from", path)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    assert "cannot be read" in refused("--compare", tmp_path / "none.json")


@pytest.mark.parametrize(("measure", "variant"), [("speed", "wsmux"), ("upload", "quic")])
def test_names_that_are_not_known_are_refused(keep: Keep, measure: str, variant: str) -> None:
    kept = result().as_json()
    measures = kept["passes"][0]["measures"]
    measures[measure] = {"unit": "/s", "variants": {variant: {"values": [1.0]}}}
    assert "this version does not" in refused("--from", keep(kept))


@pytest.mark.parametrize("option", ["--rpc", "--bus", "--spark"])
def test_all_has_calls_and_relays(option: str) -> None:
    assert "--all measures calls and relays, too" in refused("--all", option)
