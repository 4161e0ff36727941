"""``wsmux tables``: the care of datasets from the command line."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import wsmux
from wsmux import rpc
from wsmux.spark.server.data_server import DataServer, serve_data

from ..helpers.commands import run
from ..helpers.spark.arrow_data import rows
from ..helpers.spark.bulk import write_all
from ..helpers.spark.clients import WAIT, bearer
from ..helpers.spark.engines import deltalake

pytestmark = pytest.mark.spark


@pytest.fixture
def server(tmp_path: Path) -> Iterator[DataServer]:
    """Serve a dataset of three small files."""
    with serve_data(tmp_path / "store", token="secret") as server:
        headers = bearer("secret")
        with (
            rpc.connect(server.url, headers=headers) as calls,
            wsmux.connect(server.url, headers=headers, timeout=WAIT) as streams,
        ):
            for start in (0, 10, 20):
                write_all(calls, streams, "d", [[rows(start, 10)]])
        yield server


def tables(server: DataServer, action: str, *options: str, status: int = 0) -> tuple[str, str]:
    done = run(
        *("tables", action, server.url, *options),
        env={**os.environ, "WSMUX_TOKEN": "secret"},
    )
    assert done.returncode == status, done.stderr.decode()
    return done.stdout.decode(), done.stderr.decode()


def test_optimize(server: DataServer) -> None:
    told, _ = tables(server, "optimize", "d", "--target-size", "1M")
    assert told.startswith("3 files of ")
    assert told.endswith(", in version 3\n")
    assert tables(server, "optimize", "d") == ("", "d has no small files to join\n")


def test_history(server: DataServer) -> None:
    title, names, newest, *_ = tables(server, "history", "d", "--limit", "2")[0].splitlines()
    assert (title, names.split()) == ("d", ["version", "time", "operation", "metrics"])
    assert newest.split()[0] == "2"
    assert "WRITE" in newest
    assert "numOutputRows=10" in newest
    told = json.loads(tables(server, "history", "d", "--json")[0])
    assert [each["version"] for each in told["versions"]] == [2, 1, 0]


def test_vacuum(server: DataServer, tmp_path: Path) -> None:
    orphan = tmp_path / "store" / "datasets" / "d" / "orphan.parquet"
    orphan.write_bytes(b"12345")
    os.utime(orphan, (1e9, 1e9))
    told = tables(server, "vacuum", "d", "--dry-run", "--retention", "200")
    assert told == ("orphan.parquet\n", "1 files of 5 bytes would be removed\n")
    assert orphan.exists()
    assert tables(server, "vacuum", "d")[1] == "1 files of 5 bytes were removed\n"
    assert not orphan.exists()
    assert deltalake.DeltaTable(str(orphan.parent)).version() == 2, "it is no change"


def test_a_refusal_is_told_in_a_sentence(server: DataServer) -> None:
    told = tables(server, "optimize", "none", status=1)
    assert told == ("", "wsmux tables: NO_DATASET: there is no dataset none\n")
    assert "at least 24 hours" in tables(server, "vacuum", "d", "--retention", "1", status=1)[1]
