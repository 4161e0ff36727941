"""``wsmux serve-data``: its arguments. How it serves is told in ``tests/spark``."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from wsmux.cli.serve_data import amount, duration, retention
from wsmux.runtime.hints import how_to_install

from ..helpers.commands import run

# Arguments


@pytest.mark.parametrize(
    ("text", "number"), [("5", 5), ("1.5k", 1500), ("10G", 10**10), ("2M", 2 * 10**6)]
)
def test_amounts_have_suffixes(text: str, number: float) -> None:
    assert amount(text) == number


@pytest.mark.parametrize(("text", "seconds"), [("90", 90), ("15m", 900), ("7d", 604_800)])
def test_durations_have_suffixes(text: str, seconds: float) -> None:
    assert duration(text) == seconds


@pytest.mark.parametrize("text", ["", "0", "-1", "x", "5q", "1e9", "5 G", "nan"])
def test_other_amounts_are_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="not a number above 0"):
        amount(text)


def test_limits_of_retention_are_named() -> None:
    limits = retention("rows=5M,age=7d,hard-bytes=1.5G")
    assert limits == {"rows": 5_000_000, "age": 604_800, "hard_bytes": 1_500_000_000}
    with pytest.raises(argparse.ArgumentTypeError, match="'lines' is not one of rows"):
        retention("lines=5")


def test_a_missing_pyarrow_is_told(tmp_path: Path) -> None:
    done = run("serve-data", str(tmp_path), without=("pyarrow",))
    assert (done.returncode, done.stdout) == (1, b"")
    told = f"wsmux serve-data: pyarrow is not installed: {how_to_install('spark')}\n"
    assert done.stderr.decode() == told


@pytest.mark.parametrize("arguments", [["--retention", "x=1"], ["--ttl", "0"]])
def test_wrong_usage_is_told(tmp_path: Path, arguments: list[str]) -> None:
    done = run("serve-data", str(tmp_path), *arguments)
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"error: argument" in done.stderr
