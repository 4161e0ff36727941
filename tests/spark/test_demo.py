"""``wsmux demo``, the second half of it as a whole, with a few flights."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from examples.flights import demonstration

from ..helpers.commands import command
from ..helpers.waiting import wait_for

# Seconds for Spark on a busy machine.
PATIENCE = 280.0

FEW = ("--only", "flights", "--limit", "3000")

pytestmark = [pytest.mark.long, pytest.mark.hang_bound(PATIENCE + 20)]


def test_a_few_flights_come_to_what_pandas_says(tmp_path: Path) -> None:
    _need_all()
    picture = tmp_path / "delays.png"
    done = subprocess.run(
        command("demo", *FEW, "--json", "--plot", str(picture)),
        capture_output=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr.decode()
    told = json.loads(done.stdout)["flights"]
    assert told["flights"] == sum(group["flights"] for group in told["delays"]) == 3000
    assert told["failures"] == []
    assert told["resumed_with"] == 1
    compared = [step["differences"] for step in told["steps"]]
    assert compared == [None, [], [], None, []]
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_ctrl_c_ends_spark_too() -> None:
    _need_all()
    mark = uuid.uuid4().hex
    process = subprocess.Popen(
        command("demo", *FEW),
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "WSMUX_TEST_MARK": mark},
    )
    try:
        wait_for(lambda: "pyspark.daemon" in " ".join(_marked(mark)), PATIENCE)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 130
    assert b"Traceback" not in errors
    wait_for(lambda: _marked(mark) == [], 10)


def _need_all() -> None:
    if (lacking := demonstration.lacking(plot=True)) is not None:
        pytest.skip(lacking)


def _marked(mark: str) -> list[str]:
    """Return the command lines of processes that have inherited a mark."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (path / "environ").read_bytes():
                found.append((path / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue  # it has ended, or is another user's
    return found
