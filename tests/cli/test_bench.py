"""``wsmux bench``, too short to mean anything."""

from __future__ import annotations

import json
import signal
import subprocess

import pytest

from wsmux.cli.bench.processes import cores
from wsmux.cli.bench.results import Pass, judge

from .commands import PATIENCE, command, run

TINY = ("bench", "--repetitions", "1", "--seconds", "0.02")


def test_every_figure_of_every_variant_is_taken() -> None:
    done = run(*TINY, "--pin", "no", "--json")
    assert done.returncode == 0, done.stderr.decode()
    result = json.loads(done.stdout)
    assert result["environment"]["python"]
    for each in result["passes"]:
        assert set(each["measures"]) >= {"upload", "download", "ping-64", "ping-1k-100", "opens"}
        for measure in each["measures"].values():
            assert {"raw", "wsmux", "wsmux-python"} <= set(measure["variants"])
            for figures in measure["variants"].values():
                assert figures["min"] > 0
    assert {target["measure"] for target in result["targets"]} == {
        "upload",
        "download",
        "ping-1k",
        "opens",
    }


def test_a_table_and_the_verdicts_are_for_people() -> None:
    done = run(*TINY, "--pin", "no", "--measures", "ping-64,opens", "--peers", "raw,wsmux")
    text = done.stdout.decode()
    assert done.returncode == 0, done.stderr.decode()
    assert "CPython" in text or "PyPy" in text
    assert "ping 64 B, 1 stream" in text
    assert "not pinned" in text
    assert "wanted 500" in text


@pytest.mark.skipif(len(cores()) < 2, reason="needs two cores")
def test_both_runs_are_printed() -> None:
    done = run(*TINY, "--measures", "upload", "--peers", "raw,wsmux", "--json")
    passes = json.loads(done.stdout)["passes"]
    assert [each["pinned"] for each in passes] == [True, False]


def test_one_variant_may_be_measured_alone() -> None:
    done = run(*TINY, "--pin", "no", "--measures", "opens", "--peers", "wsmux-python", "--json")
    row = json.loads(done.stdout)["passes"][0]["measures"]["opens"]["variants"]
    assert list(row) == ["wsmux-python"]
    assert row["wsmux-python"]["ratio"] is None


def test_a_variant_that_is_not_installed_is_left_out() -> None:
    done = run(
        *TINY, "--pin", "no", "--measures", "opens", "--json", without=("wsaccel", "rich", "tqdm")
    )
    assert done.returncode == 0
    assert (
        "raw-wsaccel" not in json.loads(done.stdout)["passes"][0]["measures"]["opens"]["variants"]
    )
    assert b"raw-wsaccel is left out" in done.stderr


def test_check_fails_when_a_target_is_missed() -> None:
    run_ = Pass(
        pinned=True, figures={"upload": {"raw": [1.0, 9.0, 4.0], "wsmux": [4.0, 90.0, 8.0]}}
    )
    (verdict,) = judge([run_])
    assert verdict.figure == 4.0  # the median of the ratios, not the ratio of the medians
    assert not verdict.met
    assert "MISSED" in str(verdict)


def test_ctrl_c_ends_the_workers_too() -> None:
    process = subprocess.Popen(
        command("bench", "--seconds", "5", "--peers", "raw", "--pin", "no"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(2)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert errors == b""
