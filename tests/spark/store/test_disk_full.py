"""A disk that takes no more: the write is refused, what was there stays, and later ones go on."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ...helpers.programs import needs

pytestmark = [
    pytest.mark.spark,
    pytest.mark.parametrize(
        ("kind", "file_format"), [("table", "delta"), ("topic", "parquet"), ("topic", "arrow")]
    ),
]


def fill(kind: str, file_format: str, directory: Path, how: str, sizes: range) -> None:
    """Try a write at each size; fail unless some are refused and some go through."""
    limits = map(str, (sizes.start, sizes.stop, sizes.step))
    command = [
        sys.executable,
        "-m",
        "tests.helpers.spark.filling",
        kind,
        file_format,
        directory,
        how,
    ]
    ran = subprocess.run([*command, *limits], capture_output=True, text=True, timeout=50)
    assert (ran.returncode, ran.stderr) == (0, "")
    refused, done = map(int, ran.stdout.split())
    assert refused
    assert done


def test_a_file_that_may_not_grow(kind: str, file_format: str, tmp_path: Path) -> None:
    fill(kind, file_format, tmp_path, "file", range(0, 2400, 120))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a file system of 2 MiB."""
    directory = tmp_path / "small"
    directory.mkdir()
    command = [needs("mount"), "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(directory)]
    if (ran := subprocess.run(command, capture_output=True, text=True)).returncode:
        pytest.skip(f"a file system cannot be mounted here: {ran.stderr.strip()}")
    yield directory
    subprocess.run(["umount", directory], check=True)


def test_a_disk_without_room(kind: str, file_format: str, small_disk: Path) -> None:
    fill(kind, file_format, small_disk, "disk", range(0, 48 * 1024, 4096))
