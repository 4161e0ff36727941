"""``wsmux serve-data s3://...`` at work: jobs of Spark, several processes, no secret to be seen."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ..helpers.commands import PATIENCE, command, run
from ..helpers.spark.object_store import SECRET, ObjectStore

pytestmark = [pytest.mark.spark, pytest.mark.hang_bound(300)]


@pytest.fixture(autouse=True)
def nothing_left_behind() -> None:
    """Let Spark's driver open what it likes."""


@pytest.fixture
def served(objects: ObjectStore, tmp_path: Path) -> Iterator[tuple[str, list[int]]]:
    """Serve by two processes; give the URL and the process ids of all."""
    told = {name.upper(): value for name, value in objects.options().items()}
    region = told.pop("AWS_REGION")
    program = command("serve-data", objects.address(), "--port", "0", "--processes", "2")
    program += ["--storage-option", f"aws_region={region}", "--topics", str(tmp_path / "topics")]
    process = subprocess.Popen(
        program, env={**os.environ, **told}, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        url = process.stdout.readline().decode().strip()
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        yield url, [process.pid, *map(int, children)]
    finally:
        process.terminate()
        _, errors = process.communicate(timeout=PATIENCE)
        assert process.returncode == 143
        assert b"Traceback" not in errors, errors.decode()
        assert SECRET.encode() not in errors


def test_a_job_writes_and_reads(spark: Any, served: tuple[str, list[int]]) -> None:
    url, processes = served
    place = {"url": url, "dataset": "numbers"}
    for start in (0, 1000):
        frame = spark.range(start, start + 1000, 1, 4)
        frame.write.format("wsmux").options(**place).mode("append").save()
    found = spark.read.format("wsmux").options(**place).load()
    assert sorted(row.id for row in found.collect()) == list(range(2000))
    assert found.where("id >= 1500").count() == 500
    assert spark.read.format("wsmux").options(**place, versionAsOf="0").load().count() == 1000
    for pid in processes:
        assert SECRET.encode() not in Path(f"/proc/{pid}/cmdline").read_bytes()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["s3://b/p", "--storage-option", "aws_secret_access_key=x"],
            "would be seen by everybody on this machine: set AWS_SECRET_ACCESS_KEY in the environ",
        ),
        (["s3://b/p", "--storage-option", "aws_region"], "expected KEY=VALUE"),
        (["directory", "--topics", "http://b"], "expected the URL of a Redis, such as redis://"),
        (
            ["s3://b/p", "--retention", "rows=5"],
            "retention is for topics, and there are none in S3",
        ),
    ],
)
def test_what_is_wrong_on_the_command_line_is_told(arguments: list[str], words: str) -> None:
    done = run("serve-data", *arguments, "--port", "0")
    assert (done.returncode, done.stdout) == (2, b"")
    assert words in " ".join(done.stderr.decode().split())
