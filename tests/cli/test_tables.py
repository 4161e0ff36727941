"""``wsmux tables``: what it shows. What it does is told in ``tests/spark``."""

from __future__ import annotations

import argparse

import pytest

from wsmux.cli import tables


def test_names_of_files_are_shown_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    answer = {"files": ["a.parquet", "\x1b[2J\nb.parquet"], "count": 2, "bytes": 5}
    tables._show_vacuumed(argparse.Namespace(dry_run=True), answer)
    told = capsys.readouterr()
    assert told.out.split("\n") == ["a.parquet", r"\x1b[2J\nb.parquet", ""]
    assert told.err == "2 files of 5 bytes would be removed\n"
