"""A disk that takes no more: the write is refused, what was there stays, and later ones go on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.spark,
    pytest.mark.parametrize("kind", ["table", "topic"]),
]


def fill(kind: str, directory: Path, how: str, sizes: range) -> None:
    """Try a write at each size; fail unless some are refused and some go through."""
    limits = map(str, (sizes.start, sizes.stop, sizes.step))
    command = [
        sys.executable,
        "-m",
        "tests.helpers.spark.filling",
        kind,
        directory,
        how,
    ]
    ran = subprocess.run([*command, *limits], capture_output=True, text=True, timeout=50)
    assert (ran.returncode, ran.stderr) == (0, "")
    refused, done = map(int, ran.stdout.split())
    assert refused
    assert done


def test_a_file_that_may_not_grow(kind: str, tmp_path: Path) -> None:
    # The files of a table are as small as that; a log of SQLite's is longer than one write.
    sizes = {"table": range(0, 2400, 120), "topic": range(0, 96 * 1024, 3000)}
    fill(kind, tmp_path, "file", sizes[kind])


def test_a_disk_without_room(kind: str, small_disk: Path) -> None:
    fill(kind, small_disk, "disk", range(0, 48 * 1024, 4096))
