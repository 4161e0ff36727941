"""``wsmux ingest``: rows from stdin to a dataset."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from wsmux.spark import DataServer, DeltaDatasets, serve_data

from ..helpers.commands import run
from ..helpers.spark.arrow_data import SCHEMA
from ..helpers.spark.ingesting import held

pytestmark = pytest.mark.spark

LINES = b'{"id": 1, "word": "one"}\n\n{"id": 2, "word": null}\n'


@pytest.fixture
def store(tmp_path: Path) -> DeltaDatasets:
    store = DeltaDatasets(tmp_path, sync=False)
    store.commit(store.begin("d", "create", SCHEMA).txn, [])
    return store


@pytest.fixture
def server(store: DeltaDatasets) -> Iterator[DataServer]:
    with serve_data(datasets=store, token="secret") as server:
        yield server


def ingested(server: DataServer, data: bytes, *options: str, status: int = 0) -> str:
    done = run(
        *("ingest", server.url, "d", *options),
        data=data,
        env={**os.environ, "WSMUX_TOKEN": "secret"},
    )
    assert (done.returncode, done.stdout) == (status, b""), done.stderr
    return done.stderr.decode()


def test_all_rows_are_durable_at_the_end(store: DeltaDatasets, server: DataServer) -> None:
    assert ingested(server, LINES) == "2 rows are durable\n"
    assert held(store) == [1, 2]


def test_a_further_run_passes_over_what_is_there(store: DeltaDatasets, server: DataServer) -> None:
    ingested(server, LINES, "--client-id", "x")
    more = LINES + b'{"id": 3, "word": "three"}'
    told = ingested(server, more, "--client-id", "x")
    assert told == "1 rows are durable, 2 were there\n"
    assert held(store) == [1, 2, 3]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (
            b'{"id": "x", "word": ""}',
            "line 4: [WRONG_TYPE] ingest d: row 0: column 'id' takes int64",
        ),
        (b"{", "line 4 is not JSON: "),
    ],
)
def test_an_odd_line_is_told_and_what_was_before_it_is_there(
    store: DeltaDatasets, server: DataServer, line: bytes, words: str
) -> None:
    told = ingested(server, LINES + line + b"\n", status=1)
    assert told.startswith(f"wsmux ingest: {words}")
    assert held(store) == [1, 2]


def test_a_dataset_that_is_not_there_is_told(server: DataServer) -> None:
    told = run("ingest", server.url, "other", env={**os.environ, "WSMUX_TOKEN": "secret"})
    assert told.returncode == 1
    assert b"NO_DATASET" in told.stderr
